"""JSON with comments, read with the place of everything in it, so that one value can be changed and nothing else.

What must stay true: a document is a text, and every offset is one into that text; what is accepted is JSON, `//` and
`/* */` comments, and a comma after the last value, no more (no single quotes, no bare names); and whatever is not
accepted is refused with its line and column. Nothing here knows what the document means.

The packages that PyPI has for this were looked at: those that keep comments read JSON5 into a tree and write it out
anew, in a layout of their own, or run another language's library; none keeps every byte.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

__all__ = ["DEPTH", "Malformed", "Member", "Node", "Text", "read"]

#: How deep values may stand in one another; no settings file comes near it.
DEPTH = 200

_BLANK = re.compile(r"[ \t\r\n]*")
_STRING = re.compile(r'"(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"')
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|true|false|null")
_WORD = re.compile(r"[^\s,:\[\]{}\"/]+|.", re.DOTALL)


class Malformed(Exception):
    """A text is no JSON.

    Args:
        what: What is wrong, in words.
        at: The offset in the text.
    """

    def __init__(self, what: str, at: int) -> None:
        super().__init__(what)
        self.what = what
        self.at = at


@dataclass(slots=True)
class Node:
    """A value, from the offset `start` to `end`; `value` is what it says.

    Attributes:
        members: Of an object: its members, in order, the doubled ones too.
        is_object: Whether it is one.
    """

    start: int
    end: int
    value: Any
    is_object: bool = False
    members: list[Member] = field(default_factory=list)

    def last(self, key: str) -> Member | None:
        """The member of that name; of several the last, which is the one that counts."""
        return next((member for member in reversed(self.members) if member.key == key), None)


@dataclass(slots=True)
class Member:
    """A member of an object. `comma` is the offset of the comma after it, None when there is none."""

    key: str
    start: int
    node: Node
    comma: int | None = None


@dataclass(frozen=True, slots=True)
class Text:
    """A document: its text, its root (None: there is nothing but blanks and comments), and its comments' offsets."""

    text: str
    root: Node | None
    comments: tuple[tuple[int, int], ...]
    plain: bool

    @property
    def value(self) -> Any:
        """What the document says."""
        return None if self.root is None else self.root.value


# An edit reads the same text several times, and some programs keep megabytes of history in their settings.
@lru_cache(maxsize=4)
def read(text: str, *, plain: bool = False) -> Text:
    """Read a document. The answer is shared with whoever reads the same text: it is not to be changed.

    Args:
        text: The document, without a byte order mark.
        plain: Whether a comment, or a comma after the last value, is an error: the reader knows JSON only.

    Raises:
        Malformed: It is none.
    """
    reader = _Reader(text, plain)
    at = reader.blank(0)
    if at == len(text):
        return Text(text, None, tuple(reader.comments), plain)
    root = reader.value(at, 0)
    at = reader.blank(root.end)
    if at != len(text):
        raise Malformed("something follows the end of the document", at)
    return Text(text, root, tuple(reader.comments), plain)


class _Reader:
    """Reads values; each method takes the offset to begin at."""

    def __init__(self, text: str, plain: bool) -> None:
        self.text = text
        self.plain = plain
        self.comments: list[tuple[int, int]] = []

    def blank(self, at: int) -> int:
        """Past blanks and comments."""
        text = self.text
        while True:
            at = _end(_BLANK, text, at)
            if not text.startswith(("//", "/*"), at):
                return at
            if self.plain:
                raise Malformed("a comment, and the program that reads this file knows none", at)
            if text[at + 1] == "/":
                end = min((found for found in (text.find("\n", at), text.find("\r", at)) if found >= 0), default=-1)
                end = len(text) if end < 0 else end
            else:
                end = text.find("*/", at + 2) + 2
                if end == 1:
                    raise Malformed("this comment has no end", at)
            self.comments.append((at, end))
            at = end

    def value(self, at: int, depth: int) -> Node:
        if depth > DEPTH:
            raise Malformed(f"values stand in one another more than {DEPTH} deep", at)
        mark = self.text[at : at + 1]
        if mark == "{":
            return self.object(at, depth)
        if mark == "[":
            return self.array(at, depth)
        if mark == '"':
            end = self.string(at)
            return Node(at, end, json.loads(self.text[at:end]))
        match = _SCALAR.match(self.text, at)
        word = _WORD.match(self.text, at)
        if match is None or (word is not None and word.end() > match.end()):
            raise Malformed(f"a value is missing here, before {word[0]!r}" if word else "it ends too early", at)
        return Node(at, match.end(), _number(match[0]))

    def string(self, at: int) -> int:
        match = _STRING.match(self.text, at)
        if match is None:
            raise Malformed("this string is not closed, or has a character in it that must be escaped", at)
        return match.end()

    def object(self, start: int, depth: int) -> Node:
        node = Node(start, start, {}, is_object=True)
        at = self.blank(start + 1)
        while not self.text.startswith("}", at):
            if not self.text.startswith('"', at):
                raise Malformed(self._instead(at, "a name in double quotes"), at)
            end = self.string(at)
            key = json.loads(self.text[at:end])
            colon = self.blank(end)
            if not self.text.startswith(":", colon):
                raise Malformed(self._instead(colon, "a colon"), colon)
            member = Member(key, at, self.value(self.blank(colon + 1), depth + 1))
            node.members.append(member)
            node.value[key] = member.node.value
            at, member.comma = self.comma(self.blank(member.node.end), "}")
        node.end = at + 1
        return node

    def array(self, start: int, depth: int) -> Node:
        node = Node(start, start, [])
        at = self.blank(start + 1)
        while not self.text.startswith("]", at):
            one = self.value(at, depth + 1)
            node.value.append(one.value)
            at, _ = self.comma(self.blank(one.end), "]")
        node.end = at + 1
        return node

    def comma(self, at: int, closing: str) -> tuple[int, int | None]:
        """Where the next value, or the closing mark, begins; and where the comma is."""
        if self.text.startswith(",", at):
            after = self.blank(at + 1)
            if self.plain and self.text.startswith(closing, after):
                raise Malformed("a comma after the last value, and the program that reads this file knows none", at)
            return after, at
        if not self.text.startswith(closing, at):
            raise Malformed(self._instead(at, f"a comma or {closing}"), at)
        return at, None

    def _instead(self, at: int, wanted: str) -> str:
        word = _WORD.match(self.text, at)
        return f"{wanted} is missing here, before {word[0]!r}" if word else f"it ends too early: {wanted} is missing"


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return at if match is None else match.end()


def _number(word: str) -> Any:
    """What a word says; a number too long for Python to turn into one stays a text, as it is only compared."""
    try:
        return json.loads(word)
    except ValueError:
        return word
