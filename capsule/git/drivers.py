"""What git is told of a conversation: which attributes its files get, and which programs do the work for those.

What must stay true: the attributes are the same on every machine, as they are committed; the commands are this
machine's, as they name its Python, and stand in git's configuration. Each command survives the shell that git gives
it to, whatever letters its path has.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from capsule.git.repository import KINDS

__all__ = [
    "ATTRIBUTES",
    "CHECK",
    "CHECK_LINE",
    "DRIVER",
    "attribute_lines",
    "check_config",
    "driver_config",
    "shell_words",
]

#: The name under which git's attributes and its configuration find each other.
DRIVER = "capsule"
#: What the documents get. `-text`: git's line ends (`core.autocrlf`) are not for a file whose bytes are counted.
ATTRIBUTES = f"merge={DRIVER} diff={DRIVER} filter={DRIVER} -text"
#: The setting that holds what a pre-commit hook runs. The hook names this setting and no program, so that it is the
#: same on every machine, and may be committed; where nobody has set Capsule up, it does nothing.
CHECK = f"{DRIVER}.precommit"
CHECK_LINE = f'eval "$(git config --get {CHECK} || echo :)" || exit 1'
#: What a hunk's header shows of a conversation that is made readable: the line that a message begins with.
_MESSAGE = r"^[0-9]{4}-[0-9]{2}-[0-9]{2} .*"


def attribute_lines() -> list[str]:
    """The lines for the `.gitattributes` in a store's directory."""
    return [f"{kind}/*.json {ATTRIBUTES}" for kind in KINDS]


def driver_config(program: Sequence[str]) -> dict[str, str]:
    """The settings that make the attributes do something.

    Args:
        program: How the drivers are started: a program, as an absolute path, and its first arguments.

    Returns:
        The settings by name. Git runs each command in a shell, in the repository's top directory. The merge driver
        alone has placeholders, of which git quotes `%P` itself, and the others have no letter that needs it
        (gitattributes(5), "Defining a custom merge driver"). The filter says what to do when its program is gone (an
        exit code of the shell from 126 on): git can't check a conversation out without it, and says little.
    """
    command = shell_words(program)
    words = (
        f"capsule: the filter of conversations is gone, as {program[0]} does not start; set it up anew "
        f"(capsule git setup) or do without (git config --remove-section filter.{DRIVER})"
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


def check_config(program: Sequence[str]) -> dict[str, str]:
    """The setting that `CHECK_LINE` in a hook runs: it checks what is staged.

    When the program is gone from the machine, a commit that changes no conversation goes through: a repository must
    not become unusable. One that does is refused, as nobody can say whether a lock or half a file is in it, and told
    the ways out.

    Args:
        program: How the drivers are started, as in `driver_config`.
    """
    command = shell_words(program)
    words = (
        f"capsule: the check of staged conversations is gone, as {program[0]} does not start it; commits of "
        "conversations are refused until it is set up anew (capsule git setup) or taken out "
        f"(git config --unset {CHECK})"
    )
    paths = shell_words([f":(top,glob)**/{kind}/*" for kind in KINDS])
    otherwise = f"echo {shlex.quote(words)} >&2; git diff --cached --quiet --diff-filter=d -- {paths}"
    return {CHECK: f"{command} pre-commit || if {command} version >/dev/null 2>&1; then false; else {otherwise}; fi"}


def shell_words(words: Sequence[str]) -> str:
    """`words` as a shell reads them."""
    return " ".join(shlex.quote(word) for word in words)
