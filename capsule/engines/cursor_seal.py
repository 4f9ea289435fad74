"""Seal the cursors of agents: encrypt them, so that they reveal no counts of hidden conversations.

The cipher is AES-SIV (RFC 5297). It is deterministic, so that equal positions have equal cursors,
and it detects texts that were not encrypted with the key. The key is in `.capsule/`, or in the
store's database, which agents can't read.

What must stay true: without the key a cursor reveals only whether it equals another one, and its
length in steps of 96 bytes.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from functools import cached_property
from typing import TYPE_CHECKING

from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

    from capsule.engines.local_documents import LocalDocuments


#: A text is padded with spaces to a multiple of this, in bytes.
_PADDING = 96


class CursorSeal:
    """The seal of one agent. Its key is derived from the store's key, which is made when it is
    first needed.

    Args:
        agent: The agent.
        local: The local documents, which have the key.
    """

    def __init__(self, agent: str, local: LocalDocuments) -> None:
        self._agent = agent
        self._local = local

    @cached_property
    def _cipher(self) -> AESSIV:
        from hashlib import blake2b

        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        key = blake2b(self._agent.encode(), key=self._local.key("cursors")).digest()
        return AESSIV(key)  # 64 bytes: two keys of AES-256.

    def seal(self, text: str) -> str:
        """Encrypt a text, which must not end in a space. Equal texts give equal results.

        Cost: some microseconds. The first call loads `cryptography`.
        """
        data = text.encode()
        padded_length = (len(data) + _PADDING - 1) // _PADDING * _PADDING
        padded = data.ljust(padded_length)
        return urlsafe_b64encode(self._cipher.encrypt(padded, None)).decode().rstrip("=")

    def open(self, text: str) -> str:
        """Decrypt a text.

        Raises InvalidInput if it was not sealed, or for another agent or store. Cost: as `seal`.
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
