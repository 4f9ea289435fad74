"""Draw the branches of a conversation as a tree of text.

Messages are named by their position in the file, as in `Tree`. A message with one answer continues
the line of its branch. Several answers are alternatives: each gets an indented branch of its own.

What must stay true: a line fits a terminal, however deep the branches are. A tree of any depth is
drawn without recursion. Messages that answer each other in a circle are drawn too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from capsule_cli.shared.output import one_line

if TYPE_CHECKING:
    from capsule.format.tree.tree import Tree


#: Most characters before a message. A longer prefix is shortened from the left.
_MAX_PREFIX = 45

Entry = Mapping[str, Any]


def marks_of(tree: Tree, *, answers: bool = False) -> dict[int, str]:
    """Return the marks of messages by position: `2/3` for the second of three alternatives.

    Args:
        tree: The tree of the conversation.
        answers: Whether to mark also messages that do not answer the message before them.
    """
    marks = {position: f"{number}/{count}" for position, (number, count) in tree.forks.items()}
    if answers:
        for position, parent in enumerate(tree.parents):
            if parent == position - 1:
                continue
            answered = f"answers @{parent}" if parent >= 0 else "answers none"
            fork = marks.get(position)
            marks[position] = answered if fork is None else f"{fork}, {answered}"
    return marks


def as_lines(history: Sequence[Entry], tree: Tree, current: str | None) -> Iterator[str]:
    """Yield the tree as a line for each message, with a star at the messages of the active branch.

    Args:
        history: The messages.
        tree: Their tree.
        current: The id of the last message of the active branch.
    """
    active = set(tree.path(current))
    drawn = set[int]()
    roots = tree.children.get(-1, [])
    first_prefixes = ("", "") if len(roots) < 2 else ("+- ", "|  ")
    # Messages in a circle are below no root, so each message is tried as a root.
    for root in [*roots, *range(len(tree))]:
        if root in drawn:
            continue
        # Each item has a position, the prefix of its line, and the prefix of the lines below it.
        stack = [(root, *first_prefixes)]
        while stack:
            position, prefix, prefix_below = stack.pop()
            if position in drawn:
                continue
            drawn.add(position)
            star = "*" if position in active else " "
            yield _line(history[position], position, tree, prefix, star)
            children = tree.children.get(position, [])
            if len(children) == 1:
                stack.append((children[0], prefix_below, prefix_below))
                continue
            for child in reversed(children):
                rail = "|  " if child != children[-1] else "   "
                child_prefix = _shortened(prefix_below + "+- ")
                stack.append((child, child_prefix, _shortened(prefix_below + rail)))


def _shortened(prefix: str) -> str:
    """Return a prefix that is at most `_MAX_PREFIX` long if `prefix` was so before its last part."""
    if len(prefix) <= _MAX_PREFIX:
        return prefix
    removed = 6 if prefix.startswith("...") else 3
    return "..." + prefix[removed:]


def _line(message: Entry, position: int, tree: Tree, prefix: str, star: str) -> str:
    from capsule.format.text.titles import title_from

    fork = tree.forks.get(position)
    mark = f" {fork[0]}/{fork[1]}" if fork else ""
    text = one_line(title_from(str(message.get("content") or "")))
    return f"{star} {prefix}@{position} {one_line(str(message.get('role')))}{mark}: {text}".rstrip()


def as_objects(tree: Tree, history: Sequence[Entry], current: str | None) -> list[dict[str, Any]]:
    """Return the tree for a program: one object for each message, in the order of the file."""
    active = set(tree.path(current))
    objects = []
    for position, parent in enumerate(tree.parents):
        number, count = tree.forks.get(position, (1, 1))
        objects.append(
            {
                "id": tree.ids[position],
                "at": position,
                "role": history[position].get("role"),
                "parent": tree.ids[parent] if parent >= 0 else None,
                "number": number,
                "count": count,
                "active": position in active,
                "leaf": position not in tree.children,
            }
        )
    return objects
