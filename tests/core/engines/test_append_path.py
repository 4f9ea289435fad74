"""The number of our functions between `Store.append` and the disk."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import capsule
from capsule import Store, timestamps

OURS = os.path.dirname(capsule.__file__)
#: The calls that reach a file; sync_file_range is no call of Python's, and lies on the way to
#: pwrite.
TO_DISK = {"pwrite", "fdatasync", "fsync"}
#: The most functions on the way from `Store.append` to one such call, and the most that run before
#: the last of them.
DEEPEST, DISTINCT = 8, 58


def paths_of_an_append(store: Store, id: str) -> tuple[dict[str, list[str]], list[str]]:
    """The deepest stack of each call that reaches the disk, outermost function first; and every
    function called before the last of these calls."""
    ways: dict[str, list[str]] = {}
    called: list[str] = []
    until = 0

    def ours(frame: FrameType | None) -> list[str]:
        found = []
        while frame is not None:
            if frame.f_code.co_filename.startswith(OURS):
                found.append(frame.f_code.co_qualname)
            frame = frame.f_back
        return found[::-1]

    def note(frame: FrameType, event: str, what: Any) -> None:
        nonlocal until
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            called.append(f"{frame.f_code.co_filename}:{frame.f_code.co_qualname}")
        elif event == "c_call" and what.__name__ in TO_DISK:
            way = ours(frame)
            until = len(called)
            if len(way) > len(ways.get(what.__name__, [])):
                ways[what.__name__] = way

    gc.collect()
    gc.disable()  # Finalizers of what earlier tests left would be counted too.
    sys.setprofile(note)
    try:
        store.append(id, content="one more")
    finally:
        sys.setprofile(None)
        gc.enable()
    return ways, called[:until]


def test_an_append_reaches_the_disk_through_few_functions(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.create(id="plan", title="Plan", type="group")
        for text in ("one", "two", "three"):
            store.append("plan", content=text)
        measured = []
        # The first of a second, and the one that makes new ids, run a function more: on a slow
        # machine many do.
        while len(measured) < 5 or (
            len(measured) < 200 and min(len(set(path[1])) for path in measured) > DISTINCT
        ):
            before = timestamps.now()
            while (
                timestamps.now() == before
            ):  # A second message of one millisecond gets its time and id otherwise.
                pass
            measured.append(paths_of_an_append(store, "plan"))
        ways, called = min(measured, key=lambda path: len(set(path[1])))
    assert {"pwrite", "fdatasync"} <= set(ways)
    for call, way in ways.items():
        assert way[0] == "BaseStore.append", call
        assert len(way) <= DEEPEST, (call, way)
    assert len(set(called)) <= DISTINCT, sorted(set(called))
