"""Summaries: conversations that sum up another one, and record how far that one went.

What must stay true: the caller writes the text of a summary; it is never made here. A summary
records the state of its source when the source was read, so that messages written since count as
new.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.queries import Filter
from capsule.errors import CapsuleError, InvalidInput
from capsule.format.documents import creation
from capsule.format.documents.message import check_message
from capsule.format.references import find_message
from capsule.format.text.titles import check_tags, check_title, derived_title
from capsule.format.tree.tree import active_path
from capsule.ids import new_id
from capsule.store.change.appends import completed_message
from capsule.store.creation import create_once, write_new
from capsule.store.objects.forks import inherited_privacy
from capsule.untrusted_text import counted

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.base import BaseStore


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a conversation went at a time.

    Attributes:
        message: The id of the last message of its active branch, or of the last message that was
            summed up; None: it had no messages.
        messages: The number of messages up to that message, itself included.
        updated_at: The conversation's `updatedAt` then.
    """

    message: str | None
    messages: int
    updated_at: str

    @classmethod
    def of(cls, document: Mapping[str, Any], up_to: str | None = None) -> Mark:
        """The mark of a conversation as `Store.document` gives it.

        Args:
            document: The conversation.
            up_to: A message of its active branch, as `Store.find_message` takes it; None: the end
                of the branch.

        Raises:
            NotFound, InvalidInput: `up_to` is not a message of the active branch.
        """
        path = active_path(document)
        if up_to is not None:
            history = document["history"]
            wanted = history[find_message(history, up_to, document["id"])]["id"]
            place = next((place for place, entry in enumerate(path) if entry["id"] == wanted), -1)
            if place < 0:
                raise InvalidInput(
                    f"message {up_to} of conversation {document['id']} is not on its active branch"
                )
            path = path[: place + 1]
        return cls(path[-1]["id"] if path else None, len(path), document["updatedAt"])

    def as_json(self) -> dict[str, Any]:
        """The value of `metadata.summaryOf`."""
        return {"message": self.message, "messages": self.messages, "updatedAt": self.updated_at}


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a summary's source.

    Attributes:
        state: `current`; `behind`: it has newer messages or edits; `elsewhere`: another branch is
            active, or messages were removed; `gone`: it can't be read; `unknown`: the summary does
            not record what it summed up.
        added: The number of newer messages on the active branch.
        edited: The number of messages that were edited after they were summed up.
    """

    state: str
    added: int = 0
    edited: int = 0

    def __str__(self) -> str:
        if self.state == "behind":
            added = counted(self.added, "new message") if self.added else ""
            edited = f"{self.edited} edited" if self.edited else ""
            return f"its source has changed since: {', '.join(filter(None, (added, edited)))}"
        return {
            "current": "its source is unchanged",
            "elsewhere": "its source has changed since: some of the messages it covers are no "
            "longer on the active branch",
            "gone": "its source is gone, or can't be read",
            "unknown": "it does not record how far its source had got",
        }[self.state]

    def as_json(self) -> dict[str, Any]:
        """The fields for `--json`."""
        return {"state": self.state, "added": self.added, "edited": self.edited}


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary, and the state of its source."""

    head: Head
    standing: Standing


def standing_of(summary: Mapping[str, Any], source: Mapping[str, Any] | None) -> Standing:
    """The state of a summary's source.

    Args:
        summary: The summary, as `Store.document` gives it.
        source: Its source, likewise; None: it can't be read.
    """
    if source is None:
        return Standing("gone")
    summed_up = summary["metadata"].get("summaryOf")
    if not summed_up:
        return Standing("unknown")
    path = active_path(source)
    last, since = summed_up.get("message"), timestamps.sortable(summed_up.get("updatedAt") or "")
    place = next((place for place, entry in enumerate(path) if entry["id"] == last), -1)
    if last is not None and (place < 0 or place + 1 != summed_up.get("messages", place + 1)):
        return Standing("elsewhere")
    edited = sum(
        timestamps.sortable(entry.get("editedAt") or "") > since for entry in path[: place + 1]
    )
    added = len(path) - place - 1
    return Standing("behind" if added or edited else "current", added, edited)


