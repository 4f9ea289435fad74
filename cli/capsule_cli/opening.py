"""How a command gets its store.

What must stay true: the environment's say is asked here, and what the store warns of is told on stderr.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import orjson
import typer

from capsule_cli.options import asked
from capsule_cli.output import say, shown

if TYPE_CHECKING:
    from capsule import Store

__all__ = ["ToStderr", "holder", "store_of"]


def holder(ctx: typer.Context) -> str | None:
    """The name of the instance to act as, from the option or the environment; None: this process alone."""
    return asked(ctx).instance or os.environ.get("CAPSULE_INSTANCE") or None


@contextmanager
def store_of(ctx: typer.Context, *, keep_locks: bool = False) -> Iterator[Store]:
    """The store the command is to work on, open while the body runs. The store's warnings go to stderr.

    Args:
        keep_locks: Whether a save keeps the conversation locked until the end: for a command that stays open.
    """
    from capsule import Store

    logger = logging.getLogger("capsule")
    handler = ToStderr(as_json=asked(ctx).json)
    logger.addHandler(handler)
    try:
        opened = Store.open(asked(ctx).store, keep_locks=keep_locks, instance=holder(ctx))
        with opened as store:
            yield store
    finally:
        logger.removeHandler(handler)


class ToStderr(logging.Handler):
    """Warnings as words on stderr; as a JSON object a line when the errors are."""

    def __init__(self, *, as_json: bool) -> None:
        super().__init__(logging.WARNING)
        self._as_json = as_json

    def emit(self, record: logging.LogRecord) -> None:
        message = self.format(record)  # With the traceback, where there is one.
        if self._as_json:
            sys.stderr.write(orjson.dumps({"warning": message}).decode() + "\n")
            sys.stderr.flush()
        else:
            say(shown(message))
