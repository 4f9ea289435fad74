"""`delete --all`: every conversation of a store to the trash.

What must stay true: a person is asked twice, and a script says --yes; one that can't be deleted does not keep the
others from it, and is named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from capsule.errors import CapsuleError, InvalidInput
from capsule.ids import is_id
from capsule_cli.boundary import report_error
from capsule_cli.consent import ensure_agreed
from capsule_cli.opening import store_of
from capsule_cli.options import asked
from capsule_cli.output import one_line, out, out_json, progress

if TYPE_CHECKING:
    from capsule import Store

__all__ = ["delete_all"]


def delete_all(ctx: typer.Context, *, yes: bool) -> None:
    """Move every conversation to the trash."""
    with store_of(ctx) as store:
        many = len(store.ids())
        if many:
            ensure_agreed(
                f"Delete every conversation of {one_line(store.root)}, {many} of them, archived and pinned ones too?",
                f"Really all {many}? Each goes to the trash, and is brought back by its id alone.",
                yes=yes,
            )
        told, failed = _gone(store, many)
    if asked(ctx).json:
        out_json(told)
    else:
        gone = len(told) - len(failed)
        out(
            f"{_count(gone)} {'is' if gone == 1 else 'are'} in the trash"
            + ("; undo one: capsule restore ID" if gone else "")
            + (f"; {len(failed)} stayed" if failed else "")
        )
    for failure in failed:
        report_error(failure, as_json=asked(ctx).json)
    if failed:
        raise typer.Exit(failed[0].exit_code)


def _gone(store: Store, many: int) -> tuple[list[dict[str, Any]], list[CapsuleError]]:
    """What became of each, and why some stayed."""
    titles = {head.id: head.title for head in store.heads()}
    told: list[dict[str, Any]] = []
    failed: list[CapsuleError] = []
    with progress("deleting") as bar:
        for at, (id, became) in enumerate(store.delete_all(), 1):
            if isinstance(became, CapsuleError):
                if not is_id(id):
                    path = f"{store.root}/conversations/{id}.json"
                    became = InvalidInput(f"{path}: {became.message}; rename the file, or move it out of the way")
                named = f"{one_line(titles[id])!r}: " if titles.get(id) else ""
                failed.append(type(became)(f"{named}{became.message}", **became.fields))
                told.append({"id": id, "error": became.message})
            else:
                told.append({"id": id, "deletedAt": became.deleted_at, "undo": f"capsule restore {id}"})
            if bar:
                bar(at, max(at, many))
    return told, failed


def _count(many: int) -> str:
    return f"{many} conversation" if many == 1 else f"{many} conversations"
