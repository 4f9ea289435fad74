"""Texts as the search sees them: without case and accents, and with a space wherever a word ends.

What must stay true: queries are folded as texts are, so that a text's own words find it; each character of a composed
text is folded by itself, so that a place in the folded text has its place in the original; and an ASCII text stays as
it is, because the tokenizer folds its case.

The tokenizer is FTS5's `ascii`: ASCII letters and digits and everything beyond ASCII are parts of words. Characters of
scripts that put no spaces between words, and symbols, become words of their own (docs/search.md, "How words are
indexed", says why).
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_right
from functools import cache

#: First and last characters of the scripts that put no spaces between words, and of Korean, whose words carry
#: their particles. Only what is a letter, a number or a mark is meant.
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
    return re.compile("[" + "".join(f"{chr(first)}-{chr(last)}" for first, last in _CONTINUOUS) + "]+")


def is_continuous(character: str) -> bool:
    """Whether a character is of a script that puts no spaces between words."""
    code = ord(character)
    at = bisect_right(_STARTS, code) - 1
    return at >= 0 and code <= _CONTINUOUS[at][1]


class _Folds(dict[int, str]):
    """What each character becomes; made when it is first met, as there are a million of them."""

    def __missing__(self, code: int) -> str:
        character = chr(code)
        if is_continuous(character):
            parts = unicodedata.normalize("NFKC", character)
        else:
            parts = unicodedata.normalize("NFKD", unicodedata.normalize("NFKD", character).casefold())
        folded = "".join(map(_folded, parts))
        if " " in folded:
            folded = f" {folded} "  # A character that is several words, like ½, is no part of another one.
        self[code] = folded
        return folded


def _folded(character: str) -> str:
    """What one character of a decomposed text becomes: itself, itself as a word of its own, a space, or nothing."""
    if character < "\x80":
        return character.lower() if character.isalnum() else " "
    alone = f" {character} "
    kind = unicodedata.category(character)
    if kind[0] == "M":
        # Accents, and the vowel points that Arabic and Hebrew mostly leave out; not vowels and voicing.
        place = unicodedata.combining(character)
        if place == 1 or 10 <= place <= 36 or place >= 200 or kind == "Me" or "\ufe00" <= character <= "\ufe0f":
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


_FOLDS = _Folds()


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
    """How many words a text has: what stands between spaces; a character of a script without them is one."""
    if text.isascii():
        # As len(text.split()), at half the cost: every message that is indexed is counted.
        flat = text.encode().translate(_SPACES)
        return flat.count(b" x") + (flat[:1] == b"x")
    between = _runs().split(text)
    return len(text) - sum(map(len, between)) + len(" ".join(between).split())


#: A word of a text, folded, and where it stands in the original: the first character, and the one behind the last.
Token = tuple[str, int, int]


def tokens(text: str) -> list[Token]:
    """The words of a composed text as the index has them, with their places in it."""
    if text.isascii():
        return [(match.group().lower(), match.start(), match.end()) for match in re.finditer(_WORD, text)]
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
