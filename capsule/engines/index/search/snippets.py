"""The piece of a text that shows why it was found.

What must stay true: it is one line of at most `width` characters, an ellipsis on each side where something was left
out among them; the marks lie on words of the query as the index understands them; and neither the piece nor a mark
ends between characters that make one on a screen.

FTS5's own `snippet` and `highlight` need the text in the index, which holds none.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice

from capsule.engines.answers import Snippet
from capsule.engines.index.search.folding import composed, tokens
from capsule.engines.index.search.query import Phrase

#: Characters of a snippet.
WIDTH = 160
#: A text is searched in pieces of so many characters, each with so many of the next one, up to the first match.
_PIECE, _OVERLAP = 16_384, 1024
#: The most matches of a phrase that are weighed against each other.
_MOST = 200
#: How far a cut is moved to fall between two words.
_REACH = 16
_ZWJ = "\u200d"
_FLAGS = "".join(map(chr, range(0x1F1E6, 0x1F200)))

Span = tuple[int, int]
#: First character, the one behind the last, and which phrase was found.
_Match = tuple[int, int, int]


def snippet(text: str, phrases: Sequence[Phrase], literal: str = "", width: int = WIDTH) -> Snippet:
    """The piece of `text` that holds the most of what was looked for.

    Args:
        text: The text; the beginning of it is the snippet when nothing of the kind stands in it.
        phrases: What was looked for.
        literal: Instead of them: a text without words, looked for as it is.
        width: The most characters.
    """
    beginning = _line(text, 0)
    for start in range(0, max(1, len(text)), _PIECE):
        line = _line(text, start) if start else beginning
        matches = sorted(set(_literally(line, literal) if literal else _matches(line, phrases, is_first=not start)))
        if matches:
            more = start + _PIECE + _OVERLAP < len(text)
            return _cut(line, _best(matches, width), width, before=start > 0, after=more)
    return _cut(beginning, [], width, before=False, after=len(text) > _PIECE + _OVERLAP)


def _line(text: str, start: int) -> str:
    return composed(" ".join(text[start : start + _PIECE + _OVERLAP].split()))


def _literally(line: str, literal: str) -> Iterator[_Match]:
    pattern = re.escape(" ".join(literal.split()))
    return ((*match.span(), 0) for match in islice(re.finditer(pattern, line), _MOST))


def _matches(line: str, phrases: Sequence[Phrase], *, is_first: bool) -> Iterator[_Match]:
    # What a piece begins with may be the end of a word; the overlap of the piece before has it whole.
    words = tokens(line) if is_first else tokens(line)[1:]
    said = "".join([f" {word}" for word, _, _ in words]) + " "
    starts = list(accumulate([len(word) + 1 for word, _, _ in words], initial=0))
    for kind, phrase in enumerate(phrases):
        wanted = " ".join(("", *phrase.words)) + ("" if phrase.prefix else " ")
        at = -1
        for _ in range(_MOST):
            at = said.find(wanted, at + 1)
            if at < 0:
                break
            word = bisect_left(starts, at)
            yield words[word][1], words[word + len(phrase.words) - 1][2], kind


def _best(matches: list[_Match], width: int) -> list[Span]:
    """The matches from the one on around which the most phrases stand."""

    def kinds(at: int) -> int:
        # The context before the first mark takes some of the width.
        return len({kind for _, last, kind in matches[at:] if last <= matches[at][0] + width * 3 // 4})

    return [match[:2] for match in matches[max(range(len(matches)), key=kinds) :]]


def _cut(line: str, marks: Sequence[Span], width: int, *, before: bool, after: bool) -> Snippet:
    """The piece around the first mark, with the marks that lie in it."""
    start, end = 0, len(line)
    if end + before + after > width:
        anchor, room = marks[0][0] if marks else 0, width - 2
        start = max(0, min(anchor - width // 4, end - room))
        if start:
            start = line.find(" ", start - 1, min(start + _REACH, anchor)) + 1 or start
            start = next((at for at in range(start, anchor) if not _belongs(line, at)), anchor)
        if start + room < end:
            end = start + room
            space = line.rfind(" ", max(end - _REACH, start + 1), end + 1)
            end = space if space > 0 else next((at for at in range(end, start, -1) if not _belongs(line, at)), end)
    lead = "…" if start or before else ""
    text = lead + line[start:end].strip() + ("…" if end < len(line) or after else "")
    shift = len(lead) - start
    placed = [(first + shift, min(last, end) + shift) for first, last in _joined(line, marks) if first < end]
    return Snippet(text, tuple(placed))


def _joined(line: str, spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap or touch, as one; each with all that makes one character with its last."""
    made: list[Span] = []
    for first, last in sorted(spans):
        while last < len(line) and _belongs(line, last):
            last += 1
        if made and first <= made[-1][1]:
            first, last = made[-1][0], max(last, made.pop()[1])
        made.append((first, last))
    return made


def _belongs(line: str, at: int) -> bool:
    """Whether the character at `at` makes one on a screen with the one before it."""
    character, before = line[at], line[at - 1]
    if character < "\u0300" or not at:
        return False
    if character in _FLAGS:  # A flag is two of these.
        return (at - len(line[:at].rstrip(_FLAGS))) % 2 == 1
    is_tone_or_tag = "\U0001f3fb" <= character <= "\U0001f3ff" or "\U000e0020" <= character <= "\U000e007f"
    return _ZWJ in (before, character) or is_tone_or_tag or unicodedata.category(character)[0] == "M"
