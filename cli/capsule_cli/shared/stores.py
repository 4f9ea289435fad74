"""Open the store for a command.

What must stay true: the environment variables that name an instance, an agent and a session are
read here. The store's warnings go to stderr.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from capsule import rooms
from capsule_cli.shared.output import global_options, print_notice

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


S = TypeVar("S", bound="CoreStore")


def instance_name() -> str | None:
    """Return the name of the instance of the option or the environment. None: this process alone is
    the instance.
    """
    return global_options.instance or os.environ.get("CAPSULE_INSTANCE") or None


def agent_name() -> str | None:
    """Return the agent of the option or the environment. None: neither names one."""
    return global_options.as_ or os.environ.get("CAPSULE_AGENT") or None


def session_name() -> str | None:
    """Return the session for which a worker runs this process, or None. A command in a
    session acts only for the agent of the session.
    """
    return os.environ.get("CAPSULE_SESSION") or None


def ensure_person(things: str) -> None:
    """Raise Refused if an agent runs the command: by the option, or in a session. `things` is the
    subject of the message.
    """
    from capsule import Refused

    agent = global_options.as_
    if not agent and session_name():
        agent = agent_name() or "of the session"
    if agent:
        raise Refused(f"{things} are for a person, not for agent {agent}", path="")


@contextmanager
def open_store(kind: type[S], agent: str | None, *, keep_locks: bool = False) -> Iterator[S]:
    """Open the store, and yield it. It is closed after the body.

    Args:
        kind: The class of the store: with the objects of rooms, or without.
        agent: The agent to act for, by its name in the current folder. None: the owner.
        keep_locks: Whether a save keeps its lock until the store is closed.

    Raises Refused: this process runs in a session of another agent.
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
    """Open the store without the objects of rooms, as `open_store` does."""
    from capsule.store.store import CoreStore

    return open_store(CoreStore, global_options.as_, keep_locks=keep_locks)


def agent_folder() -> str | None:
    """Return the folder where an agent's name is looked up. None inside a session: a worker
    passes the agent's id.
    """
    return None if session_name() else current_folder()


def current_folder() -> str | None:
    """Return the current folder, without links in its path. None: it was deleted."""
    with suppress(FileNotFoundError):
        return os.path.realpath(os.getcwd())
    return None


@contextmanager
def open_conversation(id: str) -> Iterator[tuple[CoreStore, str]]:
    """Open the store, and yield it with the id of a conversation that the user named by `id`."""
    with open_core_store() as store:
        yield store, store.resolve(id)


@contextmanager
def open_version(
    id: str, revision: str | None, *, announce: bool = False
) -> Iterator[tuple[CoreStore, str]]:
    """Open the store as `open_conversation` does, or a past version of the conversation.

    Args:
        id: The conversation, as the user named it.
        revision: The past version: a commit or a time. None: the present conversation.
        announce: Whether to name the past version on stderr.
    """
    with open_core_store() as store:
        if revision is None:
            yield store, store.resolve(id)
        else:
            past = rooms.past_version(store, id, revision, announce=announce)
            yield past.store, past.id


class StderrHandler(logging.Handler):
    """Prints the store's warnings by `print_notice`."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a log record, with its traceback if it has one."""
        print_notice(self.format(record))
