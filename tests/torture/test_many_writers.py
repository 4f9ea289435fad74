"""Many writers at once, in processes and threads: every acknowledged message is there once, in its writer's order."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from tests.torture.writers import LONG, Plan, Writers, assert_clean, check, make

pytestmark = pytest.mark.slow


def run(tmp_path: Path, rng: random.Random, ids: list[str], *, writers: int, count: int, **how: object) -> None:
    """Let writers append, and check what came of it."""
    root, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    plans = [
        Plan(str(root), str(acks / f"w{i}"), f"w{i}", rng.getrandbits(32), ids, count, **how) for i in range(writers)
    ]
    began = time.monotonic()
    with Writers(plans) as crew:
        crew.begin()
        crew.finish()
    told = check(root, acks)
    threads = plans[0].threads
    assert told.acked == told.kept == writers * threads * count
    assert not told.unacknowledged
    assert_clean(root)
    print(f"{writers} x {threads} writers, {told.acked} messages, {time.monotonic() - began:.1f} s")


def test_processes_that_append_to_one_conversation_lose_and_double_nothing(tmp_path: Path, rng: random.Random) -> None:
    ids = make(tmp_path / "store", ["group"])
    run(tmp_path, rng, ids, writers=8 if LONG else 4, count=500 if LONG else 100)


def test_processes_that_append_to_many_conversations_lose_and_double_nothing(
    tmp_path: Path, rng: random.Random
) -> None:
    ids = make(tmp_path / "store", [("group", "direct", "channel")[i % 3] for i in range(50)])
    run(tmp_path, rng, ids, writers=8 if LONG else 4, count=500 if LONG else 100, longest=9000)


def test_writers_that_take_and_release_the_lock_of_one_chat_all_get_their_turn(
    tmp_path: Path, rng: random.Random
) -> None:
    ids = make(tmp_path / "store", ["chat"])
    run(tmp_path, rng, ids, writers=8 if LONG else 4, count=500 if LONG else 25, turns=True)


def test_writers_that_take_and_release_the_locks_of_many_chats_all_get_their_turn(
    tmp_path: Path, rng: random.Random
) -> None:
    ids = make(tmp_path / "store", ["chat"] * 50)
    run(tmp_path, rng, ids, writers=8 if LONG else 4, count=500 if LONG else 50, turns=True)


def test_threads_in_several_processes_lose_and_double_nothing(tmp_path: Path, rng: random.Random) -> None:
    ids = make(tmp_path / "store", ["group"])
    run(tmp_path, rng, ids, writers=4 if LONG else 2, count=500 if LONG else 50, threads=4)


@pytest.mark.parametrize("append", ["replace"])
def test_a_store_that_replaces_on_append_loses_and_doubles_nothing(
    tmp_path: Path, rng: random.Random, append: str
) -> None:
    ids = make(tmp_path / "store", ["group"])
    (tmp_path / "store" / "capsule.toml").write_text(f'[storage]\nappend = "{append}"\n')
    run(tmp_path, rng, ids, writers=8 if LONG else 3, count=100 if LONG else 40)
