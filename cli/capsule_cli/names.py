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
    "lock": "lock take",
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
#: The options of every command that have a value, and those that have none.
_VALUED = {"--store", "--instance", "--as"}
_FLAGS = {"--json", "--no-pager"}
_PAIRED = [[option] for option in _VALUED]


def current(words: list[str]) -> tuple[list[str], list[str]]:
    """The words of the command line with the names of today.

    Returns: The words, and the notes to show: one for each name that goes with the next release.
    """
    notes: list[str] = []
    while found := next(_fitting(words), None):
        old, new, words = found
        if old in FORMER:
            notes.append(f"capsule {old} is now: capsule {new}; the next release knows only that")
    return words, notes


def _fitting(words: list[str]) -> Iterator[tuple[str, str, list[str]]]:
    places = list(_places(words))
    names = [words[at] for at in places]
    for table in (SHORT, FORMER) if names else ():
        for old, new in table.items():
            command, option = _split(old)
            count = len(command)
            if names[:count] == command and not _is_used(old, names[count:], words):
                at = next((n for n, word in enumerate(words) if word.partition("=")[0] == option), None)
                if not option or at is not None:
                    yield old, new, _written(words, places[count - 1] + 1, at, new)


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


def _split(words: str) -> tuple[list[str], str]:
    """The names of a command, and the option behind them; empty: there is none."""
    *names, last = words.split()
    return (names, last) if last.startswith("-") else ([*names, last], "")


def _is_used(group: str, after: list[str], words: list[str]) -> bool:
    """Whether words name a group of today and one of its commands, or ask for its help."""
    try:
        room = room_of(group)
    except Refused:
        return False
    if room is None or group not in room.groups:
        return False
    return bool(after and room_of(f"{group} {after[0]}")) or not {"--help", "-h"}.isdisjoint(words)


def _written(words: list[str], end: int, at: int | None, new: str) -> list[str]:
    """The words with another name of the command, which ends before `end`, and of the option at `at`."""
    parts = new.split()
    names = [part for part in parts if part.islower() and not part.startswith("-")]
    options = [part for part in parts if part.startswith("-")]
    before = [word for n, word in enumerate(words[:end]) if word.startswith("-") or words[max(n - 1, 0)] in _VALUED]
    rest = words[end:]
    if at is not None:
        _, equals, value = rest[at - end].partition("=")
        rest[at - end : at - end + 1] = [options.pop() + equals + value] if options else []
    if parts[-1].isupper():  # The arguments behind the first have an option now.
        values = [n for n, word in enumerate(rest) if not word.startswith("-") and rest[n - 1 : n] not in _PAIRED]
        for n in values[1:] if parts[-1].endswith("...") else values[1:2]:
            rest[n] = f"{options[0]}={rest[n]}"
        options = []
    return [*before, *names, *options, *rest]


def meant(group: str, name: str, commands: Iterable[str]) -> list[str]:
    """What a name that no command of a group has may have meant: at most three commands, as one types them."""
    import difflib

    if name.startswith("un") and (written := FORMER.get(name[2:], "")).startswith("set "):
        option = next(word for word in written.split() if word.startswith("--"))
        return ["set " + (option.replace("--add-", "--remove-") if "--add-" in option else f"--no-{option[2:]}")]
    by_word: dict[str, list[str]] = {}
    for command in commands:
        words = command.split()
        for n in range(len(words)):
            path = " ".join(words[: n + 1])
            if path not in by_word.setdefault(words[n], []):
                by_word[words[n]].append(path)
    near = difflib.get_close_matches(name, [word for word in by_word if not _is_opposite(name, word)], 3, 0.7)
    paths = [path for word in ([name] if name in by_word else near) for path in by_word[word]]
    return sorted(paths, key=lambda path: not path.startswith(f"{group} "))[:3]


def _is_opposite(name: str, word: str) -> bool:
    return name.startswith("un") != word.startswith("un")
