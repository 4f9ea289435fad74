"""What has a meaning for a database is an ordinary text in every string that a caller gives.

Each method of a store is called with each of these texts in each of its strings, in a database and
in memory: the answers are the same, and so is what is there afterwards.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import BytesIO
from typing import Any
from urllib.parse import quote

import pytest

from capsule import Filter, InvalidDocument, InvalidInput, NotFound, Refused, StorageFailed, Store
from capsule.engines.interface import Trashed
from capsule.format.documents.agents import project_id
from capsule.format.validation import KINDS
from capsule.store.change.conversation import REMOVED
from tests.core.store.conftest import clock
from tests.messaging.test_canaries import HARMLESS, MASKED, methods, said
from tests.postgres.stores import engine_of
from tests.postgres.test_opening import sql

__all__ = ["clock"]

HOSTILE = {
    "quotes": "it''s ' \" `",
    "an injection": "x'; DROP TABLE documents; DELETE FROM @entries; --",
    "an injection into a name": 'x"; DROP SCHEMA public CASCADE; --',
    "a tautology": "' OR '1'='1",
    "a backslash at the end": "x\\",
    "an escape": "E'\\x41\\'\\n\\u0041",
    "dollars": "$$ x $save$ y $1",
    "placeholders": "%s %(id)s %% %",
    "the sign of our schema": "@documents @",
    "braces": "{} {0} {id!r}",
    "an array": '{a,"b",NULL}',
    "bytes": "\\x00ff",
    "nothing": "NULL",
    "a like": "_%",
    "words of a search": 'NEAR(a b, 2) AND NOT "c* OR col:d & e | !f <-> g:*',
    "a comment": "/* x */ -- y",
    "a zero": "a\0b",
    "half a character": "a\ud800b",
    "turned": "\u202e'abc\u2069\u200b\ufeff",
    "lines": "a\r\nb\tc\u2028d\x85e",
    "not normal": "e\u0301\u00e9\u1e9e\u0130\U0001f41f",
    "a path": "../../etc/passwd",
    "long": "x" * 10_000,
    "long words": "quote' " * 2_000,
    "empty": "",
    "JSON": '{"$gt": "", "id": null}',
}
SAMPLE = ("an injection", "a zero")
CHAT, TEAM, NEWS, NOBODYS = "plan", "team", "channel_global_news", "bystander"
MESSAGE, ANSWER, MAIL = "plan-one", "plan-two", "mail"
API, WEB = project_id("/srv/api"), project_id("/srv/web")
WHERE = {
    "topic": {"$text": "plans"},
    "$or": [{"priority": {"$in": ["high"]}}, {"metadata.tags": {"$exists": True}}],
}
MADE = {
    "role": "user",
    "content": "hello",
    "from": "anna",
    "topic": "plans",
    "metadata": {"tags": ["red"], "a": "b"},
}
MODERN = {
    "id": CHAT,
    "version": "2.0",
    "title": "Plan",
    "createdAt": "2026-01-01T00:00:00.000Z",
    "updatedAt": "2026-01-01T00:00:00.000Z",
    "metadata": {"tags": ["red"], "type": "chat"},
    "context": {"fullContext": "text", "metadata": {"a": "b"}},
    "history": [
        {"role": "user", "content": "hello", "timestamp": "2026-01-01T00:00:00.000Z", "id": "new"}
    ],
}
_OF_ALL = (
    "ids",
    "heads",
    "stats",
    "locks.list",
    "conflicts.list",
    "trash.list",
    "trash.removed",
    "projects.list",
)

#: A call of each method: its arguments by name, `""` those without one. Every string is replaced in
#: turn.
CALLS: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in (*_OF_ALL, "agents.list", "sessions.list", "sessions.questions")),
    *(
        (name, {"id": CHAT})
        for name in ("read", "document", "load", "head", "archive", "pin", "branches.tree")
    ),
    *(
        (name, {"id": CHAT})
        for name in ("titles.by_rule", "summaries.list", "summaries.standing", "locks.release")
    ),
    *(
        (name, {"id": CHAT})
        for name in ("trash.removed", "conflicts.list", "branches.trim", "context.get")
    ),
    ("tail", {"id": CHAT, "n": 5}),
    ("tail_entries", {"id": CHAT, "n": 5}),
    ("page", {"id": CHAT, "around": MESSAGE}),
    ("page", {"id": CHAT, "where": WHERE}),
    ("page", {"id": CHAT, "cursor": "x"}),
    ("find_message", {"id": CHAT, "message_id": MESSAGE}),
    ("resolve", {"text": CHAT}),
    (
        "create",
        {
            "title": "Title",
            "tags": ["red"],
            "type": "group",
            "mode": "api",
            "created_by": "anna",
            "key": "key",
        },
    ),
    ("create", {"id": CHAT, "messages": [MADE | {"id": "m"}]}),
    ("append", {"id": CHAT, **MADE, "extra": {"note": "x", "more": {"key": ["value"]}}}),
    (
        "append",
        {
            "id": CHAT,
            "content": "x",
            "thread": MESSAGE,
            "replyTo": MESSAGE,
            "model": "m",
            "reasoning": "r",
        },
    ),
    ("append_once", {"id": CHAT, "key": "once", "content": "x", "seen": "x"}),
    ("append_many", {"id": CHAT, "messages": [MADE | {"id": "many"}]}),
    (
        "append_entries",
        {
            "id": CHAT,
            "messages": [MADE | {"id": "entry", "toolCalls": [{"id": "c", "name": "Bash"}]}],
        },
    ),
    (
        "update",
        {
            "id": CHAT,
            "title": "Title",
            "tags": ["red"],
            "mcp_servers": {"files": True},
            "by": "user",
        },
    ),
    ("update", {"id": CHAT, "tagged": ["red"], "untagged": ["blue"], "instead_of": "x"}),
    ("rename", {"id": CHAT, "title": "Other"}),
    ("titles.suggest", {"id": CHAT, "title": "Suggested", "instead_of": "Plan"}),
    ("tag", {"": [CHAT, "red"]}),
    ("untag", {"": [CHAT, "red"]}),
    ("servers.get", {"id": CHAT}),
    ("servers.set", {"id": CHAT, "switches": {"files": True}}),
    ("servers.toggle", {"id": CHAT, "name": "files"}),
    ("context.set", {"id": CHAT, "context": {"fullContext": "text", "metadata": {"a": "b"}}}),
    ("edits.message", {"id": CHAT, "message_id": MESSAGE, "content": "edited"}),
    ("branches.path", {"id": CHAT, "message_id": MESSAGE}),
    ("branches.alternatives", {"id": CHAT, "message_id": MESSAGE}),
    ("branches.slot", {"id": CHAT, "message_id": ANSWER}),
    ("branches.descendants", {"id": CHAT, "message_id": MESSAGE}),
    ("branches.switch", {"id": CHAT, "message_id": MESSAGE}),
    ("branches.revise", {"id": CHAT, "message_id": MESSAGE, "content": "revised", "key": "revise"}),
    (
        "branches.regenerate",
        {"id": CHAT, "message_id": ANSWER, "content": "again", "key": "regenerate"},
    ),
    ("branches.remove", {"id": CHAT, "message_id": "nothing", "expected": ["x"]}),
    ("forks.list", {"id": CHAT}),
    (
        "forks.create",
        {"id": CHAT, "at": MESSAGE, "title": "Fork", "created_by": "a", "key": "fork"},
    ),
    ("forks.create", {"id": CHAT, "new_id": "fork"}),
    ("forks.delete", {"id": "nothing"}),
    ("summaries.mark", {"id": TEAM, "up_to": MAIL}),
    (
        "summaries.add",
        {"id": CHAT, "text": "short", "title": "Summary", "tags": ["red"], "key": "summary"},
    ),
    ("conflicts.resolve", {"id": CHAT, "field": "title", "value": "Title"}),
    ("edits.migrate", {"id": CHAT, "check": True}),
    ("versions.restore", {"id": CHAT, "document": MODERN}),
    ("incoming.version", {"kind": "conversations", "id": CHAT}),
    (
        "list",
        {
            "filter": {
                "tags": ["red"],
                "title": "plan",
                "mode": "api",
                "type": "group",
                "since": "2020-01-01",
            }
        },
    ),
    (
        "list",
        {
            "filter": {
                "agent": "anna",
                "project": "/srv/api",
                "source": "here",
                "summaries_of": CHAT,
            }
        },
    ),
    (
        "list",
        {
            "filter": {"ids": [CHAT], "members": ["anna"], "archived": None},
            "order": "title",
            "limit": 1,
        },
    ),
    ("list", {"cursor": "x"}),
    ("facets", {"filter": {"tags": ["red"]}}),
    ("search", {"query": "hello", "profile": "exact"}),
    (
        "search",
        {"query": "hello", "roles": ["user"], "senders": ["anna"], "ids": [CHAT], "tags": ["red"]},
    ),
    (
        "search",
        {
            "query": "plan",
            "title_only": True,
            "mode": "api",
            "since": "2020-01-01",
            "until": "2030-01-01",
        },
    ),
    ("search", {"query": "", "where": WHERE, "branch": "all", "profile": "balanced"}),
    ("search", {"query": "hello", "cursor": "x"}),
    ("changes", {"since": "x", "ids": [CHAT]}),
    ("wait_for_changes", {"since": "x", "timeout_s": 0}),
    ("agents.get", {"id": "anna"}),
    (
        "agents.register",
        {"id": "carl", "project": "/srv/web", "name": "Carl", "description": "tests"},
    ),
    ("agents.ensure", {"name": "anna", "folder": "/srv/api"}),
    ("agents.identity", {"name": "anna", "folder": "/srv/api"}),
    ("agents.at", {"folder": "/srv/api"}),
    ("agents.move", {"id": "bob", "project": "/srv/web"}),
    ("agents.policy", {"id": "bob", "dm": "open", "discoverable": "public"}),
    ("agents.allow", {"agent": "anna", "other": "bob", "reason": "work"}),
    ("agents.block", {"agent": "bob", "other": "carl", "reason": "noise"}),
    ("agents.forget", {"agent": "bob", "other": "carl"}),
    ("agents.may", {"action": "read", "agent": "anna", "conversation": TEAM, "other": "bob"}),
    ("agents.discover", {"agent": "anna"}),
    ("agents.requests", {"agent": "anna"}),
    ("agents.set_status", {"agent": "anna", "text": "busy"}),
    ("agents.set_notifications", {"agent": "anna", "on": True}),
    ("projects.get", {"project": API}),
    ("projects.link", {"a": API, "b": WEB, "direction": "both"}),
    ("projects.unlink", {"a": API, "b": WEB}),
    (
        "channels.create",
        {
            "name": "talk",
            "agent": "anna",
            "scope": "global",
            "members": ["bob"],
            "description": "x",
        },
    ),
    ("channels.get", {"channel": NEWS, "agent": "anna"}),
    ("channels.list", {"agent": "anna"}),
    ("channels.resolve", {"channel": "news", "agent": "anna"}),
    ("channels.join", {"channel": NEWS, "agent": "bob"}),
    ("channels.leave", {"channel": NEWS, "agent": "carl"}),
    ("channels.invite", {"channel": NEWS, "agents": ["bob"], "agent": "anna"}),
    ("channels.remove", {"channel": NEWS, "member": "carl", "agent": "anna"}),
    ("channels.members", {"channel": NEWS, "agent": "anna"}),
    ("channels.mute", {"conversation": NEWS, "agent": "anna", "notify": "all"}),
    ("channels.topics", {"channel": NEWS, "agent": "anna"}),
    ("channels.update", {"channel": NEWS, "agent": "anna", "description": "y", "access": "open"}),
    ("groups.create", {"name": "Group", "agent": "anna", "with_": ["bob"], "history": "joined"}),
    ("groups.add", {"id": TEAM, "agents": ["bob"], "agent": "anna"}),
    ("groups.rename", {"id": TEAM, "name": "Team", "agent": "anna"}),
    ("groups.leave", {"id": TEAM, "agent": "dora"}),
    ("groups.list", {"agent": "anna"}),
    ("notes.write", {"text": "note", "agent": "anna", "tags": ["red"], "session": "s"}),
    (
        "notes.search",
        {"text": "note", "agent": "anna", "of": "anna", "tags": ["red"], "session": "s"},
    ),
    ("notes.share", {"other": "bob", "agent": "anna"}),
    ("notes.unshare", {"other": "bob", "agent": "anna"}),
    (
        "messages.send",
        {
            "text": "hello @bob",
            "agent": "anna",
            "to": "bob",
            "topic": "plans",
            "idempotency_key": "k",
        },
    ),
    ("messages.send", {"text": "hello", "agent": "anna", "channel": NEWS, "intent": "inform"}),
    (
        "messages.send",
        {"text": "hi", "agent": "anna", "conversation": TEAM, "thread": MAIL, "reply_to": MAIL},
    ),
    (
        "messages.send",
        {
            "text": "hi",
            "agent": "anna",
            "conversation": TEAM,
            "priority": "high",
            "metadata": {"a": "b"},
        },
    ),
    ("messages.history", {"conversation": TEAM, "agent": "anna", "topic": "plans", "where": WHERE}),
    ("messages.history", {"conversation": TEAM, "agent": "anna", "thread": MAIL}),
    ("messages.history", {"conversation": TEAM, "agent": "anna", "before": MAIL}),
    ("messages.history", {"conversation": TEAM, "agent": "anna", "after": MAIL}),
    ("messages.inbox", {"agent": "bob", "topic": "plans"}),
    ("messages.inbox", {"agent": "anna", "thread": MAIL}),
    ("messages.listen", {"agent": "bob", "conversation": TEAM, "topic": "plans"}),
    ("messages.listen", {"agent": "bob", "conversation": TEAM, "thread": MAIL}),
    ("messages.mentions", {"agent": "bob", "state": "all", "kind": "mention"}),
    ("messages.pointer", {"agent": "anna"}),
    ("messages.ack", {"agent": "bob", "conversation": TEAM, "topic": "plans"}),
    ("messages.ack", {"agent": "bob", "message": MAIL}),
    ("messages.ack", {"agent": "anna", "cursor": "x"}),
    ("messages.first_unread", {"conversation": TEAM, "agent": "anna"}),
    ("messages.status", {"message": MAIL, "agent": "anna"}),
    ("messages.edit", {"message": MAIL, "content": "edited", "agent": "anna"}),
    ("messages.react", {"message": MAIL, "emoji": "+1", "agent": "bob"}),
    ("messages.reopen", {"message": MAIL, "agent": "bob"}),
    ("messages.done", {"message": MAIL, "agent": "bob"}),
    (
        "sessions.set_agent",
        {"name": "bot", "command": ["answer"], "folder": "/srv/api", "provider": "p"},
    ),
    ("sessions.set_agent", {"name": "bot", "settings": {"timeZone": "UTC"}}),
    ("sessions.agent", {"name": "bot"}),
    ("sessions.wire", {"place": TEAM, "agent": "bot", "engage": "pattern", "pattern": "hello.*"}),
    ("sessions.unwire", {"place": TEAM, "agent": "bot"}),
    ("sessions.allow", {"agent": "bot", "place": TEAM, "title": "Team"}),
    ("sessions.forbid", {"agent": "bot", "name": "team"}),
    ("sessions.list", {"agent": "bot"}),
    *((f"sessions.{name}", {"session": "s"}) for name in ("get", "history", "pause", "resume")),
    *((f"sessions.{name}", {"message": MAIL}) for name in ("retry", "why")),
    ("sessions.cancel", {"id": "series"}),
    ("delete", {"id": "nothing"}),
    ("trash.restore", {"id": "nothing"}),
]
#: What takes more than texts.
MORE: dict[str, Callable[[Store, str], Any]] = {
    "export": lambda store, text: store.export([text], BytesIO(), format="markdown"),
    "export format": lambda store, text: store.export([CHAT], BytesIO(), format=text),
    "import_": lambda store, text: store.import_(
        stream=BytesIO(json.dumps(MODERN | {"title": text}).encode())
    ),
    "locks.take": lambda store, text: store.locks.take(CHAT, client=text, agent=text).__exit__(
        None, None, None
    ),
    "locks.take of": lambda store, text: store.locks.take(text),
    "trash.head": lambda store, text: store.trash.head(Trashed(CHAT, "2026", text, "")),
    "trash.restore": lambda store, text: store.trash.restore(CHAT, Trashed(CHAT, "2026", text, "")),
    "trash.restore_messages": lambda store, text: store.trash.restore_messages(
        Trashed(CHAT, "2026", text, "")
    ),
    "edits.rewrite": lambda store, text: store.edits.rewrite(text, b"{}", store.read(CHAT)),
    "incoming.bring_in": lambda store, text: store.incoming.bring_in(
        "conversations", text, None, b"{}"
    ),
    "set_settings": lambda store, text: settings(store, f"[storage]\n# {text}"),
    "set_settings as": lambda store, text: settings(
        store, f"[storage]\nmutex_timeout = {json.dumps(text)}"
    ),
    "beside": lambda store, text: store.beside(agent=text).ids(),
    "beside as": lambda store, text: (
        store.beside(instance=text, user=text).append(CHAT, content="x").id
    ),
    "a lease": lambda store, text: store.engine.leases.acquire(text).name,
    "a lease about": lambda store, text: (
        store.engine.leases.acquire("instance-1", {"user": whole(text)}).name
    ),
    "a beat": lambda store, text: store.engine.leases.record_heartbeat(text),
    "a beat of": lambda store, text: store.engine.leases.last_heartbeat(text),
    "a file": lambda store, text: store.engine.files.write("inbox", "s", text, b"x"),
    "a file of": lambda store, text: store.engine.files.write("inbox", text, "x", b"x"),
    "a file is read": lambda store, text: store.engine.files.read("inbox", "s", text),
    "a file is dropped": lambda store, text: store.engine.files.erase("inbox", "s", text),
    "trash is read": lambda store, text: store.engine.trash.read(text),
    "a put": lambda store, text: store.engine.put("overrides", text, b"{}", None) and None,
    "an entry": lambda store, text: store.engine.document("inbound", text),
    "a tracker": lambda store, text: store.engine.tracker(text) and None,
    "exists": lambda store, text: store.engine.exists("conversations", text),
}
#: Names in the trash, marks of versions, and ids without a key.
_OTHERS = re.compile(
    rf"{MASKED.pattern}|~[0-9a-f]{{1,16}}'| 0x[0-9a-f]+|group_\w+_[a-z0-9]{{9}}|sha256:[0-9a-f]+"
    r"|remedy\(action='copy'.*\)|none$"
)
#: In place of an answer that nothing is there, where a database can't be asked for the text.
_IN_NO_TEXT, _NOTHING = "cannot be stored", ("notfound", "invalidinput", "[false]")
#: Besides `HARMLESS`: without a string of a caller, or they name files.
WITHOUT = {
    "read_settings",
    "agents.names",
    "agents.serve",
    "configuration.history",
    "sessions.compact",
    "context.clear",
    "watch",
}


def whole(text: str) -> str:
    """A text without half characters."""
    return text.encode("utf-8", "ignore").decode()


def settings(store: Store, toml: str) -> str:
    """The settings after their change; empty: it was refused, in an error that names the store."""
    with suppress(InvalidInput, InvalidDocument):
        store.set_settings(toml)
        return store.read_settings()
    return ""


def strings(value: Any, here: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to each string in a value, the names in what is no argument among them."""
    if isinstance(value, str):
        yield here
    elif isinstance(value, Mapping):
        for key, each in value.items():
            if here and here != ("filter",):
                yield (*here, key, None)
            yield from strings(each, (*here, key))
    elif isinstance(value, list):
        for number, each in enumerate(value):
            yield from strings(each, (*here, number))


