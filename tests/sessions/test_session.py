"""A session on both engines: each side appends to its own file, in one write for each decision."""

from __future__ import annotations

import errno
import os
import random
import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import orjson
import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.engines.interface import INBOUND, OUTBOUND, Engine
from capsule.engines.memory.engine import MemoryEngine
from capsule.errors import CapsuleError, InvalidInput, NotFound
from capsule.format import schema
from capsule.maintenance.doctor import examine
from capsule.sessions.events import Event, delivered_event, inbound_message, outbound_message
from capsule.sessions.rules.messages import claim, end_claims, number_replies, pick, receive
from capsule.sessions.session import EventRule, Session
from capsule.sessions.session_state import SessionState
from tests.core.storage.conftest import memory as memory
from tests.core.storage.faults import Faulty
from tests.torture.filesystem import Disk, Rebooted, Recorder

NOW = "2026-11-22T13:30:00.000Z"
LONG = bool(os.environ.get("CAPSULE_TORTURE"))


def on_files(root: Path, sys: Syscalls | None = None) -> FilesEngine:
    return FilesEngine(FileStorage(str(root), sys=sys))


@pytest.fixture(params=["files", "memory"])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    Store.init(tmp_path / "store")
    engine: Engine = on_files(tmp_path / "store") if request.param == "files" else MemoryEngine()
    yield engine
    engine.close()


def hear(*ids: str) -> EventRule:
    """The host takes messages in."""
    return lambda session_state: receive(
        session_state, [inbound_message(id=id, content=f"do {id}") for id in ids]
    )


def work(session_state: SessionState) -> list[Event]:
    """The worker claims what is due."""
    return claim(session_state, pick(session_state, NOW, just_started=True), "worker")


def answer(session_state: SessionState) -> list[Event]:
    """The worker answers what it claimed, and ends it."""
    ids = list(session_state.outbound.claims)
    said = [outbound_message(id=f"re-{id}", content=f"did {id}", in_reply_to=id) for id in ids]
    return [
        *number_replies(session_state, said),
        *end_claims(session_state, ids, instance="worker", state="completed"),
    ]


def deliver(session_state: SessionState) -> list[Event]:
    """The host notes that all answers have arrived."""
    return [
        delivered_event(message=message.id, platform_id="p")
        for message in session_state.undelivered_messages()
    ]


def test_what_one_side_writes_the_other_reads(engine: Engine) -> None:
    host, worker = Session.create(engine, "s_1", "Anna"), Session.create(engine, "s_1", "Anna")
    assert [event["seq"] for event in host.write_inbound(hear("m1", "m2"))] == [2, 4]
    assert host.write_inbound(hear("m1")) == []
    (claimed,) = worker.write_outbound(work)
    assert claimed["messages"] == {"m1": 0, "m2": 0} and claimed["id"] and claimed["timestamp"]
    reply, *_ = worker.write_outbound(answer)
    assert reply["seq"] == 5 and list(host.read().outbound.messages) == ["re-m1", "re-m2"]
    assert list(host.read().unfinished_messages()) == [] and worker.write_outbound(work) == []
    assert host.read().inbound is host.read().inbound
    assert [event["event"] for event in engine.document(OUTBOUND, "s_1")["history"]] == [
        "ack",
        "message",
        "message",
        "ack",
    ]


def test_a_decision_that_raises_writes_nothing(engine: Engine) -> None:
    session = Session.create(engine, "s_1", "Anna")
    session.write_inbound(hear("m1"))
    with pytest.raises(InvalidInput):
        session.write_inbound(
            lambda session_state: receive(
                session_state, [inbound_message(id="m1", content="other")]
            )
        )
    assert len(engine.document(INBOUND, "s_1")["history"]) == 1
    for act in (
        Session(engine, "s_2").read,
        lambda: Session(engine, "s_2").write_inbound(hear("m1")),
    ):
        with pytest.raises(NotFound):
            act()
    with pytest.raises(InvalidInput):
        Session.create(engine, "a.json", "Anna")


