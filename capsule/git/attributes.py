"""Git's attributes of conversations, and the settings of git that name the programs of the drivers.

The attributes are committed, so they are the same on every machine. The settings are in git's
configuration, because they name the Python of this machine. `file_command` and `store_command`
write commands for messages.

What must stay true: each command works in the shell that git gives it to, whatever characters its
path has. A command in a message works in every directory of the repository. Git starts drivers and
hooks at the top of the repository, and they can't know where the person is (`git pull` passes on no
GIT_PREFIX).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capsule.format.validation import KINDS

if TYPE_CHECKING:
    from capsule.git_program import Git

#: The name of the drivers in git's attributes and in its configuration.
DRIVER = "capsule"
#: The attributes of documents. `-text`: git must not convert their line ends (`core.autocrlf`),
#: because the store counts their bytes.
ATTRIBUTES = f"merge={DRIVER} diff={DRIVER} filter={DRIVER} -text"
#: The setting with the command that a pre-commit hook runs. The hook names this setting and no
#: program. So it is the same on every machine, may be committed, and does nothing in a clone without
#: the setting.
CHECK = f"{DRIVER}.precommit"
CHECK_LINE = f'eval "$(git config --get {CHECK} || echo :)" || exit 1'
#: The line of a conversation as text that git shows in the header of a hunk: the first one of a
#: message.
_MESSAGE_LINE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} .*"


def attribute_lines() -> list[str]:
    """Return the lines for the `.gitattributes` in a store's directory."""
    return [f"{kind}/*.json {ATTRIBUTES}" for kind in KINDS]


def ignore_lines() -> list[str]:
    """Return the lines for the `.gitignore` in a store's directory. The ignored files belong to
    this machine: versions that are being written (`StorePaths.temporary`), pending overrides (the
    first new conversation in every clone would get them), configurations that were applied here,
    and sessions of workers. `.capsule/` has a `.gitignore` of its own.
    """
    return [*(f"{kind}/.*.tmp" for kind in KINDS), "/overrides/", "/applied/", "/sessions/"]


def driver_config(program: Sequence[str]) -> dict[str, str]:
    """Return the settings that start the drivers.

    Git runs each command in a shell, in the repository's top directory. Only the merge driver has
    placeholders. Git quotes `%P` itself, and the others need no quotes (gitattributes(5), "Defining
    a custom merge driver"). If the program can't be started (an exit code of the shell from 126
    on), the filter prints what to do, because git can't check out a conversation without it.

    Args:
        program: A program, as an absolute path, and its first arguments.
    """
    command = shlex.join(program)
    message = (
        f"capsule: the filter of conversations does not work, because {program[0]} does not "
        "start; set it up again (capsule git setup) or remove it (git config --remove-section "
        f"filter.{DRIVER})"
    )
    on_failure = (
        f"{{ code=$?; test $code -lt 126 || echo {shlex.quote(message)} >&2; exit $code; }}"
    )
    return {
        f"merge.{DRIVER}.name": "Capsule: messages by their ids",
        f"merge.{DRIVER}.driver": f"{command.replace('%', '%%')} merge %O %A %B %L %P",
        f"diff.{DRIVER}.textconv": f"{command} textconv",
        f"diff.{DRIVER}.xfuncname": _MESSAGE_LINE,
        f"filter.{DRIVER}.process": f"{command} filter || {on_failure}",
        f"filter.{DRIVER}.required": "true",
    }


def clone_config(program: Sequence[str]) -> dict[str, str]:
    """Return the settings of a clone that is set up: the drivers, and the command that `CHECK_LINE`
    in a hook runs.

    If the program was removed from the machine, a commit without conversations passes, so that the
    repository remains usable. A commit with conversations is refused, because they may have a lock
    or be half written. The message names the ways out.
    """
    command = shlex.join(program)
    message = (
        f"capsule: the check of staged conversations does not work, because {program[0]} does "
        "not start; commits of conversations are refused until it is set up again (capsule "
        f"git setup) or removed (git config --unset {CHECK})"
    )
    paths = shlex.join([f":(top,glob)**/{kind}/*" for kind in KINDS])
    without_program = (
        f"echo {shlex.quote(message)} >&2; git diff --cached --quiet --diff-filter=d -- {paths}"
    )
    check = (
        f"{command} pre-commit || if {command} version >/dev/null 2>&1; then false; else "
        f"{without_program}; fi"
    )
    return {**driver_config(program), CHECK: check}


def settings(git: Git, *scope: str) -> dict[str, list[str]]:
    """Return the settings with Capsule's names, each with its values.

    Args:
        git: Git.
        scope: The option of `git config` for one of git's files. Without it: the settings in force.
    """
    pattern = rf"^((merge|diff|filter)\.{DRIVER}|{DRIVER})\."
    values: dict[str, list[str]] = {}
    ok_codes = [0, 1]
    if scope == ("--global",):
        ok_codes.append(128)  # The user has no home directory, or no configuration in it.
    command = ("config", *scope, "-z", "--get-regexp", pattern)
    for entry in git.run(*command, ok_codes=ok_codes).fields:
        name, _, value = entry.partition("\n")
        values.setdefault(name, []).append(value)
    return values


def file_command(words: str, path: str) -> str:
    """Return a command of git, such as `git add`, for a file with this path from the repository's
    top.
    """
    # `:/` is short for `:(top)` (gitglossary(7), pathspec). Punctuation after it would be parsed as
    # further short options.
    top = ":/" if path[:1].isalnum() else ":(top)"
    return f"{words} -- {shlex.quote(top + path)}"


def store_command(words: str, top: str, path: str) -> str:
    """Return a command of Capsule, such as `capsule git setup`, for the store of the document at
    `path` below `top`.
    """
    folder = os.path.dirname(os.path.dirname(path))
    if not folder:
        return words
    return f"{words} --store {shlex.quote(os.path.join(top, folder))}"
