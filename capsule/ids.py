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
#: Characters that no path has. The surrogates between these ranges represent bytes that are not
#: UTF-8.
_NO_PATH = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
_FILE_NAME = re.compile(r"(?!\.)[^/\\\x00-\x1f\x7f\ud800-\udfff]+")
_MAX_FILE_NAME_BYTES = 200

#: The namespaces of the deterministic ids. They are part of the format: changing one changes ids.
_MESSAGES = bytes.fromhex("5f0c9a527e0b5b0e9f0f6a9f7c1d2e31")
_INSTANCES = bytes.fromhex("0b9c3f542f5d5f7e8a533f1b6c7d8e92")
_KEYS = bytes.fromhex("c2a7e1d494b65c3fa1f827d05e6b9c40")
_VERSIONS = bytes.fromhex("8d1f6b372c4e5a90b7e390c5d1a4f682")
_SOURCES = bytes.fromhex("e4b80c1d6f2a5d479a3e71c05b8f2d96")


def is_id(text: str) -> bool:
    """Return whether `text` may name a document: a file stem of at most 128 bytes, never a path."""
    return _ID.fullmatch(text) is not None


def check_id(text: str) -> str:
    """Return `text`, if it is a valid id. Raises InvalidInput."""
    # Without a call of `is_id`, for speed: this runs for each path to a document.
    if _ID.fullmatch(text) is None:
        shortened = text if len(text) <= 60 else text[:57] + "..."
        raise InvalidInput(
            f"{shortened!r} is not an id: an id starts with a letter or digit, continues with letters, "
            "digits and "
            f". _ @ -, and has at most {_MAX_BYTES} bytes"
        )
    return text


def check_file_name(text: str) -> str:
    """Return `text`, if a file in a folder of the store may have this name: no path, at most 200
    bytes, and no dot at the beginning. Raises InvalidInput.
    """
    is_too_long = len(text.encode("utf-8", "replace")) > _MAX_FILE_NAME_BYTES
    if _FILE_NAME.fullmatch(text) is None or is_too_long:
        raise InvalidInput(
            f"{text[:60]!r} is not a file name: a name has no slash and no control character, "
            f"does not begin with a dot, and has at most {_MAX_FILE_NAME_BYTES} bytes"
        )
    return text


def slug(text: str) -> str:
    """Return a text as an id: letters of all scripts as Latin ones, everything else as `-`. Empty
    if the text has no letter and no digit.
    """
    if not text.isascii():
        from anyascii import anyascii  # A table of all scripts.

        text = anyascii(text)
    return re.sub("[^a-z0-9]+", "-", text.lower()).strip("-")


