"""How many of our functions run for a call, once everything that can be kept is kept, and how many
system calls.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import capsule
from capsule import Store

OURS = os.path.dirname(capsule.__file__)
#: The most that each may take. Alone, this test reaches 192, 442 and 215. In a process that ran other
#: tests before, a send takes 207. The aim for a listen was 400: twenty of its calls see to it that
#: what it gives is on the disk.
SEND, LISTEN, SEARCH = 210, 450, 220
#: The most system calls of a listen, without those of SQLite. The aim is 40. Five of them look whether
#: another process met a flush that failed.
SYSTEM = 86
#: They ask the process, not the system.
FREE = ("fspath", "getpid")


def calls_of(act: Callable[[], object], of_system: list[int] | None = None) -> int:
    """The number of calls of our functions while `act` runs. That of system calls is added to
    `of_system`.
    """
    count = system = 0

    def note(frame: FrameType, event: str, function: Any) -> None:
        nonlocal count, system
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)
        if event == "c_call" and function.__module__ in (os.name, "fcntl"):
            system += function.__name__ not in FREE

    gc.disable()  # Finalizers of what earlier tests left would be counted too.
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    if of_system is not None:
        of_system.append(system)
    return count


def test_messages_and_a_search_run_few_functions(tmp_path: Path) -> None:
    Store.init(tmp_path)
    counts: dict[str, list[int]] = {"send": [], "listen": [], "search": [], "system": []}
    with Store.open(tmp_path) as store:
        for agent in ("anna", "bob", "carl"):
            store.agents.register(agent)
        id = store.create(title="Plan").id
        with store.beside(agent="anna") as anna:
            for _ in range(8):
                counts["send"].append(calls_of(lambda: anna.messages.send("hello", to="bob")))
                counts["listen"].append(
                    calls_of(lambda: store.messages.listen(agent="bob"), counts["system"])
                )
                store.append(id, content="one more")
                counts["search"].append(calls_of(lambda: store.search("more", limit=5)))
    counts["system"] = counts["system"][1:]  # The first one has nothing to acknowledge.
    # The least, as now and then a file is so young that it is read again, or all files are looked
    # at.
    least = {name: min(numbers) for name, numbers in counts.items()}
    assert least["send"] <= SEND, least
    assert least["listen"] <= LISTEN, least
    assert least["search"] <= SEARCH, least
    assert least["system"] <= SYSTEM, least
