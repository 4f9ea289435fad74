"""The estimate of tokens: the same everywhere, and near that of tokenizers."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format.text.tokens import estimate

SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody minds at all.\n"
CODE = (
    'def add(first: int, second: int) -> int:\n    """The sum."""\n    return first + second\n\n\n'
)


def test_an_estimate_is_near_the_count_of_a_tokenizer() -> None:
    for text, real in [
        (SENTENCE * 40, 16 * 40),
        (CODE * 40, 26 * 40),
        ("", 0),
        ("a", 0),
        ("\n" * 3, 3),
    ]:
        assert estimate(text.encode()) == pytest.approx(real, rel=0.25)


@given(
    st.binary(max_size=9000)
    | st.text(max_size=3000).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_have_an_estimate(data: bytes) -> None:
    assert 0 <= estimate(data) == estimate(data) <= 3 * len(data)


def test_the_heaviest_characters_do_not_overflow_the_sum_of_a_block() -> None:
    """A block with a sum of 65521 or more would count as less."""
    for character in ["\U0001f600", "\u20ac", "\u00e9", "0", "~", "\n"]:
        one = estimate((character * 100).encode())
        assert estimate((character * 1000).encode()) == pytest.approx(10 * one, rel=0.02)


def test_the_estimate_of_a_large_text_is_the_sum_of_its_parts(repository: Path) -> None:
    parts = [path.read_bytes() for path in sorted((repository / "capsule").rglob("*.py"))]
    assert estimate(b"".join(parts)) == pytest.approx(sum(map(estimate, parts)), rel=0.1)
