"""What the shell offers when a person presses Tab.

What must stay true: a completion prints candidates or nothing; it never fails, for there is nobody to read why.
"""

from __future__ import annotations

import typer

from capsule.errors import CapsuleError

__all__ = ["complete_id", "complete_id_or_next", "complete_tag", "complete_trashed"]


def complete_id(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The ids of the conversations that begin with `incomplete`, latest first, with their titles."""
    from capsule_cli.opening import store_of
    from capsule_cli.output import one_line

    try:
        with store_of(ctx) as store:
            heads = [head for head in store.heads() if head.id.startswith(incomplete)]
    except (CapsuleError, OSError):
        return []
    heads.sort(key=lambda head: head.updated_at, reverse=True)
    found = [(head.id, "damaged" if head.damaged else one_line(head.title) or "untitled") for head in heads]
    if incomplete.startswith("@"):
        found.append(("@last", "the conversation changed last"))
    return found


def complete_id_or_next(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """As `complete_id`, and what stands for the next new conversation."""
    found = complete_id(ctx, incomplete)
    return [*found, ("@next", "the next one that is made")] if incomplete.startswith("@") else found


def complete_tag(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The tags that begin with `incomplete`, the most used first."""
    from collections import Counter

    from capsule_cli.opening import store_of

    try:
        with store_of(ctx) as store:
            counts = Counter(tag for head in store.heads() for tag in head.tags if tag.startswith(incomplete))
    except (CapsuleError, OSError):
        return []
    return [(tag, f"{count} conversations" if count > 1 else "1 conversation") for tag, count in counts.most_common()]


def complete_trashed(ctx: typer.Context, incomplete: str) -> list[tuple[str, str]]:
    """The ids in the trash that begin with `incomplete`."""
    from capsule_cli.opening import store_of

    try:
        with store_of(ctx) as store:
            items = [*store.trash(), *(removed.trashed for removed in store.removed())]
            return [(item.id, f"deleted {item.deleted_at}") for item in items if item.id.startswith(incomplete)]
    except (CapsuleError, OSError):
        return []
