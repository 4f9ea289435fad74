"""What the shell offers when a person presses Tab.

What must stay true: a completion prints candidates or nothing; it never fails, for there is nobody
to read why.
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
    opens: Callable[[], AbstractContextManager[S]],
    read: Callable[[S], Iterable[T]],
    named: Callable[[T], tuple[str, str]],
) -> Completion:
    """What completes the names of what is `read` of a store; `named` gives a name, with what it
    names.
    """

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [
            pair
            for pair in map(named, _read_or_nothing(opens, read))
            if pair[0].startswith(incomplete)
        ]

    return complete


def _read_or_nothing(
    opens: Callable[[], AbstractContextManager[S]], read: Callable[[S], Iterable[T]]
) -> list[T]:
    """What is read of the store; nothing when that fails."""
    try:
        with opens() as store:
            return list(read(store))
    except (CapsuleError, OSError):
        return []


def _open_for_agent() -> AbstractContextManager[CoreStore]:
    """The store for the agent of the option or the environment, else for its owner."""
    from capsule.store.store import CoreStore

    return open_store(CoreStore, agent_name())


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """The ids of the conversations that begin with `incomplete`, in the order of a list, with their
    titles.
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
    """The ids that begin with `incomplete`, and `@next`, which stands for the next new
    conversation.
    """
    more = [("@next", "the next one that is made")] if incomplete.startswith("@") else []
    return complete_id(incomplete) + more


def complete_tag(incomplete: str) -> list[tuple[str, str]]:
    """The tags that begin with `incomplete`, the most used first."""
    from collections import Counter

    tags = _read_or_nothing(
        _open_for_agent, lambda store: [tag for head in store.heads() for tag in head.tags]
    )
    counts = Counter(tag for tag in tags if tag.startswith(incomplete))
    return [(tag, with_count(count, "conversation")) for tag, count in counts.most_common()]


def complete_agent(incomplete: str) -> list[tuple[str, str]]:
    """The ids of the agents that begin with `incomplete`; none without the room that knows them."""
    try:
        return rooms.complete_agent(incomplete)
    except Refused:
        return []


complete_trashed = completion_of(
    _open_for_agent,
    lambda store: [*store.trash.list(), *(removed.trashed for removed in store.trash.removed())],
    lambda item: (item.id, f"deleted {item.deleted_at}"),
)
