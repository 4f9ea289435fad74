"""Whether git put the version of a document there that now lies in its place.

Git writes files without asking the store: a checkout of another branch, a pull, a rebase. Such a
version is a decision, though it lacks messages. An editor that saves an old copy unchanged can
leave the very same bytes, and that is none. What must stay true: a version counts as git's only
where HEAD names it and named another one lately, which is handed out, so that the caller sees
whether git replaced anything that is in no commit; nothing here writes; and git runs nothing and
fetches nothing for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from capsule.errors import GitFailed, Refused

if TYPE_CHECKING:
    from capsule.git_program import Git

#: The caller holds a mutex.
_PATIENCE_S = 2.0
#: How many places of HEAD are looked at, and how many different versions in them are read.
_MOVES, _VERSIONS = 50, 8


def replaced(path: str, data: bytes) -> list[bytes] | None:
    """The committed versions of a document that git may have replaced by this one.

    Args:
        path: The document.
        data: What lies there.

    Returns:
        None when `data` is not what the commit has that is checked out. Else the other versions
        that HEAD named lately, by the reflog, the latest first; none when HEAD did not move, as
        after `git checkout -- FILE`.

    Cost: none outside of a repository; else two starts of git, and two seconds at most.
    """
    return _asked(path, lambda git, name: _replaced(git, name, data))


def committed(path: str) -> bytes | None:
    """The version of a document that the commit has which is checked out; None: there is none. Runs
    git.
    """
    contents = _asked(
        path, lambda git, name: _contents(git, [f"HEAD:{name}"], time.monotonic() + _PATIENCE_S)
    )
    return contents[0] if contents else None


def _asked(path: str, ask: Callable[[Git, str], list[bytes] | None]) -> list[bytes] | None:
    """What `ask` learns from git, by the name that the repository has for a document; None: there
    is no repository.
    """
    place = Path(path).resolve()
    top = next((above for above in place.parents if (above / ".git").exists()), None)
    if top is None:
        return None
    from capsule.git_program import Git  # Needed seldom, and subprocess with it.

    try:
        return ask(Git(str(top)), place.relative_to(top).as_posix())
    except (GitFailed, Refused):
        return None


def _replaced(git: Git, name: str, data: bytes) -> list[bytes] | None:
    until = time.monotonic() + _PATIENCE_S
    revisions = ["HEAD", *(f"HEAD@{{{place}}}" for place in range(1, _MOVES))]
    # The exit code is 128 where the reflog is shorter; what comes before the end is printed all the
    # same.
    asked = ("cat-file", "--batch-check=%(objectname) %(objecttype)")
    names = _lines(f"{revision}:{name}" for revision in revisions)
    answer = git.run(*asked, input=names, fine=(0, 128), timeout_s=_PATIENCE_S)
    objects = [line.rpartition(" ")[::2] for line in answer.text.split("\n")]
    blobs = list(dict.fromkeys(name for name, kind in objects if kind == "blob"))
    if objects[0][1] != "blob" or blobs[0] not in _names(data):
        return None
    return _contents(git, blobs[1 : 1 + _VERSIONS], until) if len(blobs) > 1 else []


def _names(data: bytes) -> set[str]:
    """What git may call this content: in either format of objects, and before it wrote line ends
    for Windows.
    """
    from hashlib import sha1, sha256

    blobs = [
        b"blob %d\0%b" % (len(content), content) for content in {data, data.replace(b"\r\n", b"\n")}
    ]
    return {
        hashed(blob, usedforsecurity=False).hexdigest()
        for blob in blobs
        for hashed in (sha1, sha256)
    }


def _contents(git: Git, names: list[str], until: float) -> list[bytes]:
    output = git.run(
        "cat-file", "--batch", input=_lines(names), timeout_s=max(until - time.monotonic(), 0.1)
    ).out
    contents = []
    while output:
        header, _, output = output.partition(b"\n")
        size = header.split(b" ")[-1]
        if size.isdigit():  # Else "missing", as in a partial clone.
            contents.append(output[: int(size)])
            output = output[int(size) + 1 :]
    return contents


def _lines(names: Iterable[str]) -> bytes:
    return "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")
