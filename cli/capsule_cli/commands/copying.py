"""`copy`: a store into another one.

What must stay true: nothing of either is replaced or removed that is not named; and a copy that is
not whole does not exit 0.
"""

from __future__ import annotations

from typing import Annotated

from capsule_cli.shared.opening import ensure_person
from capsule_cli.shared.options import argument
from capsule_cli.shared.output import answer, counted, progress, shown

From = Annotated[
    str, argument("FROM", "The store to copy: a directory, or an address in PostgreSQL.", ...)
]
To = Annotated[
    str, argument("TO", "The store that gets the copy; make it with `capsule init` first.", ...)
]


def copy(source: From, target: To) -> None:
    """Copy a store into another one: into PostgreSQL, into files, and back. Run it again to copy
    later changes.

    A document of the target that has diverged is left alone and listed.
    """
    from capsule.store.copying import copy_store
    from capsule.store.store import CoreStore

    ensure_person("copies")
    with (
        CoreStore.open(source, keep_locks=False) as before,
        CoreStore.open(target, keep_locks=False) as after,
    ):
        with progress("copying") as bar:
            done = copy_store(before, after, bar)
        names = before.root, after.root
    lines = [
        (
            f"{names[0]} -> {names[1]}: {counted(done.written, 'document')} written, {done.same} "
            "there already"
        )
    ]
    lines += [
        f"{kind}/{id}: the other store has a version of its own; it stays" for kind, id in done.kept
    ]
    lines += [f"{kind}/{id}: {error}" for kind, id, error in done.failed]
    answer(done.as_json(), shown("\n".join(lines)), ok=not (done.kept or done.failed))
