"""Define the queries about all conversations: their interface, arguments and results.

`Queries` is the interface, which each engine implements. `Filter`, `ListRequest` and
`SearchRequest` are the arguments. The other classes are the results: lists, hits and counts.

What must stay true: arguments and results are plain data, so an engine can answer in its own query
language. Nothing here belongs to one kind of engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from functools import cache
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, TypeVar

from capsule.engines.changes import Changes
from capsule.format.documents.head import WRITTEN_HERE, json_name
from capsule.format.references import parse_time
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.read_marks import (
        MessagePosition,
        Participation,
        UnreadFilter,
        UnreadSummary,
    )
    from capsule.format.documents.head import Head
    from capsule.format.filters import Filter as Where

T = TypeVar("T")
Order = Literal["updated", "created", "title"]
#: The fields by which `Engine.heads_with` finds conversations: the name of the channel that it is,
#: and the conversation that it was forked from.
HeadField = Literal["channel", "forkedFrom"]
#: Called with the number of bytes read so far and their total, if there is much to read.
Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Filter:
    """The conditions that a conversation in a list meets, all of them. None: no condition.

    Attributes:
        tags: It has all these tags.
        title: Its title contains this text, in upper or lower case.
        mode, type: Its mode and its type.
        archived: Whether it is archived.
        pinned, locked: Whether it is pinned or locked.
        since: It changed at this time or later: a text such as `2025-01-31` or `24h`. Empty: any
            time.
        summaries_of: It is a summary of this conversation (full id), which may have been deleted.
        agent: This agent takes part, or took part until it left. `Store.list` accepts its name
            too, otherwise it is the id.
        project: It belongs to the project in this folder. Its own folder (`Head.folder`) is this
            one or below it, or an agent of the project takes part or took part. The path has no
            links in it, and can be of another machine.
        source: The program it was imported from, by the name of the format. `here`: it was written
            here.
        ids: It is one of these (full ids).
        members: The ids of the agents of `project`. `Store.list` sets them.
    """

    tags: tuple[str, ...] = ()
    title: str = ""
    mode: str | None = None
    type: str | None = None
    archived: bool | None = False
    pinned: bool | None = None
    locked: bool | None = None
    since: str = ""
    summaries_of: str | None = None
    agent: str | None = None
    project: str | None = None
    source: str | None = None
    ids: frozenset[str] | None = field(default=None, repr=False)
    members: frozenset[str] = field(default=frozenset(), repr=False)

    def of(self, heads: Iterable[Head]) -> list[Head]:
        """Return the heads that meet all conditions, in their order.

        A damaged file meets no condition, except that it is not archived.
        """
        # A list can have 100,000 heads, and few conditions are given: check only these.
        for condition in self._conditions():
            heads = filter(condition, heads)
        return list(heads)

    def _conditions(self) -> Iterator[Callable[[Head], object]]:
        """Yield a predicate for each condition that is given."""
        if self.archived is not None:
            yield lambda head: head.archived == self.archived
        only_archived = Filter(archived=None)
        if self.archived or replace(self, archived=None, members=frozenset()) != only_archived:
            yield lambda head: not head.damaged
        if self.ids is not None:
            ids = self.ids
            yield lambda head: head.id in ids
        if self.mode is not None:
            yield lambda head: head.mode == self.mode
        if self.type is not None:
            yield lambda head: head.type == self.type
        if self.pinned is not None:
            yield lambda head: head.pinned == self.pinned
        if self.locked is not None:
            yield lambda head: (head.lock is not None) == self.locked
        if self.summaries_of:
            yield self._is_wanted_summary
        if self.source is not None:
            yield lambda head: (head.source or WRITTEN_HERE) == self.source
        if self.tags:
            tags = frozenset(self.tags)
            yield lambda head: tags.issubset(head.tags)
        if self.agent is not None:
            yield lambda head: any(member.id == self.agent for member in head.participants)
        if self.project is not None:
            yield self._project_condition(self.project)
        if self.title:
            title = self.title.casefold()
            yield lambda head: title in head.title.casefold()
        if self.since:
            since = parse_time(self.since)
            yield lambda head: sortable(head.updated_at) >= since

    def _is_wanted_summary(self, head: Head) -> bool:
        return head.is_summary and head.source_conversation_id == self.summaries_of

    def _project_condition(self, project: str) -> Callable[[Head], bool]:
        # Many conversations have the same folder.
        is_in_project = cache(lambda folder: is_within(folder, project))

        def condition(head: Head) -> bool:
            if is_in_project(head.folder):
                return True
            return any(member.id in self.members for member in head.participants)

        return condition


def is_within(folder: str, ancestor: str) -> bool:
    """Return whether a folder is another one, or below it."""
    ancestor = ancestor.rstrip("/\\")
    if not folder:
        return False
    return folder == ancestor or folder.startswith((f"{ancestor}/", f"{ancestor}\\"))


@dataclass(frozen=True, slots=True)
class ListRequest:
    """The request of a list of conversations, or of a page of it.

    Attributes:
        filter: The conditions. None: all conversations.
        order: The order. Pinned conversations come first, damaged files last. `latest`: only the
            valid ones, by their last change alone. None: no order and no pages, and the result has
            no numbers of messages.
        forks_of: Only the forks of this conversation, also damaged ones.
        limit: The largest number of conversations in the page. None: no limit.
        cursor: The cursor from the page before. Empty: the first page.
    """

    filter: Filter | None = None
    order: Order | Literal["latest"] | None = None
    forks_of: str | None = None
    limit: int | None = None
    cursor: str = ""

    @property
    def cursor_key(self) -> str:
        """The request as text. A cursor is valid only for a request with the same text."""
        return f"list {self.filter} {self.order}"

    def of(self, heads: Iterable[Head]) -> list[Head]:
        """Return the heads that meet the filter, in their order."""
        return list(heads) if self.filter is None else self.filter.of(heads)


def heads_with(queries: Queries, field: HeadField, value: str) -> list[Head]:
    """Return the heads of the conversations with a value in a field, for `Engine.heads_with`.

    `queries` are those of the owner. Cost: bringing the index up to date.
    """
    request = ListRequest(forks_of=value if field == "forkedFrom" else None)
    heads = queries.conversations(request).heads
    if field == "channel":
        heads = [head for head in heads if head.channel is not None and head.channel.name == value]
    return sorted(heads, key=attrgetter("id"))


def key_of(order: Order) -> Callable[[Head], tuple[Any, ...]]:
    """Return the sort key of an order. No two heads have the same key.

    By title the smallest key comes first, in the other orders the greatest.
    """
    if order == "title":
        return lambda head: (bool(head.damaged), not head.pinned, head.title.casefold(), head.id)
    time = attrgetter("created_at" if order == "created" else "updated_at")
    return lambda head: (not head.damaged, head.pinned, sortable(time(head)), head.id)


@dataclass(frozen=True, slots=True)
class SearchRequest:
    """The request of a search. `Store.search` describes the attributes that are not here.

    Attributes:
        now_ms: The time that ages are counted from, in milliseconds since 1970. The cursor of a
            later page has its own.
    """

    query: str
    roles: tuple[str, ...] = ()
    senders: tuple[str, ...] = ()
    ids: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    mode: str | None = None
    since_ms: int | None = None
    until_ms: int | None = None
    title_only: bool = False
    branch: str = "all"
    in_tools: bool = False
    profile: str = "balanced"
    where: Where | None = None
    limit: int = 20
    cursor: str | None = None
    now_ms: int = field(default=0, compare=False)

    @property
    def cursor_key(self) -> str:
        """The request as text. A cursor is valid only for a request with the same text.

        It has no times, as `2h ago` is another time for the next page.
        """
        parts = (
            self.query,
            self.roles,
            self.senders,
            self.ids,
            self.tags,
            self.mode,
            self.title_only,
            self.branch,
            self.in_tools,
            self.profile,
            self.where,
        )
        return repr(parts)


class Queries(Protocol):
    """The queries of the owner or of one agent about the conversations of an engine.

    A result has no conversation that the agent may not read, and no message before the time from
    which on it may read a conversation. Each result has everything that was acknowledged before the
    query. With `refresh` False, it has what the index had after the last query.
    """

    def conversations(self, request: ListRequest, progress: Progress | None = None) -> Listed:
        """Return a page of conversations.

        Raises:
            InvalidInput: The cursor belongs to another list, or the limit is less than one.
            StorageFailed, StoreBusy: The files can't be read.
        """

    def facets(
        self, filter: Filter, folders: Mapping[str, str], progress: Progress | None = None
    ) -> Facets:
        """Count the conversations that meet a filter, by tag, type, agent and so on.

        Args:
            filter: The filter.
            folders: The folders of the agents' projects, by the agents' ids.
            progress: As in `conversations`.
        """

    def search(self, request: SearchRequest, progress: Progress | None = None) -> Found:
        """Return the hits of a search, the best first. Hidden messages change no score.

        Raises InvalidInput.
        """

    def messages(self, where: object, conversation: str | None = None) -> list[MessagePosition]:
        """Return the messages that match a filter, in the order of each conversation.

        Args:
            where: The filter, as JSON.
            conversation: The conversation. None: all valid ones.

        Raises InvalidInput. Cost: half a microsecond for each value that is compared, and a look-up
        for each message.
        """

    def values(self, path: str, conversation: str) -> list[FieldValue]:
        """Return the numbers and texts that messages have at a path, the last used first."""

    def stats(self, progress: Progress | None = None) -> Stats:
        """Count what is in the store. Cost: a pass over the messages."""

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> Changes:
        """Return the changes since a cursor, oldest first, and the cursor after them.

        For a deleted conversation, the version in the trash decides whether the agent could read
        it. Removed messages of a conversation that the agent reads in part are not named.

        Args:
            since: A cursor of this agent or of the owner. None: return no changes, but the current
                cursor.
            limit: The largest number of changes.
            refresh: Whether to look for new changes first.

        Raises:
            InvalidInput: `since` is not a cursor.
        """

    def advance(self, cursor: str, messages: int = 0) -> str:
        """Return a cursor that skips messages of the next change.

        Args:
            cursor: A cursor of changes.
            messages: The number of messages of the change after the cursor that are skipped.

        Raises:
            InvalidInput: `cursor` is not a cursor.
        """

    def participations(
        self, agent: str, cached: Mapping[str, Participation] = {}, *, refresh: bool = True
    ) -> list[Participation]:
        """Return the valid conversations that an agent takes part in, the latest first.

        Args:
            agent: The agent.
            cached: Earlier results, by id. A conversation that did not change since is taken from
                there and not read.
            refresh: Whether to bring the index up to date first.
        """

    def unread_positions(
        self, unread_filter: UnreadFilter, conversation: str | None = None, *, refresh: bool = True
    ) -> list[MessagePosition]:
        """Return the unread messages of a conversation, or of all (None), the latest first.

        Cost: a look-up for each.
        """

    def summarize_unread(
        self, conversation: str, unread_filter: UnreadFilter, *, refresh: bool = True
    ) -> UnreadSummary:
        """Return the number, senders and last of the unread messages. A missing conversation has 0.

        Cost: a tenth of a microsecond for each message behind the read marks, more if the filter
        has `mentioning` or `part`.
        """

    def ids_at(
        self, conversation: str, positions: Iterable[int], *, refresh: bool = True
    ) -> dict[int, tuple[str, str]]:
        """Return the message id and the ids digest at each of these positions.

        See `read_marks.first_unread`.
        """

    def find(self, message: str, conversation: str | None = None) -> tuple[str, int] | None:
        """Return the conversation and the position of a message, or None.

        Args:
            message: The id of the message.
            conversation: Search only this one. None: all. If several have the message, the result
                is the one that was indexed last.

        Cost: reading back to it.
        """

    def in_one_transaction(self, run: Callable[[], T]) -> T:
        """Run several queries, with `refresh` False, on one state of the documents.

        Args:
            run: Makes the queries and returns a result. It may run twice, and queries of other
                threads wait for it.
        """

    def last_valid_version(self, conversation: str) -> tuple[dict[str, Any], frozenset[str]] | None:
        """Return the last valid version of a conversation, as far as the index has it.

        The context (unless it was empty) and those fields of the head that no list has are missing.

        Returns: the document, and the ids of the messages that had more fields. None: there was no
        valid version, or an agent asks. Cost: reading the messages.
        """

    def refresh(
        self,
        ids: Iterable[str] | None = None,
        progress: Progress | None = None,
        *,
        anew: bool = False,
    ) -> None:
        """Bring the index up to date, so that later queries need not.

        Args:
            ids: The conversations. None: all.
            progress: Called with the bytes read and their total.
            anew: Whether to delete the index first and build it again from the documents.

        Raises:
            StoreBusy: Another process keeps the index from being written.
            Refused, StorageFailed: The system did not let the documents be read.
        """


#: A part of a text: the index of its first character, and the one after its last.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a text.

    Attributes:
        text: One line.
        marks: The parts of it that match the query.
    """

    text: str
    marks: tuple[Span, ...] = ()

    def as_json(self) -> dict[str, object]:
        """Return the snippet as `--json` prints it."""
        return {"text": self.text, "marks": [list(mark) for mark in self.marks]}


