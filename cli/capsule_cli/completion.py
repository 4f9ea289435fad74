"""What the shell offers when a person presses Tab.

What must stay true: a completion prints candidates or nothing; it never fails, for there is nobody to read why.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from capsule.errors import CapsuleError

if TYPE_CHECKING:
    from capsule import Store

T = TypeVar("T")


def of_store(read: Callable[[Store], list[T]]) -> list[T]:
    """What is read of the store; nothing when that fails."""
    from capsule_cli.shared.opening import agent_named, store_as

    try:
        with store_as(agent_named()) as store:
            return read(store)
    except (CapsuleError, OSError):
        return []


def complete_id(incomplete: str) -> list[tuple[str, str]]:
    """The ids of the conversations that begin with `incomplete`, in the order of a list, with their titles."""
    from capsule.store.pages import Filter
    from capsule_cli.shared.output import one_line

    heads = of_store(lambda store: store.list(Filter(archived=None)).heads)
    said = ((head.id, "damaged" if head.damaged else one_line(head.title) or "untitled") for head in heads)
    found = [one for one in said if one[0].startswith(incomplete)]
    if incomplete.startswith("@"):
        found.append(("@last", "the conversation changed last"))
    return found


def complete_id_or_next(incomplete: str) -> list[tuple[str, str]]:
    """As `complete_id`, and what stands for the next new conversation."""
    found = complete_id(incomplete)
    return [*found, ("@next", "the next one that is made")] if incomplete.startswith("@") else found


def complete_tag(incomplete: str) -> list[tuple[str, str]]:
    """The tags that begin with `incomplete`, the most used first."""
    from collections import Counter

    from capsule_cli.shared.output import counted

    tags = of_store(lambda store: [tag for head in store.heads() for tag in head.tags])
    counts = Counter(tag for tag in tags if tag.startswith(incomplete))
    return [(tag, counted(count, "conversation")) for tag, count in counts.most_common()]


def complete_agent(incomplete: str) -> list[tuple[str, str]]:
    """The ids of the agents that begin with `incomplete`, with what they are doing."""
    agents = of_store(lambda store: store.agents.list())
    return [(one.id, one.status_message or one.project_path or "") for one in agents if one.id.startswith(incomplete)]


def complete_trashed(incomplete: str) -> list[tuple[str, str]]:
    """The ids in the trash that begin with `incomplete`."""
    items = of_store(lambda store: [*store.trash.list(), *(removed.trashed for removed in store.trash.removed())])
    return [(item.id, f"deleted {item.deleted_at}") for item in items if item.id.startswith(incomplete)]
