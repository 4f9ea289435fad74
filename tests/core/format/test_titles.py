"""Titles, made and given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidInput
from capsule.format.text.titles import MAX, MAX_AUTOMATIC, check_title, title_from


def test_a_title_is_the_first_line_cut_at_a_word() -> None:
    for text, title in [
        ("\n \n\t hello   there \nmore", "hello there"),
        ("## A heading\nbody", "A heading"),
        ("#\n##  \nafter", "after"),
        ("#hashtag stays", "#hashtag stays"),
        ("bell\x07 and \x1b[31mred\u202e\ufeff", "bell and [31mred"),
        ("lone \ud800surrogate", "lone surrogate"),
        ("", ""),
        ("a" * 61, "a" * 59 + "…"),
        ("word " * 20, "word " * 11 + "word…"),
        ("short " + "y" * 80, "short " + "y" * 53 + "…"),
        ("word " * 11 + "cut, here too", "word " * 11 + "cut…"),
        ("<command-name>/clear</command-name>\n<command-args></command-args>\n", ""),
        (
            (
                "<local-command-stdout>two\nlines</local-command-stdout> "
                "<system-reminder>x</system-reminder>\nhello"
            ),
            "hello",
        ),
        ("[Request interrupted by user]", ""),
        ("[Request interrupted by user for tool use] go on", "go on"),
        ("hello <command-name>/clear</command-name>", "hello <command-name>/clear</command-name>"),
    ]:
        assert title_from(text) == title


@given(st.text(max_size=200))
def test_a_made_title_can_be_given(text: str) -> None:
    title = title_from(text)
    assert len(title) <= MAX_AUTOMATIC
    if title:
        assert check_title(title) == title
        assert title_from(title) == title or title.startswith("#")


def test_a_message_of_megabytes_in_one_line_gives_a_title() -> None:
    assert title_from("x" * 10_000_000) == "x" * 59 + "…"


def test_spaces_around_a_given_title_are_dropped() -> None:
    assert check_title("  A title ") == "A title"
    assert check_title("x" * MAX) == "x" * MAX


def test_an_invalid_title_is_refused() -> None:
    for text, says in [
        ("", "is empty"),
        ("x" * 201, "201 characters"),
        ("a\nb", "a line break at character 2"),
        ("a\u2028b", "a line break"),
        ("a\x1b[0m", r"control character U\+001B"),
        ("a\ud800", r"U\+D800"),
    ]:
        with pytest.raises(InvalidInput, match=says):
            check_title(text)
