"""Purging erases what rooms kept of what was deleted."""

from __future__ import annotations

from functools import partial
from io import BytesIO
from pathlib import Path

import orjson
import pytest

from capsule import Store, timestamps
from capsule.engines.entries import SIDE_FILE_FOLDERS
from capsule.engines.files.disk.store_paths import KINDS
from capsule.engines.interface import edit_document
from capsule.messaging import doorbells
from capsule.messaging.doorbells import DoorbellTarget
from capsule.sessions.events import delivered_event, inbound_message, outbound_message
from capsule.sessions.registry import ChannelPlace, Question
from capsule.sessions.rules.messages import claim, end_claims, number_replies, pick, receive
from capsule.sessions.session import Session
from tests.core.store.conftest import store as store
from tests.core.store.test_purging import canaries_left, canary


def _deleted_of_every_kind(store: Store) -> None:
    """Make a document or file of each kind with its canary, and delete it. No command deletes the
    last kinds.
    """
    store.agents.register("anna")
    made = [
        store.create(title=canary("conversations"), type=type).id
        for type in ("chat", "direct", "group")
    ]
    made.append(store.channels.create("plan", agent="anna", description=canary("conversations")).id)
    store.notes.write(canary("conversations"), agent="anna")
    store.search(canary("conversations"))
    for id in (*made, "notes_anna"):
        store.delete(id)
    store.agents.register("carl", description=canary("agents"))
    store.agents._documents.set_registered_folder("carl", canary("homes"))
    doorbells.register(store, "carl", DoorbellTarget("command", {"command": canary("doorbells")}))
    store.agents.forget("carl")
    store.servers.set(None, {canary("overrides"): True})
    store.servers.set(None, {canary("overrides"): None})
    store.sessions.webhooks.keep("news", f"https://{canary('webhooks')}.example")
    store.sessions.webhooks.remove("news")
    store.sessions.set_agent("anna", [canary("commands")])
    store.sessions.set_agent("anna", ["answers"])
    _import(store, canary("imports"))
    now, said = timestamps.now(), {"value": canary("sessions"), "from": "anna"}
    question = Question(
        "q", "s", "m", options=(said,), state="answered", closed_at=now, answers=(said,)
    )
    place = ChannelPlace("conversations", "gone", canary("sessions"))
    store.sessions.registry.edit(lambda state: state.put(question, place))
    session, named = Session.create(store.engine, "s", "anna"), [{"name": "plan", "path": "plan"}]
    heard = inbound_message(id="m", content=canary("inbound"), attachments=named)
    answer = outbound_message(
        id="a", content=canary("outbound"), in_reply_to="m", attachments=named
    )
    session.write_inbound(lambda session_state: receive(session_state, [heard]))
    store.engine.files.write("inbox", "s", "plan", canary("inbox").encode())
    session.write_outbound(
        lambda session_state: claim(
            session_state, pick(session_state, timestamps.now(), just_started=True), "w"
        )
    )
    ended = partial(end_claims, ids=["m"], instance="w", state="completed")
    session.write_outbound(
        lambda session_state: [*number_replies(session_state, [answer]), *ended(session_state)],
        {"plan": canary("outbox").encode()},
    )
    session.write_inbound(lambda session_state: [delivered_event(message="a", platform_id="p")])
    store.beside(keep_locks=False, agent="anna").changes()  # It makes a key, which holds no text.
    for kind in ("applied", "keys", "projects"):
        edit_document(store.engine, kind, "9", lambda data: canary(kind).encode())
        store.engine.delete(kind, "9")


@pytest.mark.files
def test_a_purge_visits_every_kind_and_leaves_attachments(store: Store, root: Path) -> None:
    storage = store.engine.storage
    _deleted_of_every_kind(store)
    missing = {kind for kind in KINDS if not storage.ids_ever_written(kind)}
    assert missing | {
        kind for kind in SIDE_FILE_FOLDERS if not store.engine.files.names(kind, "s")
    } == {"attachments"}
    for kind in KINDS:  # Of dead writers.
        Path(storage.paths.temporary(kind, "s")).parent.mkdir(exist_ok=True)
        Path(storage.paths.temporary(kind, "s")).write_text(canary(kind))
    store.trash.purge()
    assert canaries_left(root, KINDS | SIDE_FILE_FOLDERS.keys()) == set()


def test_a_purge_keeps_the_files_of_a_message_that_waits(store: Store, root: Path) -> None:
    session, answer = (
        Session.create(store.engine, "s", "anna"),
        outbound_message(id="a", attachments=[{"name": "plan", "path": "plan"}]),
    )
    session.write_outbound(
        lambda session_state: number_replies(session_state, [answer]),
        {"plan": b"text", "not named": b"x"},
    )
    store.trash.purge()
    assert store.engine.files.names("outbox", "s") == ["plan"]


def _import(store: Store, text: str) -> None:
    """Import a conversation, and delete it."""
    source = {"id": text, "conversations": [{"from": "human", "value": text}]}
    store.delete(store.import_(stream=BytesIO(orjson.dumps(source))).conversations[0].id)
