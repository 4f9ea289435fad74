"""Summaries: conversations that sum up another one, and know how far that one went when they were made.

What must stay true: a summary's text is what somebody wrote, and never made here; what it was made of is said as it
was when it was read, not when the summary was done, so that what came in between counts as new.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidInput
from capsule.format import new
from capsule.format.message import check_message
from capsule.format.text.titles import MAX, check_tags, check_title, title_from
from capsule.ids import new_id
from capsule.store.change import complete
from capsule.store.idempotency import made_once
from capsule.store.reading import Reading

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.locks.holder import Holder
    from capsule.store.freshness import Mark, Standing, Summary

_TITLE = "Summary: "


class Summarizing(Reading, ABC):
    """What an open store does with summaries. A base of `Store`, which knows how to make a conversation."""

    _holder: Holder

    @abstractmethod
    def _make(self, document: dict[str, Any]) -> Head:
        """Write a new conversation."""

    def mark(self, id: str, up_to: str | None = None) -> Mark:
        """Note how far a conversation goes now, for `summarize`. Raises and costs as `document`.

        Args:
            id: The conversation.
            up_to: A message of its active branch, as `find_message` takes it. None: the end of the branch.
        """
        from capsule.store.freshness import Mark

        return Mark.of(self.document(id), up_to)

    def summarize(
        self,
        id: str,
        text: str,
        *,
        title: str | None = None,
        tags: Iterable[str] = (),
        of: Mark | None = None,
        type: str = "chat",
        role: str = "assistant",
        created_by: str | None = None,
        key: str | None = None,
    ) -> Head:
        """Make a conversation that sums up another one, with its tags; it is durable when this returns.

        Args:
            id: The source. It is not changed, and may be locked by another instance.
            text: The summary.
            title: The new conversation's title. None: "Summary: " and the title of the source.
            tags: Tags in addition to those of the source.
            of: How far the source had got when it was read for the summary (`mark`). None: as far as it goes now.
            type: The new conversation's type.
            role: The role of its message, which is the summary.
            created_by: The agent that wrote the summary.
            key: As `create` takes it.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The text is empty or too large, or the title can't be accepted.
            InvalidDocument: The source's file does not parse.

        Cost: reading the source, and writing the new file.
        """
        if not text.strip():
            raise InvalidInput("the summary is empty; there is nothing to make a conversation of")
        message = check_message({"role": role, "content": text, "from": created_by})

        def make(made: str) -> Head:
            return self._make(self._summary(made, self.head(id), message, title, tags, of or self.mark(id), type))

        return make(new_id()) if key is None else made_once(self, "summarize", id, key, make, title, message)

    def _summary(
        self,
        id: str,
        source: Head,
        message: dict[str, Any],
        title: str | None,
        tags: Iterable[str],
        of: Mark,
        type: str,
    ) -> dict[str, Any]:
        stamp = timestamps.now()
        return new.new_capsule(
            id,
            check_title(title) if title is not None else _title(source.title, message["content"]),
            stamp,
            source.mode,
            type,
            tags=dict.fromkeys([*source.tags, *check_tags(tags)]),
            title_set_by="auto" if title is None else "user",
            lock=self._holder.lock_for_new(type),
            messages=[complete(message, stamp)],
            is_summary=True,
            source_conversation_id=source.id,
            metadata={"createdBy": message.get("from"), "summaryOf": of.as_json()},
        )

    def summaries_of(self, id: str) -> list[Summary]:
        """List the summaries of a conversation, the newest first; also if the conversation is gone.

        Args:
            id: The conversation.

        Raises as `heads`. Costs as `heads`, and reading the conversation and its summaries.
        """
        from capsule.store.freshness import Summary, standing_of

        heads = [head for head in self.heads() if head.is_summary and head.source_conversation_id == id]
        heads.sort(key=lambda head: (timestamps.sortable(head.created_at), head.id), reverse=True)
        source = self._source(id) if heads else None
        return [Summary(head, standing_of(self.document(head.id), source)) for head in heads]

    def standing(self, id: str) -> Standing | None:
        """Say what became of the source of a summary. None: the conversation is no summary.

        Args:
            id: The summary.

        Raises as `document`. Costs reading both files.
        """
        from capsule.store.freshness import Standing, standing_of

        document = self.document(id)
        metadata = document["metadata"]
        if metadata.get("isSummary") is not True:
            return None
        source = metadata.get("sourceConversationId")
        return standing_of(document, self._source(source)) if source else Standing("unknown")

    def _source(self, id: str) -> dict[str, Any] | None:
        try:
            return self.document(id)
        except CapsuleError:
            return None


def _title(source: str, text: str) -> str:
    """The title of a summary; a hand-written one of the source may be none that is accepted."""
    about = source.strip(" \t")[: MAX - len(_TITLE)].rstrip()
    try:
        return check_title(_TITLE + about if about else _TITLE + title_from(text))
    except InvalidInput:
        return _TITLE + (title_from(source) or title_from(text))
