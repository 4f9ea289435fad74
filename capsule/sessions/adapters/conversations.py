"""The adapter of the conversations of the store: directs, groups and channels.

A thread looks at the unread messages of each agent that has workers, whenever conversations or the
registry change. It gives them to the host, and then moves the agent's read cursor. A worker's
message is sent as its agent, so the permissions of the agent apply.

What must stay true:
- The agent's read cursor alone records what was brought. It moves when `receive` has returned. A
  message that is brought twice has the same id.
- A message is sent under its own id as the idempotency key, so a repetition writes nothing.
- A conversation that cannot be read or brought now does not stop the others.
"""

from __future__ import annotations

import logging
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from capsule.engines.changes import Interest
from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.messaging.channels import ensure_direct
from capsule.messaging.directory import StoreAgents
from capsule.messaging.messages import Messages
from capsule.messaging.receipts import Receipts
from capsule.messaging.unread import UnreadTracker, read_mail
from capsule.rules.policy import PolicyTarget
from capsule.sessions.adapters.interface import (
    Adapter,
    OutgoingFile,
    OutgoingMessage,
    ReceivedMessage,
    Receiver,
)
from capsule.sessions.registry import Registry
from capsule.store.watchers import StoreWatchers

if TYPE_CHECKING:
    from capsule.messaging.mail import Mail
    from capsule.messaging.unread import ReadingState
    from capsule.store.store import CoreStore

_log = logging.getLogger("capsule")
#: How many messages of a conversation are brought at once.
_MAX_MESSAGES = 500


