"""The inner interface of an open store (`store.inner`), for the objects of the store and the rooms.

`StoreInternals` holds what the instances of one store share or own: the engine, the locks of this
instance, the access guard, the memory of own writes, and the objects made so far. `change` is the
way to write: it opens a transaction, runs the edit in it, and begins again if another program wrote
the file in between.

What must stay true: every change of a conversation is one `StoreInternals.change`. No code outside
a store uses a private name of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from capsule import rooms
from capsule.engines.interface import CONVERSATIONS, OPTIMISTIC_TRIES, retries_exhausted
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
    """Resolves the names of agents, and reads what access decisions depend on. Made once for a
    store.

    The messaging room subclasses it. This class is used without that room, and fails closed: agents
    are refused what the room would have decided, and the owner is not.

    Args:
        engine: The engine of the whole store.
    """

    def __init__(self, engine: Engine) -> None:
        pass

    def state(
        self, subject: str | None, object: PolicyTarget | None, others: Iterable[str]
    ) -> PolicyInputs:
        """Return what a decision depends on besides its target.

        Args:
            subject: The agent that acts. None: the store's owner.
            object: The conversation, the target of the decision. None: the decision is about agents.
            others: The agents that the action concerns.
        """
        from capsule.rules.consent import PolicyInputs

        return PolicyInputs(is_guarded=subject is None)

    def read_again(self) -> None:
        """Forget what this thread has read for a write that was refused, because one of these
        documents has changed. The next try decides anew.
        """

    def conversations_named(
        self, subject: str | None, text: str, heads: Iterable[Head]
    ) -> list[str]:
        """Return the ids of the conversations with a name.

        Args:
            subject: The agent that asks. None: the store's owner.
            text: A text that may be a name.
            heads: The conversations that the agent may read.
        """
        return []

    def agent(self, subject: str | None, text: str) -> str:
        """Return the id of the agent with this name or id, or the text itself if `subject` finds no
        such agent.

        Raises InvalidInput: Several agents have the name.
        """
        return text

    def folders(self, subject: str | None) -> Mapping[str, str]:
        """Return the project folders of the agents that `subject` finds (None: of all agents), by
        the agents' ids.
        """
        return {}

    def identity_for(self, store: Any, text: str, folder: str | None) -> str:
        """Return the id of the agent that a store is opened for.

        Args:
            store: The store, which still acts for the owner. It makes the agent if need be.
            text: The agent's id, `name@project`, or the name of an agent in the project of the
                folder.
            folder: The folder where `text` was given, or None.

        Raises InvalidInput, NotFound.
        """
        return text


class StoreInternals(Generic[S]):
    """The inner interface of an open store, `store.inner`. `S` is the class of the store.

    Attributes:
        store: The store.
        agent: The agent that it acts for. None: its owner.
        settings: The settings in its `capsule.toml`.
        whole_engine: The engine of the whole store, without any restriction.
        engine: The engine as the agent sees it. For the owner it is the whole one.
        instance_locks: The locks of this instance.
        main: The inner interface of the store that this one was opened beside, whose engine it
            uses. None: it has an engine of its own.
        own_writes: The writes of this store. None until the store is watched.
        inputs_for: Reads what a policy decision depends on besides its target. A session replaces
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
        self.whole_engine = engine
        self.engine = engine
        self.instance_locks = InstanceLocks(
            engine, settings, self.change_any_lock, keep_locks=keep_locks, name=instance, user=user
        )
        self.main = main
        self.own_writes: OwnWrites | None = None
        self.inputs_for: InputsFor = lambda target, others: self.guard.state(
            self.agent, target, others
        )
        self.opened_stores: dict[str | None, S] = {}
        self.objects: dict[type, Any] = {}
        self._open_for = open_for

    # -- Who it acts for ---------------------------------------------------------------------------

    @cached_property
    def guard(self) -> AccessGuard:
        """The access guard of the store. Stores that were opened beside another one share it."""
        if self.main is not None:
            return self.main.guard
        guard_class = AccessGuard
        with suppress(Refused):  # The messaging room is not installed.
            guard_class = rooms.guard_class()
        return guard_class(self.whole_engine)

    def act_for(self, agent: str, folder: str | None) -> None:
        """Act for an agent from now on. Called once, while the store still acts for the owner,
        because the agent may have to be made.

        Args:
            agent: The agent, as `AccessGuard.identity_for` takes it.
            folder: The folder where `agent` was given, or None.
        """
        from capsule.store.view import AgentView

        self.agent = check_id(self.guard.identity_for(self.store, agent, folder))
        self.objects.clear()
        self.engine = AgentView(
            self.agent, self.whole_engine, lambda target, others: self.inputs_for(target, others)
        )

    def required_agent(self, agent: str | None) -> str:
        """Return the agent that a call concerns: the given one, or the one that the store acts for.

        Raises:
            InvalidInput: Neither is known.
            Refused: The store acts for another agent.
        """
        if agent is None:
            agent = self.agent
        if agent is None:
            raise InvalidInput("name the agent for this")
        if self.agent not in (None, agent):
            raise Refused(f"this store acts for {self.agent}, not for {agent}", path="")
        return agent

    def store_for(self, agent: str | None) -> S:
        """Return a store that acts for an agent, or for the owner (None). If this store does not,
        another one is opened beside it, once.
        """
        if self.agent == agent:
            return self.store
        if agent not in self.opened_stores:
            self.opened_stores.setdefault(agent, self._open_for(agent))
        return self.opened_stores[agent]

    def object_of(self, object_class: Callable[[S], T]) -> T:
        """Return the object of a class that belongs to this store. The first call makes it.

        Args:
            object_class: The class. Its constructor takes the store.
        """
        existing: T | None = self.objects.get(object_class)  # type: ignore[call-overload]
        if existing is not None:
            return existing
        new: T = self.objects.setdefault(object_class, object_class(self.store))  # type: ignore[call-overload]
        return new

    def forget_purged(self) -> None:
        """Let each room remove what it stores of texts that were erased. Raises StoreBusy, Refused,
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
        """Change a conversation in one transaction: check who may write, run the edit, and record
        the lock.

        Args:
            id: The conversation.
            edit: Makes the change. It runs again if another program wrote in between, so new ids
                are made outside it.
            admit: Decides whether this instance may write, as `Conversation` takes it. None: as for
                any save, which also checks the agent's permissions.
            is_own: Whether this store's watchers see the change as its own.

        Returns:
            The result of `edit`.

        Raises:
            StoreBusy: Other programs wrote in between at each of `TRIES` tries.
        """
        own_writes = self.own_writes if is_own else None
        # Not by `retry`: an append goes through this loop, and through as few functions as possible.
        for tries in range(TRIES):
            try:
                with self.engine.transaction(
                    CONVERSATIONS, id, exclusive=tries >= OPTIMISTIC_TRIES
                ) as transaction:
                    conversation = Conversation(
                        transaction,
                        admit or self.instance_locks.admit,
                        tries,
                        agent=self.agent,
                        inputs_for=self.inputs_for,
                        settings=self.settings,
                        own_writes=own_writes,
                        checks_permissions=admit is None,
                    )
                    with _UNWATCHED if own_writes is None else own_writes.writing(transaction):
                        result = edit(conversation)
                    if conversation.recorded_lock is not None:
                        self.instance_locks.remember(id, conversation.recorded_lock)
                    return result
            except ConcurrentWrite:
                self.guard.read_again()
        raise retries_exhausted(f"conversation {id}", id)

    def change_any_lock(self, id: str, action: Callable[[Conversation], T]) -> T:
        """Change a conversation whichever instance holds its lock, for changes that were permitted
        already.
        """
        return self.change(id, action, admit_any_instance)

    def change_head(self, id: str, change: Callable[[Document], None]) -> Head:
        """Change the head of a conversation in place, and return it as written."""
        return self.parsed_head(
            id, self.change(id, lambda conversation: conversation.change_head(change))
        )

    def parsed_head(self, id: str, fields: Document, size: int = 0) -> Head:
        """Return the `Head` with these fields, which were just read or written. Raises
        InvalidDocument.
        """
        head = Head.of(fields, self.engine.name(CONVERSATIONS, id), size)
        assert head is not None  # It was validated.
        return head

    # -- What watchers see -------------------------------------------------------------------------

    def remember_own_write(self, id: str, *marks: str, entries: Iterable[Document] = ()) -> None:
        """Remember a write as this store's own, if the store is watched.

        Args:
            id: The conversation.
            marks: As `OwnWrites.remember` takes them.
            entries: The messages that were written.
        """
        if self.own_writes is not None:
            self.own_writes.remember(id, *marks)
            self.own_writes.remember_appended(id, entries)

    def hold_reports(self, id: str) -> AbstractContextManager[None]:
        """Report no change of a conversation to watchers while the body writes it, because the body
        has yet to remember that the write is its own.
        """
        if self.own_writes is None:
            return _UNWATCHED
        return self.own_writes.hold_reports(id)

    def with_own_marked(self, changes: list[Change], cursor: str) -> Changes:
        """Return changes for a caller, with this store's own ones marked."""
        from capsule.engines.changes import Changes

        if self.own_writes is not None:
            changes = self.own_writes.with_own_marked(changes, self.engine.queries().advance)
        return Changes(changes, cursor)
