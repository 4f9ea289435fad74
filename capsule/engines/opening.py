"""Opening the engines: the only module that knows which kinds there are, and where a store of files
has its parts.

What must stay true: no existing file is ever overwritten, and nothing is made by opening, but the
folders in which this machine keeps what belongs to a store in a database.
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


#: Whatever looks like an address is one, or an error: a misspelt one may have a password, which is
#: no name of a folder.
_ADDRESS = re.compile(r"\s*\w+(\+\w+)?:/")


def is_address(place: str | os.PathLike[str]) -> bool:
    """Return whether this names a store in a database, and not a directory. `Address` checks it."""
    return _ADDRESS.match(os.fspath(place)) is not None


def without_password(url: str) -> str:
    """The address of a store in a database as it may be shown: without a password. Raises
    InvalidInput: it is none.
    """
    from capsule.engines.postgres.address import Address

    return Address(url).shown


def files(root: str, settings: settings.Settings) -> FilesEngine:
    """The engine of the files below `root`."""
    from capsule.engines.files.engine import FilesEngine
    from capsule.engines.files.storage import FileStorage

    return FilesEngine(FileStorage(root, **settings.of_storage))


def in_memory(
    documents: Iterable[tuple[str, Document, bytes]] = (), timeout_s: float = 10.0
) -> MemoryEngine:
    """An engine in memory, with documents: their kinds, themselves, and their bytes if these
    matter.

    Args:
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """
    from capsule.engines.memory.engine import MemoryEngine

    engine = MemoryEngine(timeout_s)
    for kind, document, data in documents:
        engine.store(kind, document["id"], document, data)
    return engine


def in_database(url: str, kept: str) -> tuple[PostgresEngine, settings.Settings]:
    """The engine of a store in PostgreSQL, and its settings.

    Args:
        url: Its address.
        kept: The directory for what this machine keeps of such stores: how agents are woken here,
            what may be run.

    Raises NotFound: there is no store; InvalidInput, Refused, StorageFailed.
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
    # By the address too: another database can call itself by the id of this store.
    name = sha256(f"{database.address.place} {meta.store}".encode()).hexdigest()[:32]
    place = os.path.join(kept, "databases", name)
    with translate_errors(place, "make"):
        os.makedirs(place, mode=0o700, exist_ok=True)
    machine = LocalFiles(FileStorage(place, **parsed.of_storage))
    return PostgresEngine(database, machine, parsed.mutex_timeout_s), parsed


def settings_in_database(url: str) -> settings.Settings:
    """The settings of the store at this address. Raises as `in_database`."""
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase

    with closing(PostgresDatabase(Address(url))) as database:
        return _parsed(database, schema.meta(database))


def _parsed(database: PostgresDatabase, meta: Meta) -> settings.Settings:
    return settings.parse(meta.settings.encode(), f"{database.address}: {settings.FILE_NAME}")


def durability(url: str) -> str:
    """What an acknowledged message survives in the database at this address. Raises as
    `in_database`.
    """
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase

    with closing(PostgresDatabase(Address(url))) as database:
        return schema.durability(database)


def make_in_database(url: str, toml: str = settings.TEMPLATE) -> bool:
    """Make a store in PostgreSQL, or bring its schema to this version; whether there was anything
    to do.

    Args:
        url: Its address.
        toml: Its settings, if it is new.

    Raises InvalidInput, Refused, StorageFailed.
    """
    from capsule.engines.postgres import schema
    from capsule.engines.postgres.address import Address
    from capsule.engines.postgres.database import PostgresDatabase

    with closing(PostgresDatabase(Address(url))) as database:
        return schema.migrate(database, toml)


def make_files(root: str) -> list[str]:
    """Make a store of files; the paths that were made. Raises Refused, StorageFailed."""
    if os.path.isfile(root):
        raise Refused(
            f"{root} is a file, and a store is a directory; name another place", path=root
        )
    sys, layout, toml = Syscalls(), StorePaths(root), os.path.join(root, settings.FILE_NAME)
    wanted = [
        root,
        layout.documents(CONVERSATIONS),
        toml,
        layout.derived(),
        layout.derived(".gitignore"),
    ]
    missing = [path for path in wanted if not os.path.lexists(path)]
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
    """A document of a store of files, read under its mutex; None: no store writes it, or it can't
    be had in time.
    """
    from capsule.engines.files.storage import FileStorage

    with closing(FileStorage(root)) as storage, suppress(CapsuleError):
        if storage.recorded_header(kind, id) is None:
            # The store never wrote it, so nobody is writing it; and this look leaves no trace.
            return None
        with storage.hold(kind, id, timeout_s) as held:
            content = held.read()
        return content[0] if content else None
    return None


@contextmanager
def lock_of(directory: str, folder: str, name: str, timeout_s: float) -> Iterator[None]:
    """A kernel lock by the name of a file in a folder of a directory that is no store. Raises
    StoreBusy, Refused.
    """
    from capsule.engines.files.disk.mutex import Mutexes

    sys = Syscalls()
    place = StoreDirectory(StorePaths(directory), sys, parent=folder)
    with closing(Mutexes(sys, place)) as mutexes:
        with translate_errors(place.path, "write in"):
            mutex = mutexes.acquire(name, timeout_s)
        try:
            yield
        finally:
            mutexes.release(mutex)
