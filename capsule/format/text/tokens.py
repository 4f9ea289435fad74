"""Estimate the number of tokens in a text, without a tokenizer.

The estimate is a linear model of the UTF-8 bytes: a weight for each kind of byte, and one for each
pair of spaces, because indentation is cheap. It was fitted to two tokenizers, OpenAI's `o200k_base`
and the one that Anthropic published for Claude, on source code and prose. docs/context.md has its
error.

Each byte is replaced by its weight in hundredths of a token. Then the first half of Adler-32, the
sum of the bytes modulo 65521, adds them up at the speed of the memory. A loop in Python would take a
minute for 100 MB.

What must stay true: the same text gives the same number on every machine, without a download.
Counting costs less than reading the text from a disk.
"""

from __future__ import annotations

from zlib import adler32

#: The weights, in hundredths of a token, of a byte of each kind.
_LOWER, _UPPER, _DIGIT, _PUNCTUATION, _SPACE, _NEWLINE = 14, 29, 46, 70, 39, 85
#: The same for the first byte of a character of two, three and four bytes: other alphabets, other
#: scripts, emoji. Their other bytes weigh nothing.
_TWO_BYTES, _THREE_BYTES, _FOUR_BYTES = 60, 90, 220
#: The same for each pair of spaces.
_PAIR = -69


def _weight(byte: int) -> int:
    if byte >= 128:
        return _weight_of_lead_byte(byte)
    char = chr(byte)
    if char.isalpha():
        return _LOWER if char.islower() else _UPPER
    if char.isdecimal():
        return _DIGIT
    if char == "\n":
        return _NEWLINE
    return _SPACE if byte <= 32 else _PUNCTUATION


def _weight_of_lead_byte(byte: int) -> int:
    if byte >= 0xF0:
        return _FOUR_BYTES
    if byte >= 0xE0:
        return _THREE_BYTES
    return _TWO_BYTES if byte >= 0xC2 else 0


_WEIGHTS = bytes(map(_weight, range(256)))
#: So many bytes of the heaviest text, which is of newlines, weigh less than 65521.
_BLOCK = 768
#: Of a text with more bytes only samples are counted: every fourth to eighth piece, and not the
#: first, because files begin with comments. Pieces of 512 bytes took a third longer and were no more
#: accurate.
_MAX_COUNTED = 4_096
_PIECE = 128
_MAX_STEP = 8


def estimate(data: bytes) -> int:
    """Return the estimated number of tokens in a UTF-8 text.

    A large text is estimated from evenly spread samples.
    """
    size = len(data)
    if size <= _MAX_COUNTED:
        return (_hundredths(data) + 50) // 100
    step = min(_MAX_STEP, size // (8 * _PIECE))  # At least eight pieces or so.
    starts = range(step // 2 * _PIECE, size, step * _PIECE)
    sample = b"".join([data[start : start + _PIECE] for start in starts])
    return (_hundredths(sample) * size // len(sample) + 50) // 100


def _hundredths(data: bytes) -> int:
    """Return the weight of all bytes of a text, in hundredths of a token."""
    weights = data.translate(_WEIGHTS)
    total = _PAIR * data.count(b"  ")
    for start in range(0, len(weights), _BLOCK):
        # Adler-32 begins with 1.
        total += (adler32(weights[start : start + _BLOCK]) - 1) & 0xFFFF
    return max(total, 0)
