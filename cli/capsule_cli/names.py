"""Other names of commands: short ones, those of the release before, and what a mistyped one may have meant.

What must stay true: what Capsule wrote into the settings of other programs works for good, and without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from capsule.errors import Refused
from capsule_cli.core import room_of

#: For good: names that hands know from elsewhere, what a group does by itself, and what stands in others' settings.
SHORT = {
    "ls": "list",
    "cat": "show",
    "rm": "delete",
    "doctor": "store doctor",
    "store": "store show",
    "mcp": "mcp serve",
    "agents wake hook": "agent wake hook",
}
#: The names of the release before, and what is written now. They go with the next release. The first that fits counts.
FORMER = {
    "tail": "show --last=10",
    "events --since": "events --after",
    "events --topics": "events --kinds",
    "events": "watch --events",
    "watch --cursor": "watch --after",
    "search --cursor": "search --after",
    "transcript": "show --for-model",
    "show --tree": "branch list",
    "rename": "set ID --title TITLE",
    "tag": "set ID --add-tag TAG...",
    "pin": "set --pin",
    "archive": "set --archive",
    "set --tag": "set --add-tag",
    "set --untag": "set --remove-tag",
    "set --unpin": "set --no-pin",
    "set --unarchive": "set --no-archive",
    "trash": "trash list",
    "purge": "trash purge",
    "lock": "lock take ID",
    "unlock": "lock release",
    "locks": "lock list",
    "switch": "branch switch",
    "regenerate": "branch regenerate",
    "fork": "branch fork",
    "trim": "branch trim",
    "servers": "mcp servers",
    "tokens add --scope": "mcp tokens add --allow",
    "tokens": "mcp tokens",
    "mcp install --project": "mcp install --settings=project",
    "mcp install --user": "mcp install --settings=user",
    "mcp uninstall --project": "mcp uninstall --settings=project",
    "mcp uninstall --user": "mcp uninstall --settings=user",
    "demo": "store demo",
    "validate": "store validate",
    "migrate": "store migrate",
    "schema --version": "store schema --format-version",
    "schema": "store schema",
    "stats": "store stats",
    "reindex": "store reindex",
    "mentions": "mention",
    "notes allow": "note share",
    "notes end": "note unshare",
    "notes": "note",
    "agents register --exclude": "agent register --stay-out",
    "agents policy": "agent set",
    "agents wake install --project": "agent wake install --settings=project",
    "agents wake install --user": "agent wake install --settings=user",
    "agents wake uninstall --project": "agent wake uninstall --settings=project",
    "agents wake uninstall --user": "agent wake uninstall --settings=user",
    "agents": "agent",
    "notifications": "agent notify",
    "projects": "project",
    "group rename": "group set ID --name NAME",
    "channels update": "channel set",
    "channels archive --undo": "channel set --no-archive",
    "channels archive": "channel set --archive",
    "channels remove-member": "channel remove",
    "channels": "channel",
    "members": "channel members",
    "topics": "channel topics",
    "join": "channel join",
    "leave": "channel leave",
    "invite --read-only": "invite --no-send",
    "channel invite --to": "channel invite --channel",
    "invite": "channel invite",
    "mute --undo": "channel unmute",
    "mute": "channel mute",
    "session agent --limit": "session agent --for",
    "session agent": "worker set",
    "session wire --session": "session wire --one-for",
    "session wire --priority": "session wire --rank",
    "session": "worker",
    "host status": "worker status",
    "host": "worker host",
    "worker --limit": "worker run --for",
    "worker": "worker run",
    "git autocommit --after": "git autocommit --idle",
    "git autocommit": "git commit --follow",
    "git conflicts": "git resolve --list",
}
_NAMES = SHORT | FORMER
#: What people try who look for the way back.
_BACK = {"unpin": "set --no-pin", "unarchive": "set --no-archive", "untag": "set --remove-tag"}
#: The options of every command: those that have a value, and those that have none.
_VALUED = {"--store", "--instance", "--as"}
_FLAGS = {"--json", "--no-pager"}


def current(words: list[str], *, completing: bool = False) -> tuple[list[str], list[str]]:
    """The words of the command line with the names of today.

    Args:
        words: The words.
        completing: Whether more words may come, so that the name of a group is no command.

    Returns: The words, and the notes to show: one for each name that goes with the next release.
    """
    end = words.index("--") if "--" in words else len(words)  # Behind it are words of another program.
    line, others = words[:end], words[end:]
    notes: list[str] = []
    while fit := next(_fitting(line, completing or not {"--help", "-h"}.isdisjoint(line)), None):
        old, line = fit
        if old in FORMER:
            notes.append(f"capsule {old} is now: capsule {FORMER[old]}; the next release knows only that")
    return line + others, notes


def _fitting(words: list[str], is_group: bool) -> Iterator[tuple[str, list[str]]]:
    """The other names that the words use, each with the words that have the name of today instead."""
    places = list(_places(words))
    names = [words[at] for at in places]
    for old, new in _NAMES.items():
        command, _, option = old.partition(" --")
        count = len(command.split())
        if names[:count] == command.split() and not _is_group(command, is_group, names[count:], new):
            at = [n for n, word in enumerate(words) if word.partition("=")[0] == f"--{option}"]
            if at or not option:
                yield old, _written(words, places[:count], at, new)


def _places(words: list[str]) -> Iterator[int]:
    """Where the words stand that may name the command: those before its first own option."""
    rest = iter(enumerate(words))
    for at, word in rest:
        if word in _VALUED:
            next(rest, None)
        elif not word.startswith("-"):
            yield at
        elif word.partition("=")[0] not in _VALUED | _FLAGS:
            return


def _is_group(name: str, is_asked: bool, after: list[str], new: str) -> bool:
    """Whether a name is that of a group of today, and words ask for it, or one stands `after` that is no argument."""
    try:
        room = room_of(name)
        if room is None or name not in room.groups:
            return False
        return is_asked or bool(after and ("ID" not in new or room_of(f"{name} {after[0]}")))
    except Refused:  # Whoever runs the command says what is not installed.
        return True


def _written(words: list[str], places: list[int], option: list[int], new: str) -> list[str]:
    """The words with another name of the command, which is at `places`, and of the option at each `option`."""
    parts = new.split()
    options = [part for part in parts if part.startswith("-")]
    line = dict(enumerate(words))
    for at in option:
        _, equals, value = line.pop(at).partition("=")
        line |= {at: options[-1] + equals + value} if options else {}
    options = [] if option else options
    if parts[-1].isupper() and options:  # The arguments behind the first have an option now.
        given = [n for n in line if n > places[-1] and words[n][:1] != "-" and words[n - 1] not in _VALUED][1:]
        line |= {n: f"{options[0]}={words[n]}" for n in (given if new.endswith("...") else given[:1])}
        options = []
    names = [part for part in parts if part.islower() and not part.startswith("-")]
    rest = [line[n] for n in sorted(line) if n > places[0] and n not in places]
    return [*words[: places[0]], *names, *options, *rest]


def meant(group: str, name: str, commands: Iterable[str]) -> list[str]:
    """What a name that no command of a group has may have meant: at most three commands, as one types them."""
    import difflib

    by_word = {word: [path] for word, path in (FORMER | _BACK).items() if " " not in word}
    for command in commands:
        words = command.split()
        for n, word in enumerate(words):
            by_word.setdefault(word, []).append(" ".join(words[: n + 1]))
    near = difflib.get_close_matches(name, [word for word in by_word if not _is_opposite(name, word)], 3, 0.7)
    paths = [path for word in ([name] if name in by_word else near) for path in dict.fromkeys(by_word[word])]
    return sorted(paths, key=lambda path: not path.startswith(f"{group} "))[:3]


def _is_opposite(name: str, word: str) -> bool:
    return name.startswith("un") != word.startswith("un")
