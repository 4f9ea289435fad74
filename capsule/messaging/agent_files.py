"""The declarations in the files of agents: the frontmatter of `.claude/agents/*.md`, which clients
read too.

What must stay true: a file is read and never written, and declares something about its own agent
only. A file with an error is reported with its line and left out as a whole, and the others are
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

_MAX_BYTES = 1_000_000


def _check_name(value: Any) -> str:
    has_project = "@" in text(value)  # The part after the `@` would name a project.
    if value.strip() and value.isprintable() and not has_project:
        return str(value)
    raise InvalidInput(f"{value[:60]!r} is not a name of an agent")


#: The fields of a file, with their checks.
_CHECKS: dict[str, Check] = {
    "name": _check_name,
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
        project: The folder of the agent's project. None: the agent belongs to the person, for all
            projects.
        fields: Its checked fields. `name` is one of them. A field of `channels` has a dot in its
            name: `channels.global`.
    """

    path: str
    project: str | None
    fields: Mapping[str, Any]


def agents_in(folder: str, project: str | None) -> Iterator[AgentFile | Problem]:
    """Yield the files of the agents in a folder, and the problems of files with errors, in the order
    of the names.

    Args:
        folder: The folder that `.claude` is in.
        project: As `AgentFile` has it.

    Raises nothing. Cost: reading each file.
    """
    directory = os.path.join(folder, ".claude", "agents")
    try:
        file_names = sorted(name for name in os.listdir(directory) if name.endswith(".md"))
    except OSError:
        return
    for file_name in file_names:
        path = os.path.join(directory, file_name)
        try:
            fields = _fields(read_if_exists(os.path.realpath(path), _MAX_BYTES) or b"", path)
        except InvalidDocument as error:
            yield from error.problems
        except CapsuleError as error:
            yield Problem(path, 0, 0, "", error.message)
        else:
            if "name" in fields:
                yield AgentFile(path, project, fields)


def _fields(data: bytes, path: str) -> dict[str, Any]:
    """Return the checked fields of a file. Empty: it has no frontmatter. Raises InvalidDocument."""
    import yaml  # type: ignore[import-untyped]
    from frontmatter import parse

    try:
        content = data.decode("utf-8-sig")
        frontmatter, _ = parse(content)
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        line = 0
        column = 0
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            line = mark.line + 1
            column = mark.column + 1
        reason = (
            f"has a frontmatter that is not valid YAML: {getattr(error, 'problem', None) or error}"
        )
        raise InvalidDocument.of([Problem(path, line, column, "", reason)]) from error
    channels = frontmatter.pop("channels", None) or {}
    fields = {str(name): value for name, value in frontmatter.items()}
    if isinstance(channels, dict):
        for name, value in channels.items():
            fields[f"channels.{name}"] = value
    else:
        fields["channels"] = channels  # It is reported below as an unknown field.
    problems = []
    checked = {}
    for name, value in fields.items():
        try:
            if name in _CHECKS:
                checked[name] = _CHECKS[name](value)
            elif name.startswith("channels") or get_close_matches(name, _CHECKS, 1, 0.8):
                raise InvalidInput(f"unknown field{suggestion(name, _CHECKS)}")
        except InvalidInput as error:
            problems.append(Problem(path, _line_of(name, content), 1, name, error.message))
    if problems:
        raise InvalidDocument.of(problems)
    return checked


def _line_of(name: str, content: str) -> int:
    """Return the number of the line of a field. 1: it is not found."""
    key = re.escape(name.rpartition(".")[2])
    pattern = re.compile(rf"""\s*["']?{key}["']?\s*:""")
    for number, line in enumerate(content.splitlines(), 1):
        if pattern.match(line):
            return number
    return 1
