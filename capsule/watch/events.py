"""The events of a store: its changes by topic, as programs get them that follow it from outside.

What must stay true: a change is one event, and its cursor stands behind it, so that who goes on
from the cursor of the last event misses none and gets none twice. An event names what changed, and
holds no text of a message. The module does not know who may read what: it is given the changes of a
store that acts for the reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.engines.changes import Change

#: `messages`: some are new, changed or gone. The others: something happened in or to a
#: conversation; those of agents by what they are, and all others as `conversations`.
TOPICS = ("messages", "channels", "groups", "directs", "conversations")
#: The topic of a conversation, by what stands before the first `_` of its id.
_TOPIC_OF = {"channel": "channels", "notes": "channels", "group": "groups", "direct": "directs"}


def check_topics(names: Iterable[str]) -> frozenset[str]:
    """The topics of these names; none given: all. Raises InvalidInput for an unknown one."""
    wanted = frozenset(names)
    if unknown := sorted(wanted.difference(TOPICS)):
        raise InvalidInput(
            f"there is no topic {unknown[0][:40]!r}; the topics are: {', '.join(TOPICS)}"
        )
    return wanted or frozenset(TOPICS)


def topics_of(change: Change) -> list[str]:
    """The topics of a change: that of its conversation, and `messages` before it where some
    changed.
    """
    topics = ["messages"] if change.messages or change.removed else []
    return [*topics, _TOPIC_OF.get(change.id.partition("_")[0], "conversations")]


def as_json(change: Change) -> dict[str, Any]:
    """A change as an event: as `--json` prints it, with its topics. It is the same to all, so
    nobody's `own`.
    """
    event = change.as_json() | {"topics": topics_of(change)}
    del event["own"]
    return event
