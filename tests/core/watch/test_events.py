"""Events: the changes of a store by topic."""

from __future__ import annotations

import pytest

from capsule import Store
from capsule.errors import InvalidInput
from capsule.watch.events import TOPICS, check_topics, event_json, topics_of
from tests.core.watch.conftest import Follower

#: What happens, and the topics of it.
HAPPENS = {
    "chat": (["messages", "conversations"], "conversations"),
    "group": (["messages", "groups"], "groups"),
    "direct": (["messages", "directs"], "directs"),
    "channel": (["messages", "channels"], "channels"),
    "notes": (["messages", "channels"], "channels"),
}


@pytest.mark.parametrize("kind", HAPPENS)
def test_an_event_has_the_topics_of_what_changed_and_no_text(
    store: Store, follower: Follower, kind: str
) -> None:
    made, other = HAPPENS[kind]
    type = "channel" if kind == "notes" else kind
    id = store.create(
        id=f"{kind}_x", type=type, title="T", messages=[{"role": "user", "content": "SECRET"}]
    ).id
    event = event_json(created := follower.next("created"))
    assert (topics_of(created), event["topics"], event["cursor"]) == (made, made, created.cursor)
    assert "own" not in event and "SECRET" not in str(event)
    store.append(id, content="SECRET")
    assert topics_of(follower.next("appended")) == ["messages", other]
    store.rename(id, "Another")
    assert topics_of(follower.next("head")) == [other]
    store.delete(id)
    assert topics_of(follower.next("deleted")) == [other]


def test_unknown_topics_are_refused_and_none_means_all() -> None:
    assert check_topics([]) == frozenset(TOPICS)
    assert check_topics(["messages"]) == {"messages"}
    with pytest.raises(InvalidInput, match="channels"):
        check_topics(["messages", "weather"])
