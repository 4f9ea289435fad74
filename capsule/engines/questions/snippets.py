"""Cut the snippet of a hit: one line with the most words of the query, and marks on them.

What must stay true: a snippet is one line of at most `width` characters, with an ellipsis on each
side where text was left out. The marks are on words of the query as the index understands them.
Neither the snippet nor a mark ends inside of a character as it is drawn on a screen, unless that
character is longer than the snippet.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from capsule.engines.queries import Snippet, Span
from capsule.engines.questions.query import Phrase, composed, tokens

#: Characters of a snippet.
WIDTH = 160
#: A text is searched in pieces of so many characters, each with the beginning of the next one, up
#: to the first match.
_PIECE = 16_384
_OVERLAP = 1024
#: The most matches of a phrase that are compared.
_MAX_MATCHES = 200
#: The largest distance by which a cut is moved to a space.
_MAX_SHIFT = 16
_ZERO_WIDTH_JOINER = "\u200d"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


class _PhraseMatch(NamedTuple):
    """A part of a line, from its first character to the one after its last,
    and the phrase there.
    """

    first: int
    end: int
    phrase_index: int


def snippet(text: str, phrases: Sequence[Phrase], literal: str = "", width: int = WIDTH) -> Snippet:
    """Return the piece of a text with the most different phrases.

    Args:
        text: The text. If nothing matches, the snippet is its beginning.
        phrases: The phrases of the query.
        literal: A text without words. It is looked for in place of the phrases, as it is.
        width: The largest number of characters.
    """
    beginning = _line(text, 0)
    for start in range(0, max(1, len(text)), _PIECE):
        line = _line(text, start) if start else beginning
        if literal:
            matches = sorted(set(_literal_matches(line, literal)))
        else:
            matches = sorted(set(_phrase_matches(line, phrases, is_first=not start)))
        if matches:
            has_text_after = start + _PIECE + _OVERLAP < len(text)
            return _excerpt(
                line,
                _from_densest(matches, width),
                width,
                has_text_before=start > 0,
                has_text_after=has_text_after,
            )
    return _excerpt(
        beginning,
        [],
        width,
        has_text_before=False,
        has_text_after=len(text) > _PIECE + _OVERLAP,
    )


def _line(text: str, start: int) -> str:
    """Return a piece of a text as one line."""
    return composed(" ".join(text[start : start + _PIECE + _OVERLAP].split()))


def _literal_matches(line: str, literal: str) -> Iterator[_PhraseMatch]:
    pattern = re.escape(" ".join(literal.split()))
    for match in islice(re.finditer(pattern, line), _MAX_MATCHES):
        yield _PhraseMatch(match.start(), match.end(), 0)


def _phrase_matches(
    line: str, phrases: Sequence[Phrase], *, is_first: bool
) -> Iterator[_PhraseMatch]:
    words = tokens(line)
    if not is_first:
        words = words[1:]  # It can be the end of a word, which the piece before has as a whole.
    folded_line = "".join([f" {word}" for word, _, _ in words]) + " "
    word_starts = list(accumulate([len(word) + 1 for word, _, _ in words], initial=0))
    for phrase_index, phrase in enumerate(phrases):
        folded_phrase = " ".join(("", *phrase.words)) + ("" if phrase.prefix else " ")
        found_at = -1
        for _ in range(_MAX_MATCHES):
            found_at = folded_line.find(folded_phrase, found_at + 1)
            if found_at < 0:
                break
            first_word = bisect_left(word_starts, found_at)
            last_word = first_word + len(phrase.words) - 1
            yield _PhraseMatch(words[first_word][1], words[last_word][2], phrase_index)


def _from_densest(matches: list[_PhraseMatch], width: int) -> list[Span]:
    """Return the matches from that one on which has the most different phrases within reach."""
    # The text before the first mark takes a part of the width.
    reach = width * 3 // 4

    def phrases_from(index: int) -> int:
        end = matches[index].first + reach
        return len({match.phrase_index for match in matches[index:] if match.end <= end})

    densest = max(range(len(matches)), key=phrases_from)
    return [(match.first, match.end) for match in matches[densest:]]


def _excerpt(
    line: str, marks: Sequence[Span], width: int, *, has_text_before: bool, has_text_after: bool
) -> Snippet:
    """Return the part of a line around the first mark, with all marks in it."""
    start, end = _bounds(
        line, marks[0][0] if marks else 0, width, ellipses=has_text_before + has_text_after
    )
    lead = "…" if start or has_text_before else ""
    trail = "…" if end < len(line) or has_text_after else ""
    shift = len(lead) - start
    shifted = []
    for first, last in _merged(line, marks):
        if first < end:
            shifted.append((first + shift, min(last, end) + shift))
    return Snippet(lead + line[start:end].strip() + trail, tuple(shifted))


def _bounds(line: str, anchor: int, width: int, *, ellipses: int) -> Span:
    """Choose the part of a line that is shown: with the anchor, and cut between words if possible.

    Args:
        line: The line.
        anchor: The index of the first mark.
        width: The largest number of characters of a snippet.
        ellipses: The number of ellipses that the whole line would need.
    """
    if len(line) + ellipses <= width:
        return 0, len(line)
    room = width - 2
    start = max(0, min(anchor - width // 4, len(line) - room))
    if start:
        after_space = line.find(" ", start - 1, min(start + _MAX_SHIFT, anchor)) + 1
        start = _next_boundary(line, after_space or start, anchor)
    end = len(line)
    if start + room < end:
        end = start + room
        space = line.rfind(" ", max(end - _MAX_SHIFT, start + 1), end + 1)
        end = space if space > 0 else _previous_boundary(line, end, start)
    return start, end


def _next_boundary(line: str, start: int, stop: int) -> int:
    """Return the first index from `start` on where a drawn character begins, at most `stop`."""
    for index in range(start, stop):
        if not _combines_with_previous(line, index):
            return index
    return stop


def _previous_boundary(line: str, end: int, stop: int) -> int:
    """Return the last index up to `end`, after `stop`, where a drawn character begins. If there is
    none, return `end`.
    """
    for index in range(end, stop, -1):
        if not _combines_with_previous(line, index):
            return index
    return end


def _merged(line: str, spans: Iterable[Span]) -> list[Span]:
    """Merge spans that overlap or touch, and extend each to the end of its last drawn character."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        end = last
        while end < len(line) and _combines_with_previous(line, end):
            end += 1
        if merged and first <= merged[-1][1]:
            previous_first, previous_end = merged.pop()
            merged.append((previous_first, max(end, previous_end)))
        else:
            merged.append((first, end))
    return merged


def _combines_with_previous(line: str, index: int) -> bool:
    """Return whether a character and the one before it are drawn as one."""
    character = line[index]
    previous = line[index - 1]
    if character < "\u0300" or not index:
        return False
    if character in _FLAG_LETTERS:  # A flag is two of these.
        return (index - len(line[:index].rstrip(_FLAG_LETTERS))) % 2 == 1
    if _ZERO_WIDTH_JOINER in (previous, character):
        return True
    is_skin_tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    is_tag = "\U000e0020" <= character <= "\U000e007f"
    return is_skin_tone or is_tag or unicodedata.category(character)[0] == "M"
