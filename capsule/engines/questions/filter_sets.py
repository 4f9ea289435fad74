"""Combine the messages that meet the conditions of a filter, and compare texts with patterns.

An engine looks up the messages that meet one condition. `match_set` combines these sets as the
groups of the filter say.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from capsule.engines.questions.query import composed, tokens
from capsule.errors import InvalidInput
from capsule.format import filters
from capsule.format.facts import BOOL, NULL, NUMBER, TEXT
from capsule.format.filters import FieldCondition, Filter

#: The types of facts by the kinds of values in a filter.
TYPES = {"null": NULL, "boolean": BOOL, "number": NUMBER, "text": TEXT}
#: The time for comparing texts with all patterns of a filter, in seconds.
_MATCHED_S = 1.0


class MatchSet(NamedTuple):
    """A set of messages.

    Attributes:
        numbers: Row numbers of messages.
        all_but: False: the set has these messages. True: it has all other messages.
    """

    numbers: set[int]
    all_but: bool = False

    def negated(self) -> MatchSet:
        """Return the set of all other messages."""
        return MatchSet(self.numbers, not self.all_but)


def _intersection(sets: Iterable[MatchSet]) -> MatchSet:
    """Intersect sets. Without any, return the set of all messages."""
    excluded: set[int] = set()
    included: list[set[int]] = []
    for match_set in sets:
        if match_set.all_but:
            excluded |= match_set.numbers
        else:
            included.append(match_set.numbers)
    if not included:
        return MatchSet(excluded, all_but=True)
    return MatchSet(set.intersection(*included) - excluded)


def match_set(filter: Filter, passing: Callable[[FieldCondition], set[int]]) -> MatchSet:
    """Return the messages that match a filter.

    Args:
        filter: The filter.
        passing: Returns the messages that meet one condition.
    """
    if isinstance(filter, FieldCondition):
        return MatchSet(passing(filter))
    parts = [match_set(part, passing) for part in filter.parts]
    if filter.kind == "and":
        return _intersection(parts)
    if filter.kind == "or":  # De Morgan: a message matches unless it matches none of them.
        return _intersection(part.negated() for part in parts).negated()
    return _intersection(parts).negated()


class TextPatterns:
    """Compares texts with the patterns of a filter, for one second from now."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + _MATCHED_S
        self._is_late = False

    def matcher(self, test: FieldCondition) -> Callable[[str], bool]:
        """Return a function that compares a text with a pattern. After the deadline it stops that."""
        if test.operator == "$regex":
            matches: Callable[[str], bool] = filters.compile_pattern(test.value)
        else:
            matches = partial(_has_words, _words(test.value))

        def matches_in_time(text: str) -> bool:
            if time.monotonic() > self._deadline:
                self._is_late = True
                return False
            return matches(text)

        return matches_in_time

    def ensure_in_time(self, test: FieldCondition) -> None:
        """Raise InvalidInput if comparing was stopped. `test` is the condition that was compared."""
        if self._is_late:
            raise InvalidInput(
                f"the filter was stopped: {test.operator} on {test.path!r} takes longer than "
                f"{_MATCHED_S:.0f} s; give a simpler pattern"
            )


def _words(text: str) -> set[str]:
    return {word for word, _, _ in tokens(composed(text))}


def _has_words(words: set[str], text: str) -> bool:
    """Return whether a text has all words."""
    # Most texts have none of the words, and splitting them takes long.
    if text.isascii() and any(word not in text.lower() for word in words):
        return False
    return words <= _words(text)
