"""The check before a commit: whether the staged files of a store may be committed.

The filter prevents most problems. The check is for a clone without the filter, for files that were
staged before the set-up, and for `git add --patch`, which writes into the index without a filter.

What must stay true: the check reads the index of this commit, never the files. Each line of the
result names the file and the way out.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from capsule.errors import InvalidDocument
from capsule.format import migrations
from capsule.format.json import codec, locations
from capsule.format.validation import KINDS
from capsule.git.objects import REGULAR, BlobReader, changes, empty_tree
from capsule.git.setup.attributes import file_command, store_command
from capsule.git_program import Git

_DERIVED = ".capsule"


def problems(git: Git) -> list[str]:
    """Return a line for each staged file that must not be committed, and how to continue. Empty:
    everything may be committed.

    Args:
        git: Git, with the environment that it gives its hooks, so that it reads the index of this
            commit.

    Cost: a strict parse of each staged document.
    """
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
