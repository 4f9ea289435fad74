"""Whose words a message is."""

from __future__ import annotations

import pytest

from capsule.authorship import whose


@pytest.mark.parametrize(
    ("message", "named", "unnamed"),
    [
        ({"role": "user"}, "person", "person"),
        ({"role": "user", "from": "anna"}, "person", "person"),
        ({"role": "user", "from": "bot"}, "own", "person"),
        ({"role": "assistant", "from": "bot"}, "own", "own"),
        ({"role": "assistant", "from": "other"}, "agent", "own"),
        ({"role": "assistant"}, "person", "own"),
    ],
)
def test_whose_words_a_message_is(message: dict[str, str], named: str, unnamed: str) -> None:
    assert (whose(message, "bot"), whose(message, None)) == (named, unnamed)
