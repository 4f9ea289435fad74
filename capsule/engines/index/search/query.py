"""Parse a search query, and fold texts and queries in the same way.

Folding removes case and accents, and puts a space wherever a word ends. What must stay true:

- A query is folded as texts are, so that a text's own words find it.
- Each character of a composed text is folded by itself, so a position in the folded text has its
  position in the original.
- An ASCII text stays as it is, because the tokenizer folds its case.

The tokenizer is FTS5's `ascii`: ASCII letters and digits and everything beyond ASCII are parts of
words. Characters of scripts that put no spaces between words, and symbols, become words of their
own (docs/search.md, "How words are indexed", gives the reason).

Parsing turns what a person types into an expression of FTS5. What must stay true:

- Every text is a query, and none is an error. What is no syntax is words.
- A part that is skipped (it has no words, or comes after too many) makes a query find more, so a
  message's own words find it.

    words            all of them, in any order            plan budget
    "a phrase"       these words in a row                 "the plan"
    begin*           words with this beginning            bud*
    AND OR NOT       in capitals, with something on       plan NOT (draft OR old)
    ( )              both sides; NOT takes away
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb

#: First and last characters of the scripts that put no spaces between words, and of Korean, whose
#: words carry their particles. Only what is a letter, a number or a mark is meant.
_CONTINUOUS = (
    (0x0E00, 0x109F),  # Thai, Lao, Tibetan, Myanmar
    (0x1100, 0x11FF),  # Hangul letters
    (0x1780, 0x17FF),  # Khmer
    (0x1950, 0x1AAF),  # Tai Le, New Tai Lue, Khmer symbols, Buginese, Tai Tham
    (0x1B00, 0x1B7F),  # Balinese
    (0x2E80, 0x2FDF),  # radicals
    (0x3005, 0x3007),
    (0x3021, 0x303C),
    (0x3041, 0xA4CF),  # kana, Bopomofo, Hangul letters, Han, Yi
    (0xA960, 0xA9DF),  # Hangul letters, Javanese
    (0xA9E0, 0xA9FF),  # Myanmar
    (0xAA00, 0xAADF),  # Cham, Myanmar, Tai Viet
    (0xAC00, 0xD7FF),  # Hangul
    (0xF900, 0xFAFF),  # Han
    (0x12000, 0x1467F),  # cuneiform, hieroglyphs
    (0x16FE0, 0x1B2FF),  # Tangut, Khitan, kana
    (0x20000, 0x3FFFF),  # Han
)
_STARTS = [first for first, _ in _CONTINUOUS]

#: Half-width kana with a voice mark: two characters that no composed form joins.
_VOICED = "[\uff66-\uff9d][\uff9e\uff9f]"
#: Drawn, not said: boxes, blocks, Braille spinners, and what stands for a character that was lost.
_DRAWN = "[\u2500-\u259f\u2800-\u28ff\ufffd]"
_WORD = "[0-9A-Za-z]+"
_TATWEEL, _ZERO_WIDTH_SPACE = "\u0640", "\u200b"


@cache
def _runs() -> re.Pattern[str]:
    """Compiled when it is first used, as a list is to start fast."""
    return re.compile(
        "[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _CONTINUOUS) + "]+"
    )


def is_continuous(character: str) -> bool:
    """Whether a character is of a script that puts no spaces between words."""
    code = ord(character)
    at = bisect_right(_STARTS, code) - 1
    return at >= 0 and code <= _CONTINUOUS[at][1]


class _FoldTable(dict[int, str]):
    """What each character becomes; made when it is first met, as there are a million of them."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if is_continuous(character):
            parts = unicodedata.normalize("NFKC", character)
        else:
            parts = unicodedata.normalize(
                "NFKD", unicodedata.normalize("NFKD", character).casefold()
            )
        folded = "".join(map(_folded, parts))
        if " " in folded:
            # A character that is several words, like ½, is no part of another one.
            folded = f" {folded} "
        self[code] = folded
        return folded


