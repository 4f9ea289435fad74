"""Turning what a person types into what FTS5 is asked.

What must stay true: every text is a query, and none is an error; what is no syntax is words; and a part that is skipped
(it has no words, or stands behind too many) makes a query find more, so that a message's own words find it.

    words            all of them, in any order            plan budget
    "a phrase"       these words in a row                 "the plan"
    begin*           words with this beginning            bud*
    AND OR NOT       in capitals, with something on       plan NOT (draft OR old)
    ( )              both sides; NOT takes away
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import combinations
from math import comb

from capsule.engines.index.search.folding import composed, tokens

#: The first so many words of a query count; one that goes on finds what has these.
MOST_WORDS = 64
_MOST_CHARACTERS = 50_000
_DEEPEST = 16
#: The most choices of some words among all that FTS5 is asked for at once: each is a condition of its own.
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
class Query:
    """A query that was understood.

    Attributes:
        match: What FTS5 is asked; empty when the text has no words.
        phrases: What a message that is found may hold, to be marked in it; not what is behind a NOT.
        literal: The text, when it has no words: it is looked for as it is.
        parts: What FTS5 is asked for each phrase, when all of several are wanted and nothing else is said.
    """

    match: str
    phrases: tuple[Phrase, ...]
    literal: str = ""
    parts: tuple[str, ...] = ()

    def having(self, count: int) -> str:
        """What FTS5 is asked for texts that have so many of the parts."""
        return " OR ".join(f"({' AND '.join(some)})" for some in combinations(self.parts, count))

    def weaker(self) -> list[int]:
        """How many of the parts a text may have instead of all: most first, as far as that can be asked."""
        many = len(self.parts)
        return [count for count in range(many - 1, 0, -1) if comb(many, count) <= _MOST_CHOICES]


def parse(text: str) -> Query:
    """Understand a text as a query. Never raises for a text."""
    beginning = text
    if len(text) > _MOST_CHARACTERS:
        beginning = text[:_MOST_CHARACTERS]
        if not text[_MOST_CHARACTERS].isspace():
            beginning = beginning.rsplit(None, 1)[0]  # It was cut within a word.
    items = _items(composed(beginning))
    if not items:
        return Query("", (), text.strip())
    match, phrases = _expression(items)
    unique = tuple(dict.fromkeys(phrases))
    if not all(isinstance(item, Phrase) for item in items):
        return Query(match, unique)
    parts = tuple(map(str, unique))
    return Query(" AND ".join(parts), unique, parts=parts if len(parts) > 1 else ())


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
    """Whether something else than a word stands before the asterisks that end a chunk: nothing can begin so."""
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
    """What FTS5 is asked, and the phrases that are not behind a NOT. An operator that lacks a side is a word.

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
