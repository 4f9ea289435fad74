"""Find the files of an import: on the disk, in zips, in a stream.

In a folder, all folders are entered that are not hidden, and the hidden ones in which programs are
known to keep conversations. A single import and `import --follow` enter the same folders. A packed
file is replaced by the files in it.

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


#: The variables of the environment that replace a usual folder.
_FOLDER_VARIABLES = {
    "~/.claude/": "CLAUDE_CONFIG_DIR",
    "~/.codex/": "CODEX_HOME",
    "~/.config/": "XDG_CONFIG_HOME",
    "~/.local/share/": "XDG_DATA_HOME",
}


@cache
def _program_folders() -> frozenset[str]:
    """Return the folders in which programs keep conversations, such as `.specstory/history`."""
    folders = set()
    for format in formats().values():
        for place in format.places:
            parts = place.removeprefix("~/").split("/")[:-1]
            folders.add("/".join(takewhile(lambda part: "*" not in part, parts)))
    return frozenset(folders)


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
        for usual_folder, variable in _FOLDER_VARIABLES.items():
            folder = environment.get(variable)
            if folder and place.startswith(usual_folder):
                inner = place.removeprefix(usual_folder)
                new_place = os.path.join(escape(os.path.abspath(folder)), inner)
                places.setdefault(new_place, new_place)
    return list(places.values())


def walk(top: str | Path, folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """Return a folder and the folders in it, sorted, each with the names of its files.

    Args:
        top: The folder that is imported. `is_entered` decides about hidden folders in it.
        folder: This folder, or one in it.
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
    """Return whether the files of a folder are imported.

    They are, if no folder on the path is hidden, or if a program keeps conversations there.

    Args:
        folder: The folder.
        top: The folder that is imported.
        on_the_way: Whether a folder counts too if such a folder may be in it.
    """
    parts = Path(os.path.relpath(folder, top)).parts
    hidden = "/".join(dropwhile(lambda part: not part.startswith(".") or part == "..", parts))
    if not hidden:
        return True
    for program_folder in _program_folders():
        if f"{hidden}/".startswith(f"{program_folder}/"):
            return True
        if on_the_way and program_folder.startswith(f"{hidden}/"):
            return True
    return False


#: The depth of zips in zips, and the largest such zip, in bytes.
_MAX_DEPTH = 3
_MAX_INNER_BYTES = 1 << 28
#: A zip, or a file in it, may unpack to this size in bytes, or to this multiple of its own size.
_HARMLESS_BYTES = 1 << 24
_MAX_RATIO = 200
_MAX_MEMBERS = 200_000
#: The largest window of a file in Zstandard, in bytes.
_MAX_WINDOW = 1 << 27
#: The part of such a file that is unpacked at once, in bytes. It becomes 32 MB at most.
_PACKED_CHUNK = 1 << 10
#: The header before each file in a zip: its flags, its compression, its packed size, and the
#: lengths of its name and of its extra fields.
_HEADER = struct.Struct("<6x2H8xI4x2H")
#: The flags of a file in a zip: it is encrypted, and its sizes follow its content.
_ENCRYPTED = 1
_SIZES_FOLLOW = 8
#: A path in a zip that leads out of it.
_OUTER_PATH = r"(^|[/\\])\.\.([/\\]|$)|^[A-Za-z]:|\0"

OpenFile = Callable[[Path], IO[bytes]]


def _matching(names: list[str], name: str, pattern: str) -> Iterator[str]:
    """Return the names that match a pattern relative to the folder of a name."""
    full_pattern = pattern
    if "/" in name:
        full_pattern = f"{os.path.dirname(name)}/{pattern}"
    full_pattern = os.path.normpath(full_pattern)
    depth = full_pattern.count("/")
    for candidate in names:
        if candidate.count("/") == depth and fnmatchcase(candidate, full_pattern):
            yield candidate


def from_disk(path: Path) -> IO[bytes]:
    """Open a file for reading. Raises OSError."""
    return path.open("rb")


def files_at(
    path: str | os.PathLike[str], problems: Problems, open_file: OpenFile = from_disk
) -> Iterator[SourceFile]:
    """Return the files at a path: the file, or those of a folder and its folders as `walk` says.

    Args:
        path: The file or folder.
        problems: Gets refused files and damage.
        open_file: Opens a file.

    Raises:
        NotFound: Nothing is at the path.

    Cost: listing the folder.
    """
    start = Path(path)
    if not start.exists():
        raise NotFound(f"there is nothing at {start}", path=str(start))
    if not start.is_dir():
        yield replace(on_disk(start, problems, open_file), is_named=True)
        return
    top = start.resolve()
    for folder, names in walk(start, start):
        for name in names:
            file = Path(folder, name)
            if file.is_symlink() and not file.resolve().is_relative_to(top):
                problems.add(str(file), "refused: the link leads out of the folder")
            elif file.is_file():
                yield on_disk(file, problems, open_file)


