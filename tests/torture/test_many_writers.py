"""Many writers at once, in processes and threads: every acknowledged message is there once, in its
writer's order.
"""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.torture.writers import LONG, Plan, Writers, assert_clean, check, make

pytestmark = pytest.mark.slow


def run(
    tmp_path: Path, rng: random.Random, ids: list[str], *, writers: int, count: int, **how: object
) -> None:
    """Let writers append, and check the result."""
    root, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    plans = [
        Plan(str(root), str(acks / f"w{i}"), f"w{i}", rng.getrandbits(32), ids, count, **how)
        for i in range(writers)
    ]
    began = time.monotonic()
    with Writers(plans) as crew:
        crew.begin()
        crew.finish()
    result = check(root, acks)
    threads = plans[0].threads
    assert result.acked == result.kept == writers * threads * count
    assert not result.unacknowledged
    assert_clean(root)
    print(
        f"{writers} x {threads} writers, {result.acked} messages, {time.monotonic() - began:.1f} s"
    )


@pytest.mark.parametrize(
    ("types", "writers", "count", "how"),
    [
        pytest.param(["group"], 4, 100, {}, id="one conversation"),
        pytest.param(
            ["group", "direct", "channel"] * 17, 4, 100, {"longest": 9000}, id="many conversations"
        ),
        pytest.param(["chat"], 4, 25, {"turns": True}, id="the lock of one chat, in turns"),
        pytest.param(["chat"] * 50, 4, 50, {"turns": True}, id="the locks of many chats, in turns"),
        pytest.param(["group"], 2, 50, {"threads": 4}, id="threads in several processes"),
        pytest.param(["group"], 3, 40, {"append": "replace"}, id="a store that replaces on append"),
    ],
)
def test_writers_that_append_at_once_lose_and_double_no_message(
    tmp_path: Path,
    rng: random.Random,
    types: list[str],
    writers: int,
    count: int,
    how: dict[str, object],
) -> None:
    ids = make(tmp_path / "store", types)
    if append := how.pop("append", None):
        (tmp_path / "store" / "capsule.toml").write_text(f'[storage]\nappend = "{append}"\n')
    run(
        tmp_path,
        rng,
        ids,
        writers=writers * 2 if LONG else writers,
        count=500 if LONG else count,
        **how,
    )
