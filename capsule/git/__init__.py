"""Conversations under git: how they diff, merge, travel, and what they were. `open` gives what
there is to do.

What must stay true: the `git` program does the versioning, and this package only tells it what a
conversation is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from capsule.errors import Refused

if TYPE_CHECKING:
    from capsule.git.clone import Clone
    from capsule.store.store import CoreStore


def open(store: CoreStore, program: Sequence[str] | None = None) -> Clone:
    """Take a store as part of its git repository. The repository is looked for at the first call
    that needs it.

    Args:
        store: The store, open; it must outlive what is returned.
        program: How git starts the drivers: a program, as an absolute path, and its first
            arguments. None: this Python.

    Raises Refused if the store acts for an agent: git has every version of every conversation.
    Cost: none.
    """
    if store.agent is not None:
        raise Refused(
            f"agent {store.agent} may not read git's history, only a person may",
            path="",
        )
    from capsule.git.clone import (
        Clone,
    )  # What runs git alone (`capsule.git_program`) stays quick to load.

    return Clone(store, program)
