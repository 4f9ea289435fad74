"""Opening the engines: the only module that knows which kinds there are, and where a store of files has its parts.

What must stay true: no existing file is ever overwritten, and nothing is made by opening.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING

from capsule import settings
from capsule.disk.syscalls import Syscalls
from capsule.disk.whole_files import naming, sync_directory
from capsule.engines.files.disk.layout import Directory, Layout
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, Refused

if TYPE_CHECKING:
    from capsule.engines.files.engine import FilesEngine
    from capsule.engines.interface import Document
    from capsule.engines.memory.engine import MemoryEngine


def files(root: str, settings: settings.Settings) -> FilesEngine:
    """The engine of the files below `root`."""
    from capsule.engines.files.engine import FilesEngine
    from capsule.engines.files.storage import FileStorage

    return FilesEngine(FileStorage(root, **settings.of_storage))


def in_memory(documents: Iterable[tuple[str, Document, bytes]] = (), timeout_s: float = 10.0) -> MemoryEngine:
    """An engine in memory, with documents: their kinds, themselves, and their bytes if these matter.

    Args:
        timeout_s: How long to wait for a document that another thread writes, in seconds.
    """
    from capsule.engines.memory.engine import MemoryEngine

    engine = MemoryEngine(timeout_s)
    for kind, document, data in documents:
        engine.store(kind, document["id"], document, data)
    return engine


def make_files(root: str) -> list[str]:
    """Make a store of files; the paths that were made. Raises Refused, StorageFailed."""
    if os.path.isfile(root):
        raise Refused(f"{root} is a file, and a store is a directory; name another place", path=root)
    sys, layout, toml = Syscalls(), Layout(root), os.path.join(root, settings.FILE_NAME)
    wanted = [root, layout.documents(CONVERSATIONS), toml, layout.derived(), layout.derived(".gitignore")]
    missing = [path for path in wanted if not os.path.lexists(path)]
    with naming(root, "make"):
        os.makedirs(root, mode=layout.directory_mode, exist_ok=True)
        layout.ensure_directory(sys, layout.documents(CONVERSATIONS))
        Directory(layout, sys, "mutex").ensure()
        if toml in missing:
            fd = sys.open(toml, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, layout.file_mode)
            try:
                sys.pwrite(fd, settings.TEMPLATE.encode(), 0)
                sys.fsync(fd)
            finally:
                sys.close(fd)
            sync_directory(sys, root)
    return missing


def between_writes(root: str, kind: str, id: str, timeout_s: float) -> bytes | None:
    """A document of a store of files, read under its mutex; None: no store writes it, or it can't be had in time."""
    from capsule.engines.files.storage import FileStorage

    with closing(FileStorage(root)) as storage, suppress(CapsuleError):
        if storage.noted(kind, id) is None:
            return None  # The store never wrote it, so nobody is writing it; and this look leaves no trace.
        with storage.hold(kind, id, timeout_s) as held:
            content = held.read()
        return content[0] if content else None
    return None


@contextmanager
def lock_of(directory: str, folder: str, name: str, timeout_s: float) -> Iterator[None]:
    """A kernel lock by the name of a file in a folder of a directory that is no store. Raises StoreBusy, Refused."""
    from capsule.engines.files.disk.mutex import Mutexes

    sys = Syscalls()
    place = Directory(Layout(directory), sys, around=folder)
    with closing(Mutexes(sys, place)) as mutexes:
        with naming(place.path, "write in"):
            mutex = mutexes.acquire(name, timeout_s)
        try:
            yield
        finally:
            mutexes.release(mutex)
