"""Search the index: match a query, filter and rank the matches, and cut a snippet of each hit.

What must stay true:

- A hit is a message or a conversation that the index has within one transaction. Filters apply
  before anything is cut off.
- No text makes SQLite raise: its errors count as damage of the index.
- The same texts, query and time give the same order. Of two equal scores the newer hit comes first.
- A score depends only on texts that the asker may read, so it tells an agent nothing of what others
  write. FTS5's own bm25 would measure among all texts; `corpus_of` and `measured` compute it among
  some.
- A snippet is one line of at most `width` characters, with an ellipsis on each side where something
  was left out. The marks are on words of the query as the index understands them. Neither the
  snippet nor a mark ends inside of a character as it is drawn on a screen. FTS5's own `snippet`
  needs the text in the index, which has none.

Ranking (docs/search.md has the formula) costs a microsecond or two for a match, and for an agent
about thirty. So only the newest `WINDOW` matches are ranked, in the order in which they came into
the index. When they are used up, the next page ranks the next ones. Only the owner's profile
`exact` ranks all.
"""

from __future__ import annotations

import re
import sqlite3
import unicodedata
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import nlargest
from itertools import accumulate, islice
from math import inf, log
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.index.page_cursor import PageCursor
from capsule.engines.index.search.query import ParsedQuery, Phrase, composed, fold, parse, tokens
from capsule.engines.index.tables.filters import FilterMatcher
from capsule.engines.index.visibility import VisibilityFilter
from capsule.engines.queries import Found, Hit, SearchRequest, Snippet
from capsule.errors import InvalidInput

#: Unless a profile ranks them all, the newest so many matches are ranked, and behind them the next.
WINDOW = 2048
_HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class RankingProfile:
    """How much age counts.

    Attributes:
        half_life_h: Hours until half of what being new is worth is gone; None: age is worth
            nothing.
        floor: What is left of the score of a hit that is very old.
    """

    half_life_h: float | None
    floor: float

    @property
    def ranks_all(self) -> bool:
        """Whether every match is ranked, however many there are."""
        return self.half_life_h is None

    def weigh(self, matches: list[tuple[float, int, int]], now_ms: int) -> list[float]:
        """The scores of matches: how well each fits (more is better), when it was written, and its
        number.
        """
        if self.half_life_h is None:
            return [fit for fit, _, _ in matches]
        floor, rest, half_ms = self.floor, 1 - self.floor, self.half_life_h * _HOUR_MS
        return [
            # A clock that is ahead makes nothing newer than new.
            fit * (floor + rest * 2.0 ** ((time_ms - now_ms) / half_ms))
            if time_ms < now_ms
            else fit
            for fit, time_ms, _ in matches
        ]


PROFILES = {
    "recent": RankingProfile(24.0, 0.1),
    "balanced": RankingProfile(168.0, 0.5),
    "exact": RankingProfile(None, 1.0),
}


def profile_of(name: str) -> RankingProfile:
    """The profile of this name. Raises InvalidInput when there is none."""
    if name not in PROFILES:
        raise InvalidInput(f"{name!r} is not a ranking profile; there are: {', '.join(PROFILES)}")
    return PROFILES[name]


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
        """How well a text fits, given its length and its columns. Costs about 20 ns for each
        character and phrase.
        """
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
    having = [
        db.execute(f"SELECT count(*) FROM {matching}", (match,)).fetchone()[0]
        for match in matches.values()
    ]
    corpus = corpus_of(texts, average, having, list(matches), list(columns.values()))
    name = f"fit_{len(columns)}_{length[0]}"
    db.create_function(name, 1 + len(columns), corpus.fit)
    return f"{name}({', '.join((length, *columns))})"


