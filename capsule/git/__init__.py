"""Conversations under git: set-up, commits, syncs, merges, diffs and past versions. `open` returns
the object with these operations.

What must stay true: the `git` program does the versioning. This package supplies the drivers that
read, clean and merge conversations.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capsule.errors import Refused

if TYPE_CHECKING:
    from capsule.git.clone import Clone
    from capsule.store.store import CoreStore


def open(store: CoreStore, program: Sequence[str] | None = None) -> Clone:
    """Open the git repository that contains a store. The repository is looked for at the first call
    that needs it.

    Args:
        store: The open store. It must outlive the result.
        program: The program with which git starts the drivers, as an absolute path, and its first
            arguments. None: this Python.

    Raises Refused if the store acts for an agent: git has every version of every conversation.
    Cost: none.
    """
    if store.agent is not None:
        message = f"agent {store.agent} may not read git's history, only a person may"
        raise Refused(message, path="")
    from capsule.git.clone import Clone  # Imported here, so that `capsule.git` loads quickly.

    return Clone(store, program)
