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
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.agents import direct_id
from capsule.format.documents.message import check_message
from capsule.format.json.canonical import order_message
from capsule.messaging.agents import Agents
from capsule.messaging.directory import KIND_OF_BELLS, KIND_OF_HOMES, StoreAgents
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
from capsule.store.watchers import StoreWatchers

if TYPE_CHECKING:
    from capsule.format.documents.channels import Channel
    from capsule.format.models import Message
    from capsule.messaging.receipts import Receipts
    from capsule.messaging.unread import Part
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore


Entry = dict[str, Any]


#: The states of a mention that each word asks for.
_STATES = {"open": ("unread", "read"), "all": ("unread", "read", "done")}
_STATES |= {state: (state,) for state in _STATES["all"]}
#: How often a message is looked up if its position changes between the look-up and the read.
_FIND_TRIES = 4


class Messages:
    """Messages from agent to agent. `agent` is the sender or the reader. None: the one that the
    store acts for.

    With a `topic`, or the `thread` of a message (the id of its root), only the messages in it
    count. An agent that listens to a topic has read that topic, and nothing else.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.object_of(StoreAgents)
        #: The last call of each thread, by what it asked for and the id of the thread.
        self._listeners: dict[tuple[ListenRequest, int], MessageListener] = {}

    @cached_property
    def _owner(self) -> CoreStore:
        """The store as its owner sees it."""
        return self._store.inner.store_for(None)

    @cached_property
    def _unread(self) -> UnreadTracker:
        return self._owner.inner.object_of(UnreadTracker)

    def _store_of_reader(self, agent: str | None) -> CoreStore:
        """Return the store as the given agent sees it, or the one that the store acts for. Without
        any: as its owner sees it.
        """
        reader = agent or self._store.agent
        if reader is None:
            return self._owner
        return self._store.inner.store_for(self._store.inner.required_agent(reader))

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
        """Send a message to another agent or into a conversation. It is durable when this returns.

        The text may mention agents: `@name`, `@name@project`, `@all`. `--review`, `--action` or
        `--fyi` after a name says what for. A name in code, in an address or in a URL is no mention.

        Args:
            text: The text.
            agent: The sender.
            to: The recipient: an id, a name, or `name@project`. The first message to an agent makes
                the direct.
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
            NotFound: The agent, conversation or channel does not exist.
            InvalidInput: An argument can't be accepted, the channel requires a topic, the message
                would reach nobody, or there are newer messages than `seen`.
            Refused: The sender may not write there, or to this agent, or writes to itself.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            StorageFailed: The system refused a read or a write.

        Cost: as `append`; a scan of the directories of doorbells and of projects here, and a look
        at each recipient that has one, and at each instance that is alive. `thread` and `reply_to`
        cost reading back to the message.
        """
        with self._people.directory.reading_once():
            sender = self._people.registered_agent(agent)
            acting = self._store.inner.store_for(sender)
            if (to, conversation, channel).count(None) < 2:
                raise InvalidInput("give one of `to`, `conversation` and `channel`")
            if channel is not None:
                from capsule.messaging.channels import Channels

                conversation = acting.inner.object_of(Channels).resolve(channel, sender)
            elif conversation is None:
                if to is None:
                    to = self._only_other_agent(sender)
                else:
                    to = self._people.directory.resolve(to, sender)
                conversation = direct_id(sender, to)
            self._people.documents.record_activity(sender)
            message: Entry = {
                "role": "user",
                "content": text,
                "from": sender,
                "topic": topic,
                "replyTo": reply_to,
                "intent": intent,
                "priority": priority,
                "confidence": confidence,
                "model": model,
                "metadata": metadata,
            }
            if reply_to is not None:
                self._named_message(acting, conversation, reply_to, "reply_to")
            if thread is not None:
                message |= self._in_thread(acting, conversation, thread, topic)
            if idempotency_key is None:
                checked = check_message(message)
            else:
                checked = keyed_message(conversation, idempotency_key, message)
            append_message = partial(
                self._append,
                message=checked,
                mentions=self._resolve_mentions(text, sender),
                recipient=to,
                is_keyed=idempotency_key is not None,
                seen=seen,
            )
            with self._people.recording_requests(sender):
                try:
                    entry, target = acting.inner.change(conversation, append_message)
                except _TopicMissing as error:
                    raise self._topic_missing(error, conversation) from None
                except NotFound:
                    if to is None:
                        raise
                    # Imported here, because only the first message of two agents needs it.
                    from capsule.messaging.channels import ensure_direct

                    direct = ensure_direct(acting, sender, to)
                    entry, target = acting.inner.change(direct, append_message)
            recipients = self._notify_recipients(entry, target)
            return Sent(conversation, entry["id"], recipients, entry.get("mentions") or {})

    def _append(
        self,
        inside: Conversation,
        *,
        message: Entry,
        mentions: Mapping[str, tuple[str, str]],
        recipient: str | None,
        is_keyed: bool,
        seen: str | None,
    ) -> tuple[Entry, policy.PolicyTarget]:
        """Append a message under the lock of its conversation.

        Args:
            inside: The conversation.
            message: The message, checked.
            mentions: The agents that it mentions, as `_resolve_mentions` returns them.
            recipient: The agent to which it is sent. None: to the conversation.
            is_keyed: Whether its id comes from an idempotency key.
            seen: The last message that the sender saw. None: whatever came meanwhile.

        Returns: The message as it was written, now or by an earlier call with the same key, and the
            conversation as the rules see it.
        """
        inside.ensure_permitted("append")  # First, because other errors name the participants.
        target = policy.PolicyTarget.from_parsed_head(inside.head)
        self._ensure_has_recipient(target, str(message["from"]), recipient)
        if is_keyed:
            earlier = earlier_keyed_append(inside.transaction, message)
            if earlier is not None:
                return earlier[1], target
        if seen is not None:
            ensure_nothing_newer(inside.transaction, seen)
        added_fields = _default_topic(message, target.channel)
        added_fields |= self._mentions_field(mentions, target)
        if added_fields:
            message = order_message(message | added_fields)
        _, entries = inside.append([message])
        return entries[0], target

    def _topic_missing(self, error: _TopicMissing, conversation: str) -> InvalidInput:
        """Return the error for a message without a topic, with the topics that there are."""
        values = self._owner.queries.values("topic", conversation)
        topics = ", ".join(str(topic.value) for topic in values) or "none yet"
        return InvalidInput(f"{error.message}; it has: {topics}")

    def _only_other_agent(self, agent: str) -> str:
        others = [id for id in self._store.inner.object_of(Agents).names() if id != agent]
        if len(others) == 1:
            return others[0]
        raise InvalidInput(
            "name a recipient or a conversation; the other agents are: "
            f"{', '.join(others) or 'none'}"
        )

    def _in_thread(self, acting: CoreStore, conversation: str, id: str, topic: str | None) -> Entry:
        """Return the fields of a message in a thread. Its topic is that of the thread, unless another
        one is given.

        Args:
            id: The id of any message in the thread.
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
        located = None
        # A conversation that the sender may not know of is reported like one that is not there.
        with suppress(NotFound):
            located = self._find_message(acting, id, conversation)
        if located is None:
            raise InvalidInput(
                f"{field}: {id[:80]!r} is not the id of a message in conversation {conversation}"
            )
        _, _, entry = located
        return entry

    def _find_message(
        self, reader: CoreStore, message: str, conversation: str | None = None
    ) -> tuple[str, int, Entry] | None:
        """Return the conversation of a message, its position there, and the message. None: there is
        no such message that the reader may read.

        Args:
            reader: The store as the reader sees it.
            message: The id of the message.
            conversation: Only this conversation. None: all.

        Raises NotFound, Refused: the reader may not read that conversation.
        """
        from capsule.store.pages import entry_at

        for _ in range(_FIND_TRIES):
            located = self._owner.queries.find(message, conversation)
            if located is None:
                return None
            entry = entry_at(reader.engine, *located)
            if entry.get("id") == message:
                return *located, entry
            # The reader may not read it, or somebody removed or restored a message before it.
        return None

    def _resolve_mentions(self, text: str, sender: str) -> dict[str, tuple[str, str]]:
        """Return the names that a text mentions, each with the id of the agent that the sender means
        and the kind of the mention. The id is empty if there is no such agent.
        """
        mentions = {}
        for name, kind in find_mentions(text).items():
            if f"@{name}" == EVERYBODY:
                mentions[name] = EVERYBODY, kind
                continue
            try:
                id = self._people.directory.resolve(name, sender)
            except (NotFound, InvalidInput):
                id = ""
            mentions[name] = id, kind
        return mentions

    def _ensure_has_recipient(
        self, target: policy.PolicyTarget, sender: str, recipient: str | None
    ) -> None:
        """Raise InvalidInput if nobody would get a message. In a channel later members read it, too."""
        if target.type not in TYPES:
            raise InvalidInput(
                f"conversation {target.id} is a {target.type}; messages go into directs, groups "
                "and channels"
            )
        if target.type == "channel":
            return
        documents = self._people.documents
        others = target.present_ids - {sender}
        if not any(id == recipient or documents.exists(id) for id in others):
            raise InvalidInput(
                f"nobody else takes part in conversation {target.id}, so the message has no "
                "recipient"
            )

    def _takes_part(self, agent: str, target: policy.PolicyTarget) -> bool:
        """Return whether an agent takes part in a conversation, and may still read it."""
        inputs = self._people.directory.state(agent, target)
        if policy.relation(agent, target) != "member":
            return False
        return policy.decide(agent, "read", target, inputs).allowed

    def _mentions_field(
        self, mentions: Mapping[str, tuple[str, str]], target: policy.PolicyTarget
    ) -> Entry:
        """Return the field `mentions` of a message. Empty: it mentions nobody.

        Args:
            mentions: The agents that it mentions, as `_resolve_mentions` returns them.
            target: The conversation. Only its members can be mentioned.
        """
        if not mentions:
            return {}
        valid: list[str] = []
        invalid: list[str] = []
        unknown: list[str] = []
        kinds = {}
        for name, (id, kind) in mentions.items():
            if id == EVERYBODY or self._takes_part(id, target):
                valid.append(id)
                if kind != KINDS[0]:
                    kinds[id] = kind
            elif id:
                invalid.append(name)
            else:
                unknown.append(name)
        lists = {"valid": valid, "invalid": invalid, "unknown": unknown}
        field: dict[str, Any] = {key: list(dict.fromkeys(ids)) for key, ids in lists.items()}
        if kinds:
            field["kinds"] = kinds
        return {"mentions": field}

    def _notify_recipients(self, entry: Entry, target: policy.PolicyTarget) -> dict[str, str]:
        """Ring the doorbells of members that do not listen, and update the notices of members that
        are away. Only agents with a doorbell or a project on this machine are looked at.

        Returns: For each recipient `stored` or `rung`. The recipients of a message in a channel are
            the mentioned members, and those whose doorbell was rung.
        """
        owner = self._owner
        sender = entry["from"]
        people = owner.inner.object_of(StoreAgents)
        if target.type == "channel":
            mentioned = (entry.get("mentions") or {}).get("valid", ())
            recipients = set(mentioned) - {EVERYBODY, sender}
        else:
            others = target.present_ids - {sender}
            recipients = {id for id in others if self._people.documents.exists(id)}
        states = dict.fromkeys(sorted(recipients), "stored")
        reachable = {*owner.engine.local.ids(KIND_OF_BELLS), *owner.engine.local.ids(KIND_OF_HOMES)}
        idle = []
        for id in sorted(reachable - {sender}):
            if policy.relation(id, target) == "member" and not people.was_just_listening(id):
                idle.append(id)
        online = people.online() if idle else {}
        for agent in idle:
            if online.get(agent) or not self._may_wake(agent, entry, target):
                continue
            from capsule.messaging import doorbells, notices

            if doorbells.ring(owner, agent, partial(self._unread.pointer, agent)):
                states[agent] = "rung"
            if agent not in online:
                notices.update(owner, agent)
        return states

    def _may_wake(self, agent: str, entry: Entry, target: policy.PolicyTarget) -> bool:
        """Return whether a message may wake an agent: it may read the message, and wants to be
        notified of it.
        """
        try:
            preferences = self._people.documents.object_in(agent, "reading").get(target.id)
        except InvalidDocument:
            return (
                False  # Its read cursors are in the same document, so nothing is known as unread.
            )
        profile = self._people.directory.profile(agent)
        preference = NotificationPreference.of(preferences, profile)
        if not preference.wakes or not preference.counts_as_unread(entry, agent):
            return False
        return self._takes_part(agent, target)

    def react(self, message: str, emoji: str, *, agent: str | None = None) -> Sent:
        """Reply to a message with an emoji. The reply is a message with the intent `reaction`.

        Args:
            message: The message's id.
            emoji: A character or a short word.
            agent: The agent that reacts. None: the one that the store acts for.

        Raises the errors of `send`. NotFound: there is no such message that the agent may read.
        Cost: as `send`.
        """
        _, id, _, entry = self._locate_message(message, agent)
        return self.send(
            emoji,
            agent=agent,
            conversation=id,
            thread=entry.get("thread"),
            reply_to=message,
            intent="reaction",
        )

    def edit(self, message: str, content: str, *, agent: str | None = None) -> Message:
        """Change the text of a message in place, as `edits.message` does. The former text goes to
        the trash.

        Args:
            message: The message's id.
            content: The new text.
            agent: The agent that edits. None: the one that the store acts for, or the store's owner.
                An agent edits its own messages only.

        Raises the errors of `edits.message`. NotFound: there is no such message that the agent may
        read.

        Cost: reading and writing the whole file.
        """
        reader, id, _, _ = self._locate_message(message, agent)
        return reader.edits.message(id, message, content)

    def _locate_message(self, message: str, agent: str | None) -> tuple[CoreStore, str, int, Entry]:
        """Return the store as the reader sees it, the conversation of a message, the position of the
        message there, and the message. Raises NotFound.
        """
        reader = self._store_of_reader(agent)
        located = None
        with suppress(NotFound, Refused):  # Either would name the conversation.
            located = self._find_message(reader, message)
        if located is None:
            raise NotFound(f"there is no message {message[:80]!r}", id=message)
        return reader, *located

    def status(self, message: str, *, agent: str | None = None) -> Sent:
        """Return for each recipient of a message whether it is `stored`, `rung` or `read`.

        Args:
            message: The message's id.
            agent: The reader. None: the one that the store acts for, or the store's owner.

        Raises:
            NotFound: There is no such message that the agent may read.

        Cost: bringing the index up to date, and a look at each recipient.
        """
        from capsule.messaging.doorbells import was_rung

        reader, id, position, entry = self._locate_message(message, agent)
        time = entry.get("timestamp") or ""
        keys = [cursor_key(id, part) for part in (None, *parts_of_message(entry))]
        states = {}
        for member in reader.head(id).participants:
            had_left = bool(member.left_at) and member.left_at <= time and not member.is_in
            if member.joined_at > time or had_left or member.id == entry.get("from"):
                continue
            if self._has_read(member.id, id, position, keys):
                states[member.id] = "read"
            elif was_rung(self._owner, member.id, time):
                states[member.id] = "rung"
            else:
                states[member.id] = "stored"
        return Sent(id, message, states, entry.get("mentions") or {})

    def _has_read(self, agent: str, conversation: str, position: int, keys: Iterable[str]) -> bool:
        """Return whether one of some read cursors of an agent is after a position."""
        cursors = self._people.documents.object_in(agent, "cursors")
        marks_at = partial(self._owner.queries.ids_at, conversation)
        return any(
            first_unread_position(marks_in_cursor(cursors.get(key)), marks_at) > position
            for key in keys
        )

    # -- Reading -----------------------------------------------------------------------------------

    @cached_property
    def _receipts(self) -> Receipts:
        from capsule.messaging.receipts import Receipts

        # Of this object alone: another one returns again what was not acknowledged here.
        return Receipts(self._owner)

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
        """Return what is unread. If nothing is, wait for it.

        The messages that an earlier call on this store returned to the agent are acknowledged by
        this call. Those that this call returns are read once `ack` or the next call acknowledges
        them. Otherwise the agent gets them again. Any number of listeners of one agent may wait, and
        each gets every message: a thread that waits again also gets what others of the agent
        acknowledged since its last call.

        Args:
            agent: The reader.
            timeout_s: How long to wait, in seconds. 0: not at all.
            conversation: Only this conversation. None: all in which the agent takes part.
            topic, thread: Only messages in this topic, or in this thread.
            limit: The largest number of messages.

        Raises:
            NotFound: The agent or the conversation does not exist.
            InvalidInput: Both a topic and a thread are given.
            Refused: The agent does not take part in the conversation.

        Cost: as `inbox`, and reading the messages. Waiting costs next to nothing.
        """
        request = self._request(agent, conversation, topic, thread)
        listener = self._start_listener(request, limit, timeout_s, threading.get_ident())
        mail = listener.first_batch()
        if not mail and timeout_s > 0:
            deadline = time.monotonic() + timeout_s
            watchers = self._owner.inner.object_of(StoreWatchers)
            with self._listening(request.agent):
                while not mail:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        break
                    cursor = listener.change_cursor
                    changes = watchers.wait_for(listener.interest, cursor, left_s)
                    if not changes.changes:
                        break  # The time is up, or the store was closed.
                    mail = listener.process_changes(changes)
        return self._finish_listen(request, listener, mail)

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
            NotFound: The agent or the conversation does not exist.
            InvalidInput: Both a topic and a thread are given.
            Refused: The agent does not take part in the conversation.

        Cost: bringing the index up to date, and reading the messages. Waiting costs next to
        nothing.
        """
        # Imported here: it takes long, and a short command needs no event loop.
        from asyncio import to_thread

        request = self._request(agent, conversation, topic, thread)
        listener = await to_thread(
            self._start_listener, request, limit, timeout_s, threading.get_ident()
        )
        mail = await to_thread(listener.first_batch)
        if not mail and timeout_s > 0:
            deadline = time.monotonic() + timeout_s
            watchers = self._owner.inner.object_of(StoreWatchers)
            with self._listening(request.agent):
                while not mail:
                    left_s = deadline - time.monotonic()
                    if left_s <= 0:
                        break
                    cursor = listener.change_cursor
                    changes = await watchers.wait_for_in_loop(listener.interest, cursor, left_s)
                    if not changes.changes:
                        break  # The time is up, or the store was closed.
                    mail = await to_thread(listener.process_changes, changes)
        return self._finish_listen(request, listener, mail)

    def _request(
        self, agent: str | None, conversation: str | None, topic: str | None, thread: str | None
    ) -> ListenRequest:
        reader = self._store.inner.required_agent(agent)
        return ListenRequest(reader, conversation, choose_part(topic, thread))

    def _listening(self, agent: str) -> AbstractContextManager[None]:
        """Announce to other processes that an agent listens, until the end of the block."""
        acting = self._store.inner.store_for(agent)
        return acting.inner.object_of(StoreAgents).listening(agent)

    def _start_listener(
        self, request: ListenRequest, limit: int, timeout_s: float, thread_id: int
    ) -> MessageListener:
        """Make the listener of a call, and acknowledge what the last call returned."""
        if limit < 1:
            raise InvalidInput("limit: at least one message")
        agent = request.agent
        queries = self._unread.queries
        self._people.documents.record_activity(agent)
        # Before anything is read, so that every later change ends the wait.
        change_cursor = queries.changes(None, 1).cursor
        context = self._unread.read_context(agent)
        _, document, version = context
        if version is None:
            self._people.registered_agent(agent)  # Raises if there is no such agent.
        acting = self._store.inner.store_for(agent)
        if request.conversation is not None:
            acting.head(request.conversation)  # Raises if it may not listen there.
        acting.inner.object_of(StoreAgents).announce(agent)
        previous = self._listeners.pop((request, thread_id), None)
        if timeout_s <= 0:
            previous = None
        listener = MessageListener(self._unread, change_cursor, request, limit, previous, context)
        marks = self._receipts.take_pending(agent)
        if marks:
            self._receipts.acknowledge(agent, marks, version, listener.prepare)
        else:
            queries.in_one_transaction(lambda: listener.prepare(document))
        return listener

    def _finish_listen(
        self, request: ListenRequest, listener: MessageListener, mail: list[Mail]
    ) -> Heard:
        """Return the answer of a call, and keep its listener for the next call of this thread."""
        self._listeners[request, threading.get_ident()] = listener
        cursor = self._receipts.record_returned(request.agent, mail, request.part)
        return Heard(mail, cursor, timed_out=not mail)

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
        """Acknowledge messages. From now on they are read.

        Args:
            agent: The reader.
            cursor: `Heard.cursor`. None, without a conversation: all that `listen` returned on this
                store.
            conversation: In place of a cursor: everything in this conversation, up to `message`.
            topic, thread: Of the conversation, only what is in this topic, or in this thread.
            message: The id of the last message that was read. None: the last one of the
                conversation.

        Raises:
            NotFound: The agent, conversation or message does not exist.
            InvalidInput: The cursor can't be accepted.

        Cost: writing a small file.
        """
        reader = self._people.registered_agent(agent)
        if cursor is None and conversation is not None:
            part = choose_part(topic, thread)
            self._acknowledge_up_to(reader, conversation, part, message)
            return
        if cursor is None:
            marks = self._receipts.take_pending(reader)
        else:
            marks = self._receipts.parse_cursor(cursor)
        if marks:
            self._owner.queries.refresh({parse_cursor_key(key)[0] for key in marks})
            self._receipts.acknowledge(reader, marks)

    def _acknowledge_up_to(
        self, reader: str, conversation: str, part: Part | None, message: str | None
    ) -> None:
        """Acknowledge a conversation up to a message. None: up to its end."""
        queries = self._owner.queries
        engine = self._store.inner.store_for(reader).engine
        _, count, _ = engine.tail(conversation, 0)  # Raises if it may not read there.
        if message is None:
            position = count - 1
            message = queries.ids_at(conversation, [position]).get(position, ("",))[0]
        else:
            located = queries.find(message, conversation)
            if located is None:
                raise NotFound(
                    f"conversation {conversation} has no message {message!r:.100}", id=message
                )
            position = located[1]
        self._receipts.acknowledge(reader, {cursor_key(conversation, part): (position, message)})

    def inbox(
        self, *, agent: str | None = None, topic: str | None = None, thread: str | None = None
    ) -> Inbox:
        """List the conversations with unread messages, the latest first. It marks nothing as read.

        Args:
            agent: The reader.
            topic, thread: Only messages in this topic, or in this thread.

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

        Returns: The message's id. None: the agent has read everything, or does not take part.

        Raises NotFound, Refused. Cost: as `inbox`.
        """
        self._unread.queries.refresh()
        reader = self._people.registered_agent(agent)
        state = self._unread.reading_states(reader).get(conversation)
        if state is None or state.is_read:
            return None
        unread = self._unread.unread(state)
        if not unread:
            return None
        return min(unread, key=lambda position: position.position).message

    def pointer(self, agent: str | None = None) -> str:
        """Return in words how much is unread that may wake the agent, and from whom.

        Args:
            agent: The reader.

        Returns: For example `2 unread from anna, build-bot`. Empty: nothing.

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

        A mention is read with its message, and done once the agent calls `done`.

        Args:
            agent: The agent.
            state: `unread`, `read`, `done`, `open` (unread or read), or `all`.
            kind: Only `mention`, `review`, `action` or `fyi`. None: all.
            limit: The largest number of messages.

        Raises NotFound, InvalidInput, Refused. Cost: as `inbox`, a look-up for each mention, and
        reading back to those that are listed.
        """
        reader = self._people.registered_agent(agent)
        if state not in _STATES or kind not in (None, *KINDS) or limit < 1:
            raise InvalidInput(
                f"state: one of {', '.join(_STATES)}; kind: one of {', '.join(KINDS)}; limit: "
                "1 or more"
            )
        return self._unread.mentions(reader, _STATES[state], kind, limit)

    def done(self, message: str, *, agent: str | None = None) -> None:
        """Note that an agent is done with what a message asked of it by mentioning it. `reopen`
        undoes that.

        Args:
            message: The message's id.
            agent: The agent.

        Raises:
            NotFound: No message with this id mentions the agent.

        Cost: as `mentions`, and writing a small file.
        """
        self._set_mention_done(message, agent, is_done=True)

    def reopen(self, message: str, *, agent: str | None = None) -> None:
        """Note that an agent is not done with a message that mentioned it, after `done`.

        Args:
            message: The message's id.
            agent: The agent.

        Raises:
            NotFound: No message with this id mentions the agent.

        Cost: as `done`.
        """
        self._set_mention_done(message, agent, is_done=False)

    def _set_mention_done(self, message: str, agent: str | None, *, is_done: bool) -> None:
        reader = self._people.registered_agent(agent)
        for mention in self._unread.mention_positions(reader):
            if mention.message == message:
                id = mention.conversation
                self._receipts.set_mention_done(reader, message, id, is_done=is_done)
                return
        raise NotFound(f"no message {message[:80]!r} mentions {reader}", id=message)

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
            agent: The reader. None: the one that the store acts for, or the store's owner.
            limit: The largest number of messages.
            before: `History.before` of another page: the messages before it.
            after: `History.after` of another page: the messages after it.
            topic, thread: Only messages in this topic, or in this thread.
            where: Only messages that fit this filter, as `Store.search` takes it.

        Raises:
            NotFound: The conversation does not exist.
            Refused: The agent does not take part in it.
            InvalidInput: A cursor or the filter can't be accepted.

        Cost: as `page`.
        """
        from capsule.store.pages import page_of

        acting = self._store_of_reader(agent)
        if before is not None and after is not None:
            raise InvalidInput("give `before` or `after`, not both")
        conditions: list[Mapping[str, Any]] = []
        part = choose_part(topic, thread)
        if part is not None:
            name, value = part
            conditions.append({name: value})
        if where is not None:
            conditions.append(where)
        chosen_ids = None
        if conditions:
            positions = acting.queries.messages({"$and": conditions}, conversation)
            chosen_ids = {position.message for position in positions}
        page = page_of(acting.engine, conversation, limit, None, before or after, chosen_ids)
        type = acting.head(conversation).type
        mail = [Mail.of(conversation, type, position, entry) for position, entry in page.entries]
        return History(mail, page.older(), page.newer())


class _TopicMissing(InvalidInput):
    """A message without a topic, where one is required."""


def _default_topic(message: Entry, channel: Channel | None) -> Entry:
    """Return the topic that a channel gives to a message without one, as a field.

    Raises _TopicMissing if the message needs a topic and the channel has none for it.
    """
    if channel is None or message.get("topic"):
        return {}
    if channel.default_topic:
        return {"topic": channel.default_topic}
    if channel.topic_required:
        raise _TopicMissing(f"a message in the channel {channel.name} needs a topic")
    return {}
