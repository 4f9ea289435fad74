"""The programs that git starts: the filter, the merge driver, and the check before a commit.

The filter gets every document on its way into the index, and gives back its clean form. Git starts
one process for a whole command and speaks version 2 of its filter protocol with it
(gitattributes(5), "Long Running Filter Process"). The protocol consists of packets: four hexadecimal
digits with the length of the packet, themselves included, and the content. `0000` is the flush
packet, which ends a list or a content (git's Documentation/technical/protocol-common.txt). Nothing
is read beyond the packets that are asked for. On the way out of the index nothing changes. The
filter handles that direction too, because git applies `required` to both.

The merge driver gets three versions of a document as files, and writes the merged document into the
file of ours. `capsule/format/merge/merge.py` merges the documents.

The check decides whether the staged files of a store may be committed. It is for a clone without the
filter, for files that were staged before the set-up, and for `git add --patch`, which writes into
the index without a filter.

What must stay true:
- The filter ends when git ends, in whatever way that happens. It does not wait long for a lock,
  because the caller of git may hold it.
- A document that does not parse passes the filter unchanged and is reported with line and column.
  The filter cannot know whether git adds a file or only compares it, and `git status` and `git
  checkout` must work while somebody repairs the file. The check refuses it.
- The result of a merge is a valid document in its clean form. If a side can't be read, the result is
  what git itself would have written, with conflict markers. A conflict that a person has to resolve
  makes git stop. Messages name the document by its path in the repository.
- The check reads the index of this commit, never the files. Each line of the result names the file
  and the way out.
- Git starts a program for a file, so each imports only what it needs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import IO, TYPE_CHECKING, Any, NamedTuple

import orjson

from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, Problem, Refused
from capsule.format import migrations
from capsule.format.json import codec, locations
from capsule.format.merge.clean_form import clean
from capsule.format.text.escaping import one_line
from capsule.format.validation import CONVERSATION, KINDS
from capsule.git.attributes import file_command, store_command
from capsule.ids import is_id

if TYPE_CHECKING:
    from capsule.format.merge.annotations import MergeResult
    from capsule.git_program import Git


# -- The filter ------------------------------------------------------------------------------------

FLUSH = b"0000"
#: The most bytes that one packet carries: LARGE_PACKET_DATA_MAX of git.
_MAX_PACKET = 65516


class StreamClosed(Exception):
    """The other side has closed the stream."""


def packets(stream: IO[bytes]) -> list[bytes]:
    """Return the contents of the packets up to the next flush packet. Raises StreamClosed, and
    InvalidInput if the stream has no packets.
    """
    contents: list[bytes] = []
    while True:
        header = stream.read(4)
        if header == FLUSH:
            return contents
        if len(header) < 4:
            raise StreamClosed
        size = -1
        with suppress(ValueError):
            if header.isalnum():  # `int` also accepts signs and blanks.
                size = int(header, 16) - 4
        if not 0 <= size <= _MAX_PACKET:
            raise InvalidInput(
                f"{header!r} is not the start of a packet of git's; only git starts this program"
            )
        contents.append(stream.read(size))
        if len(contents[-1]) < size:
            raise StreamClosed


def text(packet: bytes) -> str:
    """Return the line of text in a packet, such as a path. Bytes that are not UTF-8 are kept as
    surrogates, as in paths.
    """
    return packet.removesuffix(b"\n").decode("utf-8", "surrogateescape")


def packed(*lines: str) -> bytes:
    """Return the packets of a list of lines, with its flush packet."""
    packet_list = [_packet(f"{line}\n".encode("utf-8", "surrogateescape")) for line in lines]
    return b"".join(packet_list) + FLUSH


def content(data: bytes) -> bytes:
    """Return the packets of a content of any size, with its flush packet."""
    starts = range(0, len(data), _MAX_PACKET)
    return b"".join(_packet(data[start : start + _MAX_PACKET]) for start in starts) + FLUSH


def _packet(data: bytes) -> bytes:
    return b"%04x%b" % (len(data) + 4, data)


#: Returns the clean form of a content. Gets the content, and its path in the repository. Raises
#: `CapsuleError`.
Cleaner = Callable[[bytes, str], bytes]

#: Seconds to wait for a writer whose append git may have read half written. An append takes a
#: thousandth of that.
_LOCK_WAIT_S = 0.25
#: The file that marks a store. A constant here, so that the storage layer need not be loaded.
_SETTINGS = "capsule.toml"
#: The beginning of the text that the diff driver makes of a conversation. `git blame` passes that
#: text to the filter.
_READABLE = b"conversation "
_VERSION = "version=2"
#: The list before a content. A second list after the content could change the status, and is empty.
_SUCCESS = packed("status=success")
_CAPABILITIES = ("capability=clean", "capability=smudge")


def serve_filter(
    incoming: IO[bytes],
    outgoing: IO[bytes],
    clean_form: Cleaner,
    report_error: Callable[[str], None],
) -> None:
    """Filter documents for git until it closes its end of the stream.

    Args:
        incoming, outgoing: The streams from and to git.
        clean_form: Returns the clean form of a document.
        report_error: Gets the messages of errors, which git's protocol can't transport.

    Raises:
        InvalidInput: The other side is not git, or uses another version of the protocol.
        BrokenPipeError: Git has ended.
    """
    try:
        _shake_hands(incoming, outgoing)
        while True:
            request = dict(text(line).partition("=")[::2] for line in packets(incoming))
            data = b"".join(packets(incoming))
            outgoing.write(_response(request, data, clean_form, report_error))
            outgoing.flush()
    except StreamClosed:
        return


def _shake_hands(incoming: IO[bytes], outgoing: IO[bytes]) -> None:
    """Agree on the version of the protocol, and on the directions that are filtered."""
    welcome, *versions = map(text, packets(incoming) or [b""])
    if welcome != "git-filter-client" or _VERSION not in versions:
        raise InvalidInput(
            "this program speaks version 2 of git's filter protocol; only git starts it"
        )
    outgoing.write(packed("git-filter-server", _VERSION))
    outgoing.flush()
    offered = list(map(text, packets(incoming)))
    outgoing.write(packed(*(entry for entry in _CAPABILITIES if entry in offered)))
    outgoing.flush()


def _response(
    request: dict[str, str], data: bytes, clean_form: Cleaner, report_error: Callable[[str], None]
) -> bytes:
    """Return the packets for one request. `clean` is the way into the index, `smudge` the way out
    of it.
    """
    path = request.get("pathname", "")
    command = request.get("command")
    try:
        if command == "clean":
            filtered = clean_form(data, path)
        elif command == "smudge":
            filtered = data
        else:
            raise InvalidInput(f"{path}: git asks for {command!r}, which was not offered")
    except CapsuleError as error:
        report_error(f"{error.message}\n{path}: not filtered")
        return packed("status=error")
    return _SUCCESS + content(filtered) + FLUSH


def cleaner(top: str, report_error: Callable[[str], None]) -> Cleaner:
    """Return the cleaner of the repository at `top`. `report_error` gets a message about each
    document that does not parse.
    """

    def clean_form(data: bytes, path: str) -> bytes:
        kind = kind_of(path)
        try:
            return clean(data, path, kind)
        except InvalidDocument as error:
            if data.startswith(_READABLE):
                return data
            # Git may have read the file during a write.
            complete = _read_complete(os.path.join(top, path), kind)
            if complete is not None and complete != data:
                return clean_form(complete, path)
            report_error(
                f"{error.message}\n{path}: passed unchanged, and must not be committed; repair "
                "it, or run: capsule doctor"
            )
            return data

    return clean_form


def kind_of(path: str) -> str:
    """Return the kind of the document at a path of the repository, by its folder."""
    for folder in path.split("/")[-2:-1]:
        if folder in KINDS:
            return folder
    return CONVERSATION.name


def _read_complete(path: str, kind: str) -> bytes | None:
    """Return the document at a path, read under its mutex, which git does not take. None: no store
    writes it, or another process holds the mutex too long.
    """
    folder, name = os.path.split(path)
    root = os.path.dirname(folder)
    id = name.removesuffix(".json")
    if os.path.basename(folder) != kind or not is_id(id):
        return None
    if not os.path.isfile(os.path.join(root, _SETTINGS)):
        return None
    from capsule.engines.opening import read_between_writes

    return read_between_writes(root, kind, id, _LOCK_WAIT_S)


# -- The merge driver ------------------------------------------------------------------------------

Document = dict[str, Any]
#: The longest value in a message, in characters.
_MAX_VALUE = 60


class MergeFiles(NamedTuple):
    """The files that git gives the driver: the common ancestor (an empty file if there is none),
    ours and theirs.
    """

    base: str
    ours: str
    theirs: str


def merged_version(
    base: Document | None, ours: Document, theirs: Document, path: str, kind: str
) -> tuple[bytes, MergeResult]:
    """Return the merge of two versions, in the clean form, and its conflicts and notes. Raises
    InvalidDocument.
    """
    # Imported here, because the filter needs no merge.
    from capsule.format.merge.fields import merge_fields
    from capsule.format.merge.merge import merge

    if KINDS[kind].has_entries:
        result = merge(base, ours, theirs, path)
    else:
        result = merge_fields(KINDS[kind], base, ours, theirs)
    return clean(codec.encode(result.document), path, kind), result


def merge_files(
    files: MergeFiles, path: str, marker_size: int, directory: str
) -> tuple[bool, list[str]]:
    """Merge into the file of ours.

    Args:
        files: The three files.
        path: The document's path in the repository.
        marker_size: The length of git's conflict markers.
        directory: The directory where git runs the driver.

    Returns:
        Whether git may continue, and the lines of the message.

    Raises:
        Refused: A file can't be read or written.
        GitFailed: A side can't be read, and git could not do its own merge either.
    """
    kind = kind_of(path)
    base_data = _read(files.base)
    our_data = _read(files.ours)
    their_data = _read(files.theirs)
    try:
        base = _document(base_data, path, "the common ancestor", kind)
        ours = _document(our_data, path, "ours", kind)
        theirs = _document(their_data, path, "theirs", kind)
        if ours is None or theirs is None:
            raise InvalidDocument.of([Problem(path, 0, 0, "", "one side is an empty file")])
        _ensure_one_document([side for side in (base, ours, theirs) if side is not None], path)
        data, result = merged_version(base, ours, theirs, path, kind)
    except CapsuleError as error:
        _merge_as_text(files, marker_size, directory)
        lines = error.message.split("\n")
        lines.append(
            f"{path}: not merged by Capsule; resolve git's own merge, line by line, in the file"
        )
        return False, lines
    try:
        with open(files.ours, "wb") as file:
            file.write(data)
    except OSError as error:
        raise Refused(
            f"{files.ours}: can't be written: {error.strerror}", path=files.ours
        ) from error
    return not result.conflicts, _message(result, path, kind, directory)


def _document(content: bytes, path: str, side: str, kind: str) -> Document | None:
    """Return the document of a side. None: the file is empty, as git gives it if a side has none.
    Raises InvalidDocument, with the name of the side.
    """
    if not content:
        return None
    try:
        document = codec.decode(content, path)
        KINDS[kind].check(document, path, content)
        return document
    except InvalidDocument as error:
        problems = [
            replace(problem, what=f"{problem.what} (in {side})") for problem in error.problems
        ]
        raise InvalidDocument.of(problems) from None


def _ensure_one_document(sides: list[Document], path: str) -> None:
    """Check that these are versions of one document. Git takes a new fork with a deleted source for
    a renamed file (also with `no-renames` in the strategy `ort` of git 2.39). Raises
    InvalidDocument.
    """
    ids = dict.fromkeys(str(side.get("id")) for side in sides)
    if len(ids) > 1:
        reason = (
            f"these are different documents ({', '.join(map(one_line, ids))}); git took one for "
            "the other, renamed; undo it with: git merge --abort, and merge again with: git merge "
            "-X find-renames=100%"
        )
        raise InvalidDocument.of([Problem(path, 0, 0, "", reason)])


def _message(result: MergeResult, path: str, kind: str, directory: str) -> list[str]:
    """Return the lines of the message about a merge: its notes and conflicts, and what to do."""
    id = one_line(str(result.document.get("id")))
    name = f"{KINDS[kind].noun} {id}"
    if KINDS[kind].has_entries:
        title = one_line(str(result.document.get("title") or ""))
        name = f'{name} "{title}"'
    lines = [f"{name}: {note}" for note in result.notes]
    for conflict in result.conflicts:
        field = one_line(conflict.field)
        values = " and ".join(_shortened(value) for value, _ in conflict.values)
        lines.append(
            f"{name}: both sides changed {field}, to {values}; {_shortened(conflict.kept)} is "
            "used for now"
        )
    if result.conflicts:
        advice = "resolve it by hand"
        if KINDS[kind].has_entries:
            command = store_command(f"capsule git resolve {id}", directory, path)
            advice = f"resolve it with: {command}"
        lines.append(f"{path}: {advice}, then: {file_command('git add', path)}")
    return lines


def _shortened(value: Any) -> str:
    """Return a value in one line, truncated. A text is in quotes."""
    if value is None:
        return "nothing"
    text = one_line(value if isinstance(value, str) else orjson.dumps(value).decode())
    if len(text) > _MAX_VALUE:
        text = f"{text[: _MAX_VALUE - 3]}..."
    return f'"{text}"' if isinstance(value, str) else text


def _merge_as_text(files: MergeFiles, marker_size: int, directory: str) -> None:
    """Merge the files line by line, as git does without a driver."""
    from capsule.git_program import Git  # Needed seldom, and slow to load.

    labels = ("-L", "ours", "-L", "base", "-L", "theirs")
    paths = (files.ours, files.base, files.theirs)
    # The exit code is the number of conflicts. It is 255 for a binary file, which stays unchanged.
    Git(directory).run(
        "merge-file", f"--marker-size={marker_size}", *labels, "--", *paths, ok_codes=range(256)
    )


def _read(path: str) -> bytes:
    """Return the content of a file. Raises Refused."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Refused(f"{path}: can't be read: {error.strerror}", path=path) from error


