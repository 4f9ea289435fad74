"""Parse a search query, and fold texts and queries in the same way.

Folding (`fold`, `tokens`) removes case and accents, and puts a space wherever a word ends. The
tokenizer is FTS5's `ascii`: ASCII letters and digits and everything beyond ASCII are parts of
words. Characters of scripts that put no spaces between words, and symbols, become words of their
own (docs/search.md, "How words are indexed", gives the reason). What must stay true:

- A query is folded as texts are, so that a text's own words find it.
- Each character of a composed text is folded by itself, so each position in the folded text has its
  position in the original.
- An ASCII text stays as it is, because the tokenizer folds its case.

Parsing (`parse`) turns what a person types into an expression: `_items` splits it into phrases,
operators and parentheses, and `_expression` makes a valid expression of these. Each engine writes
it in its own language; as text it is one of FTS5. What must stay true:

- Every text is a query, and none is an error. What is no syntax is words.
- A part that is skipped (it has no words, or comes after too many) makes a query find more, so a
  message's own words find it.

    words            all of them, in any order            plan budget
    "a phrase"       these words in a row                 "the plan"
    begin*           words with this beginning            bud*
    AND OR NOT       in capitals, with an operand on      plan NOT (draft OR old)
    ( )              both sides; NOT excludes
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from math import comb
from typing import Literal

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
#: Drawings without words: boxes, blocks, Braille spinners, and the replacement of a lost character.
_DRAWN = "[\u2500-\u259f\u2800-\u28ff\ufffd]"
_WORD = "[0-9A-Za-z]+"
_TATWEEL = "\u0640"
_ZERO_WIDTH_SPACE = "\u200b"


@cache
def _continuous_runs() -> re.Pattern[str]:
    """Return the pattern of runs of these characters, compiled at first use: a list starts fast."""
    ranges = (f"{chr(first)}-{chr(last)}" for first, last in _CONTINUOUS)
    return re.compile("[" + "".join(ranges) + "]+")


def is_continuous(character: str) -> bool:
    """Return whether a character is of a script that puts no spaces between words."""
    code = ord(character)
    index = bisect_right(_STARTS, code) - 1
    return index >= 0 and code <= _CONTINUOUS[index][1]


class _FoldTable(dict[int, str]):
    """The folded form of each character. An entry is made when the character is first met."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if is_continuous(character):
            parts = unicodedata.normalize("NFKC", character)
        else:
            decomposed = unicodedata.normalize("NFKD", character).casefold()
            parts = unicodedata.normalize("NFKD", decomposed)
        folded = "".join(map(_fold_part, parts))
        if " " in folded:
            # A character that is several words, like ½, is no part of another one.
            folded = f" {folded} "
        self[code] = folded
        return folded


def _fold_part(character: str) -> str:
    """Fold one character of a decomposed text.

    Returns: the character, the character as a word of its own, a space, or nothing.
    """
    if character < "\x80":
        return character.lower() if character.isalnum() else " "
    as_word = f" {character} "
    category = unicodedata.category(character)
    if category[0] == "M":
        if _is_removed_mark(character, category):
            return ""
        return as_word if is_continuous(character) else character
    if category == "Cf":
        return " " if character == _ZERO_WIDTH_SPACE else ""
    if category[0] in "ZP" or category in ("Cc", "Cs") or re.match(_DRAWN, character):
        return " "
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category[0] in "LN" and not is_continuous(character):
        return "" if character == _TATWEEL else character
    return as_word


def _is_removed_mark(character: str, category: str) -> bool:
    """Return whether a mark is an accent, a vowel point or a variant of the character before it.

    Arabic and Hebrew mostly leave vowel points out. Other vowels and voice marks stay.
    """
    if category == "Me" or character >= "\U000e0100" or "\ufe00" <= character <= "\ufe0f":
        return True
    combining_class = unicodedata.combining(character)
    is_overlay = combining_class == 1
    is_vowel_point = 10 <= combining_class <= 36  # Of Hebrew, Arabic and Syriac.
    is_accent = combining_class >= 200
    return is_overlay or is_vowel_point or is_accent


