"""The cursors of agents, encrypted, so that they reveal nothing of what an agent may not read.

What must stay true: equal places have equal cursors, so the encryption is deterministic: AES-SIV
(RFC 5297), which also finds out whether a text was encrypted with this key. Without the key a
cursor reveals nothing, not even by its length. The key is in `.capsule/`, or in a store's
database, where no agent of a store reaches.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cached_property
from typing import TYPE_CHECKING

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    from capsule.engines.local_documents import LocalDocuments


#: The length of a text is padded to a multiple of this, in bytes.
_BLOCK = 96


class CursorSeal:
    """The seal of one agent. Its key is made when it is first needed.

    Args:
        agent: The agent.
        machine: What is of this machine.
    """

    def __init__(self, agent: str, machine: LocalDocuments) -> None:
        self._agent = agent
        self._machine = machine

    @cached_property
    def _cipher(self) -> AESSIV:
        from hashlib import blake2b

        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        key = blake2b(self._agent.encode(), key=self._machine.key("cursors")).digest()
        return AESSIV(key)  # Of 64 bytes: AES-256.

    def seal(self, text: str) -> str:
        """Return a text encrypted: equal texts give equal seals.

        Cost: some microseconds; the first time, loading `cryptography`.
        """
        data = text.encode()
        padded = data.ljust(-(-len(data) // _BLOCK) * _BLOCK)
        return urlsafe_b64encode(self._cipher.encrypt(padded, None)).decode().rstrip("=")

    def open(self, text: str) -> str:
        """Return the text that was sealed.

        Raises InvalidInput if it was not, or for another agent or store. Cost: as `seal`.
        """
        from cryptography.exceptions import InvalidTag

        try:
            sealed = urlsafe_b64decode(text.encode("ascii") + b"=" * (-len(text) % 4))
            return self._cipher.decrypt(sealed, None).decode().rstrip()
        except (InvalidTag, ValueError):
            reason = f"that is not a cursor of {self._agent}"
            raise InvalidInput(
                f"{reason}; use a cursor that it got before, or none to start again"
            ) from None
