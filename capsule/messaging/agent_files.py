"""What the files of agents declare: the frontmatter of `.claude/agents/*.md`, which clients read
too.

What must stay true: a file is read and never written, and says something of its own agent only. A
file that is wrong is told with its line, is left out as a whole, and keeps no other from being
read. The module knows no store.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from capsule.disk.whole_files import read_if_exists
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, Problem
from capsule.settings import DISCOVERABLE, DM, Check, flag, names, suggestion, text

_MOST_BYTES = 1_000_000


def _name(value: Any) -> str:
    if (
        text(value).strip() and value.isprintable() and "@" not in value
    ):  # What is behind an `@` is a project.
        return str(value)
    raise InvalidInput(f"{value[:60]!r} is not a name of an agent")


_KNOWN: dict[str, Check] = {
    "name": _name,
    "description": lambda value: text(value).strip(),
    "channels.global": names,
    "channels.project": names,
    "channels.exclude": names,
    "never_default": flag,
    "discoverable": DISCOVERABLE,
    "dm_policy": DM,
    "dm_whitelist": names,
}


@dataclass(frozen=True, slots=True)
class AgentFile:
    """The file of an agent.

    Attributes:
        path: The file.
        project: The folder of the agent's project; None: the agent is of the person, for all
            projects.
        fields: The fields that it gives, checked; `name` is one of them. A field of `channels` has
            a dot in its name.
    """

    path: str
    project: str | None
    fields: Mapping[str, Any]


def agents_in(folder: str, project: str | None) -> Iterator[AgentFile | Problem]:
    """The files of the agents in a folder, and what is wrong with others, in the order of their
    names.

    Args:
        folder: The folder that `.claude` is in.
        project: As `AgentFile` has it.

    Raises nothing. Cost: reading each file.
    """
    place = os.path.join(folder, ".claude", "agents")
    try:
        names = sorted(name for name in os.listdir(place) if name.endswith(".md"))
    except OSError:
        return
    for path in (os.path.join(place, name) for name in names):
        try:
            fields = _fields(read_if_exists(os.path.realpath(path), _MOST_BYTES) or b"", path)
        except InvalidDocument as error:
            yield from error.problems
        except CapsuleError as error:
            yield Problem(path, 0, 0, "", error.message)
        else:
            if "name" in fields:
                yield AgentFile(path, project, fields)


def _fields(data: bytes, path: str) -> dict[str, Any]:
    """The fields in the bytes of a file; none if it has no frontmatter. Raises InvalidDocument."""
    import yaml  # type: ignore[import-untyped]
    from frontmatter import parse

    try:
        words = data.decode("utf-8-sig")
        given = parse(words)[0]
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        place = getattr(error, "problem_mark", None)
        line, column = (place.line + 1, place.column + 1) if place else (0, 0)
        reason = (
            f"has a frontmatter that is not valid YAML: {getattr(error, 'problem', None) or error}"
        )
        raise InvalidDocument.of([Problem(path, line, column, "", reason)]) from error
    channels = given.pop("channels", None) or {}
    fields = {str(name): value for name, value in given.items()}
    fields |= (
        {f"channels.{name}": value for name, value in channels.items()}
        if isinstance(channels, dict)
        else {"channels": channels}
    )
    problems, checked = [], {}
    for name, value in fields.items():
        try:
            if name in _KNOWN:
                checked[name] = _KNOWN[name](value)
            elif name.startswith("channels") or get_close_matches(name, _KNOWN, 1, 0.8):
                raise InvalidInput(f"unknown field{suggestion(name, _KNOWN)}")
        except InvalidInput as error:
            problems.append(Problem(path, _line(name, words), 1, name, error.message))
    if problems:
        raise InvalidDocument.of(problems)
    return checked


def _line(name: str, words: str) -> int:
    """The line of a field; 1: it isn't found."""
    key = re.compile(rf"""\s*["']?{re.escape(name.rpartition(".")[2])}["']?\s*:""")
    return next((number for number, line in enumerate(words.splitlines(), 1) if key.match(line)), 1)
