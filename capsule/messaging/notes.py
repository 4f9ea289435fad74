"""The notes of an agent: what it writes for itself, in a private channel of its own.

What must stay true: nobody but the agent reads its notes, unless it let somebody look; who may, and
since when, is in the channel's head. Who may do what is asked by the Store in the mutex of each
write, and at each search.
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
from capsule.messaging.channels import Channels
from capsule.messaging.groups import TypedConversations
from capsule.store.creation import ConversationExists, write_new

if TYPE_CHECKING:
    from capsule.format.documents.head import Head


@dataclass(frozen=True, slots=True)
class Note:
    """A note.

    Attributes:
        id: The id of its message.
        session: The session in which it was written; empty: it does not say.
        written_at: When it was written, as the format writes times.
    """

    id: str
    text: str
    tags: tuple[str, ...]
    session: str
    written_at: str

    @classmethod
    def of(cls, message: dict[str, Any]) -> Note:
        """The note in a message."""
        about = message.get("metadata") or {}
        tags = about.get("tags")
        known = tuple(tags) if isinstance(tags, list) else ()
        return cls(
            message["id"],
            message["content"],
            known,
            about.get("session") or "",
            message["timestamp"],
        )

    def as_json(self) -> dict[str, Any]:
        """The note as `--json` prints it."""
        return {json_name(name): value for name, value in asdict(self).items()}


class Notes(TypedConversations):
    """The notes of agents. `agent` is whose they are; None: those of the agent that the store acts
    for.
    """

    def write(
        self,
        text: str,
        *,
        agent: str | None = None,
        tags: Iterable[str] = (),
        session: str | None = None,
    ) -> Note:
        """Write a note; it is durable when this returns.

        Args:
            text: The text.
            agent: The agent.
            tags: Words by which it is found again.
            session: The session in which it is written.

        Raises NotFound, InvalidInput, StoreBusy, StorageFailed. Cost: as `append`.
        """
        who = self._people.registered_agent(agent)
        about = {"tags": [*dict.fromkeys(tags)]} | ({"session": session} if session else {})
        message = {"role": "user", "content": text, "from": who, "metadata": about}
        return Note.of(
            self._store.inner.store_for(who).append_entries(self._ensured(who), [message])[1][0]
        )

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
        """Search notes, the best first; without words, the latest first.

        Args:
            text: The words, as `Store.search` takes them.
            agent: The agent that searches.
            of: The agent whose notes they are; None: its own.
            tags: Only notes with all of these tags.
            any_tag: Whether one of the tags is enough.
            session: Only notes of this session.
            limit: The largest number of notes.

        Raises:
            NotFound: There are no notes of the other agent that it may look at.
            InvalidInput: An argument can't be accepted.

        Cost: as `Store.search`, and reading the file.
        """
        who = (
            (agent or self._store.agent)
            if of is not None
            else self._store.inner.required_agent(agent)
        )
        acting = self._store.inner.store_for(who and self._store.inner.required_agent(who))
        try:
            id = notes_id(str(who) if of is None else self._people.directory.resolve(of, who))
            history = acting.document(id)["history"]
        except NotFound:
            if of is None:
                return []
            raise NotFound(
                f"there are no notes of {of[:80]!r} that you may read here", id=of
            ) from None
        wanted = [{"tags": tag} for tag in tags]
        where: dict[str, Any] = {"$or" if any_tag else "$and": wanted} if wanted else {}
        matches = acting.search(
            text, ids=[id], where=where | ({"session": session} if session else {}), limit=limit
        )
        return [
            Note.of(history[hit.at])
            for hit in matches.hits
            if hit.at is not None and hit.at < len(history)
        ]

    def share(self, other: str, *, agent: str | None = None) -> Head:
        """Let another agent read the notes. The head of the channel says since when.

        Args:
            other: The other agent, by its id or name.
            agent: The agent whose notes they are.

        Raises Refused: the other one lets the agent not write to it, as `agents.discover` says, or
        it does not exist. Cost: copying the file.
        """
        who = self._store.inner.required_agent(agent)
        return self._store.inner.object_of(Channels).invite(
            self._ensured(who), [other], agent=who, can_send=False
        )

    def unshare(self, other: str, *, agent: str | None = None) -> Head:
        """Stop sharing the notes with another agent.

        Args:
            other: The other agent, by its id or name.
            agent: The agent whose notes they are.

        Raises NotFound. Cost: copying the file.
        """
        who = self._store.inner.required_agent(agent)
        return self._store.inner.object_of(Channels).remove(self._ensured(who), other, agent=who)

    def _ensured(self, who: str) -> str:
        """The id of the channel that holds the notes of an agent, which is made unless
        it exists.
        """
        stamp, id = timestamps.now(), notes_id(who)
        if not self._store.engine.exists("conversations", id):
            about = {
                "participants": with_joined(
                    None, [who], stamp, invitedBy="system", source="system", canManage=True
                ),
                "history": "all",
                "channel": Channel("notes", access="private", owner=who).as_json(),
                "createdBy": who,
            }
            document = new_capsule(
                id, f"Notes of {who}", stamp, type="channel", title_set_by="user", metadata=about
            )
            with suppress(ConversationExists):  # Another program was quicker.
                write_new(self._store.inner.store_for(who).inner, document)
        return id
