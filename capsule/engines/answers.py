"""The answers of an engine to questions: lists, hits and counts.

What must stay true: nothing here belongs to one kind of engine.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.format.documents.head import HERE, camel

if TYPE_CHECKING:
    from capsule.format.documents.head import Head

#: Where something stands in a text: its first character, and the one behind its last.
Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Snippet:
    """A piece of a text.

    Attributes:
        text: One line.
        marks: Where what was looked for stands in it: first character, and the one behind the last.
    """

    text: str
    marks: tuple[Span, ...] = ()

    def as_json(self) -> dict[str, object]:
        """What `--json` prints."""
        return {"text": self.text, "marks": [list(mark) for mark in self.marks]}


@dataclass(frozen=True, slots=True)
class Hit:
    """One message, or one conversation by its title or tags, that a search found.

    Attributes:
        id: The conversation.
        title: Its title.
        message: The message's id; None: the title or a tag was found.
        at: The message's place in the history, from 0.
        role, sender: The message's role, and the agent that wrote it (its field `from`).
        time: When the message was written, as the format writes times; empty: that is not known. For a title: when the
            conversation last changed.
        where: What was found: `content`, `tools` (tool calls and reasoning) or `title` (tags too).
        snippet: The piece of text that was found.
        active: Whether the message is on the active branch.
        score: How well it fits, by the ranking profile. Compare scores within one search only.
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
        """What `--json` prints."""
        names = [field.name for field in fields(self)]
        named = {("from" if name == "sender" else name): getattr(self, name) for name in names}
        return named | {"snippet": self.snippet.as_json()}


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of one search, or a page of them, best first.

    Attributes:
        cursor: The cursor of the next page of the same search; None: there is no next page.
        total: How many hits there are in all; None: too many to count.
        having, words: If nothing has all the words of the query: how many of them the hits have, and how many there
            are. Both 0: the hits have all words.
    """

    hits: list[Hit]
    cursor: str | None = None
    total: int | None = None
    having: int = 0
    words: int = 0

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        hits = [hit.as_json() for hit in self.hits]
        weaker = {"having": self.having, "words": self.words} if self.having else {}
        return {"hits": hits, "cursor": self.cursor, "total": self.total, **weaker}


@dataclass(frozen=True, slots=True)
class Listed:
    """A page of conversations.

    Attributes:
        heads: The conversations.
        messages: How many messages each of them has, in all its branches, by id.
        models: The model that wrote in each of them last, by id, where one of its last 50 messages says it.
        total: How many conversations there are on all pages.
    """

    heads: list[Head]
    messages: dict[str, int]
    models: dict[str, str]
    total: int
    _cursor: Callable[[int], str | None] = field(repr=False)

    def cursor(self, shown: int | None = None) -> str | None:
        """What the next page begins with, when `shown` of the conversations were shown (None: all); None: no more."""
        return self._cursor(len(self.heads) if shown is None else shown)


@dataclass(frozen=True, slots=True)
class Facets:
    """How many of some conversations there are, by what they can be filtered by; the most frequent first.

    A conversation counts once for each of its tags, agents and projects. A damaged file is in none of these counts.

    Attributes:
        conversations: How many there are.
        tags, types, modes: By tag, by type, by mode.
        agents: By the id of an agent that takes part, or took part.
        projects: By the folder of a project, with what lies in it; see `Filter.project`.
        sources: By the program that they were imported from; `here`: written here.
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
        """The counts of these conversations; `folders` are those of the projects of agents, by the agents' ids."""
        sound = [head for head in heads if not head.damaged]
        with_agents = [head for head in sound if head.participants]
        alone = Counter(head.folder for head in sound if not head.participants)
        places = Counter({frozenset((folder,)): count for folder, count in alone.items()})
        places.update(
            frozenset((head.folder, *(folders.get(member.id, "") for member in head.participants)))
            for head in with_agents
        )
        there = {folder for theirs in places for folder in theirs if folder}
        projects = Counter[str]()
        for theirs, count in places.items():
            projects.update({above: count for folder in theirs for above in there.intersection(_above(folder))})
        counts: tuple[Counter[str], ...] = (
            Counter(chain.from_iterable(map(set, map(attrgetter("tags"), sound)))),
            Counter(map(attrgetter("type"), sound)),
            Counter(map(attrgetter("mode"), sound)),
            Counter(member.id for head in with_agents for member in head.participants),
            projects,
            Counter(head.source or HERE for head in sound),
        )
        return cls(len(sound), *(dict(sorted(each.items(), key=lambda item: (-item[1], item[0]))) for each in counts))


def _above(folder: str) -> Iterator[str]:
    """A folder, and those in which it lies."""
    yield folder
    yield from (folder[:at] or folder[:1] for at, char in enumerate(folder) if char in "/\\")


@dataclass(slots=True)
class Tally:
    """Messages, the words in them, and the tokens that they take, estimated; of tool calls and reasoning too."""

    messages: int = 0
    words: int = 0
    tokens: int = 0

    def add(self, messages: int, words: int, tokens: int) -> None:
        """Count more."""
        self.messages += messages
        self.words += words
        self.tokens += tokens


@dataclass(frozen=True, slots=True)
class Large:
    """One of the largest conversations."""

    id: str
    title: str
    messages: int
    words: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Stats:
    """What is in a store.

    Attributes:
        conversations: How many there are, with the damaged ones.
        damaged: How many of them have a file that can't be read. No number below counts these.
        archived: How many are archived.
        messages, words: How many there are on all branches. A character of a script without spaces counts as a word.
        tokens: What the messages take in a model, estimated as `capsule context` does (docs/context.md).
        bytes: The size of the files. Of one that an agent reads in part: of the texts that it reads.
        by_role: By role, the most frequent first.
        by_month: By month (UTC, like 2025-01), from the first month with a message to the last; `no time` before them.
        by_day: By day (UTC, like 2025-01-31), in the same way.
        by_sender: By the agent that wrote them, the most frequent first; most messages name none, and are in none.
        by_source: By the program that their conversation was imported from (`here`: none), the most frequent first.
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
    largest: list[Large]

    def as_json(self) -> dict[str, Any]:
        """What `--json` prints."""
        return {camel(name): value for name, value in asdict(self).items()}


class Value(NamedTuple):
    """A value that messages have: how many do, and when the last of them was written."""

    value: str | float
    messages: int
    last: str
