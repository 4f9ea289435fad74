"""How a command gets its store.

What must stay true: the environment is read here, and the store's warnings go to stderr.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from capsule import rooms
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.output import print_notice

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


S = TypeVar("S", bound="CoreStore")


def instance_name() -> str | None:
    """The name of the instance to act as, from the option or the environment; None: this process
    alone.
    """
    return global_options.instance or os.environ.get("CAPSULE_INSTANCE") or None


def agent_name() -> str | None:
    """The agent that a command of messaging acts for, from the option or the environment; None:
    neither says it.
    """
    return global_options.as_ or os.environ.get("CAPSULE_AGENT") or None


def session_name() -> str | None:
    """The session for which a worker runs this; None: none. Its agent then is the one to act for,
    and no other.
    """
    return os.environ.get("CAPSULE_SESSION") or None


def ensure_person(things: str) -> None:
    """Raise Refused if this runs for an agent: by the option, or in a session."""
    from capsule import Refused

    if who := global_options.as_ or (session_name() and (agent_name() or "of the session")):
        raise Refused(f"{things} are a person's, and not agent {who}'s", path="")


@contextmanager
def open_store(kind: type[S], agent: str | None, *, keep_locks: bool = False) -> Iterator[S]:
    """The store to work on, open while the body runs.

    Args:
        kind: The class of the store: with what rooms add to it, or without.
        agent: The agent to act for, as it is named in the current folder; None: the owner.
        keep_locks: Whether a save keeps its lock until the end.

    Raises Refused: this runs in a session of another agent.
    """
    session = session_name()
    agent = agent or (agent_name() if session else None)
    logger, handler = logging.getLogger("capsule"), StderrHandler(logging.WARNING)
    logger.addHandler(handler)
    try:
        with kind.open(
            global_options.store,
            keep_locks=keep_locks,
            instance=instance_name(),
            agent=agent,
            folder=agent_folder(),
        ) as store:
            if session:
                rooms.bind(store, session)
            yield store
    finally:
        logger.removeHandler(handler)


def open_core_store(*, keep_locks: bool = False) -> AbstractContextManager[CoreStore]:
    """The store to work on, without the rooms, as `open_store` gives it."""
    from capsule.store.store import CoreStore

    return open_store(CoreStore, global_options.as_, keep_locks=keep_locks)


def agent_folder() -> str | None:
    """The folder in which the agent's name is meant; None: none, since a worker gives its command
    an id.
    """
    return None if session_name() else current_folder()


def current_folder() -> str | None:
    """The current folder, without links in its path; None: it was deleted."""
    with suppress(FileNotFoundError):
        return os.path.realpath(os.getcwd())
    return None


@contextmanager
def open_conversation(id: str) -> Iterator[tuple[CoreStore, str]]:
    """The store, open while the body runs, and the id of the conversation that is named by `id`."""
    with open_core_store() as store:
        yield store, store.resolve(id)


@contextmanager
def open_version(id: str, at: str | None, *, tell: bool = False) -> Iterator[tuple[CoreStore, str]]:
    """As `open_conversation`, of a past version of it if `at` names one; `tell`: say on stderr which one
    that is.
    """
    with open_core_store() as store:
        if at is None:
            yield store, store.resolve(id)
        else:
            past = rooms.past_version(store, id, at, announce=tell)
            yield past.store, past.id


class StderrHandler(logging.Handler):
    """Writes warnings to stderr by `print_notice`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Say what was logged."""
        print_notice(self.format(record))  # With the traceback, where there is one.
