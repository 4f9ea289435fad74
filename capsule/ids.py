"""Identifiers of documents: the valid ones, and new ones.

What must stay true: an id is a file stem and nothing else, so that no id can leave its directory.
"""

from __future__ import annotations

import os
import re
import threading
import time
import uuid
from collections.abc import Iterable

from capsule.errors import InvalidInput
from capsule.process_forks import call_in_child

_MAX_BYTES = 128
_ID = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{_MAX_BYTES - 1}}}")
_NO_PATH = re.compile(
    "[\0\ud800-\udc7f\udd00-\udfff]"
)  # Those between stand for bytes that are no UTF-8.
_FILE_NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f\ud800-\udfff]+")
_MAX_FILE_NAME_BYTES = 200

#: The namespaces of the deterministic ids. They are part of the format: changing one changes ids.
_MESSAGES = bytes.fromhex("5f0c9a527e0b5b0e9f0f6a9f7c1d2e31")
_INSTANCES = bytes.fromhex("0b9c3f542f5d5f7e8a533f1b6c7d8e92")
_KEYS = bytes.fromhex("c2a7e1d494b65c3fa1f827d05e6b9c40")
_VERSIONS = bytes.fromhex("8d1f6b372c4e5a90b7e390c5d1a4f682")
_SOURCES = bytes.fromhex("e4b80c1d6f2a5d479a3e71c05b8f2d96")


def is_id(text: str) -> bool:
    """Whether `text` may name a document: a file stem of at most 128 bytes, never a path."""
    return _ID.fullmatch(text) is not None


def check_id(text: str) -> str:
    """`text`, if it is a valid id.

    Raises:
        InvalidInput: It is not.
    """
    if _ID.fullmatch(text) is None:  # Not by `is_id`: each path to a document is made with this.
        shown = text if len(text) <= 60 else text[:57] + "..."
        raise InvalidInput(
            f"{shown!r} is not an id: an id starts with a letter or digit, continues with letters, "
            "digits and "
            f". _ @ -, and has at most {_MAX_BYTES} bytes"
        )
    return text


def check_file_name(text: str) -> str:
    """`text`, if a file in a folder of the store may be called so: a name and no path, of at most
    200 bytes, which begins with no dot. Raises InvalidInput."""
    if (
        _FILE_NAME.fullmatch(text) is None
        or len(text.encode("utf-8", "replace")) > _MAX_FILE_NAME_BYTES
    ):
        raise InvalidInput(
            f"{text[:60]!r} is not a file name: a name has no slash and no control character, "
            f"does not begin with a dot, and has at most {_MAX_FILE_NAME_BYTES} bytes"
        )
    return text


def slug(text: str) -> str:
    """A text as an id: its letters as Latin ones, everything else as `-`; empty if nothing
    is left.
    """
    if not text.isascii():
        from anyascii import anyascii  # A table of all scripts.

        text = anyascii(text)
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def folder_ids(path: str, length: int, nameless: str) -> tuple[str, str]:
    """The id for a folder that is made of its name, and the one that no other folder has: with a
    suffix of its path.

    Args:
        path: The folder.
        length: The number of characters that the second one may have.
        nameless: What stands for a name of which nothing is left.

    Raises InvalidInput: No folder has this path.
    """
    if _NO_PATH.search(path):
        raise InvalidInput(
            f"{path[:200]!r} is not the path of a folder: it contains a NUL, or half a character"
        )
    from hashlib import sha256  # OpenSSL with it, which only a new name needs.

    suffix = sha256(path.encode("utf-8", "surrogateescape")).hexdigest()[:6]
    plain = slug(os.path.basename(path))[: length - 7].strip("-") or nameless
    return plain, f"{plain}-{suffix}"


def new_id() -> str:
    """A new id of a conversation or an instance: a UUIDv4, so that its first characters
    are unique.
    """
    return str(uuid.uuid4())


