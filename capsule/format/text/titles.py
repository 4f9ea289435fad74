"""Titles, made from a message or given by a person, and tags.

What must stay true: a title is one line of at most `MAX` characters that no terminal takes for a
command.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from typing import Any

from capsule.errors import InvalidInput

#: The most characters a given title may have.
MAX = 200
#: The most characters a made title has.
MAX_AUTOMATIC = 60

_LINE = re.compile("[^\n\r\v\f\x1c-\x1e\x85\u2028\u2029]+")
_HEADING = re.compile(r"#{1,6}(?:\s+|$)")
#: Control characters, what turns the direction of writing, and what is no character at all.
_HIDDEN = "[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
_REFUSED = "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
#: What Claude Code puts before the words of a person, or in place of them: it is no title.
_NO_WORDS = re.compile(
    r"\s*(?:<((?:local-)?command-[a-z]+|system-reminder)>.*?</\1>"
    r"|\[Request interrupted by user(?: for tool use)?\])",
    re.DOTALL,
)
#: So much of a line is looked at: a message of megabytes may be one line.
_WINDOW = 2000


def title_from(text: str) -> str:
    """A title for a conversation that begins with `text`; empty when there is no word in it.

    It is the first line that has words, without heading marks, cut at a word near 60 characters.
    """
    begin = 0
    while match := _NO_WORDS.match(text, begin):
        begin = match.end()
    for match in _LINE.finditer(text, begin):
        start = match.start()
        line = " ".join(
            re.sub(_HIDDEN, "", text[start : min(match.end(), start + _WINDOW)]).split()
        )
        line = _HEADING.sub("", line, count=1) if _HEADING.match(line) else line
        if line:
            return _cut(line)
    return ""


def automatic_title(history: Iterable[Mapping[str, Any]]) -> str:
    """The title of a conversation that nobody named: that of its first user message in which there
    is a word.
    """
    return next(
        (
            made
            for entry in history
            if entry["role"] == "user" and (made := title_from(entry["content"]))
        ),
        "",
    )


def derived_title(prefix: str, source: str, text: str) -> str:
    """The title of what is made of a conversation: a prefix and the title of the source, or a title
    made from `text`.

    A title from a hand edit may not be accepted.
    """
    said = title_from(text) or "a conversation"
    try:
        return check_title(prefix + (source.strip(" \t")[: MAX - len(prefix)].rstrip() or said))
    except InvalidInput:
        return prefix + (title_from(source) or said)


def _cut(line: str) -> str:
    if len(line) <= MAX_AUTOMATIC:
        return line
    space = line.rfind(" ", 0, MAX_AUTOMATIC)
    end = space if space >= MAX_AUTOMATIC // 2 else MAX_AUTOMATIC - 1
    # Not between a letter and the accent that follows it, nor inside a joined emoji.
    while end > MAX_AUTOMATIC // 2 and (_joins(line[end]) or line[end - 1] == "\u200d"):
        end -= 1
    return line[:end].rstrip(" ,;:-\u2013\u2014") + "\u2026"


def _joins(character: str) -> bool:
    return character == "\u200d" or unicodedata.category(character).startswith("M")


def check_title(text: str) -> str:
    """`text` without the spaces around it, when it can be a title. Raises InvalidInput."""
    title = text.strip(" \t")
    if not title:
        raise InvalidInput("the title is empty; give it at least one character")
    if len(title) > MAX:
        raise InvalidInput(f"the title has {len(title)} characters; give it at most {MAX}")
    if match := re.search(_REFUSED, title):
        code = ord(match.group())
        said = (
            "a line break"
            if code in {10, 13, 0x85, 0x2028, 0x2029}
            else f"the control character U+{code:04X}"
        )
        raise InvalidInput(f"the title contains {said} at character {match.start() + 1}; remove it")
    return title


def check_tags(tags: Iterable[str]) -> list[str]:
    """Tags as they are kept: each once, in their order. Raises InvalidInput if one is empty or no
    plain text.
    """
    if isinstance(tags, str):
        raise InvalidInput(f"tags must be a list of texts, not one text: {tags!r}")
    tags = list(tags)
    for tag in tags:
        if not isinstance(tag, str) or not tag.strip() or not tag.isprintable():
            raise InvalidInput(
                f"{tag!r} is not a tag: a tag is not empty and holds no control characters"
            )
    return list(dict.fromkeys(tags))
