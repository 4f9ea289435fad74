"""What is flushed when: the log before an append is acknowledged, the document behind it."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.files.disk import log
from capsule.errors import StoreBusy
from tests.core.storage.faults import Flushes, is_checkpoint, store_on, texts
from tests.processes import Child, until
from tests.torture.filesystem import Recorder

Start = Callable[..., Child]
#: A child whose thread flushes nothing by itself, and which says when it appended, and waits.
APPENDS = """
from capsule.engines.files.disk import log
log._DELAY_S = 3600
store = Store.open(sys.argv[1])
store.append("plan", content="two")
say()
hear()
"""

#: A child that is killed in the moment when it has written a full log anew, and no note says so.
RENEWS = """
import os, signal
store = Store.open(sys.argv[1])
system = store.engine.storage.sys
rename = system.rename
def last(source, target):
    rename(source, target)
    os.kill(os.getpid(), signal.SIGKILL)
system.rename = last
say()
while True:
    store.append("plan", content="x" * 50_000)
"""


def test_an_append_flushes_its_log_and_the_thread_the_document(
    root: Path, store: Store, system: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert is_checkpoint(root)
    store.append("plan", content="two")
    assert system.flushed == ["logs"] and not is_checkpoint(root)
    log._thread.stop()
    monkeypatch.setattr(log, "_DELAY_S", 0.001)
    store.append("plan", content="three")
    until(lambda: is_checkpoint(root))
    assert system.flushed[-1] == "conversations"


def test_closing_a_store_flushes_its_documents(root: Path, store: Store, system: Flushes) -> None:
    store.append("plan", content="two")
    store.close()
    assert system.flushed == ["logs", "conversations"] and is_checkpoint(root)


def test_a_flush_of_the_store_makes_durable_what_a_killed_writer_left(
    root: Path, store: Store, system: Flushes, child: Start
) -> None:
    writer = child(APPENDS, root)
    writer.hear()
    writer.kill()
    assert not is_checkpoint(root)
    assert store.flush() == 0
    assert system.flushed == ["logs", "conversations"] and is_checkpoint(root)


def test_a_log_whose_successor_a_killed_writer_has_named_is_not_written_to(
    root: Path, store: Store, child: Start
) -> None:
    writer = child(RENEWS, root)
    writer.hear()
    writer.end()
    store.append("plan", content="acknowledged")
    assert b"acknowledged" in (root / ".capsule" / "logs" / "conversations-plan").read_bytes()


def test_the_document_is_flushed_before_lines_leave_its_log(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log, "MESSAGE_BYTES", 1000)
    monkeypatch.setattr(log, "_LARGEST", 4096)
    recorder = Recorder(root)
    with store_on(root, recorder, keep_locks=False) as store:
        store.create(id="plan", type="group")
        document = (root / "conversations" / "plan.json").stat().st_ino
        for letter in "abcdefgh":
            store.append("plan", content=letter * 900)
        events = list(recorder.events)
    renewed = [
        at for at, event in enumerate(events) if event[0] == "rename" and "/logs/" in event[2]
    ]
    assert len(renewed) > 2
    for at in renewed[1:]:
        last = next(
            event
            for event in reversed(events[:at])
            if event[:2] in (("write", document), ("sync", document))
        )
        assert last[0] == "sync"


def test_an_append_that_does_not_wait_is_seen_at_once_and_flushed_later(
    root: Path, store: Store, system: Flushes
) -> None:
    store.append("plan", content="two", wait=False)
    assert system.flushed == []
    with Store.open(root) as other:
        assert texts(other) == ["one", "two"]
    store.flush()
    assert system.flushed == ["logs", "conversations"] and is_checkpoint(root)


def test_before_a_fork_all_is_flushed_and_the_child_flushes_by_a_thread_of_its_own(
    root: Path, store: Store, child: Start
) -> None:
    forking = child(
        APPENDS.replace("hear()", "")
        + """
import threading
pid = os.fork()
say(threading.active_count())
if pid:
    os.waitpid(pid, 0)
    say()
else:
    log._DELAY_S = 0.001
    hear()
    store.append("plan", content="three")
    hear()
    os._exit(0)
hear()
""",
        root,
    )
    forking.hear()
    assert forking.hear() == forking.hear() == 1 and is_checkpoint(root)
    forking.say()
    until(lambda: texts(store) == ["one", "two", "three"] and is_checkpoint(root))
    forking.say()
    forking.hear()


def test_a_document_that_is_busy_before_a_fork_is_flushed_after_it_by_a_thread_that_did_not_run_meanwhile(
    root: Path, store: Store, child: Start
) -> None:
    forking = child(
        """
        import os, threading
        from capsule.engines.files.disk import log
        running = []
        store = Store.open(sys.argv[1])
        with Store.open(sys.argv[1]) as other:
            store.append("plan", content="two")
            with other.engine.storage.hold("conversations", "plan"):
                restart = log._thread.after_fork
                log._thread.after_fork = lambda: (running.append(threading.active_count()), restart())
                if not os.fork():
                    os._exit(0)
                os.wait()
        say(running)
        hear()
        """,
        root,
    )
    assert forking.hear() == [1]
    until(lambda: is_checkpoint(root))
    forking.say()


def test_a_child_is_forked_while_another_thread_flushes(
    root: Path, store: Store, child: Start
) -> None:
    forking = child(
        """
        import threading
        from tests.core.storage.faults import Flushes, store_on
        system = Flushes()
        store = store_on(sys.argv[1], system)
        store.append("plan", content="two")
        store.flush()
        system.gate = threading.Event()
        threading.Thread(target=store.append, args=("plan",), kwargs={"content": "three"}).start()
        system.reached.wait()
        store.engine.storage.flusher._documents.clear()  # It appended an instant after what was waiting was flushed.
        if os.fork():
            hear()
            system.gate.set()
        else:
            system.gate.set()
            store.append("plan", content="four")
            say([message.content for message in store.load("plan").history])
        """,
        root,
    )
    assert forking.hear() == ["one", "two", "three", "four"]
    forking.say()


def test_what_a_store_that_is_gone_has_not_flushed_is_flushed(
    root: Path, store: Store, system: Flushes
) -> None:
    def append() -> None:
        gone = store_on(root, system, keep_locks=False)
        gone.append("plan", content="two", wait=False)

    append()
    gc.collect()
    assert system.flushed == []
    log._thread.flush()
    assert system.flushed == ["logs", "conversations"] and is_checkpoint(root)


def test_an_append_succeeds_where_no_thread_can_be_started(
    root: Path, store: Store, system: Flushes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As while the interpreter shuts down."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    store.append("plan", content="two")
    assert system.flushed == ["logs"]
    log._thread.flush()
    assert is_checkpoint(root)


def test_the_end_of_the_thread_waits_for_no_document_that_is_busy() -> None:
    class Busy:
        def settle(self, kind: str, id: str, timeout_s: float) -> None:
            if timeout_s:
                settling.set()
                until(thread._is_ending.is_set)
                thread.wake.clear()  # As if it had been set before the thread looked.
            raise StoreBusy("", id=id, holder="")

    busy, settling = Busy(), threading.Event()
    documents = log.BackgroundFlusher()
    thread = log._thread
    log._DELAY_S = 0
    documents.add("conversations", "plan", busy.settle)
    assert settling.wait(240)
    thread.stop()
    assert documents._documents
    documents._documents.clear()
