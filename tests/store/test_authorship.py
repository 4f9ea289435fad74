"""The author of a message: a person, this agent, or another agent."""

from __future__ import annotations

from capsule.store.edits import whose


def test_role_and_sender_decide_the_author_of_a_message() -> None:
    for message, named, unnamed in [
        ({"role": "user"}, "person", "person"),
        ({"role": "user", "from": "anna"}, "person", "person"),
        ({"role": "user", "from": "bot"}, "own", "person"),
        ({"role": "assistant", "from": "bot"}, "own", "own"),
        ({"role": "assistant", "from": "other"}, "agent", "own"),
        ({"role": "assistant"}, "person", "own"),
    ]:
        assert (whose(message, "bot"), whose(message, None)) == (named, unnamed)
