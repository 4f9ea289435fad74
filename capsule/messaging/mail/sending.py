"""Sending messages to agents and into conversations, and what became of them.

What must stay true: a message that was sent is in the conversation's file, whatever becomes of
doorbells and notices. Who may send is asked in the mutex of the write. The sender looks at no
member by itself but at those whom it mentions, and at those who have a doorbell or a project here:
a channel may have thousands.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.format.documents.agents import direct_id
from capsule.format.documents.message import check_message
from capsule.format.json.canonical import order_message
from capsule.messaging.conversations import ensure_direct
from capsule.messaging.mail.cursors import first_behind, key_of, marks_of, parts_of
from capsule.messaging.mail.mail import Sent
from capsule.messaging.mail.mentions import EVERYBODY, KINDS, Interest, mentioned
from capsule.messaging.mail.unread import TYPES, Unread
from capsule.messaging.people.agents import Agents
from capsule.messaging.people.documents import KIND_OF_BELLS, KIND_OF_HOMES
from capsule.messaging.people.people import People
from capsule.rules import policy
from capsule.store.change.appends import appended, ensure_seen, keyed_message

if TYPE_CHECKING:
    from capsule.format.documents.channels import Channel
    from capsule.format.models import Message
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore

Entry = dict[str, Any]


class Sending:
    """The sending half of messages. The base of `Messages`."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.part(People)

    @cached_property
    def _owner(self) -> CoreStore:
        """The store as its owner sees it."""
        return self._store.inner.acting(None)

    @cached_property
    def _unread(self) -> Unread:
        return self._owner.inner.part(Unread)

    def _reader(self, agent: str | None) -> CoreStore:
        who = agent or self._store.agent
        return (
            self._owner if who is None else self._store.inner.acting(self._store.inner.subject(who))
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
            StoreBusy, StorageFailed: The system did not permit it.

        Cost: as `append`; a scan of the directories of doorbells and of projects here, and a look
        at each recipient that has one, and at each instance that is alive. `thread` and `reply_to`
        cost reading back to the message.
        """
        sender = self._people.known(agent)
        acting = self._store.inner.acting(sender)
        if (to, conversation, channel).count(None) < 2:
            raise InvalidInput("give one of `to`, `conversation` and `channel`")
        if channel is not None:
            from capsule.messaging.channels import Channels

            conversation = acting.inner.part(Channels).resolve(channel, sender)
        elif conversation is None:
            to = (
                self._only_other(sender)
                if to is None
                else self._people.directory.resolve(to, sender)
            )
            conversation = direct_id(sender, to)
        self._people.documents.seen(sender)
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

        def act(inside: Conversation) -> tuple[Entry, policy.Object]:
            inside.ensure_may("append")  # First, as the other refusals say what there is.
            object = policy.Object.at(inside.head)
            self._ensure_heard(object, sender, to)
            if keyed is not None and (before := appended(inside.transaction, keyed)) is not None:
                return before[1], object
            if seen is not None:
                ensure_seen(inside.transaction, seen)
            if more := _topic(checked[0], object.channel) | self._mentions(named, object):
                checked[0] = order_message(checked[0] | more)
            return inside.append(checked)[1][0], object

        with self._people.asking(sender):
            try:
                entry, object = acting.inner.change(conversation, act)
            except _NoTopic as error:
                topics = (
                    str(each.value) for each in self._owner.questions.values("topic", conversation)
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
        others = [id for id in self._store.inner.part(Agents).names() if id != agent]
        if len(others) == 1:
            return others[0]
        raise InvalidInput(
            "say to whom, or in which conversation; the other agents are: "
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
        place = self._owner.questions.find(id, conversation)
        found: Entry = {}
        with suppress(
            NotFound
        ):  # Of what it does not find, the sender hears no more than of what is not there.
            found = {} if place is None else entry_at(acting, *place)
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
        for name, kind in mentioned(text).items():
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

    def _ensure_heard(self, object: policy.Object, sender: str, to: str | None) -> None:
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
            id == to or documents.exists(id) for id in object.present - {sender}
        ):
            raise InvalidInput(
                f"nobody else takes part in conversation {object.id}, so nobody would get this"
            )

    def _takes_part(self, agent: str, object: policy.Object) -> bool:
        """Whether an agent takes part in a conversation, and may still read it."""
        state = self._people.directory.state(agent, object)
        return (
            policy.relation(agent, object) == "member"
            and policy.may(agent, "read", object, state).allowed
        )

    def _mentions(self, named: Mapping[str, tuple[str, str]], object: policy.Object) -> Entry:
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

    def _told(self, entry: Entry, object: policy.Object) -> dict[str, str]:
        """Ring for the recipients that don't listen, and leave word for those that are away; what
        became of each.
        """
        owner, sender, people = self._owner, entry["from"], self._owner.inner.part(People)
        if object.type == "channel":
            recipients = set((entry.get("mentions") or {}).get("valid", ())) - {EVERYBODY, sender}
        else:
            recipients = {
                id for id in object.present - {sender} if self._people.documents.exists(id)
            }
        states = dict.fromkeys(sorted(recipients), "stored")
        here = {
            id for kind in (KIND_OF_BELLS, KIND_OF_HOMES) for id in owner.engine.machine.ids(kind)
        } - {sender}
        idle = [
            id
            for id in sorted(here)
            if policy.relation(id, object) == "member" and not people.listened(id)
        ]
        online = people.online() if idle else {}
        for agent in idle:
            if online.get(agent) or not self._wakes(agent, entry, object):
                continue
            from capsule.messaging import notices
            from capsule.messaging.doorbells import registry as doorbells

            if doorbells.ring(owner, agent, partial(self._unread.pointer, agent)):
                states[agent] = "rung"
            if agent not in online:
                notices.update(owner, agent)
        return states

    def _wakes(self, agent: str, entry: Entry, object: policy.Object) -> bool:
        """Whether a message may wake an agent: it may read it, and wants to hear of it."""
        try:
            reading = self._people.documents.part(agent, "reading").get(object.id)
        except InvalidDocument:
            return False  # What it has not read can't be known either.
        interest = Interest.of(reading, self._people.directory.profile(agent))
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
        id, at = self._owner.questions.find(message) or ("", 0)
        with suppress(NotFound, Refused):  # Either would name the conversation.
            sent = entry_at(reader, id, at) if id else sent
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
            [key_of(id, part) for part in (None, *parts_of(sent))],
        )
        states = {}
        from capsule.messaging.doorbells.registry import was_rung

        for member in head.participants:
            was_in = member.joined_at <= time and (
                not member.left_at or member.left_at > time or member.is_in
            )
            if was_in and member.id != sent.get("from"):
                cursors = self._people.documents.part(member.id, "cursors")
                marks_at = partial(self._owner.questions.marks, id)
                is_read = any(
                    first_behind(marks_of(cursors.get(key)), marks_at) > at for key in keys
                )
                rung = not is_read and was_rung(self._owner, member.id, time)
                states[member.id] = "read" if is_read else "rung" if rung else "stored"
        return Sent(id, message, states, sent.get("mentions") or {})


def entry_at(store: CoreStore, conversation: str, place: int) -> Entry:
    """Return the message at a place; empty: there is none that the store's agent may read.

    Cost: reading back to it; again if others appended meanwhile.
    """
    while True:
        count = store.engine.tail(conversation, 0)[1]
        first, entries = store.tail_entries(conversation, count - place)
        if first + len(entries) == count:
            return entries[0] if entries and first == place else {}


class _NoTopic(InvalidInput):
    """A message without a topic, where one is required."""


def _topic(message: Entry, channel: Channel | None) -> Entry:
    """The topic that the channel gives to a message. Raises _NoTopic if the message needs one."""
    if channel is None or message.get("topic"):
        return {}
    if channel.topic_required and not channel.default_topic:
        raise _NoTopic(f"a message in the channel {channel.name} needs a topic")
    return {"topic": channel.default_topic} if channel.default_topic else {}
