"""Make titles from messages, and check titles and tags that a person gave.

What must stay true: a title is one line of at most `MAX` characters, and no terminal takes it for a
command.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from capsule.errors import InvalidInput

#: The most characters of a title that a person gives.
MAX = 200
#: The most characters of an automatic title.
MAX_AUTOMATIC = 60

_LINE = re.compile("[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_HEADING = re.compile(r"#{1,6}(?:\s+|$)")
#: Control characters, characters that change the direction of writing, and no characters at all.
_HIDDEN = "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
_REFUSED = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
_LINE_BREAKS = frozenset({10, 13, 0x85, 0x2028, 0x2029})
#: What Claude Code puts before the words of a person, or in place of them.
_NO_WORDS = re.compile(
    r"\s*(?:<((?:local-)?command-[a-z]+|system-reminder)>.*?</\1>"
    r"|\[Request interrupted by user(?: for tool use)?\])",
    re.DOTALL,
)
#: Only so many characters of a line are read, because a line may have megabytes.
_MAX_READ = 2000


def title_from(text: str) -> str:
    """Return a title for a conversation that begins with `text`. Empty: it has no word.

    It is the first line with words, without heading marks, cut at a word near 60 characters.
    """
    begin = 0
    while match := _NO_WORDS.match(text, begin):
        begin = match.end()
    for match in _LINE.finditer(text, begin):
        start = match.start()
        beginning = text[start : min(match.end(), start + _MAX_READ)]
        line = " ".join(re.sub(_HIDDEN, "", beginning).split())
        if _HEADING.match(line):
            line = _HEADING.sub("", line, count=1)
        if line:
            return _cut(line)
    return ""


def automatic_title(history: Iterable[Mapping[str, Any]]) -> str:
    """Return the title of a conversation that nobody named: from its first user message with words.

    Empty: there is no such message.
    """
    for entry in history:
        if entry["role"] == "user":
            title = title_from(entry["content"])
            if title:
                return title
    return ""


def derived_title(prefix: str, source: str, text: str) -> str:
    """Return the title of a conversation that is made from another one.

    Args:
        prefix: The beginning of the title.
        source: The title of the other conversation. One from a hand edit may be invalid, and is
            then made valid.
        text: A text to make a title from if `source` is empty.
    """
    fallback = title_from(text) or "a conversation"
    rest = source.strip(" \t")[: MAX - len(prefix)].rstrip()
    try:
        return check_title(prefix + (rest or fallback))
    except InvalidInput:
        return prefix + (title_from(source) or fallback)


def _cut(line: str) -> str:
    """Return a line of at most 60 characters, cut at a space if one is in its second half."""
    if len(line) <= MAX_AUTOMATIC:
        return line
    min_length = MAX_AUTOMATIC // 2
    end = line.rfind(" ", 0, MAX_AUTOMATIC)
    if end < min_length:
        end = MAX_AUTOMATIC - 1
    # Not between a letter and the accent that follows it, nor inside a joined emoji.
    while end > min_length and (_joins(line[end]) or line[end - 1] == "\u200d"):
        end -= 1
    return line[:end].rstrip(" ,;:-\u2013\u2014") + "\u2026"


def _joins(character: str) -> bool:
    """Return whether a character belongs to the one before it."""
    return character == "\u200d" or unicodedata.category(character).startswith("M")


def check_title(text: str) -> str:
    """Return a title without the spaces around it. Raises InvalidInput if it can't be one."""
    title = text.strip(" \t")
    if not title:
        raise InvalidInput("the title is empty; give it at least one character")
    if len(title) > MAX:
        raise InvalidInput(f"the title has {len(title)} characters; give it at most {MAX}")
    match = re.search(_REFUSED, title)
    if match:
        code = ord(match.group())
        description = f"the control character U+{code:04X}"
        if code in _LINE_BREAKS:
            description = "a line break"
        raise InvalidInput(
            f"the title contains {description} at character {match.start() + 1}; remove it"
        )
    return title


def check_tags(tags: Iterable[str]) -> list[str]:
    """Return tags in their order, each once.

    Raises InvalidInput if one is empty or has control characters.
    """
    if isinstance(tags, str):
        raise InvalidInput(f"tags must be a list of texts, not one text: {tags!r}")
    tag_list = list(tags)
    for tag in tag_list:
        if not isinstance(tag, str) or not tag.strip() or not tag.isprintable():
            raise InvalidInput(
                f"{tag!r} is not a tag: a tag is not empty and holds no control characters"
            )
    return list(dict.fromkeys(tag_list))
