"""Search: rank the matches that an engine finds, and make the hits of one page.

An engine reads its index through `SearchIndex`: the matches to rank, and the rows of the hits. If
no message has all words of the query, `search` tries again with fewer words.

Ranking costs a microsecond or two for a match, and for an agent about thirty. So only the newest
`ranking.WINDOW` matches are ranked, in the order of their row numbers. When they are all returned,
the next page ranks the next ones. Only the owner's profile `exact` ranks all.

What must stay true: a hit is a message or a conversation that the index has within one transaction.
It meets all filters, and no match that does not meet them takes the place of one that does. Only
damaged conversations are dropped afterwards: for the owner they count in `total`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from capsule import timestamps
from capsule.engines.queries import Found, Hit, SearchRequest, Snippet
from capsule.engines.questions.page_cursor import PageCursor
from capsule.engines.questions.query import ParsedQuery, Term, parse
from capsule.engines.questions.ranking import (
    Match,
    RankingProfile,
    ScoredMatch,
    profile_of,
    scored,
)
from capsule.engines.questions.snippets import snippet
from capsule.errors import InvalidInput

BRANCHES = ("active", "all")
#: Significant digits of a score.
_DIGITS = 6


def check(request: SearchRequest) -> None:
    """Raise InvalidInput unless a search can be made."""
    if request.branch not in BRANCHES:
        raise InvalidInput(
            f"{request.branch!r} is not a branch to search; there are: {', '.join(BRANCHES)}"
        )
    if request.limit < 1:
        raise InvalidInput(f"limit: at least one hit, not {request.limit}")
    profile_of(request.profile)


@dataclass(frozen=True, slots=True)
class Search:
    """One search, or a further page of it.

    Attributes:
        request: The request.
        query: Its parsed query.
        page: Where the page begins. `search` changes it to the beginning of the next page.
        ranks_all: Whether all matches are ranked, and not only the newest ones.
    """

    request: SearchRequest
    query: ParsedQuery
    page: PageCursor
    ranks_all: bool

    @property
    def terms(self) -> Sequence[Term]:
        """The expression that a match meets. Empty: the query has no words."""
        if self.page.required_parts:
            return self.query.terms_of_at_least(self.page.required_parts)
        return self.query.terms

    @property
    def includes_titles(self) -> bool:
        """Whether titles are searched: not if the request is about messages alone."""
        request = self.request
        if request.roles or request.senders or request.where is not None:
            return False
        return bool(request.query.strip()) or request.title_only


class MessageRow(NamedTuple):
    """What a hit shows of a message. `tools` is the text of its tool calls and reasoning."""

    id: str
    title: str
    message: str
    position: int
    role: str
    sender: str | None
    time_ms: int
    content: str
    tools: str | None
    active: bool


class TitleRow(NamedTuple):
    """What a hit shows of a conversation."""

    id: str
    title: str
    updated_at: str
    tags: Sequence[str]


class SearchIndex(Protocol):
    """The index of an engine within one transaction, for one request and one asker."""

    @property
    def can_rank_all(self) -> bool:
        """Whether it can rank all matches of a query with words. For an agent this would cost
        reading all their texts.
        """

    def newest_nums(self) -> tuple[int, int]:
        """Return the greatest row numbers of a message and of a conversation. 0: there is none."""

    def messages(self, search: Search) -> tuple[list[Match], bool]:
        """Return the messages to rank, and whether there are further matches."""

    def titles(self, search: Search) -> tuple[list[Match], bool]:
        """Return the conversations to rank by title and tags, and whether there are older ones."""

    def message_rows(self, nums: Sequence[int]) -> Mapping[int, MessageRow]:
        """Return what hits show of messages, by row number, of valid conversations only."""

    def title_row(self, num: int) -> TitleRow:
        """Return what a hit shows of a conversation."""


def search(index: SearchIndex, request: SearchRequest, generation: str) -> Found:
    """Return the hits of one search, or the next page of them.

    Args:
        index: The index.
        request: The request, whose cursor is not sealed.
        generation: The generation of the index.

    Raises:
        InvalidInput: A field of the request can't be accepted.
    """
    profile = profile_of(request.profile)
    query = parse(request.query)
    if any("\ud800" <= character <= "\udfff" for character in query.literal):
        return Found([], None, 0)  # No file can have half a surrogate pair.
    if request.cursor is not None:
        page = PageCursor.decode(request.cursor, generation, request.cursor_key)
    else:
        newest_num, newest_title_num = index.newest_nums()
        page = PageCursor(request.now_ms, newest_num, newest_title_num)
    ranks_all = profile.ranks_all and index.can_rank_all and bool(query.terms)
    found = _page(index, Search(request, query, page, ranks_all), profile, generation)
    if found.hits or request.cursor is not None:
        return found
    for required_parts in query.relaxed_part_counts():
        page.required_parts = required_parts
        found = _page(index, Search(request, query, page, ranks_all), profile, generation)
        if found.hits:
            break
    return found


def _page(index: SearchIndex, search: Search, profile: RankingProfile, generation: str) -> Found:
    """Return one page, and change `search.page` to the beginning of the next one."""
    request = search.request
    page = search.page
    messages: list[Match] = []
    titles: list[Match] = []
    # If all matches are ranked: whether there are more, which fit less well.
    has_older_messages = False
    has_older_titles = False
    if not request.title_only:
        messages, has_older_messages = index.messages(search)
    if search.includes_titles:
        titles, has_older_titles = index.titles(search)
    ranked = sorted(scored(messages, titles, profile, page), reverse=True)
    hits, used_count = _hits(index, search, ranked)
    has_unused = used_count < len(ranked)
    if not has_unused and has_older_messages and not search.ranks_all:
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
        word_count = len(search.query.parts)
        return Found(hits, cursor, total, having=page.required_parts, words=word_count)
    return Found(hits, cursor, total)


def _hits(index: SearchIndex, search: Search, ranked: list[ScoredMatch]) -> tuple[list[Hit], int]:
    """Return the hits of the page and the number of matches that were used for them.

    A match whose conversation is damaged is used too, but it gives no hit.
    """
    limit = search.request.limit
    page = search.page
    hits: list[Hit] = []
    used_count = 0
    rows: Mapping[int, MessageRow] = {}
    for position, (score, _, num, is_title) in enumerate(ranked):
        if len(hits) == limit:
            break
        if position % limit == 0:
            following = ranked[position : position + limit]
            rows = index.message_rows([match[2] for match in following if not match[3]])
        used_count += 1
        if is_title:
            page.returned_title_nums.add(num)
            hits.append(_title_hit(index.title_row(num), score, search.query))
            continue
        page.returned_nums.add(num)
        row = rows.get(num)
        if row is not None:
            hits.append(_message_hit(row, score, search))
    return hits, used_count


def _message_hit(row: MessageRow, score: float, search: Search) -> Hit:
    matched_part = "content"
    excerpt = _snippet(row.content, search.query)
    if row.tools and search.request.in_tools and not excerpt.marks:
        in_tools = _snippet(row.tools, search.query)
        if in_tools.marks:
            matched_part = "tools"
            excerpt = in_tools
    return Hit(
        id=row.id,
        title=row.title,
        message=row.message,
        at=row.position,
        role=row.role,
        sender=row.sender,
        time=timestamps.blank_if_unknown(timestamps.from_ms(row.time_ms)),
        where=matched_part,
        snippet=excerpt,
        score=_rounded(score),
        active=bool(row.active),
    )


def _title_hit(row: TitleRow, score: float, query: ParsedQuery) -> Hit:
    excerpt = _snippet(row.title, query)
    if not excerpt.marks:
        in_tags = _snippet(" ".join(f"#{tag}" for tag in row.tags), query)
        if in_tags.marks:
            excerpt = in_tags
    return Hit(
        id=row.id,
        title=row.title,
        message=None,
        at=None,
        role=None,
        sender=None,
        time=timestamps.sortable(row.updated_at) or row.updated_at,
        where="title",
        snippet=excerpt,
        score=_rounded(score),
    )


def _snippet(text: str, query: ParsedQuery) -> Snippet:
    return snippet(text, query.phrases, query.literal)


def _rounded(score: float) -> float:
    return float(f"{score:.{_DIGITS}g}")
