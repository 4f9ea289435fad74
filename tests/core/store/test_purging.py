"""Purged texts are gone from all files of the store: from the log, the index, the trash, the memory of imports."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import partial
from io import BytesIO
from pathlib import Path

import orjson
import pytest

from capsule import Store, timestamps
from capsule.engines.files.disk.layout import FOLDERS, KINDS
from capsule.engines.retrying import edited
from capsule.messaging.doorbells import registry as doorbells
from capsule.messaging.doorbells.interface import Target
from capsule.sessions.events import delivered, incoming, outgoing
from capsule.sessions.registry import MessagingGroup, Question
from capsule.sessions.rules.deliveries import send
from capsule.sessions.rules.messages import claim, finish, pick, receive
from capsule.sessions.session import Session

CANARIES = ["edited", "deleted", "pruned", "overruled", "titled", "gone", "whole", "restored", "byhand", "imported"]


def canary(what: str) -> str:
    """A unique word."""
    return f"canary{what}flew"


def canaries_left(root: Path, canaries: Iterable[str] = CANARIES) -> set[str]:
    """The canaries that occur in any file of the store, whatever kind of document it is, or in the name of one."""
    all_bytes = b"".join(
        path.name.encode() + (path.read_bytes() if path.is_file() else b"") for path in root.rglob("*")
    )
    return {what for what in canaries if canary(what).encode() in all_bytes}


@pytest.fixture
def conversation(store: Store, root: Path) -> str:
    """A conversation in which each canary was written and removed again; "one" and "two" stay."""
    id = store.create(type="group", messages=[{"role": "user", "content": canary("titled")}]).id
    store.append(id, content="one")
    for content in (canary("edited"), canary("deleted"), canary("byhand"), canary("whole")):
        store.append(id, role="assistant", content=content)
    store.branches.regenerate(id, canary("pruned"), "@5")
    store.branches.switch(id, "@5")
    for what in CANARIES:  # Each search puts the text into the index.
        store.search(canary(what))
    store.edits.message(id, "@2", "two")
    store.branches.remove(id, "@3", keep_children=True)
    store.branches.trim(id)
    _saved_by_an_editor(store, id)
    read = store.read(id)
    document = orjson.loads(read)
    document["history"] = [entry for entry in document["history"] if entry["content"] != canary("whole")]
    store.edits.rewrite(id, orjson.dumps(document), read)
    store.branches.remove(id, "@0", keep_children=True)
    store.edits.message(id, "@0", canary("restored"))
    store.trash.restore_messages(store.trash.removed(id)[0].trashed)
    gone = store.create(title=canary("gone"), messages=[{"role": "user", "content": canary("gone")}]).id
    store.search(canary("gone"))
    store.delete(gone)
    _import(store, canary("imported"))
    store.search("one")
    return id


def _saved_by_an_editor(store: Store, id: str) -> None:
    """A hand edit that removes a message and overrides an edit that the store made meanwhile."""
    path = Path(store.head(id).path)
    document = orjson.loads(path.read_bytes())
    store.edits.message(id, "@1", canary("overruled"))
    document["history"] = [entry for entry in document["history"] if entry["content"] != canary("byhand")]
    document["history"][1]["content"] = "one"
    document["history"][1]["edited"] = "by hand"
    path.write_bytes(orjson.dumps(document))
    store.search("one")


def test_purged_texts_are_in_no_file(store: Store, root: Path, conversation: str) -> None:
    assert canaries_left(root) >= {"edited", "deleted", "pruned", "titled", "gone", "whole", "restored"}
    for left in (f"conversations/.{conversation}.tmp", ".capsule/imports/.digests.tmp"):  # Of dead writers.
        (root / left).write_text(canary("gone"))
    store.trash.purge()
    assert canaries_left(root) == set()
    assert {entry["content"] for entry in store.document(conversation)["history"]} == {"one", "two"}
    assert store.trash.list() == [] == store.trash.removed()
    assert not any(store.search(canary(what)).hits for what in CANARIES)
    store.append(conversation, content="three")
    assert [hit.id for hit in store.search("three").hits] == [conversation]
    assert canaries_left(root) == set()


def test_purge_by_age_keeps_later_removals(store: Store, root: Path, conversation: str) -> None:
    trash = root / ".capsule" / "trash"
    before = sorted(os.listdir(trash))
    store.trash.purge(3600)
    assert sorted(os.listdir(trash)) == before
    for kept in reversed(store.trash.removed(conversation)):
        store.trash.restore_messages(kept.trashed)
    texts = {entry["content"] for entry in store.document(conversation)["history"]}
    assert {canary("deleted"), canary("pruned"), canary("titled")} <= texts


def test_another_open_store_works_after_a_purge(store: Store, root: Path, conversation: str) -> None:
    with Store.open(root, keep_locks=False) as other:
        assert other.search("two").hits
        store.trash.purge()
        other.append(conversation, content="after")
        assert other.search("after").hits and store.search("after").hits
        assert not other.search(canary("deleted")).hits
    assert canaries_left(root) == set()


def _deleted_of_every_kind(store: Store) -> None:
    """Make a document or file of each kind with its canary, and delete it. No command deletes the last kinds."""
    store.agents.register("anna")
    made = [store.create(title=canary("conversations"), type=type).id for type in ("chat", "direct", "group")]
    made.append(store.channels.create("plan", agent="anna", description=canary("conversations")).id)
    store.notes.write(canary("conversations"), agent="anna")
    store.search(canary("conversations"))
    for id in (*made, "notes_anna"):
        store.delete(id)
    store.agents.register("carl", description=canary("agents"))
    store.agents.documents.set_home("carl", canary("homes"))
    doorbells.register(store, "carl", Target("command", {"command": canary("doorbells")}))
    store.agents.forget("carl")
    store.servers.set(None, {canary("overrides"): True})
    store.servers.set(None, {canary("overrides"): None})
    store.sessions.webhooks.keep("news", f"https://{canary('webhooks')}.example")
    store.sessions.webhooks.remove("news")
    store.sessions.set_agent("anna", [canary("commands")])
    store.sessions.set_agent("anna", ["answers"])
    _import(store, canary("imports"))
    now, said = timestamps.now(), {"value": canary("sessions"), "from": "anna"}
    question = Question("q", "s", "m", options=(said,), state="answered", closed_at=now, answers=(said,))
    place = MessagingGroup("conversations", "gone", canary("sessions"))
    store.sessions.registry.edit(lambda state: state.put(question, place))
    session, named = Session.create(store.engine, "s", "anna"), [{"path": "plan"}]
    heard = incoming(id="m", content=canary("inbound"), attachments=named)
    answer = outgoing(id="a", content=canary("outbound"), in_reply_to="m", attachments=named)
    session.tell(lambda folds: receive(folds, [heard]))
    store.engine.files.keep("inbox", "s", "plan", canary("inbox").encode())
    session.say(lambda folds: claim(folds, pick(folds, timestamps.now(), first=True), "w"))
    ended = partial(finish, ids=["m"], instance="w", state="completed")
    session.say(lambda folds: [*send(folds, [answer]), *ended(folds)], {"plan": canary("outbox").encode()})
    session.tell(lambda folds: [delivered(message="a", platform_id="p")])
    store.beside(keep_locks=False, agent="anna").changes()  # It makes a key, which holds no text.
    for kind in ("applied", "keys", "projects"):
        edited(store.engine, kind, "9", lambda data: canary(kind).encode())
        store.engine.delete(kind, "9")


def test_a_purge_visits_every_kind_and_leaves_attachments(store: Store, root: Path) -> None:
    storage = store.engine.storage
    _deleted_of_every_kind(store)
    missing = {kind for kind in KINDS if not storage.remembered(kind)}
    assert missing | {kind for kind in FOLDERS if not store.engine.files.names(kind, "s")} == {"attachments"}
    for kind in KINDS:  # Of dead writers.
        Path(storage.layout.temporary(kind, "s")).parent.mkdir(exist_ok=True)
        Path(storage.layout.temporary(kind, "s")).write_text(canary(kind))
    store.trash.purge()
    assert canaries_left(root, KINDS | FOLDERS.keys()) == set()


def test_a_purge_keeps_the_files_of_a_message_that_waits(store: Store, root: Path) -> None:
    session, answer = Session.create(store.engine, "s", "anna"), outgoing(id="a", attachments=[{"path": "plan"}])
    session.say(lambda folds: send(folds, [answer]), {"plan": b"text", "not named": b"x"})
    store.trash.purge()
    assert store.engine.files.names("outbox", "s") == ["plan"]


def _import(store: Store, text: str) -> None:
    """Import a conversation, and delete it."""
    source = {"id": text, "conversations": [{"from": "human", "value": text}]}
    store.delete(store.import_(stream=BytesIO(orjson.dumps(source))).conversations[0].id)