def _folded(character: str) -> str:
    """What one character of a decomposed text becomes: itself, itself as a word of its own, a
    space, or nothing.
    """
    if character < "\x80":
        return character.lower() if character.isalnum() else " "
    alone = f" {character} "
    kind = unicodedata.category(character)
    if kind[0] == "M":
        # Accents, and the vowel points that Arabic and Hebrew mostly leave out; not vowels and
        # voicing.
        place = unicodedata.combining(character)
        if (
            place == 1
            or 10 <= place <= 36
            or place >= 200
            or kind == "Me"
            or "\ufe00" <= character <= "\ufe0f"
        ):
            return ""
        if character >= "\U000e0100":
            return ""  # A variant of the character before it.
        return alone if is_continuous(character) else character
    if kind == "Cf":
        return " " if character == _ZERO_WIDTH_SPACE else ""
    if kind[0] in "ZP" or kind in ("Cc", "Cs") or re.match(_DRAWN, character):
        return " "
    if kind == "Nd":
        return str(unicodedata.decimal(character))
    if kind[0] in "LN" and not is_continuous(character):
        return "" if character == _TATWEEL else character
    return alone


_FOLDS = _FoldTable()


def composed(text: str) -> str:
    """`text` with each letter as one character where Unicode has one for it. It looks the same."""
    if text.isascii():
        return text
    if "\uff9e" in text or "\uff9f" in text:
        text = re.sub(_VOICED, lambda match: unicodedata.normalize("NFKC", match.group()), text)
    return unicodedata.normalize("NFC", text)


def fold(text: str) -> str:
    """`text` as the index takes it. Costs nothing for ASCII; else about 20 ns a byte."""
    return text if text.isascii() else composed(text).translate(_FOLDS)


_SPACES = bytes(ord(" ") if chr(code).isspace() else ord("x") for code in range(256))


def count(text: str) -> int:
    """How many words a text has: what stands between spaces; a character of a script without them
    is one.
    """
    if text.isascii():
        # As len(text.split()), at half the cost: every message that is indexed is counted.
        flat = text.encode().translate(_SPACES)
        return flat.count(b" x") + (flat[:1] == b"x")
    between = _runs().split(text)
    return len(text) - sum(map(len, between)) + len(" ".join(between).split())


#: A word of a text, folded, and where it stands in the original: the first character, and the one
#: behind the last.
Token = tuple[str, int, int]


def tokens(text: str) -> list[Token]:
    """The words of a composed text as the index has them, with their places in it."""
    if text.isascii():
        return [
            (match.group().lower(), match.start(), match.end())
            for match in re.finditer(_WORD, text)
        ]
    words: list[Token] = []
    word, start, end = "", 0, 0
    for at, unit in enumerate(text):
        folded = _FOLDS[ord(unit)]
        for character in folded:
            if character == " ":
                if word:
                    words.append((word, start, end))
                word = ""
            else:
                start, word, end = start if word else at, word + character, at + 1
        if word and not folded:
            end = at + 1  # An accent belongs to its letter.
        elif not word and not folded and words and words[-1][2] == at:
            words[-1] = (words[-1][0], words[-1][1], at + 1)
    if word:
        words.append((word, start, end))
    return words


#: The first so many words of a query count; one that goes on finds what has these.
MOST_WORDS = 64
_MOST_CHARACTERS = 50_000
_DEEPEST = 16
#: The most choices of some words among all that FTS5 is asked for at once: each is a condition of
#: its own.
_MOST_CHOICES = 100

_CHUNK = re.compile(r'\s+|"[^"]*"\**|(?:[^\s"]|"(?![^"]*"))+')
_OPERATORS = ("AND", "OR", "NOT")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words in a row.

    Attributes:
        words: Folded.
        prefix: Whether the last one is the beginning of a word.
    """

    words: tuple[str, ...]
    prefix: bool = False

    def __str__(self) -> str:
        return f'"{" ".join(self.words)}"' + ("*" if self.prefix else "")


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A query that was understood.

    Attributes:
        match: What FTS5 is asked; empty when the text has no words.
        phrases: What a message that is found may hold, to be marked in it; not what is behind a
            NOT.
        literal: The text, when it has no words: it is looked for as it is.
        parts: What FTS5 is asked for each phrase, when all of several are wanted and nothing else
            is said.
    """

    match: str
    phrases: tuple[Phrase, ...]
    literal: str = ""
    parts: tuple[str, ...] = ()

    def having(self, count: int) -> str:
        """What FTS5 is asked for texts that have so many of the parts."""
        return " OR ".join(f"({' AND '.join(some)})" for some in combinations(self.parts, count))

    def weaker(self) -> list[int]:
        """How many of the parts a text may have instead of all: most first, as far as that can be
        asked.
        """
        many = len(self.parts)
        return [count for count in range(many - 1, 0, -1) if comb(many, count) <= _MOST_CHOICES]


