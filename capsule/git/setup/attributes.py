"""The attributes of conversations, and the settings of git that say which programs do the work.

What must stay true: the attributes are the same on every machine, as they are committed; the
commands are this machine's, as they name its Python, and stand in git's configuration. Each command
survives the shell that git gives it to, whatever letters its path has. A command that a message
names does the same wherever in the repository it is typed: git names a file from the repository's
top, and starts its drivers and hooks there without saying where it was started itself (`git pull`
hands on no GIT_PREFIX).
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from capsule.format.validation import KINDS

if TYPE_CHECKING:
    from capsule.git_program import Git

#: The name under which git's attributes and its configuration find each other.
DRIVER = "capsule"
#: What the documents get. `-text`: git's line ends (`core.autocrlf`) are not for a file whose bytes
#: are counted.
ATTRIBUTES = f"merge={DRIVER} diff={DRIVER} filter={DRIVER} -text"
#: The setting that holds what a pre-commit hook runs. The hook names this setting and no program,
#: so that it is the same on every machine, and may be committed; where nobody has set Capsule up,
#: it does nothing.
CHECK = f"{DRIVER}.precommit"
CHECK_LINE = f'eval "$(git config --get {CHECK} || echo :)" || exit 1'
#: What a hunk's header shows of a conversation that is made readable: the line that a message
#: begins with.
_MESSAGE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} .*"


def attribute_lines() -> list[str]:
    """The lines for the `.gitattributes` in a store's directory."""
    return [f"{kind}/*.json {ATTRIBUTES}" for kind in KINDS]


def ignore_lines() -> list[str]:
    """The lines for its `.gitignore`: files that belong to this machine alone. `.capsule/` ignores
    itself.

    That is versions that are being written (`StorePaths.temporary`), what waits for the next new
    conversation, which the first one in every clone would take, the configurations that were
    applied here, and the sessions of its workers.
    """
    return [*(f"{kind}/.*.tmp" for kind in KINDS), "/overrides/", "/applied/", "/sessions/"]


def driver_config(program: Sequence[str]) -> dict[str, str]:
    """The settings that start the drivers with `program`: a program, as an absolute path, and its
    first arguments.

    Git runs each command in a shell, in the repository's top directory. The merge driver alone has
    placeholders, of which git quotes `%P` itself, and the others have no letter that needs it
    (gitattributes(5), "Defining a custom merge driver"). The filter says what to do when its
    program is gone (an exit code of the shell from 126 on): git can't check a conversation out
    without it, and says little.
    """
    command = shlex.join(program)
    words = (
        f"capsule: the filter of conversations does not work, because {program[0]} does not "
        "start; set it up again (capsule git setup) or remove it (git config --remove-section "
        f"filter.{DRIVER})"
    )
    otherwise = f"{{ code=$?; test $code -lt 126 || echo {shlex.quote(words)} >&2; exit $code; }}"
    return {
        f"merge.{DRIVER}.name": "Capsule: messages by their ids",
        f"merge.{DRIVER}.driver": f"{command.replace('%', '%%')} merge %O %A %B %L %P",
        f"diff.{DRIVER}.textconv": f"{command} textconv",
        f"diff.{DRIVER}.xfuncname": _MESSAGE,
        f"filter.{DRIVER}.process": f"{command} filter || {otherwise}",
        f"filter.{DRIVER}.required": "true",
    }


def wanted_config(program: Sequence[str]) -> dict[str, str]:
    """The settings of a clone that is set up: the drivers, and what `CHECK_LINE` in a hook runs.

    When the program is gone from the machine, a commit that changes no conversation passes: a
    repository must not become unusable. One that does is refused, as nobody can say whether a lock
    or half a file is in it, and the message names the ways out.
    """
    command = shlex.join(program)
    words = (
        f"capsule: the check of staged conversations does not work, because {program[0]} does "
        "not start; commits of conversations are refused until it is set up again (capsule "
        f"git setup) or removed (git config --unset {CHECK})"
    )
    paths = shlex.join([f":(top,glob)**/{kind}/*" for kind in KINDS])
    otherwise = (
        f"echo {shlex.quote(words)} >&2; git diff --cached --quiet --diff-filter=d -- {paths}"
    )
    check = (
        f"{command} pre-commit || if {command} version >/dev/null 2>&1; then false; else "
        f"{otherwise}; fi"
    )
    return {**driver_config(program), CHECK: check}


def settings(git: Git, *scope: str) -> dict[str, list[str]]:
    """The settings under our names, each with its values, in the file of git's that `scope` names,
    or in force.
    """
    pattern = rf"^((merge|diff|filter)\.{DRIVER}|{DRIVER})\."
    values: dict[str, list[str]] = {}
    # 128: there is no home, or nothing in it.
    fine = (0, 1, 128) if scope == ("--global",) else (0, 1)
    for entry in git.run("config", *scope, "-z", "--get-regexp", pattern, ok_codes=fine).fields:
        name, _, value = entry.partition("\n")
        values.setdefault(name, []).append(value)
    return values


def file_command(words: str, path: str) -> str:
    """A command of git, `git add` for example, on one file, whose path begins at the repository's
    top.
    """
    # `:/` is short for `:(top)` (gitglossary(7), pathspec), and takes signs that follow for more of
    # its kind.
    top = ":/" if path[:1].isalnum() else ":(top)"
    return f"{words} -- {shlex.quote(top + path)}"


def store_command(words: str, top: str, path: str) -> str:
    """A command of Capsule, `capsule git setup` for example, in the store of the document at `path`
    below `top`.
    """
    folder = os.path.dirname(os.path.dirname(path))
    return f"{words} --store {shlex.quote(os.path.join(top, folder))}" if folder else words