# -- The check before a commit ---------------------------------------------------------------------

_DERIVED = ".capsule"


def problems_of_commit(git: Git) -> list[str]:
    """Return a line for each staged file that must not be committed, and how to continue. Empty:
    everything may be committed.

    Args:
        git: Git, with the environment that it gives its hooks, so that it reads the index of this
            commit.

    Cost: a strict parse of each staged document.
    """
    # Imported here, because only this program of the three runs git.
    from capsule.git.plumbing import REGULAR, BlobReader, changes, empty_tree

    top = git.run("rev-parse", "--show-toplevel").text
    lines: list[str] = []
    base = git.head() or empty_tree(git)
    with BlobReader(git) as blobs:
        for raw in changes(git, "diff-index", "--cached", "--diff-filter=d", base):
            path, mode, blob = raw.entry
            folder, name = _location(top, path)
            reason = ""
            if folder == _DERIVED:
                reason = "is derived from the conversations, and must not be committed"
            elif folder and name.startswith(".") and name.endswith(".tmp"):
                reason = "is a file that is being written, and must not be committed"
            elif folder and name.endswith(".json") and mode not in REGULAR:
                reason = "is not a file; a store accepts no link instead of a document"
            elif folder and name.endswith(".json"):
                data = blobs.read(blob) or b""
                lines += _document_problems(data, top, path, folder, name.removesuffix(".json"))
            if reason:
                lines.append(f"{path}: {reason}: {file_command('git rm --cached', path)}")
    if lines:
        lines.append(
            "nothing was committed; to commit the staged files unchanged, run: git commit "
            "--no-verify"
        )
    return lines