def with_(value: Any, way: tuple[Any, ...], text: str) -> Any:
    """A value with a text at the end of a way."""
    if not way:
        return text
    at, rest = way[0], way[1:]
    if isinstance(value, list):
        return [
            with_(each, rest, text) if number == at else each for number, each in enumerate(value)
        ]
    if rest == (None,):
        return {text if key == at else key: each for key, each in value.items()}
    return {key: with_(each, rest, text) if key == at else each for key, each in value.items()}


def call(store: Store, name: str, given: dict[str, Any]) -> Any:
    method: Any = store
    for part in name.split("."):
        method = getattr(method, part)
    if "filter" in given:
        lists = {
            key: value if key == "archived" else _hashable(value)
            for key, value in given["filter"].items()
        }
        given = given | {"filter": Filter(**lists)}
    answer = method(*given.pop("", ()), **given) if "" in given else method(**given)
    if name == "search":  # How well it fits depends on the lengths of random ids.
        return replace(
            answer,
            hits=sorted(answer.hits, key=lambda hit: (hit.title, hit.snippet.text)),
            cursor=None,
        )
    if name == "list":  # A mapping has no order.
        counts = sorted(answer.messages.items(), key=lambda count: (count[1], count[0]))
        return replace(answer, messages=dict(counts))
    if name in ("heads", "locks.list"):  # They come in no order.
        return sorted(answer, key=lambda head: head.id)
    return answer


