"""Sending messages to agents, and getting them.

What must stay true: a message that was sent is in the conversation's file, whatever becomes of doorbells and notices.
The sender reads no index, and lists no agents, unless one is woken or away.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.format.message import check_message
from capsule.messaging import notices
from capsule.messaging.conversations import direct_id, ensure_direct
from capsule.messaging.cursors import first_unread
from capsule.messaging.doorbells import registry as doorbells
from capsule.messaging.listening import Listener, Places
from capsule.messaging.mail import Heard, History, Inbox, Mail, Sent
from capsule.messaging.receipts import Receipts, marks_in
from capsule.messaging.unread import TYPES, Unread
from capsule.store.appends import appended, keyed_message

if TYPE_CHECKING:
    from capsule.store.change import Conversation
    from capsule.store.store import Store

#: A wait that begins this soon after the last one of the same listener goes on where that one stood, in seconds.
_RESUMES_S = 10.0


class Messages:
    """Messages from agent to agent. `agent` is who sends or reads; None: the one that the store acts for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        #: When the last wait of a listener (an agent, a conversation, a thread) ended, and where it stood.
        self._stood: dict[tuple[str, str | None, int], tuple[float, Places]] = {}

    def send(
        self,
        text: str,
        *,
        agent: str | None = None,
        to: str | None = None,
        conversation: str | None = None,
        reply_to: str | None = None,
        idempotency_key: str | None = None,
    ) -> Sent:
        """Send a message to another agent or into a conversation; it is durable when this returns.

        Args:
            text: The text.
            agent: The sender.
            to: The recipient. Their direct is made by the first message.
            conversation: A direct or a group, in place of `to`. Neither: the only other agent of the store.
            reply_to: The id of the message that it answers.
            idempotency_key: A key for this one message. A retry with the same key writes nothing.

        Raises:
            NotFound: There is no such agent or conversation.
            InvalidInput: An argument can't be accepted, or the message would reach nobody.
            Refused: The sender does not take part in the conversation, or writes to itself.
            StoreBusy, StorageFailed: The system did not permit it.

        Cost: as `append`, and a look at each recipient and at each instance that is alive.
        """
        sender = self._store.agents.documents.known(self._store._subject(agent))
        if to is not None and conversation is not None:
            raise InvalidInput("give `to` or `conversation`, and not both")
        if conversation is None:
            to = self._store.agents.documents.known(self._only_other(sender) if to is None else to)
            conversation = direct_id(sender, to)
        self._store.agents.documents.seen(sender)
        message: dict[str, Any] = {"role": "user", "content": text, "from": sender, "replyTo": reply_to}
        if idempotency_key is None:
            checked = [check_message(message)]
        else:
            checked = [keyed_message(conversation, idempotency_key, message)]
        acting = self._store._acting(sender)

        def act(inside: Conversation) -> tuple[str, list[str]]:
            recipients = self._recipients(inside, sender, to)
            if reply_to is not None and not inside.has(reply_to):
                raise InvalidInput(f"reply_to: {reply_to[:80]!r} is the id of no message in conversation {inside.id}")
            before = None if idempotency_key is None else appended(inside, checked[0])
            entry = before[1] if before else inside.append(checked)[1][0]
            return entry["id"], recipients

        try:
            id, recipients = acting._change(conversation, act)
        except NotFound:
            if to is None:
                raise
            id, recipients = acting._change(ensure_direct(acting, sender, to), act)
        return Sent(conversation, id, self._told(recipients))

    def _only_other(self, agent: str) -> str:
        others = [id for id in self._store.agents.documents.ids() if id != agent]
        if len(others) == 1:
            return others[0]
        raise InvalidInput(
            f"say to whom, or in which conversation; the other agents are: {', '.join(others) or 'none'}"
        )

    def _told(self, recipients: list[str]) -> dict[str, str]:
        """Ring for the recipients that don't listen, and leave word for those that are away; what became of each."""
        presence, states = self._owner.agents.presence, dict.fromkeys(recipients, "stored")
        idle = [recipient for recipient in recipients if not presence.listened(recipient)]
        online = presence.online() if idle else {}
        for recipient in idle:
            if online.get(recipient):
                continue
            if doorbells.ring(self._owner, recipient, partial(self._owner.messages.pointer, recipient)):
                states[recipient] = "rung"
            if recipient not in online:
                notices.update(self._owner, recipient)
        return states

    def _recipients(self, conversation: Conversation, sender: str, known: str | None) -> list[str]:
        type, there = conversation.head.type, [each.id for each in conversation.head.participants if each.is_in]
        if type not in TYPES:
            raise InvalidInput(f"conversation {conversation.id} is a {type}; messages go into directs and groups")
        others = [id for id in there if id != sender and (id == known or self._store.agents.documents.exists(id))]
        if not others:
            raise InvalidInput(f"nobody else takes part in conversation {conversation.id}, so nobody would get this")
        return others

    def status(self, message: str, *, agent: str | None = None) -> Sent:
        """Say what became of a message: for each recipient `stored`, `rung` or `read`.

        Args:
            message: The message's id.
            agent: Who asks; None: the one that the store acts for, or the store's owner.

        Raises:
            NotFound: There is no such message.
            Refused: The agent does not take part in the conversation.

        Cost: bringing the index up to date, and a look at each recipient.
        """
        placed = self._owner.index.conversation_of(message)
        if placed is None:
            raise NotFound(f"no agent was sent a message {message[:80]!r}", id=message)
        id, at = placed
        head, sent = self._reader(agent).head(id), self._reader(agent).find_message(id, f"@{at}")
        states = {}
        for member in head.participants:
            time = sent.timestamp or ""
            was_in = member.joined_at <= time and (not member.left_at or member.left_at > time or member.is_in)
            if was_in and member.id != sent.from_:
                cursor = self._owner.agents.documents.cursors(member.id).get(id)
                is_read = first_unread(cursor, partial(self._owner.index.message_ids, id)) > at
                rung = not is_read and doorbells.was_rung(self._owner, member.id, time)
                states[member.id] = "read" if is_read else "rung" if rung else "stored"
        return Sent(id, message, states)

    def _reader(self, agent: str | None) -> Store:
        who = agent or self._store.agent
        return self._owner if who is None else self._store._acting(self._store._subject(who))

    @cached_property
    def _owner(self) -> Store:
        """The store as its owner sees it."""
        return self._store._acting(None)

    @cached_property
    def _unread(self) -> Unread:
        return Unread(self._owner)

    @cached_property
    def _receipts(self) -> Receipts:
        return Receipts(self._owner)

    # -- Reading ---------------------------------------------------------------------------------------------------

    def listen(
        self, *, agent: str | None = None, timeout_s: float = 0, conversation: str | None = None, limit: int = 100
    ) -> Heard:
        """Return what is unread; if nothing is, wait for it.

        What an earlier call on this store returned to the agent counts as read from now on. What this one returns is
        read when it is acknowledged, by `ack` or by the next call; else the agent gets it again. Any number of
        listeners of one agent may wait, and each gets what comes.

        Args:
            agent: The reader.
            timeout_s: How long to wait, in seconds; 0: not at all.
            conversation: Only this conversation; None: all in which the agent takes part.
            limit: The largest number of messages.

        Raises:
            NotFound: There is no such agent or conversation.
            Refused: The agent does not take part in the conversation.

        Cost: as `inbox`, and reading the messages; waiting costs next to nothing.
        """
        who = self._store.agents.documents.known(self._store._subject(agent))
        listener = self._begin(who, conversation, limit, timeout_s, threading.get_ident())
        mail, until = listener.look(), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with self._store._acting(who).agents.presence.listening(who):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = self._owner.wait_for_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break  # The time is up, or the store was closed.
                    mail = listener.look_at(changes)
        return self._heard(who, conversation, listener, mail)

    async def await_mail(
        self, *, agent: str | None = None, timeout_s: float = 0, conversation: str | None = None, limit: int = 100
    ) -> Heard:
        """Return what is unread, or wait for it, as `listen` does, in an event loop. No thread waits.

        Args:
            agent, timeout_s, conversation, limit: As `listen` takes them.

        Raises and costs as `listen`.
        """
        from asyncio import to_thread  # A short command needs no event loop, and asyncio takes long to import.

        who = self._store.agents.documents.known(self._store._subject(agent))
        listener = await to_thread(self._begin, who, conversation, limit, timeout_s, threading.get_ident())
        mail, until = await to_thread(listener.look), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with self._store._acting(who).agents.presence.listening(who):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = await self._owner.await_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break
                    mail = await to_thread(listener.look_at, changes)
        return self._heard(who, conversation, listener, mail)

    def _begin(self, who: str, conversation: str | None, limit: int, timeout_s: float, thread: int) -> Listener:
        if limit < 1:
            raise InvalidInput("limit: at least one message")
        if conversation is not None:
            self._store._acting(who).head(conversation)  # Raises if it may not listen there.
        self._store.agents.serve(who)
        self._store.agents.documents.seen(who)
        since = self._owner.changes().cursor  # First, so that what comes from here on ends the wait.
        self._receipts.acknowledge_given(who, refresh=False)
        ended, stood = self._stood.pop((who, conversation, thread), (0.0, None))
        if timeout_s <= 0 or time.monotonic() - ended > _RESUMES_S:
            stood = None
        return Listener(self._owner, self._unread, since, who, conversation, limit, stood)

    def _heard(self, agent: str, conversation: str | None, listener: Listener, mail: list[Mail]) -> Heard:
        self._stood[agent, conversation, threading.get_ident()] = time.monotonic(), listener.places
        return Heard(mail, self._receipts.given(agent, mail), timed_out=not mail)

    def ack(
        self,
        *,
        agent: str | None = None,
        cursor: str | None = None,
        conversation: str | None = None,
        message: str | None = None,
    ) -> None:
        """Acknowledge messages: from now on they are read.

        Args:
            agent: The reader.
            cursor: `Heard.cursor`. None, without a conversation: all that `listen` returned on this store.
            conversation: In place of a cursor: everything in this conversation, up to `message`.
            message: The id of the last message that was read; None: the last one that there is.

        Raises:
            NotFound: There is no such agent, conversation or message.
            InvalidInput: The cursor can't be accepted.

        Cost: writing a small file.
        """
        who = self._store.agents.documents.known(self._store._subject(agent))
        if cursor is not None:
            self._receipts.acknowledge(who, marks_in(cursor))
        elif conversation is None:
            self._receipts.acknowledge_given(who)
        else:
            count = self._store._acting(who).engine.tail(conversation, 0)[1]
            place = count - 1 if message is None else self._owner.index.place_of(conversation, message)
            if place is None:
                raise NotFound(f"conversation {conversation} has no message {message!r:.100}", id=str(message))
            self._receipts.acknowledge_place(who, conversation, place)

    def inbox(self, *, agent: str | None = None) -> Inbox:
        """List the conversations with unread messages, the latest first. It marks nothing as read.

        Args:
            agent: The reader.

        Raises NotFound, Refused. Cost: bringing the index up to date, and some microseconds for each conversation.
        """
        return self._unread.inbox(self._store.agents.documents.known(self._store._subject(agent)))

    def pointer(self, agent: str | None = None) -> str:
        """Say how much is unread and from whom: `2 unread from anna, build-bot`. Empty: nothing is.

        Args:
            agent: The reader.

        Raises and costs as `inbox`.
        """
        return self.inbox(agent=agent).pointer

    def history(
        self,
        conversation: str,
        *,
        agent: str | None = None,
        limit: int = 20,
        before: str | None = None,
        after: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> History:
        """Read a page of a conversation: its newest messages, or those next to an earlier page. It marks nothing as
        read.

        Args:
            conversation: The conversation.
            agent: The reader; None: the one that the store acts for, or the store's owner.
            limit: The largest number of messages.
            before: `History.before` of another page: the messages before it.
            after: `History.after` of another page: the messages after it.
            where: Only messages that fit this filter, as `Store.search` takes it.

        Raises:
            NotFound: There is no such conversation.
            Refused: The agent does not take part in it.
            InvalidInput: A cursor or the filter can't be accepted.

        Cost: as `page`.
        """
        acting = self._reader(agent)
        if before is not None and after is not None:
            raise InvalidInput("give `before` or `after`, and not both")
        page = acting.page(conversation, limit, cursor=before or after, where=where)
        type = acting.head(conversation).type
        mail = [Mail.of(conversation, type, at, entry) for at, entry in page.entries]
        return History(mail, page.older(), page.newer())
