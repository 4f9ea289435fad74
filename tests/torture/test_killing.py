"""Writers that are killed with SIGKILL, again and again, in the middle of what they do.

Whatever was acknowledged is there; of each killed writer at most the one write that it was at is there besides; and
the next one goes on without a hand being lent: it meets no lock in its way, no mutex that times out, no file to mend.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from capsule import Store
from capsule.maintenance import doctor
from tests.torture.supervisor import supervise
from tests.torture.writers import LONG, assert_clean, check, make

pytestmark = pytest.mark.slow


def next_writer_goes_on(root: Path, ids: list[str]) -> None:
    """Each conversation is written by the next one who comes, at the first try.

    A mutex that stayed taken would raise StoreBusy, a lock in the way Locked, a file left torn InvalidDocument.
    """
    with Store.open(root) as store:
        for id in ids:
            store.append(id, content="next 0 ")
            store.tail(id, 1)
        assert [lock for lock in store.locks.list() if lock.state == "orphaned"] == []


def only_leftovers_of_the_dead(root: Path) -> int:
    """The doctor names nothing but what dead processes leave by design, and `--repair` puts that away; how many.

    That is: instance files of the dead, which the next one to take a lock sweeps too, and temporaries of a writer
    that was killed while it replaced a file, which the next replacement sweeps too.
    """
    with Store.open(root) as store:
        found = list(doctor.examine(store))
        assert {finding.kind for finding in found} <= {"leftover"}, list(map(str, found))
        for finding in found:
            directory = Path(finding.path).parent.name
            assert directory == "instances" or (directory == "conversations" and finding.path.endswith(".tmp"))
        list(doctor.examine(store, repair=True))
    assert_clean(root)
    return len(found)


def only_kept_for_a_reason(root: Path) -> int:
    """In the quarantine lies only what a torn tail and a leftover temporary explain; how much."""
    quarantine = root / ".capsule" / "quarantine"
    names = [path.name for path in quarantine.iterdir()] if quarantine.exists() else []
    kept = [name for name in names if name.endswith(".json")]
    assert {name.split("~")[3] for name in kept} <= {"torn", "leftover"}, kept
    return len(kept)


@pytest.mark.parametrize(
    ("types", "how", "kills"),
    [
        pytest.param(["group"], {}, 150, id="one-conversation"),
        pytest.param(["group", "direct", "channel"] * 17, {"longest": 60_000}, 100, id="many-conversations"),
        pytest.param(["chat"], {"turns": True}, 100, id="one-chat-locked-in-turns"),
        pytest.param(["chat"] * 50, {"turns": True, "longest": 9000}, 100, id="many-chats-locked-in-turns"),
        pytest.param(["group"] * 2, {"threads": 4}, 50, id="threads"),
    ],
)
def test_killed_writers_lose_nothing_acknowledged_and_stand_in_nobodys_way(
    tmp_path: Path, rng: random.Random, types: list[str], how: dict[str, object], kills: int
) -> None:
    root, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    ids = make(root, types)
    kills = 1000 if LONG else kills
    life_s = 0.02 if how.get("turns") else 0.008
    told = supervise(root, acks, ids, rng.getrandbits(32), kills=kills, writers=4, longest_life_s=life_s, **how)
    next_writer_goes_on(root, ids)
    kept = check(root, acks)
    besides = kept.unacknowledged
    assert besides.pop("next") == len(ids)  # Whose messages are in no file of acknowledgements.
    assert kept.kept == kept.acked >= kills // 10
    assert max(besides.values(), default=0) <= 1, besides  # A thread of a killed writer counts as one.
    leftovers = only_leftovers_of_the_dead(root)
    print(
        f"{kills} kills in {told['seconds']:.1f} s: {kept.acked} acknowledged and kept, {besides.total()} kept "
        f"besides, {only_kept_for_a_reason(root)} in quarantine, {leftovers} leftovers"
    )
