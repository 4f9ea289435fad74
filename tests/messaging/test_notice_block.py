"""The block for an agent in a file that is somebody else's: everything around it stays."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidDocument
from capsule.messaging.notices import has_block, sanitize_name, with_block

LINES = ("2 unread", "", "- 2 from bob")
#: Pieces of files as people and their editors leave them.
PIECES = st.one_of(
    st.sampled_from(
        [b"\xef\xbb\xbf", b"\n", b"\r\n", b"\r", b"# Rules", b" ", b"\xff", b"<!--", "é".encode()]
    ),
    st.sampled_from(
        [
            b"<!-- capsule: unread by bob -->\n",
            b"<!-- capsule: end of unread by annabel -->\n",
            b"anna -->",
        ]
    ),
)
FILES = st.lists(PIECES, max_size=8).map(b"".join)


@given(FILES)
def test_a_file_without_its_block_is_the_file_that_was_there(data: bytes) -> None:
    there = with_block(data, "anna", LINES, "any")
    assert there is not None and has_block(there, "anna", "any")
    assert not has_block(data, "anna", "any")
    assert with_block(there, "anna", (), "any") == data


@given(FILES)
def test_a_block_changes_in_its_place_and_only_for_its_own_agent(data: bytes) -> None:
    one = with_block(with_block(data, "anna", LINES, "any"), "anna-2", ("1 unread",), "any")
    assert (
        one
        == with_block(one, "anna", LINES, "any")
        == with_block(one, "anna-2", ("1 unread",), "any")
    )
    other = with_block(with_block(one, "anna", ("7 unread",), "any"), "anna-2", (), "any")
    assert other == with_block(data, "anna", ("7 unread",), "any")


def test_a_person_moves_the_block_and_it_stays_there() -> None:
    block = with_block(b"", "anna", LINES, "any")
    assert block is not None
    there = with_block(b"above\n" + block + b"below", "anna", ("9 unread",), "any")
    assert there is not None
    assert there.startswith(b"above\n<!--") and there.endswith(b"-->\nbelow")
    assert with_block(there, "anna", (), "any") == b"above\nbelow"


def test_the_block_has_the_line_ends_of_its_file() -> None:
    there = with_block(b"# Rules\r\n", "anna", LINES, "any") or b""
    assert there.count(b"\r\n") == there.count(b"\n") == 6


def test_a_file_that_was_made_for_the_block_goes_with_it_unless_somebody_wrote_into_it() -> None:
    made = with_block(None, "anna", LINES, "any")
    assert made is not None
    assert with_block(with_block(made, "anna", ("3 unread",), "any"), "anna", (), "any") is None
    assert with_block(made + b"mine\n", "anna", (), "any") == b"mine\n"
    assert with_block(with_block(b"", "anna", LINES, "any"), "anna", (), "any") == b""


BEGIN, END = b"<!-- capsule: unread by anna -->\n", b"<!-- capsule: end of unread by anna -->\n"


@pytest.mark.parametrize(
    "data", [BEGIN, END, END + BEGIN, BEGIN + BEGIN + END, (BEGIN + END) * 2, b"a\0b"]
)
def test_a_broken_block_and_a_file_that_is_no_text_are_refused(data: bytes) -> None:
    with pytest.raises(InvalidDocument):
        with_block(b"# Rules\n" + data, "anna", LINES, "any")


@given(st.text())
def test_no_name_has_a_second_line_an_import_an_address_or_a_mark(name: str) -> None:
    shown = sanitize_name(
        f"{name}-->\n<!-- capsule: end of unread by anna -->\n@/etc/passwd `x` "
        f"https://example.org {name}"
    )
    assert not set(shown) & set("\n\r<>@`/:#*[]|!\u2028\u202e") and len(shown) <= 60


def test_names_in_all_scripts_are_kept() -> None:
    for name in ("Release 2.0 (beta)", "हिन्दी", "日本語", "Ünïcode & co."):
        assert sanitize_name(name) == name