@dataclass(frozen=True, slots=True)
class Hit:
    """One message, or one conversation by its title or tags, that a search found.

    Attributes:
        id: The conversation.
        title: Its title.
        message: The message's id. None: the title or a tag was found.
        at: The message's position in the history, from 0.
        role, sender: The message's role, and the agent that wrote it (its field `from`).
        time: The time of the message, as the format writes times. Empty: unknown. For a title: the
            time of the conversation's last change.
        where: The part that was found: `content`, `tools` (tool calls and reasoning) or `title`
            (tags too).
        snippet: The piece of text that was found.
        active: Whether the message is on the active branch.
        score: How well it matches, by the ranking profile. Compare scores within one search only.
    """

    id: str
    title: str
    message: str | None
    at: int | None
    role: str | None
    sender: str | None
    time: str
    where: str
    snippet: Snippet
    score: float
    active: bool = True

    def as_json(self) -> dict[str, Any]:
        """Return the hit as `--json` prints it."""
        values: dict[str, Any] = {}
        for attribute in fields(self):
            key = "from" if attribute.name == "sender" else attribute.name
            values[key] = getattr(self, attribute.name)
        values["snippet"] = self.snippet.as_json()
        return values


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of one search, or a page of them, best first.

    Attributes:
        cursor: The cursor of the next page of the same search. None: this is the last page.
        total: The number of hits on all pages. It can have hits of damaged conversations, which are
            on no page. None: too many to count.
        having, words: If no message has all words of the query: how many of them the hits have, and
            how many the query has. Both 0: the hits have all words.
    """

    hits: list[Hit]
    cursor: str | None = None
    total: int | None = None
    having: int = 0
    words: int = 0

    def as_json(self) -> dict[str, Any]:
        """Return the page as `--json` prints it."""
        hits = [hit.as_json() for hit in self.hits]
        page: dict[str, Any] = {"hits": hits, "cursor": self.cursor, "total": self.total}
        if self.having:
            page["having"] = self.having
            page["words"] = self.words
        return page


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of conversations.

    Attributes:
        heads: The conversations.
        messages: The number of messages of each, in all its branches, by id.
        models: The model that wrote in each last, by id, if one of its last 50 messages names it.
        total: The number of conversations on all pages.
    """

    heads: list[Head]
    messages: dict[str, int]
    models: dict[str, str]
    total: int
    _cursor: Callable[[int], str | None] = field(repr=False)

    def cursor(self, shown: int | None = None) -> str | None:
        """Return the cursor of the next page. None: there are no more conversations.

        Args:
            shown: The number of conversations of this page that were used. The next page begins
                after them. None: all.
        """
        return self._cursor(len(self.heads) if shown is None else shown)


