"""The settings of a store: the contents of `capsule.toml`, checked.

`parse` reads the file into `Settings`. `_SETTINGS` lists every setting with its check. The file can
also declare channels, agents and links. These are only read here, and take effect when a person
applies them.

What must stay true: an empty `capsule.toml` means the defaults of `Settings`. An invalid value is
an error that names the file and the setting, never a silent default. An unknown setting is only a
warning, with its line and the most similar setting, so that an older Capsule opens a newer store.
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
    """Return a duration such as `90s`, `30m`, `2h`, `7d` or `1w` in seconds.

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
    """The settings in a `capsule.toml`. Durations are in seconds, sizes in bytes.

    Attributes:
        shared: Whether new files get the permissions of the umask, instead of the owner's only.
        rooms: The rooms of other packages that the store uses.
        append: How a message is appended: `splice` writes in place, `replace` writes a new file.
        mutex_timeout_s: How long a writer waits for another one of the same conversation.
        lock_ttl_s: The time without use after which a lock of another host counts as orphaned.
        message_bytes, document_bytes: The largest message that is accepted, and the largest file
            that is read.
        notification_files: The files in an agent's project that report how much mail waits.
        channels, agents: The declarations of each, by name: the checked fields in the file.
        links: The declared links, by project: the projects whose agents its own agents see.
        unknown: A problem for each setting that this version does not know.
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


#: Writes values for errors, shortened: the text of a nested list in a YAML file of a few lines could
#: fill the memory.
_SHORTENING = Repr()
_SHORTENING.maxlevel = 2
_SHORTENING.maxstring = 60
_shortened_repr = _SHORTENING.repr


def _duration(value: Any) -> float:
    if isinstance(value, str):
        return seconds(value)
    raise InvalidInput(
        f"{_shortened_repr(value)} is not a duration: write it in quotes, such as {'30m'!r}"
    )


def flag(value: Any) -> bool:
    """Return `value`, if it is true or false. Raises InvalidInput otherwise, like each check here."""
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{_shortened_repr(value)} is neither true nor false")


def one_of(*words: str) -> Callable[[Any], str]:
    """Return a check that a value is one of these words."""

    def check(value: Any) -> str:
        if value in words:
            return str(value)
        raise InvalidInput(f"{_shortened_repr(value)} is none of: {', '.join(words)}")

    return check


def text(value: Any) -> str:
    """Return `value`, if it is a text."""
    if isinstance(value, str):
        return value
    raise InvalidInput(f"{_shortened_repr(value)} is not a text")


def names(value: Any) -> tuple[str, ...]:
    """Return `value`, if it is a list of names."""

    def is_name(item: Any) -> bool:
        return isinstance(item, str) and item != "" and "\0" not in item

    if isinstance(value, list) and all(map(is_name, value)):
        return tuple(value)
    raise InvalidInput(f"{_shortened_repr(value)} is not a list of names")


def _table(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return value
    raise InvalidInput(f"{_shortened_repr(value)} is not a table")


def _bytes(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidInput(f"{_shortened_repr(value)} is not a number of bytes above 0")


Check = Callable[[Any], Any]
DM = one_of("open", "restricted", "closed")
DISCOVERABLE = one_of("public", "project", "private")
#: The settings by name, each with its attribute of `Settings` and its check. NAME is a name that the
#: person chooses. Without an attribute, the value goes to the declaration of that name.
_SETTINGS: dict[str, tuple[str, Check]] = {
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
_DECLARATIONS = ("channels", "agents", "links")
_Keys = tuple[str, ...]


def _leaves(table: Mapping[str, Any], parents: _Keys = ()) -> Iterator[tuple[_Keys, Any]]:
    """Yield the settings in a table, each with the keys that lead to it. An empty table counts as a
    setting.
    """
    for key, value in table.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, (*parents, key))
        else:
            yield (*parents, key), value


def parse(data: bytes, path: str) -> Settings:
    """Return the settings in the bytes of a `capsule.toml`. `path` is the file, for errors.

    Raises:
        InvalidDocument: It is not TOML, or a setting has a value that can't be accepted.
    """
    # Nearly every store has this text, and the import of `tomllib` takes longer than an append.
    if data == TEMPLATE.encode():
        return Settings()
    import tomllib

    try:
        leaves = list(_leaves(tomllib.loads(data.decode())))
    except RecursionError:
        reason = "its tables and lists are nested too deep inside each other; make it flatter"
        raise InvalidDocument.of([Problem(path, 0, 0, "", reason)]) from None
    except ValueError as error:  # Also raised for a number with too many digits.
        line = column = 0
        position = re.search(r"line (\d+), column (\d+)", str(error))
        if position is not None:
            line = int(position[1])
            column = int(position[2])
        raise InvalidDocument.of(
            [Problem(path, line, column, "", f"is not valid TOML: {error}")]
        ) from error
    values: dict[str, Any] = {}
    unknown = []
    for keys, value in leaves:
        name = _name_of(keys)
        if name in _SETTINGS:
            attribute, check = _SETTINGS[name]
            try:
                _set(values, (attribute,) if attribute else keys, check(value))
            except InvalidInput as error:
                raise InvalidDocument.of(
                    [Problem(path, *_location(keys, data), ".".join(keys), str(error))]
                ) from error
        elif value != {}:
            reason = f"unknown setting{suggestion(name, _SETTINGS)}"
            unknown.append(Problem(path, *_location(keys, data), ".".join(keys), reason))
    return Settings(**values, unknown=tuple(unknown))


def _name_of(keys: _Keys) -> str:
    """Return the name of a setting, as in `_SETTINGS`."""
    if keys[0] in _DECLARATIONS and len(keys) > 1:
        return ".".join((keys[0], "NAME", *keys[2:]))
    return ".".join(keys)


def _set(values: dict[str, Any], keys: _Keys, value: Any) -> None:
    """Set a value in nested dicts."""
    table = values
    for key in keys[:-1]:
        table = table.setdefault(key, {})
    table[keys[-1]] = value


def suggestion(name: str, valid_names: Iterable[str]) -> str:
    """Return the end of an error about an unknown name: the valid name that it resembles, or all of
    them. Names are compared as a whole, and then by their last part.
    """
    from difflib import get_close_matches

    by_last_part = {valid.rpartition(".")[2]: valid for valid in valid_names}
    similar = get_close_matches(name, valid_names, 1)
    if not similar:
        last_part = name.rpartition(".")[2]
        similar = [by_last_part[part] for part in get_close_matches(last_part, by_last_part, 1)]
    if similar:
        return f"; did you mean {similar[0]}?"
    return f"; the settings are: {', '.join(valid_names)}"


def _location(keys: _Keys, data: bytes) -> tuple[int, int]:
    """Return the line and the column of a setting. (0, 0): it was not found, for example because it
    is an empty table.
    """
    table: _Keys = ()
    for number, line in enumerate(data.decode().splitlines(), 1):
        match = re.match(_LINE, line)
        if match is None:
            continue
        if match["table"]:
            table = _keys_in(match["table"])
            continue
        line_keys = table + _keys_in(match["key"])
        # A shorter key is the one of an inline table with the setting.
        if line_keys and keys[: len(line_keys)] == line_keys:
            return number, 1
    return 0, 0


_LINE = r"\s*(?:\[(?P<table>[^\]]+)\]|(?P<key>[^=#\[]+)=)"


def _keys_in(dotted: str) -> _Keys:
    """Return the keys in a dotted key. Empty: it is no key."""
    import tomllib

    try:
        return next(_leaves(tomllib.loads(f"{dotted}=0")))[0]
    except (ValueError, RecursionError):
        return ()