def outcome(ask: Callable[[], Any]) -> str:
    """All that a call tells, without what differs between any two stores."""
    # How well a text fits is worked out by each index, and a text that it shows has a sign for a
    # zero.
    told = _OTHERS.sub("_", said(ask)).replace(r"\x00", "\ufffd")
    return re.sub(r"score'?[=:] ?[0-9.e-]+", "", told).encode("ascii", "backslashreplace").decode()


def _hashable(value: Any) -> Any:
    return frozenset(value) if isinstance(value, list) else value


def build(store: Store) -> None:
    for agent, folder in (("anna", "/srv/api"), ("bob", "/srv/api"), ("carl", "/srv/web")):
        store.agents.register(agent, folder)
    store.agents.register("bot")
    store.agents.register("dora")
    for id, type in ((CHAT, "chat"), (TEAM, "group"), (NOBODYS, "chat")):
        one = {"role": "user", "content": "hello", "id": f"{id}-one", "from": "anna"}
        store.create(id=id, title=id.title(), type=type, tags=["red"], messages=[one])
    store.append_many(CHAT, [{"role": "assistant", "content": "an answer", "id": ANSWER}])
    store.groups.add(TEAM, ["anna", "bob", "bot", "dora"])
    store.append_many(TEAM, [MADE | {"id": MAIL, "content": "hello @bob"}])
    store.channels.create("news", agent="anna", scope="global")
    store.sessions.set_agent("bot", ["answer"])