def parse(text: str) -> ParsedQuery:
    """Understand a text as a query. Never raises for a text."""
    beginning = text
    if len(text) > _MOST_CHARACTERS:
        beginning = text[:_MOST_CHARACTERS]
        if not text[_MOST_CHARACTERS].isspace():
            beginning = beginning.rsplit(None, 1)[0]  # It was cut within a word.
    items = _items(composed(beginning))
    if not items:
        return ParsedQuery("", (), text.strip())
    match, phrases = _expression(items)
    unique = tuple(dict.fromkeys(phrases))
    if not all(isinstance(item, Phrase) for item in items):
        return ParsedQuery(match, unique)
    parts = tuple(map(str, unique))
    return ParsedQuery(" AND ".join(parts), unique, parts=parts if len(parts) > 1 else ())


#: A phrase, an operator, or a parenthesis.
_Item = Phrase | str


def _items(text: str) -> list[_Item]:
    """The parts of a text, without those that have no words."""
    items: list[_Item] = []
    left = MOST_WORDS
    for match in _CHUNK.finditer(text):
        chunk = match.group()
        if chunk.isspace():
            continue
        closing = ""
        if chunk[0] != '"':
            inner = chunk.lstrip("(")
            items.extend("(" * (len(chunk) - len(inner)))
            chunk = inner.rstrip(")")
            # A parenthesis that is opened within the chunk is closed within it: f(x)
            closing = ")" * (len(inner) - len(chunk) - chunk.count("("))
        if chunk in _OPERATORS:
            items.append(chunk)
        elif words := tuple(word for word, _, _ in tokens(chunk)):
            if len(words) > left:
                if left == MOST_WORDS:
                    items.append(Phrase(words[:left]))
                break
            items.append(Phrase(words, chunk.endswith("*") and not _ends_apart(chunk)))
            left -= len(words)
        items.extend(closing)
    if not any(isinstance(item, Phrase) for item in items):
        return [Phrase((item.lower(),)) for item in items if item in _OPERATORS]
    while left < MOST_WORDS and not isinstance(items[-1], Phrase) and match.end() < len(text):
        items.pop()  # What was to follow it was cut off.
    return _balanced(items) if "(" in items or ")" in items else items


def _ends_apart(chunk: str) -> bool:
    """Whether something else than a word stands before the asterisks that end a chunk: nothing can
    begin so.
    """
    bare = chunk.rstrip("*").removesuffix('"')
    words = tokens(bare)
    return not words or words[-1][2] != len(bare)


def _balanced(items: list[_Item]) -> list[_Item]:
    """Without the parentheses that have no counterpart, stand around nothing, or lie too deep."""
    drop: set[int] = set()
    opened: list[tuple[int, int]] = []
    phrases = 0
    for at, item in enumerate(items):
        phrases += isinstance(item, Phrase)
        if item == "(":
            opened.append((at, phrases))
        elif item == ")":
            if not opened:
                drop.add(at)
                continue
            start, before = opened.pop()
            if len(opened) >= _DEEPEST or phrases == before:
                drop.update((start, at))
    drop.update(at for at, _ in opened)
    return [item for at, item in enumerate(items) if at not in drop]


def _expression(items: list[_Item]) -> tuple[str, list[Phrase]]:
    """What FTS5 is asked, and the phrases that are not behind a NOT. An operator that lacks a side
    is a word.

    FTS5 binds NOT more tightly than AND, and that more tightly than OR.
    """
    said: list[str] = []
    phrases: list[Phrase] = []
    opened: list[bool] = []
    wanted, is_complete = True, False
    for at, item in enumerate(items):
        if item in _OPERATORS:
            following = [*items[at + 1 : at + 3], ")", ")"]
            is_operand = [isinstance(part, Phrase) or part == "(" for part in following]
            if is_complete and item == "AND" and following[0] == "NOT" and is_operand[1]:
                continue
            if is_complete and (is_operand[0] or (item == "OR" and following[0] == "NOT")):
                said.append(str(item))
                is_complete = False
                continue
            item = Phrase((str(item).lower(),))
        if item == ")":
            wanted = opened.pop()
        else:
            said += ["AND"] if is_complete else []
            is_wanted = wanted and said[-1:] != ["NOT"]
            if isinstance(item, Phrase):
                phrases += [item] if is_wanted else []
            else:
                opened.append(wanted)
                wanted = is_wanted
        said.append(str(item))
        is_complete = item != "("
    return " ".join(said), phrases