_FOLDS = _FoldTable()


def composed(text: str) -> str:
    """Return a text with each letter as one character where Unicode has one. It looks the same."""
    if text.isascii():
        return text
    if "\uff9e" in text or "\uff9f" in text:
        text = re.sub(_VOICED, lambda match: unicodedata.normalize("NFKC", match.group()), text)
    return unicodedata.normalize("NFC", text)


def fold(text: str) -> str:
    """Return a text folded for the index. Cost: nothing for ASCII, else about 20 ns a byte."""
    return text if text.isascii() else composed(text).translate(_FOLDS)


#: For each byte: a space, or `x` for all others.
_SPACES = bytes(ord(" ") if chr(code).isspace() else ord("x") for code in range(256))


def count(text: str) -> int:
    """Return the number of words of a text, which are separated by spaces.

    A character of a script without spaces is one word.
    """
    if text.isascii():
        # As len(text.split()), at half the cost: every message that is indexed is counted.
        flat = text.encode().translate(_SPACES)
        return flat.count(b" x") + (flat[:1] == b"x")
    other_texts = _continuous_runs().split(text)
    continuous_characters = len(text) - sum(map(len, other_texts))
    return continuous_characters + len(" ".join(other_texts).split())


#: A folded word of a text, and its place in the original: the index of its first character, and the
#: one after its last.
Token = tuple[str, int, int]


def tokens(text: str) -> list[Token]:
    """Return the folded words of a composed text, with their places in it."""
    if text.isascii():
        return [
            (match.group().lower(), match.start(), match.end())
            for match in re.finditer(_WORD, text)
        ]
    words: list[Token] = []
    word = ""
    start = 0
    end = 0
    for index, unit in enumerate(text):
        folded = _FOLDS[ord(unit)]
        for character in folded:
            if character == " ":
                if word:
                    words.append((word, start, end))
                word = ""
            else:
                if not word:
                    start = index
                word += character
                end = index + 1
        if folded:
            continue
        # The character is an accent: it belongs to the word before it.
        if word:
            end = index + 1
        elif words and words[-1][2] == index:
            # The character before it was a word of its own, so that word is complete already.
            last_word, last_start, _ = words[-1]
            words[-1] = (last_word, last_start, index + 1)
    if word:
        words.append((word, start, end))
    return words


#: The number of words of a query that count. Further words are ignored.
MAX_WORDS = 64
_MAX_CHARACTERS = 50_000
#: Parentheses that are nested deeper are ignored.
_MAX_DEPTH = 16
#: The largest number of combinations of words in one expression of FTS5.
_MAX_COMBINATIONS = 100

_CHUNK = re.compile(r'\s+|"[^"]*"\**|(?:[^\s"]|"(?![^"]*"))+')
_OPERATORS = ("AND", "OR", "NOT")
_SIGNS: tuple[Literal["AND", "OR", "NOT", "(", ")"], ...] = ("AND", "OR", "NOT", "(", ")")


@dataclass(frozen=True, slots=True)
class Phrase:
    """Words in a row.

    Attributes:
        words: The folded words.
        prefix: Whether the last one is only the beginning of a word.
    """

    words: tuple[str, ...]
    prefix: bool = False

    def __str__(self) -> str:
        """Return the phrase as an expression of FTS5."""
        expression = f'"{" ".join(self.words)}"'
        return expression + "*" if self.prefix else expression


#: A part of an expression: a phrase, a parenthesis, or AND, OR or NOT. NOT stands between two
#: operands, as in "a NOT b". It binds more tightly than AND, and AND more tightly than OR.
Term = Phrase | Literal["AND", "OR", "NOT", "(", ")"]


