"""Writers are killed with SIGKILL, again and again, in the middle of their writes.

Every acknowledged message is there, and of each killed writer at most one other. The next writer
needs no help: no lock refuses it, no mutex times out, no file needs mending.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from capsule import Store
from tests.torture.supervisor import supervise
from tests.torture.writers import LONG, assert_only_leftovers, check, make

pytestmark = pytest.mark.slow


def assert_next_writer_appends(root: Path, ids: list[str]) -> None:
    """Assert that the next writer can append to each conversation at the first try.

    A mutex that stayed locked would raise StoreBusy, a lock Locked, a torn file InvalidDocument.
    """
    with Store.open(root) as store:
        for id in ids:
            store.append(id, content="next 0 ")
            store.tail(id, 1)
        assert [lock for lock in store.locks.list() if lock.state == "orphaned"] == []


def assert_quarantine_is_explained(root: Path) -> int:
    """Assert that the quarantine has only torn files and leftover temporaries. Returns: their
    number.
    """
    quarantine = root / ".capsule" / "quarantine"
    names = [path.name for path in quarantine.iterdir()] if quarantine.exists() else []
    kept = [name for name in names if name.endswith(".json")]
    assert {name.split("~")[3] for name in kept} <= {"torn", "leftover"}, kept
    return len(kept)


@pytest.mark.parametrize(
    ("types", "how", "kills"),
    [
        pytest.param(["group"], {}, 150, id="one-conversation"),
        pytest.param(
            ["group", "direct", "channel"] * 17, {"longest": 60_000}, 100, id="many-conversations"
        ),
        pytest.param(["chat"], {"turns": True}, 100, id="one-chat-locked-in-turns"),
        pytest.param(
            ["chat"] * 50, {"turns": True, "longest": 9000}, 100, id="many-chats-locked-in-turns"
        ),
        pytest.param(["group"] * 2, {"threads": 4}, 50, id="threads"),
    ],
)
def test_killed_writers_lose_nothing_acknowledged_and_block_no_other(
    tmp_path: Path, rng: random.Random, types: list[str], how: dict[str, object], kills: int
) -> None:
    root, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    ids = make(root, types)
    kills = 1000 if LONG else kills
    life_s = 0.02 if how.get("turns") else 0.008
    report = supervise(
        root, acks, ids, rng.getrandbits(32), kills=kills, writers=4, longest_life_s=life_s, **how
    )
    assert_next_writer_appends(root, ids)
    kept = check(root, acks)
    besides = kept.unacknowledged
    assert besides.pop("next") == len(ids)  # It writes no acknowledgements.
    assert kept.kept == kept.acked >= kills // 10
    assert max(besides.values(), default=0) <= 1, (
        besides
    )  # A thread of a killed writer counts as one.
    leftovers = assert_only_leftovers(root)
    print(
        f"{kills} kills in {report['seconds']:.1f} s: {kept.acked} acknowledged and kept, "
        f"{besides.total()} kept "
        f"besides, {assert_quarantine_is_explained(root)} in quarantine, {leftovers} leftovers"
    )
