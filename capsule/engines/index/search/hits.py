"""What a search answers."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from capsule.engines.index.search.snippets import Snippet


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
        named = {("from" if one.name == "sender" else one.name): getattr(self, one.name) for one in fields(self)}
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