class _MessageIds:
    """UUIDv7 (RFC 9562, section 5.7), rising within the process even inside one millisecond.

    The 12 bits after the version are a counter that starts at random below 2048 in each millisecond
    (RFC 9562, section 6.2, method 1); when it overflows, the millisecond is incremented.
    """

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._ms = 0
        self._counter = 0
        self._random = b""

    def new(self, ms: int | None = None) -> str:
        """An id of a time in milliseconds since 1970, or of this moment; later than the one before
        in any case.
        """
        if ms is None:
            ms = time.time_ns() // 1_000_000
        with self._guard:
            self._random = self._random[10:] or os.urandom(640)
            entropy = int.from_bytes(self._random[:10], "big")
            if ms > self._ms:
                self._ms, self._counter = ms, entropy & 0x7FF
            elif self._counter < 0xFFF:
                self._counter += 1
            else:
                self._ms, self._counter = self._ms + 1, entropy & 0x7FF
            high = (self._ms & (1 << 48) - 1) << 16 | 0x7000 | self._counter
        low = (0b10 << 62) | (entropy >> 18)
        text = f"{(high << 64) | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_message_ids = _MessageIds()
# A forked child must not make the same ids, nor find the guard held by a thread that it doesn't
# have.
call_in_child(_message_ids, _MessageIds.__init__)


#: Makes a new message id: a UUIDv7, so that ids sort by the time they were made.
new_message_id = _message_ids.new


def message_ids_at(times_ms: Iterable[int]) -> list[str]:
    """New message ids for messages of these times (milliseconds since 1970), which sort in this
    order.
    """
    return list(map(_MessageIds().new, times_ms))


def message_id_for(
    conversation: str, position: int, role: str, timestamp: str, content: str
) -> str:
    """The id for a message without one: the same in every clone of the conversation.

    Args:
        conversation: The conversation's id.
        position: The message's place in `history`, from 0.
        role: The message's role.
        timestamp: The message's time as the format writes it.
        content: The message's text.
    """
    return uuid5(_MESSAGES, conversation, str(position), role, timestamp, content)


def version_id_for(conversation: str, message: str, digest: str) -> str:
    """The id for the other version of a message that two clones edited differently: the same in
    both.

    Args:
        conversation: The conversation's id.
        message: The message's id.
        digest: The digest of the version.
    """
    return uuid5(_VERSIONS, conversation, message, digest)


def keyed_message_id(conversation: str, key: str) -> str:
    """The id of the message that is appended to a conversation under an idempotency key: always the
    same.
    """
    return uuid5(_KEYS, conversation, key)


def keyed_conversation_id(made_by: str, source: str, key: str) -> str:
    """The id of the conversation that is made under an idempotency key: always the same.

    Args:
        made_by: The operation: `create`, `fork` or `summarize`.
        source: The source of a fork or summary; else empty.
        key: The key.
    """
    return uuid5(_KEYS, f"{made_by}:{source}", key)  # No id of a conversation has a colon.


def imported_conversation_id(format: str, source: str) -> str:
    """The id of the conversation that has this id in another program: the same in every store.

    Args:
        format: The name of the format.
        source: The id that the conversation has there.
    """
    return uuid5(_SOURCES, format, source)


def imported_message_id(conversation: str, source: str) -> str:
    """The id of the message of a conversation that has this id in another program: the same in
    every store.
    """
    return uuid5(_SOURCES, conversation, source, "")  # No other name has two of them.


def uuid5(namespace: bytes, *names: str) -> str:
    """As `uuid.uuid5`, in a tenth of the time: an import makes many."""
    from hashlib import sha1

    text = sha1(
        namespace + "\0".join(names).encode("utf-8", "surrogatepass"), usedforsecurity=False
    ).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def named_instance_id(user: str, host: str, name: str) -> str:
    """The id of a named instance: the same in every process that uses the name."""
    return uuid5(_INSTANCES, user, host, name)
