"""The head of a conversation: its title, its tags, its place in the list, and who holds it."""

from __future__ import annotations

import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

from capsule.errors import Refused
from capsule_cli.completion import complete_tag
from capsule_cli.shared.asked import asked
from capsule_cli.shared.inputs import ensure_agreed
from capsule_cli.shared.opening import conversation, holder, store_of
from capsule_cli.shared.options import Id, Yes, argument, flag, option, refuse, usage
from capsule_cli.shared.output import answer, in_terminal, listing, one_line, say
from capsule_cli.shared.passing import passing

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.store import CoreStore

does = passing(store_of)

_TAG, _UNTAG = "Add this tag. Repeatable.", "Remove this tag. Repeatable."
_ARCHIVE = "Take it out of the list, or bring it back."
Tags = Annotated[list[str], argument("TAG", "The tags to add.", ..., autocompletion=complete_tag)]


def rename(
    id: Id,
    title: str | None = argument(
        "TITLE", "The new title. With --suggest you may leave it out: the first message then gives one."
    ),
    suggest: bool = flag(
        "--suggest", "Keep a title that a person gave, unless they agree to the new one (when asked, or by --yes)."
    ),
    yes: Yes = False,
) -> None:
    """Change the title of a conversation, as `set --title` does."""
    refuse(title is None and not suggest, "the title is missing", "TITLE")
    with conversation(id) as (store, id):
        head = _suggested(store, id, title, yes=yes) if suggest else store.rename(id, title or "")
    answer(head.as_json(), f"{head.id}: renamed to {one_line(head.title)!r}")


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
            reason = f"{id}: its title {there.title!r} was given by a person, and stays unless they agree; "
            raise Refused(reason + "say so with --yes", path=there.path)
        ensure_agreed(f"Replace {one_line(there.title)!r} by {one_line(title)!r}?", yes=yes)
        head = store.titles.suggest(id, title, instead_of=there.title)  # None: it was renamed while the person thought.
    return head


def _changed(head: Head, **_: str) -> str:
    flags = [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    return f"{head.id}: " + " · ".join(
        [repr(one_line(head.title)), *(f"#{one_line(tag)}" for tag in head.tags), *flags]
    )


tag = does("Add tags to a conversation, as `set --tag` does. The tags that it has stay.")(
    "update", _changed, id=Id, tagged=Tags
)
pin = does("Pin a conversation to the top of the list, as `set --pin` does.")(
    lambda store, id: store.update(id, pinned=True), _changed, id=Id
)
archive = does("Archive a conversation, as `set --archive` does. `list` then shows it only with --archived.")(
    lambda store, id: store.update(id, archived=True), _changed, id=Id
)
set_ = does("Change the title, the tags, the pin or the archive flag of a conversation, in one write.")(
    lambda store, id, tagged, untagged, **more: store.update(id, tagged=tagged or (), untagged=untagged or (), **more),
    _changed,
    id=Id,
    title=Annotated[str | None, option("--title TITLE", "Give it this title.", ...)],
    tagged=Annotated[list[str] | None, option("--tag TAG", _TAG, ..., autocompletion=complete_tag)],
    untagged=Annotated[list[str] | None, option("--untag TAG", _UNTAG, ..., autocompletion=complete_tag)],
    pinned=Annotated[bool | None, option("--pin/--unpin", "Pin it to the top of the list, or unpin it.", ...)],
    archived=Annotated[bool | None, option("--archive/--unarchive", _ARCHIVE, ...)],
)


def lock(id: Id) -> None:
    """Lock a conversation for a named holder until `unlock`. Nobody else can write to it meanwhile."""
    name = holder()
    if name is None:
        raise usage(
            "a lock needs a holder that outlives the command: name one with --instance NAME, "
            "or in the environment with CAPSULE_INSTANCE=NAME",
            "--instance",
        )
    with conversation(id) as (store, id):
        # Not in a `with`: the lock is to stay when the command is over.
        store.locks.take(id)
        head = store.head(id)
    answer(head.as_json(), f"{id}: locked for {name}; release it with: capsule unlock {id} --instance {name}")


unlock = does("Release the lock of a conversation.")(
    "locks.release",
    lambda released, id, **_: f"{id}: {'unlocked' if released else 'was not locked'}",
    value=lambda released, id, force: {"id": id, "released": released},
    id=Id,
    force=Annotated[bool, option("--force", "Take the lock away from whoever holds it.", ...)],
)


def locks(orphaned: bool = flag("--orphaned", "List only locks whose holder is gone.")) -> None:
    """List the locks, and say whether each holder is alive: held, orphaned, or elsewhere (on another host)."""
    with store_of() as store:
        states = [state for state in store.locks.list() if not orphaned or state.state == "orphaned"]
    instances = slice(8 if in_terminal() else None)
    rows = [
        (lock.id, lock.state, lock.name or lock.instance[instances], f"{lock.user}@{lock.host}", lock.since, lock.title)
        for lock in states
    ]
    columns = ("id", "state", "holder", "who", "since", "title")
    listing([asdict(state) for state in states], columns, rows, "no conversation is locked")
    if not asked.json and any(state.state == "orphaned" for state in states):
        say("an orphaned lock stands in nobody's way: the next write takes it over; or: capsule unlock ID --force")
