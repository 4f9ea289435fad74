"""Getting messages: listening for them, acknowledging them, and looking at what there is.

What must stay true: what was given to an agent is read once the agent acknowledges it, and nothing
else is; looking marks nothing as read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound
from capsule.messaging.mail.cursors import key_of, named_by, part_named
from capsule.messaging.mail.listening import Asked, Listener
from capsule.messaging.mail.mail import Heard, History, Inbox, Mail, Mention
from capsule.messaging.mail.mentions import KINDS
from capsule.messaging.mail.sending import Sending
from capsule.messaging.people.people import People

if TYPE_CHECKING:
    from capsule.messaging.mail.receipts import Receipts
    from capsule.store.store import CoreStore

#: The states of a mention that each word asks for.
_STATES = {"open": ("unread", "read"), "all": ("unread", "read", "done")}
_STATES |= {state: (state,) for state in _STATES["all"]}


class Messages(Sending):
    """Messages from agent to agent. `agent` is who sends or reads; None: the one that the store
    acts for.

    With a `topic`, or the `thread` of a message (the id of its root), only the messages in it
    count. Who listens to a topic has read that topic, and nothing else.
    """

    def __init__(self, store: CoreStore) -> None:
        super().__init__(store)
        #: The last wait of each listener: what it asked for, and its thread.
        self._waits: dict[tuple[Asked, int], Listener] = {}

    @cached_property
    def _receipts(self) -> Receipts:
        from capsule.messaging.mail.receipts import Receipts

        return Receipts(
            self._owner
        )  # Of this object alone: another one gives again what was not acknowledged here.

    def listen(
        self,
        *,
        agent: str | None = None,
        timeout_s: float = 0,
        conversation: str | None = None,
        topic: str | None = None,
        thread: str | None = None,
        limit: int = 100,
    ) -> Heard:
        """Return what is unread; if nothing is, wait for it.

        What an earlier call on this store returned to the agent counts as read from now on. What
        this one returns is read when it is acknowledged, by `ack` or by the next call; else the
        agent gets it again. Any number of listeners of one agent may wait, and each gets what
        comes: a thread that waits again gets also what others of the agent acknowledged since its
        last call.

        Args:
            agent: The reader.
            timeout_s: How long to wait, in seconds; 0: not at all.
            conversation: Only this conversation; None: all in which the agent takes part.
            topic, thread: Only what is in this topic, or in this thread.
            limit: The largest number of messages.

        Raises:
            NotFound: There is no such agent or conversation.
            InvalidInput: Both a topic and a thread are given.
            Refused: The agent does not take part in the conversation.

        Cost: as `inbox`, and reading the messages; waiting costs next to nothing.
        """
        asked = Asked(self._store.inner.subject(agent), conversation, part_named(topic, thread))
        listener = self._begin(asked, limit, timeout_s, threading.get_ident())
        mail, until = listener.look(), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with self._store.inner.acting(asked.agent).inner.part(People).listening(asked.agent):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = self._owner.wait_for_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break  # The time is up, or the store was closed.
                    mail = listener.look_at(changes)
        return self._heard(asked, listener, mail)

    async def await_mail(
        self,
        *,
        agent: str | None = None,
        timeout_s: float = 0,
        conversation: str | None = None,
        topic: str | None = None,
        thread: str | None = None,
        limit: int = 100,
    ) -> Heard:
        """Return what is unread, or wait for it, as `listen` does, in an event loop. No thread
        waits.

        Args:
            agent, timeout_s, conversation, topic, thread, limit: As `listen` takes them.

        Raises:
            NotFound: There is no such agent or conversation.
            InvalidInput: Both a topic and a thread are given.
            Refused: The agent does not take part in the conversation.

        Cost: bringing the index up to date, and reading the messages; waiting costs next to
        nothing.
        """
        from asyncio import (
            to_thread,
        )  # A short command needs no event loop, and asyncio takes long to import.

        asked = Asked(self._store.inner.subject(agent), conversation, part_named(topic, thread))
        listener = await to_thread(self._begin, asked, limit, timeout_s, threading.get_ident())
        mail, until = await to_thread(listener.look), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with self._store.inner.acting(asked.agent).inner.part(People).listening(asked.agent):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = await self._owner.await_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break
                    mail = await to_thread(listener.look_at, changes)
        return self._heard(asked, listener, mail)

    def _begin(self, asked: Asked, limit: int, timeout_s: float, caller: int) -> Listener:
        who, questions = asked.agent, self._unread.questions
        if limit < 1:
            raise InvalidInput("limit: at least one message")
        self._people.documents.seen(who)
        since = questions.changes(
            None, 1
        ).cursor  # First, so that what comes from here on ends the wait.
        _, document, version = wishes = self._unread.wishes(who)
        if version is None:
            self._people.known(who)
        acting = self._store.inner.acting(who)
        if asked.conversation is not None:
            acting.head(asked.conversation)  # Raises if it may not listen there.
        acting.inner.part(People).announce(who)
        before = self._waits.pop((asked, caller), None)
        listener = Listener(
            self._unread, since, asked, limit, before if timeout_s > 0 else None, wishes
        )
        if marks := self._receipts.pending(who):
            self._receipts.acknowledge(who, marks, version, listener.sit)
        else:
            questions.together(lambda: listener.sit(document))
        return listener

    def _heard(self, asked: Asked, listener: Listener, mail: list[Mail]) -> Heard:
        self._waits[asked, threading.get_ident()] = listener
        return Heard(
            mail, self._receipts.note_given(asked.agent, mail, asked.part), timed_out=not mail
        )

    def ack(
        self,
        *,
        agent: str | None = None,
        cursor: str | None = None,
        conversation: str | None = None,
        topic: str | None = None,
        thread: str | None = None,
        message: str | None = None,
    ) -> None:
        """Acknowledge messages: from now on they are read.

        Args:
            agent: The reader.
            cursor: `Heard.cursor`. None, without a conversation: all that `listen` returned on this
                store.
            conversation: In place of a cursor: everything in this conversation, up to `message`.
            topic, thread: Of the conversation, only what is in this topic, or in this thread.
            message: The id of the last message that was read; None: the last one that there is.

        Raises:
            NotFound: There is no such agent, conversation or message.
            InvalidInput: The cursor can't be accepted.

        Cost: writing a small file.
        """
        who, questions = self._people.known(agent), self._owner.questions
        if cursor is not None or conversation is None:
            if (
                marks := self._receipts.pending(who)
                if cursor is None
                else self._receipts.marks_in(cursor)
            ):
                questions.refresh({named_by(key)[0] for key in marks})
                self._receipts.acknowledge(who, marks)
        else:
            acting, part = self._store.inner.acting(who), part_named(topic, thread)
            last = acting.engine.tail(conversation, 0)[1] - 1  # Raises if it may not read there.
            place = (
                (conversation, last) if message is None else questions.find(message, conversation)
            )
            if place is None:
                raise NotFound(
                    f"conversation {conversation} has no message {message!r:.100}", id=str(message)
                )
            mark = message or questions.marks(conversation, [last]).get(last, ("",))[0]
            self._receipts.acknowledge(who, {key_of(conversation, part): (place[1], mark)})

    def inbox(
        self, *, agent: str | None = None, topic: str | None = None, thread: str | None = None
    ) -> Inbox:
        """List the conversations with unread messages, the latest first. It marks nothing as read.

        Args:
            agent: The reader.
            topic, thread: Only what is in this topic, or in this thread.

        Raises NotFound, Refused, InvalidInput. Cost: bringing the index up to date, and some
        microseconds for each conversation.
        """
        return self._unread.inbox(self._people.known(agent), part_named(topic, thread))

    def first_unread(self, conversation: str, *, agent: str | None = None) -> str | None:
        """Find the first message of a conversation that an agent has not read. It marks nothing as
        read.

        Args:
            conversation: The conversation.
            agent: The reader.

        Returns: The message's id; None: the agent has read everything, or does not take part.

        Raises NotFound, Refused. Cost: as `inbox`.
        """
        self._unread.questions.refresh()
        seat = self._unread.seats(self._people.known(agent)).get(conversation)
        unread = [] if seat is None or seat.is_read else self._unread.unread(seat)
        return min(unread, key=lambda place: place.place).message if unread else None

    def pointer(self, agent: str | None = None) -> str:
        """Say how much is unread that may wake the agent, and from whom: `2 unread from anna,
        build-bot`; or nothing.

        Args:
            agent: The reader.

        Raises NotFound, Refused. Cost: bringing the index up to date, and some microseconds for
        each conversation.
        """
        return self._unread.pointer(self._people.known(agent))

    def mentions(
        self,
        *,
        agent: str | None = None,
        state: str = "open",
        kind: str | None = None,
        limit: int = 100,
    ) -> list[Mention]:
        """List the messages that mention an agent where it takes part, the latest first. It marks
        nothing as read.

        A mention is read with its message, and done when the agent says so by `done`.

        Args:
            agent: The agent.
            state: `unread`, `read`, `done`; `open`, which are the unread and the read ones; or
                `all`.
            kind: Only `mention`, `review`, `action` or `fyi`; None: all.
            limit: The largest number of messages.

        Raises NotFound, InvalidInput, Refused. Cost: as `inbox`, a look-up for each mention, and
        reading back to those that are listed.
        """
        who = self._people.known(agent)
        if state not in _STATES or kind not in (None, *KINDS) or limit < 1:
            raise InvalidInput(
                f"a state is {', '.join(_STATES)}; a kind {', '.join(KINDS)}; a limit 1 or more"
            )
        return self._unread.mentions(who, _STATES[state], kind, limit)

    def done(self, message: str, *, agent: str | None = None) -> None:
        """Note that an agent is done with what a message asked of it by mentioning it; `reopen`
        takes it back.

        Args:
            message: The message's id.
            agent: The agent.

        Raises:
            NotFound: No message with this id mentions the agent.

        Cost: as `mentions`, and writing a small file.
        """
        self._mark(message, agent, is_done=True)

    def reopen(self, message: str, *, agent: str | None = None) -> None:
        """Note that an agent is not done with a message that mentioned it, after `done`.

        Args:
            message: The message's id.
            agent: The agent.

        Raises:
            NotFound: No message with this id mentions the agent.

        Cost: as `done`.
        """
        self._mark(message, agent, is_done=False)

    def _mark(self, message: str, agent: str | None, *, is_done: bool) -> None:
        who = self._people.known(agent)
        for mention in self._unread.mentioned(who):
            if mention.message == message:
                return self._receipts.done(who, message, mention.conversation, is_done=is_done)
        raise NotFound(f"no message {message[:80]!r} mentions {who}", id=message)

    def history(
        self,
        conversation: str,
        *,
        agent: str | None = None,
        limit: int = 20,
        before: str | None = None,
        after: str | None = None,
        topic: str | None = None,
        thread: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> History:
        """Read a page of a conversation: its newest messages, or those next to an earlier page. It
        marks nothing as read.

        Args:
            conversation: The conversation.
            agent: The reader; None: the one that the store acts for, or the store's owner.
            limit: The largest number of messages.
            before: `History.before` of another page: the messages before it.
            after: `History.after` of another page: the messages after it.
            topic, thread: Only what is in this topic, or in this thread.
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
        parts = [dict([part])] if (part := part_named(topic, thread)) else []
        only = None
        if asked := [*parts, *([] if where is None else [where])]:
            only = {
                place.message for place in acting.questions.messages({"$and": asked}, conversation)
            }
        from capsule.store.pages import page_of

        page = page_of(acting.engine, conversation, limit, None, before or after, only)
        type = acting.head(conversation).type
        mail = [Mail.of(conversation, type, at, entry) for at, entry in page.entries]
        return History(mail, page.older(), page.newer())
