"""What is flushed when: the log before an append is acknowledged, the document behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.files.disk import behind
from capsule.engines.files.disk import log as logs
from tests.core.storage.faults import Flushes, is_checkpoint, store_on, texts
from tests.processes import Child, until
from tests.torture.filesystem import Recorder

Start = Callable[..., Child]
#: A child whose thread flushes nothing by itself, and which says when it appended, and waits.
APPENDS = """
from capsule.engines.files.disk import behind
behind._DELAY_S = 3600
store = Store.open(sys.argv[1])
store.append("plan", content="two")
say()
hear()
"""


def test_an_append_flushes_its_log_and_the_thread_the_document(
    root: Path, store: Store, system: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_checkpoint(root)
    store.append("plan", content="two")
    assert system.flushed == ["log"] and not is_checkpoint(root)
    behind._thread.stop()
    monkeypatch.setattr(behind, "_DELAY_S", 0.001)
    store.append("plan", content="three")
    until(lambda: is_checkpoint(root))
    assert system.flushed[-1] == "conversations"


def test_closing_a_store_flushes_its_documents(root: Path, store: Store, system: Flushes) -> None:
    store.append("plan", content="two")
    store.close()
    assert system.flushed == ["log", "conversations"] and is_checkpoint(root)


def test_a_flush_of_the_store_makes_durable_what_a_killed_writer_left(
    root: Path, store: Store, system: Flushes, child: Start
) -> None:
    writer = child(APPENDS, root)
    writer.hear()
    writer.kill()
    assert not is_checkpoint(root)
    assert store.flush() == 0
    assert system.flushed == ["log", "conversations"] and is_checkpoint(root)


def test_the_document_is_flushed_before_lines_leave_its_log(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(logs, "_LARGEST", 4096)
    recorder = Recorder(root)
    with store_on(root, recorder, keep_locks=False) as store:
        store.create(id="plan", type="group")
        document = (root / "conversations" / "plan.json").stat().st_ino
        for letter in "abcdefgh":
            store.append("plan", content=letter * 900)
        events = list(recorder.events)
    renewed = [at for at, event in enumerate(events) if event[0] == "rename" and "/log/" in event[2]]
    assert len(renewed) > 2
    for at in renewed[1:]:
        last = next(event for event in reversed(events[:at]) if event[:2] in (("write", document), ("sync", document)))
        assert last[0] == "sync"


def test_an_append_that_does_not_wait_is_seen_at_once_and_flushed_later(
    root: Path, store: Store, system: Flushes
) -> None:
    store.append("plan", content="two", wait=False)
    assert system.flushed == []
    with Store.open(root) as other:
        assert texts(other) == ["one", "two"]
    store.flush()
    assert system.flushed == ["log", "conversations"] and is_checkpoint(root)
