"""The settings of a store, as `capsule.toml` gives them.

What must stay true: an empty `capsule.toml` means the defaults below. An invalid value is an error that names the file
and the setting, never a silent default. An unknown setting is only a warning, with its line and the most similar
setting, so that an older Capsule opens a newer store.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from typing import Any

from capsule.errors import InvalidDocument, InvalidInput, Problem

TEMPLATE = """\
# The settings of this Capsule store. This file marks the store's directory; every line below is a default.

# Give new files the permissions of your umask, instead of owner only (0600 in 0700 directories).
# shared = false

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
"""

_UNITS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d|w)")


def seconds(text: str) -> float:
    """A duration such as `90s`, `30m`, `2h`, `7d` or `1w`, in seconds.

    Raises:
        InvalidInput: `text` is no duration.
    """
    match = _DURATION.fullmatch(text.strip())
    if match is None:
        raise InvalidInput(f"{text!r} is no duration: write a number and ms, s, m, h, d or w, such as 30m")
    return float(match[1]) * _UNITS[match[2]]


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings in a `capsule.toml`; durations in seconds, sizes in bytes.

    Attributes:
        unknown: A problem for each setting that this version doesn't know.
    """

    shared: bool = False
    append: str = "splice"
    mutex_timeout_s: float = 10.0
    lock_ttl_s: float = 1800.0
    message_bytes: int = 10_000_000
    document_bytes: int = 500_000_000
    notification_files: tuple[str, ...] = ("CLAUDE.md", "AGENTS.md")
    unknown: tuple[Problem, ...] = field(default=())

    @property
    def of_storage(self) -> dict[str, Any]:
        """The settings of the storage engine, as its keyword arguments."""
        names = ("shared", "append", "mutex_timeout_s", "document_bytes")
        return {name: getattr(self, name) for name in names}


def _duration(value: Any) -> float:
    if isinstance(value, str):
        return seconds(value)
    raise InvalidInput(f"{value!r} is no duration: write it in quotes, such as {'30m'!r}")


def _flag(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    raise InvalidInput(f"{value!r} is neither true nor false")


def _append(value: Any) -> str:
    if value in ("splice", "replace"):
        return str(value)
    raise InvalidInput(f'{value!r} is neither "splice" nor "replace"')


def _bytes(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    raise InvalidInput(f"{value!r} is no number of bytes above 0")


def _names(value: Any) -> tuple[str, ...]:
    if isinstance(value, list) and all(isinstance(name, str) and name and "\0" not in name for name in value):
        return tuple(value)
    raise InvalidInput(f"{value!r} is no list of file names")


_KNOWN = {
    "shared": ("shared", _flag),
    "storage.append": ("append", _append),
    "storage.mutex_timeout": ("mutex_timeout_s", _duration),
    "lock.ttl": ("lock_ttl_s", _duration),
    "limits.message_bytes": ("message_bytes", _bytes),
    "limits.document_bytes": ("document_bytes", _bytes),
    "notifications.files": ("notification_files", _names),
}


def _flat(table: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def parse(data: bytes, path: str) -> Settings:
    """The settings in the bytes of a `capsule.toml`.

    Raises:
        InvalidDocument: It is no TOML, or a setting has a value that can't be accepted.
    """
    try:
        given = _flat(tomllib.loads(data.decode()))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        place = re.search(r"line (\d+), column (\d+)", str(error))
        line, column = (int(place[1]), int(place[2])) if place else (0, 0)
        raise InvalidDocument.of([Problem(path, line, column, "", f"is no TOML: {error}")]) from error
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in _KNOWN:
            attribute, check = _KNOWN[name]
            try:
                values[attribute] = check(value)
            except InvalidInput as error:
                raise InvalidDocument.of([Problem(path, 0, 0, name, str(error))]) from error
    return Settings(**values, unknown=tuple(_unknown(name, data, path) for name in given if name not in _KNOWN))


def _unknown(name: str, data: bytes, path: str) -> Problem:
    """The problem of a setting that this version doesn't know."""
    from difflib import get_close_matches

    last = name.rpartition(".")[2]
    key = re.compile(rf"""^\s*(?:[\w."'-]+\.\s*)?["']?{re.escape(last)}["']?\s*=""")
    line = next((n for n, line in enumerate(data.decode().splitlines(), 1) if key.match(line)), 0)
    by_last = {known.rpartition(".")[2]: known for known in _KNOWN}
    near = get_close_matches(name, _KNOWN, 1) or [by_last[match] for match in get_close_matches(last, by_last, 1)]
    meant = f"; did you mean {near[0]}?" if near else f"; the settings are: {', '.join(_KNOWN)}"
    return Problem(path, line, 1, name, f"is no setting that this version of Capsule knows{meant}")
