"""One person saves in the middle of an append, another reads in the middle of it and saves later:
nothing is lost.

The first one's save may lie between any two calls of the append to the system, the other one's read
between any two behind it; and the writer goes on, or is killed there.
"""

from __future__ import annotations

import os
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.errors import InvalidDocument
from tests.core.storage.faults import CALLS, store_on


class Watched(Syscalls):
    """The system, with something else that happens right before each call.

    Attributes:
        meanwhile: Called with the number of the call, counted from 0; None: nothing happens, and no
            call is counted.
        calls: The calls counted so far.
    """

    def __init__(self) -> None:
        self.meanwhile: Any = None
        self.calls = 0
        for name in CALLS:
            setattr(self, name, self._after_meanwhile(getattr(super(), name)))

    def _after_meanwhile(self, call: Any) -> Any:
        def called(*args: Any) -> Any:
            meanwhile, self.meanwhile = self.meanwhile, None
            if meanwhile is not None:
                meanwhile(self.calls)
                self.calls += 1
                self.meanwhile = meanwhile
            return call(*args)

        return called


def canonical(document: dict[str, Any]) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def lost(
    root: Path, saved_at: int, read_at: int, killed: bool, tags: int = 0
) -> tuple[list[str], int]:
    """Append while one person saves and another reads, who saves after so many tags were added.
    Returns: the acknowledged messages that are gone, and the number of calls of the append."""
    sys = Watched()
    Store.init(root)
    with Store.open(root) as store:
        id = store.create(title="Plan", type="group").id
        store.append_many(id, [{"content": f"before {n}", "role": "user"} for n in range(3)])
        path = root / "conversations" / f"{id}.json"
        stale = orjson.loads(path.read_bytes()) | {"title": "Mine"}
        acked = [store.append(id, content=f"acknowledged {n}").id for n in range(2)]
    read, acks = root / "read", root / "acks"

    def meanwhile(call: int) -> None:
        if call == saved_at:
            path.write_bytes(canonical(stale))
        if call == read_at:
            read.write_bytes(path.read_bytes())
            if killed:
                os._exit(0)

    child = os.fork()
    if child == 0:
        try:
            store = store_on(root, sys)
            store.load(id)
            sys.meanwhile = meanwhile
            with suppress(InvalidDocument):
                acks.write_text(store.append(id, content="meanwhile").id)
            (root / "calls").write_text(str(sys.calls))
            os._exit(0)
        except BaseException:
            traceback.print_exc()
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    if acks.exists():
        acked.append(acks.read_text())
    if tags:
        with Store.open(root) as store:
            for n in range(tags):
                store.tag(id, f"{n}" + "x" * 90, f"{n}" + "y" * 90)
    if read.exists():
        with suppress(orjson.JSONDecodeError):
            path.write_bytes(canonical(orjson.loads(read.read_bytes()) | {"title": "Ours"}))
    with Store.open(root) as store:
        try:
            acked.append(store.append(id, content="after").id)
        except InvalidDocument:  # An editor and an append met in the bytes: the person saves again.
            path.write_bytes(canonical(stale))
            acked.append(store.append(id, content="after").id)
    ids = [entry["id"] for entry in orjson.loads(path.read_bytes())["history"]]
    assert len(ids) == len(set(ids))
    calls = root / "calls"
    return [id for id in acked if id not in ids], int(calls.read_text()) if calls.exists() else 0


@pytest.mark.slow
@pytest.mark.parametrize("killed", [False, True])
def test_a_save_and_a_read_within_an_append_lose_nothing_acknowledged(
    memory: Path, killed: bool
) -> None:
    _, calls = lost(memory / "none", -1, -1, False)
    assert calls > 10
    for saved_at in range(calls):
        for read_at in {saved_at, saved_at + 1, saved_at + 3}:
            case = f"{saved_at}-{read_at}"
            assert lost(memory / case, saved_at, read_at, killed)[0] == [], case


@pytest.mark.parametrize("tags", [0, 120])  # So many push the oldest heads out of the log.
def test_an_interrupted_append_shows_nobody_what_its_time_stands_beside(
    memory: Path, tags: int
) -> None:
    _, calls = lost(memory / "none", -1, -1, False)
    for at in range(calls - 7, calls - 4):  # About the write of `updatedAt`.
        assert lost(memory / str(at), at, at + 2, False, tags)[0] == []
