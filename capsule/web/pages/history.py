"""What is told of a whole conversation: its tree, its context with its summaries and forks, its
versions in git.

What must stay true: these pages read the whole conversation, and beyond it only when they are asked
to: the project of a context only for the store's owner.
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

#: Columns that the tree is drawn in: deeper branches stand in the last one.
_COLUMNS: Final = 8
#: The number of versions that are listed, unless more are asked for.
_VERSIONS: Final = 50


class Run(NamedTuple):
    """Messages that follow each other without a branch.

    Attributes:
        places: Their places.
        column: The column that it is drawn in, from 0.
        above: The row of the run that it answers; -1: none.
        is_active: Whether it is on the active branch, from its first message on.
    """

    places: list[int]
    column: int
    above: int
    is_active: bool


def runs_of(tree: Tree, current: str | None) -> list[Run]:
    """The runs of a tree, each after the one that it answers; of several answers the active or
    newest comes last.
    """
    active, seen, runs = set(tree.path(current)), set[int](), list[Run]()
    for root in [
        *tree.children.get(-1, []),
        *range(len(tree)),
    ]:  # Those in a circle hang on no root.
        stack = [(root, 0, -1)]
        while stack:
            place, column, above = stack.pop()
            if place in seen:
                continue
            places = [place]
            seen.add(place)
            while len(below := tree.children.get(places[-1], [])) == 1 and below[0] not in seen:
                places += below
                seen.add(below[0])
            row = len(runs)
            runs.append(Run(places, min(column, _COLUMNS - 1), above, place in active))
            main = next((child for child in below if child in active), below[-1] if below else None)
            ordered = sorted(below, key=lambda child: (child == main, child))
            stack += [(child, column + (child != main), row) for child in reversed(ordered)]
    return runs


def _tree(view: View) -> Response:
    id = view.at()
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
    id = view.at()
    head, context = view.store.head(id), view.store.context.get(id)
    drifted = None
    if view.asked("drift") and not drift.is_empty(context):
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
    id, before, after = view.at(), view.asked("before"), view.asked("after")
    head, problem, steps, diff = view.store.head(id), "", list[Any](), None
    limit = (
        int(asked) if (asked := view.asked("limit")).isdecimal() and len(asked) < 7 else _VERSIONS
    )
    try:
        clone = rooms.open_clone(view.store)
        steps = list(clone.log(id, limit=limit + 1))
        if before:
            text = clone.diff(id, before, after or None).text().decode("utf-8", "replace")
            diff = (
                TextRenderer(0).code(text[text.find("\n@@") + 1 :], "diff") if text else ""
            )  # Without the names of files.
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
