"""A search: the matches of a query, narrowed, ranked, and shown.

What must stay true: a hit is a message or a conversation that the index has within one transaction; filters apply
before anything is cut off; and no text makes SQLite raise, because its errors count as damage of the index.

To rank a match costs a microsecond or two, and for an agent about thirty. So only the newest matches are ranked
(`ranking.WINDOW`), in the order in which they came into the index. When they are used up, the next page ranks the next
ones. Only the owner's profile `exact` ranks all.
"""

from __future__ import annotations

import sqlite3
from heapq import nlargest
from math import inf
from typing import Any

import orjson

from capsule import timestamps
from capsule.engines.answers import Found, Hit, Snippet
from capsule.engines.index.hidden import Hidden
from capsule.engines.index.pages import Continuation
from capsule.engines.index.search import ranking
from capsule.engines.index.search.corpus import measured
from capsule.engines.index.search.query import Query, parse
from capsule.engines.index.search.ranking import Profile, profile_of
from capsule.engines.index.search.snippets import snippet
from capsule.engines.index.tables.facts import Fits
from capsule.engines.questions import Search
from capsule.errors import InvalidInput

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
#: One match with its score, so that the best and newest is the greatest; the last tells a title from a message.
_Scored = tuple[float, int, int, bool]


def search(
    db: sqlite3.Connection, asked: Search, hidden: Hidden, generation: str, searches: type[Searching], finds: type[Fits]
) -> Found:
    """The hits of one search, or the next page of them.

    Args:
        db: The index, within a transaction.
        asked: What is looked for.
        hidden: What is not found. If the owner asks, the statistics of FTS5, which are those of all texts, decide how
            well a text fits; else those of the texts that are not hidden, also if all of them are.
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
        page = Continuation.of(asked.cursor, generation, asked.words)
    else:
        newest = "SELECT num FROM {} WHERE {} ORDER BY num DESC LIMIT 1"
        message = db.execute(newest.format("messages AS m", hidden.of_messages)).fetchone() or (0,)
        title = db.execute(newest.format("capsules AS c", hidden.of_conversations)).fetchone() or (0,)
        page = Continuation(asked.now_ms, *message, *title)
    where = ("TRUE", []) if asked.where is None else finds(db, hidden).condition(asked.where)
    result = searches(db, asked, query, profile, page, hidden, where).found(generation)
    for page.having in [] if result.hits or asked.cursor is not None else query.weaker():
        result = searches(db, asked, query, profile, page, hidden, where).found(generation)
        if result.hits:
            break
    return result


class Searching:
    """One page of one search. `where` is a condition about the row `m`, and the values bound in it."""

    def __init__(
        self,
        db: sqlite3.Connection,
        asked: Search,
        query: Query,
        profile: Profile,
        page: Continuation,
        hidden: Hidden,
        where: tuple[str, list[Any]],
    ) -> None:
        self._db = db
        self._hidden = hidden
        self._where = where
        self._asked = asked
        self._query = query
        self._words = query.having(page.having) if page.having else query.match
        self._profile = profile
        #: Whether all matches are ranked: not for an agent, as it costs reading their texts.
        self._ranks_all = profile.ranks_all and hidden.nothing and bool(query.match)
        self._page = page
        #: The conversations that may be found, by number; None: all.
        self._capsules = self._allowed() if asked.ids or asked.tags else None

    def found(self, generation: str) -> Found:
        asked, page = self._asked, self._page
        messages, more = ([], False) if asked.title_only else self._messages()
        titles, more_titles = self._titles()
        scored = self._scored(messages, titles)
        hits: list[Hit] = []
        left, ranked = len(scored), sorted(scored, reverse=True)
        for place, (score, _, num, is_title) in enumerate(ranked):
            if len(hits) == asked.limit:
                break
            if place % asked.limit == 0:
                rows = self._rows([hit[2] for hit in ranked[place : place + asked.limit] if not hit[3]])
            left -= 1
            (page.given_titles if is_title else page.given).add(num)
            hit = self._title_hit(num, score) if is_title else self._message_hit(rows.get(num), score)
            if hit is not None:
                hits.append(hit)
        if not left and more and not self._ranks_all:
            page.top, page.given = min(num for _, _, num in messages) - 1, set()
        if not left and more_titles:
            page.top_title, page.given_titles = min(num for _, _, num in titles) - 1, set()
        more = more or more_titles
        total = None if more or asked.cursor is not None else len(scored)
        cursor = page.cursor(generation, asked.words) if left or more else None
        weaker = (page.having, len(self._query.parts)) if page.having and hits else (0, 0)
        return Found(hits, cursor, total, *weaker)

    # -- What narrows ---------------------------------------------------------------------------------------------

    def _allowed(self) -> list[int]:
        asked = self._asked
        conditions = ["gone = 0"]
        values: list[Any] = []
        if asked.ids:
            conditions.append(f"id IN ({_marks(asked.ids)})")
            values += asked.ids
        if match := self._tagged([match for match in (parse(_quoted(tag)).match for tag in asked.tags) if match]):
            conditions.append("num IN (SELECT rowid FROM names WHERE names MATCH ?)")
            values.append(match)
        rows = self._db.execute(f"SELECT num, tags FROM capsules WHERE {' AND '.join(conditions)}", values)
        wanted = set(asked.tags)
        return [num for num, tags in rows if not wanted or wanted <= set(orjson.loads(tags))]

    def _tagged(self, tags: list[str]) -> str:
        """What is asked for the words of these tags; empty: the tags themselves will be compared."""
        return " AND ".join(f"({{tags}} : {match})" for match in tags)

    def _conditions(self) -> tuple[str, list[Any]]:
        """What a message must be besides matching, as SQL about the row `m`."""
        asked = self._asked
        conditions = ["m.num <= ?"]
        values: list[Any] = [self._page.top]
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
        """Add what both messages and titles are narrowed by, given the columns of their times and conversations."""
        for comparison, time_ms in ((">=", self._asked.since_ms), ("<", self._asked.until_ms)):
            if time_ms is not None:
                conditions.append(f"{time} {comparison} ?")
                values.append(time_ms)
        if self._capsules is not None:
            conditions.append(f"{capsule} IN ({', '.join(map(str, self._capsules))})")
        conditions.append(self._hidden.of_messages if capsule == "m.capsule" else self._hidden.of_conversations)

    def _reach(self) -> tuple[int, int]:
        """The first and the last number that a message may have."""
        if self._capsules is None or len(self._capsules) > _FEW:
            return 0, self._page.top
        numbers = ", ".join(map(str, self._capsules))
        first, last = self._db.execute(
            f"SELECT min(num), max(num) FROM messages WHERE capsule IN ({numbers})"
        ).fetchone()
        return (1, 0) if first is None else (first, min(last, self._page.top))

    # -- What matches ---------------------------------------------------------------------------------------------

    def _messages(self) -> tuple[list[Match], bool]:
        """The matches among the messages that are to be ranked, and whether there are older ones."""
        if self._capsules == []:
            return [], False
        conditions, values = self._conditions()
        if self._ranks_all:
            return self._all_messages(conditions, values)
        if self._query.match:
            fit, num, table, match = self._message_fit(), "words.rowid", _WORDS, self._in_columns(self._words)
        else:  # No index has a text without words.
            content = "m.content || coalesce(m.tools, '')" if self._asked.in_tools else "m.content"
            fit, num, table, match = "1.0", "m.num", f"texts AS m WHERE instr({content}, ?) > 0", self._query.literal
            if not match:
                table = "messages AS m INDEXED BY messages_narrow WHERE '' = ?"
        rows = self._db.execute(
            f"SELECT {fit}, m.time_ms, m.num FROM {table} AND {num} BETWEEN ? AND ? AND {conditions}"
            f" ORDER BY {num} DESC LIMIT {ranking.WINDOW + 1}",
            (match, *self._reach(), *values),
        ).fetchall()
        return rows[: ranking.WINDOW], len(rows) > ranking.WINDOW

    def _all_messages(self, conditions: str, values: list[Any]) -> tuple[list[Match], bool]:
        """The best matches of all, some more of them than are asked for; and whether there are others."""
        wanted = self._asked.limit + len(self._page.given) + 1
        first, last = self._reach()
        match = self._in_columns(self._words)
        if self._capsules is None:
            # Looking at the rows of all matches costs as much as ranking them: first those that rank best.
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
            f"SELECT -bm25(words.words), m.time_ms, m.num FROM {_WORDS} AND words.rowid BETWEEN ? AND ?"
            f" AND {conditions} ORDER BY 1 DESC, m.time_ms DESC, m.num DESC LIMIT {wanted}",
            (match, first, last, *values),
        ).fetchall()
        return rows, len(rows) == wanted

    def _in_columns(self, words: str) -> str:
        return words if self._asked.in_tools else f"{{content}} : ({words})"

    def _message_fit(self) -> str:
        """How well a message fits, as SQL."""
        if self._hidden.nothing:
            return "-bm25(words.words)"
        seen = self._hidden.of_messages
        columns = {"m.content": 1.0} | ({"m.tools": 1.0} if self._asked.in_tools else {})
        matches = {phrase: self._in_columns(str(phrase)) for phrase in self._query.phrases}
        return measured(self._db, f"{_ROWS} WHERE {seen}", "m.words", columns, f"{_WORDS} AND {seen}", matches)

    def _title_fit(self) -> str:
        if self._hidden.nothing:
            return "-bm25(names, {}, {})".format(*TITLE_WEIGHTS)
        seen = f"{_IS_THERE} AND {self._hidden.of_conversations}"
        columns = dict(zip(("c.title", "c.tags"), TITLE_WEIGHTS, strict=True))
        matches = {phrase: str(phrase) for phrase in self._query.phrases}
        length = "length(c.title || c.tags)"
        return measured(self._db, f"capsules AS c WHERE {seen}", length, columns, f"{_TITLES} AND {seen}", matches)

    def _titles(self) -> tuple[list[Match], bool]:
        """The matches among titles and tags that are to be ranked, and whether there are others."""
        asked = self._asked
        if (
            asked.roles
            or asked.senders
            or asked.where is not None
            or self._capsules == []
            or not (asked.query.strip() or asked.title_only)
        ):
            return [], False
        limit = -1 if self._ranks_all else ranking.WINDOW + 1
        conditions = ["c.num <= ?", _IS_THERE]
        values: list[Any] = [self._page.top_title]
        self._narrow(conditions, values, "c.updated_ms", "c.num")
        if asked.mode:
            conditions.append("c.mode = ?")
            values.append(asked.mode)
        rows = self._titled(" AND ".join(conditions), values, limit)
        return (rows, False) if limit < 0 else (rows[: ranking.WINDOW], len(rows) > ranking.WINDOW)

    def _titled(self, conditions: str, values: list[Any], limit: int) -> list[Match]:
        """The newest matches that meet these conditions about the row `c`; -1: no limit."""
        fit, num, table = "1.0", "c.num", "capsules AS c WHERE instr(c.title, ?) > 0"
        if self._query.match:
            fit, num, table = self._title_fit(), "names.rowid", _TITLES
        return self._db.execute(
            f"SELECT {fit}, c.updated_ms, c.num FROM {table} AND {conditions} ORDER BY {num} DESC LIMIT {limit}",
            (self._words if self._query.match else self._query.literal, *values),
        ).fetchall()

    # -- The best of it -------------------------------------------------------------------------------------------

    def _scored(self, messages: list[Match], titles: list[Match]) -> list[_Scored]:
        """All matches that were not given yet, with their scores.

        The bm25 of a title and that of a message don't compare. So titles are scaled: the best one fits as well as the
        best message, and the n-th title never scores more than the n-th message.
        """
        weigh, page = self._profile.weigh, self._page
        scores = weigh(messages, page.now_ms)
        matches, given = zip(scores, messages, strict=True), page.given
        scored = [(score, time_ms, num, False) for score, (_, time_ms, num) in matches if num not in given]
        if not titles:
            return scored
        best = max((fit for fit, _, _ in messages), default=1.0)
        best_title = max(fit for fit, _, _ in titles) or 1.0
        titles = [(fit / best_title * best, time_ms, num) for fit, time_ms, num in titles]
        named = sorted(
            ((score, *match[1:], True) for score, match in zip(weigh(titles, page.now_ms), titles, strict=True)),
            reverse=True,
        )
        most = [*nlargest(len(named), scores), *(inf for _ in named)]
        capped = [(min(hit[0], most[place]), *hit[1:]) for place, hit in enumerate(named)]
        return scored + [hit for hit in capped if hit[2] not in page.given_titles]

    # -- What is shown of it --------------------------------------------------------------------------------------

    def _rows(self, numbers: list[int]) -> dict[int, tuple[Any, ...]]:
        """What is shown of these messages, by their numbers, without those whose files can't be opened just now."""
        rows = {}
        for row in self._db.execute(
            "SELECT m.num, c.id, c.title, m.id, m.at, m.role, m.sender, m.time_ms, m.content, m.tools, m.active"
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
        if tools and self._asked.in_tools and not shown.marks:
            in_tools = self._snippet(self._tools(tools))
            if in_tools.marks:
                where, shown = "tools", in_tools
        time = timestamps.known(timestamps.from_ms(time_ms))
        return Hit(id, title, message, at, role, sender, time, where, shown, _rounded(score), bool(active))

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


def check(asked: Search) -> None:
    """Raise InvalidInput unless a search can be made."""
    if asked.branch not in BRANCHES:
        raise InvalidInput(f"{asked.branch!r} is no branch to search; there are: {', '.join(BRANCHES)}")
    if asked.limit < 1:
        raise InvalidInput(f"a page of {asked.limit} hits can't be given; ask for one or more")
    profile_of(asked.profile)