def _location(top: str, path: str) -> tuple[str, str]:
    """Return the folder of a store that a path is in, and the file's name. The folder is the kind
    of a document, or the one of derived files. Both are empty if the path is in no store.
    """
    parts = path.split("/")
    for index in range(len(parts) - 1, 0, -1):
        folder = parts[index - 1]
        may_be_document = folder in KINDS and index == len(parts) - 1
        if folder == _DERIVED or may_be_document:
            settings = os.path.join(top, *parts[: index - 1], "capsule.toml")
            if os.path.isfile(settings):
                return folder, parts[-1]
    return "", ""


def _document_problems(data: bytes, top: str, path: str, kind: str, id: str) -> Iterator[str]:
    """Yield the lines about a staged document: it does not parse, has another id than its file, or
    has an active lock.
    """
    next_step = f"repair it, and then: {file_command('git add', path)}"
    try:
        document = codec.decode(data, path)
        if not migrations.is_newer(document):
            KINDS[kind].check(document, path, data)
            if document["id"] != id:
                line, column = locations.locate(data, ("id",))
                yield (
                    f"{path}:{line}:{column}: id: is {document['id']!r}, but the file's name "
                    f"says {id!r}; {next_step}"
                )
    except InvalidDocument as error:
        yield from error.message.split("\n")
        yield f"{path}: {next_step}"
        return
    metadata = document.get("metadata")
    lock = metadata.get("lock") if isinstance(metadata, dict) else None
    if isinstance(lock, dict) and lock.get("active"):
        holder = lock.get("name") or lock.get("user") or lock.get("instanceId") or "somebody"
        yield (
            f"{path}: is staged with the lock of {holder}, which other clones would take for "
            "theirs; "
            f"run: {store_command('capsule git setup', top, path)}, and then: "
            f"{file_command('git add', path)}"
        )
