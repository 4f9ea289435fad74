"""A watcher that goes from cursor to cursor gets every message exactly once, under any load."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from tests.processes import PATIENCE_S

_WRITER = """
    import random
    rng = random.Random(int(sys.argv[3]))
    store = Store.open(sys.argv[1], keep_locks=False)
    ids = json.loads(sys.argv[2])
    hear()
    written = []
    for number in range(int(sys.argv[4])):
        id = rng.choice(ids)
        if rng.random() < 0.1:
            batch = [{"role": "user", "content": str(number)} for _ in range(rng.randrange(2, 6))]
            written += [message.id for message in store.append_many(id, batch)]
        else:
            written.append(store.append(id, content=str(number)).id)
    say(written)
"""


@contextmanager
def writers(
    root: Path, child: Callable[..., Any], rng: random.Random, *, many: int, messages: int
) -> Iterator[list[Future[list[str]]]]:
    """Processes that append while the body runs. Yields: of each the ids of its messages, once it
    is done.
    """
    with Store.open(root, keep_locks=False) as store:
        ids = [store.create(type="group", title=str(number)).id for number in range(4)]
    processes = [
        child(_WRITER, root, json.dumps(ids), rng.randrange(2**32), messages) for _ in range(many)
    ]
    for process in processes:
        process.say()
    with ThreadPoolExecutor(many) as pool:
        yield [pool.submit(process.hear) for process in processes]


@pytest.mark.slow
def test_watchers_that_come_and_go_get_each_message_once(
    root: Path, child: Callable[..., Any], rng: random.Random
) -> None:
    with Store.open(root, keep_locks=False) as store:
        store.wait_for_changes(timeout_s=0)
        begin = store.changes().cursor

        async def come_and_go(done: asyncio.Event, seed: int) -> Counter[str]:
            """Watch, stop after some changes, and continue from the cursor; once all is written,
            read the rest.
            """
            dice = random.Random(seed)
            received: Counter[str] = Counter()
            cursor = begin
            while not done.is_set():
                async with store.watch(cursor, stop=done) as watch:
                    for _ in range(dice.randrange(1, 30)):
                        if (change := await anext(watch, None)) is None:
                            break
                        received.update(change.messages)
                    cursor = watch.cursor
            while (rest := await asyncio.to_thread(store.changes, cursor)).changes:
                received.update(chain.from_iterable(change.messages for change in rest.changes))
                cursor = rest.cursor
            return received

        async def follow(writing: list[Future[list[str]]]) -> list[Counter[str]]:
            done = asyncio.Event()
            watching = asyncio.gather(*(come_and_go(done, rng.randrange(2**32)) for _ in range(6)))
            await asyncio.gather(*map(asyncio.wrap_future, writing))
            done.set()
            return await watching

        with writers(root, child, rng, many=3, messages=300) as writing:
            chains = asyncio.run(follow(writing))
        written = Counter(chain.from_iterable(each.result() for each in writing))
        assert chains == [written] * 6


@pytest.mark.parametrize(
    "kill",
    ["delete", *(pytest.param(how, marks=pytest.mark.slow) for how in ("truncate", "garbage"))],
)
def test_a_loss_of_the_index_during_a_watch_loses_no_message(
    root: Path, child: Callable[..., Any], rng: random.Random, kill: str
) -> None:
    index = root / ".capsule" / "index.sqlite3"
    with Store.open(root, keep_locks=False) as store:
        cursor = store.changes().cursor
        received: set[str] = set()
        lost = 0
        with writers(root, child, rng, many=2, messages=150) as writing:
            # A slow watcher may get everything at once; then the index is lost after the last
            # message.
            while lost < 3 or not all(
                each.done() and received.issuperset(each.result()) for each in writing
            ):
                found = store.wait_for_changes(cursor, timeout_s=1)
                cursor = found.cursor
                received.update(message for change in found.changes for message in change.messages)
                if lost < 3 and len(received) > 60 * (lost + 1):
                    lost += 1
                    if kill == "delete":
                        index.unlink(missing_ok=True)
                    else:
                        index.write_bytes(b"" if kill == "truncate" else b"no database " * 1000)


def test_messages_arrive_while_their_writer_goes_on(root: Path, child: Callable[..., Any]) -> None:
    with Store.open(root, keep_locks=False) as store:
        id = store.create(type="group", title="Plan").id
        writer = child(
            """
            import threading
            store = Store.open(sys.argv[1], keep_locks=False)
            stop = threading.Event()
            threading.Thread(target=lambda: (hear(), stop.set()), daemon=True).start()
            many = 0
            while not stop.is_set():
                store.append(sys.argv[2], content="x")
                many += 1
            say(many)
            """,
            root,
            id,
        )
        cursor, received = store.changes().cursor, 0
        for _ in range(20):
            found = store.wait_for_changes(cursor, timeout_s=PATIENCE_S)
            cursor = found.cursor
            received += sum(len(change.messages) for change in found.changes)
        writer.say()
        many = writer.hear()
        assert 0 < received <= many
        while received < many:
            found = store.wait_for_changes(cursor, timeout_s=PATIENCE_S)
            assert found.changes
            cursor = found.cursor
            received += sum(len(change.messages) for change in found.changes)
        assert received == many
