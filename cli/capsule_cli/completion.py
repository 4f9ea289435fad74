"""What the shell offers when a person presses Tab.

What must stay true: a completion prints candidates or nothing; it never fails, for there is nobody to read why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, TypeVar

from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from capsule import Store

T = TypeVar("T")
Completion = Callable[[str], list[tuple[str, str]]]


def of_store(read: Callable[[Store], Iterable[T]]) -> list[T]:
    """What is read of the store; nothing when that fails."""
    from capsule_cli.shared.opening import agent_named, store_as

    try:
        with store_as(agent_named()) as store:
            return list(read(store))
    except (CapsuleError, OSError):
        return []


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """The ids of the conversations that begin with `incomplete`, in the order of a list, with their titles."""
    from capsule.engines.questions import Filter
    from capsule_cli.shared.output import one_line

    heads = of_store(lambda store: store.list(Filter(archived=None)).heads)
    pairs = [(head.id, "damaged" if head.damaged else one_line(head.title) or "untitled") for head in heads]
    pairs += [("@last", "the conversation changed last")] if incomplete.startswith("@") else []
    return [pair for pair in pairs if pair[0].startswith(incomplete) or pair[0][0] == "@"]


def complete_id_or_next(incomplete: str) -> list[tuple[str, str]]:
    """The ids that begin with `incomplete`, and `@next`, which stands for the next new conversation."""
    more = [("@next", "the next one that is made")] if incomplete.startswith("@") else []
    return complete_id(incomplete) + more


def complete_tag(incomplete: str) -> list[tuple[str, str]]:
    """The tags that begin with `incomplete`, the most used first."""
    from collections import Counter

    from capsule_cli.shared.output import counted

    tags = of_store(lambda store: [tag for head in store.heads() for tag in head.tags])
    counts = Counter(tag for tag in tags if tag.startswith(incomplete))
    return [(tag, counted(count, "conversation")) for tag, count in counts.most_common()]


def completing(read: Callable[[Store], Iterable[T]], named: Callable[[T], tuple[str, str]]) -> Completion:
    """What completes the name of something in the store, with what it is."""

    def complete(incomplete: str) -> list[tuple[str, str]]:
        return [pair for pair in map(named, of_store(read)) if pair[0].startswith(incomplete)]

    return complete


complete_agent = completing(
    lambda store: store.agents.list(), lambda agent: (agent.id, agent.status_message or agent.project_path or "")
)
complete_trashed = completing(
    lambda store: [*store.trash.list(), *(removed.trashed for removed in store.trash.removed())],
    lambda item: (item.id, f"deleted {item.deleted_at}"),
)