@dataclass(frozen=True, slots=True)
class Facets:
    """The numbers of conversations by what they can be filtered by, the most frequent first.

    A conversation counts once for each of its tags, agents and projects. Damaged files are not
    counted.

    Attributes:
        conversations: The number of conversations.
        tags, types, modes: By tag, by type, by mode.
        agents: By the id of an agent that takes part, or took part.
        projects: By the folder of a project, with the folders below it. See `Filter.project`.
        sources: By the program that they were imported from. `here`: written here.
    """

    conversations: int
    tags: dict[str, int]
    types: dict[str, int]
    modes: dict[str, int]
    agents: dict[str, int]
    projects: dict[str, int]
    sources: dict[str, int]

    @classmethod
    def of(cls, heads: Iterable[Head], folders: Mapping[str, str]) -> Facets:
        """Count conversations.

        Args:
            heads: The conversations.
            folders: The folders of the agents' projects, by the agents' ids.
        """
        valid = [head for head in heads if not head.damaged]
        agents = Counter(member.id for head in valid for member in head.participants)
        tags = Counter(chain.from_iterable(set(head.tags) for head in valid))
        return cls(
            conversations=len(valid),
            tags=_most_frequent_first(tags),
            types=_most_frequent_first(Counter(map(attrgetter("type"), valid))),
            modes=_most_frequent_first(Counter(map(attrgetter("mode"), valid))),
            agents=_most_frequent_first(agents),
            projects=_most_frequent_first(_count_projects(valid, folders)),
            sources=_most_frequent_first(Counter(head.source or WRITTEN_HERE for head in valid)),
        )


