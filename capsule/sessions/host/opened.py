"""The sessions that a host has open, and the registry as it last could be read.

What must stay true: one thread at a time uses a session, as its folds change while they are read; a
damaged registry stops nothing that runs. What is done with a session is not known here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from capsule.engines.interface import INBOUND
from capsule.errors import CapsuleError
from capsule.sessions.registry import Registry, State
from capsule.sessions.rules.questions import tell
from capsule.sessions.session import Edit, Session

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.engines.leases import Lease
    from capsule.sessions.rules.questions import Result

#: Writes a line of the log: the name of the step, and what it was about.
Log = Callable[..., None]
#: What the log does not say of an event: it names messages, and holds no text of them.
_NOT_LOGGED = frozenset({"event", "role", "content", "timestamp", "value"})


class Opened:
    """The open sessions of a store.

    Args:
        engine: The engine of the whole store.
        registry: Its registry.
        log: Writes a line of the log.
    """

    #: The host's.
    lease: Lease | None = None

    def __init__(self, engine: Engine, registry: Registry, log: Log) -> None:
        self.registry = registry
        self._engine = engine
        self.log = log
        self._guard = threading.Lock()
        self._sessions: dict[str, tuple[Session, threading.RLock]] = {}
        self._state = State()

    @contextmanager
    def session(self, id: str) -> Iterator[Session]:
        """A session, for this thread alone while the body runs; its files are made if they are not
        there.
        """
        with self._guard:
            if not self._engine.exists(INBOUND, id):  # It is new, or somebody removed it.
                Session.create(self._engine, id, id)
            if id not in self._sessions:
                self._sessions[id] = Session(self._engine, id), threading.RLock()
            session, alone = self._sessions[id]
        with alone:
            session.lease = self.lease
            yield session

    def state(self) -> State:
        """The registry as it is, or as it was before it was damaged. Cost: an lstat."""
        try:
            self._state = self.registry.read()
        except CapsuleError as error:
            self.log("registry", error=str(error))
        return self._state

    def answer(self, change: Callable[[State], Result]) -> list[str]:
        """Change the questions in the registry, and tell their sessions what was decided.

        A store without sessions gets no registry.

        Returns:
            The ids of the sessions that were told.
        """
        before = self.state()
        if change(before) == (before, []):
            return []
        news = self.registry.decide(change)
        for id, events in news:
            self.tell(id, partial(tell, events=events))
        return [id for id, _ in news]

    def tell(self, id: str, rule: Edit) -> None:
        """Write what a rule says into the inbound file of a session, durably, and into the log."""
        with self.session(id) as session:
            for event in session.tell(rule):
                about = {name: value for name, value in event.items() if name not in _NOT_LOGGED}
                self.log(event["event"], session=id, **about)


def said_by(error: Exception) -> str:
    """An error in words."""
    return error.message if isinstance(error, CapsuleError) else f"{type(error).__name__}: {error}"
