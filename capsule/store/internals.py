"""The inner interface of an open store: what its own objects and the rooms use of it.

What must stay true: every change of a conversation is one `StoreInternals.change`. No private name of a
store is used from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from capsule import rooms
from capsule.engines.interface import CONVERSATIONS, retries_exhausted
from capsule.errors import ConcurrentWrite, InvalidInput, Refused
from capsule.format.documents.head import Head
from capsule.ids import check_id
from capsule.locks.instance_locks import InstanceLocks
from capsule.store.change.conversation import TRIES, Conversation, admit_any_instance

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.interface import Engine
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import InputsFor, PolicyTarget
    from capsule.settings import Settings
    from capsule.watch.own_writes import OwnWrites


S = TypeVar("S")
T = TypeVar("T")
Document = dict[str, Any]
_UNWATCHED = nullcontext()


class AccessGuard:
    """What a room has to say before an agent reads or writes, made once for a store.

    This one stands for a room that is not installed, and fails closed: agents are refused what the
    room would have judged, and the owner is not.

    Args:
        engine: The engine of the whole store.
    """

    def __init__(self, engine: Engine) -> None:
        pass

    def state(
        self, subject: str | None, object: PolicyTarget | None, others: Iterable[str]
    ) -> PolicyInputs:
        """What a decision depends on besides the object.

        Args:
            subject: The agent that asks; None: the store's owner.
            object: The conversation that it is about; None: agents.
            others: The agents that it is about.
        """
        from capsule.rules.consent import PolicyInputs

        return PolicyInputs(is_guarded=subject is None)

    def named(self, subject: str | None, text: str, heads: Iterable[Head]) -> list[str]:
        """The ids of the conversations that are meant by a name.

        Args:
            subject: The agent that asks; None: the store's owner.
            text: What may be a name.
            heads: The conversations that it may read.
        """
        return []

    def agent(self, subject: str | None, text: str) -> str:
        """The id of the agent that is meant by a name or an id; if it is none that `subject` finds,
        the text itself.

        Raises InvalidInput: Several are meant.
        """
        return text

    def folders(self, subject: str | None) -> Mapping[str, str]:
        """The folders of the projects of the agents that `subject` finds (None: of all), by the
        agents' ids.
        """
        return {}

    def identity_for(self, store: Any, text: str, folder: str | None) -> str:
        """The id of the agent that a store is opened for.

        Args:
            store: The store, which acts for the owner so far, and makes the agent if need be.
            text: Its id, `name@project`, or the name of an agent in the project of the folder.
            folder: The folder where it is said; None: none.

        Raises InvalidInput, NotFound.
        """
        return text


class StoreInternals(Generic[S]):
    """The inner interface of an open store, `store.inner`. `S` is the class of the store.

    Attributes:
        store: The store.
        agent: The agent that it acts for; None: its owner.
        settings: The settings in its `capsule.toml`.
        whole_engine: The engine of the whole store, whoever it acts for.
        engine: The engine as the agent sees it; for the owner the whole one.
        instance_locks: The locks of this instance.
        main: The inner interface of the store that this one was opened beside; None: it has the
            engine of its own.
        own_writes: The writes of this store; None until it is watched.
        state_of: Gives what a decision of the rule depends on besides an object. A session replaces
            it.
        opened_stores: The stores that `store_for` opened, by agent.
        objects: The objects that `object_of` made, by class.
    """

    def __init__(
        self,
        store: S,
        engine: Engine,
        settings: Settings,
        open_for: Callable[[str | None], S],
        *,
        keep_locks: bool,
        instance: str | None,
        user: str | None,
        main: StoreInternals[Any] | None,
    ) -> None:
        self.store = store
        self.agent: str | None = None
        self.settings = settings
        self.whole_engine = self.engine = engine
        self.instance_locks = InstanceLocks(
            engine, settings, self.change_any_lock, keep_locks=keep_locks, name=instance, user=user
        )
        self.main = main
        self.own_writes: OwnWrites | None = None
        self.state_of: InputsFor = lambda object, others: self.guard.state(
            self.agent, object, others
        )
        self.opened_stores: dict[str | None, S] = {}
        self.objects: dict[type, Any] = {}
        self._open_for = open_for

    # -- Who it acts for ---------------------------------------------------------------------------

    @cached_property
    def guard(self) -> AccessGuard:
        """What a room has to say before an agent reads or writes."""
        if self.main is not None:
            return self.main.guard
        kind = AccessGuard
        with suppress(Refused):
            kind = rooms.guard_class()
        return kind(self.whole_engine)

    def act_for(self, agent: str, folder: str | None) -> None:
        """Act for an agent from now on; until now it was the owner's, who makes the agent if need
        be.

        Args:
            agent: Its id, or as `AccessGuard.identity_for` takes it.
            folder: The folder where it is said; None: none.
        """
        from capsule.store.view import AgentView

        self.agent = check_id(self.guard.identity_for(self.store, agent, folder))
        self.objects.clear()
        self.engine = AgentView(
            self.agent, self.whole_engine, lambda object, others: self.state_of(object, others)
        )

    def required_agent(self, agent: str | None) -> str:
        """The agent that a call is about: the given one, or the one that the store acts for.

        Raises InvalidInput if there is none, and Refused if the store acts for another one.
        """
        agent = self.agent if agent is None else agent
        if agent is None:
            raise InvalidInput("name the agent for this")
        if self.agent not in (None, agent):
            raise Refused(f"this store acts for {self.agent}, not for {agent}", path="")
        return agent

    def store_for(self, agent: str | None) -> S:
        """The store that acts for an agent, or for the owner (None): this one, or one beside it,
        which is kept.
        """
        if self.agent == agent:
            return self.store
        if agent not in self.opened_stores:
            self.opened_stores.setdefault(agent, self._open_for(agent))
        return self.opened_stores[agent]

    def object_of(self, kind: Callable[[S], T]) -> T:
        """The object of a class that the store offers, or that a room keeps with it: the same at
        each call.

        Args:
            kind: The class; it takes the store.
        """
        part: T | None = self.objects.get(kind)  # type: ignore[call-overload]
        return self.objects.setdefault(kind, kind(self.store)) if part is None else part  # type: ignore[call-overload]

    def forget_purged(self) -> None:
        """Let each room remove what it keeps of deleted texts. Raises StoreBusy, Refused,
        StorageFailed.
        """
        for room in rooms.installed():
            room.forget_purged(self.store)

    # -- Changes -----------------------------------------------------------------------------------

    def change(
        self,
        id: str,
        edit: Callable[[Conversation], T],
        admit: Callable[[Conversation], Document | None] | None = None,
        *,
        is_own: bool = True,
    ) -> T:
        """Change a conversation: a transaction, the check who may write, the change, and the lock
        recorded with it.

        It starts over when another program wrote the file in between.

        Args:
            id: The conversation.
            edit: Makes the change. It runs again when another program wrote in between, so new ids
                are made outside it.
            admit: Decides who may write, as `Conversation` takes it; None: as for a save, which
                also asks what the agent may do.
            is_own: Whether this store's watchers see the change as its own.
        """
        own = self.own_writes if is_own else None
        for tries in range(
            TRIES
        ):  # Not by `retry`: an append goes this way, through as few functions as can be.
            try:
                with self.engine.transaction(CONVERSATIONS, id) as transaction:
                    conversation = Conversation(
                        transaction,
                        admit or self.instance_locks.admit,
                        tries,
                        agent=self.agent,
                        state_of=self.state_of,
                        limits=self.settings,
                        own=own,
                        is_ruled=admit is None,
                    )
                    with _UNWATCHED if own is None else own.writing(transaction):
                        result = edit(conversation)
                    if conversation.recorded is not None:
                        self.instance_locks.remember(id, conversation.recorded)
                    return result
            except ConcurrentWrite:
                continue
        raise retries_exhausted(f"conversation {id}", id)

    def change_any_lock(self, id: str, action: Callable[[Conversation], T]) -> T:
        """Change a conversation whoever holds its lock, for changes that were permitted already."""
        return self.change(id, action, admit_any_instance)

    def change_head(self, id: str, change: Callable[[Document], None]) -> Head:
        """Change the head of a conversation in place; the head as written."""
        return self.parsed_head(
            id, self.change(id, lambda conversation: conversation.change_head(change))
        )

    def parsed_head(self, id: str, fields: Document, size: int = 0) -> Head:
        """The head with the fields just written. Raises InvalidDocument."""
        head = Head.of(fields, self.engine.name(CONVERSATIONS, id), size)
        assert head is not None  # It was validated.
        return head

    # -- What watchers see -------------------------------------------------------------------------

    def remember_own_write(self, id: str, *marks: str, entries: Iterable[Document] = ()) -> None:
        """Remember own writes for this store's watchers: messages, and marks as `OwnWrites.remember` takes
        them.
        """
        if self.own_writes is not None:
            self.own_writes.remember(id, *marks)
            self.own_writes.remember_appended(id, entries)

    def hold_reports(self, id: str) -> AbstractContextManager[None]:
        """Hold back reports of changes of a conversation while the body writes it, if the store is
        watched.
        """
        return _UNWATCHED if self.own_writes is None else self.own_writes.hold_reports(id)

    def with_own_marked(self, changes: list[Change], cursor: str) -> Changes:
        """Changes as a caller gets them, with own ones marked."""
        from capsule.engines.changes import Changes

        own = self.own_writes
        return Changes(
            changes if own is None else own.with_own_marked(changes, self.engine.queries().advance),
            cursor,
        )
