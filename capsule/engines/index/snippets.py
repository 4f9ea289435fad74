"""The piece of a text that shows why it was found.

What must stay true: it is one line of at most `width` characters, an ellipsis on each side where something was left
out among them; the marks lie on words of the query as the index understands them; and neither the piece nor a mark
ends between characters that make one on a screen.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from capsule.engines.index.folding import tokens
from capsule.engines.index.query import Phrase

#: Characters of a snippet.
WIDTH = 160
#: A text is looked through in pieces of so many characters, that overlap by so many, up to the first with a match.
_PIECE, _OVERLAP = 16_384, 1024
#: The most matches of a piece that are weighed against each other.
_MOST = 200
_SPACE = re.compile(r"\s+")
#: How far a cut is moved to fall between two words.
_REACH = 16
_ZWJ = "\u200d"
#: Colours of skin, vowels and ends of Hangul syllables, tags of flags.
_JOINED = re.compile("[\U0001f3fb-\U0001f3ff\u1160-\u11ff\U000e0020-\U000e007f]")
_FLAGS = "".join(map(chr, range(0x1F1E6, 0x1F200)))

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a text.

    Attributes:
        text: One line.
        marks: Where what was looked for stands in it: first character, and the one behind the last.
    """

    text: str
    marks: tuple[Span, ...] = ()

    def as_json(self) -> dict[str, object]:
        """What `--json` prints."""
        return {"text": self.text, "marks": [list(mark) for mark in self.marks]}


def snippet(text: str, phrases: Sequence[Phrase], literal: str = "", width: int = WIDTH) -> Snippet:
    """The piece of `text` that holds the most of what was looked for.

    Args:
        text: The text; the beginning of it is the snippet when nothing of the kind stands in it.
        phrases: What was looked for.
        literal: Instead of them: a text without words, looked for as it is.
        width: The most characters.
    """
    found = _literal_spans(text, literal) if literal else _spans(text, phrases)
    if not found:
        return _cut(text, 0, [], width)
    best, most = 0, -1
    for at, (start, _, _) in enumerate(found):
        # The context before the first mark takes some of the width.
        kinds = {kind for first, last, kind in found[at:] if last <= start + width * 3 // 4}
        if len(kinds) > most:
            best, most = at, len(kinds)
    return _cut(text, found[best][0], [(first, last) for first, last, _ in found[best:]], width)


def _literal_spans(text: str, literal: str) -> list[tuple[int, int, int]]:
    return [(*found.span(), 0) for found in islice(re.finditer(re.escape(literal), text), _MOST)]


def _spans(text: str, phrases: Sequence[Phrase]) -> list[tuple[int, int, int]]:
    """Where phrases stand in the first piece of a text that has any: first, behind the last, number of the phrase."""
    for start in range(0, max(1, len(text)), _PIECE):
        # A piece that begins within a word would find its end; the overlap has the whole word.
        piece = text[start : start + _PIECE + _OVERLAP]
        found = sorted(set(_matches(piece, phrases, started=start > 0)))
        if found:
            return [(first + start, last + start, kind) for first, last, kind in found]
    return []


def _matches(text: str, phrases: Sequence[Phrase], *, started: bool) -> Iterable[tuple[int, int, int]]:
    words = tokens(text)
    places: dict[str, list[int]] = {}
    for at in range(started, len(words)):
        places.setdefault(words[at][0], []).append(at)
    for kind, phrase in enumerate(phrases):
        size = len(phrase.words)
        found = (at for at in _beginnings(phrase, places) if _fits(phrase, [word[0] for word in words[at : at + size]]))
        for at in islice(found, _MOST):
            yield words[at][1], words[at + size - 1][2], kind


def _beginnings(phrase: Phrase, places: dict[str, list[int]]) -> Iterable[int]:
    first = phrase.words[0]
    if phrase.prefix and len(phrase.words) == 1:
        return sorted(at for word, found in places.items() if word.startswith(first) for at in found)
    return places.get(first, ())


def _fits(phrase: Phrase, words: list[str]) -> bool:
    *before, last = phrase.words
    if len(words) != len(phrase.words) or words[:-1] != before:
        return False
    return words[-1].startswith(last) if phrase.prefix else words[-1] == last


def _cut(text: str, anchor: int, marks: list[Span], width: int) -> Snippet:
    """The piece around `anchor`, in one line, with the marks that lie in it."""
    start = min(anchor, _start(text, max(0, anchor - width // 4)))
    end = len(text) if len(text) - start <= width else _end(text, start + width - 2, start)
    if end == len(text) and start:
        start = min(start, _start(text, max(0, end - width + 2)))
    parts: list[str] = []
    placed: list[Span] = []
    length = 0

    def put(piece: str) -> None:
        nonlocal length
        piece = _SPACE.sub(" ", piece)
        if piece.startswith(" ") and (not parts or parts[-1].endswith(" ")):
            piece = piece[1:]
        if piece:
            parts.append(piece)
            length += len(piece)

    if start:
        put("…")
    at = start
    for first, last in _joined(marks):
        # A mark that reaches over the end is cut with the text.
        first, last = max(first, at), min(_whole(text, last), end)
        if first >= last:
            continue
        put(text[at:first])
        begun = length
        put(text[first:last])
        placed.append((begun, length))
        at = last
    put(text[at:end].rstrip())
    if end < len(text):
        put("…")
    elif parts:
        parts[-1] = parts[-1].rstrip()
    return Snippet("".join(parts), tuple(placed))


def _joined(spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap or touch, as one."""
    made: list[Span] = []
    for first, last in sorted(spans):
        if made and first <= made[-1][1]:
            made[-1] = (made[-1][0], max(last, made[-1][1]))
        else:
            made.append((first, last))
    return made


def _start(text: str, at: int) -> int:
    """Where to begin, near `at`: at a word when one begins nearby, and at a whole character in any case."""
    if at == 0:
        return 0
    space = _SPACE.search(text, at - 1, at + _REACH)
    if space is not None:
        return space.end()
    whole = at
    while whole < len(text) and _belongs(text, whole):
        whole += 1
    return whole if whole < len(text) else at


def _end(text: str, at: int, start: int) -> int:
    """Where to end, not behind `at`: behind a word when one ends nearby, and behind a whole character in any case."""
    if at >= len(text):
        return len(text)
    for place in range(at, max(at - _REACH, start + 1), -1):
        if text[place].isspace():
            return place
    end = at
    while end > start + 1 and _belongs(text, end):
        end -= 1
    return end if end > start + 1 else at


def _whole(text: str, at: int) -> int:
    """The end of the character that ends at `at`, with the accents and joined signs that belong to it."""
    limit = min(len(text), at + _REACH)
    while at < limit and _belongs(text, at) and text[at - 1] != _ZWJ:
        at += 1
    return at


def _belongs(text: str, at: int) -> bool:
    """Whether the character at `at` makes one on a screen with the one before it."""
    if not 0 < at < len(text):
        return False
    character, before = text[at], text[at - 1]
    if before == "\r" or character < "\u0300":
        return before + character == "\r\n"
    if "\U0001f1e6" <= character <= "\U0001f1ff":  # A flag is two of these.
        return (at - len(text[:at].rstrip(_FLAGS))) % 2 == 1
    is_joined = _ZWJ in (before, character) or _JOINED.match(character) is not None
    return is_joined or unicodedata.category(character)[0] == "M"
