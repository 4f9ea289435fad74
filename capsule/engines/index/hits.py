"""What a search gives."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from capsule.engines.index.snippets import Snippet


@dataclass(frozen=True, slots=True)
class Hit:
    """One message, or one conversation by its title or tags, that a search found.

    Attributes:
        id: The conversation.
        title: Its title.
        message: The message's id; None: the title or a tag was found.
        at: The message's place in the history, from 0.
        role, sender: Who says it; `sender` is the field `from`.
        time: When it was said; of a title, when the conversation was changed last. As the format writes times.
        where: What was found: `content`, `tools` (tool calls and reasoning) or `title` (tags too).
        snippet: The piece of it that was found.
        active: Whether the message is on the active branch.
        score: How well it fits, by the ranking profile; to be compared within one search only.
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
        """It as JSON."""
        named = {("from" if one.name == "sender" else one.name): getattr(self, one.name) for one in fields(self)}
        return named | {"snippet": self.snippet.as_json()}


@dataclass(frozen=True, slots=True)
class Found:
    """The hits of one search, or a page of them, best first.

    Attributes:
        cursor: To be given to the same search for what comes next; None: that was all.
        total: How many hits there are in all; None when they are too many to have been counted.
        having, words: Nothing has all the words of the query, of which there are `words`: the hits have `having` of
            them. Both 0: the hits have all.
    """

    hits: list[Hit]
    cursor: str | None = None
    total: int | None = None
    having: int = 0
    words: int = 0

    def as_json(self) -> dict[str, Any]:
        """It as JSON."""
        hits = [hit.as_json() for hit in self.hits]
        weaker = {"having": self.having, "words": self.words} if self.having else {}
        return {"hits": hits, "cursor": self.cursor, "total": self.total, **weaker}
