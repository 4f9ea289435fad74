"""The Store: the one storage layer of conversations, behind every door.

What must stay true: a write is durable when the method returns. When a method raises, the file is as it was, or
complete. One rule decides who may write. The module reaches bytes only through the storage engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from functools import cached_property
from types import TracebackType
from typing import TYPE_CHECKING, Self

from capsule import locate
from capsule.engines import opening
from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused
from capsule.ids import check_id
from capsule.locks.holder import Holder
from capsule.store import offered
from capsule.store.writing import Writing
from capsule.watch.listeners import Listeners

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.engines.interface import Engine
    from capsule.engines.values import Trashed
    from capsule.locks.locks import Locks
    from capsule.messaging.channels import Channels
    from capsule.messaging.configuration.configuration import Configuration
    from capsule.messaging.conversations import Groups
    from capsule.messaging.mail.delivery import Messages
    from capsule.messaging.notes import Notes
    from capsule.messaging.people.agents import Agents
    from capsule.messaging.people.directory import Directory
    from capsule.messaging.people.projects import Projects
    from capsule.sessions.sessions import Sessions
    from capsule.settings import Settings
    from capsule.store.attributes import Servers, Titles
    from capsule.store.branches import Branches
    from capsule.store.edits import Contexts, Edits
    from capsule.store.forks import Forks
    from capsule.store.merges import Conflicts, Incoming
    from capsule.store.summaries import Summaries
    from capsule.store.trash import Trash, Versions
    from capsule.transfer.exporting import Export
    from capsule.transfer.importing import Import
    from capsule.watch.stream import Event, Watch


class Store(Writing):
    """An open store: one instance, which several threads may use.

    Open one with `Store.open`. A `chat` is exclusive: a save locks it for this instance until `locks.release`, the end
    of `with store.locks.take(id)`, or `close`; conversations of other types have many writers.

    Attributes:
        root: The store's directory.
        settings: The settings in its `capsule.toml`.
        agent: The agent that it acts for; None: the store's owner.
        locks: Locks on conversations.
        branches: The branches of conversations.
        forks, summaries: Conversations that were split off from others; those that sum up others.
        edits, titles: Changes of messages and files that exist; suggested titles.
        context, servers: Project contexts; MCP servers that are switched on or off.
        trash, versions: Deleted conversations and messages; earlier versions.
        conflicts, incoming: Fields that a merge left for a person to decide; versions from other clones.
        agents: The agents that exchange messages.
        projects: The folders that agents work in, and which of them see which.
        groups: Conversations of several agents.
        channels: Conversations that agents find by a name.
        messages: Messages between agents.
        notes: What an agent writes for itself.
        configuration: What files declare of channels, agents and links.
        sessions: Workers that messages wake; for the owner only.
        import_, export: Conversations of other programs, in and out.
    """

    locks: Locks = offered("capsule.locks.locks", "Locks")
    branches: Branches = offered("capsule.store.branches", "Branches")
    forks: Forks = offered("capsule.store.forks", "Forks")
    summaries: Summaries = offered("capsule.store.summaries", "Summaries")
    edits: Edits = offered("capsule.store.edits", "Edits")
    titles: Titles = offered("capsule.store.attributes", "Titles")
    context: Contexts = offered("capsule.store.edits", "Contexts")
    servers: Servers = offered("capsule.store.attributes", "Servers")
    trash: Trash = offered("capsule.store.trash", "Trash")
    versions: Versions = offered("capsule.store.trash", "Versions")
    conflicts: Conflicts = offered("capsule.store.merges", "Conflicts")
    incoming: Incoming = offered("capsule.store.merges", "Incoming")
    agents: Agents = offered("capsule.messaging.people.agents", "Agents")
    projects: Projects = offered("capsule.messaging.people.projects", "Projects")
    groups: Groups = offered("capsule.messaging.conversations", "Groups")
    channels: Channels = offered("capsule.messaging.channels", "Channels")
    messages: Messages = offered("capsule.messaging.mail.delivery", "Messages")
    notes: Notes = offered("capsule.messaging.notes", "Notes")
    configuration: Configuration = offered("capsule.messaging.configuration.configuration", "Configuration")
    sessions: Sessions = offered("capsule.sessions.sessions", "Sessions")
    import_: Import = offered("capsule.transfer.importing", "Import")
    export: Export = offered("capsule.transfer.exporting", "Export")

    def __init__(
        self,
        root: str,
        settings: Settings,
        engine: Engine,
        *,
        keep_locks: bool = True,
        instance: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        folder: str | None = None,
        main_store: Store | None = None,
    ) -> None:
        super().__init__(engine)
        self._whole = engine
        self._main_store = main_store
        self.agent: str | None = None
        self._state_of = lambda object, others: self._directory.state(self.agent, object, others)
        self.root = root
        self.settings = settings
        self._holder = Holder(engine, settings, self._change_unasked, keep_locks=keep_locks, name=instance, user=user)
        self._listeners = Listeners(self)
        #: The stores that act for agents, by agent.
        self._for_agents: dict[str | None, Store] = {}
        if agent is not None:
            from capsule.store.view import AgentView

            # If the agent is to be made, it is the owner who makes it.
            self.agent = check_id(self._directory.identity(agent, folder) or self.agents.identity(agent, folder))
            self.engine = AgentView(self.agent, engine, lambda object, others: self._state_of(object, others))

    @classmethod
    def init(cls, directory: str | os.PathLike[str]) -> list[str]:
        """Make a store of `directory`. Existing files stay as they are.

        Args:
            directory: The store's directory; it is made if it does not exist.

        Returns:
            The paths that were made.

        Raises:
            Refused, StorageFailed: The system did not permit it.

        Cost: making at most five files and directories.
        """
        return locate.ensure_store(directory)

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        keep_locks: bool = True,
        instance: str | None = None,
        user: str | None = None,
        agent: str | None = None,
        folder: str | None = None,
    ) -> Self:
        """Open a store, as an instance of its own.

        Args:
            path: The store's directory. None: the one that the command line finds (`CAPSULE_STORE`, the nearest
                directory upwards with a `capsule.toml`, the user's own store, made on first use).
            keep_locks: Whether the lock that a save to a `chat` takes is kept until `close`.
            instance: The name of a holder whose locks outlive the process.
            user: The user that the locks name. None: the user of this process.
            agent: The agent that the store acts for: it reads and writes what this agent may, and its messages are
                from this agent. Its id, or `name@project`. None: the store's owner.
            folder: The folder where `agent` is meant, as `agents.identity` takes it: in a project, the agent of this
                name there, which is made if need be.

        Raises:
            NotFound: There is no store at `path`, or no such agent in a project.
            InvalidInput: `agent` is no id, or a name that several agents have.
            InvalidDocument: Its `capsule.toml` can't be accepted.

        Cost: reading `capsule.toml`. The index is opened, and built if need be, by the first question that needs it.
        """
        root = locate.find_store(path)
        settings = locate.load_settings(root)
        engine = opening.files(root, settings)
        return cls(
            root, settings, engine, keep_locks=keep_locks, instance=instance, user=user, agent=agent, folder=folder
        )

    @classmethod
    def in_memory(
        cls,
        *,
        keep_locks: bool = True,
        instance: str | None = None,
        user: str | None = None,
        agent: str | None = None,
    ) -> Self:
        """Make a store in the memory of this process, for tests.

        `beside` makes other instances on the same documents. Methods that need files raise `Refused`.

        Args:
            keep_locks, instance, user, agent: As `open` takes them.

        Raises InvalidInput. Cost: none worth mentioning.
        """
        from capsule.settings import Settings

        settings = Settings()
        engine = opening.in_memory(settings)
        return cls("", settings, engine, keep_locks=keep_locks, instance=instance, user=user, agent=agent)

    def beside(
        self,
        *,
        keep_locks: bool = True,
        instance: str | None = None,
        user: str | None = None,
        agent: str | None = None,
    ) -> Self:
        """Open another instance on this store, for a process that serves several clients.

        It has locks and watchers of its own, and uses the files and the index of this store, which must outlive it.

        Args:
            keep_locks, instance, user: As `open` takes them.
            agent: The agent that it acts for. None: the one of this store, if any.

        Raises InvalidInput. Cost: a few objects, and no second index.
        """
        if self.agent is not None:
            agent = self._subject(agent)
        return type(self)(
            self.root,
            self.settings,
            self._whole,
            keep_locks=keep_locks,
            instance=instance,
            user=user,
            agent=agent,
            main_store=self,
        )

    def _subject(self, agent: str | None) -> str:
        """The agent that a call is about: the given one, or the one that the store acts for."""
        agent = self.agent if agent is None else agent
        if agent is None:
            raise InvalidInput("say which agent this is for")
        if self.agent not in (None, agent):
            raise Refused(f"this store acts for {self.agent}, and not for {agent}", path="")
        return agent

    def _acting(self, agent: str | None) -> Store:
        """The store that acts for an agent, or for the owner (None): this one, or one beside it, which is kept."""
        if self.agent == agent:
            return self
        if agent not in self._for_agents:
            other = type(self)(self.root, self.settings, self._whole, agent=agent, main_store=self)
            self._for_agents.setdefault(agent, other)
        return self._for_agents[agent]

    @cached_property
    def _directory(self) -> Directory:
        from capsule.messaging.people.directory import Directory

        return Directory(self._whole) if self._main_store is None else self._main_store._directory

    @property
    def instance_id(self) -> str:
        """The id of this instance."""
        return self._holder.me().instance

    def release(self) -> None:
        """Release the locks of this instance, and keep none from now on; for a process that is about to end.

        Calls of other threads continue, and their saves keep no lock. A named instance keeps its locks.

        Raises nothing. A lock that can't be released expires after its time to live. Cost: copying each locked file.
        """
        self._holder.close()

    def close(self) -> None:
        """Release the locks of this instance, and close its files. A named instance keeps its locks.

        Every watch on the store ends.

        Raises nothing. Cost: copying each locked file.
        """
        self._listeners.close()
        for acting in self._for_agents.values():
            acting.close()
        self._holder.close()
        if self._main_store is not None:
            self.engine.leases.release(self.instance_id)
            return
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def delete(self, id: str) -> Trashed:
        """Move a conversation to the trash. Its file may be damaged.

        Its forks stay, and become forks of its own source. A fork that another instance has locked stays as it is,
        with a warning.

        Args:
            id: The conversation.

        Raises:
            NotFound: There is no such conversation.
            Locked, LockLost: Another instance holds its lock, or took it.

        Cost: bringing the index up to date, to find the forks, and copying each fork.
        """
        from capsule.store.forks import delete_alone

        return delete_alone(self, id)

    def delete_all(self) -> Iterator[tuple[str, Trashed | CapsuleError]]:
        """Move every conversation to the trash, one for each step of the iteration.

        Each step gives the id, and the entry in the trash or the error. A conversation that another instance has
        locked stays; the iteration continues. No fork gets a new source, because the forks are deleted too.

        Raises Refused, StorageFailed. Cost: as `delete` for each conversation, without the search for forks.
        """
        from capsule.store.trash import discard

        for id in self.ids():
            outcome: Trashed | CapsuleError
            try:
                outcome = discard(self, id)
            except NotFound:
                continue  # Another instance deleted it first.
            except CapsuleError as error:
                outcome = error
            yield id, outcome

    def watch(self, since: str | None = None, *, ids: Iterable[str] | None = None, stop: Event | None = None) -> Watch:
        """Watch changes by any process and any editor: `async for change in store.watch()`.

        Any number of loops may watch, in any number of threads and event loops of asyncio (and so of anyio on it).
        Each has its own cursor, and a slow loop does not delay the others. The watch ends with `aclose`, with `stop`,
        and when the store is closed. `Change.own` marks the writes of this store, for the newest 20,000 of them since
        it was first watched.

        Args:
            since: A cursor: the changes after it come first. None: from this call on. That costs as `changes`, so
                in an event loop make the call in a thread when the index may have to be built.
            ids: Only these conversations.
            stop: An event of the loop that ends the watch.

        Raises:
            InvalidInput: `since` is not a cursor, or one of `ids` is not an id.
        """
        return self._listeners.watch(since, ids, stop)

    def wait_for_changes(
        self, since: str | None = None, *, ids: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Changes:
        """Wait for changes after a cursor, and return them. Returns at once if there are changes already.

        Args:
            since: The cursor. None: now.
            ids: Only these conversations.
            timeout_s: Seconds after which it returns no changes, and a cursor to continue from. None: no limit. It also
                returns when the store is closed.

        Raises InvalidInput. Cost: as `changes` for each change; waiting costs next to nothing.
        """
        return self._listeners.wait(since, ids, timeout_s)

    async def await_changes(
        self, since: str | None = None, *, ids: Iterable[str] | None = None, timeout_s: float | None = None
    ) -> Changes:
        """Wait for changes as `wait_for_changes` does, in an event loop. It occupies no thread while it waits.

        Args:
            since, ids, timeout_s: As `wait_for_changes` takes them.

        Raises InvalidInput. Cost: as `wait_for_changes`.
        """
        return await self._listeners.wait_in_loop(since, ids, timeout_s)

    def remember_own(self) -> None:
        """Remember the writes of this store from now on (the newest 20,000), for `Change.own`.

        A store does so by itself as soon as it is watched. Raises nothing. Cost: a little memory.
        """
        self._listeners.remember_own()