def on_disk(path: Path, problems: Problems, open_file: OpenFile = from_disk) -> SourceFile:
    """Return a file on disk. The arguments are those of `files_at`."""

    def matching(pattern: str) -> Iterator[SourceFile]:
        parents = re.match(r"(?:\.\./)*", pattern)[0]  # type: ignore[index]  # It matches the empty text.
        top = Path(os.path.normpath(path.parent / parents))
        candidates: list[Path] = []
        # A pattern may have an id of the source that can't be the name of a file.
        with suppress(OSError, ValueError):
            candidates = sorted(top.glob(pattern[len(parents) :]))
        for candidate in candidates:
            with suppress(OSError):  # It may be deleted meanwhile.
                if candidate.is_file() and candidate.resolve().is_relative_to(top.resolve()):
                    yield on_disk(candidate, problems, open_file)

    # JSON has no name that is not UTF-8.
    name = os.fsencode(path).decode("utf-8", "backslashreplace")
    return SourceFile(
        name=name,
        size=path.stat().st_size,
        opened=lambda: open_file(path),
        problems=problems,
        path=path,
        matching=matching,
    )


def is_stream(path: str | os.PathLike[str]) -> bool:
    """Return whether a path is a pipe or a device, which can be read once and may have no end."""
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)


@contextmanager
def spooled(stream: SourceFile, has_value: Callable[[SourceFile], bool]) -> Iterator[SourceFile]:
    """Copy a stream, which can be read once, to a temporary file, and return that.

    A stream may have no end. It is refused, and its file is empty, if no value begins in the first
    64 MB of it.

    Args:
        stream: The stream.
        has_value: Returns whether a file with the first bytes of the stream begins with something
            that can be read.
    """
    with NamedTemporaryFile(prefix="capsule-import-") as copy:
        source = replace(stream, opened=lambda: from_disk(Path(copy.name)), is_named=True)
        is_checked = False
        for chunk in stream.chunks():
            copy.write(chunk)
            if is_checked or copy.tell() < MAX_VALUE_BYTES:
                continue
            is_checked = True
            if not has_value(_copied(source, copy)):
                size = f"{MAX_VALUE_BYTES >> 20} MB"
                source.tell(f"refused: no conversation begins in the first {size} of this stream")
                copy.seek(0)
                copy.truncate()
                break
        yield _copied(source, copy)


def _copied(file: SourceFile, copy: IO[bytes]) -> SourceFile:
    """Return a temporary copy of a file, with the name of the file and the files beside it."""
    copy.flush()
    source = on_disk(Path(copy.name), file.problems)
    return replace(source, name=file.name, matching=file.matching, is_named=file.is_named)


def unpacked(file: SourceFile, depth: int = 1) -> Iterator[SourceFile]:
    """Return the files in a packed file, or the file itself if it is not packed.

    Args:
        file: The file.
        depth: The number of packed files around the content, with this one.
    """
    if not file.is_packed:
        yield file
    elif depth > _MAX_DEPTH:
        file.tell(f"refused: a zip inside {_MAX_DEPTH} others")
    elif file.head.startswith(ZSTD_MAGIC):
        yield from _decompressed(file, depth)
    else:
        yield from _unzipped(file, depth)


def _unzipped(file: SourceFile, depth: int) -> Iterator[SourceFile]:
    """Return the files in a zip. If its directory is missing, read the headers before the files."""
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
    """Return the content of a file in Zstandard, as far as it can be read.

    It has the name of the file and the files beside it.
    """
    import zstandard  # Only old rollouts of Codex need it.

    with NamedTemporaryFile(prefix="capsule-import-") as copy:
        try:
            with file.opened() as data:
                packed = data.read(_PACKED_CHUNK)
                while packed:  # Appended data is a frame of its own.
                    frame = zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
                    while packed and not frame.eof:
                        copy.write(frame.decompress(packed))
                        if _is_bomb(copy.tell(), file.size):
                            file.tell("refused: it unpacks to far more than its size")
                            return
                        packed = frame.unused_data or data.read(_PACKED_CHUNK)
                    if not frame.eof:
                        raise EOFError("the end is missing")
        except (zstandard.ZstdError, *READ_ERRORS) as error:
            file.tell(f"can't be unpacked to its end: {error}")
        yield from unpacked(_copied(file, copy), depth + 1)


