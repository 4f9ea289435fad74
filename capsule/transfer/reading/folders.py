"""Which folders are imported: of a folder those that are not hidden, and those in which programs
keep conversations.

What must stay true: an import and one that goes on (`following`) enter the same folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from functools import cache
from glob import escape
from itertools import dropwhile, takewhile
from pathlib import Path
from typing import TYPE_CHECKING

from capsule.transfer.registry import formats

if TYPE_CHECKING:
    from capsule.transfer.interface import Format

#: The variables of the environment that name another folder in place of a usual one.
_MOVED = {
    "~/.claude/": "CLAUDE_CONFIG_DIR",
    "~/.codex/": "CODEX_HOME",
    "~/.config/": "XDG_CONFIG_HOME",
    "~/.local/share/": "XDG_DATA_HOME",
}


@cache
def _known() -> frozenset[str]:
    """The folders in which programs keep conversations, each from where it begins:
    `.specstory/history`.
    """
    folders = (
        place.removeprefix("~/").split("/")[:-1]
        for format in formats().values()
        for place in format.places
    )
    return frozenset("/".join(takewhile(lambda part: "*" not in part, parts)) for parts in folders)


def places_of(format: Format, environment: Mapping[str, str]) -> list[str]:
    """Return the patterns of the files that a program keeps on this machine, each once.

    Args:
        format: The format of the program. Its usual places begin with `~/`.
        environment: The variables of the environment, which may move a place. Both places are
            returned then.
    """
    places: dict[str, str] = {}
    for place in format.places:
        places.setdefault(os.path.expanduser(place), place)
        for usual, variable in _MOVED.items():
            folder = environment.get(variable)
            if folder and place.startswith(usual):
                moved = os.path.join(escape(os.path.abspath(folder)), place.removeprefix(usual))
                places.setdefault(moved, moved)
    return list(places.values())


def walked(top: str | Path, folder: str | Path) -> Iterator[tuple[str, list[str]]]:
    """A folder in `top` and those in it, sorted, each with the names of its files; hidden ones only
    as `is_entered`.
    """
    for path, folders, names in os.walk(folder):
        folders.sort()
        if is_entered(path, top):
            yield path, sorted(names)
        elif is_entered(path, top, on_the_way=True):
            yield path, []
        else:
            folders.clear()


def is_entered(folder: str, top: str | Path, *, on_the_way: bool = False) -> bool:
    """Whether the files of a folder are imported: no folder on the way is hidden, or a program
    keeps them there.

    `top` is the folder that was given, and with `on_the_way` a folder counts too in which there may
    be such a folder.
    """
    parts = Path(os.path.relpath(folder, top)).parts
    hidden = "/".join(dropwhile(lambda part: not part.startswith(".") or part == "..", parts))
    if not hidden or any(f"{hidden}/".startswith(f"{known}/") for known in _known()):
        return True
    return on_the_way and any(known.startswith(f"{hidden}/") for known in _known())
