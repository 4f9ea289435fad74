"""Nothing of what an agent may not read comes out of any door: no word of it, no error,
no count.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from io import BytesIO
from typing import Any, Never

from hypothesis import given
from hypothesis import strategies as st

from capsule import CapsuleError, Filter, NotFound, Store
from capsule.engines.interface import CONVERSATIONS, Trashed
from capsule.messaging.contacts import Permission
from capsule.store.change.conversation import REMOVED
from tests.core.store.doors import BY_ID, CURSOR, FOR_ALL, WRITES
from tests.messaging.worlds import AGENTS, PATHS, Room, World, build, worlds

#: What tells of all conversations, besides what the other tests ask.
MORE: dict[str, Callable[[Store], Any]] = {
    "search everything": lambda store: store.search("", limit=100),
    "search words": lambda store: store.search(
        "first OR about OR topic", limit=100, profile="exact"
    ),
    "search titles of all": lambda store: store.search("team", title_only=True, limit=100),
    "search where": lambda store: store.search("", where={"tags": {"$exists": True}}),
    "search by topic": lambda store: store.search("", where={"topic": {"$text": "topic"}}),
    "facets": lambda store: store.facets(Filter(archived=None)),
    "list of a project": lambda store: store.list(Filter(project=PATHS[0], archived=None)),
    "list archived": lambda store: store.list(Filter(archived=None), "title"),
    "resolve a prefix": lambda store: store.resolve("group"),
    "groups.list": lambda store: store.groups.list(),
    "messages.inbox": lambda store: store.messages.inbox(),
    "messages.pointer": lambda store: store.messages.pointer(),
    "messages.listen": lambda store: store.messages.listen(),
    "messages.mentions": lambda store: store.messages.mentions(state="all"),
    "messages.send to nobody": lambda store: store.messages.send("hello", to="nobody"),
    "notes.search": lambda store: store.notes.search("first"),
    "notes.search of others": lambda store: [
        said(partial(store.notes.search, "first", of=id)) for id in AGENTS
    ],
    "agents.list": lambda store: store.agents.list(),
    "agents.names": lambda store: store.agents.names(),
    "agents.discover": lambda store: store.agents.discover(),
    "agents.requests": lambda store: store.agents.requests(),
    "agents.get": lambda store: store.agents.get("nobody"),
    "projects.list": lambda store: store.projects.list(),
    "configuration.history": lambda store: store.configuration.history(),
}
#: What tells of channels that an agent finds, whether it reads them or not.
OF_CHANNELS: dict[str, Callable[[Store], Any]] = {
    "channels.list": lambda store: store.channels.list(archived=True),
    "channels.get": lambda store: store.channels.get("nothing"),
}
#: What is asked of one conversation by its id, or of a message in it, besides.
MORE_BY_ID: dict[str, Callable[[Store, str], Any]] = {
    "append_entries": lambda store, id: store.append_entries(
        id, [{"role": "user", "content": "hello"}]
    ),
    "update": lambda store, id: store.update(id, pinned=True),
    "pin": lambda store, id: store.pin(id),
    "untag": lambda store, id: store.untag(id, "red"),
    "export": lambda store, id: store.export([id], BytesIO(), format="markdown"),
    "edits.rewrite": lambda store, id: store.edits.rewrite(
        id, *[store.inner.whole_engine.read(CONVERSATIONS, id)] * 2
    ),
    "branches.trim": lambda store, id: store.branches.trim(id),
    "context.clear": lambda store, id: store.context.clear(id),
    "conflicts.resolve": lambda store, id: store.conflicts.resolve(id, "title", "Other"),
    "servers.get": lambda store, id: store.servers.get(id),
    "servers.set": lambda store, id: store.servers.set(id, {"files": True}),
    "servers.toggle": lambda store, id: store.servers.toggle(id, "files"),
    "summaries.standing": lambda store, id: store.summaries.standing(id),
    "forks.list": lambda store, id: store.forks.list(id) or refuse(),
    "messages.first_unread": lambda store, id: store.messages.first_unread(id) or refuse(),
    "messages.history": lambda store, id: store.messages.history(id),
    "messages.history where": lambda store, id: store.messages.history(
        id, where={"topic": {"$exists": True}}
    ),
    "messages.listen": lambda store, id: store.messages.listen(conversation=id),
    "messages.send": lambda store, id: store.messages.send("hello", conversation=id),
    "messages.send to a channel": lambda store, id: store.messages.send("hello", channel=id),
    "messages.send in a thread": lambda store, id: store.messages.send(
        "hi", conversation=id, thread=f"{id}-first"
    ),
    "messages.status": lambda store, id: store.messages.status(f"{id}-first"),
    "messages.edit": lambda store, id: store.messages.edit(f"{id}-first", "other"),
    "messages.react": lambda store, id: store.messages.react(f"{id}-first", "+1"),
    "messages.reopen": lambda store, id: store.messages.reopen(f"{id}-first"),
    "messages.done": lambda store, id: store.messages.done(f"{id}-first"),
    "messages.ack": lambda store, id: store.messages.ack(conversation=id),
    "trash.restore": lambda store, id: store.trash.restore(id),
    "trash.head": lambda store, id: store.trash.head(in_trash(store, id)).damaged and refuse(),
    "trash.restore_messages": lambda store, id: store.trash.restore_messages(
        in_trash(store, id, REMOVED)
    ),
    "agents.may": lambda store, id: permitted(store.agents.may("read", conversation=id)),
    "groups.add": lambda store, id: store.groups.add(id, ["bob"]),
    "groups.leave": lambda store, id: store.groups.leave(id),
    "groups.rename": lambda store, id: store.groups.rename(id, "Mine"),
    "channels.members": lambda store, id: store.channels.members(id),
    "channels.topics": lambda store, id: store.channels.topics(id),
    "channels.update": lambda store, id: store.channels.update(id, description="mine"),
    "channels.invite": lambda store, id: store.channels.invite(id, ["bob"]),
    "channels.remove": lambda store, id: store.channels.remove(id, "bob"),
    "channels.leave": lambda store, id: store.channels.leave(id),
    "channels.mute": lambda store, id: store.channels.mute(id),
    "search in it": lambda store, id: store.search("first", ids=[id]).hits or refuse(),
    "resolve": lambda store, id: store.load(store.resolve(id)),
}
#: What a store offers besides: it tells of no conversation, or is asked under another name.
HARMLESS = {
    *(
        "beside",
        "close",
        "in_memory",
        "init",
        "open",
        "release",
        "remember_own",
        "reindex",
        "create",
        "delete_all",
    ),
    *(
        "room",
        "watch",
        "flush",
        "await_changes",
        "messages.await_mail",
        "locks.state",
        "trash.purge",
        "trash.removed",
    ),
    *("incoming.bring_in", "incoming.version", "groups.create", "channels.create", "channels.join"),
    *("channels.join_defaults", "channels.resolve", "notes.write", "notes.share", "notes.unshare"),
    *("configuration.plan", "configuration.apply"),
    *("configuration.rollback", "projects.get", "projects.link", "projects.unlink", "agents.allow"),
    *(
        "agents.at",
        "agents.block",
        "agents.ensure",
        "agents.forget",
        "agents.identity",
        "agents.move",
    ),
    *(
        "agents.policy",
        "agents.register",
        "agents.serve",
        "agents.set_notifications",
        "agents.set_status",
    ),
    *("read_settings", "set_settings"),
}
#: What a store that acts for an agent refuses, all of it: tests/sessions and tests/transfer ask.
OF_THE_OWNER = ("sessions.", "import_")
NO_DOORS = {"engine", "inner", "queries", "settings"}


def methods(store: Store) -> set[str]:
    """The methods of a store and of its objects."""
    methods = set()
    for name in {each for each in dir(store) if not each.startswith("_")} - NO_DOORS:
        value = getattr(store, name)
        if callable(value):
            methods.add(name)
        elif type(value).__module__.startswith("capsule."):
            inner = {
                each
                for each in dir(value)
                if not each.startswith("_") and callable(getattr(value, each))
            }
            methods |= {f"{name}.{each}" for each in inner}
    return methods


def test_every_method_of_a_store_is_asked_here_or_said_to_be_harmless() -> None:
    asked = {name.split()[0] for name in BY_ID | WRITES | FOR_ALL | MORE | MORE_BY_ID | OF_CHANNELS}
    assert not [
        name
        for name in methods(Store.in_memory()) - asked - HARMLESS
        if not name.startswith(OF_THE_OWNER)
    ]


#: What is refused whether there is such a conversation or not.
REFUSED_ALIKE = {"versions.restore"}
#: What the question itself is made of, as the owner sees it.
OF_THE_WHOLE = {"versions.restore", "edits.rewrite", "trash.head", "trash.restore_messages"}


def asked_by(name: str, id: str) -> str:
    """What a door was given, and so may say again."""
    return f"{id}-first" if name in ("messages.status", "messages.done") else id


def in_trash(store: Store, id: str, kind: str = CONVERSATIONS) -> Trashed:
    """The conversation in the trash, or messages of it, as the owner sees it."""
    entries = store.inner.whole_engine.trash.entries(kind)
    return next((trashed for trashed in entries if trashed.id == id), None) or refuse()


def refuse() -> Never:
    raise NotFound("nothing was found")


def permitted(permission: Permission) -> Permission:
    """A permission. Raises NotFound with its words if it is none."""
    if permission.allowed:
        return permission
    raise NotFound(f"{permission.reason}; {permission.hint}")


def said(ask: Callable[[], Any]) -> str:
    """All that a call tells, in lower case: its answer, or its error with every field."""
    try:
        found = ask()
        found = list(found) if isinstance(found, Iterator) else found
        shown = [found, found.as_json()] if hasattr(found, "as_json") else [found]
        return repr([each.decode() if isinstance(each, bytes) else each for each in shown]).lower()
    except CapsuleError as error:
        return f"{type(error).__name__} {error.message} {error.fields} {error.remedy}".lower()


def secret(world: World, agent: str, rooms: list[Room]) -> list[Room]:
    return [room for room in rooms if not world.reads(agent, room)]


@given(world=worlds(), agent=st.sampled_from(AGENTS))
def test_what_an_agent_may_not_read_is_in_no_answer_and_no_error(world: World, agent: str) -> None:
    with Store.in_memory() as owner:
        CURSOR[:] = [owner.changes().cursor]
        build(world, owner)
        store, hidden = owner.beside(agent=agent), secret(world, agent, [*world.rooms])
        unknown = [
            f"about-{other}"
            for other in AGENTS
            if other != agent and not world.finds_agent(agent, other)
        ]
        words = [*unknown, *(room.canary for room in hidden)]
        unfound = [*unknown, *(room.canary for room in hidden if not world.finds(agent, room))]
        for name, all_of_it in (FOR_ALL | MORE | OF_CHANNELS).items():
            answer = said(lambda ask=all_of_it: ask(store))
            assert not [
                word for word in (unfound if name in OF_CHANNELS else words) if word in answer
            ], name
        for room in hidden:
            for name, door in (BY_ID | MORE_BY_ID | WRITES).items():
                answer = said(lambda ask=door: ask(store, room.id))
                assert answer.startswith(("refused", "notfound", "invalidinput")), (name, answer)
                if not world.finds(agent, room):
                    assert name in REFUSED_ALIKE or not answer.startswith("refused"), (name, answer)
                assert not [
                    word for word in words if word in answer.replace(asked_by(name, room.id), "")
                ], name
        for room in world.rooms:
            if room.fate != "deleted" and room not in hidden:
                assert room.canary in said(lambda id=room.id: store.load(id))


WORDS = re.compile(r"[^\s,()\[\]{}]+")
#: Marks and times that differ between any two stores.
MASKED = re.compile(
    r"(token|cursor)'?[=:] ?'[^']*'|[0-9a-f]{8}-[0-9a-f-]{27,}|\d{4}-\d\d-\d\d[t "
    r"][0-9:.]*z?|\d{13,}"
)


@given(world=worlds(), agent=st.sampled_from(AGENTS))
def test_the_answers_are_those_of_a_store_that_never_had_it(world: World, agent: str) -> None:
    rooms = secret(world, agent, [*world.rooms])
    hidden = frozenset(room.id for room in rooms)
    unfound = [room.id for room in rooms if not world.finds(agent, room)]
    answers = []
    for without in (frozenset[str](), hidden):
        with Store.in_memory() as owner:
            CURSOR[:] = [owner.changes().cursor]
            build(world, owner, without=without)
            store = owner.beside(agent=agent)
            # What is of one time comes in any order, so that any of them may be the last.
            asked = {name: ask for name, ask in (FOR_ALL | MORE).items() if name != "resolve"}
            told = {name: said(lambda ask=ask: ask(store)) for name, ask in asked.items()}
            doors = {
                name: door
                for name, door in (BY_ID | MORE_BY_ID | WRITES).items()
                if name not in OF_THE_WHOLE
            }
            told |= {
                f"{name} {id}": said(partial(doors[name], store, id))
                for name in doors
                for id in unfound
            }
            answers.append(
                {
                    name: sorted(WORDS.findall(MASKED.sub("_", answer)))
                    for name, answer in told.items()
                }
            )
    for name, answer in answers[0].items():
        assert Counter(answer) == Counter(answers[1][name]), name


def test_a_store_that_acts_for_an_agent_has_no_sessions_and_imports_nothing() -> None:
    with Store.in_memory() as owner:
        owner.agents.register("anna")
        store = owner.beside(agent="anna")
        for ask in (lambda: store.sessions, lambda: store.import_(stream=BytesIO(b"{}"))):
            assert said(ask).startswith("refused")
