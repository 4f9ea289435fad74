"""How large the log of a conversation is: it follows what a stale save may lack, not what was ever
written at once.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store
from capsule.engines.files.disk.log import _LARGEST, MESSAGE_BYTES
from tests.core.store.files import contents, put_over


@pytest.fixture
def log(root: Path, store: Store) -> Path:
    store.create(id="plan", type="group", messages=[{"role": "user", "content": "one"}])
    return root / ".capsule" / "logs" / "conversations-plan"


def test_a_batch_of_megabytes_leaves_a_log_of_the_usual_size_once_it_is_durable(
    root: Path, store: Store, log: Path
) -> None:
    path = root / "conversations" / "plan.json"
    before = path.read_bytes()
    texts = [f"{n:03}".ljust(10_000, "x") for n in range(300)]
    store.append_many("plan", [{"role": "user", "content": text} for text in texts])
    assert log.stat().st_size > 3_000_000
    store.flush()
    assert log.stat().st_size <= _LARGEST
    put_over(path, before)
    restored = contents(store)[1:]
    assert restored == texts[-len(restored) :] and sum(map(len, restored)) >= MESSAGE_BYTES


def test_a_message_of_megabytes_stays_in_the_log_until_as_much_came_after_it_as_the_log_promises(
    store: Store, log: Path
) -> None:
    store.append("plan", content="x" * 3_000_000)
    store.flush()
    inode = log.stat().st_ino
    store.append("plan", content="y")
    store.flush()
    assert (
        log.stat().st_size > 3_000_000 and log.stat().st_ino == inode
    )  # It is not written anew for nothing.
    for _ in range(3):
        store.append("plan", content="z" * (MESSAGE_BYTES // 2))
    store.flush()
    assert log.stat().st_size <= _LARGEST
