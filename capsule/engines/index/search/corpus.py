"""How well a text fits among some of the texts of the index: bm25, where FTS5's own would measure among all of them.

What must stay true: what it gives depends on no other text, so that no score tells an agent what others write.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import log

from capsule.engines.index.search.folding import fold
from capsule.engines.index.search.query import Phrase

#: The parameters of bm25, as FTS5 has them.
_K1, _B, _LEAST_IDF = 1.2, 0.75, 1e-6
#: Characters of a text in which phrases are counted.
_COUNTED = 20_000
_LETTER, _OTHER = "[0-9a-z\x80-\U0010ffff]", "[^0-9a-z\x80-\U0010ffff]"


@dataclass(frozen=True, slots=True)
class Corpus:
    """The statistics of the texts that fits are measured among.

    Attributes:
        length: Their average length.
        idf: How rare each phrase of the query is among them.
        phrases: What finds each phrase in a folded text.
        weights: What a phrase counts in each column of a text.
    """

    length: float
    idf: Sequence[float]
    phrases: Sequence[re.Pattern[str]]
    weights: Sequence[float]

    def fit(self, length: int, *columns: str | None) -> float:
        """How well a text fits, given its length and its columns. Costs about 20 ns for each character and phrase."""
        folded = [fold((text or "")[:_COUNTED]).lower() for text in columns]
        weighted = [*zip(folded, self.weights, strict=True)]
        norm = _K1 * (1 - _B + _B * length / self.length)
        fit = 0.0
        for phrase, idf in zip(self.phrases, self.idf, strict=True):
            count = sum(len(phrase.findall(text)) * weight for text, weight in weighted)
            fit += idf * count * (_K1 + 1) / (count + norm)
        return fit

    def fit_in(self, length: str, counts: Iterable[str]) -> str:
        """The same as SQL, given the length of a text and how often it has each phrase, as SQL."""
        norm = f"{_K1} * ({1 - _B} + {_B / self.length} * {length})"
        parts = [
            f"{idf * (_K1 + 1)}::float8 * (1 - ({norm}) / ({count} + {norm}))"
            for idf, count in zip(self.idf, counts, strict=True)
        ]
        return " + ".join(parts)


def measured(
    db: sqlite3.Connection,
    rows: str,
    length: str,
    columns: dict[str, float],
    matching: str,
    matches: dict[Phrase, str],
) -> str:
    """How well a row fits, as SQL. Costs a pass over the rows, and over those that have a phrase.

    Args:
        db: The index, within a transaction.
        rows: The rows that fits are measured among, as SQL behind FROM.
        length: The length of a row, as SQL.
        columns: Its texts, as SQL, each with what a phrase counts in it.
        matching: Those of the rows that match, with a place for what FTS5 is asked.
        matches: What FTS5 is asked for each phrase.
    """
    texts, average = db.execute(f"SELECT count(*), avg({length}) FROM {rows}").fetchone()
    having = [db.execute(f"SELECT count(*) FROM {matching}", (match,)).fetchone()[0] for match in matches.values()]
    corpus = corpus_of(texts, average, having, list(matches), list(columns.values()))
    name = f"fit_{len(columns)}_{length[0]}"
    db.create_function(name, 1 + len(columns), corpus.fit)
    return f"{name}({', '.join((length, *columns))})"


def corpus_of(
    texts: int, average: float | None, having: Sequence[int], phrases: Sequence[Phrase], weights: Sequence[float]
) -> Corpus:
    """The statistics of so many texts of an average length, of which so many have each phrase."""
    idf = [max(log((texts - count + 0.5) / (count + 0.5)), _LEAST_IDF) for count in having]
    return Corpus(average or 1.0, idf, [*map(_pattern, phrases)], weights)


def _pattern(phrase: Phrase) -> re.Pattern[str]:
    first, *others = map(re.escape, phrase.words)
    # What stands before the first word is looked at behind it: a pattern that begins with a text is found much faster.
    words = f"{_OTHER}+".join([f"{first}(?<!{_LETTER}{first})", *others])
    return re.compile(words + ("" if phrase.prefix else f"(?!{_LETTER})"))
