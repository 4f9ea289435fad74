"""Contents that git has, one after another, from one process.

What must stay true: nothing is read before it is asked for, and the process ends with the `with` block, whatever
ended that.
"""

from __future__ import annotations

import subprocess
from types import TracebackType
from typing import IO, Self

from capsule.errors import GitFailed
from capsule.git.program import Git

__all__ = ["Blobs"]


class Blobs:
    """The contents of a repository, by `git cat-file --batch` (git-cat-file(1), "BATCH OUTPUT").

    Args:
        git: Git, in the repository.
    """

    def __init__(self, git: Git) -> None:
        self._git = git
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def read(self, name: str) -> bytes | None:
        """The content of a blob; None when there is none of that name.

        Args:
            name: Its hash, or `REVISION:path`; one with a line end in it names nothing here.

        Raises:
            GitFailed: Git ended.
            Refused: There is no program `git`.
        """
        if "\n" in name:
            return None
        asking, answering = self._pipes()
        try:
            asking.write(name.encode("utf-8", "surrogateescape") + b"\n")
            asking.flush()
            told = answering.readline()
        except BrokenPipeError:
            told = b""
        if not told.endswith(b"\n"):
            what = f"git cat-file ended in {self._git.directory}"
            raise GitFailed(what, command=["cat-file", "--batch"], words="")
        _, kind, size = (*told[:-1].rsplit(b" ", 2), b"", b"")[:3]
        if not size.isdigit():
            return None  # "missing", or "ambiguous".
        data = answering.read(int(size) + 1)[:-1]
        return data if kind == b"blob" else None

    def _pipes(self) -> tuple[IO[bytes], IO[bytes]]:
        if self._process is None:
            self._process = self._git.start("cat-file", "--batch", errors=subprocess.DEVNULL)
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        return self._process.stdin, self._process.stdout