def test_both_sides_write_at_once_and_each_message_is_answered_once(engine: Engine) -> None:
    Session.create(engine, "s_1", "Anna")
    ids = [f"m{n}" for n in range(60)]
    over = threading.Event()

    def host(mine: list[str]) -> None:
        session = Session(engine, "s_1")
        for id in mine:
            session.write_inbound(hear(id))

    def worker() -> None:
        session = Session(engine, "s_1")
        while not over.is_set() or session.write_outbound(work):
            session.write_outbound(work)
            session.write_outbound(answer)

    with ThreadPoolExecutor(3) as pool:
        works = pool.submit(worker)
        list(pool.map(host, (ids[::2], ids[1::2])))
        over.set()
        works.result()
    session = Session(engine, "s_1")
    session_state = session.read()
    assert sorted(session_state.outbound.messages) == sorted(f"re-{id}" for id in ids)
    assert sorted(session_state.inbound.messages) == sorted(ids) and not list(
        session_state.unfinished_messages()
    )
    seqs = [message.seq for fold in session_state for message in fold.messages.values()]
    assert len({*seqs}) == len(seqs)


def test_a_compacted_session_says_the_same_in_bounded_files_and_readers_notice(
    engine: Engine,
) -> None:
    session, reader = Session.create(engine, "s_1", "Anna"), Session(engine, "s_1")
    for n in range(30):
        session.write_inbound(hear(*(f"m{n}-{k}" for k in range(10))))
        session.write_outbound(work)
        session.write_outbound(answer)
        reader.read().outbound, reader.read().inbound
    session.write_inbound(deliver)
    session.write_inbound(hear("last"))
    before = len(engine.document(INBOUND, "s_1")["history"])
    session.compact(NOW)
    for each in (session, reader, Session(engine, "s_1")):
        session_state = each.read()
        assert [message.id for message in session_state.unfinished_messages()] == ["last"]
        assert (
            list(session_state.undelivered_messages()) == []
            and each.write_inbound(hear("m3-3")) == []
        )
    assert len(engine.document(INBOUND, "s_1")["history"]) < before / 50
    tags = [engine.document(kind, "s_1")["updatedAt"] for kind in (INBOUND, OUTBOUND)]
    session.compact(NOW)
    assert tags == [engine.document(kind, "s_1")["updatedAt"] for kind in (INBOUND, OUTBOUND)]
    assert [event["messages"] for event in reader.write_outbound(work)] == [{"last": 0}]


def test_files_and_heartbeats_are_those_of_the_session(engine: Engine) -> None:
    session = Session.create(engine, "s_1", "Anna")
    assert session.heartbeat() is None
    session.record_heartbeat()
    session.write_outbound(hear("m1"), {"a.txt": b"data"})
    assert session.heartbeat() and Session(engine, "s_1").file("outbox", "a.txt") == b"data"


def test_a_save_from_an_older_version_loses_no_event(tmp_path: Path) -> None:
    Store.init(tmp_path)
    session, path = (
        Session.create(on_files(tmp_path), "s_1", "Anna"),
        tmp_path / "sessions" / "s_1" / "inbound.json",
    )
    session.write_inbound(hear("m1"))
    old = path.read_bytes()
    session.write_inbound(hear("m2"))
    path.write_bytes(old)
    os.utime(path, (1, 1))
    assert (
        list(session.read().inbound.messages) == ["m1", "m2"]
        and session.write_inbound(hear("m2")) == []
    )


#: What is written to a session of which m1 is there and claimed.
WRITES: dict[str, Any] = {
    "create": lambda engine: Session.create(engine, "s_2", "Bob"),
    "tell": lambda engine: Session(engine, "s_1").write_inbound(hear("m2", "m3")),
    "say": lambda engine: Session(engine, "s_1").write_outbound(answer),
    "compact": lambda engine: Session(engine, "s_1").compact(NOW),
}


def go_on(engine: FilesEngine) -> None:
    """Answer m1 and deliver it, then claim and answer m2: the notes between them are flushed with
    what follows.
    """
    session = Session(engine, "s_1")
    session.write_outbound(answer)
    session.write_inbound(deliver)
    session.write_inbound(hear("m2"))
    session.write_outbound(work)
    session.write_outbound(answer)


def prepare(root: Path) -> None:
    Store.init(root)
    engine = on_files(root)
    session = Session.create(engine, "s_1", "Anna")
    session.write_inbound(hear("m0"))
    session.write_outbound(work)
    session.write_outbound(answer)
    session.write_inbound(deliver)
    session.write_inbound(hear("m1"))
    session.write_outbound(work)
    engine.close()


