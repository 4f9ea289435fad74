"""One change of one conversation, in a transaction of the engine.

What must stay true: every change of a conversation goes through `Conversation`. A change without
effect writes nothing. A change of the lock alone keeps `updatedAt`. Times never go back within a
conversation.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format import migrations
from capsule.format.documents import creation
from capsule.format.fields import field_names
from capsule.format.json import canonical, codec
from capsule.format.text.titles import automatic_title
from capsule.store.change.appends import (
    completed_message,
    encoded_within,
    with_parents,
    with_sender,
)

if TYPE_CHECKING:
    from capsule.engines.interface import ReadSet, Transaction
    from capsule.format.documents.head import ParsedHead
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import Action, InputsFor, PolicyTarget
    from capsule.settings import Settings
    from capsule.watch.own_writes import OwnWrites

Document = dict[str, Any]
#: The kind of document in the trash that holds removed messages of a conversation.
REMOVED = "messages"
#: How often a write is begun while another program writes in between.
TRIES = 50
_LOCK = frozenset(field_names("metadata.lock"))


def ensure_permitted(
    agent: str | None,
    action: Action,
    object: PolicyTarget,
    state_of: InputsFor,
    others: Collection[str] = (),
    known: PolicyInputs | None = None,
) -> ReadSet:
    """What else this was decided on; `known` is the state, if it was read already.

    Raises Refused, or NotFound where it is hidden, if the agent may not do it.
    """
    from capsule.rules import policy
    from capsule.rules.consent import PolicyInputs

    state = known or (PolicyInputs() if agent is None else state_of(object, others))
    policy.raise_if_denied(policy.decide(agent, action, object, state), object.id, state_of)
    return state.read_versions


class Conversation:
    """A conversation in a transaction. It keeps the rules of every change: times, active branch,
    title, lock.

    Args:
        transaction: The transaction.
        admit: Called once, before the first write: raises, or gives the lock to record with it
            (None: as it is).
        tries: The number of earlier tries of this write that another writer interrupted.
        agent: The agent that writes; None: the store's owner.
        state_of: Gives what a decision of the rule depends on besides the conversation.
        limits: The store's settings.
        own: Where the change is remembered as the store's own; None: its watchers see it as
            another's.
        is_ruled: Whether each write must be one that the agent or the owner may make.
    """

    def __init__(
        self,
        transaction: Transaction,
        admit: Callable[[Conversation], Document | None],
        tries: int,
        *,
        agent: str | None,
        state_of: InputsFor,
        limits: Settings,
        own: OwnWrites | None,
        is_ruled: bool,
    ) -> None:
        self.transaction = transaction
        self.id = transaction.id
        self.name = transaction.name
        self._tries = tries
        self._limits = limits
        self._admit = admit
        self._is_admitted = False
        self._lock: Document | None = None
        self._own = own
        self._agent = agent
        self._state_of = state_of
        self._is_ruled = is_ruled
        #: What may be done with the conversation as it is.
        self._allowed: set[Action] = set()
        #: The lock that was recorded.
        self.recorded: Document | None = None

    def admitted(self) -> Document | None:
        """The lock to record with the next write; None: as it is. Raises `Locked` or `LockLost` if
        a write would.
        """
        if not self._is_admitted:
            self._lock = self._admit(self)
            self._is_admitted = True
        return self._lock

    def ensure_permitted(
        self, action: Action, object: PolicyTarget | None = None, others: Collection[str] = ()
    ) -> None:
        """As `ensure_permitted`, for who writes here; without an object, for the conversation as
        it is.
        """
        from capsule.rules.policy import PolicyTarget

        if object is not None or action not in self._allowed:
            about, judged = (
                object or PolicyTarget.from_parsed_head(self.head),
                self.transaction.decision_inputs,
            )
            known = judged[1] if judged is not None and judged[0] is about and not others else None
            read_set = ensure_permitted(self._agent, action, about, self._state_of, others, known)
            # Of what was read twice the earlier version counts: so all decisions are about one
            # state.
            self.transaction.read_set = {**read_set, **self.transaction.read_set}
        if object is None:
            self._allowed.add(action)

    def _ensure_ruled(self, before: Document, after: Document, *, is_agreed: bool) -> None:
        """Raise `Refused` if this write is more than the agent or the owner may do.

        `is_agreed`: A person said yes to it, so in an open conversation the agent may change
        messages of others.
        """
        if not self._is_ruled:
            return
        from capsule.rules import policy, write_actions

        if (object := policy.PolicyTarget.from_parsed_head(self.head)).is_closed:
            for action in sorted(write_actions.actions_of_write(self._agent, before, after)):
                self.ensure_permitted(action, object, write_actions.added_agents(before, after))
        elif self._agent is not None:
            self.ensure_permitted("change")
            if not is_agreed and write_actions.changes_others(self._agent, before, after):
                self.ensure_permitted("moderate")
            if (closed := policy.PolicyTarget.from_document(after)).is_closed:
                self.ensure_permitted("rewrite", closed)  # It would take away what others wrote.

    @property
    def head(self) -> ParsedHead:
        """The head as it is now."""
        return self.transaction.head

    def document(self) -> Document:
        """The whole conversation. Cost: one parse."""
        return self.transaction.document()

    def _stamp(self) -> str:
        """The new `updatedAt`: later than all earlier ones of the conversation, so that it names
        one write.
        """
        return timestamps.later_than(self.transaction.state.newest_updated_at)

    def _appended_before(self, messages: list[Document]) -> tuple[int, list[Document]] | None:
        """The place and the messages as an earlier, interrupted try has written them; None: it has
        not. A message that was written and is not in the document was removed since, and stays
        removed."""
        times = {message.get("id"): message.get("timestamp") for message in messages}
        first = messages[0].get("id")

        def written(entries: list[Document]) -> dict[int, Document]:
            those = (
                (place, entry) for place, entry in enumerate(entries) if entry.get("id") in times
            )
            return {
                place: entry
                for place, entry in those
                if times[entry["id"]] in (None, entry.get("timestamp"))
            }

        recorded = written(self.transaction.appended())
        if not recorded and (first is None or self.transaction.find(first) is None):
            return None
        there = before = written(self.document()["history"])
        if len(there) < len(messages):
            before = recorded
        if len(before) < len(messages):
            return None
        self.transaction.ensure_durable()
        return next(iter(there), self.transaction.state.entries), list(before.values())

    def append(
        self, messages: list[Document], *, move: bool = False, wait: bool = True
    ) -> tuple[int, list[Document]]:
        """Append checked messages, durably. A message without a parent goes to the end of the
        active branch.

        Args:
            messages: As `check_message` gives them; at least one. They get their ids in this list,
                so that another try writes the same messages; their times are those of the try that
                wrote them.
            move: Whether the last message becomes the end of the active branch.
            wait: Whether they are durable when the transaction ends, and not a second later.

        Returns:
            The position of the first message, and the messages as written.

        Raises:
            InvalidInput: A message is too large, or its parent does not exist; nothing was written.
            Refused: The agent may not write here, or a message is from another one.
            Interfered: Another program wrote the document meanwhile.
        """
        self.transaction.waits_for_flush = wait
        if self._agent is not None:
            self.ensure_permitted("append")
            given = set[str]().union(*messages)
            if move or "parent" in given or ("timestamp" in given and not self._tries):
                self.ensure_permitted("rewrite")
            messages[:] = [with_sender(message, self._agent) for message in messages]
        if self._tries and (before := self._appended_before(messages)) is not None:
            return before
        lock, at, head_before = self.admitted(), self.transaction.state, self.transaction.head
        # Unlike `updatedAt`, a message's time is never ahead of the clock. It is never earlier than
        # the last message's, nor than the last participant joined, who reads from there on.
        time = timestamps.now(max(at.newest_message_time or at.updated_at, head_before.joined))
        is_plain, entries, is_active = head_before.current is None, list[Document](), False
        for place, message in enumerate(messages):
            is_plain = is_plain and "parent" not in message
            entries.append(entry := completed_message(message, time))
            messages[place] = message | {"id": entry["id"]}
        if is_plain:
            move = False
        else:
            entries, is_active = with_parents(self.transaction, entries)
            move = move and not is_active
        encoded, size = [], at.size
        for entry in entries:
            encoded.append(data := encoded_within(entry, self._limits.message_bytes))
            size += len(data)
        if size > self._limits.document_bytes:
            raise InvalidInput(
                f"conversation {self.id} would have more than {self._limits.document_bytes:,} "
                "bytes; continue in a new one, or raise limits.document_bytes in capsule.toml"
            )
        if self._own is not None:
            self._own.remember_appended(self.id, entries)
        title = automatic_title(entries) if head_before.untitled else ""
        newest = at.newest_updated_at
        stamp, head = time if time > newest else timestamps.later_than(newest), None
        if lock is not None or title or move:

            def change(head: Document) -> None:
                if title:
                    head["title"] = title
                if move:
                    head["metadata"]["currentNode"] = entries[-1]["id"]

            head = self._changed(change, stamp)
        self.transaction.append(
            entries, encoded, stamp, time=time, head=head, ends_active=is_active or move
        )
        self.recorded = lock
        return self.transaction.state.entries - len(
            entries
        ), entries  # Others may have appended before, just now.

    def _changed(self, change: Callable[[Document], None], stamp: str) -> Document:
        """The head with a change, `updatedAt` already in it."""
        lock, before = self.admitted(), self._before()
        head = _copied(before) | {"updatedAt": stamp}
        change(head)
        if lock is not None:
            head["metadata"]["lock"] = lock
        _keep_lock_fields(before, head)
        return canonical.in_order(head)

    def _before(self) -> Document:
        return self.head.document | {"updatedAt": self.transaction.state.updated_at}

    def change_head(
        self, change: Callable[[Document], None], *, ends_active: bool | None = None
    ) -> Document:
        """Change title or metadata, without parsing messages.

        Args:
            change: Changes the given head in place. If it raises, nothing is written.
            ends_active: Whether the last message is then the end of the active branch; None: as it
                is.

        Returns:
            The head as it is now.
        """
        head = _keep_time_if_only_lock_changed(self._before(), self._changed(change, self._stamp()))
        if head is not None:
            self._ensure_ruled(self.head.document, head, is_agreed=False)
            self.transaction.set_head(head, ends_active=ends_active)
            self.recorded = self._lock
        return self._before()

    def set_context(self, context: Callable[[], Iterable[bytes]]) -> Document:
        """Replace the context, without parsing messages.

        Args:
            context: Gives the new context, a JSON object as `Transaction.set_head` takes it; called
                once for each try.

        Returns:
            The head as written.
        """
        self.ensure_permitted("change")
        self.transaction.set_head(self._changed(lambda head: None, self._stamp()), context=context)
        self.recorded = self._lock
        return self._before()

    def rewrite(
        self,
        change: Callable[[Document], Document | None],
        *,
        reason: str = "",
        keeps_time: bool = False,
        is_agreed: bool = False,
    ) -> Document:
        """Change anything.

        Args:
            change: Changes the given document, which has the new `updatedAt`, or returns another.
            reason: The reason to remove or change messages, as `removal_record` takes it; they go to the
                trash first. Empty: no message goes to the trash, because the present version is
                kept elsewhere.
            keeps_time: Whether `updatedAt` is left to `change`; the document is then written in any
                case.
            is_agreed: Whether a person said yes to this change. An agent may then change messages
                of others in a chat.

        Returns:
            The document as it is now.
        """
        from capsule.format.tree.branches import removal_record

        lock, before = self.admitted(), self.document()
        stamp = before["updatedAt"] if keeps_time else self._stamp()
        after = _copied(before)
        after["updatedAt"] = stamp
        after = change(after) or after
        if lock is not None:
            after["metadata"] = after["metadata"] | {"lock": lock}
        _keep_lock_fields(before, after)
        if not keeps_time:
            after["updatedAt"] = stamp
        after, _ = migrations.upgrade(after, self.name)
        after = canonical.in_order(after)
        if not keeps_time:
            stamped = _keep_time_if_only_lock_changed(before, after)
            if stamped is None:
                return before
            after = stamped
        if reason == "restored":
            self._ensure_ruled(
                after, before, is_agreed=is_agreed
            )  # Who may do a change may undo it.
        else:
            self._ensure_ruled(before, after, is_agreed=is_agreed)
        if self._own is not None:
            there = {entry.get("id") for entry in before["history"]}
            self._own.remember_appended(
                self.id, [entry for entry in after["history"] if entry.get("id") not in there]
            )
        gone = removal_record(before, after, reason) if reason else None
        if gone is not None and self._agent is not None:
            gone["removed"]["by"] = self._agent
        self.transaction.replace(after, None if gone is None else (REMOVED, gone))
        self.recorded = lock
        return after

    def set_lock(self, lock: Document | None) -> None:
        """Record a lock; None: nobody holds one."""
        self.change_head(
            lambda head: head["metadata"].update(lock=lock or creation.inactive_lock())
        )

    def sign_off(self) -> None:
        """Record, before the conversation is deleted, which agent does so, and that nobody holds
        its lock.
        """
        if self.head.lock is None and self.head.metadata.get("deletedBy") == self._agent:
            return

        def change(head: Document) -> None:
            head["metadata"]["lock"] = creation.inactive_lock()
            head["metadata"].pop("deletedBy", None)
            if self._agent is not None:
                head["metadata"]["deletedBy"] = self._agent

        self.change_head(change)

    def refreshed_lock(self) -> Document:
        """The lock with the present time, to record with a write."""
        lock: Document = self.head.document["metadata"]["lock"]
        return lock | {"timestamp": timestamps.now()}


def admit_any_instance(conversation: Conversation) -> None:
    """Admits every instance, and records no lock: for changes that were permitted already."""


def _keep_lock_fields(before: Document, after: Document) -> None:
    """Copy the fields that this version doesn't know from the old lock to the new one."""
    there, lock = before["metadata"].get("lock"), after["metadata"].get("lock")
    if isinstance(there, dict) and isinstance(lock, dict):
        after["metadata"]["lock"] = {key: there[key] for key in there if key not in _LOCK} | lock


def _keep_time_if_only_lock_changed(before: Document, after: Document) -> Document | None:
    """The document to write; `updatedAt` is new only if more than the lock changed. None: nothing
    changed.
    """

    def undated(document: Document, **metadata: Any) -> bytes:
        return codec.encode(
            document | {"updatedAt": "", "metadata": document["metadata"] | metadata}
        )

    if undated(before, lock=None) != undated(after, lock=None):
        return after
    if undated(before) == undated(after):
        return None
    return after | {"updatedAt": before["updatedAt"]}


def _copied(value: Any) -> Any:
    """A copy of dicts and lists. Other values are shared, as a number's `Fragment` can't
    be copied.
    """
    if isinstance(value, dict):
        return {key: _copied(field) for key, field in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
