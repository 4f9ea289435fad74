"""Commands that a person is told to type, in the words of a shell.

What must stay true: each does the same wherever in the repository it is typed. Git names a file from the repository's
top, whatever directory it was started in, and starts its drivers and hooks at the top without saying where that was
(`git pull` hands on no GIT_PREFIX). So a file is named from the top here too, and a store that isn't the top by its
place.
"""

from __future__ import annotations

import os
import shlex

__all__ = ["in_store", "on_file"]


def on_file(words: str, path: str) -> str:
    """A command of git on one file.

    Args:
        words: The command, `git add` for example.
        path: The file, from the repository's top.
    """
    # `:/` is short for `:(top)` (gitglossary(7), pathspec), and takes signs that follow for more of its kind.
    top = ":/" if path[:1].isalnum() else ":(top)"
    return f"{words} -- {shlex.quote(top + path)}"


def in_store(words: str, top: str, path: str) -> str:
    """A command of Capsule in the store of a document.

    Args:
        words: The command, `capsule git setup` for example.
        top: The repository's top.
        path: The document, from there.
    """
    folder = os.path.dirname(os.path.dirname(path))
    return f"{words} --store {shlex.quote(os.path.join(top, folder))}" if folder else words
