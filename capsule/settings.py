"""The settings of a store, and what is declared of channels, agents and links, as `capsule.toml`
gives them.

What must stay true: an empty `capsule.toml` means the defaults below. An invalid value is an error
that names the file and the setting, never a silent default. An unknown setting is only a warning,
with its line and the most similar setting, so that an older Capsule opens a newer store. What is
declared takes no effect here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from reprlib import Repr
from types import MappingProxyType
from typing import Any, NamedTuple

from capsule.errors import InvalidDocument, InvalidInput, Problem

#: Marks the directory of a store.
FILE_NAME = "capsule.toml"
TEMPLATE = """\
# The settings of this Capsule store. This file marks the store's directory; every line below is a default.

# Give new files the permissions of your umask, instead of owner only (0600 in 0700 directories).
# shared = false
# What other packages add to this store (docs/howto.md): the names of their rooms.
# rooms = []

[storage]
# How a message is appended: "splice" writes in place, at the same cost for any size; "replace" writes a new
# file each time, for a store on a network file system or in a backup by hard links.
# append = "splice"
# How long to wait for another process that writes the same conversation.
# mutex_timeout = "10s"

[lock]
# A lock from another host, or of a named instance, counts as orphaned after this time without use.
# ttl = "30m"

[limits]
# The largest message, in bytes, that is accepted.
# message_bytes = 10_000_000
# The largest file of a conversation, in bytes, that is read; a larger one is reported as damaged.
# document_bytes = 500_000_000

[notifications]
# The files in the folder of an agent's project that say how much mail waits while the agent is away. The first is made
# where it is missing, the others are not. [] means none.
# files = ["CLAUDE.md", "AGENTS.md"]

