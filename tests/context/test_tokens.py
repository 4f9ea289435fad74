"""The estimate of tokens: the same everywhere, near what tokenizers say, and steady."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.context.tokens import estimate

SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody minds at all.\n"
CODE = 'def add(first: int, second: int) -> int:\n    """The sum."""\n    return first + second\n\n\n'


@pytest.mark.parametrize(
    ("text", "real"),
    [(SENTENCE * 40, 16 * 40), (CODE * 40, 26 * 40), ("", 0), ("a", 0), ("\n" * 3, 3)],
    ids=["prose", "code", "nothing", "a letter", "newlines"],
)
def test_it_is_near_what_a_tokenizer_says(text: str, real: int) -> None:
    assert estimate(text.encode()) == pytest.approx(real, rel=0.25)


@given(st.text(max_size=3000))
def test_it_is_a_number_for_every_text_and_the_same_each_time(text: str) -> None:
    data = text.encode("utf-8", "replace")
    assert 0 <= estimate(data) == estimate(data) <= 3 * len(data)


@given(st.binary(max_size=9000))
def test_it_takes_any_bytes(data: bytes) -> None:
    assert estimate(data) >= 0


@pytest.mark.parametrize("character", ["\U0001f600", "\u20ac", "\u00e9", "0", "~", "\n"])
def test_the_heaviest_text_is_not_too_heavy_for_the_sum(character: str) -> None:
    """A block that weighed 65521 or more would count as less."""
    one = estimate((character * 100).encode())
    assert estimate((character * 1000).encode()) == pytest.approx(10 * one, rel=0.02)


def test_a_large_text_is_as_many_tokens_as_its_parts(repository: Path) -> None:
    parts = [path.read_bytes() for path in sorted((repository / "capsule").rglob("*.py"))]
    assert estimate(b"".join(parts)) == pytest.approx(sum(map(estimate, parts)), rel=0.1)
