"""Conversations as a channel: what an agent with workers has not read goes to its sessions; their
answers come back.

What must stay true: the agent's cursor is the only memory of what was brought, and moves when
`receive` has returned; what is brought twice has the same id. An answer is sent as the agent, under
its own id as the key, so that permissions decide and a repetition writes nothing. A conversation
that can't be brought now does not stop the others.
"""

from __future__ import annotations

import logging
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.messaging.directory import StoreAgents
from capsule.messaging.groups import ensure_direct
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
from capsule.store.listeners import StoreWatchers

if TYPE_CHECKING:
    from capsule.messaging.mail import Mail
    from capsule.messaging.unread import ReadingState
    from capsule.store.store import CoreStore

_log = logging.getLogger("capsule")
#: How many messages of a conversation are brought at once.
_MOST = 500


class ConversationAdapter(Adapter):
    """The directs, groups and channels of a store, for each agent that has workers: see `Adapter`.

    Args:
        store: The store.
    """

    name = "conversations"

    def __init__(self, store: CoreStore) -> None:
        self._store = store.inner.store_for(None)
        self._registry = Registry(self._store.engine)
        self._woken = threading.Event()
        self._stopped = False
        self._thread: threading.Thread | None = None
        #: The agents for which this listens, so that nothing else wakes them.
        self._listening: set[str] = set()

    def start(self, receiver: Receiver) -> None:
        self._thread = threading.Thread(
            target=self._run, args=(receiver,), name="capsule-conversations", daemon=True
        )
        self._thread.start()

    def look(self) -> None:
        self._woken.set()

    def stop(self) -> None:
        self._stopped = True
        self._woken.set()
        if self._thread is not None:
            self._thread.join()
        for agent in self._listening:
            self._store.inner.store_for(agent).inner.object_of(StoreAgents).announce(agent, -1)

    def _run(self, receiver: Receiver) -> None:
        hub = self._store.inner.object_of(StoreWatchers).ensure_hub()
        waiter = hub.waiter(None, self._woken.set)
        with hub.listening():
            while not (self._stopped or hub.is_closed):
                self._woken.clear()
                try:
                    for agent in self._registry.read().agents:
                        if self._store.inner.object_of(StoreAgents).documents.exists(agent):
                            self._bring(agent, receiver)
                except Exception as error:  # The next change, or look, tries again.
                    _log.warning("could not look for messages to agents: %s", error, exc_info=True)
                self._woken.wait()
        hub.remove(waiter)

    def _bring(self, agent: str, receiver: Receiver) -> None:
        """Bring what an agent has not read. Cost: as `Messages.inbox`, and reading the messages."""
        if agent not in self._listening:
            self._store.inner.store_for(agent).inner.object_of(StoreAgents).announce(agent, +1)
            self._listening.add(agent)
        marks, receipts, messages = (
            {},
            self._store.inner.object_of(Receipts),
            self._store.inner.object_of(UnreadTracker),
        )
        messages.queries.refresh()
        for id, seat in messages.reading_states(agent).items():
            unread = [] if seat.is_read else messages.unread(seat)
            if not unread:
                continue
            try:
                places = dict(sorted((each.place, each) for each in unread)[:_MOST])
                mail = read_mail(self._store, seat, places)
            except (NotFound, InvalidDocument, Refused):
                continue  # It went, was damaged, or is not for the agent any more.
            try:
                receiver.receive(
                    [
                        _arrived(
                            each,
                            seat,
                            self._store.inner.object_of(StoreAgents).documents.exists(each.from_),
                        )
                        for each in mail
                    ]
                )
            except Exception as error:
                _log.warning("the messages for %s in %s are brought later: %s", agent, id, error)
                continue
            if mail:
                marks[id] = mail[-1].at, mail[-1].front
            if len(unread) > _MOST:
                self._woken.set()
        if marks:
            receipts.acknowledge(agent, marks)

    def deliver(self, out: OutgoingMessage) -> str:
        """Send a message as its agent, or edit one that it sent. Cost: reading and writing a
        conversation.
        """
        if out.kind == "edit":
            self._store.inner.store_for(out.agent).edits.message(out.place, out.target, out.text)
            return out.target
        two = PolicyTarget(out.place, "direct").present_ids
        if out.agent in two and not self._store.engine.exists(
            CONVERSATIONS, out.place
        ):  # A destination may be one to come.
            ensure_direct(self._store.inner.store_for(out.agent), out.agent, *(two - {out.agent}))
        thread, reply_to = out.thread or None, out.target or out.reply_to or None
        try:
            return self._sent(out, thread, reply_to)
        except InvalidInput:
            if thread is reply_to is None:
                raise
            return self._sent(out, None, None)  # What it answers may be gone.

    def _sent(self, out: OutgoingMessage, thread: str | None, reply_to: str | None) -> str:
        text = out.emoji or out.text + "".join(
            f"\n- {option.get('label', '')}" for option in out.options
        )
        about = {"session": {"id": out.session, "hops": out.hops}}
        if out.files:
            more: dict[str, Any] = {"thread": thread, "replyTo": reply_to, "metadata": about}
            more = {name: value for name, value in more.items() if value is not None}
            kept = [self._kept(file) for file in out.files]
            acting = self._store.inner.store_for(out.agent)
            return str(
                acting.append_once(out.place, out.id, content=text, attachments=kept, **more)[0].id
            )
        sent = self._store.inner.object_of(Messages).send(
            text,
            agent=out.agent,
            conversation=out.place,
            thread=thread,
            reply_to=reply_to,
            intent="reaction" if out.kind == "reaction" else None,
            metadata=about,
            idempotency_key=out.id,
        )
        return sent.message

    def _kept(self, file: OutgoingFile) -> dict[str, str]:
        """A file as a message names it; it is kept once, whatever names it."""
        data = file.read()
        digest = sha256(data).hexdigest()
        self._store.engine.files.write("attachments", digest, digest, data)
        return {"name": file.name, "path": f"attachments/{digest}"}


def _arrived(mail: Mail, seat: ReadingState, known: bool) -> ReceivedMessage:
    """A message to an agent, as the host takes it."""
    named, said = mail.more.get("mentions"), mail.more.get("metadata")
    valid = named.get("valid") if isinstance(named, dict) else None
    about: Any = said.get("session") if isinstance(said, dict) else None
    hops = about.get("hops") if isinstance(about, dict) else None
    return ReceivedMessage(
        mail.id,
        ConversationAdapter.name,
        mail.conversation,
        mail.from_,
        mail.content,
        mail.timestamp,
        thread=mail.more.get("thread") or "",
        title=seat.item.name if seat.item is not None else seat.participation.title,
        is_group=mail.type != "direct",
        mentions=frozenset([*(valid or ()), *([seat.agent] if mail.mention else [])]),
        to=frozenset([seat.agent]),
        reply_to=mail.reply_to or "",
        known=known,
        hops=max(hops, 0) if type(hops) is int else 0,
        attachments=tuple(mail.more.get("attachments") or ()),
        editable=True,
    )
