"""How a command gets its store.

What must stay true: the environment's say is asked here, and what the store warns of is told on stderr.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from capsule_cli.shared.asked import asked
from capsule_cli.shared.output import say

if TYPE_CHECKING:
    from capsule import Store


def holder() -> str | None:
    """The name of the instance to act as, from the option or the environment; None: this process alone."""
    return asked.instance or os.environ.get("CAPSULE_INSTANCE") or None


@contextmanager
def store_of(*, keep_locks: bool = False) -> Iterator[Store]:
    """The store the command is to work on, open while the body runs. The store's warnings go to stderr.

    Args:
        keep_locks: Whether a save keeps the conversation locked until the end: for a command that stays open.
    """
    from capsule import Store

    logger, handler = logging.getLogger("capsule"), ToStderr(logging.WARNING)
    logger.addHandler(handler)
    try:
        with Store.open(asked.store, keep_locks=keep_locks, instance=holder(), agent=asked.agent) as store:
            yield store
    finally:
        logger.removeHandler(handler)


@contextmanager
def conversation(id: str) -> Iterator[tuple[Store, str]]:
    """The store, open while the body runs, and the id of the conversation that is named by `id`."""
    with store_of() as store:
        yield store, store.resolve(id)


class ToStderr(logging.Handler):
    """Warnings as `say` says them."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))  # With the traceback, where there is one.
