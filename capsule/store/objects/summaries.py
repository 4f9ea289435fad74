"""Summaries: conversations that sum up another one, the source.

A summary has one message, its text. `metadata.summaryOf` records how far the source went when it
was read for the summary: a `Mark`. `standing_of` compares the mark with the present source, and
reports whether the summary is still current.

What must stay true: the caller writes the text of a summary. It is never made here. Messages that
were written after the source was read count as new. A summary is as private as its source.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines.queries import Filter
from capsule.errors import CapsuleError, InvalidInput
from capsule.format.documents.creation import new_capsule
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
    """How far a conversation went when it was read for a summary.

    Attributes:
        message: The id of the last message of its active branch, or of the last message that was
            summed up. None: it had no messages.
        messages: The number of messages up to and including that message.
        updated_at: The conversation's `updatedAt` at that time.
    """

    message: str | None
    messages: int
    updated_at: str

    @classmethod
    def of(cls, document: Mapping[str, Any], up_to: str | None = None) -> Mark:
        """Return the mark of a conversation.

        Args:
            document: The conversation, as `Store.document` returns it.
            up_to: A message of its active branch, as `Store.find_message` takes it. None: the end
                of the branch.

        Raises:
            NotFound, InvalidInput: `up_to` is not a message of the active branch.
        """
        branch = active_path(document)
        if up_to is not None:
            history = document["history"]
            last_id = history[find_message(history, up_to, document["id"])]["id"]
            index = _index_of(branch, last_id)
            if index is None:
                raise InvalidInput(
                    f"message {up_to} of conversation {document['id']} is not on its active branch"
                )
            branch = branch[: index + 1]
        return cls(
            message=branch[-1]["id"] if branch else None,
            messages=len(branch),
            updated_at=document["updatedAt"],
        )

    def as_json(self) -> dict[str, Any]:
        """Return the value of `metadata.summaryOf`."""
        return {"message": self.message, "messages": self.messages, "updatedAt": self.updated_at}


@dataclass(frozen=True, slots=True)
class Standing:
    """How a summary compares with its present source.

    Attributes:
        state: `current`: nothing changed. `behind`: the source has newer messages or edits.
            `elsewhere`: another branch is active, or messages were removed. `gone`: the source
            can't be read. `unknown`: the summary does not record what it summed up.
        added: The number of newer messages on the active branch.
        edited: The number of messages that were edited after they were summed up.
    """

    state: str
    added: int = 0
    edited: int = 0

    def __str__(self) -> str:
        if self.state == "behind":
            changes = []
            if self.added:
                changes.append(counted(self.added, "new message"))
            if self.edited:
                changes.append(f"{self.edited} edited")
            return f"its source has changed since: {', '.join(changes)}"
        return _STATE_TEXTS[self.state]

    def as_json(self) -> dict[str, Any]:
        """Return the fields for `--json`."""
        return {"state": self.state, "added": self.added, "edited": self.edited}


_STATE_TEXTS = {
    "current": "its source is unchanged",
    "elsewhere": "its source has changed since: some of the messages it covers are no longer on the "
    "active branch",
    "gone": "its source is gone, or can't be read",
    "unknown": "it does not record how far its source had got",
}


@dataclass(frozen=True, slots=True)
class Summary:
    """A summary, and the state of its source."""

    head: Head
    standing: Standing


def standing_of(summary: Mapping[str, Any], source: Mapping[str, Any] | None) -> Standing:
    """Compare a summary with its source.

    Args:
        summary: The summary, as `Store.document` returns it.
        source: Its source, likewise. None: it can't be read.
    """
    if source is None:
        return Standing("gone")
    mark = summary["metadata"].get("summaryOf")
    if not mark:
        return Standing("unknown")
    branch = active_path(source)
    last_id = mark.get("message")
    index = _index_of(branch, last_id)
    summed_up = 0 if index is None else index + 1
    # A mark without a number of messages may have its message anywhere on the branch.
    is_at_marked_place = index is not None and mark.get("messages", summed_up) == summed_up
    if last_id is not None and not is_at_marked_place:
        return Standing("elsewhere")
    marked_at = timestamps.sortable(mark.get("updatedAt") or "")
    edited = 0
    for entry in branch[:summed_up]:
        if timestamps.sortable(entry.get("editedAt") or "") > marked_at:
            edited += 1
    added = len(branch) - summed_up
    return Standing("behind" if added or edited else "current", added, edited)


def _index_of(branch: Iterable[Mapping[str, Any]], id: str | None) -> int | None:
    """Return the index of the message with an id. None: it is not on the branch."""
    for index, entry in enumerate(branch):
        if entry["id"] == id:
            return index
    return None


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
        """Make a conversation that sums up another one, with its tags. It is durable when this
        returns.

        Args:
            id: The source. It is not changed, and another instance may have locked it.
            text: The summary.
            title: The new conversation's title. None: "Summary: " and the title of the source.
            tags: Tags in addition to those of the source.
            of: The `mark` of the source, made when it was read for the summary. None: the source as
                it is now.
            type: The new conversation's type. The summary of a closed source (a direct, a group or
                a channel) has the type of the source instead, and is as closed.
            role: The role of the message that holds the summary.
            created_by: The agent that wrote the summary.
            key: As `store.create` takes it.

        Raises:
            NotFound: The conversation does not exist.
            InvalidInput: The text is empty or too large, or the title can't be accepted.
            InvalidDocument: The source's file does not parse.

        Cost: reading the source, and writing the new file.
        """
        if not text.strip():
            raise InvalidInput("the summary is empty; give its text")
        message = check_message(
            {"role": role, "content": text, "from": self._store.agent or created_by}
        )

        def make(summary_id: str) -> Head:
            source = self._store.document(id)
            mark = of or Mark.of(source)
            document = self._summary(summary_id, source, message, title, tags, mark, type)
            return write_new(self._store.inner, document)

        if key is None:
            return make(new_id())
        return create_once(self._store.inner, "summarize", id, key, make, title, message)

    def _summary(
        self,
        id: str,
        source: dict[str, Any],
        message: dict[str, Any],
        title: str | None,
        tags: Iterable[str],
        mark: Mark,
        type: str,
    ) -> dict[str, Any]:
        """Return the document of a summary under an id. The other arguments are those of `add`,
        checked.
        """
        from capsule.rules.policy import PolicyTarget

        created_at = timestamps.now()
        source_metadata = source["metadata"]
        metadata = {"createdBy": message.get("from"), "summaryOf": mark.as_json()}
        summary_type = type
        if PolicyTarget.from_document(source).is_closed:
            summary_type = source_metadata["type"]
            metadata |= inherited_privacy(source_metadata, id)
        if title is None:
            summary_title = derived_title("Summary: ", source["title"], message["content"])
        else:
            summary_title = check_title(title)
        return new_capsule(
            id,
            title=summary_title,
            stamp=created_at,
            mode=str(source_metadata.get("mode") or "api"),
            type=summary_type,
            tags=dict.fromkeys([*(source_metadata.get("tags") or ()), *check_tags(tags)]),
            title_set_by="auto" if title is None else "user",
            lock=self._store.inner.instance_locks.lock_for_new(summary_type),
            messages=[completed_message(message, created_at)],
            is_summary=True,
            source_conversation_id=source["id"],
            metadata=metadata,
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
        source_id = metadata.get("sourceConversationId")
        if not source_id:
            return Standing("unknown")
        return standing_of(document, self._document_or_none(source_id))

    def _document_or_none(self, id: str) -> dict[str, Any] | None:
        """Return a conversation, or None if it can't be read."""
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
        source = self._document_or_none(id) if heads else None
        return [Summary(head, standing_of(self._store.document(head.id), source)) for head in heads]
