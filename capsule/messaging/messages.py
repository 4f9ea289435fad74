"""Messages between agents: send, listen, acknowledge, look at what is unread, and read the history.

`send` appends a message to a direct, a group or a channel, under the lock of the conversation. Then
it rings the doorbells of recipients and updates the notices in their projects. `listen` returns
what is unread, or waits for it (`capsule.messaging.unread.MessageListener`). `ack` moves the read
cursors in the document of the agent (`capsule.messaging.receipts`).

What must stay true:
- A message that was sent is in the file of the conversation, whatever happens to doorbells and
  notices.
- The permission to send is checked under the lock of the conversation.
- The sender looks only at the members that the message mentions, and at agents with a doorbell or a
  project on this machine. A channel may have thousands of members.
- A message counts as read once the agent has acknowledged it, and not before. Looking marks nothing
  as read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.agents import direct_id
from capsule.format.documents.message import check_message
from capsule.format.json.canonical import order_message
from capsule.messaging.agents import Agents
from capsule.messaging.directory import KIND_OF_BELLS, KIND_OF_HOMES, StoreAgents
from capsule.messaging.groups import ensure_direct
from capsule.messaging.mail import Heard, History, Inbox, Mail, Mention, Sent
from capsule.messaging.unread import (
    EVERYBODY,
    KINDS,
    TYPES,
    ListenRequest,
    MessageListener,
    NotificationPreference,
    UnreadTracker,
    choose_part,
    cursor_key,
    find_mentions,
    first_unread_position,
    marks_in_cursor,
    parse_cursor_key,
    parts_of_message,
)
from capsule.rules import policy
from capsule.store.change.appends import earlier_keyed_append, ensure_nothing_newer, keyed_message

if TYPE_CHECKING:
    from capsule.format.documents.channels import Channel
    from capsule.format.models import Message
    from capsule.messaging.receipts import Receipts
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore


Entry = dict[str, Any]


#: The states of a mention that each word asks for.
_STATES = {"open": ("unread", "read"), "all": ("unread", "read", "done")}
_STATES |= {state: (state,) for state in _STATES["all"]}


class Messages:
    """Messages from agent to agent. `agent` is who sends or reads; None: the one that the store
    acts for.

    With a `topic`, or the `thread` of a message (the id of its root), only the messages in it
    count. Who listens to a topic has read that topic, and nothing else.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.object_of(StoreAgents)
        #: The last call of each listener: what it asked for, and its thread.
        self._waits: dict[tuple[ListenRequest, int], MessageListener] = {}

    @cached_property
    def _owner(self) -> CoreStore:
        """The store as its owner sees it."""
        return self._store.inner.store_for(None)

    @cached_property
    def _unread(self) -> UnreadTracker:
        return self._owner.inner.object_of(UnreadTracker)

    def _reader(self, agent: str | None) -> CoreStore:
        who = agent or self._store.agent
        return (
            self._owner
            if who is None
            else self._store.inner.store_for(self._store.inner.required_agent(who))
        )

    def send(
        self,
        text: str,
        *,
        agent: str | None = None,
        to: str | None = None,
        conversation: str | None = None,
        channel: str | None = None,
        topic: str | None = None,
        thread: str | None = None,
        reply_to: str | None = None,
        intent: str | None = None,
        priority: str | None = None,
        confidence: float | None = None,
        model: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        idempotency_key: str | None = None,
        seen: str | None = None,
    ) -> Sent:
        """Send a message to another agent or into a conversation; it is durable when this returns.

        The text may mention agents: `@name`, `@name@project`, `@all`; `--review`, `--action` or
        `--fyi` behind a name says what for. What stands in code, in an address or in a URL is no
        mention.

        Args:
            text: The text.
            agent: The sender.
            to: The recipient: an id, a name, or `name@project`. Their direct is made by the first
                message.
            conversation: A direct, a group or a channel, in place of `to`.
            channel: A channel by its name, or `name@project`, in place of `to`. Without any of the
                three: the only other agent of the store.
            topic: What it is about. None: that of the thread, or the channel's own for such
                messages, if it has one.
            thread: The id of a message: this one belongs to its thread.
            reply_to: The id of the message that it answers.
            intent, priority: Words for programs.
            confidence: How sure the sender is, from 0 to 1.
            model: The model that wrote it.
            metadata: More, as JSON.
            idempotency_key: A key for this one message. A retry with the same key writes nothing.
            seen: The last message that the sender saw there, as `Store.append_once` takes it.

        Raises:
            NotFound: There is no such agent, conversation or channel.
            InvalidInput: An argument can't be accepted, the channel requires a topic, the message
                would reach nobody, or others stand behind `seen`.
            Refused: The sender may not write there, or to this agent, or writes to itself.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            StorageFailed: The system refused a read or a write.

        Cost: as `append`; a scan of the directories of doorbells and of projects here, and a look
        at each recipient that has one, and at each instance that is alive. `thread` and `reply_to`
        cost reading back to the message.
        """
        sender = self._people.registered_agent(agent)
        acting = self._store.inner.store_for(sender)
        if (to, conversation, channel).count(None) < 2:
            raise InvalidInput("give one of `to`, `conversation` and `channel`")
        if channel is not None:
            from capsule.messaging.channels import Channels

            conversation = acting.inner.object_of(Channels).resolve(channel, sender)
        elif conversation is None:
            to = (
                self._only_other(sender)
                if to is None
                else self._people.directory.resolve(to, sender)
            )
            conversation = direct_id(sender, to)
        self._people.documents.record_activity(sender)
        message: Entry = {
            "role": "user",
            "content": text,
            "from": sender,
            "topic": topic,
            "replyTo": reply_to,
        }
        message |= {
            "intent": intent,
            "priority": priority,
            "confidence": confidence,
            "model": model,
        }
        message["metadata"] = metadata
        if reply_to is not None:
            self._named_message(acting, conversation, reply_to, "reply_to")
        if thread is not None:
            message |= self._in_thread(acting, conversation, thread, topic)
        keyed = (
            None
            if idempotency_key is None
            else keyed_message(conversation, idempotency_key, message)
        )
        checked, named = [keyed or check_message(message)], self._named(text, sender)

        def act(inside: Conversation) -> tuple[Entry, policy.PolicyTarget]:
            inside.ensure_permitted("append")  # First, as the other refusals say what there is.
            object = policy.PolicyTarget.from_parsed_head(inside.head)
            self._ensure_heard(object, sender, to)
            if (
                keyed is not None
                and (before := earlier_keyed_append(inside.transaction, keyed)) is not None
            ):
                return before[1], object
            if seen is not None:
                ensure_nothing_newer(inside.transaction, seen)
            if more := _default_topic(checked[0], object.channel) | self._mentions(named, object):
                checked[0] = order_message(checked[0] | more)
            return inside.append(checked)[1][0], object

        with self._people.recording_requests(sender):
            try:
                entry, object = acting.inner.change(conversation, act)
            except _TopicMissing as error:
                topics = (
                    str(each.value) for each in self._owner.queries.values("topic", conversation)
                )
                raise InvalidInput(
                    f"{error.message}; it has: {', '.join(topics) or 'none yet'}"
                ) from None
            except NotFound:
                if to is None:
                    raise
                entry, object = acting.inner.change(ensure_direct(acting, sender, to), act)
        return Sent(
            conversation, entry["id"], self._told(entry, object), entry.get("mentions") or {}
        )

    def _only_other(self, agent: str) -> str:
        others = [id for id in self._store.inner.object_of(Agents).names() if id != agent]
        if len(others) == 1:
            return others[0]
        raise InvalidInput(
            "name a recipient or a conversation; the other agents are: "
            f"{', '.join(others) or 'none'}"
        )

    def _in_thread(self, acting: CoreStore, conversation: str, id: str, topic: str | None) -> Entry:
        """The thread that a message is in, and the topic of the thread, unless another one is
        given.
        """
        root = self._named_message(acting, conversation, id, "thread")
        return {"thread": root.get("thread") or id, "topic": topic or root.get("topic")}

    def _named_message(self, acting: CoreStore, conversation: str, id: str, field: str) -> Entry:
        """Return the message that a field of a new message names.

        Args:
            acting: The store as the sender sees it.
            conversation: The conversation of both messages.
            id: The id of the message.
            field: The field.

        Raises InvalidInput: the sender reads no such message there.
        """
        place = self._owner.queries.find(id, conversation)
        found: Entry = {}
        with suppress(
            NotFound
        ):  # Of what it does not find, the sender hears no more than of what is not there.
            found = {} if place is None else message_at(acting, *place)
        if not found:
            raise InvalidInput(
                f"{field}: {id[:80]!r} is the id of no message in conversation {conversation}"
            )
        return found

    def _named(self, text: str, sender: str) -> dict[str, tuple[str, str]]:
        """The names that a text mentions: of each the agent that the sender means (empty: nobody),
        and the kind.
        """
        named = {}
        for name, kind in find_mentions(text).items():
            try:
                id = (
                    EVERYBODY
                    if f"@{name}" == EVERYBODY
                    else self._people.directory.resolve(name, sender)
                )
            except (NotFound, InvalidInput):
                id = ""
            named[name] = id, kind
        return named

    def _ensure_heard(self, object: policy.PolicyTarget, sender: str, to: str | None) -> None:
        """Raise InvalidInput if nobody would get a message. In a channel those who come later read
        it.
        """
        if object.type not in TYPES:
            raise InvalidInput(
                f"conversation {object.id} is a {object.type}; messages go into directs, groups "
                "and channels"
            )
        documents = self._people.documents
        if object.type != "channel" and not any(
            id == to or documents.exists(id) for id in object.present_ids - {sender}
        ):
            raise InvalidInput(
                f"nobody else takes part in conversation {object.id}, so the message has no "
                "recipient"
            )

    def _takes_part(self, agent: str, object: policy.PolicyTarget) -> bool:
        """Whether an agent takes part in a conversation, and may still read it."""
        state = self._people.directory.state(agent, object)
        return (
            policy.relation(agent, object) == "member"
            and policy.decide(agent, "read", object, state).allowed
        )

    def _mentions(self, named: Mapping[str, tuple[str, str]], object: policy.PolicyTarget) -> Entry:
        """The field `mentions` of a message, given what its names mean; nothing without names."""
        if not named:
            return {}
        names: dict[str, list[str]] = {"valid": [], "invalid": [], "unknown": []}
        kinds = {}
        for name, (id, kind) in named.items():
            is_valid = id == EVERYBODY or self._takes_part(id, object)
            names["valid" if is_valid else "invalid" if id else "unknown"].append(
                id if is_valid else name
            )
            if is_valid and kind != KINDS[0]:
                kinds[id] = kind
        about = {key: list(dict.fromkeys(each)) for key, each in names.items()}
        return {"mentions": about | ({"kinds": kinds} if kinds else {})}

    def _told(self, entry: Entry, object: policy.PolicyTarget) -> dict[str, str]:
        """Ring for the recipients that don't listen, and leave word for those that are away; what
        became of each.
        """
        owner, sender, people = self._owner, entry["from"], self._owner.inner.object_of(StoreAgents)
        if object.type == "channel":
            recipients = set((entry.get("mentions") or {}).get("valid", ())) - {EVERYBODY, sender}
        else:
            recipients = {
                id for id in object.present_ids - {sender} if self._people.documents.exists(id)
            }
        states = dict.fromkeys(sorted(recipients), "stored")
        here = {
            id for kind in (KIND_OF_BELLS, KIND_OF_HOMES) for id in owner.engine.local.ids(kind)
        } - {sender}
        idle = [
            id
            for id in sorted(here)
            if policy.relation(id, object) == "member" and not people.was_just_listening(id)
        ]
        online = people.online() if idle else {}
        for agent in idle:
            if online.get(agent) or not self._wakes(agent, entry, object):
                continue
            from capsule.messaging import doorbells, notices

            if doorbells.ring(owner, agent, partial(self._unread.pointer, agent)):
                states[agent] = "rung"
            if agent not in online:
                notices.update(owner, agent)
        return states

    def _wakes(self, agent: str, entry: Entry, object: policy.PolicyTarget) -> bool:
        """Whether a message may wake an agent: it may read it, and wants to hear of it."""
        try:
            reading = self._people.documents.object_in(agent, "reading").get(object.id)
        except InvalidDocument:
            return False  # What it has not read can't be known either.
        interest = NotificationPreference.of(reading, self._people.directory.profile(agent))
        return interest.wakes and interest.counts(entry, agent) and self._takes_part(agent, object)

    def react(self, message: str, emoji: str, *, agent: str | None = None) -> Sent:
        """Answer a message with a sign: a message of the intent `reaction` that replies to it.

        Args:
            message: The message's id.
            emoji: The sign, a character or a short word.
            agent: Who reacts; None: the agent that the store acts for.

        Raises the errors of `send`; NotFound: there is no such message that the agent may read.
        Cost: as `send`.
        """
        _, id, _, about = self._found(message, agent)
        return self.send(
            emoji,
            agent=agent,
            conversation=id,
            thread=about.get("thread"),
            reply_to=message,
            intent="reaction",
        )

    def edit(self, message: str, content: str, *, agent: str | None = None) -> Message:
        """Change the text of a message where it stands, as `edits.message` does. The former text
        goes to the trash.

        Args:
            message: The message's id.
            content: The new text.
            agent: Who edits; None: the one that the store acts for, or the store's owner. An agent
                edits its own.

        Raises the errors of `edits.message`; NotFound: there is no such message that the agent may
        read.

        Cost: reading and writing the whole file.
        """
        reader, id, _, _ = self._found(message, agent)
        return reader.edits.message(id, message, content)

    def _found(self, message: str, agent: str | None) -> tuple[CoreStore, str, int, Entry]:
        """Where a message is, by its id: the store as its reader sees it, the conversation, the
        place, the message.
        """
        reader, sent = self._reader(agent), Entry()
        id, at = self._owner.queries.find(message) or ("", 0)
        with suppress(NotFound, Refused):  # Either would name the conversation.
            sent = message_at(reader, id, at) if id else sent
        if not sent:
            raise NotFound(f"there is no message {message[:80]!r}", id=message)
        return reader, id, at, sent

    def status(self, message: str, *, agent: str | None = None) -> Sent:
        """Say what became of a message: for each recipient `stored`, `rung` or `read`.

        Args:
            message: The message's id.
            agent: Who asks; None: the one that the store acts for, or the store's owner.

        Raises:
            NotFound: There is no such message that the agent may read.

        Cost: bringing the index up to date, and a look at each recipient.
        """
        reader, id, at, sent = self._found(message, agent)
        head = reader.head(id)
        time, keys = (
            sent.get("timestamp") or "",
            [cursor_key(id, part) for part in (None, *parts_of_message(sent))],
        )
        states = {}
        from capsule.messaging.doorbells import was_rung

        for member in head.participants:
            was_in = member.joined_at <= time and (
                not member.left_at or member.left_at > time or member.is_in
            )
            if was_in and member.id != sent.get("from"):
                cursors = self._people.documents.object_in(member.id, "cursors")
                marks_at = partial(self._owner.queries.ids_at, id)
                is_read = any(
                    first_unread_position(marks_in_cursor(cursors.get(key)), marks_at) > at
                    for key in keys
                )
                rung = not is_read and was_rung(self._owner, member.id, time)
                states[member.id] = "read" if is_read else "rung" if rung else "stored"
        return Sent(id, message, states, sent.get("mentions") or {})

    # -- Reading -----------------------------------------------------------------------------------

    @cached_property
    def _receipts(self) -> Receipts:
        from capsule.messaging.receipts import Receipts

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
        asked = ListenRequest(
            self._store.inner.required_agent(agent), conversation, choose_part(topic, thread)
        )
        listener = self._begin(asked, limit, timeout_s, threading.get_ident())
        mail, until = listener.look(), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with (
                self._store.inner.store_for(asked.agent)
                .inner.object_of(StoreAgents)
                .listening(asked.agent)
            ):
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

        asked = ListenRequest(
            self._store.inner.required_agent(agent), conversation, choose_part(topic, thread)
        )
        listener = await to_thread(self._begin, asked, limit, timeout_s, threading.get_ident())
        mail, until = await to_thread(listener.look), time.monotonic() + timeout_s
        if not mail and timeout_s > 0:
            with (
                self._store.inner.store_for(asked.agent)
                .inner.object_of(StoreAgents)
                .listening(asked.agent)
            ):
                while not mail and (left_s := until - time.monotonic()) > 0:
                    changes = await self._owner.await_changes(listener.since, timeout_s=left_s)
                    if not changes.changes:
                        break
                    mail = await to_thread(listener.look_at, changes)
        return self._heard(asked, listener, mail)

    def _begin(
        self, asked: ListenRequest, limit: int, timeout_s: float, caller: int
    ) -> MessageListener:
        who, questions = asked.agent, self._unread.queries
        if limit < 1:
            raise InvalidInput("limit: at least one message")
        self._people.documents.record_activity(who)
        since = questions.changes(
            None, 1
        ).cursor  # First, so that what comes from here on ends the wait.
        _, document, version = wishes = self._unread.wishes(who)
        if version is None:
            self._people.registered_agent(who)
        acting = self._store.inner.store_for(who)
        if asked.conversation is not None:
            acting.head(asked.conversation)  # Raises if it may not listen there.
        acting.inner.object_of(StoreAgents).announce(who)
        before = self._waits.pop((asked, caller), None)
        listener = MessageListener(
            self._unread, since, asked, limit, before if timeout_s > 0 else None, wishes
        )
        if marks := self._receipts.pending(who):
            self._receipts.acknowledge(who, marks, version, listener.sit)
        else:
            questions.in_one_transaction(lambda: listener.sit(document))
        return listener

    def _heard(self, asked: ListenRequest, listener: MessageListener, mail: list[Mail]) -> Heard:
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
        who, questions = self._people.registered_agent(agent), self._owner.queries
        if cursor is not None or conversation is None:
            if (
                marks := self._receipts.pending(who)
                if cursor is None
                else self._receipts.marks_in(cursor)
            ):
                questions.refresh({parse_cursor_key(key)[0] for key in marks})
                self._receipts.acknowledge(who, marks)
        else:
            acting, part = self._store.inner.store_for(who), choose_part(topic, thread)
            last = acting.engine.tail(conversation, 0)[1] - 1  # Raises if it may not read there.
            place = (
                (conversation, last) if message is None else questions.find(message, conversation)
            )
            if place is None:
                raise NotFound(
                    f"conversation {conversation} has no message {message!r:.100}", id=str(message)
                )
            mark = message or questions.ids_at(conversation, [last]).get(last, ("",))[0]
            self._receipts.acknowledge(who, {cursor_key(conversation, part): (place[1], mark)})

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
        return self._unread.inbox(self._people.registered_agent(agent), choose_part(topic, thread))

    def first_unread(self, conversation: str, *, agent: str | None = None) -> str | None:
        """Find the first message of a conversation that an agent has not read. It marks nothing as
        read.

        Args:
            conversation: The conversation.
            agent: The reader.

        Returns: The message's id; None: the agent has read everything, or does not take part.

        Raises NotFound, Refused. Cost: as `inbox`.
        """
        self._unread.queries.refresh()
        seat = self._unread.seats(self._people.registered_agent(agent)).get(conversation)
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
        return self._unread.pointer(self._people.registered_agent(agent))

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
        who = self._people.registered_agent(agent)
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
        who = self._people.registered_agent(agent)
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
        parts = [dict([part])] if (part := choose_part(topic, thread)) else []
        only = None
        if asked := [*parts, *([] if where is None else [where])]:
            only = {
                place.message for place in acting.queries.messages({"$and": asked}, conversation)
            }
        from capsule.store.pages import page_of

        page = page_of(acting.engine, conversation, limit, None, before or after, only)
        type = acting.head(conversation).type
        mail = [Mail.of(conversation, type, at, entry) for at, entry in page.entries]
        return History(mail, page.older(), page.newer())


def message_at(store: CoreStore, conversation: str, place: int) -> Entry:
    """Return the message at a place; empty: there is none that the store's agent may read.

    Cost: reading back to it; again if others appended meanwhile.
    """
    while True:
        count = store.engine.tail(conversation, 0)[1]
        first, entries = store.tail_entries(conversation, count - place)
        if first + len(entries) == count:
            return entries[0] if entries and first == place else {}


class _TopicMissing(InvalidInput):
    """A message without a topic, where one is required."""


def _default_topic(message: Entry, channel: Channel | None) -> Entry:
    """The topic that the channel gives to a message. Raises _NoTopic if the message needs one."""
    if channel is None or message.get("topic"):
        return {}
    if channel.topic_required and not channel.default_topic:
        raise _TopicMissing(f"a message in the channel {channel.name} needs a topic")
    return {"topic": channel.default_topic} if channel.default_topic else {}
