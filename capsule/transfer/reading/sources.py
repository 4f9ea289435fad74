"""Find the files of an import: on the disk, in zips, in a stream.

Of a folder all folders are entered that are not hidden, and those in which programs are known to
keep conversations. A single import and `import --follow` enter the same folders.

Invariants: nothing is unpacked to a path that an archive names. Nothing outside the given folder is
read. No file takes more memory than a chunk. A file that is refused is reported by its name.
"""

from __future__ import annotations

import os
import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cache
from glob import escape
from itertools import dropwhile, takewhile
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import IO, TYPE_CHECKING

from capsule.errors import NotFound
from capsule.transfer.reading.files import (
    CHUNK_BYTES,
    READ_ERRORS,
    ZIP_MAGIC,
    ZSTD_MAGIC,
    Problems,
    SourceFile,
)
from capsule.transfer.reading.json_stream import MAX_VALUE_BYTES
from capsule.transfer.registry import formats

if TYPE_CHECKING:
    from capsule.transfer.interface import Format


#: The variables of the environment that name another folder in place of a usual one.
_MOVED = {
    "~/.claude/": "CLAUDE_CONFIG_DIR",
    "~/.codex/": "CODEX_HOME",
    "~/.config/": "XDG_CONFIG_HOME",
    "~/.local/share/": "XDG_DATA_HOME",
}


@cache
def _known() -> frozenset[str]:
    """The folders in which programs keep conversations, each from where it begins:
    `.specstory/history`.
    """
    folders = (
        place.removeprefix("~/").split("/")[:-1]
        for format in formats().values()
        for place in format.places
    )
    return frozenset("/".join(takewhile(lambda part: "*" not in part, parts)) for parts in folders)


def places_of(format: Format, environment: Mapping[str, str]) -> list[str]:
    """Return the patterns of the files that a program keeps on this machine, each once.

    Args:
        format: The format of the program. Its usual places begin with `~/`.
        environment: The variables of the environment, which may move a place. Both places are
            returned then.
    """
    places: dict[str, str] = {}
    for place in format.places:
        places.setdefault(os.path.expanduser(place), place)
        for usual, variable in _MOVED.items():
            folder = environment.get(variable)
            if folder and place.startswith(usual):
                moved = os.path.join(escape(os.path.abspath(folder)), place.removeprefix(usual))
                places.setdefault(moved, moved)
    return list(places.values())