def _most_frequent_first(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _count_projects(heads: list[Head], folders: Mapping[str, str]) -> Counter[str]:
    """Count conversations by folder, each also for those folders above that are a project's.

    Conversations with the same folders are counted together, as most have the same.
    """
    counts_by_folders = Counter[frozenset[str]]()
    without_agents = Counter(head.folder for head in heads if not head.participants)
    for folder, count in without_agents.items():
        counts_by_folders[frozenset((folder,))] = count
    for head in heads:
        if head.participants:
            agent_folders = (folders.get(member.id, "") for member in head.participants)
            counts_by_folders[frozenset((head.folder, *agent_folders))] += 1
    projects: set[str] = set()
    for conversation_folders in counts_by_folders:
        projects.update(filter(None, conversation_folders))
    counts = Counter[str]()
    for conversation_folders, count in counts_by_folders.items():
        counted: set[str] = set()
        for folder in conversation_folders:
            counted |= projects.intersection(_with_ancestors(folder))
        for project in counted:
            counts[project] += count
    return counts


def _with_ancestors(folder: str) -> Iterator[str]:
    """Yield a folder and all folders above it."""
    yield folder
    for index, character in enumerate(folder):
        if character in "/\\":
            yield folder[:index] or folder[:1]


@dataclass(slots=True)
class Tally:
    """Numbers of messages, of the words in them, and of the tokens they take (an estimate).

    Tokens include tool calls and reasoning.
    """

    messages: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, messages: int, words: int, tokens: int) -> None:
        """Add numbers."""
        self.messages += messages
        self.words += words
        self.tokens += tokens