def as_fts5(terms: Iterable[Term]) -> str:
    """Return an expression as the full-text search of SQLite (FTS5) reads it."""
    return " ".join(map(str, terms))


@dataclass(frozen=True, slots=True)
class ParsedQuery:
    """A parsed query.

    Attributes:
        terms: The expression that a match meets. Empty: the text has no words.
        phrases: The phrases that a hit can have, to be marked in it: not those after a NOT.
        literal: The text if it has no words. It is looked for as it is.
        parts: The phrases, if the query is two or more phrases without operators.
    """

    terms: tuple[Term, ...]
    phrases: tuple[Phrase, ...]
    literal: str = ""
    parts: tuple[Phrase, ...] = ()

    def terms_of_at_least(self, count: int) -> list[Term]:
        """Return the expression for texts that have so many of the parts."""
        terms: list[Term] = []
        for parts in combinations(self.parts, count):
            if terms:
                terms.append("OR")
            terms += ["(", *_all_of(parts), ")"]
        return terms

    def relaxed_part_counts(self) -> list[int]:
        """Return the numbers of parts that a text may have instead of all, the largest first.

        Numbers with too many combinations for one expression are left out.
        """
        total = len(self.parts)
        counts = []
        for part_count in range(total - 1, 0, -1):
            if comb(total, part_count) <= _MAX_COMBINATIONS:
                counts.append(part_count)
        return counts


def parse(text: str) -> ParsedQuery:
    """Parse a query. It never raises."""
    text = text.strip()
    beginning = text[:_MAX_CHARACTERS]
    is_cut = len(text) > _MAX_CHARACTERS
    if is_cut and not text[_MAX_CHARACTERS].isspace():
        beginning = beginning.rsplit(None, 1)[0]  # It was cut within a word.
    items = _items(composed(beginning), is_cut=is_cut)
    if not items:
        return ParsedQuery((), (), text)
    terms, phrases = _expression(items)
    unique = tuple(dict.fromkeys(phrases))
    if not all(isinstance(item, Phrase) for item in items):
        return ParsedQuery(tuple(terms), unique)
    parts = unique if len(unique) > 1 else ()
    return ParsedQuery(tuple(_all_of(unique)), unique, parts=parts)


def _all_of(phrases: Sequence[Phrase]) -> list[Term]:
    """Return the expression for texts that have all of the phrases."""
    terms: list[Term] = []
    for phrase in phrases:
        if terms:
            terms.append("AND")
        terms.append(phrase)
    return terms


#: A phrase, an operator, a parenthesis, or a text that may be one of these.
_Item = Phrase | str


def _items(text: str, *, is_cut: bool) -> list[_Item]:
    """Split a text into phrases, operators and parentheses, without parts that have no words.

    Args:
        text: A query, or its beginning.
        is_cut: Whether it is only the beginning.
    """
    items: list[_Item] = []
    remaining = MAX_WORDS
    for match in _CHUNK.finditer(text):
        if match.group().isspace():
            continue
        opening, chunk, closing = _without_parentheses(match.group())
        items += opening
        if chunk in _OPERATORS:
            items.append(chunk)
        else:
            words = tuple(word for word, _, _ in tokens(chunk))
            if len(words) > remaining:
                if remaining == MAX_WORDS:
                    items.append(Phrase(words[:remaining]))
                is_cut = True
                break
            if words:
                is_prefix = chunk.endswith("*") and not _ends_without_word(chunk)
                items.append(Phrase(words, is_prefix))
                remaining -= len(words)
        items += closing
    if not any(isinstance(item, Phrase) for item in items):
        # Only operators: they are words.
        return [Phrase((str(item).lower(),)) for item in items if item in _OPERATORS]
    if "(" in items or ")" in items:
        items = _balanced(items)
    while is_cut and items[-1] in _OPERATORS:
        items.pop()  # Its operand was cut off. Kept, it would become a word to be found.
    return items