def _without_directory(file: SourceFile, data: IO[bytes], depth: int) -> Iterator[SourceFile]:
    """Return the files in a zip that was cut, as far as they can be read.

    The files are copied to a new zip, up to the first one that can't be unpacked.
    """
    data.seek(0)
    with NamedTemporaryFile(prefix="capsule-import-") as copy:
        with (
            suppress(zlib.error),
            zipfile.ZipFile(copy, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        ):
            _copy_members(data, archive, file.size)
        yield from unpacked(_copied(file, copy), depth)


def _copy_members(data: IO[bytes], archive: zipfile.ZipFile, packed_size: int) -> None:
    """Copy the files of a zip without its directory to an archive.

    A header before each file has its name. Stop at a file that is encrypted, packed in another way,
    or stored without its size. Raises zlib.error if a file is damaged or unpacks to far more than
    `packed_size`.
    """
    size = 0
    names: set[str] = set()
    while True:
        header = data.read(_HEADER.size)
        if len(header) != _HEADER.size or not header.startswith(ZIP_MAGIC[0]):
            return
        flags, method, stored_size, name_length, extra_length = _HEADER.unpack(header)
        name = data.read(name_length).decode("utf-8", "replace")
        data.seek(extra_length, os.SEEK_CUR)
        is_deflated = method == zipfile.ZIP_DEFLATED
        has_size = method == zipfile.ZIP_STORED and not flags & _SIZES_FOLLOW
        if name in names or flags & _ENCRYPTED or not (is_deflated or has_size):
            return
        names.add(name)
        with archive.open(name, "w", force_zip64=True) as out:
            for piece in _inflated(data) if is_deflated else _stored(data, stored_size):
                size += out.write(piece)
                if _is_bomb(size, packed_size):
                    raise zlib.error
        if flags & _SIZES_FOLLOW:  # Their length is one of four.
            following = data.read(24)
            next_header = max(following.find(ZIP_MAGIC[0]), 0)
            data.seek(next_header - len(following), os.SEEK_CUR)


def _inflated(data: IO[bytes]) -> Iterator[bytes]:
    """Return the content of a deflated file in chunks, and leave the position at its end."""
    inflate = zlib.decompressobj(-zlib.MAX_WBITS)
    while not inflate.eof:
        chunk = inflate.unconsumed_tail or data.read(CHUNK_BYTES)
        if not chunk:
            break
        yield inflate.decompress(chunk, CHUNK_BYTES)
    data.seek(-len(inflate.unused_data), os.SEEK_CUR)


def _stored(data: IO[bytes], size: int) -> Iterator[bytes]:
    """Return the next `size` bytes in chunks."""
    remaining = size
    while remaining:
        piece = data.read(min(remaining, CHUNK_BYTES))
        if not piece:
            return
        remaining -= len(piece)
        yield piece


def _members(file: SourceFile, archive: zipfile.ZipFile, depth: int) -> Iterator[SourceFile]:
    """Return the files in a zip that are not refused, sorted by their names."""
    all_infos = archive.infolist()
    unpacked_size = sum(info.file_size for info in all_infos)
    if len(all_infos) > _MAX_MEMBERS or _is_bomb(unpacked_size, file.size):
        file.tell("refused: it unpacks to far more than its size")
        return
    infos: dict[str, zipfile.ZipInfo] = {}
    for info in all_infos:
        if info.is_dir() or info.filename.startswith("__MACOSX/"):
            continue
        reason = _refusal(info)
        if reason:
            file.problems.add(f"{file.name}/{info.filename}", reason)
        else:
            infos[info.filename] = info
    names = sorted(infos)

    def member_named(name: str) -> SourceFile:
        return SourceFile(
            name=f"{file.name}/{name}",
            size=infos[name].file_size,
            opened=lambda: archive.open(infos[name]),
            problems=file.problems,
            matching=lambda pattern: map(member_named, _matching(names, name, pattern)),
        )

    for name in names:
        member = member_named(name)
        if not member.head.startswith(ZIP_MAGIC):
            yield from unpacked(member, depth)
        elif member.size > _MAX_INNER_BYTES:
            member.tell(f"refused: a zip in a zip with more than {_MAX_INNER_BYTES >> 20} MB")
        else:
            with NamedTemporaryFile(prefix="capsule-import-") as copy:
                for chunk in member.chunks():
                    copy.write(chunk)
                yield from unpacked(_copied(member, copy), depth + 1)


def _refusal(info: zipfile.ZipInfo) -> str:
    """Return why a file in a zip is refused. Empty: it is not."""
    if info.filename.startswith(("/", "\\")) or re.search(_OUTER_PATH, info.filename):
        return "refused: the path leads out of the zip"
    if stat.S_ISLNK(info.external_attr >> 16):
        return "refused: it is a link"
    if info.flag_bits & _ENCRYPTED:
        return "refused: it is encrypted"
    if _is_bomb(info.file_size, info.compress_size):
        return "refused: it unpacks to far more than its size"
    return ""


def _is_bomb(unpacked_size: int, packed_size: int) -> bool:
    return unpacked_size > _HARMLESS_BYTES and unpacked_size > _MAX_RATIO * max(packed_size, 1)