class ConversationAdapter(Adapter):
    """The adapter of the channel `conversations`. A place is the id of a conversation.

    Args:
        store: The store.
    """

    name = "conversations"

    def __init__(self, store: CoreStore) -> None:
        self._store = store.inner.store_for(None)
        self._agents = self._store.inner.object_of(StoreAgents)
        self._registry = Registry(self._store.engine)
        self._wakeup = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        #: The agents that are announced as listening, so that no doorbell rings for them.
        self._listening: set[str] = set()

    def start(self, receiver: Receiver) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(receiver,), name="capsule-conversations", daemon=True
        )
        self._thread.start()

    def look(self) -> None:
        self._wakeup.set()

    def stop(self) -> None:
        self._stopped = True
        self._wakeup.set()
        if self._thread is not None:
            self._thread.join()
        for agent in self._listening:
            self._announce(agent, -1)

    def _announce(self, agent: str, change: int) -> None:
        """Announce that an agent listens once more (+1) or once less (-1)."""
        self._store.inner.store_for(agent).inner.object_of(StoreAgents).announce(agent, change)

    def _run(self, receiver: Receiver) -> None:
        """Bring unread messages after each change of the store, until `stop`."""
        hub = self._store.inner.object_of(StoreWatchers).ensure_hub()
        waiter = hub.waiter(Interest(), self._wakeup.set)
        with hub.listening():
            while not (self._stopped or hub.is_closed):
                self._wakeup.clear()
                try:
                    for agent in self._registry.read().agents:
                        if self._agents.documents.exists(agent):
                            self._bring(agent, receiver)
                except Exception as error:  # The next change, or look, tries again.
                    _log.warning("could not look for messages to agents: %s", error, exc_info=True)
                self._wakeup.wait()
        hub.remove(waiter)

    def _bring(self, agent: str, receiver: Receiver) -> None:
        """Give the unread messages of an agent to the host, and move the agent's read cursor.

        Cost: as `Messages.inbox`, and reading the messages.
        """
        if agent not in self._listening:
            self._announce(agent, +1)
            self._listening.add(agent)
        tracker = self._store.inner.object_of(UnreadTracker)
        read_marks = {}
        tracker.queries.refresh()
        for id, reading_state in tracker.reading_states(agent).items():
            unread = [] if reading_state.is_read else tracker.unread(reading_state)
            if not unread:
                continue
            oldest = sorted((position.position, position) for position in unread)[:_MAX_MESSAGES]
            try:
                mail = read_mail(self._store, reading_state, dict(oldest))
            except (NotFound, InvalidDocument, Refused):
                continue  # It was removed or damaged, or the agent may not read it any more.
            try:
                receiver.receive([self._received(message, reading_state) for message in mail])
            except Exception as error:
                _log.warning("the messages for %s in %s are brought later: %s", agent, id, error)
                continue
            if mail:
                read_marks[id] = mail[-1].at, mail[-1].front
            if len(unread) > _MAX_MESSAGES:
                self._wakeup.set()
        if read_marks:
            self._store.inner.object_of(Receipts).acknowledge(agent, read_marks)

    def _received(self, mail: Mail, reading_state: ReadingState) -> ReceivedMessage:
        """Return an unread message of an agent in the form that the host takes."""
        mentions = set(_valid_mentions(mail))
        if mail.mention:
            mentions.add(reading_state.agent)
        title = reading_state.participation.title
        if reading_state.item is not None:
            title = reading_state.item.name
        return ReceivedMessage(
            id=mail.id,
            channel=self.name,
            place=mail.conversation,
            sender=mail.from_,
            text=mail.content,
            at=mail.timestamp,
            thread=mail.more.get("thread") or "",
            title=title,
            is_group=mail.type != "direct",
            mentions=frozenset(mentions),
            to=frozenset([reading_state.agent]),
            reply_to=mail.reply_to or "",
            known=self._agents.documents.exists(mail.from_),
            hops=_hops(mail),
            attachments=tuple(mail.more.get("attachments") or ()),
            editable=True,
        )

    def deliver(self, out: OutgoingMessage) -> str:
        """Send a message as its agent, or edit one that the agent sent.

        Cost: reading and writing a conversation.
        """
        if out.kind == "edit":
            acting_store = self._store.inner.store_for(out.agent)
            acting_store.edits.message(out.place, out.target, out.text)
            return out.target
        direct_members = PolicyTarget(out.place, "direct").present_ids
        if out.agent in direct_members and not self._store.engine.exists(CONVERSATIONS, out.place):
            # A destination may be a direct that does not exist yet.
            acting_store = self._store.inner.store_for(out.agent)
            ensure_direct(acting_store, out.agent, *(direct_members - {out.agent}))
        thread = out.thread or None
        reply_to = out.target or out.reply_to or None
        try:
            return self._send(out, thread, reply_to)
        except InvalidInput:
            if thread is None and reply_to is None:
                raise
            return self._send(out, None, None)  # The answered message may not exist any more.

    def _send(self, out: OutgoingMessage, thread: str | None, reply_to: str | None) -> str:
        """Append a message to its conversation, once, and return its id."""
        text = out.emoji
        if not text:
            text = out.text + "".join(f"\n- {option.get('label', '')}" for option in out.options)
        metadata = {"session": {"id": out.session, "hops": out.hops}}
        if out.files:
            fields: dict[str, Any] = {"metadata": metadata}
            if thread is not None:
                fields["thread"] = thread
            if reply_to is not None:
                fields["replyTo"] = reply_to
            attachments = [self._store_attachment(file) for file in out.files]
            acting_store = self._store.inner.store_for(out.agent)
            entry, *_ = acting_store.append_once(
                out.place, out.id, content=text, attachments=attachments, **fields
            )
            return str(entry.id)
        result = self._store.inner.object_of(Messages).send(
            text,
            agent=out.agent,
            conversation=out.place,
            thread=thread,
            reply_to=reply_to,
            intent="reaction" if out.kind == "reaction" else None,
            metadata=metadata,
            idempotency_key=out.id,
        )
        return result.message

    def _store_attachment(self, file: OutgoingFile) -> dict[str, str]:
        """Store a file under its digest, and return the attachment that names it."""
        data = file.read()
        digest = sha256(data).hexdigest()
        self._store.engine.files.write("attachments", digest, digest, data)
        return {"name": file.name, "path": f"attachments/{digest}"}


def _valid_mentions(mail: Mail) -> list[str]:
    """Return the ids of the agents that a message mentions."""
    mentions = mail.more.get("mentions")
    valid = mentions.get("valid") if isinstance(mentions, dict) else None
    return list(valid or ())


def _hops(mail: Mail) -> int:
    """Return how many agents a message came through, by its metadata. Wrong values count as 0."""
    metadata = mail.more.get("metadata")
    session = metadata.get("session") if isinstance(metadata, dict) else None
    hops = session.get("hops") if isinstance(session, dict) else None
    return max(hops, 0) if type(hops) is int else 0
