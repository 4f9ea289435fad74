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
from capsule_cli.shared.options import usage
from capsule_cli.shared.output import say

if TYPE_CHECKING:
    from capsule import Store


def holder() -> str | None:
    """The name of the instance to act as, from the option or the environment; None: this process alone."""
    return asked.instance or os.environ.get("CAPSULE_INSTANCE") or None


def agent_named() -> str | None:
    """The agent that a command of messaging acts for, from the option or the environment; None: neither says it."""
    return asked.agent or os.environ.get("CAPSULE_AGENT") or None


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


@contextmanager
def acting() -> Iterator[tuple[Store, str]]:
    """The store, open while the body runs, and the agent that the command acts for.

    Raises:
        typer.BadParameter: Neither the option nor the environment names it, nor is one agent registered for the folder.
    """
    with store_of() as store:
        yield store, agent_named() or _agent_here(store)


def _agent_here(store: Store) -> str:
    """The agent whose project is the current folder, or the nearest one above it."""
    found = store.agents.at(os.path.realpath(os.getcwd()))
    if len(found) != 1:
        who = f"{' and '.join(found)} work in this folder" if found else "no agent works in this folder"
        ways = "name it with --as AGENT or CAPSULE_AGENT, or register one with: capsule agents register"
        raise usage(f"which agent is this? {who}; {ways}", "--as")
    return found[0]


class ToStderr(logging.Handler):
    """Warnings as `say` says them."""

    def emit(self, record: logging.LogRecord) -> None:
        say(self.format(record))  # With the traceback, where there is one.