# Channels, links and the policies of agents can be declared, and take effect when a person applies them.
# [channels.releases]
# access = "members"
# members = ["anna"]
"""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)"


def seconds(text: str) -> float:
    """A duration such as `90s`, `30m`, `2h`, `7d` or `1w`, in seconds.

    Raises:
        InvalidInput: `text` is not a duration.
    """
    match = re.fullmatch(_DURATION, text.strip())
    if match is None:
        raise InvalidInput(
            f"{text!r} is not a duration: write a number and ms, s, m, h, d or w, such as 30m"
        )
    return float(match[1]) * _UNITS[match[2]]


class Settings(NamedTuple):
    """The settings in a `capsule.toml`; durations in seconds, sizes in bytes.

    Attributes:
        rooms: The rooms of other packages that the store uses.
        channels, agents: What is declared of each, by name: the checked fields that the file gives.
        links: By project, the projects whose agents its own agents see.
        unknown: A problem for each setting that this version doesn't know.
    """

    shared: bool = False
    rooms: tuple[str, ...] = ()
    append: str = "splice"
    mutex_timeout_s: float = 10.0
    lock_ttl_s: float = 1800.0
    message_bytes: int = 10_000_000
    document_bytes: int = 500_000_000
    notification_files: tuple[str, ...] = ("CLAUDE.md", "AGENTS.md")
    channels: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    agents: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    links: Mapping[str, tuple[str, ...]] = MappingProxyType({})
    unknown: tuple[Problem, ...] = ()

    @property
    def of_storage(self) -> dict[str, Any]:
        """The settings of the storage engine, as its keyword arguments."""
        names = ("shared", "append", "mutex_timeout_s", "document_bytes")
        return {name: getattr(self, name) for name in names}


#: A YAML file of a few lines can hold a list whose text would fill the memory.
_SHORT = Repr()
_SHORT.maxlevel, _SHORT.maxstring = 2, 60
_shown = _SHORT.repr


def _duration(value: Any) -> float:
    if isinstance(value, str):
        return seconds(value)
    raise InvalidInput(f"{_shown(value)} is not a duration: write it in quotes, such as {'30m'!r}")


def flag(value: Any) -> bool:
    """`value`, if it is true or false; else InvalidInput is raised, as by each check of a value
    here.
    """
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{_shown(value)} is neither true nor false")


def one_of(*words: str) -> Callable[[Any], str]:
    """The check that a value is one of these words."""

    def check(value: Any) -> str:
        if value in words:
            return str(value)
        raise InvalidInput(f"{_shown(value)} is none of: {', '.join(words)}")

    return check


def text(value: Any) -> str:
    """`value`, if it is a text."""
    if isinstance(value, str):
        return value
    raise InvalidInput(f"{_shown(value)} is not a text")


def names(value: Any) -> tuple[str, ...]:
    """`value`, if it is a list of names."""
    if isinstance(value, list) and all(
        isinstance(name, str) and name and "\0" not in name for name in value
    ):
        return tuple(value)
    raise InvalidInput(f"{_shown(value)} is not a list of names")


def _table(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise InvalidInput(f"{_shown(value)} is not a table")


def _bytes(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidInput(f"{_shown(value)} is not a number of bytes above 0")


Check = Callable[[Any], Any]
DM = one_of("open", "restricted", "closed")
DISCOVERABLE = one_of("public", "project", "private")
#: The settings by name, each with its attribute and its check; NAME is one that the person chooses.
_KNOWN: dict[str, tuple[str, Check]] = {
    "shared": ("shared", flag),
    "rooms": ("rooms", names),
    "storage.append": ("append", one_of("splice", "replace")),
    "storage.mutex_timeout": ("mutex_timeout_s", _duration),
    "lock.ttl": ("lock_ttl_s", _duration),
    "limits.message_bytes": ("message_bytes", _bytes),
    "limits.document_bytes": ("document_bytes", _bytes),
    "notifications.files": ("notification_files", names),
    "channels.NAME": ("", _table),
    "channels.NAME.scope": ("", text),
    "channels.NAME.access": ("", one_of("open", "members", "private")),
    "channels.NAME.description": ("", text),
    "channels.NAME.default": ("", flag),
    "channels.NAME.members": ("", names),
    "channels.NAME.topic_required": ("", flag),
    "channels.NAME.default_topic": ("", text),
    "agents.NAME": ("", _table),
    "agents.NAME.dm": ("", DM),
    "agents.NAME.discoverable": ("", DISCOVERABLE),
    "agents.NAME.description": ("", text),
    "agents.NAME.allow": ("", names),
    "agents.NAME.block": ("", names),
    "links.NAME": ("", names),
}
_DECLARED = ("channels", "agents", "links")
_Keys = tuple[str, ...]


def _leaves(table: Mapping[str, Any], above: _Keys = ()) -> Iterator[tuple[_Keys, Any]]:
    """The settings in a table with the keys that lead to them; an empty table is one too."""
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def parse(data: bytes, path: str) -> Settings:
    """The settings in the bytes of a `capsule.toml`.

    Raises:
        InvalidDocument: It is no TOML, or a setting has a value that can't be accepted.
    """
    if (
        data == TEMPLATE.encode()
    ):  # Nearly every store has it, and `tomllib` takes longer than an append to import.
        return Settings()
    import tomllib

    try:
        leaves = list(_leaves(tomllib.loads(data.decode())))
    except RecursionError:
        reason = "its tables and lists are nested too deep inside each other; make it flatter"
        raise InvalidDocument.of([Problem(path, 0, 0, "", reason)]) from None
    except ValueError as error:  # Also a number that has too many digits.
        place = re.search(r"line (\d+), column (\d+)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
        raise InvalidDocument.of(
            [Problem(path, line, column, "", f"is not valid TOML: {error}")]
        ) from error
    values: dict[str, Any] = {}
    unknown = []
    for keys, value in leaves:
        name = ".".join((keys[0], "NAME", *keys[2:]) if keys[0] in _DECLARED and keys[1:] else keys)
        if name in _KNOWN:
            attribute, check = _KNOWN[name]
            try:
                _put(values, (attribute,) if attribute else keys, check(value))
            except InvalidInput as error:
                raise InvalidDocument.of(
                    [Problem(path, *_place(keys, data), ".".join(keys), str(error))]
                ) from error
        elif value != {}:
            reason = f"unknown setting{suggestion(name, _KNOWN)}"
            unknown.append(Problem(path, *_place(keys, data), ".".join(keys), reason))
    return Settings(**values, unknown=tuple(unknown))


def _put(values: dict[str, Any], keys: _Keys, value: Any) -> None:
    for key in keys[:-1]:
        values = values.setdefault(key, {})
    values[keys[-1]] = value


def suggestion(name: str, known: Iterable[str]) -> str:
    """What to say of an unknown name: the known one that it resembles, or all of them."""
    from difflib import get_close_matches

    by_last = {each.rpartition(".")[2]: each for each in known}
    last = [by_last[match] for match in get_close_matches(name.rpartition(".")[2], by_last, 1)]
    near = get_close_matches(name, known, 1) or last
    return f"; did you mean {near[0]}?" if near else f"; the settings are: {', '.join(known)}"


def _place(keys: _Keys, data: bytes) -> tuple[int, int]:
    """The line and column of a setting; (0, 0): it isn't found."""
    table: _Keys = ()
    for number, line in enumerate(data.decode().splitlines(), 1):
        if match := re.match(_LINE, line):
            here = _keys_in(match["table"] or match["key"])
            table, here = (here, ()) if match["table"] else (table, table + here)
            if here and keys[: len(here)] == here:
                return number, 1
    return 0, 0


_LINE = r"\s*(?:\[(?P<table>[^\]]+)\]|(?P<key>[^=#\[]+)=)"


def _keys_in(dotted: str) -> _Keys:
    """The keys of a dotted key; none: it is no key."""
    import tomllib

    try:
        return next(_leaves(tomllib.loads(f"{dotted}=0")))[0]
    except (ValueError, RecursionError):
        return ()
