"""The notes that an agent writes for itself, in a private channel of its own.

What must stay true: only the agent reads its notes, and those with whom it shared them. The head of
the channel says which agents these are, and since when. Permissions are checked by the Store, in the
mutex of each write and at each search.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import NotFound
from capsule.format.documents.channels import Channel, notes_id
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.head import json_name
from capsule.format.documents.members import with_joined
from capsule.messaging.channels import Channels, TypedConversations
from capsule.store.creation import ConversationExists, write_new

if TYPE_CHECKING:
    from capsule.format.documents.head import Head


@dataclass(frozen=True, slots=True)
class Note:
    """A note.

    Attributes:
        id: The id of its message.
        text: The text.
        tags: The words by which it can be found.
        session: The session in which it was written. Empty: unknown.
        written_at: When it was written, as the format writes times.
    """

    id: str
    text: str
    tags: tuple[str, ...]
    session: str
    written_at: str

    @classmethod
    def of(cls, message: dict[str, Any]) -> Note:
        """Return the note in a message."""
        metadata = message.get("metadata") or {}
        tags = metadata.get("tags")
        return cls(
            id=message["id"],
            text=message["content"],
            tags=tuple(tags) if isinstance(tags, list) else (),
            session=metadata.get("session") or "",
            written_at=message["timestamp"],
        )

    def as_json(self) -> dict[str, Any]:
        """The note as `--json` prints it."""
        return {json_name(name): value for name, value in asdict(self).items()}


class Notes(TypedConversations):
    """The notes of agents. `agent` is the agent that they belong to. None: the one that the store
    acts for.
    """

    def write(
        self,
        text: str,
        *,
        agent: str | None = None,
        tags: Iterable[str] = (),
        session: str | None = None,
    ) -> Note:
        """Write a note. It is durable when this returns.

        Args:
            text: The text.
            agent: The agent.
            tags: Words by which it can be found.
            session: The session in which it is written.

        Raises NotFound, InvalidInput, StoreBusy, StorageFailed. Cost: as `append`.
        """
        writer = self._people.registered_agent(agent)
        metadata: dict[str, Any] = {"tags": [*dict.fromkeys(tags)]}
        if session:
            metadata["session"] = session
        message = {"role": "user", "content": text, "from": writer, "metadata": metadata}
        channel = self._ensure_channel(writer)
        _, entries = self._store.inner.store_for(writer).append_entries(channel, [message])
        return Note.of(entries[0])

    def search(
        self,
        text: str = "",
        *,
        agent: str | None = None,
        of: str | None = None,
        tags: Iterable[str] = (),
        any_tag: bool = False,
        session: str | None = None,
        limit: int = 20,
    ) -> list[Note]:
        """Search notes, the best first. Without words, the latest first.

        Args:
            text: The words, as `Store.search` takes them.
            agent: The agent that searches.
            of: The agent to which the notes belong. None: the one that searches.
            tags: Only notes with all of these tags.
            any_tag: Whether one of the tags is enough.
            session: Only notes of this session.
            limit: The largest number of notes.

        Raises:
            NotFound: There are no notes of the other agent that it may read.
            InvalidInput: An argument can't be accepted.

        Cost: as `Store.search`, and reading the file.
        """
        reader = agent or self._store.agent
        if of is None or reader is not None:
            reader = self._store.inner.required_agent(reader)
        acting = self._store.inner.store_for(reader)
        try:
            if of is None:
                id = notes_id(str(reader))
            else:
                id = notes_id(self._people.directory.resolve(of, reader))
            history = acting.document(id)["history"]
        except NotFound:
            if of is None:
                return []
            raise NotFound(
                f"there are no notes of {of[:80]!r} that you may read here", id=of
            ) from None
        where: dict[str, Any] = {}
        tag_filters = [{"tags": tag} for tag in tags]
        if tag_filters:
            where["$or" if any_tag else "$and"] = tag_filters
        if session:
            where["session"] = session
        matches = acting.search(text, ids=[id], where=where, limit=limit)
        return [
            Note.of(history[hit.at])
            for hit in matches.hits
            if hit.at is not None and hit.at < len(history)
        ]

    def share(self, other: str, *, agent: str | None = None) -> Head:
        """Let another agent read the notes. The head of the channel says since when.

        Args:
            other: The other agent, by its id or name.
            agent: The agent to which the notes belong.

        Raises Refused: the other agent does not let this one write to it, as `agents.discover`
        says, or does not exist. Cost: copying the file.
        """
        owner = self._store.inner.required_agent(agent)
        return self._store.inner.object_of(Channels).invite(
            self._ensure_channel(owner), [other], agent=owner, can_send=False
        )

    def unshare(self, other: str, *, agent: str | None = None) -> Head:
        """Stop sharing the notes with another agent.

        Args:
            other: The other agent, by its id or name.
            agent: The agent to which the notes belong.

        Raises NotFound. Cost: copying the file.
        """
        owner = self._store.inner.required_agent(agent)
        channels = self._store.inner.object_of(Channels)
        return channels.remove(self._ensure_channel(owner), other, agent=owner)

    def _ensure_channel(self, owner: str) -> str:
        """Return the id of the channel that holds the notes of an agent. Make it unless it exists."""
        id = notes_id(owner)
        if self._store.engine.exists("conversations", id):
            return id
        stamp = timestamps.now()
        metadata = {
            "participants": with_joined(
                None, [owner], stamp, invitedBy="system", source="system", canManage=True
            ),
            "history": "all",
            "channel": Channel("notes", access="private", owner=owner).as_json(),
            "createdBy": owner,
        }
        document = new_capsule(
            id, f"Notes of {owner}", stamp, type="channel", title_set_by="user", metadata=metadata
        )
        with suppress(ConversationExists):  # Another program was quicker.
            write_new(self._store.inner.store_for(owner).inner, document)
        return id
