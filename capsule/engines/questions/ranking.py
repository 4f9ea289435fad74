"""Rank the matches of a search: how well a text fits (bm25), weighed with its age.

An engine finds the matches and computes their bm25, in its own language or by `Corpus.fit`. This
module weighs them, and brings those of titles to the scale of those of messages. docs/search.md has
the formula.

What must stay true:

- The same texts, query and time give the same order. Of two equal scores the newer hit comes first.
- A score depends only on texts that the asker may read, so it reveals nothing of others' texts.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from heapq import nlargest
from math import inf, log
from typing import TYPE_CHECKING

from capsule.engines.questions.query import Phrase, fold
from capsule.errors import InvalidInput

if TYPE_CHECKING:
    from capsule.engines.questions.page_cursor import PageCursor

#: One match: its bm25, its time in milliseconds since 1970, its row number. A plain tuple, as there
#: are thousands.
Match = tuple[float, int, int]
#: One match with its score: score, time, row number, and whether it is a title. The best and newest
#: is the greatest.
ScoredMatch = tuple[float, int, int, bool]
#: The number of newest matches that are ranked, unless a profile ranks all.
WINDOW = 2048
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class RankingProfile:
    """How much age counts.

    Attributes:
        half_life_h: The hours in which half of the bonus for being new is lost. None: age does not
            count.
        floor: The part of its score that a very old hit keeps, from 0 to 1.
    """

    half_life_h: float | None
    floor: float

    @property
    def ranks_all(self) -> bool:
        """Whether all matches are ranked, however many there are."""
        return self.half_life_h is None

    def weigh(self, matches: list[Match], now_ms: int) -> list[float]:
        """Return the score of each match, at a time in milliseconds since 1970."""
        if self.half_life_h is None:
            return [fit for fit, _, _ in matches]
        bonus = 1 - self.floor
        half_life_ms = self.half_life_h * _HOUR_MS
        scores = []
        for fit, time_ms, _ in matches:
            if time_ms < now_ms:
                age_factor = self.floor + bonus * 2.0 ** ((time_ms - now_ms) / half_life_ms)
                scores.append(fit * age_factor)
            else:  # A time in the future counts as now.
                scores.append(fit)
        return scores


PROFILES = {
    "recent": RankingProfile(half_life_h=24.0, floor=0.1),
    "balanced": RankingProfile(half_life_h=168.0, floor=0.5),
    "exact": RankingProfile(half_life_h=None, floor=1.0),
}


def profile_of(name: str) -> RankingProfile:
    """Return the profile of this name. Raises InvalidInput if there is none."""
    if name not in PROFILES:
        raise InvalidInput(f"{name!r} is not a ranking profile; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


# -- bm25 ------------------------------------------------------------------------------------------

#: The parameters of bm25, with the values of FTS5.
K1 = 1.2
B = 0.75
_MIN_IDF = 1e-6
#: The weights of words in a title and in tags.
TITLE_WEIGHTS = 2.0, 1.0
#: Phrases are counted in the first so many characters of a text.
_MAX_COUNTED_CHARS = 20_000
_LETTER = "[0-9a-z\x80-\U0010ffff]"
_NO_LETTER = "[^0-9a-z\x80-\U0010ffff]"


@dataclass(frozen=True, slots=True)
class Corpus:
    """The statistics of the texts among which bm25 is computed.

    Attributes:
        average_length: The average length of the texts, in words or characters.
        idf: The inverse document frequency of each phrase of the query: how rare it is.
        phrases: A pattern for each phrase in a folded text.
        weights: The weight of each column of a text.
    """

    average_length: float
    idf: Sequence[float]
    phrases: Sequence[re.Pattern[str]]
    weights: Sequence[float]

    def fit(self, length: int, *columns: str | None) -> float:
        """Return the bm25 of a text, from its length and its columns.

        Cost: about 20 ns for each character and phrase.
        """
        norm = K1 * (1 - B + B * length / self.average_length)
        fit = 0.0
        for count, idf in zip(self._counts(columns), self.idf, strict=True):
            fit += idf * count * (K1 + 1) / (count + norm)
        return fit

    def fit_as_fts5(self, length: int, *columns: str | None) -> float:
        """Return the same, to the last digit as the full-text search of SQLite computes it."""
        norm = K1 * (1 - B + B * length / self.average_length)
        fit = 0.0
        for count, idf in zip(self._counts(columns), self.idf, strict=True):
            fit += idf * ((count * (K1 + 1)) / (count + norm))
        return fit

    def _counts(self, columns: Sequence[str | None]) -> list[float]:
        """Return the number of times that each phrase is in a text, weighted by columns."""
        folded = [fold((text or "")[:_MAX_COUNTED_CHARS]).lower() for text in columns]
        weighted = [*zip(folded, self.weights, strict=True)]
        counts = []
        for phrase in self.phrases:
            counts.append(sum(len(phrase.findall(text)) * weight for text, weight in weighted))
        return counts


def corpus_of(
    text_count: int,
    average_length: float | None,
    counts: Sequence[int],
    phrases: Sequence[Phrase],
    weights: Sequence[float],
) -> Corpus:
    """Return the statistics of some texts.

    Args:
        text_count: Their number.
        average_length: Their average length, or None.
        counts: For each phrase, the number of texts that have it.
        phrases: The phrases of the query.
        weights: The weight of each column of a text.
    """
    idf = [max(log((text_count - count + 0.5) / (count + 0.5)), _MIN_IDF) for count in counts]
    return Corpus(average_length or 1.0, idf, [*map(_pattern, phrases)], weights)


def _pattern(phrase: Phrase) -> re.Pattern[str]:
    first, *following = map(re.escape, phrase.words)
    # The character before the first word is checked after it, by a look-behind: a pattern that
    # begins with a plain text is found much faster.
    pattern = f"{_NO_LETTER}+".join([f"{first}(?<!{_LETTER}{first})", *following])
    if not phrase.prefix:
        pattern += f"(?!{_LETTER})"
    return re.compile(pattern)


# -- Scores ----------------------------------------------------------------------------------------


def scored(
    messages: list[Match], titles: list[Match], profile: RankingProfile, page: PageCursor
) -> list[ScoredMatch]:
    """Return all matches that no earlier page returned, with their scores.

    The bm25 of a title and that of a message can't be compared. So titles are scaled: the best
    title gets the bm25 of the best message, and the n-th title never scores more than the n-th
    message.
    """
    message_scores = profile.weigh(messages, page.now_ms)
    result = []
    for score, (_, time_ms, num) in zip(message_scores, messages, strict=True):
        if num not in page.returned_nums:
            result.append((score, time_ms, num, False))
    if not titles:
        return result
    best_message = max((fit for fit, _, _ in messages), default=1.0)
    best_title = max(fit for fit, _, _ in titles) or 1.0
    scaled = [(fit / best_title * best_message, time_ms, num) for fit, time_ms, num in titles]
    title_scores = profile.weigh(scaled, page.now_ms)
    ranked_titles = []
    for score, (_, time_ms, num) in zip(title_scores, scaled, strict=True):
        ranked_titles.append((score, time_ms, num, True))
    ranked_titles.sort(reverse=True)
    limits = nlargest(len(ranked_titles), message_scores)
    limits += [inf] * len(ranked_titles)
    for rank, (score, time_ms, num, is_title) in enumerate(ranked_titles):
        if num not in page.returned_title_nums:
            result.append((min(score, limits[rank]), time_ms, num, is_title))
    return result
