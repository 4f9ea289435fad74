"""Sending messages to agents, and getting them.

What must stay true: a message that was sent is in the conversation's file, whatever becomes of doorbells and notices.
What `listen` returned is read when it was acknowledged, and no earlier, so that an agent that dies in between gets it
again. The sender reads no index.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from capsule.errors import InvalidInput, NotFound
from capsule.format.message import check_message
from capsule.messaging.conversations import direct_id, ensure_direct
from capsule.messaging.cursors import cursor_at, first_unread
from capsule.messaging.listening import Listener
from capsule.messaging.mail import Heard, History, Inbox, Mail, Sent
from capsule.messaging.unread import TYPES, ids_in, inbox_of
from capsule.store.appends import appended, keyed_message

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capsule.engines.changes import Changes
    from capsule.store.change import Conversation
    from capsule.store.store import Store

#: A wait that begins this soon after the last one of the same listener goes on where that one stood, in seconds.
_RESUMES_S = 10.0
#: For each conversation the place and the id of the last message.
Marks = dict[str, tuple[int, str]]


class Messages:
    """Messages from agent to agent. `agent` is who sends or reads; None: the one that the store acts for."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._guard = threading.Lock()
        #: What `listen` returned and nobody has acknowledged, by agent.
        self._pending: dict[str, Marks] = {}
        #: Where a listener stood when its last wait ended, and when that was.
        self._stood: dict[tuple[str, str | None, int], tuple[float, dict[str, int]]] = {}

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
            recipients = self._recipients(inside, sender)
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
        return Sent(conversation, id, dict.fromkeys(recipients, "stored"))

    def _only_other(self, agent: str) -> str:
        others = [id for id in self._store.agents.documents.ids() if id != agent]
        if len(others) == 1:
            return others[0]
        raise InvalidInput(
            f"say to whom, or in which conversation; the other agents are: {', '.join(others) or 'none'}"
        )

    def _recipients(self, conversation: Conversation, sender: str) -> list[str]:
        type, there = conversation.head.type, [each.id for each in conversation.head.participants if each.is_in]
        if type not in TYPES:
            raise InvalidInput(f"conversation {conversation.id} is a {type}; messages go into directs and groups")
        others = [id for id in there if id != sender and self._store.agents.documents.exists(id)]
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
        acting = self._reader(agent)
        for head in acting.heads():
            if head.type in TYPES:
                with suppress(NotFound):
                    found = acting.find_message(head.id, message)
                    break
        else:
            raise NotFound(f"no agent was sent a message {message[:80]!r}", id=message)
        states, at = {}, found.at or 0
        for member in head.participants:
            if member.id != found.from_ and member.joined_at <= (found.timestamp or ""):
                cursor = self._store.agents.documents.cursors(member.id).get(head.id)
                is_read = first_unread(cursor, partial(ids_in, self._store, head.id)) > at
                states[member.id] = "read" if is_read else "stored"
        return Sent(head.id, str(found.id), states)

    def _reader(self, agent: str | None) -> Store:
        who = agent or self._store.agent
        return self._store if who is None else self._store._acting(self._store._subject(who))

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
        listener, who = self._begin(agent, conversation, limit, timeout_s)
        mail, until = listener.look(), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with self._store._acting(who).agents.presence.listening(who):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = self._store.wait_for_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break  # The time is up, or the store was closed.
                    mail = self._after(listener, changes)
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

        listener, who = await to_thread(self._begin, agent, conversation, limit, timeout_s)
        mail, until = await to_thread(listener.look), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with self._store._acting(who).agents.presence.listening(who):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = await self._store.await_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break
                    mail = await to_thread(self._after, listener, changes)
        return self._heard(who, conversation, listener, mail)

    def _begin(self, agent: str | None, conversation: str | None, limit: int, timeout_s: float) -> tuple[Listener, str]:
        who = self._store.agents.documents.known(self._store._subject(agent))
        if limit < 1:
            raise InvalidInput("limit: at least one message")
        self._store.agents.serve(who)
        self._store.agents.documents.seen(who)
        with self._guard:
            pending = self._pending.pop(who, {})
            ended, stood = self._stood.pop((who, conversation, threading.get_ident()), (0.0, None))
        self._advance(who, pending)
        if time.monotonic() - ended > _RESUMES_S or timeout_s <= 0:
            stood = None
        return Listener(self._store, who, conversation, limit, stood), who

    def _after(self, listener: Listener, changes: Changes) -> list[Mail]:
        listener.since = changes.cursor
        return listener.look_at(changes.changes)

    def _heard(self, agent: str, conversation: str | None, listener: Listener, mail: list[Mail]) -> Heard:
        marks = {each.conversation: (each.at, each.id) for each in mail}
        with self._guard:
            self._pending[agent] = self._pending.get(agent, {}) | marks
            self._stood[agent, conversation, threading.get_ident()] = time.monotonic(), listener.places
        return Heard(mail, _encoded(marks), timed_out=not mail)

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
            marks = _decoded(cursor)
        elif conversation is not None:
            marks = {conversation: self._last(who, conversation, message)}
        else:
            with self._guard:
                marks = self._pending.pop(who, {})
        self._advance(who, marks)

    def _last(self, agent: str, conversation: str, message: str | None) -> tuple[int, str]:
        found = self._store._acting(agent).find_message(conversation, message or "@last")
        return found.at or 0, str(found.id)

    def _advance(self, agent: str, marks: Mapping[str, tuple[int, str]]) -> None:
        """Move the cursors of an agent, each only forward."""
        if not marks:
            return

        def change(document: dict[str, Any]) -> None:
            for id, (place, message) in marks.items():
                ids = partial(ids_in, self._store, id)
                if ids([place]).get(place) != message:
                    continue  # It was moved or removed: what is behind the cursor comes again.
                if first_unread(document["cursors"].get(id), ids) <= place:
                    document["cursors"][id] = cursor_at(place, ids)

        self._store.agents.documents.edit(agent, change)

    def inbox(self, *, agent: str | None = None) -> Inbox:
        """List the conversations with unread messages, the latest first. It marks nothing as read.

        Args:
            agent: The reader.

        Raises NotFound, Refused. Cost: bringing the index up to date, and some microseconds for each conversation.
        """
        return inbox_of(self._store, self._store.agents.documents.known(self._store._subject(agent)))

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
    ) -> History:
        """Read a page of a conversation: its newest messages, or those next to an earlier page. It marks nothing as
        read.

        Args:
            conversation: The conversation.
            agent: The reader; None: the one that the store acts for, or the store's owner.
            limit: The largest number of messages.
            before: `History.before` of another page: the messages before it.
            after: `History.after` of another page: the messages after it.

        Raises:
            NotFound: There is no such conversation.
            Refused: The agent does not take part in it.
            InvalidInput: A cursor can't be accepted.

        Cost: as `page`.
        """
        acting = self._reader(agent)
        if before is not None and after is not None:
            raise InvalidInput("give `before` or `after`, and not both")
        page = acting.page(conversation, limit, cursor=before or after)
        type = acting.head(conversation).type
        mail = [Mail.of(conversation, type, at, entry) for at, entry in page.entries]
        return History(mail, page.older(), page.newer())


def _encoded(marks: Marks) -> str:
    return ",".join(f"{id}:{place}:{quote(message, safe='')}" for id, (place, message) in marks.items())


def _decoded(cursor: str) -> Marks:
    try:
        parts = [part.split(":") for part in cursor.split(",") if part]
        return {id: (int(place), unquote(message)) for id, place, message in parts}
    except ValueError:
        raise InvalidInput("that is no cursor; take `cursor` of what `listen` returned") from None
