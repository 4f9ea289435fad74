"""Cursors as an agent gets them: sealed, so that they tell nothing of what it may not read.

What must stay true: equal places have equal cursors. Without the key a cursor says nothing, not even by its length.
The key lies in `.capsule/`, or in a store's database, where no agent of a store reaches.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.engines.machine import Machine

#: Bytes: of the mark that makes sure that a cursor was sealed here; and what the length of a text is a multiple of.
_MARK, _BLOCK = 16, 96


class Seal:
    """The seal of one agent. Its key is made when it is first needed.

    Args:
        agent: The agent.
        machine: What is of this machine.
    """

    def __init__(self, agent: str, machine: Machine) -> None:
        self._agent = agent
        self._machine = machine

    @cached_property
    def _key(self) -> bytes:
        from hashlib import blake2b

        return blake2b(self._agent.encode(), key=self._machine.key("cursors")).digest()

    def _mark(self, data: bytes) -> bytes:
        from hashlib import blake2b

        return blake2b(data, key=self._key, digest_size=_MARK).digest()

    def _masked(self, data: bytes, mark: bytes) -> bytes:
        from hashlib import shake_256

        mask = shake_256(self._key + mark).digest(len(data))
        return bytes(byte ^ other for byte, other in zip(data, mask, strict=True))

    def seal(self, text: str) -> str:
        """A text, sealed: equal texts give equal seals."""
        data = text.encode().ljust(-(-len(text) // _BLOCK) * _BLOCK)
        mark = self._mark(data)
        return urlsafe_b64encode(mark + self._masked(data, mark)).decode().rstrip("=")

    def open(self, text: str) -> str:
        """What was sealed. Raises InvalidInput if it was not, or for another agent or store."""
        with suppress(ValueError):
            sealed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            data = self._masked(sealed[_MARK:], sealed[:_MARK])
            if self._mark(data) == sealed[:_MARK]:
                return data.decode().rstrip()
        raise InvalidInput(f"that is no cursor of {self._agent}; take one that it was given, or none to begin anew")