def corpus_of(
    texts: int,
    average: float | None,
    having: Sequence[int],
    phrases: Sequence[Phrase],
    weights: Sequence[float],
) -> Corpus:
    """The statistics of so many texts of an average length, of which so many have each phrase."""
    idf = [max(log((texts - count + 0.5) / (count + 0.5)), _LEAST_IDF) for count in having]
    return Corpus(average or 1.0, idf, [*map(_pattern, phrases)], weights)


def _pattern(phrase: Phrase) -> re.Pattern[str]:
    first, *others = map(re.escape, phrase.words)
    # What stands before the first word is looked at behind it: a pattern that begins with a text is
    # found much faster.
    words = f"{_OTHER}+".join([f"{first}(?<!{_LETTER}{first})", *others])
    return re.compile(words + ("" if phrase.prefix else f"(?!{_LETTER})"))


#: Characters of a snippet.
WIDTH = 160
#: A text is searched in pieces of so many characters, each with so many of the next one, up to the
#: first match.
_PIECE, _OVERLAP = 16_384, 1024
#: The most matches of a phrase that are weighed against each other.
_MOST = 200
#: How far a cut is moved to fall between two words.
_REACH = 16
_ZWJ = "\u200d"
_FLAGS = "".join(map(chr, range(0x1F1E6, 0x1F200)))

Span = tuple[int, int]
#: First character, the one behind the last, and which phrase was found.
_Match = tuple[int, int, int]


def snippet(text: str, phrases: Sequence[Phrase], literal: str = "", width: int = WIDTH) -> Snippet:
    """The piece of `text` that holds the most of what was looked for.

    Args:
        text: The text; the beginning of it is the snippet when nothing of the kind stands in it.
        phrases: What was looked for.
        literal: Instead of them: a text without words, looked for as it is.
        width: The most characters.
    """
    beginning = _line(text, 0)
    for start in range(0, max(1, len(text)), _PIECE):
        line = _line(text, start) if start else beginning
        matches = sorted(
            set(
                _literally(line, literal)
                if literal
                else _matches(line, phrases, is_first=not start)
            )
        )
        if matches:
            more = start + _PIECE + _OVERLAP < len(text)
            return _cut(line, _best(matches, width), width, before=start > 0, after=more)
    return _cut(beginning, [], width, before=False, after=len(text) > _PIECE + _OVERLAP)


def _line(text: str, start: int) -> str:
    return composed(" ".join(text[start : start + _PIECE + _OVERLAP].split()))


def _literally(line: str, literal: str) -> Iterator[_Match]:
    pattern = re.escape(" ".join(literal.split()))
    return ((*match.span(), 0) for match in islice(re.finditer(pattern, line), _MOST))


def _matches(line: str, phrases: Sequence[Phrase], *, is_first: bool) -> Iterator[_Match]:
    # What a piece begins with may be the end of a word; the overlap of the piece before has it
    # whole.
    words = tokens(line) if is_first else tokens(line)[1:]
    said = "".join([f" {word}" for word, _, _ in words]) + " "
    starts = list(accumulate([len(word) + 1 for word, _, _ in words], initial=0))
    for kind, phrase in enumerate(phrases):
        wanted = " ".join(("", *phrase.words)) + ("" if phrase.prefix else " ")
        at = -1
        for _ in range(_MOST):
            at = said.find(wanted, at + 1)
            if at < 0:
                break
            word = bisect_left(starts, at)
            yield words[word][1], words[word + len(phrase.words) - 1][2], kind