def walked(top: str | Path, folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """A folder in `top` and those in it, sorted, each with the names of its files; hidden ones only
    as `is_entered`.
    """
    for path, folders, names in os.walk(folder):
        folders.sort()
        if is_entered(path, top):
            yield path, sorted(names)
        elif is_entered(path, top, on_the_way=True):
            yield path, []
        else:
            folders.clear()


def is_entered(folder: str, top: str | Path, *, on_the_way: bool = False) -> bool:
    """Whether the files of a folder are imported: no folder on the way is hidden, or a program
    keeps them there.

    `top` is the folder that was given, and with `on_the_way` a folder counts too in which there may
    be such a folder.
    """
    parts = Path(os.path.relpath(folder, top)).parts
    hidden = "/".join(dropwhile(lambda part: not part.startswith(".") or part == "..", parts))
    if not hidden or any(f"{hidden}/".startswith(f"{known}/") for known in _known()):
        return True
    return on_the_way and any(known.startswith(f"{hidden}/") for known in _known())


#: How deep zips may lie in zips, and how large such a zip may be, in bytes.
_DEEPEST, _LARGEST_INNER = 3, 1 << 28
#: A zip, or a file in it, may not unpack to more than this many times its size, if it is larger
#: than this.
_MOST_TIMES, _HARMLESS = 200, 1 << 24
_MOST_MEMBERS = 200_000
#: The largest window of a file in Zstandard, and how much of it is unpacked at once: to 32 MB at
#: most, in bytes.
_WINDOW, _PIECE = 1 << 27, 1 << 10
#: Before each file in a zip: of it the flags, how it is packed, its size so, and the lengths of its
#: name and of more.
_HEADER = struct.Struct("<6x2H8xI4x2H")

OpenFile = Callable[[Path], IO[bytes]]


def _matching(names: list[str], name: str, path: str) -> Iterator[str]:
    """The names that match a pattern relative to the folder of a name."""
    pattern = os.path.normpath(f"{os.path.dirname(name)}/{path}" if "/" in name else path)
    depth = pattern.count("/")
    return (other for other in names if other.count("/") == depth and fnmatchcase(other, pattern))


def from_disk(path: Path) -> IO[bytes]:
    """A file, opened for reading. Raises OSError."""
    return path.open("rb")


def files_at(
    path: str | os.PathLike[str], problems: Problems, open_file: OpenFile = from_disk
) -> Iterator[SourceFile]:
    """The files at a path: the file, or those of a folder and its folders as `walked` finds them.

    `problems` takes what is refused or damaged. Raises NotFound if there is nothing. Cost: listing
    the folder.
    """
    given = Path(path)
    if not given.exists():
        raise NotFound(f"there is nothing at {given}", path=str(given))
    if not given.is_dir():
        yield replace(on_disk(given, problems, open_file), is_named=True)
        return
    top = given.resolve()
    for folder, names in walked(given, given):
        for name in names:
            file = Path(folder, name)
            if file.is_symlink() and not file.resolve().is_relative_to(top):
                problems.add(str(file), "refused: the link leads out of the folder")
            elif file.is_file():
                yield on_disk(file, problems, open_file)


def on_disk(path: Path, problems: Problems, open_file: OpenFile = from_disk) -> SourceFile:
    """A file on disk. The arguments are those of `files_at`."""

    def matching(pattern: str) -> Iterator[SourceFile]:
        ups = re.match(r"(?:\.\./)*", pattern)[0]  # type: ignore[index]  # It matches the empty text.
        top = Path(os.path.normpath(path.parent / ups))
        others: list[Path] = []
        with suppress(
            OSError, ValueError
        ):  # A pattern may have an id of the source, which is no name of a file.
            others = sorted(top.glob(pattern[len(ups) :]))
        for other in others:
            with suppress(OSError):  # It is gone by now.
                if other.is_file() and other.resolve().is_relative_to(top.resolve()):
                    yield on_disk(other, problems, open_file)

    name = os.fsencode(path).decode(
        "utf-8", "backslashreplace"
    )  # JSON has no name that is not UTF-8.
    return SourceFile(name, path.stat().st_size, lambda: open_file(path), problems, path, matching)


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a pipe or a device, which can be read only once and may have
    no end.
    """
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextmanager
def spooled(stream: SourceFile, has_value: Callable[[SourceFile], bool]) -> Iterator[SourceFile]:
    """Copy a stream, which can be read once, to a temporary file, and give that.

    A stream may have no end. It is refused, and its file is empty, if no value begins in the first
    64 MB of it.

    Args:
        stream: The stream.
        has_value: Whether something that can be read begins in a file with the first bytes of the
            stream.
    """
    with NamedTemporaryFile(prefix="capsule-import-") as copy:
        source = replace(stream, opened=lambda: from_disk(Path(copy.name)), is_named=True)
        is_checked = False
        for chunk in stream.chunks():
            copy.write(chunk)
            if not is_checked and copy.tell() >= MAX_VALUE_BYTES:
                is_checked = True
                if not has_value(_copied(source, copy)):
                    source.tell(
                        f"refused: no conversation begins in the first {MAX_VALUE_BYTES >> 20} MB of this "
                        "stream"
                    )
                    copy.seek(0)
                    copy.truncate()
                    break
        yield _copied(source, copy)


def _copied(file: SourceFile, copy: IO[bytes]) -> SourceFile:
    """A temporary copy of a file, which keeps the name of the file and the files beside it."""
    copy.flush()
    copied = on_disk(Path(copy.name), file.problems)
    return replace(copied, name=file.name, matching=file.matching, is_named=file.is_named)


def opened(file: SourceFile, depth: int = 1) -> Iterator[SourceFile]:
    """The file; of a zip, the files in it; of one in Zstandard, what is in it."""
    if not file.is_packed:
        yield file
    elif depth > _DEEPEST:
        file.tell(f"refused: a zip inside {_DEEPEST} others")
    elif file.head.startswith(ZSTD_MAGIC):
        yield from _decompressed(file, depth)
    else:
        try:
            with file.opened() as data:
                try:
                    archive = zipfile.ZipFile(data)
                except zipfile.BadZipFile as error:
                    file.tell(f"the end of the zip, with its directory, is missing: {error}")
                    yield from _without_directory(file, data, depth)
                else:
                    yield from _members(file, archive, depth)
        except READ_ERRORS as error:
            file.tell(f"the zip can't be read: {error}")


def _decompressed(file: SourceFile, depth: int) -> Iterator[SourceFile]:
    """What is in a file in Zstandard, as far as it goes, under the same name and beside the same
    files.
    """
    import zstandard  # Only old rollouts of Codex need it.

    with NamedTemporaryFile(prefix="capsule-import-") as copy:
        try:
            with file.opened() as data:
                packed = data.read(_PIECE)
                while packed:  # What was appended is a frame of its own.
                    frame = zstandard.ZstdDecompressor(max_window_size=_WINDOW).decompressobj()
                    while packed and not frame.eof:
                        copy.write(frame.decompress(packed))
                        if _is_bomb(copy.tell(), file.size):
                            file.tell("refused: it unpacks to far more than its size")
                            return
                        packed = frame.unused_data or data.read(_PIECE)
                    if not frame.eof:
                        raise EOFError("the end is missing")
        except (zstandard.ZstdError, *READ_ERRORS) as error:
            file.tell(f"can't be unpacked to its end: {error}")
        yield from opened(_copied(file, copy), depth + 1)


def _without_directory(file: SourceFile, data: IO[bytes], depth: int) -> Iterator[SourceFile]:
    """The files in a zip that was cut, as far as they go: each has a header before its
    content too.
    """
    data.seek(0)
    with NamedTemporaryFile(prefix="capsule-import-") as copy:
        with (
            suppress(zlib.error),
            zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            size, names = 0, set[str]()
            while (header := data.read(_HEADER.size)).startswith(ZIP_MAGIC[0]) and len(
                header
            ) == _HEADER.size:
                flags, method, packed, length, extra = _HEADER.unpack(header)
                name = data.read(length).decode("utf-8", "replace")
                data.seek(extra, os.SEEK_CUR)
                is_packed = method == zipfile.ZIP_DEFLATED
                if (
                    name in names
                    or flags & 1
                    or not (is_packed or (method == zipfile.ZIP_STORED and not flags & 8))
                ):
                    break  # Encrypted, packed in another way, or of unknown size.
                names.add(name)
                with archive.open(name, "w", force_zip64=True) as out:
                    for piece in _unpacked(data) if is_packed else _pieces(data, packed):
                        size += out.write(piece)
                        if _is_bomb(size, file.size):
                            raise zlib.error
                if flags & 8:  # Sizes follow, in one of four lengths.
                    after = data.read(24)
                    data.seek(max(after.find(ZIP_MAGIC[0]), 0) - len(after), os.SEEK_CUR)
        yield from opened(_copied(file, copy), depth)


def _unpacked(data: IO[bytes]) -> Iterator[bytes]:
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    while not inflate.eof and (chunk := inflate.unconsumed_tail or data.read(CHUNK_BYTES)):
        yield inflate.decompress(chunk, CHUNK_BYTES)
    data.seek(-len(inflate.unused_data), os.SEEK_CUR)


def _pieces(data: IO[bytes], size: int) -> Iterator[bytes]:
    while size and (piece := data.read(min(size, CHUNK_BYTES))):
        size -= len(piece)
        yield piece


def _members(file: SourceFile, archive: zipfile.ZipFile, depth: int) -> Iterator[SourceFile]:
    infos: dict[str, zipfile.ZipInfo] = {}
    every = archive.infolist()
    if len(every) > _MOST_MEMBERS or _is_bomb(sum(info.file_size for info in every), file.size):
        file.tell("refused: it unpacks to far more than its size")
        return
    for info in every:
        name = f"{file.name}/{info.filename}"
        if info.is_dir() or info.filename.startswith("__MACOSX/"):
            continue
        if info.filename.startswith(("/", "\\")) or re.search(
            r"(^|[/\\])\.\.([/\\]|$)|^[A-Za-z]:|\0", info.filename
        ):
            file.problems.add(name, "refused: the path leads out of the zip")
        elif stat.S_ISLNK(info.external_attr >> 16):
            file.problems.add(name, "refused: it is a link")
        elif info.flag_bits & 1:
            file.problems.add(name, "refused: it is encrypted")
        elif _is_bomb(info.file_size, info.compress_size):
            file.problems.add(name, "refused: it unpacks to far more than its size")
        else:
            infos[info.filename] = info
    names = sorted(infos)

    def made(name: str) -> SourceFile:
        return SourceFile(
            f"{file.name}/{name}",
            infos[name].file_size,
            lambda: archive.open(infos[name]),
            file.problems,
            matching=lambda path: (made(other) for other in _matching(names, name, path)),
        )

    for name in names:
        member = made(name)
        if not member.head.startswith(ZIP_MAGIC):
            yield from opened(member, depth)
        elif member.size > _LARGEST_INNER:
            member.tell(f"refused: a zip in a zip with more than {_LARGEST_INNER >> 20} MB")
        else:
            with NamedTemporaryFile(prefix="capsule-import-") as copy:
                for chunk in member.chunks():
                    copy.write(chunk)
                yield from opened(_copied(member, copy), depth + 1)


def _is_bomb(size: int, packed: int) -> bool:
    return size > _HARMLESS and size > _MOST_TIMES * max(packed, 1)