def folder_ids(path: str, length: int, nameless: str) -> tuple[str, str]:
    """Return two ids for a folder: one made of its name, and one with a hash of its path as a
    suffix, which hardly any other folder has.

    Args:
        path: The folder.
        length: The largest number of characters of the second id.
        nameless: The name to use if the folder's name has no letter and no digit.

    Raises InvalidInput: No folder can have this path.
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
    """Return a new id of a conversation or an instance. It is a UUIDv4, so its first characters are
    as unique as the rest, and short prefixes identify it.
    """
    return str(uuid.uuid4())


class _MessageIds:
    """Makes UUIDv7 (RFC 9562, section 5.7) that ascend within the process, even in one millisecond.

    The 12 bits after the version are a counter. It starts at a random number below 2048 in each
    millisecond (RFC 9562, section 6.2, method 1). If it overflows, the millisecond is incremented.
    """

    def __init__(self) -> None:
        self._thread_lock = threading.Lock()
        self._ms = 0
        self._counter = 0
        #: Random bytes in stock, 10 for each id.
        self._random = b""

    def new(self, ms: int | None = None) -> str:
        """Return an id for a time in milliseconds since 1970. None: now. The id is always greater
        than the previous one.
        """
        time_ms = time.time_ns() // 1_000_000 if ms is None else ms
        with self._thread_lock:
            self._random = self._random[10:] or os.urandom(640)
            entropy = int.from_bytes(self._random[:10], "big")
            if time_ms > self._ms:
                self._ms = time_ms
                self._counter = entropy & 0x7FF
            elif self._counter < 0xFFF:
                self._counter += 1
            else:
                self._ms += 1
                self._counter = entropy & 0x7FF
            high = (self._ms & (1 << 48) - 1) << 16 | 0x7000 | self._counter
        low = (0b10 << 62) | (entropy >> 18)
        text = f"{(high << 64) | low:032x}"
        return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


_message_ids = _MessageIds()
# A forked child must not make the same ids. Its lock may be held by a thread that it does not have.
call_in_child(_message_ids, _MessageIds.__init__)


#: Makes a new message id: a UUIDv7, so that ids sort by the time at which they were made.
new_message_id = _message_ids.new


def message_ids_at(times_ms: Iterable[int]) -> list[str]:
    """Return new ids for messages of these times (milliseconds since 1970). They sort in the order
    of the arguments.
    """
    return list(map(_MessageIds().new, times_ms))


def message_id_for(
    conversation: str, position: int, role: str, timestamp: str, content: str
) -> str:
    """Return the id for a message without one. It is the same in every clone of the conversation.

    Args:
        conversation: The conversation's id.
        position: The message's position in `history`, from 0.
        role: The message's role.
        timestamp: The message's time as the format writes it.
        content: The message's text.
    """
    return uuid5(_MESSAGES, conversation, str(position), role, timestamp, content)


def version_id_for(conversation: str, message: str, digest: str) -> str:
    """Return the id for the other version of a message that two clones edited differently. It is
    the same in both clones.

    Args:
        conversation: The conversation's id.
        message: The message's id.
        digest: The digest of the version.
    """
    return uuid5(_VERSIONS, conversation, message, digest)


def keyed_message_id(conversation: str, key: str) -> str:
    """Return the id of the message that is appended to a conversation under an idempotency key. It
    is always the same.
    """
    return uuid5(_KEYS, conversation, key)


def keyed_conversation_id(made_by: str, source: str, key: str) -> str:
    """Return the id of the conversation that is made under an idempotency key. It is always the
    same.

    Args:
        made_by: The operation: `create`, `fork` or `summarize`.
        source: The source of a fork or summary. Empty for `create`.
        key: The key.
    """
    # No conversation's id has a colon, so no `keyed_message_id` is the same.
    return uuid5(_KEYS, f"{made_by}:{source}", key)


def imported_conversation_id(format: str, source: str) -> str:
    """Return the id for an imported conversation. It is the same in every store.

    Args:
        format: The name of the format.
        source: The conversation's id in the other program.
    """
    return uuid5(_SOURCES, format, source)


def imported_message_id(conversation: str, source: str) -> str:
    """Return the id for an imported message. It is the same in every store.

    Args:
        conversation: The conversation's id.
        source: The message's id in the other program.
    """
    # With a third name, so that no `imported_conversation_id` is the same.
    return uuid5(_SOURCES, conversation, source, "")


def uuid5(namespace: bytes, *names: str) -> str:
    """Return the UUIDv5 of names, as `uuid.uuid5` does, in a tenth of the time. An import makes many
    of them.
    """
    from hashlib import sha1

    name = "\0".join(names).encode("utf-8", "surrogatepass")
    text = sha1(namespace + name, usedforsecurity=False).hexdigest()
    variant = "89ab"[int(text[16], 16) & 3]
    return f"{text[:8]}-{text[8:12]}-5{text[13:16]}-{variant}{text[17:20]}-{text[20:32]}"


def named_instance_id(user: str, host: str, name: str) -> str:
    """Return the id of a named instance. It is the same in every process that uses the name."""
    return uuid5(_INSTANCES, user, host, name)
