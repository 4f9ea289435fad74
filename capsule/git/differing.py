"""Two texts as git shows their difference.

What must stay true: git gets texts that were made here, from versions that were read and checked, so that neither a
clone without the drivers nor a store that moved shows anything else; and the person's settings of diff hold, but for
programs and names.

The alternative was `git diff REV -- path` with the textconv given by `-c`: that works only where the attributes are
set up too, starts a Python for each side, reads a file that a splice may be under way in, and finds no path that has
another name in the other commit.
"""

from __future__ import annotations

import os
from tempfile import TemporaryDirectory

from capsule.git.program import Git
from capsule.git.repository import Repository

__all__ = ["difference"]


def difference(
    repository: Repository, name: str, before: tuple[str, bytes], after: tuple[str, bytes], *, coloured: bool = False
) -> bytes:
    """A unified diff; empty when the texts are the same.

    Args:
        repository: The repository whose settings hold.
        name: What the texts are of, as the name of a file.
        before: What the one is called, as the name of a folder, and the text in UTF-8.
        after: The other one, likewise.
        coloured: Whether it is coloured.

    Raises:
        GitFailed: Git failed.
    """
    if before[1] == after[1]:
        return b""
    sides = (f"{before[0]}/{name}", f"{after[0]}/{name}")
    with TemporaryDirectory(prefix="capsule-diff-") as directory:
        for side, (label, text) in zip(sides, (before, after), strict=True):
            os.mkdir(os.path.join(directory, label))
            with open(os.path.join(directory, side), "wb") as file:
                file.write(text)
        colour = f"--color={'always' if coloured else 'never'}"
        # Told of its repository, git knows its settings out there.
        git = Git(directory)
        asking = (f"--git-dir={repository.directory}", "diff", "--no-index", "--no-prefix", "--no-ext-diff", colour)
        return git.run(*asking, "--no-textconv", "--no-renames", "--", *sides, fine=(0, 1)).out
