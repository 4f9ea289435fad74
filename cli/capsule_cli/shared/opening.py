"""How a command gets its store.

What must stay true: the environment is read here, and the store's warnings go to stderr.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from capsule import rooms
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
    return asked.as_ or os.environ.get("CAPSULE_AGENT") or None


def session_named() -> str | None:
    """The session for which a worker runs this; None: none. Its agent then is the one to act for, and no other."""
    return os.environ.get("CAPSULE_SESSION") or None


def ensure_person(things: str) -> None:
    """Raise Refused if this runs for an agent: by the option, or in a session."""
    from capsule import Refused

    if who := asked.as_ or (session_named() and (agent_named() or "of the session")):
        raise Refused(f"{things} are a person's, and not agent {who}'s", path="")


@contextmanager
def store_of(*, keep_locks: bool = False) -> Iterator[Store]:
    """The store to work on, open while the body runs; with `keep_locks`, a save keeps its lock until the end."""
    with store_as(asked.as_, keep_locks=keep_locks) as store:
        yield store


@contextmanager
def store_as(agent: str | None, *, keep_locks: bool = False) -> Iterator[Store]:
    """The store for the agent that is meant in the current folder (None: for its owner), open while the body runs.

    Raises Refused: this runs in a session of another agent.
    """
    from capsule import Store

    session = session_named()
    agent = agent or (agent_named() if session else None)
    logger, handler = logging.getLogger("capsule"), ToStderr(logging.WARNING)
    logger.addHandler(handler)
    try:
        with Store.open(asked.store, keep_locks=keep_locks, instance=holder(), agent=agent, folder=named_in()) as store:
            if session:
                rooms.load(rooms.BIND)(store, session)
            yield store
    finally:
        logger.removeHandler(handler)


def named_in() -> str | None:
    """The folder in which the agent's name is meant; None: none, since a worker gives its command an id."""
    return None if session_named() else here()


def here() -> str | None:
    """The current folder, without links in its path; None: it was deleted."""
    with suppress(FileNotFoundError):
        return os.path.realpath(os.getcwd())
    return None


@contextmanager
def conversation(id: str) -> Iterator[tuple[Store, str]]:
    """The store, open while the body runs, and the id of the conversation that is named by `id`."""
    with store_of() as store:
        yield store, store.resolve(id)


@contextmanager
def acting() -> Iterator[tuple[Store, str]]:
    """The store of the agent that the command acts for, open while the body runs, and the agent's id.

    Raises:
        typer.BadParameter: Neither the option nor the environment names it, nor is one agent registered for the folder.
    """
    with acting_or_owner() as (store, agent):
        if agent is None:
            agents = store.agents.at(os.path.realpath(os.getcwd()))
            who = f"{' and '.join(agents)} work in this folder" if agents else "no agent works in this folder"
            ways = "name it with --as AGENT or CAPSULE_AGENT, or register one with: capsule agents register"
            raise usage(f"which agent is this? {who}; {ways}", "--as")
        yield store, agent


@contextmanager
def acting_or_owner() -> Iterator[tuple[Store, str | None]]:
    """The store of the agent that the command acts for, and its id; of the owner, and None, where there is no agent."""
    with store_as(agent_named()) as store:
        if store.agent is not None:
            yield store, store.agent
        elif len(agents := store.agents.at(os.path.realpath(os.getcwd()))) == 1:
            with store.beside(keep_locks=False, agent=agents[0]) as mine:
                yield mine, mine.agent
        else:
            yield store, None


class ToStderr(logging.Handler):
    """Writes warnings to stderr by `say`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say what was logged."""
        say(self.format(record))  # With the traceback, where there is one.
