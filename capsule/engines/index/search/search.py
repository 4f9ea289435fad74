"""Search the index: match a query, filter and rank the matches, and cut a snippet of each hit.

`search` makes one `SearchPage`. It asks FTS5 for the newest matches, computes for each how well it
fits (bm25) and weighs that with its age, sorts the scores, and reads the rows of the hits for one
page. If no message has all words of the query, `search` tries again with fewer words.

Ranking (docs/search.md has the formula) costs a microsecond or two for a match, and for an agent
about thirty. So only the newest `WINDOW` matches are ranked, in the order of their row numbers.
When they are all returned, the next page ranks the next ones. Only the owner's profile `exact`
ranks all.

What must stay true:

- A hit is a message or a conversation that the index has within one transaction. It meets all
  filters, and no match that does not meet them takes the place of one that does. Only damaged
  conversations are dropped afterwards: for the owner they count in `total`.
- No text makes SQLite raise: its errors count as damage of the index.
- The same texts, query and time give the same order. Of two equal scores the newer hit comes first.
- A score depends only on texts that the asker may read, so it reveals nothing of others' texts.
  FTS5's own bm25 measures among all texts. `corpus_of` and `bm25_sql` compute it among some.
- A snippet is one line of at most `width` characters, with an ellipsis on each side where text was
  left out. The marks are on words of the query as the index understands them. Neither the snippet
  nor a mark ends inside of a character as it is drawn on a screen, unless that character is longer
  than the snippet.
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
from typing import Any, NamedTuple

import orjson

from capsule import timestamps
from capsule.engines.index.page_cursor import PageCursor
from capsule.engines.index.search.query import ParsedQuery, Phrase, composed, fold, parse, tokens
from capsule.engines.index.tables.filters import FilterMatcher
from capsule.engines.index.visibility import VisibilityFilter
from capsule.engines.queries import Found, Hit, SearchRequest, Snippet, Span
from capsule.errors import InvalidInput

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
_K1 = 1.2
_B = 0.75
_MIN_IDF = 1e-6
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
        folded = [fold((text or "")[:_MAX_COUNTED_CHARS]).lower() for text in columns]
        weighted = [*zip(folded, self.weights, strict=True)]
        norm = _K1 * (1 - _B + _B * length / self.average_length)
        fit = 0.0
        for phrase, idf in zip(self.phrases, self.idf, strict=True):
            count = sum(len(phrase.findall(text)) * weight for text, weight in weighted)
            fit += idf * count * (_K1 + 1) / (count + norm)
        return fit

    def fit_in(self, length_sql: str, counts: Iterable[str]) -> str:
        """Return the bm25 as SQL.

        Args:
            length_sql: SQL for the length of a text.
            counts: SQL for the number of each phrase in it.
        """
        norm = f"{_K1} * ({1 - _B} + {_B / self.average_length} * {length_sql})"
        parts = [
            f"{idf * (_K1 + 1)}::float8 * (1 - ({norm}) / ({count} + {norm}))"
            for idf, count in zip(self.idf, counts, strict=True)
        ]
        return " + ".join(parts)


def bm25_sql(
    db: sqlite3.Connection,
    rows: str,
    length_sql: str,
    columns: dict[str, float],
    matching: str,
    expressions: dict[Phrase, str],
) -> str:
    """Return SQL for the bm25 of a row among some rows.

    Cost: a pass over the rows, and one over those that have a phrase.

    Args:
        db: The index, within a transaction. It gets a function.
        rows: The rows among which it is measured, as SQL after FROM.
        length_sql: SQL for the length of a row.
        columns: SQL for each text of a row, with its weight.
        matching: Those of the rows that match an expression of FTS5, as SQL after FROM, with `?`.
        expressions: The expression for each phrase.
    """
    texts, average_length = db.execute(f"SELECT count(*), avg({length_sql}) FROM {rows}").fetchone()
    counts = []
    for expression in expressions.values():
        counts.append(db.execute(f"SELECT count(*) FROM {matching}", (expression,)).fetchone()[0])
    corpus = corpus_of(texts, average_length, counts, list(expressions), list(columns.values()))
    # The functions for messages and for titles are on one connection, so they have two names.
    name = f"fit_{len(columns)}_{length_sql[0]}"
    db.create_function(name, 1 + len(columns), corpus.fit)
    return f"{name}({', '.join((length_sql, *columns))})"


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


# -- Snippets --------------------------------------------------------------------------------------

#: Characters of a snippet.
WIDTH = 160
#: A text is searched in pieces of so many characters, each with the beginning of the next one, up
#: to the first match.
_PIECE = 16_384
_OVERLAP = 1024
#: The most matches of a phrase that are compared.
_MAX_MATCHES = 200
#: The largest distance by which a cut is moved to a space.
_MAX_SHIFT = 16
_ZERO_WIDTH_JOINER = "\u200d"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))


class _PhraseMatch(NamedTuple):
    """A part of a line, from its first character to the one after its last,
    and the phrase there.
    """

    first: int
    end: int
    phrase_index: int


def snippet(text: str, phrases: Sequence[Phrase], literal: str = "", width: int = WIDTH) -> Snippet:
    """Return the piece of a text with the most different phrases.

    Args:
        text: The text. If nothing matches, the snippet is its beginning.
        phrases: The phrases of the query.
        literal: A text without words. It is looked for in place of the phrases, as it is.
        width: The largest number of characters.
    """
    beginning = _line(text, 0)
    for start in range(0, max(1, len(text)), _PIECE):
        line = _line(text, start) if start else beginning
        if literal:
            matches = sorted(set(_literal_matches(line, literal)))
        else:
            matches = sorted(set(_phrase_matches(line, phrases, is_first=not start)))
        if matches:
            has_text_after = start + _PIECE + _OVERLAP < len(text)
            return _excerpt(
                line,
                _from_densest(matches, width),
                width,
                has_text_before=start > 0,
                has_text_after=has_text_after,
            )
    return _excerpt(
        beginning,
        [],
        width,
        has_text_before=False,
        has_text_after=len(text) > _PIECE + _OVERLAP,
    )


def _line(text: str, start: int) -> str:
    """Return a piece of a text as one line."""
    return composed(" ".join(text[start : start + _PIECE + _OVERLAP].split()))


def _literal_matches(line: str, literal: str) -> Iterator[_PhraseMatch]:
    pattern = re.escape(" ".join(literal.split()))
    for match in islice(re.finditer(pattern, line), _MAX_MATCHES):
        yield _PhraseMatch(match.start(), match.end(), 0)


def _phrase_matches(
    line: str, phrases: Sequence[Phrase], *, is_first: bool
) -> Iterator[_PhraseMatch]:
    words = tokens(line)
    if not is_first:
        words = words[1:]  # It can be the end of a word, which the piece before has as a whole.
    folded_line = "".join([f" {word}" for word, _, _ in words]) + " "
    word_starts = list(accumulate([len(word) + 1 for word, _, _ in words], initial=0))
    for phrase_index, phrase in enumerate(phrases):
        folded_phrase = " ".join(("", *phrase.words)) + ("" if phrase.prefix else " ")
        found_at = -1
        for _ in range(_MAX_MATCHES):
            found_at = folded_line.find(folded_phrase, found_at + 1)
            if found_at < 0:
                break
            first_word = bisect_left(word_starts, found_at)
            last_word = first_word + len(phrase.words) - 1
            yield _PhraseMatch(words[first_word][1], words[last_word][2], phrase_index)


def _from_densest(matches: list[_PhraseMatch], width: int) -> list[Span]:
    """Return the matches from that one on which has the most different phrases within reach."""
    # The text before the first mark takes a part of the width.
    reach = width * 3 // 4

    def phrases_from(index: int) -> int:
        end = matches[index].first + reach
        return len({match.phrase_index for match in matches[index:] if match.end <= end})

    densest = max(range(len(matches)), key=phrases_from)
    return [(match.first, match.end) for match in matches[densest:]]


def _excerpt(
    line: str, marks: Sequence[Span], width: int, *, has_text_before: bool, has_text_after: bool
) -> Snippet:
    """Return the part of a line around the first mark, with all marks in it."""
    start, end = _bounds(
        line, marks[0][0] if marks else 0, width, ellipses=has_text_before + has_text_after
    )
    lead = "…" if start or has_text_before else ""
    trail = "…" if end < len(line) or has_text_after else ""
    shift = len(lead) - start
    shifted = []
    for first, last in _merged(line, marks):
        if first < end:
            shifted.append((first + shift, min(last, end) + shift))
    return Snippet(lead + line[start:end].strip() + trail, tuple(shifted))


def _bounds(line: str, anchor: int, width: int, *, ellipses: int) -> Span:
    """Choose the part of a line that is shown: with the anchor, and cut between words if possible.

    Args:
        line: The line.
        anchor: The index of the first mark.
        width: The largest number of characters of a snippet.
        ellipses: The number of ellipses that the whole line would need.
    """
    if len(line) + ellipses <= width:
        return 0, len(line)
    room = width - 2
    start = max(0, min(anchor - width // 4, len(line) - room))
    if start:
        after_space = line.find(" ", start - 1, min(start + _MAX_SHIFT, anchor)) + 1
        start = _next_boundary(line, after_space or start, anchor)
    end = len(line)
    if start + room < end:
        end = start + room
        space = line.rfind(" ", max(end - _MAX_SHIFT, start + 1), end + 1)
        end = space if space > 0 else _previous_boundary(line, end, start)
    return start, end


def _next_boundary(line: str, start: int, stop: int) -> int:
    """Return the first index from `start` on where a drawn character begins, at most `stop`."""
    for index in range(start, stop):
        if not _combines_with_previous(line, index):
            return index
    return stop


def _previous_boundary(line: str, end: int, stop: int) -> int:
    """Return the last index up to `end`, after `stop`, where a drawn character begins. If there is
    none, return `end`.
    """
    for index in range(end, stop, -1):
        if not _combines_with_previous(line, index):
            return index
    return end


def _merged(line: str, spans: Iterable[Span]) -> list[Span]:
    """Merge spans that overlap or touch, and extend each to the end of its last drawn character."""
    merged: list[Span] = []
    for first, last in sorted(spans):
        end = last
        while end < len(line) and _combines_with_previous(line, end):
            end += 1
        if merged and first <= merged[-1][1]:
            previous_first, previous_end = merged.pop()
            merged.append((previous_first, max(end, previous_end)))
        else:
            merged.append((first, end))
    return merged


def _combines_with_previous(line: str, index: int) -> bool:
    """Return whether a character and the one before it are drawn as one."""
    character = line[index]
    previous = line[index - 1]
    if character < "\u0300" or not index:
        return False
    if character in _FLAG_LETTERS:  # A flag is two of these.
        return (index - len(line[:index].rstrip(_FLAG_LETTERS))) % 2 == 1
    if _ZERO_WIDTH_JOINER in (previous, character):
        return True
    is_skin_tone = "\U0001f3fb" <= character <= "\U0001f3ff"
    is_tag = "\U000e0020" <= character <= "\U000e007f"
    return is_skin_tone or is_tag or unicodedata.category(character)[0] == "M"


# -- Search ----------------------------------------------------------------------------------------

BRANCHES = ("active", "all")
#: The weights of words in a title and in tags.
TITLE_WEIGHTS = 2.0, 1.0
#: The messages of at most so many conversations are also narrowed by the range of their row
#: numbers.
_MAX_RANGED = 16
#: Significant digits of a score.
_DIGITS = 6

#: The index `messages_narrow` has all columns that a search compares, but no texts.
_MESSAGES = "messages AS m INDEXED BY messages_narrow"
_MATCHING_MESSAGES = """words CROSS JOIN messages AS m INDEXED BY messages_narrow ON m.num = words.rowid
    WHERE words.words MATCH ?"""
_MATCHING_TITLES = "names CROSS JOIN capsules AS c ON c.num = names.rowid WHERE names MATCH ?"
_IS_VALID = "c.gone = 0 AND c.damaged = ''"
#: One match: its bm25, its time in milliseconds since 1970, its row number. A plain tuple, as there
#: are thousands.
Match = tuple[float, int, int]
#: One match with its score: score, time, row number, and whether it is a title. The best and newest
#: is the greatest.
_Scored = tuple[float, int, int, bool]


def search(
    db: sqlite3.Connection,
    request: SearchRequest,
    visibility: VisibilityFilter,
    generation: str,
    page_class: type[SearchPage],
    matcher_class: type[FilterMatcher],
) -> Found:
    """Return the hits of one search, or the next page of them.

    Args:
        db: The index, within a transaction.
        request: The request, whose cursor is not sealed.
        visibility: What the asker may read. For the owner, the scores are computed among all texts,
            by FTS5, otherwise among the visible ones.
        generation: The generation of the index.
        page_class, matcher_class: The classes for the tables of this engine.

    Raises:
        InvalidInput: A field of the request can't be accepted.
    """
    profile = profile_of(request.profile)
    query = parse(request.query)
    if any("\ud800" <= character <= "\udfff" for character in query.literal):
        return Found([], None, 0)  # No file can have half a surrogate pair.
    if request.cursor is not None:
        page_cursor = PageCursor.decode(request.cursor, generation, request.cursor_key)
    else:
        page_cursor = PageCursor(
            now_ms=request.now_ms,
            newest_num=_newest_num(db, "messages AS m", visibility.message_condition),
            newest_title_num=_newest_num(db, "capsules AS c", visibility.conversation_condition),
        )
    filter_condition: tuple[str, list[Any]] = ("TRUE", [])
    if request.where is not None:
        filter_condition = matcher_class(db, visibility).condition(request.where)

    def run() -> Found:
        search_page = page_class(
            db, request, query, profile, page_cursor, visibility, filter_condition
        )
        return search_page.run(generation)

    result = run()
    if result.hits or request.cursor is not None:
        return result
    for required_parts in query.relaxed_part_counts():
        page_cursor.required_parts = required_parts
        result = run()
        if result.hits:
            break
    return result


def _newest_num(db: sqlite3.Connection, table: str, condition: str) -> int:
    row = db.execute(
        f"SELECT num FROM {table} WHERE {condition} ORDER BY num DESC LIMIT 1"
    ).fetchone()
    return row[0] if row else 0


class SearchPage:
    """One page of one search. PostgreSQL has a subclass for its tables.

    Args:
        db: The index, within a transaction.
        request: The request.
        query: Its parsed query.
        profile: Its ranking profile.
        page: The position of the page. `run` changes it to that of the next page.
        visibility: What the asker may read.
        filter_condition: A condition on the row `m` of `messages`, and the values bound in it.
    """

    def __init__(
        self,
        db: sqlite3.Connection,
        request: SearchRequest,
        query: ParsedQuery,
        profile: RankingProfile,
        page: PageCursor,
        visibility: VisibilityFilter,
        filter_condition: tuple[str, list[Any]],
    ) -> None:
        self._db = db
        self._visibility = visibility
        self._filter_condition = filter_condition
        self._request = request
        self._query = query
        #: The expression of FTS5. Empty: the query has no words.
        self._match_expression = query.match
        if page.required_parts:
            self._match_expression = query.match_at_least(page.required_parts)
        self._profile = profile
        #: Whether all matches are ranked: if the profile ranks all, and the words of the query and
        #: the asker permit it. For an agent this would cost reading all their texts.
        self._ranks_all = profile.ranks_all and visibility.sees_all and bool(query.match)
        self._page = page
        #: The numbers of the conversations that are searched. None: all.
        self._scope_nums: list[int] | None = None
        if request.ids or request.tags:
            self._scope_nums = self._conversations_in_scope()

    def run(self, generation: str) -> Found:
        """Return the page. `generation` is the generation of the index."""
        request = self._request
        page = self._page
        messages: list[Match] = []
        # If all matches are ranked: whether there are more, which fit less well.
        has_older_messages = False
        if not request.title_only:
            messages, has_older_messages = self._message_matches()
        titles, has_older_titles = self._titles()
        ranked = sorted(self._scored(messages, titles), reverse=True)
        hits, used_count = self._hits(ranked)
        has_unused = used_count < len(ranked)
        if not has_unused and has_older_messages and not self._ranks_all:
            # The whole window is returned: the next page ranks the next one.
            page.newest_num = min(num for _, _, num in messages) - 1
            page.returned_nums = set()
        if not has_unused and has_older_titles:
            page.newest_title_num = min(num for _, _, num in titles) - 1
            page.returned_title_nums = set()
        has_older = has_older_messages or has_older_titles
        total = None
        if not has_older and request.cursor is None:
            total = len(ranked)
        cursor = None
        if has_unused or has_older:
            cursor = page.encode(generation, request.cursor_key)
        if page.required_parts and hits:
            word_count = len(self._query.parts)
            return Found(hits, cursor, total, having=page.required_parts, words=word_count)
        return Found(hits, cursor, total)

    def _hits(self, ranked: list[_Scored]) -> tuple[list[Hit], int]:
        """Return the hits of the page and the number of matches that were used for them.

        A match whose conversation is damaged is used too, but it gives no hit.
        """
        limit = self._request.limit
        hits: list[Hit] = []
        used_count = 0
        rows: dict[int, tuple[Any, ...]] = {}
        for index, (score, _, num, is_title) in enumerate(ranked):
            if len(hits) == limit:
                break
            if index % limit == 0:
                following = ranked[index : index + limit]
                rows = self._rows([match[2] for match in following if not match[3]])
            used_count += 1
            if is_title:
                self._page.returned_title_nums.add(num)
                hit = self._title_hit(num, score)
            else:
                self._page.returned_nums.add(num)
                hit = self._message_hit(rows.get(num), score)
            if hit is not None:
                hits.append(hit)
        return hits, used_count

    # -- Conditions --------------------------------------------------------------------------------

    def _conversations_in_scope(self) -> list[int]:
        """Return the numbers of the conversations with the ids and tags of the request.

        Those that the asker may not read are among them. `_conditions` and `_titles` exclude them.
        """
        request = self._request
        conditions = ["gone = 0"]
        values: list[Any] = []
        if request.ids:
            conditions.append(f"id IN ({_marks(request.ids)})")
            values += request.ids
        tag_expressions = []
        for tag in request.tags:
            expression = parse(_quoted(tag)).match
            if expression:
                tag_expressions.append(expression)
        tag_expression = self._tagged(tag_expressions)
        if tag_expression:
            conditions.append("num IN (SELECT rowid FROM names WHERE names MATCH ?)")
            values.append(tag_expression)
        rows = self._db.execute(
            f"SELECT num, tags FROM capsules WHERE {' AND '.join(conditions)}", values
        )
        required_tags = set(request.tags)
        nums = []
        for num, tags in rows:
            if not required_tags or required_tags <= set(orjson.loads(tags)):
                nums.append(num)
        return nums

    def _tagged(self, tags: list[str]) -> str:
        """Return an expression of FTS5 for the words of tags. Empty: there are none, so the caller
        compares the tags of all conversations.
        """
        return " AND ".join(f"({{tags}} : {expression})" for expression in tags)

    def _conditions(self) -> tuple[str, list[Any]]:
        """Return the conditions of the request on the row `m` of `messages`, and their values."""
        request = self._request
        conditions = ["m.num <= ?"]
        values: list[Any] = [self._page.newest_num]
        if request.branch == "active":
            conditions.append("m.active = 1")
        for column, allowed in (("role", request.roles), ("sender", request.senders)):
            if allowed:
                conditions.append(f"m.{column} IN ({_marks(allowed)})")
                values += allowed
        self._narrow(conditions, values, "m.time_ms", "m.capsule")
        conditions.append(self._visibility.message_condition)
        filter_condition, filter_values = self._filter_condition
        conditions.append(filter_condition)
        values += filter_values
        if request.mode:
            conditions.append("m.capsule IN (SELECT num FROM capsules WHERE mode = ?)")
            values.append(request.mode)
        return " AND ".join(conditions), values

    def _narrow(
        self,
        conditions: list[str],
        values: list[Any],
        time_column: str,
        conversation_column: str,
    ) -> None:
        """Add the conditions on times and conversations, and their values."""
        for comparison, time_ms in ((">=", self._request.since_ms), ("<", self._request.until_ms)):
            if time_ms is not None:
                conditions.append(f"{time_column} {comparison} ?")
                values.append(time_ms)
        if self._scope_nums is not None:
            nums = ", ".join(map(str, self._scope_nums))
            conditions.append(f"{conversation_column} IN ({nums})")

    def _message_num_range(self) -> tuple[int, int]:
        """Return the first and the last row number that a message of the scope can have. (1, 0):
        the scope has no message.
        """
        if self._scope_nums is None or len(self._scope_nums) > _MAX_RANGED:
            return 0, self._page.newest_num
        nums = ", ".join(map(str, self._scope_nums))
        first, last = self._db.execute(
            f"SELECT min(num), max(num) FROM messages WHERE capsule IN ({nums})"
        ).fetchone()
        if first is None:
            return 1, 0
        return first, min(last, self._page.newest_num)

    # -- Matches -----------------------------------------------------------------------------------

    def _message_matches(self) -> tuple[list[Match], bool]:
        """Return the messages to rank, and whether there are older matches."""
        if self._scope_nums == []:
            return [], False
        conditions, values = self._conditions()
        if self._ranks_all:
            return self._best_messages(conditions, values)
        if self._query.match:
            fit = self._message_fit()
            num_column = "words.rowid"
            table = _MATCHING_MESSAGES
            bound_text = self._in_columns(self._match_expression)
        else:  # The full-text index has only words: compare the texts.
            fit = "1.0"
            num_column = "m.num"
            bound_text = self._query.literal
            content = "m.content"
            if self._request.in_tools:
                content = "m.content || coalesce(m.tools, '')"
            table = f"texts AS m WHERE instr({content}, ?) > 0"
            if not bound_text:
                table = f"{_MESSAGES} WHERE '' = ?"  # Always true, as `bound_text` is empty.
        rows = self._db.execute(
            f"SELECT {fit}, m.time_ms, m.num FROM {table} AND {num_column} BETWEEN ? AND ? "
            f"AND {conditions} ORDER BY {num_column} DESC LIMIT {WINDOW + 1}",
            (bound_text, *self._message_num_range(), *values),
        ).fetchall()
        return rows[:WINDOW], len(rows) > WINDOW

    def _best_messages(self, conditions: str, values: list[Any]) -> tuple[list[Match], bool]:
        """Return the best of all matches, more than the page needs, and whether there are more."""
        count = self._request.limit + len(self._page.returned_nums) + 1
        first, last = self._message_num_range()
        expression = self._in_columns(self._match_expression)
        if self._scope_nums is None:
            # Reading the rows of all matches costs as much as ranking them. So rank first, and read
            # the rows of the best ones. If the conditions exclude too many, rank all that meet
            # them.
            rows = self._db.execute(
                f"""SELECT found.fit, m.time_ms, m.num
                FROM (SELECT rowid AS num, -bm25(words) AS fit FROM words WHERE words MATCH ? AND rowid <= ?
                    ORDER BY 2 DESC, 1 DESC LIMIT {2 * count + 40}) AS found
                CROSS JOIN messages AS m INDEXED BY messages_narrow ON m.num = found.num WHERE {conditions}""",
                (expression, last, *values),
            ).fetchall()
            if len(rows) >= count:
                return rows, True
        rows = self._db.execute(
            f"SELECT -bm25(words.words), m.time_ms, m.num FROM {_MATCHING_MESSAGES} "
            f"AND words.rowid BETWEEN ? AND ? AND {conditions} "
            f"ORDER BY 1 DESC, m.time_ms DESC, m.num DESC LIMIT {count}",
            (expression, first, last, *values),
        ).fetchall()
        return rows, len(rows) == count

    def _in_columns(self, expression: str) -> str:
        """Restrict an expression of FTS5 to the columns that are searched."""
        return expression if self._request.in_tools else f"{{content}} : ({expression})"

    def _message_fit(self) -> str:
        """Return SQL for the bm25 of a message."""
        if self._visibility.sees_all:
            return "-bm25(words.words)"
        visible = self._visibility.message_condition
        columns = {"m.content": 1.0}
        if self._request.in_tools:
            columns["m.tools"] = 1.0
        return bm25_sql(
            self._db,
            rows=f"{_MESSAGES} WHERE {visible}",
            length_sql="m.words",
            columns=columns,
            matching=f"{_MATCHING_MESSAGES} AND {visible}",
            expressions={phrase: self._in_columns(str(phrase)) for phrase in self._query.phrases},
        )

    def _title_fit(self) -> str:
        """Return SQL for the bm25 of a title and its tags."""
        if self._visibility.sees_all:
            return "-bm25(names, {}, {})".format(*TITLE_WEIGHTS)
        visible = f"{_IS_VALID} AND {self._visibility.conversation_condition}"
        return bm25_sql(
            self._db,
            rows=f"capsules AS c WHERE {visible}",
            length_sql="length(c.title || c.tags)",
            columns=dict(zip(("c.title", "c.tags"), TITLE_WEIGHTS, strict=True)),
            matching=f"{_MATCHING_TITLES} AND {visible}",
            expressions={phrase: str(phrase) for phrase in self._query.phrases},
        )

    def _titles(self) -> tuple[list[Match], bool]:
        """Return the conversations to rank by title and tags, and whether there are older ones."""
        request = self._request
        only_messages = request.roles or request.senders or request.where is not None
        has_query = request.query.strip() or request.title_only
        if only_messages or self._scope_nums == [] or not has_query:
            return [], False
        conditions = ["c.num <= ?", _IS_VALID]
        values: list[Any] = [self._page.newest_title_num]
        self._narrow(conditions, values, "c.updated_ms", "c.num")
        conditions.append(self._visibility.conversation_condition)
        if request.mode:
            conditions.append("c.mode = ?")
            values.append(request.mode)
        condition = " AND ".join(conditions)
        if self._ranks_all:
            return self._title_matches(condition, values, -1), False
        rows = self._title_matches(condition, values, WINDOW + 1)
        return rows[:WINDOW], len(rows) > WINDOW

    def _title_matches(self, conditions: str, values: list[Any], limit: int) -> list[Match]:
        """Return the newest conversations whose title or tags match.

        Args:
            conditions: Conditions on the row `c` of `capsules`.
            values: The values bound in them.
            limit: The largest number. -1: no limit.
        """
        if self._query.match:
            fit = self._title_fit()
            num_column = "names.rowid"
            table = _MATCHING_TITLES
            bound_text = self._match_expression
        else:
            fit = "1.0"
            num_column = "c.num"
            table = "capsules AS c WHERE instr(c.title, ?) > 0"
            bound_text = self._query.literal
        return self._db.execute(
            f"SELECT {fit}, c.updated_ms, c.num FROM {table} AND {conditions} "
            f"ORDER BY {num_column} DESC LIMIT {limit}",
            (bound_text, *values),
        ).fetchall()

    # -- Scores ------------------------------------------------------------------------------------

    def _scored(self, messages: list[Match], titles: list[Match]) -> list[_Scored]:
        """Return all matches that no earlier page returned, with their scores.

        The bm25 of a title and that of a message can't be compared. So titles are scaled: the best
        title gets the bm25 of the best message, and the n-th title never scores more than the n-th
        message.
        """
        page = self._page
        message_scores = self._profile.weigh(messages, page.now_ms)
        scored = []
        for score, (_, time_ms, num) in zip(message_scores, messages, strict=True):
            if num not in page.returned_nums:
                scored.append((score, time_ms, num, False))
        if not titles:
            return scored
        best_message = max((fit for fit, _, _ in messages), default=1.0)
        best_title = max(fit for fit, _, _ in titles) or 1.0
        scaled = [(fit / best_title * best_message, time_ms, num) for fit, time_ms, num in titles]
        title_scores = self._profile.weigh(scaled, page.now_ms)
        ranked_titles = []
        for score, (_, time_ms, num) in zip(title_scores, scaled, strict=True):
            ranked_titles.append((score, time_ms, num, True))
        ranked_titles.sort(reverse=True)
        limits = nlargest(len(ranked_titles), message_scores)
        limits += [inf] * len(ranked_titles)
        for rank, (score, time_ms, num, is_title) in enumerate(ranked_titles):
            if num not in page.returned_title_nums:
                scored.append((min(score, limits[rank]), time_ms, num, is_title))
        return scored

    # -- Hits --------------------------------------------------------------------------------------

    def _rows(self, nums: list[int]) -> dict[int, tuple[Any, ...]]:
        """Return the columns for the hits of messages, by row number, of valid
        conversations only.
        """
        listed = ", ".join(map(str, nums)) or "NULL"
        rows = {}
        for num, *columns in self._db.execute(
            "SELECT m.num, c.id, c.title, m.id, m.at, m.role, m.sender, m.time_ms, m.content, "
            "m.tools, m.active FROM texts AS m JOIN capsules AS c ON c.num = m.capsule "
            f"WHERE m.num IN ({listed}) AND c.damaged = ''"
        ):
            rows[num] = tuple(columns)
        return rows

    def _message_hit(self, row: tuple[Any, ...] | None, score: float) -> Hit | None:
        if row is None:
            return None
        id, title, message, position, role, sender, time_ms, content, tools, active = row
        matched_part = "content"
        excerpt = self._snippet(content)
        if tools and self._request.in_tools and not excerpt.marks:
            in_tools = self._snippet(self._tools(tools))
            if in_tools.marks:
                matched_part = "tools"
                excerpt = in_tools
        return Hit(
            id=id,
            title=title,
            message=message,
            at=position,
            role=role,
            sender=sender,
            time=timestamps.blank_if_unknown(timestamps.from_ms(time_ms)),
            where=matched_part,
            snippet=excerpt,
            score=_rounded(score),
            active=bool(active),
        )

    def _tools(self, tools: str) -> str:
        """Return the text of the tools of a message, from the column `tools` of `texts`."""
        return tools

    def _title_hit(self, num: int, score: float) -> Hit | None:
        id, title, updated_at, tags = self._db.execute(
            "SELECT id, title, updated_at, tags FROM capsules WHERE num = ?", (num,)
        ).fetchone()
        excerpt = self._snippet(title)
        if not excerpt.marks:
            in_tags = self._snippet(" ".join(f"#{tag}" for tag in orjson.loads(tags)))
            if in_tags.marks:
                excerpt = in_tags
        return Hit(
            id=id,
            title=title,
            message=None,
            at=None,
            role=None,
            sender=None,
            time=timestamps.sortable(updated_at) or updated_at,
            where="title",
            snippet=excerpt,
            score=_rounded(score),
        )

    def _snippet(self, text: str) -> Snippet:
        return snippet(text, self._query.phrases, self._query.literal)


def _rounded(score: float) -> float:
    return float(f"{score:.{_DIGITS}g}")


def _quoted(text: str) -> str:
    """Return a query for the words of a text in their order."""
    return '"' + text.replace('"', " ") + '"'


def _marks(values: tuple[str, ...]) -> str:
    return ", ".join("?" * len(values))


def check(request: SearchRequest) -> None:
    """Raise InvalidInput unless a search can be made."""
    if request.branch not in BRANCHES:
        raise InvalidInput(
            f"{request.branch!r} is not a branch to search; there are: {', '.join(BRANCHES)}"
        )
    if request.limit < 1:
        raise InvalidInput(f"limit: at least one hit, not {request.limit}")
    profile_of(request.profile)