def _best(matches: list[_Match], width: int) -> list[Span]:
    """The matches from the one on around which the most phrases stand."""

    def kinds(at: int) -> int:
        # The context before the first mark takes some of the width.
        return len(
            {kind for _, last, kind in matches[at:] if last <= matches[at][0] + width * 3 // 4}
        )

    return [match[:2] for match in matches[max(range(len(matches)), key=kinds) :]]


def _cut(line: str, marks: Sequence[Span], width: int, *, before: bool, after: bool) -> Snippet:
    """The piece around the first mark, with the marks that lie in it."""
    start, end = 0, len(line)
    if end + before + after > width:
        anchor, room = marks[0][0] if marks else 0, width - 2
        start = max(0, min(anchor - width // 4, end - room))
        if start:
            start = line.find(" ", start - 1, min(start + _REACH, anchor)) + 1 or start
            start = next((at for at in range(start, anchor) if not _belongs(line, at)), anchor)
        if start + room < end:
            end = start + room
            space = line.rfind(" ", max(end - _REACH, start + 1), end + 1)
            end = (
                space
                if space > 0
                else next((at for at in range(end, start, -1) if not _belongs(line, at)), end)
            )
    lead = "…" if start or before else ""
    text = lead + line[start:end].strip() + ("…" if end < len(line) or after else "")
    shift = len(lead) - start
    placed = [
        (first + shift, min(last, end) + shift)
        for first, last in _joined(line, marks)
        if first < end
    ]
    return Snippet(text, tuple(placed))


def _joined(line: str, spans: Iterable[Span]) -> list[Span]:
    """Spans that overlap or touch, as one; each with all that makes one character with its last."""
    made: list[Span] = []
    for first, last in sorted(spans):
        while last < len(line) and _belongs(line, last):
            last += 1
        if made and first <= made[-1][1]:
            first, last = made[-1][0], max(last, made.pop()[1])
        made.append((first, last))
    return made


def _belongs(line: str, at: int) -> bool:
    """Whether the character at `at` makes one on a screen with the one before it."""
    character, before = line[at], line[at - 1]
    if character < "\u0300" or not at:
        return False
    if character in _FLAGS:  # A flag is two of these.
        return (at - len(line[:at].rstrip(_FLAGS))) % 2 == 1
    is_tone_or_tag = (
        "\U0001f3fb" <= character <= "\U0001f3ff" or "\U000e0020" <= character <= "\U000e007f"
    )
    return (
        _ZWJ in (before, character) or is_tone_or_tag or unicodedata.category(character)[0] == "M"
    )


BRANCHES = ("active", "all")
#: What words in a title and in tags count among titles.
TITLE_WEIGHTS = 2.0, 1.0
#: So few conversations are looked for by where their messages lie in the index, too.
_FEW = 16
_DIGITS = 6


#: The matching messages, with what narrows them in an index without texts.
_ROWS = "messages AS m INDEXED BY messages_narrow"
_WORDS = """words CROSS JOIN messages AS m INDEXED BY messages_narrow ON m.num = words.rowid
    WHERE words.words MATCH ?"""
_TITLES = "names CROSS JOIN capsules AS c ON c.num = names.rowid WHERE names MATCH ?"
_IS_THERE = "c.gone = 0 AND c.damaged = ''"
#: One match: how well it fits, when it was written, its number. Plain, as there are thousands.
Match = tuple[float, int, int]
#: One match with its score, so that the best and newest is the greatest; the last tells a title
#: from a message.
_Scored = tuple[float, int, int, bool]


def search(
    db: sqlite3.Connection,
    asked: SearchRequest,
    hidden: VisibilityFilter,
    generation: str,
    searches: type[SearchPage],
    finds: type[FilterMatcher],
) -> Found:
    """The hits of one search, or the next page of them.

    Args:
        db: The index, within a transaction.
        asked: What is looked for.
        hidden: What is not found. If the owner asks, the statistics of FTS5, which are those of all
            texts, decide how well a text fits; else those of the texts that are not hidden, also if
            all of them are.
        generation: Of the index.
        searches, finds: What searches the tables of this engine, and finds what filters fit.

    Raises:
        InvalidInput: A field of `asked` can't be accepted.
    """
    profile = profile_of(asked.profile)
    query = parse(asked.query)
    if any("\ud800" <= character <= "\udfff" for character in query.literal):
        return Found([], None, 0)  # Half a surrogate pair can't be written to a file, or asked for.
    if asked.cursor is not None:
        page = PageCursor.decode(asked.cursor, generation, asked.cursor_key)
    else:
        newest = "SELECT num FROM {} WHERE {} ORDER BY num DESC LIMIT 1"
        message = db.execute(
            newest.format("messages AS m", hidden.message_condition)
        ).fetchone() or (0,)
        title = db.execute(
            newest.format("capsules AS c", hidden.conversation_condition)
        ).fetchone() or (0,)
        page = PageCursor(asked.now_ms, *message, *title)
    where = ("TRUE", []) if asked.where is None else finds(db, hidden).condition(asked.where)
    result = searches(db, asked, query, profile, page, hidden, where).found(generation)
    for page.required_parts in [] if result.hits or asked.cursor is not None else query.weaker():
        result = searches(db, asked, query, profile, page, hidden, where).found(generation)
        if result.hits:
            break
    return result


class SearchPage:
    """One page of one search. `where` is a condition about the row `m`, and the values bound
    in it.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        asked: SearchRequest,
        query: ParsedQuery,
        profile: RankingProfile,
        page: PageCursor,
        hidden: VisibilityFilter,
        where: tuple[str, list[Any]],
    ) -> None:
        self._db = db
        self._visibility = hidden
        self._where = where
        self._request = asked
        self._query = query
        self._words = query.having(page.required_parts) if page.required_parts else query.match
        self._profile = profile
        #: Whether all matches are ranked: not for an agent, as it costs reading their texts.
        self._ranks_all = profile.ranks_all and hidden.sees_all and bool(query.match)
        self._page = page
        #: The conversations that may be found, by number; None: all.
        self._scope_nums = self._conversations_in_scope() if asked.ids or asked.tags else None

    def found(self, generation: str) -> Found:
        asked, page = self._request, self._page
        messages, more = ([], False) if asked.title_only else self._message_matches()
        titles, more_titles = self._titles()
        scored = self._scored(messages, titles)
        hits: list[Hit] = []
        left, ranked = len(scored), sorted(scored, reverse=True)
        for place, (score, _, num, is_title) in enumerate(ranked):
            if len(hits) == asked.limit:
                break
            if place % asked.limit == 0:
                rows = self._rows(
                    [hit[2] for hit in ranked[place : place + asked.limit] if not hit[3]]
                )
            left -= 1
            (page.returned_title_nums if is_title else page.returned_nums).add(num)
            hit = (
                self._title_hit(num, score) if is_title else self._message_hit(rows.get(num), score)
            )
            if hit is not None:
                hits.append(hit)
        if not left and more and not self._ranks_all:
            page.newest_num, page.returned_nums = min(num for _, _, num in messages) - 1, set()
        if not left and more_titles:
            page.newest_title_num, page.returned_title_nums = (
                min(num for _, _, num in titles) - 1,
                set(),
            )
        more = more or more_titles
        total = None if more or asked.cursor is not None else len(scored)
        cursor = page.encode(generation, asked.cursor_key) if left or more else None
        weaker = (
            (page.required_parts, len(self._query.parts))
            if page.required_parts and hits
            else (0, 0)
        )
        return Found(hits, cursor, total, *weaker)

    # -- What narrows ------------------------------------------------------------------------------

    def _conversations_in_scope(self) -> list[int]:
        asked = self._request
        conditions = ["gone = 0"]
        values: list[Any] = []
        if asked.ids:
            conditions.append(f"id IN ({_marks(asked.ids)})")
            values += asked.ids
        if match := self._tagged(
            [match for match in (parse(_quoted(tag)).match for tag in asked.tags) if match]
        ):
            conditions.append("num IN (SELECT rowid FROM names WHERE names MATCH ?)")
            values.append(match)
        rows = self._db.execute(
            f"SELECT num, tags FROM capsules WHERE {' AND '.join(conditions)}", values
        )
        wanted = set(asked.tags)
        return [num for num, tags in rows if not wanted or wanted <= set(orjson.loads(tags))]

    def _tagged(self, tags: list[str]) -> str:
        """What is asked for the words of these tags; empty: the tags themselves will
        be compared.
        """
        return " AND ".join(f"({{tags}} : {match})" for match in tags)

    def _conditions(self) -> tuple[str, list[Any]]:
        """What a message must be besides matching, as SQL about the row `m`."""
        asked = self._request
        conditions = ["m.num <= ?"]
        values: list[Any] = [self._page.newest_num]
        if asked.branch == "active":
            conditions.append("m.active = 1")
        for column, wanted in (("role", asked.roles), ("sender", asked.senders)):
            if wanted:
                conditions.append(f"m.{column} IN ({_marks(wanted)})")
                values += wanted
        self._narrow(conditions, values, "m.time_ms", "m.capsule")
        conditions.append(self._where[0])
        values += self._where[1]
        if asked.mode:
            conditions.append("m.capsule IN (SELECT num FROM capsules WHERE mode = ?)")
            values.append(asked.mode)
        return " AND ".join(conditions), values

    def _narrow(self, conditions: list[str], values: list[Any], time: str, capsule: str) -> None:
        """Add what both messages and titles are narrowed by, given the columns of their times and
        conversations.
        """
        for comparison, time_ms in ((">=", self._request.since_ms), ("<", self._request.until_ms)):
            if time_ms is not None:
                conditions.append(f"{time} {comparison} ?")
                values.append(time_ms)
        if self._scope_nums is not None:
            conditions.append(f"{capsule} IN ({', '.join(map(str, self._scope_nums))})")
        conditions.append(
            self._visibility.message_condition
            if capsule == "m.capsule"
            else self._visibility.conversation_condition
        )

    def _message_num_range(self) -> tuple[int, int]:
        """The first and the last number that a message may have."""
        if self._scope_nums is None or len(self._scope_nums) > _FEW:
            return 0, self._page.newest_num
        numbers = ", ".join(map(str, self._scope_nums))
        first, last = self._db.execute(
            f"SELECT min(num), max(num) FROM messages WHERE capsule IN ({numbers})"
        ).fetchone()
        return (1, 0) if first is None else (first, min(last, self._page.newest_num))

    # -- What matches ------------------------------------------------------------------------------

    def _message_matches(self) -> tuple[list[Match], bool]:
        """The matches among the messages that are to be ranked, and whether there are
        older ones.
        """
        if self._scope_nums == []:
            return [], False
        conditions, values = self._conditions()
        if self._ranks_all:
            return self._all_messages(conditions, values)
        if self._query.match:
            fit, num, table, match = (
                self._message_fit(),
                "words.rowid",
                _WORDS,
                self._in_columns(self._words),
            )
        else:  # No index has a text without words.
            content = (
                "m.content || coalesce(m.tools, '')" if self._request.in_tools else "m.content"
            )
            fit, num, table, match = (
                "1.0",
                "m.num",
                f"texts AS m WHERE instr({content}, ?) > 0",
                self._query.literal,
            )
            if not match:
                table = "messages AS m INDEXED BY messages_narrow WHERE '' = ?"
        rows = self._db.execute(
            f"SELECT {fit}, m.time_ms, m.num FROM {table} AND {num} BETWEEN ? AND ? AND "
            f"{conditions}"
            f" ORDER BY {num} DESC LIMIT {WINDOW + 1}",
            (match, *self._message_num_range(), *values),
        ).fetchall()
        return rows[:WINDOW], len(rows) > WINDOW

    def _all_messages(self, conditions: str, values: list[Any]) -> tuple[list[Match], bool]:
        """The best matches of all, some more of them than are asked for; and whether there are
        others.
        """
        wanted = self._request.limit + len(self._page.returned_nums) + 1
        first, last = self._message_num_range()
        match = self._in_columns(self._words)
        if self._scope_nums is None:
            # Looking at the rows of all matches costs as much as ranking them: first those that
            # rank best.
            rows = self._db.execute(
                f"""SELECT found.fit, m.time_ms, m.num
                FROM (SELECT rowid AS num, -bm25(words) AS fit FROM words WHERE words MATCH ? AND rowid <= ?
                    ORDER BY 2 DESC, 1 DESC LIMIT {2 * wanted + 40}) AS found
                CROSS JOIN messages AS m INDEXED BY messages_narrow ON m.num = found.num WHERE {conditions}""",
                (match, last, *values),
            ).fetchall()
            if len(rows) >= wanted:
                return rows, True
        rows = self._db.execute(
            f"SELECT -bm25(words.words), m.time_ms, m.num FROM {_WORDS} AND words.rowid BETWEEN ? "
            "AND ?"
            f" AND {conditions} ORDER BY 1 DESC, m.time_ms DESC, m.num DESC LIMIT {wanted}",
            (match, first, last, *values),
        ).fetchall()
        return rows, len(rows) == wanted

    def _in_columns(self, words: str) -> str:
        return words if self._request.in_tools else f"{{content}} : ({words})"

    def _message_fit(self) -> str:
        """How well a message fits, as SQL."""
        if self._visibility.sees_all:
            return "-bm25(words.words)"
        seen = self._visibility.message_condition
        columns = {"m.content": 1.0} | ({"m.tools": 1.0} if self._request.in_tools else {})
        matches = {phrase: self._in_columns(str(phrase)) for phrase in self._query.phrases}
        return measured(
            self._db, f"{_ROWS} WHERE {seen}", "m.words", columns, f"{_WORDS} AND {seen}", matches
        )

    def _title_fit(self) -> str:
        if self._visibility.sees_all:
            return "-bm25(names, {}, {})".format(*TITLE_WEIGHTS)
        seen = f"{_IS_THERE} AND {self._visibility.conversation_condition}"
        columns = dict(zip(("c.title", "c.tags"), TITLE_WEIGHTS, strict=True))
        matches = {phrase: str(phrase) for phrase in self._query.phrases}
        length = "length(c.title || c.tags)"
        return measured(
            self._db,
            f"capsules AS c WHERE {seen}",
            length,
            columns,
            f"{_TITLES} AND {seen}",
            matches,
        )

    def _titles(self) -> tuple[list[Match], bool]:
        """The matches among titles and tags that are to be ranked, and whether there are others."""
        asked = self._request
        if (
            asked.roles
            or asked.senders
            or asked.where is not None
            or self._scope_nums == []
            or not (asked.query.strip() or asked.title_only)
        ):
            return [], False
        limit = -1 if self._ranks_all else WINDOW + 1
        conditions = ["c.num <= ?", _IS_THERE]
        values: list[Any] = [self._page.newest_title_num]
        self._narrow(conditions, values, "c.updated_ms", "c.num")
        if asked.mode:
            conditions.append("c.mode = ?")
            values.append(asked.mode)
        rows = self._title_matches(" AND ".join(conditions), values, limit)
        return (rows, False) if limit < 0 else (rows[:WINDOW], len(rows) > WINDOW)

    def _title_matches(self, conditions: str, values: list[Any], limit: int) -> list[Match]:
        """The newest matches that meet these conditions about the row `c`; -1: no limit."""
        fit, num, table = "1.0", "c.num", "capsules AS c WHERE instr(c.title, ?) > 0"
        if self._query.match:
            fit, num, table = self._title_fit(), "names.rowid", _TITLES
        return self._db.execute(
            f"SELECT {fit}, c.updated_ms, c.num FROM {table} AND {conditions} ORDER BY {num} DESC "
            f"LIMIT {limit}",
            (self._words if self._query.match else self._query.literal, *values),
        ).fetchall()

    # -- The best of it ----------------------------------------------------------------------------

    def _scored(self, messages: list[Match], titles: list[Match]) -> list[_Scored]:
        """All matches that were not given yet, with their scores.

        The bm25 of a title and that of a message don't compare. So titles are scaled: the best one
        fits as well as the best message, and the n-th title never scores more than the n-th
        message.
        """
        weigh, page = self._profile.weigh, self._page
        scores = weigh(messages, page.now_ms)
        matches, given = zip(scores, messages, strict=True), page.returned_nums
        scored = [
            (score, time_ms, num, False) for score, (_, time_ms, num) in matches if num not in given
        ]
        if not titles:
            return scored
        best = max((fit for fit, _, _ in messages), default=1.0)
        best_title = max(fit for fit, _, _ in titles) or 1.0
        titles = [(fit / best_title * best, time_ms, num) for fit, time_ms, num in titles]
        named = sorted(
            (
                (score, *match[1:], True)
                for score, match in zip(weigh(titles, page.now_ms), titles, strict=True)
            ),
            reverse=True,
        )
        most = [*nlargest(len(named), scores), *(inf for _ in named)]
        capped = [(min(hit[0], most[place]), *hit[1:]) for place, hit in enumerate(named)]
        return scored + [hit for hit in capped if hit[2] not in page.returned_title_nums]

    # -- What is shown of it -----------------------------------------------------------------------

    def _rows(self, numbers: list[int]) -> dict[int, tuple[Any, ...]]:
        """What is shown of these messages, by their numbers, without those whose files can't be
        opened just now.
        """
        rows = {}
        for row in self._db.execute(
            "SELECT m.num, c.id, c.title, m.id, m.at, m.role, m.sender, m.time_ms, m.content, "
            "m.tools, m.active"
            " FROM texts AS m JOIN capsules AS c ON c.num = m.capsule"
            f" WHERE m.num IN ({', '.join(map(str, numbers)) or 'NULL'}) AND c.damaged = ''"
        ):
            rows[row[0]] = row[1:]
        return rows

    def _message_hit(self, row: tuple[Any, ...] | None, score: float) -> Hit | None:
        if row is None:
            return None
        id, title, message, at, role, sender, time_ms, content, tools, active = row
        where, shown = "content", self._snippet(content)
        if tools and self._request.in_tools and not shown.marks:
            in_tools = self._snippet(self._tools(tools))
            if in_tools.marks:
                where, shown = "tools", in_tools
        time = timestamps.blank_if_unknown(timestamps.from_ms(time_ms))
        return Hit(
            id, title, message, at, role, sender, time, where, shown, _rounded(score), bool(active)
        )

    def _tools(self, tools: str) -> str:
        """What `texts` has as tools, as text."""
        return tools

    def _title_hit(self, num: int, score: float) -> Hit | None:
        id, title, updated_at, tags = self._db.execute(
            "SELECT id, title, updated_at, tags FROM capsules WHERE num = ?", (num,)
        ).fetchone()
        shown = self._snippet(title)
        if not shown.marks:
            tagged = self._snippet(" ".join(f"#{tag}" for tag in orjson.loads(tags)))
            shown = tagged if tagged.marks else shown
        time = timestamps.sortable(updated_at) or updated_at
        return Hit(id, title, None, None, None, None, time, "title", shown, _rounded(score))

    def _snippet(self, text: str) -> Snippet:
        return snippet(text, self._query.phrases, self._query.literal)


def _rounded(score: float) -> float:
    return float(f"{score:.{_DIGITS}g}")


def _quoted(text: str) -> str:
    """A query for the words of a text in a row."""
    return '"' + text.replace('"', " ") + '"'


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))


def check(asked: SearchRequest) -> None:
    """Raise InvalidInput unless a search can be made."""
    if asked.branch not in BRANCHES:
        raise InvalidInput(
            f"{asked.branch!r} is not a branch to search; there are: {', '.join(BRANCHES)}"
        )
    if asked.limit < 1:
        raise InvalidInput(f"limit: at least one hit, not {asked.limit}")
    profile_of(asked.profile)