def everything(store: Store) -> list[str]:
    """All documents of a store and what is in its trash, without what differs between any two
    stores.
    """
    engine = store.engine
    found = [f"{kind} {id} {engine.read(kind, id)!r}" for kind in KINDS for id in engine.ids(kind)]
    found += [
        f"{kind} {engine.trash.read(each.token)!r}"
        for kind in (*KINDS, REMOVED)
        for each in engine.trash.entries(kind)
    ]
    return sorted(_OTHERS.sub("_", each.lower()) for each in found)


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        pytest.param(text, id=name, marks=[pytest.mark.sample] * (name in SAMPLE))
        for name, text in HOSTILE.items()
    ],
)
def test_a_text_that_a_database_would_understand_is_a_text(
    text: str, database: str, clock: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(sys.maxsize, "capsule")  # What runs the tests can't say half a character.
    told: list[dict[str, str]] = []
    there: list[list[str]] = []
    for store in (Store.in_memory(), Store("", Store.in_memory().settings, engine_of(database))):
        with store:
            build(store)
            before, answers = store.read(NOBODYS), {}
            for name, given in CALLS:
                answers[f"{name} {given}"] = outcome(partial(call, store, name, dict(given)))
                for way in strings(given):
                    asked = partial(call, store, name, with_(given, way, text))
                    answers[f"{name} {given} {way}"] = outcome(asked)
            answers |= {name: outcome(partial(ask, store, text)) for name, ask in MORE.items()}
            told.append(answers)
            there.append(everything(store))
            assert store.read(NOBODYS) == before
    for name, answer in told[0].items():
        if _IN_NO_TEXT not in told[1][name] or (
            not answer.startswith(_NOTHING) and "not in the trash" not in answer
        ):
            assert told[1][name] == answer, name
    assert there[0] == there[1]


def test_each_method_is_called_with_each_text_or_takes_none(store: Store) -> None:
    asked = {name.split()[0] for name in (*(name for name, _ in CALLS), *MORE)}
    assert sorted(methods(store) - asked - HARMLESS - WITHOUT) == []


def test_what_an_address_says_is_no_statement(database: str) -> None:
    place, _, _ = database.partition("/postgres?")
    host = database.partition("host=")[2].partition("&")[0]
    for text in HOSTILE.values():
        part = quote(whole(text), safe="")
        for url in (
            f"{database}{part}x" if part else f"{database}'",
            f"postgresql://{part}x@/postgres?host={host}",
            f"{place}/{part}x?host={host}",
            f"{database}&options={part}x",
            f"{database}&{part}=x",
            f"{database}&application_name={part}",
        ):
            try:
                Store.open(url).close()
            except (NotFound, InvalidInput, Refused, StorageFailed):
                continue
            assert "application_name" in url or "options" in url, url
    with Store.open(database) as store:
        assert store.ids() == []
    assert sql(database, "SELECT count(*) FROM pg_namespace WHERE nspname = 'public'") == [(1,)]
