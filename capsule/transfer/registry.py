"""The formats there are: those of this package, and those that other packages add.

A package adds formats by an entry point of the group `capsule.formats`, whose value is a `Format` or a list of them.

What must stay true: a module that is missing or fails takes no other format away. The order is the order in which a
file is offered: the formats of others first, those that accept much last.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from importlib import import_module, metadata, util
from typing import TYPE_CHECKING

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.transfer.interface import Format

GROUP = "capsule.formats"
#: Modules of this package; each has FORMATS, a list.
_MODULES = (
    "plain.capsules",
    "web.chatgpt",
    "web.claude_ai",
    "agents.claude_code",
    "agents.codex",
    "agents.gemini",
    "agents.opencode",
    "agents.cursor",
    "web.llama_webui",
    "web.open_webui",
    "web.librechat",
    "agents.llm_logs",
    "agents.specstory",
    "agents.atif",
    "plain.jsonl",
    "plain.markdown",
    "plain.html",
)


@cache
def formats() -> dict[str, Format]:
    """All formats, by name.

    Cost: importing their modules at the first call.
    """
    found: dict[str, Format] = {}
    for entry in metadata.entry_points(group=GROUP):
        _add(found, entry.load())
    for name in _MODULES:
        if util.find_spec(module := f"capsule.transfer.formats.{name}") is not None:
            _add(found, import_module(module).FORMATS)
    return found


def _add(found: dict[str, Format], made: Format | Iterable[Format]) -> None:
    for one in made if isinstance(made, Iterable) else (made,):
        found.setdefault(one.name, one)


def format_named(name: str) -> Format:
    """The format of a name. Raises InvalidInput."""
    found = formats().get(name)
    if found is None:
        raise InvalidInput(f"{name[:60]!r} is no format; the formats are {', '.join(formats())}")
    return found
