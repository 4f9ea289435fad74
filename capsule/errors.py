"""Every error Capsule raises on purpose, and the exit code of each.

    CapsuleError                 root; never raised itself
    +-- StorageFailed      1     the system refused a read or a write (disk full, I/O error)
    +-- InvalidInput       2     an argument, message or setting that can't be accepted
    +-- NotFound           3     no such conversation, message, store
    +-- Locked             4     another instance holds the conversation's lock
    +-- InvalidDocument    5     a file that does not parse, or is no capsule
    +-- Refused            6     the file system or a rule does not permit it
    +-- LockLost           7     the lock this instance held was taken from it
    +-- StoreBusy          8     the mutex of a document could not be had in time
    +-- GitFailed          9     the program git failed, or left it to a person

What must stay true: each class below the root has its own exit code, carries what a program needs as
fields, survives pickling, and says in its message what failed and on what. What to do next is data, a `Remedy`: each
door has its own words for it, a command or a call of a tool.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

__all__ = [
    "CapsuleError",
    "GitFailed",
    "InvalidDocument",
    "InvalidInput",
    "LockLost",
    "Locked",
    "NotFound",
    "Problem",
    "Refused",
    "Remedy",
    "StorageFailed",
    "StoreBusy",
]


#: What can be done about an error. Both doors have words for each.
Action = Literal[
    "list",  # Look which conversations there are.
    "show",  # Read the conversation again.
    "messages",  # Look which messages it has.
    "new",  # Make a conversation.
    "init",  # Make a store in the directory.
    "unlock",  # Wait, or take the lock away.
    "edit",  # Edit the message in a branch of its own.
    "trash",  # Look what is in the trash.
    "repair",  # Have the store looked through and repaired.
    "conflicts",  # Look what merges left to be settled.
    "log",  # Look through the conversation's history in git.
    "set up git",  # Tell git what conversations are.
    "join histories",  # Merge two stores that were begun apart.
]


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about an error.

    Attributes:
        action: What would help.
        on: The id of the conversation, or the directory, that it is done with; empty: none.
    """

    action: Action
    on: str = ""


class CapsuleError(Exception):
    """The root of all errors Capsule raises on purpose.

    Args:
        message: What failed, and on what; one or more lines of plain text.
        remedy: What to do about it; None: the message says it, or there is nothing.
        fields: What a program wants to know of the error; each becomes an attribute.
    """

    exit_code = 1
    #: What the exit code means, in two or three words: the documented table is made of these.
    meaning = "failed"

    def __init__(self, message: str, *, remedy: Remedy | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.fields = fields
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_revive, (type(self), self.message, self.remedy, self.fields))


def _revive(kind: type[CapsuleError], message: str, remedy: Remedy | None, fields: dict[str, Any]) -> CapsuleError:
    return kind(message, remedy=remedy, **fields)


class StorageFailed(CapsuleError):
    """The system refused a read or a write; the document is as it was, or complete.

    Fields: ``path`` (str), ``errno`` (int or None).
    """

    path: str
    errno: int | None


class InvalidInput(CapsuleError):
    """An argument, a message or a setting that can't be accepted; nothing was changed."""

    exit_code = 2
    meaning = "usage"


class NotFound(CapsuleError):
    """No such conversation, message, version or store. Fields: ``id`` (str)."""

    exit_code = 3
    meaning = "not found"
    id: str


class Locked(CapsuleError):
    """Another instance holds the conversation's lock.

    Fields: ``id`` (str), ``holder`` (dict: the lock as it stands in the capsule).
    """

    exit_code = 4
    meaning = "locked by another"
    id: str
    holder: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with a file: where, and what.

    Attributes:
        path: The file, as the caller named it.
        line: Line in the file, from 1; 0 when the problem is the file as a whole.
        column: Column in characters, from 1; 0 likewise.
        where: The field, as ``history[3].role``; empty for the file as a whole.
        what: What is wrong, in words.
    """

    path: str
    line: int
    column: int
    where: str
    what: str

    def __str__(self) -> str:
        place = f"{self.path}:{self.line}:{self.column}" if self.line else self.path
        return f"{place}: {self.where}: {self.what}" if self.where else f"{place}: {self.what}"


class InvalidDocument(CapsuleError):
    """A file that does not parse, or parses and is no document of its kind.

    Fields: ``path`` (str), ``problems`` (tuple of `Problem`, at least one).
    """

    exit_code = 5
    meaning = "damaged or invalid file"
    path: str
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, problems: list[Problem]) -> InvalidDocument:
        """The error for these problems (at least one), worded with all of them, ten at most."""
        shown = [str(problem) for problem in problems[:10]]
        if len(problems) > 10:
            shown.append(f"... and {len(problems) - 10} more")
        return cls("\n".join(shown), path=problems[0].path, problems=tuple(problems))


class Refused(CapsuleError):
    """The file system or a rule of the store does not permit it. Fields: ``path`` (str)."""

    exit_code = 6
    meaning = "refused (permission)"
    path: str


class LockLost(CapsuleError):
    """The lock this instance held was taken or released by another; nothing was changed.

    Fields: ``id`` (str), ``holder`` (dict or None: the lock as it stands in the capsule now).
    """

    exit_code = 7
    meaning = "lock lost"
    id: str
    holder: dict[str, Any] | None


class StoreBusy(CapsuleError):
    """The mutex of a document could not be had in time. Fields: ``id`` (str), ``holder`` (str)."""

    exit_code = 8
    meaning = "store busy (mutex timeout)"
    id: str
    holder: str


class GitFailed(CapsuleError):
    """The program git failed, or came to something that a person has to settle.

    Fields: ``command`` (list of str: git's arguments), ``words`` (str: what git said).
    """

    exit_code = 9
    meaning = "git failed"
    command: list[str]
    words: str
