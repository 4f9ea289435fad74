"""The names of commands: short ones, suggestions for one that does not exist, and those that a
session may not run, because their effects last longer than the session.

What must stay true: `REFUSED` is the only list of commands that a session may not run, and both
ways to run a command check it (`ensure_permitted`). For all other commands the policy of the store
decides where the session may write (`capsule.rules.policy`). Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capsule.errors import Refused

# -- Short names and suggestions -------------------------------------------------------------------

#: Short names that people know from other programs, and groups that are also a command.
SHORT = {
    "ls": "list",
    "cat": "show",
    "rm": "delete",
    "doctor": "store doctor",
    "store": "store show",
    "mcp": "mcp serve",
}
#: The short names that are groups, too: `mcp` alone starts the server, `mcp tokens` is another
#: command.
_GROUPS = {"store", "mcp"}
#: Opposites of options, which people look for as commands.
_OPPOSITES = {"unpin": "set --no-pin", "unarchive": "set --no-archive", "untag": "set --remove-tag"}
#: The options of every command that take a value, and those that take none.
_VALUE_OPTIONS = {"--store", "--instance", "--as"}
_FLAGS = {"--json", "--no-pager"}
_MAX_SUGGESTIONS = 3


def expand(words: list[str], *, completing: bool = False) -> list[str]:
    """Return the words of a command line with the full name of the command.

    Args:
        words: The words after `capsule`. Words after `--` belong to another program.
        completing: Whether the shell completes the line. A group's name is then left alone, because
            the name of one of its commands may follow.
    """
    end = words.index("--") if "--" in words else len(words)
    own_words = words[:end]
    positions = list(_command_positions(own_words))
    if not positions or own_words[positions[0]] not in SHORT:
        return words
    first = positions[0]
    short_name = own_words[first]
    asks_for_help = not {"--help", "-h"}.isdisjoint(own_words)
    if short_name in _GROUPS and (completing or asks_for_help or len(positions) > 1):
        return words
    return [*words[:first], *SHORT[short_name].split(), *words[first + 1 :]]


def _command_positions(words: list[str]) -> Iterator[int]:
    """Yield the positions of the words that may name the command: those before its first own
    option.
    """
    remaining = iter(enumerate(words))
    for position, word in remaining:
        if word in _VALUE_OPTIONS:
            next(remaining, None)
        elif not word.startswith("-"):
            yield position
        elif word.partition("=")[0] not in _VALUE_OPTIONS | _FLAGS:
            return


def suggestions(group: str, name: str, commands: Iterable[str]) -> list[str]:
    """Return at most three commands that an unknown name may have meant, the most likely first.

    Args:
        group: The group in which the name was looked up; empty for the program itself.
        name: The unknown name.
        commands: The full names of all commands.
    """
    import difflib

    paths_by_word = {word: [path] for word, path in _OPPOSITES.items()}
    for command in commands:
        words = command.split()
        for count, word in enumerate(words, 1):
            paths_by_word.setdefault(word, []).append(" ".join(words[:count]))
    if name in paths_by_word:
        similar_words = [name]
    else:
        candidates = [word for word in paths_by_word if not _is_opposite(name, word)]
        similar_words = difflib.get_close_matches(name, candidates, _MAX_SUGGESTIONS, cutoff=0.7)
    paths: list[str] = []
    for word in similar_words:
        paths.extend(dict.fromkeys(paths_by_word[word]))
    paths.sort(key=lambda path: not path.startswith(f"{group} "))
    return paths[:_MAX_SUGGESTIONS]


def _is_opposite(name: str, word: str) -> bool:
    return name.startswith("un") != word.startswith("un")


# -- Commands that a session may not run -----------------------------------------------------------

#: The refused commands by the thing that they would register or change.
_REFUSED = {
    "a program or an address that messages start": (
        "agent wake install",
        "agent wake test",
        "agent wake uninstall",
        "worker host",
        "worker run",
        "worker set",
        "worker webhook",
    ),
    "which agent answers where": ("worker allow", "worker forbid", "worker unwire", "worker wire"),
    "a server or its clients": (
        "mcp install",
        "mcp servers remove",
        "mcp servers set",
        "mcp servers toggle",
        "mcp tokens add",
        "mcp tokens list",
        "mcp tokens revoke",
        "mcp uninstall",
        "web",
    ),
    "a hook or a filter of git": (
        "git commit",
        "git resolve",
        "git restore",
        "git setup",
        "git sync",
        "git teardown",
    ),
    "a store or its settings": (
        "config apply",
        "config rollback",
        "copy",
        "import",
        "init",
        "store settings",
        "trash purge",
    ),
    "the visibility of agents and projects": (
        "agent allow",
        "agent block",
        "agent forget",
        "agent notify clean",
        "agent notify off",
        "agent notify on",
        "agent register",
        "agent set",
        "agent status",
        "agent unblock",
        "project link",
        "project unlink",
    ),
}
#: For each refused command the thing that it would register or change.
REFUSED = {command: thing for thing, commands in _REFUSED.items() for command in commands}


def ensure_permitted(command: str, session: str | None) -> None:
    """Raise Refused if a session runs a command that is not for sessions.

    Args:
        command: All words of the command, without its arguments.
        session: The session that runs it. None: a person runs it.
    """
    thing = REFUSED.get(command)
    if session is None or thing is None:
        return
    reason = (
        f"`capsule {command}` is not for a session: it registers or changes {thing}; a person "
        "may run it"
    )
    raise Refused(reason, path="")
