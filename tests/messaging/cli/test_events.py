"""`events`, of messages too."""

from __future__ import annotations

import json
from typing import Any

import pytest


@pytest.mark.files
def test_events_come_from_a_cursor_by_topic_and_end_with_the_cursor_to_go_on_from(
    capsule: Any,
) -> None:
    for agent in ("anna", "bob", "carl"):
        capsule("agent", "register", "--as", agent)
    since = capsule("watch", "--events").line
    capsule("send", "--as", "anna", "--to", "bob", "SECRET")
    plan = capsule.new("Plan")

    def events(*words: str) -> list[dict[str, Any]]:
        told = capsule("watch", "--events", "--after", since, "--json", *words).stdout
        return [json.loads(line) for line in told.splitlines()]

    *found, end = events()  # Conversations whose changes are noticed at once come in no order.
    other, direct = sorted(found, key=lambda event: len(event["topics"]))
    assert (direct["id"], other["id"]) == ("direct_anna_bob", plan)
    assert direct["topics"] == ["messages", "directs"] and "SECRET" not in str(direct)
    assert [event.get("id") for event in events("--as", "carl")] == [plan, None]
    assert [event.get("id") for event in events("--kinds", "directs,groups")] == [
        direct["id"],
        None,
    ]
    assert len(capsule("watch", "--events", "--after", end["cursor"]).stdout.splitlines()) == 1
    assert "channels" in capsule("watch", "--events", "--kinds", "weather", expect=2).stderr
