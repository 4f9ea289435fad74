"""The Store without the rooms: opening and closing it, its objects, deleting, and watching changes.

`CoreStore` adds these to the operations of `BaseStore`. Its objects, such as `store.branches`, are
descriptors: their modules are imported when they are first used.

What must stay true: nothing here touches files. The storage engine does. Stores that were opened
beside another one share its engine, and only the main store closes the engine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from importlib import import_module
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from capsule import locate, rooms
from capsule.engines import opening
from capsule.errors import CapsuleError, NotFound, Refused
from capsule.locks.locks import Locks
from capsule.rooms import built_in
from capsule.store.base import BaseStore
from capsule.store.internals import StoreInternals
from capsule.store.watchers import StoreWatchers

if TYPE_CHECKING:
    from capsule.engines.changes import Changes
    from capsule.engines.interface import Engine, Trashed
    from capsule.settings import Settings
    from capsule.store.objects.attributes import McpServerSwitches, Titles
    from capsule.store.objects.branches import Branches
    from capsule.store.objects.edits import Edits, ProjectContexts
    from capsule.store.objects.forks import Forks
    from capsule.store.objects.merges import Conflicts, IncomingVersions
    from capsule.store.objects.summaries import Summaries
    from capsule.store.objects.trash import EarlierVersions, StoreTrash
    from capsule.watch.stream import StopEvent, Watch


class StoreAttribute:
    """A descriptor for an object of a store. Its module is imported when the object is first used.
    Every access, from any thread, gives the same object.

    Args:
        import_path: The class of the object, as `module:name`. Empty: `room` names it.
        room: The room that has the object. Its `room.py` names the class under the name of the
            attribute.
    """

    def __init__(self, import_path: str = "", room: str = "") -> None:
        self._import_path = import_path
        self._room = room

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: Any, owner: type) -> Any:
        if store is None:
            return self
        if self._room:
            object_class = built_in(self._room).objects[self._name]()
        else:
            module, _, name = self._import_path.partition(":")
            object_class = getattr(import_module(module), name)
        return vars(store).setdefault(self._name, store.inner.object_of(object_class))


def core_attribute(module: str, name: str) -> Any:
    """Return a descriptor for an object whose class is in the core, for a typed line in a class."""
    return StoreAttribute(f"{module}:{name}")


def room_attribute(room: str) -> Any:
    """Return a descriptor for an object of a room, for a typed line in a class. Its use raises
    Refused if the room is not installed.
    """
    return StoreAttribute(room=room)


class CoreStore(BaseStore):
    """An open store, without the rooms: one instance, which several threads may use.
    `capsule.Store` adds the rooms.

    Attributes:
        root: The store's directory, or its address in PostgreSQL without a password.
        settings: The settings in its `capsule.toml`.
        agent: The agent that it acts for. None: the store's owner.
        inner: The inner interface, for its own objects and the rooms.
        locks: The locks on its conversations.
    """

    branches: Branches = core_attribute("capsule.store.objects.branches", "Branches")
    forks: Forks = core_attribute("capsule.store.objects.forks", "Forks")
    summaries: Summaries = core_attribute("capsule.store.objects.summaries", "Summaries")
    edits: Edits = core_attribute("capsule.store.objects.edits", "Edits")
    titles: Titles = core_attribute("capsule.store.objects.attributes", "Titles")
    context: ProjectContexts = core_attribute("capsule.store.objects.edits", "ProjectContexts")
    servers: McpServerSwitches = core_attribute(
        "capsule.store.objects.attributes", "McpServerSwitches"
    )
    trash: StoreTrash = core_attribute("capsule.store.objects.trash", "StoreTrash")
    versions: EarlierVersions = core_attribute("capsule.store.objects.trash", "EarlierVersions")
    conflicts: Conflicts = core_attribute("capsule.store.objects.merges", "Conflicts")
    incoming: IncomingVersions = core_attribute("capsule.store.objects.merges", "IncomingVersions")

    root: str
    inner: StoreInternals[Self]
    locks: Locks

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
        main: StoreInternals[Any] | None = None,
    ) -> None:
        self.root = root
        this_store: Any = self  # A `self` in a constructor does not have the type `Self`.

        def open_for(agent: str | None) -> Any:
            return type(this_store)(
                root, settings, engine, keep_locks=keep_locks, agent=agent, main=main or self.inner
            )

        self.inner = StoreInternals(
            this_store,
            engine,
            settings,
            open_for,
            keep_locks=keep_locks,
            instance=instance,
            user=user,
            main=main,
        )
        super().__init__(self.inner)
        self.locks = Locks(self.inner.instance_locks, self.heads)
        if agent is not None:
            # Only now: until then the store acts for the owner, who may have to make the agent.
            self.inner.act_for(agent, folder)
            super().__init__(self.inner)  # Again, with the engine as the agent sees it.

    @classmethod
    def init(cls, directory: str | os.PathLike[str]) -> list[str]:
        """Make a store of `directory`. Existing files stay as they are.

        Args:
            directory: The store's directory, which is made if it does not exist. Or an address in
                PostgreSQL, where the schema is made, or brought to this version.

        Returns:
            The paths that were made.

        Raises:
            Refused, StorageFailed: The system refused a read or a write.

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
            path: The store's directory, or its address in PostgreSQL. None: the one that the
                command line finds (`CAPSULE_STORE`, the nearest directory upwards with a
                `capsule.toml`, the user's own store, made on first use).
            keep_locks: Whether the lock that a save to a `chat` takes is kept until `close`.
            instance: The name of a holder whose locks outlive the process.
            user: The user that the locks name. None: the user of this process.
            agent: The agent that the store acts for: it reads and writes what this agent may, and
                its messages are from this agent. Its id, or `name@project`. None: the store's
                owner.
            folder: The folder of the project in which `agent` is a name, as `agents.identity` takes
                it. The agent is made if need be.

        Raises:
            NotFound: `path` is no store, or the project has no such agent.
            InvalidInput: `agent` is not an id, or a name that several agents have.
            InvalidDocument: Its `capsule.toml` can't be accepted.

        Cost: reading `capsule.toml`. The first query that needs the index opens it, and builds it
        if need be.
        """
        root, settings, engine = locate.open_engine(path)
        return cls(
            root,
            settings,
            engine,
            keep_locks=keep_locks,
            instance=instance,
            user=user,
            agent=agent,
            folder=folder,
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

        `beside` makes other instances on the same documents. Methods that need files raise
        `Refused`.

        Args:
            keep_locks, instance, user, agent: As `open` takes them.

        Raises InvalidInput. Cost: none worth mentioning.
        """
        from capsule.settings import Settings

        settings = Settings()
        engine = opening.in_memory(timeout_s=settings.mutex_timeout_s)
        return cls(
            "", settings, engine, keep_locks=keep_locks, instance=instance, user=user, agent=agent
        )

    def beside(
        self,
        *,
        keep_locks: bool = True,
        instance: str | None = None,
        user: str | None = None,
        agent: str | None = None,
    ) -> Self:
        """Open another instance on this store, for a process that serves several clients.

        It has locks and watchers of its own, and uses the files and the index of this store, which
        must outlive it.

        Args:
            keep_locks, instance, user: As `open` takes them.
            agent: The agent that it acts for. None: the one of this store, if any.

        Raises InvalidInput. Cost: a few objects, and no second index.
        """
        if self.agent is not None:
            agent = self.inner.required_agent(agent)
        return type(self)(
            self.root,
            self.settings,
            self.inner.whole_engine,
            keep_locks=keep_locks,
            instance=instance,
            user=user,
            agent=agent,
            main=self.inner.main or self.inner,
        )

    @property
    def instance_id(self) -> str:
        """The id of this instance."""
        return self.inner.instance_locks.identity.instance

    def read_settings(self) -> str:
        """Read the settings of the store, as its `capsule.toml` has them.

        Raises NotFound, StorageFailed, and Refused if the store acts for an agent. Cost: reading a
        small file.
        """
        return self.engine.toml().decode()

    def set_settings(self, toml: str | bytes, before: str | None = None) -> Settings:
        """Replace the settings of the store. Stores that are open keep the settings that they read.

        Args:
            toml: The new text of `capsule.toml`.
            before: The text that the caller read before. None: any text is replaced.

        Returns:
            The new settings. `unknown` has a problem for each setting that this version does not
            know.

        Raises:
            InvalidDocument: It is no TOML, or has a value that can't be accepted. Nothing was
                written.
            StoreBusy: The settings were changed meanwhile.
            Refused: The store acts for an agent, or the system did not permit it.
            StorageFailed: The system refused a read or a write.

        Cost: writing a small file.
        """
        from capsule import settings

        data = toml.encode("utf-8", "surrogatepass") if isinstance(toml, str) else toml
        expected = self.engine.toml() if before is None else before.encode()
        parsed = settings.parse(data, settings.FILE_NAME)
        self.engine.set_toml(data, expected)
        return parsed

    def release(self) -> None:
        """Release the locks of this instance, and keep none from now on. For a process that is
        about to end.

        Calls of other threads continue, and their saves keep no lock. A named instance keeps its
        locks.

        Raises nothing. A lock that can't be released expires after its time to live. Cost: copying
        each locked file.
        """
        self.inner.instance_locks.close()

    def flush(self) -> int:
        """Make every conversation durable in its own file. A second after an append it may be
        durable in its log alone.

        For a program that reads the files by itself, such as one that copies them.

        Returns:
            The number of conversations that a power cut had left incomplete. They are complete now.

        Raises:
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: a look at each conversation that was written since the last time, and flushing those
        that need it.
        """
        return self.engine.flush()

    def close(self) -> None:
        """Release the locks of this instance, and close its files. A named instance keeps its
        locks.

        Every watch on the store ends.

        Raises nothing. Cost: copying each locked file.
        """
        self.inner.object_of(StoreWatchers).close()
        for store in self.inner.opened_stores.values():
            store.close()
        self.inner.instance_locks.close()
        if self.inner.main is not None:
            self.engine.leases.release(self.instance_id)
            return
        self.engine.close()

    def room(self, name: str) -> Any:
        """Return the room of another package. The room's objects are attributes of the result.

        Args:
            name: The room, as in `rooms` in `capsule.toml`.

        Raises Refused: `rooms` does not have it, or it is not installed. Cost: at first, a search
        through the installed packages.
        """
        if name not in self.settings.rooms:
            raise Refused(
                f"this store has no room {name!r}; add it to `rooms` in its capsule.toml",
                path="",
            )
        key = f"room {name}"
        if key not in vars(self):
            vars(self).setdefault(key, rooms.objects_of(self, rooms.of_others(name)))
        return vars(self)[key]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def delete(self, id: str, *, is_agreed: bool = False) -> Trashed:
        """Move a conversation to the trash. Its file may be damaged.

        An agent deletes only a conversation whose messages are all from it.

        Its forks stay, and become forks of its own source. A fork that another instance has locked
        is not changed, and a warning is logged.

        Args:
            id: The conversation.
            is_agreed: Whether a person agreed. An agent may then delete any chat.

        Raises:
            NotFound: The conversation does not exist.
            Refused: The store acts for an agent that may not delete it.
            Locked, LockLost: Another instance holds its lock, or took it.

        Cost: to find the forks, bringing the index up to date, or one round trip to a database. Then
        copying each fork.
        """
        from capsule.store.objects.forks import delete_and_relink_forks

        return delete_and_relink_forks(self, id, is_agreed=is_agreed)

    def delete_all(self) -> Iterator[tuple[str, Trashed | CapsuleError]]:
        """Move every conversation to the trash, one for each step of the iteration.

        Each step yields the id, and the entry in the trash or the error. If another instance has
        locked a conversation, that one stays, and the iteration continues. No fork gets a new
        source, because the forks are deleted too.

        Raises Refused, StorageFailed. Cost: as `delete` for each conversation, without the search
        for forks.
        """
        from capsule.store.objects.trash import delete_without_forks

        for id in self.ids():
            outcome: Trashed | CapsuleError
            try:
                outcome = delete_without_forks(self, id)
            except NotFound:
                continue  # Another instance deleted it first.
            except CapsuleError as error:
                outcome = error
            yield id, outcome

    def watch(
        self,
        since: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        stop: StopEvent | None = None,
    ) -> Watch:
        """Watch changes by any process and any editor: `async for change in store.watch()`.

        Any number of loops may watch, in any number of threads and event loops of asyncio (and so
        of anyio on it). Each has its own cursor, and a slow loop does not delay the others. The
        watch ends with `aclose`, with `stop`, and when the store is closed. `Change.own` marks the
        writes of this store, for the newest 20,000 of them since it was first watched.

        Args:
            since: A cursor: the changes after it come first. None: from this call on. That costs as
                `changes`, so in an event loop make the call in a thread when the index may have to
                be built.
            ids: Only these conversations.
            stop: An event of the loop that ends the watch.

        Raises:
            InvalidInput: `since` is not a cursor, or one of `ids` is not an id.
        """
        return self.inner.object_of(StoreWatchers).watch(since, ids, stop)

    def wait_for_changes(
        self,
        since: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Changes:
        """Wait for changes after a cursor, and return them. Returns at once if there are changes
        already.

        Args:
            since: The cursor. None: now.
            ids: Only these conversations.
            timeout_s: Seconds after which it returns no changes, and a cursor to continue from.
                None: no limit. It also returns when the store is closed.

        Raises InvalidInput. Cost: as `changes` for each change; waiting costs next to nothing.
        """
        return self.inner.object_of(StoreWatchers).wait(since, ids, timeout_s)

    async def await_changes(
        self,
        since: str | None = None,
        *,
        ids: Iterable[str] | None = None,
        timeout_s: float | None = None,
    ) -> Changes:
        """Wait for changes as `wait_for_changes` does, in an event loop. It occupies no thread
        while it waits.

        Args:
            since, ids, timeout_s: As `wait_for_changes` takes them.

        Raises InvalidInput. Cost: as `wait_for_changes`.
        """
        return await self.inner.object_of(StoreWatchers).wait_in_loop(since, ids, timeout_s)

    def remember_own(self) -> None:
        """Remember the writes of this store from now on (the newest 20,000), for `Change.own`.

        A store does so by itself as soon as it is watched. Raises nothing. Cost: a little memory.
        """
        self.inner.object_of(StoreWatchers).remember_own()
