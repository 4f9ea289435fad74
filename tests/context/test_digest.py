"""The digest beside the work: that of all pieces, and no thread stays behind."""

from __future__ import annotations

import hashlib
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.context.digest import Digest


def digests() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "capsule-digest"]


@given(st.lists(st.binary(max_size=40).map(lambda data: data * 100), max_size=100))
def test_it_is_the_digest_of_all_pieces_in_their_order(pieces: list[bytes]) -> None:
    with Digest() as digest:
        for piece in pieces:
            digest.update(piece)
        assert digest.hexdigest() == digest.hexdigest() == hashlib.sha256(b"".join(pieces)).hexdigest()
    assert digests() == []


def test_no_thread_stays_when_the_caller_fails() -> None:
    with pytest.raises(OSError, match="full"), Digest() as digest:
        digest.update(b"x" * 1_000_000)
        assert len(digests()) == 1
        raise OSError("full")
    assert digests() == []


def test_without_a_thread_the_caller_does_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", none)
    with Digest() as digest:
        digest.update(b"a")
        digest.update(b"b")
        assert digest.hexdigest() == hashlib.sha256(b"ab").hexdigest()