@dataclass(frozen=True, slots=True)
class LargeConversation:
    """One of the largest conversations."""

    id: str
    title: str
    messages: int
    words: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """The contents of a store, counted.

    Attributes:
        conversations: The number of conversations, with the damaged ones.
        damaged: The number of them whose file can't be read. The numbers below leave these out.
        archived: The number of archived conversations.
        messages, words: The numbers on all branches. A character of a script without spaces counts
            as a word.
        tokens: The tokens that the messages take in a model, estimated as `capsule context` does
            (docs/context.md).
        bytes: The size of the files. Of a file that an agent reads in part: the size of the texts
            that it reads.
        by_role: By role, the most frequent first.
        by_month: By month (UTC, like 2025-01), from the first month with a message to the last. `no
            time` comes before them.
        by_day: By day (UTC, like 2025-01-31), in the same way.
        by_sender: By the agent that wrote them, the most frequent first. Messages without a sender
            are left out.
        by_source: By the program that the conversation was imported from (`here`: none), the most
            frequent first.
        largest: The conversations with the most words, ten at most.
    """

    conversations: int
    damaged: int
    archived: int
    messages: int
    words: int
    tokens: int
    bytes: int
    by_role: dict[str, Tally]
    by_month: dict[str, Tally]
    by_day: dict[str, Tally]
    by_sender: dict[str, Tally]
    by_source: dict[str, Tally]
    largest: list[LargeConversation]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {json_name(name): value for name, value in asdict(self).items()}


class FieldValue(NamedTuple):
    """A value that messages have, their number, and the time of the last one."""

    value: str | float
    messages: int
    last: str
