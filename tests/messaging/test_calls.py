"""The number of calls of our functions in a warm call: what a listener, a sender and a searcher wait for."""

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
#: The most calls. A file that was written a moment ago is read once more, so the number differs from run to run.
SEND, LISTEN, SEARCH = 500, 1200, 450


def calls_of(act: Callable[[], object]) -> int:
    """How often functions of the package are called while this runs, in this thread."""
    count = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and frame.f_code.co_filename.startswith(OURS)

    gc.collect()
    gc.disable()  # Finalizers of what earlier tests left would be counted too.
    sys.setprofile(note)
    try:
        act()
    finally:
        sys.setprofile(None)
        gc.enable()
    return count


def test_a_message_is_sent_heard_and_found_in_few_calls(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        for id in ("anna", "bob"):
            store.agents.register(id)
        anna, bob = (store.beside(agent=id) for id in ("anna", "bob"))
        for text in ("one", "two", "three"):
            anna.messages.send(text, to="bob")
            bob.messages.listen(timeout_s=1)
        assert calls_of(lambda: anna.messages.send("four apples", to="bob")) <= SEND
        assert calls_of(lambda: bob.messages.listen(timeout_s=1)) <= LISTEN
        store.search("apples")
        anna.messages.send("five apples", to="bob")
        assert calls_of(lambda: store.search("apples")) <= SEARCH
