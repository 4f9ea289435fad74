"""`rename --suggest`: offered, and never silently taken."""

from __future__ import annotations

from typing import Any


def title(capsule: Any, id: str) -> str:
    return str(capsule.json("show", id)["title"])


def test_a_suggestion_is_taken_where_nobody_named_the_conversation(capsule: Any) -> None:
    id = capsule.new("--message", "How do I sort a list?")
    assert "'Sorting'" in capsule("rename", id, "--suggest", "Sorting").stdout
    assert title(capsule, id) == "Sorting"
    capsule("rename", id, "--suggest")
    assert title(capsule, id) == "How do I sort a list?"


def test_a_persons_title_stays_unless_somebody_says_yes(capsule: Any) -> None:
    id = capsule.new("Mine", "--message", "How do I sort a list?")
    before = capsule.file(id).read_bytes()
    answer = capsule("rename", id, "Better", "--suggest", expect=6)
    assert "'Mine' was given by a person" in answer.stderr
    assert capsule.file(id).read_bytes() == before
    capsule("rename", id, "Mine", "--suggest")
    assert capsule.file(id).read_bytes() == before
    capsule("rename", id, "Better", "--suggest", "--yes")
    assert title(capsule, id) == "Better"


def test_at_a_terminal_the_person_is_asked(capsule: Any) -> None:
    id = capsule.new("Mine")
    screen = capsule.terminal("rename", id, "Better", "--suggest", typed="n\n", expect=1)
    assert "Replace 'Mine' by 'Better'?" in screen
    assert "nothing was changed" in screen
    assert title(capsule, id) == "Mine"
    capsule.terminal("rename", id, "Better", "--suggest", typed="y\n")
    assert title(capsule, id) == "Better"


def test_without_a_title_and_without_a_message_there_is_nothing_to_suggest(capsule: Any) -> None:
    id = capsule.new("Mine")
    assert "no user message" in capsule("rename", id, "--suggest", expect=2).stderr
    assert "the title is missing" in capsule("rename", id, expect=2).stderr
    capsule("rename", id, "", expect=2)
