"""The pages of a whole conversation: its tree of branches, its context, and its versions in git.

What must stay true: each page reads the whole conversation. Files of the project are read only on
request, and only for the store's owner.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Final, NamedTuple

from starlette.responses import Response

from capsule import rooms
from capsule.context import drift
from capsule.errors import GitFailed, NotFound, Refused
from capsule.format.text.titles import title_from
from capsule.format.tree.tree import Tree
from capsule.transfer.rendering.texts import TextRenderer
from capsule.web.pages.conversation import anchor, titled
from capsule.web.view import View, get

#: The number of columns of the tree. Deeper branches are drawn in the last one.
_COLUMNS: Final = 8
#: The number of versions in the list, unless more are requested.
_VERSIONS: Final = 50


class Run(NamedTuple):
    """Messages that follow each other without a branch. It is one row of the drawing.

    Attributes:
        places: The positions of its messages.
        column: The column of the drawing, from 0.
        above: The row of the run that it answers. -1: none.
        is_active: Whether its first message is on the active branch.
    """

    places: list[int]
    column: int
    above: int
    is_active: bool


def runs_of(tree: Tree, current: str | None) -> list[Run]:
    """Return the runs of a tree, each after the run that it answers.

    Of several answers to a message, the active one is last, or the newest if none is active. It is
    drawn in the column of the message, and the others in the next column.
    """
    active = set(tree.path(current))
    drawn: set[int] = set()
    runs: list[Run] = []
    # Messages in a circle have no root, so all positions are tried after the roots.
    for root in [*tree.children.get(-1, []), *range(len(tree))]:
        stack = [(root, 0, -1)]
        while stack:
            first, column, parent_row = stack.pop()
            if first in drawn:
                continue
            positions = [first]
            drawn.add(first)
            children = tree.children.get(first, [])
            while len(children) == 1 and children[0] not in drawn:
                positions += children
                drawn.add(children[0])
                children = tree.children.get(positions[-1], [])
            row = len(runs)
            runs.append(Run(positions, min(column, _COLUMNS - 1), parent_row, first in active))
            active_children = [child for child in children if child in active]
            main_child: int | None = None
            if active_children:
                main_child = active_children[0]
            elif children:
                main_child = children[-1]
            side_children = sorted(child for child in children if child != main_child)
            # The stack is taken from its end, so the main child is pushed first.
            if main_child is not None:
                stack.append((main_child, column, row))
            stack += [(child, column + 1, row) for child in reversed(side_children)]
    return runs


def _tree(view: View) -> Response:
    id = view.path_part()
    head = view.store.head(id)
    history, tree, current = view.store.branches.tree(id)
    return view.page(
        "conversation_tree.html",
        head=head,
        history=history,
        tree=tree,
        runs=runs_of(tree, current),
        anchor=anchor,
        title_from=title_from,
    )


def _context(view: View) -> Response:
    id = view.path_part()
    head = view.store.head(id)
    context = view.store.context.get(id)
    drifted = None
    if view.parameter("drift") and not drift.is_empty(context):
        if view.store.agent is not None:
            raise Refused("only the store's owner may compare a context with its project", path="")
        drifted = drift.check(context)
    return view.page(
        "conversation_context.html",
        head=head,
        about=context.get("metadata") or {},
        is_empty=drift.is_empty(context),
        characters=len(context.get("fullContext") or ""),
        drift=drifted,
        summaries=view.store.summaries.list(id),
        forks=view.store.forks.list(id),
        titled=partial(titled, view),
    )


def _versions(view: View) -> Response:
    """Show the versions in git, and the difference of two of them if they are given."""
    id = view.path_part()
    before = view.parameter("before")
    after = view.parameter("after")
    head = view.store.head(id)
    requested_limit = view.parameter("limit")
    limit = _VERSIONS
    if requested_limit.isdecimal() and len(requested_limit) < 7:
        limit = int(requested_limit)
    problem = ""
    steps: list[Any] = []
    diff = None
    try:
        clone = rooms.open_clone(view.store)
        steps = list(clone.log(id, limit=limit + 1))
        if before:
            text = clone.diff(id, before, after or None).text().decode("utf-8", "replace")
            diff = ""
            if text:
                changes = text[text.find("\n@@") + 1 :]  # Without the names of files.
                diff = TextRenderer(0).code(changes, "diff")
    except (NotFound, Refused, GitFailed) as error:
        problem = error.message
    return view.page(
        "conversation_versions.html",
        head=head,
        problem=problem,
        steps=steps[:limit],
        more=limit + _VERSIONS if len(steps) > limit else None,
        diff=diff,
        before=before,
        after=after,
    )


ROUTES = [
    get("/c/{id}/tree", _tree),
    get("/c/{id}/context", _context),
    get("/c/{id}/versions", _versions),
]
