"""Both ways to search give the same places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.format.needles import by_memmem, by_methods, places

NEEDLE = b'\n  "p": '
PIECES = st.lists(st.one_of(st.just(NEEDLE), st.binary(max_size=8), st.sampled_from([b"\n  ", b'"p": ', b"\0"])))


@given(PIECES)
def test_every_place_is_found_in_order(pieces: list[bytes]) -> None:
    block = b"".join(pieces)
    wanted = [at for at in range(len(block)) if block.startswith(NEEDLE, at)]
    assert places(1)(block, NEEDLE) == places(1 << 40)(block, NEEDLE) == by_methods(block, NEEDLE) == wanted
    of_the_library = by_memmem()
    if of_the_library is None:
        pytest.skip("another C library")
    assert of_the_library(block, NEEDLE) == wanted
