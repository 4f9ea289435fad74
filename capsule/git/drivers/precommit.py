"""The check before a commit: whether what is staged below a store may be committed.

It is for a clone without the filter, for what was staged before the set-up, and for `git add
--patch`, which writes into the index past every filter. What must stay true: the check reads the
index that this commit is made of, never the files; each line names the file and the way out.
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
    """What must not be committed, a line each, and how to go on; none when all is well.

    `git` has the environment that git gives its hooks, so that it reads the index of this commit.

    Cost: a strict parse of each staged document.
    """
    top = git.run("rev-parse", "--show-toplevel").text
    lines: list[str] = []
    base = git.head() or empty_tree(git)
    with BlobReader(git) as blobs:
        for raw in changes(git, "diff-index", "--cached", "--diff-filter=d", base):
            path, mode, blob = raw.entry
            kind, name = _place(top, path)
            reason = ""
            if kind == _DERIVED:
                reason = "is derived from the conversations, and must not be committed"
            elif kind and name.startswith(".") and name.endswith(".tmp"):
                reason = "is a file that is being written, and must not be committed"
            elif kind and name.endswith(".json"):
                if mode in REGULAR:
                    lines += _faults(
                        blobs.read(blob) or b"", top, path, kind, name.removesuffix(".json")
                    )
                else:
                    reason = "is not a file; a store accepts no link instead of a document"
            if reason:
                lines.append(f"{path}: {reason}: {file_command('git rm --cached', path)}")
    if lines:
        lines.append(
            "nothing was committed; to commit the staged files unchanged, run: git commit "
            "--no-verify"
        )
    return lines


def _place(top: str, path: str) -> tuple[str, str]:
    """The kind of a document (or what is derived) and the file's name; empty when the path lies in
    no store.
    """
    parts = path.split("/")
    for at in range(len(parts) - 1, 0, -1):
        folder = parts[at - 1]
        is_ours = folder == _DERIVED or (folder in KINDS and at == len(parts) - 1)
        if is_ours and os.path.isfile(os.path.join(top, *parts[: at - 1], "capsule.toml")):
            return folder, parts[-1]
    return "", ""


def _faults(data: bytes, top: str, path: str, kind: str, id: str) -> Iterator[str]:
    again = f"repair it, and then: {file_command('git add', path)}"
    try:
        document = codec.decode(data, path)
        if not migrations.is_newer(document):
            KINDS[kind].check(document, path, data)
            if document["id"] != id:
                line, column = locations.locate(data, ("id",))
                yield (
                    f"{path}:{line}:{column}: id: is {document['id']!r}, but the file's name "
                    f"says {id!r}; {again}"
                )
    except InvalidDocument as error:
        yield from error.message.split("\n")
        yield f"{path}: {again}"
        return
    about = document.get("metadata")
    lock = about.get("lock") if isinstance(about, dict) else None
    if isinstance(lock, dict) and lock.get("active"):
        holder = lock.get("name") or lock.get("user") or lock.get("instanceId") or "somebody"
        yield (
            f"{path}: is staged with the lock of {holder}, which other clones would take for "
            "theirs; "
            f"run: {store_command('capsule git setup', top, path)}, and then: "
            f"{file_command('git add', path)}"
        )