class Summaries:
    """The summaries of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def mark(self, id: str, up_to: str | None = None) -> Mark:
        """Note how far a conversation goes now, for `add`.

        Args:
            id: The conversation.
            up_to: A message of its active branch, as `find_message` takes it. None: the end of the
                branch.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        return Mark.of(self._store.document(id), up_to)

    def add(
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
        """Make a conversation that sums up another one, with its tags; it is durable when this
        returns.

        Args:
            id: The source. It is not changed, and another instance may have locked it.
            text: The summary.
            title: The new conversation's title. None: "Summary: " and the title of the source.
            tags: Tags in addition to those of the source.
            of: The `mark` of the source, made when it was read for the summary. None: the source as
                it is now.
            type: The new conversation's type; that of a closed source is its source's, and it is as
                closed.
            role: The role of the message that holds the summary.
            created_by: The agent that wrote the summary.
            key: As `store.create` takes it.

        Raises:
            NotFound: There is no such conversation.
            InvalidInput: The text is empty or too large, or the title can't be accepted.
            InvalidDocument: The source's file does not parse.

        Cost: reading the source, and writing the new file.
        """
        if not text.strip():
            raise InvalidInput("the summary is empty; give its text")
        message = check_message(
            {"role": role, "content": text, "from": self._store.agent or created_by}
        )

        def make(made: str) -> Head:
            source = self._store.document(id)
            return write_new(
                self._store.inner,
                self._summary(made, source, message, title, tags, of or Mark.of(source), type),
            )

        return (
            make(new_id())
            if key is None
            else create_once(self._store.inner, "summarize", id, key, make, title, message)
        )

    def _summary(
        self,
        id: str,
        source: dict[str, Any],
        message: dict[str, Any],
        title: str | None,
        tags: Iterable[str],
        of: Mark,
        type: str,
    ) -> dict[str, Any]:
        from capsule.rules.policy import PolicyTarget

        stamp, about = timestamps.now(), source["metadata"]
        is_closed = PolicyTarget.from_document(source).is_closed
        type = about["type"] if is_closed else type
        return creation.new_capsule(
            id,
            check_title(title)
            if title is not None
            else derived_title("Summary: ", source["title"], message["content"]),
            stamp,
            str(about.get("mode") or "api"),
            type,
            tags=dict.fromkeys([*(about.get("tags") or ()), *check_tags(tags)]),
            title_set_by="auto" if title is None else "user",
            lock=self._store.inner.instance_locks.lock_for_new(type),
            messages=[completed_message(message, stamp)],
            is_summary=True,
            source_conversation_id=source["id"],
            metadata={"createdBy": message.get("from"), "summaryOf": of.as_json()}
            | (inherited_privacy(about, id) if is_closed else {}),
        )

    def standing(self, id: str) -> Standing | None:
        """Compare a summary with its source. None: the conversation is no summary.

        Args:
            id: The summary.

        Raises NotFound, InvalidDocument. Cost: reading both files.
        """
        document = self._store.document(id)
        metadata = document["metadata"]
        if metadata.get("isSummary") is not True:
            return None
        source = metadata.get("sourceConversationId")
        return standing_of(document, self._source(source)) if source else Standing("unknown")

    def _source(self, id: str) -> dict[str, Any] | None:
        try:
            return self._store.document(id)
        except CapsuleError:
            return None

    def list(self, id: str) -> list[Summary]:
        """List the summaries of a conversation, pinned ones first, then the newest first.

        Args:
            id: The conversation, which may have been deleted.

        Raises StorageFailed, StoreBusy. Cost: as `heads`, and reading the conversation and its
        summaries.
        """
        heads = self._store.list(Filter(archived=None, summaries_of=id), "created").heads
        source = self._source(id) if heads else None
        return [Summary(head, standing_of(self._store.document(head.id), source)) for head in heads]