def _without_parentheses(chunk: str) -> tuple[str, str, str]:
    """Split the parentheses off a chunk: those before it, the chunk, those after it.

    A parenthesis that is opened within the chunk is closed within it, as in f(x).
    """
    if chunk[0] == '"':
        return "", chunk, ""
    inner = chunk.lstrip("(")
    bare = inner.rstrip(")")
    opening = "(" * (len(chunk) - len(inner))
    closing = ")" * (len(inner) - len(bare) - bare.count("("))
    return opening, bare, closing


def _ends_without_word(chunk: str) -> bool:
    """Return whether no word comes directly before the asterisks at the end of a chunk."""
    bare = chunk.rstrip("*").removesuffix('"')
    words = tokens(bare)
    return not words or words[-1][2] != len(bare)


def _balanced(items: list[_Item]) -> list[_Item]:
    """Remove parentheses without a counterpart, those around nothing, and those too deep."""
    removed: set[int] = set()
    #: For each open parenthesis: its index, and the number of phrases before it.
    open_parentheses: list[tuple[int, int]] = []
    phrase_count = 0
    for index, item in enumerate(items):
        phrase_count += isinstance(item, Phrase)
        if item == "(":
            open_parentheses.append((index, phrase_count))
        elif item == ")":
            if not open_parentheses:
                removed.add(index)
                continue
            start, phrases_before = open_parentheses.pop()
            if len(open_parentheses) >= _MAX_DEPTH or phrase_count == phrases_before:
                removed.update((start, index))
    removed.update(index for index, _ in open_parentheses)
    return [item for index, item in enumerate(items) if index not in removed]


def _expression(items: list[_Item]) -> tuple[list[Term], list[Phrase]]:
    """Return the expression, and the phrases that are not after a NOT.

    An operator that lacks an operand becomes a word.
    """
    terms: list[Term] = []
    phrases: list[Phrase] = []
    #: For each open parenthesis: whether phrases after its end are looked for.
    outer_is_positive: list[bool] = []
    is_positive = True
    #: Whether the expression could end here.
    is_complete = False
    for index, item in enumerate(items):
        operand = item
        if item in _OPERATORS:
            role = _operator_role(items, index, is_complete=is_complete)
            if role == "redundant":
                continue
            if role == "operator":
                terms.append(_sign(item))
                is_complete = False
                continue
            operand = Phrase((str(item).lower(),))
        if operand == ")":
            is_positive = outer_is_positive.pop()
        else:
            if is_complete:
                terms.append("AND")
            term_is_positive = is_positive and terms[-1:] != ["NOT"]
            if not isinstance(operand, Phrase):
                outer_is_positive.append(is_positive)
                is_positive = term_is_positive
            elif term_is_positive:
                phrases.append(operand)
        terms.append(operand if isinstance(operand, Phrase) else _sign(operand))
        is_complete = operand != "("
    return terms, phrases


def _sign(item: _Item) -> Term:
    """Return an item that is an operator or a parenthesis as a term."""
    for sign in _SIGNS:
        if item == sign:
            return sign
    raise AssertionError(item)


def _operator_role(
    items: list[_Item], index: int, *, is_complete: bool
) -> Literal["operator", "redundant", "word"]:
    """Return whether an item AND, OR or NOT is an operator, the AND of AND NOT, or a word.

    Args:
        items: All items.
        index: The index of the item.
        is_complete: Whether there is an operand before it.
    """
    if not is_complete:
        return "word"
    item = items[index]
    following = [*items[index + 1 : index + 3], ")", ")"]
    first_is_operand, second_is_operand, *_ = [
        isinstance(part, Phrase) or part == "(" for part in following
    ]
    if item == "AND" and following[0] == "NOT" and second_is_operand:
        return "redundant"
    if first_is_operand:
        return "operator"
    if item == "OR" and following[0] == "NOT":
        # In `a OR NOT b`, the NOT has no operand before it. It becomes a word: that of the OR.
        return "operator"
    return "word"
