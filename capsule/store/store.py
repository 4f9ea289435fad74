"""The Store: the one storage layer of conversations, behind every door.

What must stay true: whatever a method returns after a write is durable; whatever it raises, the file is as it was
or complete; and the same rule of who may write is asked by all of them. The module reaches bytes only through
the storage engine.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from capsule import locate
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.format.head import Head
from capsule.format.message import check_message
from capsule.ids import check_id
from capsule.locks.holder import HeldLock, Holder
from capsule.locks.policy import LockState
from capsule.store.branches import Branching
from capsule.store.change import Conversation, unasked
from capsule.store.conflicts import Conflicts
from capsule.store.contexts import Contexts
from capsule.store.creation import Creating
from capsule.store.edits import Editing
from capsule.store.forks import Forking
from capsule.store.idempotency import appended, keyed_message
from capsule.store.incoming import Receiving
from capsule.store.listeners import Watching
from capsule.store.lists import Listing
from capsule.store.pages import Paging
from capsule.store.search import Searching
from capsule.store.summaries import Summarizing
from capsule.store.versions import Restoring

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.format.models import Message
    from capsule.settings import Settings

T = TypeVar("T")


class Store(
    Creating,
    Watching,
    Listing,
    Paging,
    Searching,
    Contexts,
    Branching,
    Forking,
    Receiving,
    Restoring,
    Editing,
    Conflicts,
    Summarizing,
):
    """An open store: one instance, which several threads may use.

    Open one with `Store.open`. A `chat` is exclusive: a save locks it for this instance until `unlock`, the end of
    `with store.lock(id)`, or `close`; conversations of other types have many writers.

    Attributes:
        root: The store's directory.
        settings: What its `capsule.toml` says.
    """

    def __init__(
        self,
        root: str,
        settings: Settings,
        engine: Engine,
        *,
        keep_locks: bool = True,
        instance: str | None = None,
        user: str | None = None,
    ) -> None:
        self.root = root
        self.settings = settings
        super().__init__(engine)
        self._holder = Holder(engine, settings, self._change_unasked, keep_locks=keep_locks, name=instance, user=user)

    @classmethod
    def init(cls, directory: str | os.PathLike[str]) -> list[str]:
        """Make a store of `directory`. What is there already stays as it is.

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
    ) -> Self:
        """Open a store, as an instance of its own.

        Args:
            path: The store's directory. None: the one that the command line finds (`CAPSULE_STORE`, the nearest
                directory upwards with a `capsule.toml`, the user's own store, made on first use).
            keep_locks: Whether the lock that a save to a `chat` takes is kept until `close`.
            instance: The name of a holder whose locks outlive the process.
            user: The user that the locks name. None: the user of this process.

        Raises:
            NotFound: There is no store at `path`.
            InvalidDocument: Its `capsule.toml` can't be accepted.

        Cost: reading `capsule.toml`. The index is opened, and built if need be, by the first question that needs it.
        """
        root = locate.find_store(path)
        settings = locate.load_settings(root)
        storage = FileStorage(root, **settings.of_storage)
        return cls(root, settings, FilesEngine(storage), keep_locks=keep_locks, instance=instance, user=user)

    @classmethod
    def in_memory(cls, *, keep_locks: bool = True, instance: str | None = None, user: str | None = None) -> Self:
        """Make a store in the memory of this process, which ends with it; for tests.

        `beside` makes other instances on the same documents. Methods that need files raise `Refused`.

        Args:
            keep_locks, instance, user: As `open` takes them.

        Raises nothing. Cost: none worth mentioning.
        """
        from capsule.engines.memory import MemoryEngine
        from capsule.settings import Settings

        settings = Settings()
        engine = MemoryEngine(settings.mutex_timeout_s)
        return cls("", settings, engine, keep_locks=keep_locks, instance=instance, user=user)

    def beside(self, *, keep_locks: bool = True, instance: str | None = None, user: str | None = None) -> Self:
        """Open another instance on this store, for a process that acts for many.

        It has locks and watchers of its own, and uses the files and the index of this store, which must outlive it.

        Args:
            keep_locks, instance, user: As `open` takes them.

        Raises nothing. Cost: a few objects; a store opened anew would have an index of its own.
        """
        other = type(self)(self.root, self.settings, self.engine, keep_locks=keep_locks, instance=instance, user=user)
        other._main_store = self
        return other

    @property
    def instance_id(self) -> str:
        """The id of this instance."""
        return self._holder.me().instance

    def release(self) -> None:
        """Release the locks of this instance, and keep none from now on; for a process that is about to end.

        The calls of other threads go on. A save is then made without a lock that stays. A named instance keeps its
        locks.

        Raises nothing; a lock that can't be released is left to its time to live. Cost: copying each locked file.
        """
        self._holder.close()

    def close(self) -> None:
        """Release the locks of this instance, and close its files. A named instance keeps its locks.

        Everybody who watches the store is told that it ends.

        Raises as `release`. Costs as `release`.
        """
        self._end_watching()
        self._holder.close()
        if self._main_store is not None:
            self.engine.withdraw(self.instance_id)
            return
        self.engine.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # -- Writing -------------------------------------------------------------------------------------------------

    def _change_unasked(self, id: str, action: Callable[[Conversation], T]) -> T:
        return self._change(id, action, unasked)

    def append(self, id: str, *, role: str = "user", content: str, **fields: Any) -> Message:
        """Append one message; it is durable when this returns.

        Args:
            id: The conversation.
            role: `user`, `assistant`, `system` or `tool`.
            content: The text.
            fields: Further fields, by their names in the format or in the model (`from_`, `tool_calls`). `parent` is
                the id of the message it answers (None: it answers none); without it, the end of the active branch.

        Returns:
            The message as written, with its id, its time, and `at`, its position.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The message can't be accepted, or its parent is no message there.
            Locked, LockLost: Another instance holds the conversation, or took it.
            InvalidDocument: The file does not parse; it is left as it is.
            StoreBusy, Refused, StorageFailed: The system did not let it.

        Cost: two pwrites and an fdatasync, whatever the conversation's size; holds its mutex meanwhile. Where somebody
            switched to another branch, also a look back to where its own messages begin, once for each open store.
        """
        checked = [check_message({"role": role, "content": content, **fields})]
        at, entries = self._change(id, lambda conversation: conversation.append(checked))
        from capsule.format.models import Message

        return Message.model_validate(entries[0]).placed(at)

    def append_many(self, id: str, messages: Iterable[Mapping[str, Any] | Message]) -> list[Message]:
        """Append messages in one write: all are durable when this returns, or none is there.

        Args:
            id: The conversation.
            messages: Mappings or `Message` models. If there are none, nothing happens.

        Returns and raises as `append`. Cost: one fdatasync.
        """
        at, entries = self.append_entries(id, messages)
        if not entries:
            return []
        from capsule.format.models import Message

        return [Message.model_validate(entry).placed(at + i) for i, entry in enumerate(entries)]

    def append_entries(
        self, id: str, messages: Iterable[Mapping[str, Any] | Message]
    ) -> tuple[int, list[dict[str, Any]]]:
        """Append as `append_many` does, without making models of the messages.

        To make models, pydantic is imported, which takes longer than a command's whole append.

        Args:
            id: The conversation.
            messages: As `append_many` takes them.

        Returns:
            The place of the first message, and the messages as they stand in the file.

        Raises and costs as `append_many`.
        """
        checked = [check_message(message) for message in messages]
        if not checked:
            return 0, []
        return self._change(id, lambda conversation: conversation.append(checked))

    def append_once(
        self, id: str, key: str, *, role: str = "user", content: str, **fields: Any
    ) -> tuple[Message, bool]:
        """Append one message, unless it was appended under this key before, by any process, however long ago.

        Args:
            id: The conversation.
            key: Chosen by the caller for this one message; a retry gives it again, with the same message.
            role, content, fields: As `append`.

        Returns:
            The message as written, and whether it was there already.

        Raises as `append`; also
            InvalidInput: The key was used for another message.

        Cost: as `append`, and once per process and version of the file's head a look through its bytes; a retry
            costs reading the file.
        """
        message = keyed_message(check_id(id), key, {"role": role, "content": content, **fields})

        def act(conversation: Conversation) -> tuple[int, dict[str, Any], bool]:
            before = appended(conversation, message)
            if before is not None:
                return *before, True
            at, entries = conversation.append([message])
            return at, entries[0], False

        at, entry, repeated = self._change(id, act)
        from capsule.format.models import Message

        return Message.model_validate(entry).placed(at), repeated

    # -- Locks ---------------------------------------------------------------------------------------------------

    def lock(self, id: str, *, client: str | None = None, agent: str | None = None) -> HeldLock:
        """Lock a conversation for this instance, now; the lock ends with a `with` block, `unlock` or `close`.

        Args:
            id: The conversation.
            client, agent: The program and the agent that it is for, which the lock then names.

        Raises as `append`. Cost: copying the file, in the kernel.
        """
        return self._holder.lock(check_id(id), client, agent)

    def unlock(self, id: str, *, force: bool = False) -> bool:
        """Release a conversation's lock, without changing the conversation.

        Args:
            id: The conversation.
            force: Release it also if another instance holds it.

        Returns:
            False if there was no lock.

        Raises:
            Locked: Another instance holds it, and `force` is not given.
            NotFound, InvalidDocument, StoreBusy, Refused, StorageFailed: As `append`.

        Cost: copying the file.
        """
        return self._holder.unlock(check_id(id), force=force)

    def locks(self) -> Iterator[LockState]:
        """List every active lock of the store, with the state of its holder. Raises and costs as `heads`."""
        return (state for state in map(self.lock_state, self.heads()) if state is not None)

    def lock_state(self, head: Head) -> LockState | None:
        """Say whether the holder of the lock in a head is alive. None: the head has no active lock.

        Args:
            head: A head, as `head` or `heads` gives it.

        Raises nothing. Cost: one test of a kernel lock.
        """
        return self._holder.state_of(head) if head.lock else None