def ensure_sound(engine: FilesEngine, name: str, *, done: bool, cut: bool = False) -> None:
    """Assert that the write is there as a whole or not at all (after a power cut also its
    beginning, if it was not acknowledged), and that the next writers succeed."""
    session = Session(engine, "s_1")
    inbound, outbound = session.read()
    told = [id for id in ("m2", "m3") if id in inbound.messages]
    said = ["re-m1" in outbound.messages, outbound.acks["m1"].state == "completed"]
    beginnings: dict[str, list[Any]] = {
        "tell": [[], ["m2", "m3"], ["m2"]],
        "say": [[False] * 2, [True] * 2, [True, False]],
    }
    for write, found in (("tell", told), ("say", said)):
        may_be = beginnings[write][: 3 if cut else 2]
        assert found == may_be[1] if done and name == write else found in may_be
    session.write_inbound(hear("m2", "m3"))
    session.write_outbound(answer)
    session.write_outbound(work)
    session.write_outbound(answer)
    session.compact(NOW)
    last = Session.create(engine, "s_1", "Anna")
    assert last.write_inbound(hear("m0", "m1", "m2", "m3")) == last.write_outbound(work) == []
    undelivered = [message.id for message in last.read().undelivered_messages()]
    assert undelivered[-2:] == ["re-m2", "re-m3"] and set(undelivered[:-2]) <= {"re-m1"}
    Session.create(engine, "s_2", "Bob").write_inbound(hear("m1"))


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITES)
def test_a_fault_at_any_call_leaves_a_write_whole_or_undone(memory: Path, name: str) -> None:
    prepare(memory / "template")
    for at in range(1, 500):
        root = Path(shutil.copytree(memory / "template", memory / "store"))
        sys = Faulty()
        engine = on_files(root, sys)
        sys.arm(at, errno.EIO)
        try:
            WRITES[name](engine)
            done = True
        except CapsuleError:
            done = False
        sys.disarm()
        ensure_sound(engine, name, done=done)
        engine.close()
        shutil.rmtree(root)
        if not sys.hit:
            return
    raise AssertionError("no run came to its end")


@pytest.mark.slow
@pytest.mark.parametrize("name", [*WRITES, "go on"])
def test_a_power_cut_at_any_call_leaves_a_beginning_of_a_write_and_the_next_one_succeeds(
    memory: Path, rng: random.Random, name: str
) -> None:
    root, place = memory / "store", memory / "after"
    prepare(root)
    disk, recorder = Disk(root), Recorder(root)
    engine = on_files(root, recorder)
    WRITES.get(name, go_on)(engine)
    engine.close()
    events, tried = len(recorder.events), set[int]()
    for number in range(events + 1):
        if number:
            disk.play(recorder.events[number - 1])
        trees = list(disk.trees(rng, long=False))
        for tree in trees if LONG else rng.sample(trees, min(len(trees), max(8, 1200 // events))):
            known = hash((number == events, tuple(sorted(tree.items()))))
            if known in tried:
                continue
            tried.add(known)
            shutil.rmtree(place, ignore_errors=True)
            place.mkdir()
            for path, data in sorted(tree.items()):
                (place / path).mkdir() if data is None else (place / path).write_bytes(data)
                os.utime(place / path, (1_700_000_000, 1_700_000_000))
            again = on_files(place, Rebooted())
            ensure_sound(again, name, done=number == events, cut=True)
            again.close()
            if number % 10 == 0:
                with Store.open(place) as store:
                    list(examine(store, repair=True))
                    assert [str(finding) for finding in examine(store)] == []


def test_a_message_is_answered_and_delivered_with_two_flushes(tmp_path: Path) -> None:
    prepare(tmp_path)
    recorder = Recorder(tmp_path)
    engine = on_files(tmp_path, recorder)
    session = Session(engine, "s_1")
    flushes = []
    for number in range(8):
        before = len(recorder.events)
        session.write_inbound(hear(f"n{number}"))
        session.write_outbound(work)
        session.write_outbound(answer)
        session.write_inbound(deliver)
        flushes.append(sum("sync" in str(event) for event in recorder.events[before:]))
    engine.close()
    assert min(flushes) == 2, flushes  # One that a log grows for has more.


def test_the_files_of_a_session_are_capsules_in_the_canonical_layout(tmp_path: Path) -> None:
    prepare(tmp_path)
    with Store.open(tmp_path) as store:
        assert [str(finding) for finding in examine(store)] == []
    for name in ("inbound", "outbound"):
        document = orjson.loads((tmp_path / "sessions" / "s_1" / f"{name}.json").read_bytes())
        jsonschema.validate(document, schema.schema("capsule"))
        assert (
            document["id"] == "s_1" and document["title"] == "Anna" and document["version"] == "2.1"
        )
