"""Open the engine of a store, and make new stores.

This is the only module that knows all kinds of engines. Each function imports its kind only when it
is called.

What must stay true: no existing file is ever overwritten. Opening makes nothing but the directories
in which this machine keeps the local documents of stores in a database.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from capsule import settings
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import sync_directory, translate_errors
from capsule.engines.files.disk.store_paths import StoreDirectory, StorePaths
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, Refused

if TYPE_CHECKING:
    from capsule.engines.files.engine import FilesEngine
    from capsule.engines.interface import Document
    from capsule.engines.memory.engine import MemoryEngine
    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.engine import PostgresEngine
    from capsule.engines.postgres.schema import Meta


#: The beginning of an address. A misspelt one counts too: it can have a password, and must not
#: become the name of a directory.
_ADDRESS = re.compile(r"\s*\w+(\+\w+)?:/")


def is_address(location: str | os.PathLike[str]) -> bool:
    """Return whether this names a store in a database, and not a directory. `Address` checks it."""
    return _ADDRESS.match(os.fspath(location)) is not None


def without_password(url: str) -> str:
    """Return the address of a store in a database without its password.

    Raises InvalidInput: it is no address.
    """
    from capsule.engines.postgres.address import Address

    return Address(url).shown


def files(root: str, settings: settings.Settings) -> FilesEngine:
    """Return the engine of the files below `root`."""
    from capsule.engines.files.engine import FilesEngine
    from capsule.engines.files.storage import FileStorage

    return FilesEngine(FileStorage(root, **settings.of_storage))


def in_memory(
    documents: Iterable[tuple[str, Document, bytes]] = (), timeout_s: float = 10.0
) -> MemoryEngine:
    """Return an engine in memory.

    Args:
        documents: The kind, the document and the bytes of each of its documents. Empty bytes: the
            document is encoded.
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """
    from capsule.engines.memory.engine import MemoryEngine

    engine = MemoryEngine(timeout_s)
    for kind, document, data in documents:
        engine.store(kind, document["id"], document, data)
    return engine


def in_database(url: str, state_directory: str) -> tuple[PostgresEngine, settings.Settings]:
    """Return the engine of a store in PostgreSQL, and its settings.

    Args:
        url: Its address.
        state_directory: The directory for the local documents of such stores: how agents are woken
            on this machine, which commands may run.

    Raises NotFound (there is no store), InvalidInput, Refused, StorageFailed.
    """
    from hashlib import sha256

    from capsule.engines.files.storage import FileStorage, LocalFiles
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase
    from capsule.engines.postgres.engine import PostgresEngine

    database = PostgresDatabase(Address(url))
    try:
        meta = schema.meta(database)
        parsed = _parsed(database, meta)
    except CapsuleError:
        database.close()
        raise
    # With the address, as another database can have a store with the same id.
    name = sha256(f"{database.address.place} {meta.store}".encode()).hexdigest()[:32]
    directory = os.path.join(state_directory, "databases", name)
    with translate_errors(directory, "make"):
        os.makedirs(directory, mode=0o700, exist_ok=True)
    local = LocalFiles(FileStorage(directory, **parsed.of_storage))
    return PostgresEngine(database, local, parsed.mutex_timeout_s, directory), parsed


def settings_in_database(url: str) -> settings.Settings:
    """Return the settings of the store at this address. Raises as `in_database`."""
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase

    with closing(PostgresDatabase(Address(url))) as database:
        return _parsed(database, schema.meta(database))


def _parsed(database: PostgresDatabase, meta: Meta) -> settings.Settings:
    return settings.parse(meta.settings.encode(), f"{database.address}: {settings.FILE_NAME}")


def durability(url: str) -> str:
    """Return in words which failures an acknowledged message survives in this database.

    Raises as `in_database`.
    """
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase

    with closing(PostgresDatabase(Address(url))) as database:
        return schema.durability(database)


def make_in_database(url: str, toml: str = settings.TEMPLATE) -> bool:
    """Make a store in PostgreSQL, or upgrade its schema. Return whether anything was changed.

    Args:
        url: Its address.
        toml: The settings of a new store.

    Raises InvalidInput, Refused, StorageFailed.
    """
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase

    with closing(PostgresDatabase(Address(url))) as database:
        return schema.migrate(database, toml)


def make_files(root: str) -> list[str]:
    """Make a store of files. Return the paths that were made. Raises Refused, StorageFailed."""
    if os.path.isfile(root):
        raise Refused(
            f"{root} is a file, and a store is a directory; name another place", path=root
        )
    sys = Syscalls()
    layout = StorePaths(root)
    toml = os.path.join(root, settings.FILE_NAME)
    paths = [
        root,
        layout.documents(CONVERSATIONS),
        toml,
        layout.derived(),
        layout.derived(".gitignore"),
    ]
    missing = [path for path in paths if not os.path.lexists(path)]
    with translate_errors(root, "make"):
        os.makedirs(root, mode=layout.directory_mode, exist_ok=True)
        layout.ensure_directory(sys, layout.documents(CONVERSATIONS))
        StoreDirectory(layout, sys, "mutex").ensure()
        if toml in missing:
            fd = sys.open(
                toml, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, layout.file_mode
            )
            try:
                sys.pwrite(fd, settings.TEMPLATE.encode(), 0)
                sys.fsync(fd)
            finally:
                sys.close(fd)
            sync_directory(sys, root)
    return missing


def read_between_writes(root: str, kind: str, id: str, timeout_s: float) -> bytes | None:
    """Return a document of a store of files, read under its mutex.

    None: no store has written it, or its mutex can't be acquired in time.
    """
    from capsule.engines.files.storage import FileStorage

    with closing(FileStorage(root)) as storage, suppress(CapsuleError):
        if storage.recorded_header(kind, id) is None:
            # No store has written it, so none is writing it now. No mutex file is made.
            return None
        with storage.hold(kind, id, timeout_s) as held_document:
            content = held_document.read()
        return content[0] if content else None
    return None


@contextmanager
def lock_of(directory: str, folder: str, name: str, timeout_s: float) -> Iterator[None]:
    """Hold a kernel lock in a `with` block, in a directory that is no store.

    Args:
        directory: The directory.
        folder: The folder in it that has the lock files.
        name: The name of the lock file.
        timeout_s: How long to wait for another holder, in seconds.

    Raises StoreBusy, Refused.
    """
    from capsule.engines.files.disk.mutex import Mutexes

    sys = Syscalls()
    lock_directory = StoreDirectory(StorePaths(directory), sys, parent=folder)
    with closing(Mutexes(sys, lock_directory)) as mutexes:
        with translate_errors(lock_directory.path, "write in"):
            mutex = mutexes.acquire(name, timeout_s)
        try:
            yield
        finally:
            mutexes.release(mutex)
