"""How much an answer costs the model that reads it.

What must stay true: the estimate needs no tokenizer, is the same everywhere, and is on the safe side for what people
and programs write: beside two tokenizers in use (o200k, cl100k) it counts 1.0 to 1.5 times as much for prose, code,
JSON, logs, ids and base64, and more for what is no Latin script. Only what nobody writes can cost more than it
says: letters by chance up to 1.8 times, nothing but punctuation 1.4 times.

The weights: words, 3.5 characters a token, and at least one a word and a line; punctuation and digits, 2; what looks
like a random word (an id, a hash, base64), 1.4; what is no ASCII, 2 bytes, and one more for what lies beyond U+FFFF.
"""

from __future__ import annotations

import math
import re

__all__ = ["tokens", "within"]

_LONG = re.compile(rb"[A-Za-z0-9+/_=-]{16,}")
_DIGITS = b"0123456789"
_LETTERS = bytes(range(65, 91)) + bytes(range(97, 123))
_ASCII = bytes(range(128))
_BELOW_4_BYTES = bytes(range(240))


def tokens(text: str) -> int:
    """About how many tokens `text` costs; rather too many than too few."""
    data = text.encode("utf-8", "surrogatepass")
    rest = _LONG.sub(_unless_random, data)
    random = len(data) - len(rest)
    beyond = len(rest.translate(None, _ASCII))
    marks = len(rest.translate(None, _LETTERS + b" \n\t")) - beyond
    words = max((len(rest) - marks - beyond) / 3.5, len(rest.split()) + rest.count(b"\n"))
    far = len(rest.translate(None, _BELOW_4_BYTES))
    return math.ceil(words + marks / 2 + beyond / 2 + far + random / 1.4)


def _unless_random(found: re.Match[bytes]) -> bytes:
    word = found.group()
    return b"" if len(word.translate(None, _DIGITS)) < len(word) else word


def within(text: str, budget: int) -> int:
    """How many characters of the beginning of `text` cost at most `budget` tokens."""
    low, high = 0, min(len(text), budget * 4)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens(text[:middle]) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
