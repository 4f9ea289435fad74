"""Writers in processes of their own, for the tests of what fails under them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from capsule import Store
from tests.processes import Child

#: Appends to one of some conversations, and says each that was acknowledged, until it is told to
#: end.
WRITER = """
import random, threading
store, name, ids, ended = Store.open(sys.argv[1], keep_locks=False), sys.argv[2], sys.argv[3].split(), threading.Event()
threading.Thread(target=lambda: (hear(), ended.set()), daemon=True).start()
number = 0
say("ready")
while not ended.is_set():
    id, text = random.choice(ids), f"{name}-{number}"
    try:
        place, (entry,) = store.append_entries(id, [{"role": "user", "content": text}])
        say([id, place, entry["id"], text])
    except CapsuleError as error:
        say([id, None, None, text])
    number += 1
say(None)
store.close()
"""


def histories(store: Store) -> dict[str, list[dict[str, Any]]]:
    return {id: store.document(id)["history"] for id in store.ids()}


@contextmanager
def writing(
    child: Callable[..., Child], url: str, ids: list[str], count: int
) -> Iterator[list[Any]]:
    """What so many writers say while the body runs; afterwards it is complete."""
    said: list[Any] = []
    writers = [child(WRITER, url, f"w{number}", " ".join(ids)) for number in range(count)]
    for writer in writers:
        assert writer.hear() == "ready"

    def collect(writer: Child) -> None:
        said.extend(iter(writer.hear, None))

    with ThreadPoolExecutor(count) as pool:
        done = [pool.submit(collect, writer) for writer in writers]
        try:
            yield said
            for writer in writers:
                writer.say()
            for each in done:
                each.result()
        finally:
            for writer in writers:  # Else what failed would wait for writers that can't end.
                writer.kill()
