"""The events of a store: its changes by topic, for programs outside that follow it.

What must stay true: a change is one event. Its cursor is after it, so that a program that continues
from the cursor of its last event misses none and gets none twice. Only after the index was built
anew, events may come twice and those of deletions are missing, because then the times of the files
tell what changed. An event names what changed, and contains no text of a message. The module does
not know who may read what: it gets the changes of a store that acts for the reader.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.engines.changes import Change

#: `messages`: messages are new, changed or gone. The other topics: something happened in or to a
#: conversation of this sort, which its id tells. `conversations`: any other conversation.
TOPICS = ("messages", "channels", "groups", "directs", "conversations")
#: The topic of a conversation, by the part of its id before the first `_`.
_TOPIC_OF = {"channel": "channels", "notes": "channels", "group": "groups", "direct": "directs"}


def check_topics(names: Iterable[str]) -> frozenset[str]:
    """Return the topics with these names. Without names: all. Raises InvalidInput for an unknown
    one.
    """
    topics = frozenset(names)
    unknown = sorted(topics.difference(TOPICS))
    if unknown:
        raise InvalidInput(
            f"there is no topic {unknown[0][:40]!r}; the topics are: {', '.join(TOPICS)}"
        )
    return topics or frozenset(TOPICS)


def topics_of(change: Change) -> list[str]:
    """Return the topics of a change: `messages` if messages changed, and the conversation's."""
    topics = ["messages"] if change.messages or change.removed else []
    return [*topics, _TOPIC_OF.get(change.id.partition("_")[0], "conversations")]


def event_json(change: Change) -> dict[str, Any]:
    """Return a change as an event: the JSON of the change with its topics, and without `own`.

    An event is the same for all readers, so it does not say whose change it is.
    """
    event = change.as_json() | {"topics": topics_of(change)}
    del event["own"]
    return event
