"""The trash of an open store: conversations and messages that were taken away, brought back, and dropped for good.

What must stay true: whatever a write takes away lies in the trash before it is gone; only `purge` drops it from there,
and only what has been there for long enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from capsule.engines.files.engine import files_of
from capsule.engines.files.protocols import Trashed
from capsule.errors import CapsuleError, InvalidDocument, NotFound, Remedy
from capsule.format import codec, migrations
from capsule.format.head import Head
from capsule.format.references import one_of
from capsule.format.tree.pruning import put_back
from capsule.ids import check_id
from capsule.store.change import REMOVED, Changing, Conversation, unasked
from capsule.store.reading import KIND


@dataclass(frozen=True, slots=True)
class Removed:
    """Messages in the trash that one write took out of a conversation or changed.

    Attributes:
        trashed: Where they lie.
        title: The conversation's title then.
        reason: `deleted`, `pruned`, `edited` or `restored` (their places were taken by others that were put back).
        messages: They, as they were.
    """

    trashed: Trashed
    title: str
    reason: str
    messages: list[dict[str, Any]]


class Discarding(Changing):
    """What an open store does with its trash. A base of `Store`."""

    def delete(self, id: str) -> Trashed:
        """Move a conversation to the trash; a damaged file too.

        Raises:
            NotFound: There is none.
            Locked, LockLost: Another instance holds it, or took it.
        """
        check_id(id)

        def discard(conversation: Conversation) -> Trashed:
            trashed = self._holder.discard(conversation)
            if self._own is not None:
                self._own.wrote(id, "deleted")
            return trashed

        try:
            return self._change(id, discard, unasked)
        except InvalidDocument:
            with files_of(self.engine).mutex(KIND, id) as held:
                trashed = self._holder.discard_damaged(held)
                if self._own is not None:
                    self._own.wrote(id, "deleted")
                return trashed

    def delete_all(self) -> Iterator[tuple[str, Trashed | CapsuleError]]:
        """Move every conversation to the trash, one for each step of the iteration.

        Each step gives the id, and what went to the trash or the error. A conversation that another instance holds
        stays, and the others go on. Forks are not made forks of something else, because they go too.

        Raises as `ids`. Cost: as `delete` for each, without a look for forks.
        """
        for id in self.ids():
            became: Trashed | CapsuleError
            try:
                became = Discarding.delete(self, id)
            except NotFound:
                continue  # Somebody else was faster.
            except CapsuleError as error:
                became = error
            yield id, became

    def trash(self) -> list[Trashed]:
        """List the deleted conversations, the newest first.

        Raises:
            Refused, StorageFailed: The system did not permit it.

        Cost: listing a directory.
        """
        return self.engine.trash(KIND)

    def trashed_head(self, trashed: Trashed) -> Head:
        """Read the head of a deleted conversation, as far as it can be read.

        Args:
            trashed: The conversation, as `trash` gives it.

        Raises as `trash`. Cost: reading the beginning of the file.
        """
        data = b""
        try:
            data = self.engine.trashed(trashed.token)
            document, _ = migrations.current(codec.decode(data, trashed.path), trashed.path)
            head = Head.of(document, trashed.path, len(data))
        except CapsuleError as error:
            return Head(trashed.id, path=trashed.path, bytes=len(data), damaged=error.message)
        return head or Head(trashed.id, path=trashed.path, bytes=len(data), damaged="no capsule")

    def restore(self, id: str, trashed: Trashed | None = None) -> Head:
        """Bring a conversation back from the trash.

        Args:
            id: Its id, or a unique beginning of it.
            trashed: Which one of those that were deleted under this id, as `trash` gives it. None: the last one.

        Raises:
            NotFound: There is none in the trash.
            Refused: A conversation of that id is there.

        Cost: a link and two flushes of a directory.
        """
        deleted = self.trash()
        wanted = one_of(sorted({trashed.id for trashed in deleted}), id, "deleted conversation", Remedy("trash"))
        latest = trashed or next(one for one in deleted if one.id == wanted)
        if self._own is not None:
            self._own.wrote(wanted, "restored")
        self.engine.restore(KIND, wanted, latest.token)
        try:
            return self.head(wanted)
        except InvalidDocument as error:
            return Head(wanted, path=self.engine.name(KIND, wanted), damaged=error.message)

    def removed(self, id: str | None = None) -> list[Removed]:
        """List the messages in the trash, those that were removed last first.

        Args:
            id: Only of this conversation. None: of all.

        Raises as `trash`. Costs reading the messages that it lists.
        """
        found = []
        for trashed in self.engine.trash(REMOVED):
            if id is None or trashed.id == id:
                kept = codec.decode(self.engine.trashed(trashed.token), trashed.path)
                found.append(Removed(trashed, kept["title"], kept["removed"]["reason"], kept["history"]))
        return found

    def restore_messages(self, trashed: Trashed) -> list[str]:
        """Put messages from the trash back into their conversation, and remove them from the trash.

        A message that was removed returns under the message that it answered. A message that was edited gets its former
        text, and the text that it has now goes to the trash in turn.

        Args:
            trashed: The messages, as `removed` gives them.

        Returns:
            The ids of the messages that came back or changed.

        Raises as `append`, and costs as `edit_message`; also
            NotFound: They are no longer in the trash, or the conversation is gone.
        """
        kept = codec.decode(self.engine.trashed(trashed.token), trashed.path)

        def act(conversation: Conversation) -> list[str]:
            before = conversation.document()
            after = conversation.rewrite(lambda document: put_back(document, kept), reason="restored")
            conversation.transaction.drop_kept(trashed)
            there = {entry["id"]: entry["content"] for entry in before["history"]}
            wanted = {entry["id"] for entry in kept["history"]}
            return [
                entry["id"]
                for entry in after["history"]
                if entry["id"] in wanted and there.get(entry["id"]) != entry["content"]
            ]

        return self._change(trashed.id, act)

    def purge(self, older_than_s: float = 0) -> list[str]:
        """Remove for good what is in the trash and the quarantine, and every other trace of it.

        Afterwards no file in `.capsule/` has a text that was removed from a conversation, unless it came to the
        trash or
        the quarantine since. What a conversation has now stays in it. If a document does not parse, what the store
        remembers of it is kept, because a repair may need it.

        Args:
            older_than_s: Only what has been there for more than so many seconds; 0: everything.

        Returns:
            The paths that were removed from the trash and the quarantine.

        Raises:
            StoreBusy, Refused, StorageFailed: The system did not permit it; the next purge removes what is left.

        Cost: reading every conversation that was written here. The next question builds the index anew.
        """
        return self.engine.purge(older_than_s)
