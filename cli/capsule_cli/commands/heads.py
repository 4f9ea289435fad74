"""`set`: the title of a conversation, its tags and its place in the list."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from capsule.errors import Refused
from capsule_cli.completion import complete_tag
from capsule_cli.shared.inputs import ensure_agreed
from capsule_cli.shared.opening import conversation
from capsule_cli.shared.options import Id, Yes, flag, option, refuse
from capsule_cli.shared.output import answer, one_line

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.store import CoreStore


def set_(
    id: Id,
    title: str | None = option("--title TITLE", "Give it this title."),
    suggest: bool = flag(
        "--suggest",
        "Keep a title that a person gave, unless the person agrees to the new one (when "
        "asked, or by --yes). Without --title the first message gives one.",
    ),
    add: list[str] | None = option(
        "--add-tag TAG", "Add this tag. Repeatable.", autocompletion=complete_tag
    ),
    remove: list[str] | None = option(
        "--remove-tag TAG", "Remove this tag. Repeatable.", autocompletion=complete_tag
    ),
    pin: bool | None = option("--pin/--no-pin", "Pin it to the top of the list, or unpin it."),
    archive: bool | None = option(
        "--archive/--no-archive", "Hide it from the list, or show it again."
    ),
    yes: Yes = False,
) -> None:
    """Change the title, the tags, the pin or the archive flag of a conversation."""
    with conversation(id) as (store, id):
        if suggest:
            head, title = _suggested(store, id, title, yes=yes), None
        if not suggest or add or remove or not pin is archive is None:
            head = store.update(
                id,
                title=title,
                tagged=add or (),
                untagged=remove or (),
                pinned=pin,
                archived=archive,
            )
    flags = [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    said = [repr(one_line(head.title)), *(f"#{one_line(tag)}" for tag in head.tags), *flags]
    answer(head.as_json(), f"{head.id}: {' · '.join(said)}")


def _suggested(store: CoreStore, id: str, title: str | None, *, yes: bool) -> Head:
    """The head after a title was suggested.

    Raises:
        Refused: A person gave the title that stands there, and nobody can be asked.
        Stopped: They want to keep it.
    """
    title = store.titles.by_rule(id) if title is None else title
    refuse(not title, "no user message says what it is about; give a title", "TITLE")
    head = store.titles.suggest(id, title)
    while head is None:
        there = store.head(id)
        if there.title == title.strip(" \t"):
            return there
        if not yes and not sys.stdin.isatty():
            reason = (
                f"{id}: its title {there.title!r} was given by a person, and stays unless "
                "they agree; "
            )
            raise Refused(reason + "say so with --yes", path=there.path)
        ensure_agreed(f"Replace {one_line(there.title)!r} by {one_line(title)!r}?", yes=yes)
        head = store.titles.suggest(
            id, title, instead_of=there.title
        )  # None: it was renamed while the person thought.
    return head
