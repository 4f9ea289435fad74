"""A conversation's branches, drawn.

What must stay true: a line is as wide as a terminal at the most, however deep the branches lie; and
a tree of any depth is drawn, without recursion.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capsule_cli.shared.output import one_line

if TYPE_CHECKING:
    from capsule.format.tree.tree import Tree


_WIDEST = 45

Entry = Mapping[str, Any]


def marks_of(tree: Tree, *, answers: bool = False) -> dict[int, str]:
    """The marks beside messages, by place: `2/3` among alternatives; with `answers`, also the
    answered message.
    """
    marks = {place: f"{number}/{count}" for place, (number, count) in tree.forks.items()}
    if answers:
        for place, parent in enumerate(tree.parents):
            if parent != place - 1:
                said = f"answers @{parent}" if parent >= 0 else "answers none"
                marks[place] = f"{marks[place]}, {said}" if place in marks else said
    return marks


def as_lines(history: Sequence[Entry], tree: Tree, current: str | None) -> Iterator[str]:
    """The tree, a line for each message, with a star at the messages of the active branch."""
    on, seen = set(tree.path(current)), set[int]()
    roots = tree.children.get(-1, [])
    for root in [
        *roots,
        *range(len(tree)),
    ]:  # Those that answer each other in a circle hang on no root.
        if root in seen:
            continue
        stack = [(root, *(("", "") if len(roots) < 2 else ("+- ", "|  ")))]
        while stack:
            place, first, rest = stack.pop()
            if place in seen:
                continue
            seen.add(place)
            yield _line(history[place], place, tree, first, "*" if place in on else " ")
            children = tree.children.get(place, [])
            if len(children) == 1:
                stack.append((children[0], rest, rest))
            else:
                for child in reversed(children):
                    rail = "|  " if child != children[-1] else "   "
                    stack.append((child, _narrow(rest + "+- "), _narrow(rest + rail)))


def _narrow(prefix: str) -> str:
    return (
        prefix
        if len(prefix) <= _WIDEST
        else "..." + prefix[6:]
        if prefix.startswith("...")
        else "..." + prefix[3:]
    )


def _line(message: Entry, place: int, tree: Tree, prefix: str, star: str) -> str:
    from capsule.format.text.titles import title_from

    fork = tree.forks.get(place)
    mark = f" {fork[0]}/{fork[1]}" if fork else ""
    text = one_line(title_from(str(message.get("content") or "")))
    return f"{star} {prefix}@{place} {one_line(str(message.get('role')))}{mark}: {text}".rstrip()


def as_objects(tree: Tree, history: Sequence[Entry], current: str | None) -> list[dict[str, Any]]:
    """The tree for a program: an object a message, in the order of the file."""
    on = set(tree.path(current))
    objects = []
    for place, parent in enumerate(tree.parents):
        number, count = tree.forks.get(place, (1, 1))
        fields = {"id": tree.ids[place], "at": place, "role": history[place].get("role")}
        fields |= {
            "parent": tree.ids[parent] if parent >= 0 else None,
            "number": number,
            "count": count,
        }
        objects.append(fields | {"active": place in on, "leaf": place not in tree.children})
    return objects
