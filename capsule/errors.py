"""Every error that Capsule raises on purpose, and the exit code of each.

    CapsuleError                 root; never raised itself
    +-- StorageFailed      1     the system refused a read or a write (disk full, I/O error)
    +-- InvalidInput       2     an argument, message or setting that can't be accepted
    +-- NotFound           3     no such conversation, message, store
    +-- Locked             4     another instance holds the conversation's lock
    +-- InvalidDocument    5     a file that does not parse, or is no capsule
    +-- Refused            6     the file system or a rule does not permit it
    +-- LockLost           7     this instance lost the lock that it held
    +-- StoreBusy          8     the wait for a document's mutex timed out
    +-- GitFailed          9     git failed, or a person has to decide

What must stay true: each class below the root has its own exit code, has fields for programs, and
can be pickled. Its message names the operation that failed, and the id or path. The next step is
data, a `Remedy`. Each door writes it as a command or as a tool call.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

#: The next step after an error. The command line and the MCP server have words for each.
Action = Literal[
    "list",  # List the conversations.
    "show",  # Read the conversation again.
    "messages",  # List its messages.
    "new",  # Make a conversation.
    "init",  # Make a store in the directory.
    "move",  # Move the agent into a project.
    "unlock",  # Wait, or release the lock by force.
    "edit",  # Edit the message in a branch of its own.
    "trash",  # List the trash.
    "webhook",  # Make a webhook of the name.
    "copy",  # Copy the store into one of files.
    # Update Capsule, or delete the derived files after the newer version has flushed the store.
    "update",
    "migrate",  # Bring the tables of the store to this version.
    "repair",  # Examine and repair the store.
    "conflicts",  # List the conflicts of merges.
    "log",  # Read the conversation's history in git.
    "set up git",  # Set up git for conversations.
    "join histories",  # Merge two stores without a common ancestor.
]


#: The message of `InvalidDocument` lists at most this many problems.
_MAX_LISTED = 10


class Remedy(NamedTuple):
    """The next step after an error.

    Attributes:
        action: The step.
        on: The conversation's id, or the directory, that it applies to. Empty: none.
    """

    action: Action
    on: str = ""


class CapsuleError(Exception):
    """The root of all errors that Capsule raises on purpose.

    Args:
        message: The failure, with the id or path, as one or more lines of plain text.
        remedy: The next step. None: it is in the message, or does not exist.
        fields: Values for programs. Each becomes an attribute.

    Attributes:
        message: The failure.
        remedy: The next step. None: it is in the message, or does not exist.
        fields: The values for programs.
    """

    message: str
    remedy: Remedy | None
    fields: dict[str, Any]
    exit_code = 1
    #: The meaning of the exit code in two or three words, for the documented table.
    meaning = "failed"

    def __init__(self, message: str, *, remedy: Remedy | None = None, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.fields = fields
        self.__dict__.update(fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return (_revive, (type(self), self.message, self.remedy, self.fields))


def _revive(
    error_class: type[CapsuleError], message: str, remedy: Remedy | None, fields: dict[str, Any]
) -> CapsuleError:
    """Make an error again from its pickled parts."""
    return error_class(message, remedy=remedy, **fields)


class StorageFailed(CapsuleError):
    """The system refused a read or a write. The document is unchanged, or complete.

    Attributes:
        path: The file or directory.
        errno: The system's number of the error. None: it reported none.
    """

    path: str
    errno: int | None


class InvalidInput(CapsuleError):
    """An argument, a message or a setting that can't be accepted. Nothing was changed."""

    exit_code = 2
    meaning = "usage"


class NotFound(CapsuleError):
    """No such conversation, message, version or store.

    Attributes:
        id: The id or name that was not found.
    """

    exit_code = 3
    meaning = "not found"
    id: str


class Locked(CapsuleError):
    """Another instance holds the conversation's lock.

    Attributes:
        id: The conversation.
        holder: The lock in the file of the conversation.
    """

    exit_code = 4
    meaning = "locked by another"
    id: str
    holder: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file.

    Attributes:
        path: The file, as the caller named it.
        line: The line in the file, from 1. 0: the problem concerns the whole file.
        column: The column in characters, from 1. 0: the problem concerns the whole file.
        where: The field, as ``history[3].role``. Empty: the whole file.
        what: The problem, in words.
    """

    path: str
    line: int
    column: int
    where: str
    what: str

    def __str__(self) -> str:
        parts = [f"{self.path}:{self.line}:{self.column}" if self.line else self.path]
        if self.where:
            parts.append(self.where)
        parts.append(self.what)
        return ": ".join(parts)


class InvalidDocument(CapsuleError):
    """A file that does not parse, or is no document of its kind.

    Attributes:
        path: The file.
        problems: Its problems, at least one.
    """

    exit_code = 5
    meaning = "damaged or invalid file"
    path: str
    problems: tuple[Problem, ...]

    @classmethod
    def of(cls, problems: list[Problem]) -> InvalidDocument:
        """Return the error for these problems, at least one. Its message lists the first ten."""
        lines = [str(problem) for problem in problems[:_MAX_LISTED]]
        if len(problems) > _MAX_LISTED:
            lines.append(f"... and {len(problems) - _MAX_LISTED} more")
        return cls("\n".join(lines), path=problems[0].path, problems=tuple(problems))


class Refused(CapsuleError):
    """The file system or a rule of the store does not permit the operation.

    Attributes:
        path: The file or directory. Empty: the error is not about one.

    `fields` has `asks`, the ids of agents, if each of them could still permit it.
    """

    exit_code = 6
    meaning = "refused (permission)"
    path: str


class LockLost(CapsuleError):
    """Another instance took or released the lock of this instance. Nothing was changed.

    Attributes:
        id: The conversation.
        holder: The present lock in the file of the conversation. None: it has none.
    """

    exit_code = 7
    meaning = "lock lost"
    id: str
    holder: dict[str, Any] | None


class StoreBusy(CapsuleError):
    """The wait for the mutex of a document timed out.

    Attributes:
        id: The document.
        holder: The process that holds the mutex.
    """

    exit_code = 8
    meaning = "store busy (mutex timeout)"
    id: str
    holder: str


class GitFailed(CapsuleError):
    """Git failed, or stopped at a decision for a person.

    Attributes:
        command: Git's arguments.
        words: Git's output.
    """

    exit_code = 9
    meaning = "git failed"
    command: list[str]
    words: str


class ConcurrentWrite(Exception):
    """Another process wrote the file while the store was writing. The write must be decided and
    tried again.

    It never leaves the package `capsule`.
    """


class AlreadyExists(ConcurrentWrite):
    """A document with this id exists already."""
