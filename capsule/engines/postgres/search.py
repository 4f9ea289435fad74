"""Search the tables of the database: match with its full-text search, filter, and compute bm25.

`MatchedRows` finds the newest matches, and reads the rows of the hits.
`capsule.engines.questions.search` ranks them.

PostgreSQL has no bm25, and no function that counts a word in a text. But `ts_rank` of one word is the
sum of 1/n² for n from 1 to the number of its occurrences, divided by the limit of this sum. So the
number can be derived from it.

What must stay true:
- The same words, filters and profiles find the same messages as in the index of files. For words
  without an asterisk the scores are the same, to the last digit: the order of the operations is that
  of FTS5 for the owner, and that of `Corpus.fit` for an agent. A phrase counts once.
- A score depends only on texts that the asker may read.
- No query counts all matches of a common word.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from itertools import accumulate
from typing import Any

import orjson

from capsule.engines.interface import CONVERSATIONS
from capsule.engines.postgres import layout
from capsule.engines.postgres.filters import FilterMatcher
from capsule.engines.postgres.rows import LONGEST_WORD, count_words
from capsule.engines.postgres.tables import IndexTables
from capsule.engines.postgres.visibility import Visibility
from capsule.engines.queries import SearchRequest
from capsule.engines.questions import ranking
from capsule.engines.questions.parsing import tools_of
from capsule.engines.questions.query import Phrase, Term, composed, tokens
from capsule.engines.questions.ranking import K1, TITLE_WEIGHTS, B, Corpus, Match, corpus_of
from capsule.engines.questions.search import MessageRow, Search, TitleRow

#: The limit of the sums of 1/n², as PostgreSQL writes it.
_LIMIT = "1.64493406685::float8"
#: The sums of 1/n² for the occurrences that a `tsvector` can have.
_SUMS = list(accumulate(1 / (n * n) for n in range(1, 256)))
#: The messages with a phrase are counted up to this number. Beyond, it is estimated from the newest
#: ones.
MAX_COUNTED = 5000
_SIGNS = {"AND": " & ", "OR": " | ", "NOT": " & !", "(": "(", ")": ")"}


def tsquery(terms: Iterable[Term]) -> str:
    """Return an expression as a `tsquery`."""
    parts = []
    for term in terms:
        if not isinstance(term, Phrase):
            parts.append(_SIGNS[term])
            continue
        lexemes = [f"'{word[:LONGEST_WORD]}'" for word in term.words]
        prefix_mark = ":*" if term.prefix else ""
        parts.append(f"({' <-> '.join(lexemes)}{prefix_mark})")
    return "".join(parts)


class MatchedRows:
    """The matches and the rows of hits for one request. See `SearchIndex`.

    Args:
        tables: The index, within a transaction.
        request: The request.
        visibility: What the asker may read.
    """

    def __init__(self, tables: IndexTables, request: SearchRequest, visibility: Visibility) -> None:
        self._tables = tables
        self._request = request
        self._visibility = visibility
        #: The number of messages with a phrase.
        self._counts: dict[Phrase, int] = {}

    @property
    def can_rank_all(self) -> bool:
        return self._visibility.sees_all

    def newest_nums(self) -> tuple[int, int]:
        visibility = self._visibility
        ((message, conversation),) = self._tables.query_once(
            "SELECT (SELECT m.num FROM messages AS m "
            f"WHERE {visibility.message_condition} ORDER BY m.num DESC LIMIT 1), "
            "(SELECT c.num FROM capsules AS c "
            f"WHERE {visibility.conversation_condition} ORDER BY c.num DESC LIMIT 1)",
            visibility.values,
        )
        return message or 0, conversation or 0

    # -- Conditions --------------------------------------------------------------------------------

    @cached_property
    def _scope_nums(self) -> list[int] | None:
        """The numbers of the conversations with the ids and tags of the request. None: all.

        Those that the asker may not read are among them. `_conditions` and `titles` exclude them.
        """
        request = self._request
        if not (request.ids or request.tags):
            return None
        conditions = ["c.gone = 0"]
        values: dict[str, Any] = {}
        if request.ids:
            conditions.append("c.id = ANY(%(ids)s::text[])")
            values["ids"] = list(request.ids)
        for number, tag in enumerate(request.tags):
            words = tuple(word for word, _, _ in tokens(composed(tag)))
            if words:  # Else the tags of all conversations are compared.
                conditions.append(
                    "c.num IN (SELECT num FROM names "
                    f"WHERE vector @@ %(tag_{number})s::text::tsquery)"
                )
                values[f"tag_{number}"] = tsquery([Phrase(words)])
        rows = self._tables.query_once(
            f"SELECT c.num, c.tags FROM capsules AS c WHERE {' AND '.join(conditions)}", values
        )
        required_tags = set(request.tags)
        return [num for num, tags in rows if required_tags <= set(orjson.loads(tags))]

    @cached_property
    def _message_conditions(self) -> tuple[str, dict[str, Any]]:
        """The conditions of the request on the row `m` of `messages`, and the values in them."""
        request = self._request
        conditions = [self._visibility.message_condition]
        values = {**self._visibility.values}
        if request.branch == "active":
            conditions.append("m.active = 1")
        for column, allowed in (("role", request.roles), ("sender", request.senders)):
            if allowed:
                conditions.append(f"m.{column} = ANY(%({column}s)s::text[])")
                values[f"{column}s"] = list(allowed)
        self._narrow(conditions, values, "m.time_ms", "m.capsule")
        if request.mode:
            conditions.append("m.capsule IN (SELECT num FROM capsules WHERE mode = %(mode)s)")
            values["mode"] = request.mode
        if request.where is not None:
            condition, filter_values = FilterMatcher(self._tables, self._visibility).condition(
                request.where
            )
            conditions.append(condition)
            values |= filter_values
        return " AND ".join(conditions), values

    def _narrow(
        self,
        conditions: list[str],
        values: dict[str, Any],
        time_column: str,
        conversation_column: str,
    ) -> None:
        """Add the conditions on times and conversations, and their values."""
        if self._request.since_ms is not None:
            conditions.append(f"{time_column} >= %(since_ms)s")
            values["since_ms"] = self._request.since_ms
        if self._request.until_ms is not None:
            conditions.append(f"{time_column} < %(until_ms)s")
            values["until_ms"] = self._request.until_ms
        if self._scope_nums is not None:
            conditions.append(f"{conversation_column} = ANY(%(scope)s::bigint[])")
            values["scope"] = self._scope_nums

    # -- Messages ----------------------------------------------------------------------------------

    def messages(self, search: Search) -> tuple[list[Match], bool]:
        if self._scope_nums == []:
            return [], False
        conditions, values = self._message_conditions
        values = values | {"newest": search.page.newest_num}
        conditions = f"m.num <= %(newest)s AND {conditions}"
        order = "m.num DESC"
        limit = ranking.WINDOW + 1
        fit = "1.0::float8"
        source = "messages AS m"
        if search.terms:
            fit = self._fit(search, values)
            source = "words AS w JOIN messages AS m ON m.num = w.num"
            # The same number twice: PostgreSQL does not see that the one bounds the other.
            conditions = f"{self._matches('query')} AND w.num <= %(newest)s AND {conditions}"
            values["query"] = tsquery(search.terms)
            order = "w.num DESC"
        elif search.query.literal:  # The full-text search has only words: compare the texts.
            source = _TEXTS
            texts = "content(e.body)"
            if self._request.in_tools:
                texts += " || CASE WHEN w.tools IS NOT NULL THEN e.body ELSE '' END"
            conditions = f"strpos({texts}, %(literal)s) > 0 AND {conditions}"
            values["literal"] = search.query.literal
        if search.ranks_all:
            order = "1 DESC, m.time_ms DESC, w.num DESC"
            limit = self._request.limit + len(search.page.returned_nums) + 1
        rows = self._tables.query_once(
            f"SELECT {fit}, m.time_ms, m.num FROM {source} WHERE {conditions} "
            f"ORDER BY {order} LIMIT {limit}",
            values,
        )
        if search.ranks_all:
            return rows, len(rows) == limit
        return rows[: ranking.WINDOW], len(rows) > ranking.WINDOW

    def _matches(self, name: str) -> str:
        """Return the condition that a row `w` of `words` matches the `tsquery` of a name."""
        if not self._request.in_tools:
            return f"w.vector @@ %({name})s::text::tsquery"
        return f"(w.vector @@ %({name})s::text::tsquery OR w.tools @@ %({name})s::text::tsquery)"

    def _fit(self, search: Search, values: dict[str, Any]) -> str:
        """Return the bm25 of a message as SQL. The values in it are added to `values`."""
        phrases = search.query.phrases
        if not phrases:
            return "1.0::float8"
        corpus = self._message_corpus(phrases)
        values["sums"] = _SUMS
        length = "m.length" if self._visibility.sees_all else "m.words"
        average_length = _float(corpus.average_length)
        relative_length = f"{_float(1 - B)} + {_float(B)} * {length} / {average_length}"
        norm = f"{_float(K1)} * ({relative_length})"
        terms = []
        for number, (phrase, idf) in enumerate(zip(phrases, corpus.idf, strict=True)):
            name = f"phrase_{number}"
            values[name] = tsquery([phrase])
            count = f"{self._occurrences(phrase, name)}::float8"
            if self._visibility.sees_all:
                terms.append(f"{_float(idf)} * (({count} * {_float(K1 + 1)}) / ({count} + {norm}))")
            else:
                terms.append(f"{_float(idf)} * {count} * {_float(K1 + 1)} / ({count} + {norm})")
        return " + ".join(terms)

    def _occurrences(self, phrase: Phrase, name: str) -> str:
        """Return the number of times that a phrase is in a message as SQL."""
        vector = "coalesce(w.tools, w.vector)" if self._request.in_tools else "w.vector"
        query = f"%({name})s::text::tsquery"
        if len(phrase.words) > 1:
            return f"({vector} @@ {query})::integer"
        rank = f"ts_rank('{{1,1,1,1}}', {vector}, {query})::float8 * {_LIMIT}"
        if phrase.prefix:  # Several words can begin with it, so the sum gives no count.
            return f"({rank})"
        return f"width_bucket({rank} + 1e-6::float8, %(sums)s::float8[])"

    def _message_corpus(self, phrases: Sequence[Phrase]) -> Corpus:
        """Return the statistics of the messages that the asker may read."""
        texts, words = self._message_sums
        counts = [self._count_messages_with(phrase, texts) for phrase in phrases]
        average_length = words / texts if texts else None
        return corpus_of(texts, average_length, counts, phrases, ())

    @cached_property
    def _message_sums(self) -> tuple[int, int]:
        """The number of messages that the asker may read, and of the words in them."""
        visibility = self._visibility
        if visibility.sees_all:
            ((texts, words),) = self._tables.query("SELECT texts, text_words FROM indexed")
            return texts, words
        partial = visibility.values | {"partial": list(visibility.visible_from_ms)}
        ((texts, words),) = self._tables.query_once(
            "SELECT coalesce(sum(c.entries), 0)::bigint, coalesce(sum(c.words), 0)::bigint "
            f"FROM capsules AS c WHERE gone = 0 AND {visibility.conversation_condition} "
            "AND c.num <> ALL(%(partial)s::bigint[])",
            partial,
        )
        if visibility.visible_from_ms:
            ((part_texts, part_words),) = self._tables.query_once(
                "SELECT count(*), coalesce(sum(m.words), 0)::bigint FROM messages AS m "
                f"WHERE m.capsule = ANY(%(partial)s::bigint[]) AND {visibility.message_condition}",
                partial,
            )
            texts += part_texts
            words += part_words
        return texts, words

    def _count_messages_with(self, phrase: Phrase, texts: int) -> int:
        """Return the number of messages with a phrase, among `texts` messages.

        If they are many, only the newest are counted. Cost: reading up to `MAX_COUNTED` messages.
        """
        if phrase not in self._counts:
            visible = self._visibility.message_condition
            values = self._visibility.values | {"phrase": tsquery([phrase])}
            ((count, oldest_num),) = self._tables.query_once(
                "SELECT count(*), min(num) FROM (SELECT w.num FROM words AS w "
                f"JOIN messages AS m ON m.num = w.num WHERE {self._matches('phrase')} "
                f"AND {visible} ORDER BY w.num DESC LIMIT {MAX_COUNTED}) AS newest",
                values,
            )
            if count == MAX_COUNTED:
                ((newest_texts,),) = self._tables.query_once(
                    f"SELECT count(*) FROM messages AS m WHERE m.num >= %(oldest)s AND {visible}",
                    self._visibility.values | {"oldest": oldest_num},
                )
                count = max(count, count * texts // newest_texts)
            self._counts[phrase] = count
        return self._counts[phrase]

    # -- Titles ------------------------------------------------------------------------------------

    def titles(self, search: Search) -> tuple[list[Match], bool]:
        if self._scope_nums == []:
            return [], False
        visibility = self._visibility
        conditions = ["c.num <= %(newest)s", "c.gone = 0", visibility.conversation_condition]
        values = visibility.values | {"newest": search.page.newest_title_num}
        self._narrow(conditions, values, "c.updated_ms", "c.num")
        if self._request.mode:
            conditions.append("c.mode = %(mode)s")
            values["mode"] = self._request.mode
        source = "capsules AS c"
        if search.terms:
            source = "names AS n JOIN capsules AS c ON c.num = n.num"
            conditions.append("n.vector @@ %(query)s::text::tsquery")
            values["query"] = tsquery(search.terms)
        else:
            conditions.append("strpos(c.title, %(literal)s) > 0")
            values["literal"] = search.query.literal
        limit = None if search.ranks_all else ranking.WINDOW + 1
        rows = self._tables.query_once(
            f"SELECT c.updated_ms, c.num, c.title, c.tags FROM {source} "
            f"WHERE {' AND '.join(conditions)} ORDER BY c.num DESC LIMIT %(limit)s",
            values | {"limit": limit},
        )
        matches = self._ranked_titles(search, rows)
        if search.ranks_all:
            return matches, False
        return matches[: ranking.WINDOW], len(matches) > ranking.WINDOW

    def _ranked_titles(self, search: Search, rows: list[tuple[Any, ...]]) -> list[Match]:
        """Return titles (time, number, title and tags) with their bm25."""
        if not search.terms or not rows:
            return [(1.0, updated_ms, num) for updated_ms, num, *_ in rows]
        corpus = self._title_corpus(search.query.phrases)
        matches = []
        for updated_ms, num, title, tags in rows:
            if self._visibility.sees_all:
                tag_lines = "\n".join(orjson.loads(tags))
                length = count_words(title) + count_words(tag_lines)
                fit = corpus.fit_as_fts5(length, title, tag_lines)
            else:
                fit = corpus.fit(len(title + tags), title, tags)
            matches.append((fit, updated_ms, num))
        return matches

    def _title_corpus(self, phrases: Sequence[Phrase]) -> Corpus:
        """Return the statistics of the titles with tags that the asker may read."""
        visible = f"c.gone = 0 AND {self._visibility.conversation_condition}"
        if self._visibility.sees_all:
            statement = "SELECT titles, title_words FROM indexed"
        else:
            statement = (
                "SELECT count(*), coalesce(sum(length(c.title || c.tags)), 0)::bigint "
                f"FROM capsules AS c WHERE {visible}"
            )
        ((titles, length),) = self._tables.query_once(statement, self._visibility.values)
        counts = []
        for phrase in phrases:
            ((count,),) = self._tables.query_once(
                "SELECT count(*) FROM names AS n JOIN capsules AS c ON c.num = n.num "
                f"WHERE n.vector @@ %(phrase)s::text::tsquery AND {visible}",
                self._visibility.values | {"phrase": tsquery([phrase])},
            )
            counts.append(count)
        average_length = length / titles if titles else None
        return corpus_of(titles, average_length, counts, phrases, TITLE_WEIGHTS)

    # -- Hits --------------------------------------------------------------------------------------

    def message_rows(self, nums: Sequence[int]) -> dict[int, MessageRow]:
        rows = {}
        for num, body, active, *shown in self._tables.query(
            "SELECT m.num, e.body, m.active, c.id, c.title, m.id, m.at, m.role, m.sender, m.time_ms "
            f"FROM {_TEXTS} WHERE m.num = ANY(%(nums)s::bigint[])",
            {"nums": list(nums)},
        ):
            entry = layout.entries_in([body], "the message")[0]
            content = entry["content"]
            values: list[Any] = [*shown, content, tools_of(entry), active]
            rows[num] = MessageRow._make(values)
        return rows

    def title_row(self, num: int) -> TitleRow:
        ((id, title, updated_at, tags),) = self._tables.query(
            "SELECT id, title, updated_at, tags FROM capsules WHERE num = %(num)s", {"num": num}
        )
        return TitleRow(id, title, updated_at, orjson.loads(tags))


#: The messages with their texts.
_TEXTS = f"""messages AS m JOIN words AS w ON w.num = m.num JOIN capsules AS c ON c.num = m.capsule
    JOIN documents AS d ON d.kind = '{CONVERSATIONS}' AND d.id = c.id
    JOIN entries AS e ON e.doc = d.num AND e.place = m.at"""


def _float(number: float) -> str:
    """Return a number as SQL that has all of its digits."""
    return f"'{number!r}'::float8"
