"""The values that the shell offers when a person presses Tab.

What must stay true: a completion prints candidates or nothing. It never fails, because nobody would
read the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeVar

from capsule import rooms
from capsule.errors import CapsuleError, Refused
from capsule_cli.shared.output import one_line, with_count
from capsule_cli.shared.stores import agent_name, open_store

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

S = TypeVar("S")
T = TypeVar("T")
Completion = Callable[[str], list[tuple[str, str]]]


def completion_of(
    open_store: Callable[[], AbstractContextManager[S]],
    read_items: Callable[[S], Iterable[T]],
    describe: Callable[[T], tuple[str, str]],
) -> Completion:
    """Return a completion for items of a store.

    Args:
        open_store: Opens the store.
        read_items: Returns the items of the store.
        describe: Returns the name of an item, which is completed, and a description of it.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        candidates = map(describe, _read_or_nothing(open_store, read_items))
        return [candidate for candidate in candidates if candidate[0].startswith(incomplete)]

    return complete


def _read_or_nothing(
    open_store: Callable[[], AbstractContextManager[S]], read_items: Callable[[S], Iterable[T]]
) -> list[T]:
    """Return the items of the store. Return none if that fails."""
    try:
        with open_store() as store:
            return list(read_items(store))
    except (CapsuleError, OSError):
        return []


def _open_for_agent() -> AbstractContextManager[CoreStore]:
    """Open the store for the agent of the option or the environment, else for its owner."""
    from capsule.store.store import CoreStore

    return open_store(CoreStore, agent_name())


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the conversations that begin with `incomplete`, with their titles, in the
    order of `list`.
    """
    from capsule.engines.queries import Filter

    heads = _read_or_nothing(_open_for_agent, lambda store: store.list(Filter(archived=None)).heads)
    pairs = [
        (head.id, "damaged" if head.damaged else one_line(head.title) or "untitled")
        for head in heads
    ]
    pairs += [("@last", "the conversation changed last")] if incomplete.startswith("@") else []
    return [pair for pair in pairs if pair[0].startswith(incomplete) or pair[0][0] == "@"]


def complete_id_or_next(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids that begin with `incomplete`, and `@next`, the next new conversation."""
    candidates = complete_id(incomplete)
    if incomplete.startswith("@"):
        candidates.append(("@next", "the next one that is made"))
    return candidates


def complete_tag(incomplete: str) -> list[tuple[str, str]]:
    """Return the tags that begin with `incomplete`, the most used first."""
    from collections import Counter

    tags = _read_or_nothing(
        _open_for_agent, lambda store: [tag for head in store.heads() for tag in head.tags]
    )
    counts = Counter(tag for tag in tags if tag.startswith(incomplete))
    return [(tag, with_count(count, "conversation")) for tag, count in counts.most_common()]


def complete_agent(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of the agents that begin with `incomplete`. Return none if the room of
    messaging is not installed.
    """
    try:
        return rooms.complete_agent(incomplete)
    except Refused:
        return []


complete_trashed = completion_of(
    _open_for_agent,
    lambda store: [*store.trash.list(), *(removed.trashed for removed in store.trash.removed())],
    lambda item: (item.id, f"deleted {item.deleted_at}"),
)
