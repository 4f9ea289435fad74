"""One change of one conversation, in a transaction of the engine.

`StoreInternals.change` begins the transaction, and gives a `Conversation` around it to a function
that calls these methods. Each of them admits this instance (may it write in spite of the lock?),
checks the permission of the agent or the owner, and makes one write:

| method | checks the permission | writes |
| --- | --- | --- |
| `append` | always, if an agent writes | the messages, and the head if that changes |
| `set_context` | always | the context and the head |
| `change_head` | if `checks_permissions` | the head, if something changed |
| `rewrite` | if `checks_permissions` | all, if something changed or with `keeps_time` |

If another program wrote the file meanwhile, the engine raises `ConcurrentWrite`.
`StoreInternals.change` then calls the function again, with a new transaction and `Conversation`.

For an appended message, a change of the head is another lock, title or end of the active branch.

A permission also depends on other documents, such as agents and projects. Their versions are the
read set of the decision. The engine refuses the write with `ConcurrentWrite` if one of them has
changed, so that the permission is decided again.

What must stay true: a write of the lock alone keeps `updatedAt`. Any other write gets an
`updatedAt` later than all before, except `rewrite` with `keeps_time`, whose callers set it. The
time that a message gets here is never earlier than that of the message before. A message may bring
its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format import migrations
from capsule.format.documents.creation import inactive_lock
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
#: The number of times that a write is begun while another program writes in between.
TRIES = 50
_LOCK_FIELDS = frozenset(field_names("metadata.lock"))


def checked_read_set(
    agent: str | None,
    action: Action,
    target: PolicyTarget,
    inputs_for: InputsFor,
    others: Collection[str] = (),
    inputs: PolicyInputs | None = None,
) -> ReadSet:
    """Check a permission, and return the read set of the decision.

    Args:
        agent: The agent that acts. None: the store's owner.
        action: The action.
        target: The conversation.
        inputs_for: Reads the other inputs of the decision.
        others: The other agents that the action concerns, such as those that are invited.
        inputs: What `inputs_for` would return, if it was read already.

    Raises:
        Refused: The agent may not do it.
        NotFound: The agent may not know of the conversation.
    """
    from capsule.rules import policy
    from capsule.rules.consent import PolicyInputs

    if inputs is None:
        inputs = PolicyInputs() if agent is None else inputs_for(target, others)
    policy.raise_if_denied(policy.decide(agent, action, target, inputs), target.id, inputs_for)
    return inputs.read_versions


class Conversation:
    """A conversation in a transaction. It keeps the rules of every change: permission, lock, times,
    active branch and title.

    Args:
        transaction: The transaction.
        decide_admission: Decides whether this instance may write. It is called once, before the
            first write. It raises `Locked` or `LockLost`, or returns the lock to record with the
            write (None: the lock stays as it is).
        tries: The number of earlier tries of this write that another writer interrupted.
        agent: The agent that writes. None: the store's owner.
        inputs_for: Reads what a decision depends on besides the conversation.
        settings: The store's settings, for their limits.
        own_writes: Remembers the change as the store's own. None: its watchers see the change as
            another's.
        checks_permissions: Whether `change_head` and `rewrite` check that the agent or the owner
            may make the change. `StoreInternals.change` sets False if its caller gave an `admit`:
            that caller has checked the change. `append` checks an agent in any case, and
            `set_context` also the owner.

    Attributes:
        recorded_lock: The lock that the last write recorded. None: the lock was left alone.
    """

    def __init__(
        self,
        transaction: Transaction,
        decide_admission: Callable[[Conversation], Document | None],
        tries: int,
        *,
        agent: str | None,
        inputs_for: InputsFor,
        settings: Settings,
        own_writes: OwnWrites | None,
        checks_permissions: bool,
    ) -> None:
        self.transaction = transaction
        self.id = transaction.id
        self.name = transaction.name
        self.recorded_lock: Document | None = None
        self._tries = tries
        self._settings = settings
        self._decide_admission = decide_admission
        self._is_admitted = False
        #: What `admit` returned: the lock to record.
        self._lock: Document | None = None
        self._own_writes = own_writes
        self._agent = agent
        self._inputs_for = inputs_for
        self._checks_permissions = checks_permissions
        #: The actions on the conversation, as it was read, that passed a check.
        self._allowed_actions: set[Action] = set()

    # -- Who may write -----------------------------------------------------------------------------

    def admit(self) -> Document | None:
        """Admit this instance to the lock, at the first call. Return the lock to record with the
        next write, or None to leave it alone.

        Raises Locked, LockLost: this instance may not write.
        """
        if not self._is_admitted:
            self._lock = self._decide_admission(self)
            self._is_admitted = True
        return self._lock

    def ensure_permitted(
        self, action: Action, target: PolicyTarget | None = None, others: Collection[str] = ()
    ) -> None:
        """Check a permission of the writing agent, as `checked_read_set` does. The versions that
        the decision used become a part of the transaction's `read_set`, which its writes check.

        Args:
            action: The action.
            target: The conversation, if it is not the one that was read, such as its new version.
            others: The other agents that the action concerns.
        """
        from capsule.rules.policy import PolicyTarget  # A command that only reads needs no rules.

        if target is not None or action not in self._allowed_actions:
            checked = target or PolicyTarget.from_parsed_head(self.head)
            # `AgentView` read the inputs for the same target at the beginning of the transaction.
            # It is the same object, since a parsed head keeps its target.
            inputs = None
            decision = self.transaction.decision_inputs
            if decision is not None and decision[0] is checked and not others:
                inputs = decision[1]
            read_set = checked_read_set(
                self._agent, action, checked, self._inputs_for, others, inputs
            )
            # If a version was read twice, the earlier one counts. So all decisions are about the
            # same state.
            self.transaction.read_set = {**read_set, **self.transaction.read_set}
        if target is None:
            self._allowed_actions.add(action)

    def _check_permissions(self, old: Document, new: Document, *, is_agreed: bool) -> None:
        """Raise `Refused` if this write is more than the agent or the owner may do.

        In a closed conversation only its members take part, and each action of the write is
        checked, also of the owner. In an open one the owner may do everything.

        `is_agreed`: a person agreed to it. In an open conversation the agent may then change
        messages of others.
        """
        if not self._checks_permissions:
            return
        from capsule.rules import policy, write_actions

        target = policy.PolicyTarget.from_parsed_head(self.head)
        if target.is_closed:
            for action in sorted(write_actions.actions_of_write(self._agent, old, new)):
                self.ensure_permitted(action, target, write_actions.added_agents(old, new))
        elif self._agent is not None:
            self.ensure_permitted("change")
            if not is_agreed and write_actions.changes_others(self._agent, old, new):
                self.ensure_permitted("moderate")
            new_target = policy.PolicyTarget.from_document(new)
            if new_target.is_closed:
                self.ensure_permitted("rewrite", new_target)  # Others would lose their messages.

    # -- Reading -----------------------------------------------------------------------------------

    @property
    def head(self) -> ParsedHead:
        """The head as it is now."""
        return self.transaction.head

    def document(self) -> Document:
        """Return the whole conversation. Cost: one parse."""
        return self.transaction.document()

    def _current_head(self) -> Document:
        return self.head.document | {"updatedAt": self.transaction.state.updated_at}

    def _new_updated_at(self) -> str:
        """Return a time later than every `updatedAt` of the conversation, so that it identifies one
        write.
        """
        return timestamps.later_than(self.transaction.state.newest_updated_at)

    # -- Appending ---------------------------------------------------------------------------------

    def append(
        self, messages: list[Document], *, move: bool = False, wait: bool = True
    ) -> tuple[int, list[Document]]:
        """Append checked messages, durably. A message without a parent goes to the end of the
        active branch.

        Args:
            messages: One or more, as `check_message` returns them. Their ids are set in this list,
                so that another try writes the same messages. Their times are those of the try that
                wrote them.
            move: Whether the last message becomes the end of the active branch.
            wait: Whether they are durable when the transaction ends, instead of a second later.

        Returns:
            The position of the first message, and the messages as written.

        Raises:
            InvalidInput: A message is too large, or its parent does not exist. Nothing was written.
            Refused: The agent may not write here, or a message is from another agent.
            ConcurrentWrite: Another program wrote the document meanwhile.
        """
        self.transaction.waits_for_flush = wait
        if self._agent is not None:
            self._check_append(self._agent, messages, move)
        if self._tries:
            earlier_result = self._written_by_earlier_try(messages)
            if earlier_result is not None:
                return earlier_result
        lock = self.admit()
        state = self.transaction.state
        head = self.transaction.head
        # Unlike `updatedAt`, a message's time is never ahead of the clock. It is never earlier than
        # the last message's time. It is also never earlier than the time when the last participant
        # joined, because that participant reads the messages from there on.
        time = timestamps.now(max(state.newest_message_time or state.updated_at, head.last_joined))
        entries = _completed_messages(messages, time)
        # Without a `currentNode` and without parents, each message follows the previous one: the
        # conversation has no other branch that could be the active one.
        # `ends_active` False only means that it is not known. `with_parents` finds it out.
        ends_active = False
        moves_branch = False
        if head.current is not None or any("parent" in entry for entry in entries):
            entries, ends_active = with_parents(self.transaction, entries)
            moves_branch = move and not ends_active
        encoded = self._encoded(entries, state.size)
        if self._own_writes is not None:
            self._own_writes.remember_appended(self.id, entries)
        title = automatic_title(entries) if head.awaits_title else ""
        updated_at = time
        if time <= state.newest_updated_at:
            updated_at = timestamps.later_than(state.newest_updated_at)
        new_head = None  # A plain append changes no head but `updatedAt`, in place.
        if lock is not None or title or moves_branch:
            leaf = entries[-1]["id"] if moves_branch else None
            new_head = self._changed_head(partial(_set_title_and_leaf, title, leaf), updated_at)
        self.transaction.append(
            entries,
            encoded,
            updated_at,
            time=time,
            head=new_head,
            ends_active=ends_active or moves_branch,
        )
        self.recorded_lock = lock
        # The position is known only now: others may have appended just before.
        return self.transaction.state.entries - len(entries), entries

    def _check_append(self, agent: str, messages: list[Document], move: bool) -> None:
        """Check that the agent may append these messages, and set their sender in the list."""
        self.ensure_permitted("append")
        fields = set[str]().union(*messages)
        if move or "parent" in fields or "timestamp" in fields:
            self.ensure_permitted("rewrite")
        messages[:] = [with_sender(message, agent) for message in messages]

    def _encoded(self, entries: list[Document], size: int) -> list[bytes]:
        """Return the bytes of each entry. Raises InvalidInput if an entry, or the file of `size`
        bytes with all of them, would be too large.
        """
        encoded = [encoded_within(entry, self._settings.message_bytes) for entry in entries]
        if size + sum(map(len, encoded)) > self._settings.document_bytes:
            raise InvalidInput(
                f"conversation {self.id} would have more than {self._settings.document_bytes:,} "
                "bytes; continue in a new one, or raise limits.document_bytes in capsule.toml"
            )
        return encoded

    def _written_by_earlier_try(
        self, messages: list[Document]
    ) -> tuple[int, list[Document]] | None:
        """Return the position of the first message and the messages, if an earlier try wrote them
        before it ended with `ConcurrentWrite`. None: it wrote nothing.

        The log tells what the earlier try wrote. A message that is in the log and not in the
        document was removed since, and stays removed.
        """
        requested_times = {message.get("id"): message.get("timestamp") for message in messages}
        logged = _requested_entries(self.transaction.appended(), requested_times)
        if not logged:
            first_id = messages[0].get("id")
            if first_id is None or self.transaction.find(first_id) is None:
                return None
        present = _requested_entries(self.document()["history"], requested_times)
        entries = present
        if len(present) < len(messages):
            entries = logged
        if len(entries) < len(messages):
            return None
        self.transaction.ensure_durable()
        first_position = next(iter(present), self.transaction.state.entries)
        return first_position, list(entries.values())

    # -- Changing the head -------------------------------------------------------------------------

    def _changed_head(self, change: Callable[[Document], None], updated_at: str) -> Document:
        """Admit this instance. Return the head with a change, the lock to record, and this
        `updatedAt`.
        """
        lock = self.admit()
        old = self._current_head()
        head = _copied(old) | {"updatedAt": updated_at}
        change(head)
        if lock is not None:
            head["metadata"]["lock"] = lock
        _keep_lock_fields(old, head)
        return canonical.in_order(head)

    def change_head(
        self, change: Callable[[Document], None], *, ends_active: bool | None = None
    ) -> Document:
        """Change title or metadata, without parsing messages. Nothing is written if nothing
        changes.

        Args:
            change: Changes the given head in place. If it raises, nothing is written.
            ends_active: Whether the last message is then the end of the active branch. None: this
                does not change.

        Returns:
            The present head.
        """
        changed = self._changed_head(change, self._new_updated_at())
        head = _with_time_of_change(self._current_head(), changed)
        if head is not None:
            self._check_permissions(self.head.document, head, is_agreed=False)
            self.transaction.set_head(head, ends_active=ends_active)
            self.recorded_lock = self._lock
        return self._current_head()

    def set_context(self, context: Callable[[], Iterable[bytes]]) -> Document:
        """Replace the context, without parsing messages. It is written even if it is the same.

        Args:
            context: Returns the pieces of the new context, a JSON object as `Transaction.set_head`
                takes it. It is called once for each try.

        Returns:
            The head as written.
        """
        self.ensure_permitted("change")
        head = self._changed_head(lambda head: None, self._new_updated_at())
        self.transaction.set_head(head, context=context)
        self.recorded_lock = self._lock
        return self._current_head()

    def set_lock(self, lock: Document | None) -> None:
        """Record a lock. None: no instance holds it."""
        self.change_head(lambda head: head["metadata"].update(lock=lock or inactive_lock()))

    def record_deletion(self) -> None:
        """Record, before the conversation is deleted, which agent deletes it, and release its
        lock.
        """
        if self.head.lock is None and self.head.metadata.get("deletedBy") == self._agent:
            return

        def change(head: Document) -> None:
            head["metadata"]["lock"] = inactive_lock()
            head["metadata"].pop("deletedBy", None)
            if self._agent is not None:
                head["metadata"]["deletedBy"] = self._agent

        self.change_head(change)

    def refreshed_lock(self) -> Document:
        """Return the active lock of the head with the present time, to record with a write. The
        head must have one.
        """
        lock: Document = self.head.document["metadata"]["lock"]
        return lock | {"timestamp": timestamps.now()}

    # -- Changing everything -----------------------------------------------------------------------

    def rewrite(
        self,
        change: Callable[[Document], Document | None],
        *,
        reason: str = "",
        keeps_time: bool = False,
        is_agreed: bool = False,
    ) -> Document:
        """Change any part of the conversation.

        Args:
            change: Returns the new document. None: it changed the given one, which has the new
                `updatedAt`, in place.
            reason: The reason to remove or change messages, for their record in the trash. Empty:
                no message goes to the trash, because the present version is kept elsewhere.
                `restored`: the change undoes an earlier one, so the permission to make the opposite
                change is checked.
            keeps_time: Whether `change` sets `updatedAt`. The document is then written in any case.
            is_agreed: Whether a person agreed to this change. An agent may then change messages
                of others in a chat.

        Returns:
            The present document. If nothing changed, it is the old one, and nothing was written.
        """
        lock = self.admit()
        old = self.document()
        updated_at = None if keeps_time else self._new_updated_at()
        new = self._changed_document(old, change, lock, updated_at)
        if updated_at is not None:
            dated = _with_time_of_change(old, new)
            if dated is None:
                return old
            new = dated
        undoes_change = reason == "restored"
        if undoes_change:
            # An agent that may make a change may also undo it.
            self._check_permissions(new, old, is_agreed=is_agreed)
        else:
            self._check_permissions(old, new, is_agreed=is_agreed)
        if self._own_writes is not None:
            old_ids = {entry.get("id") for entry in old["history"]}
            added = [entry for entry in new["history"] if entry.get("id") not in old_ids]
            self._own_writes.remember_appended(self.id, added)
        self.transaction.replace(new, self._trash_record(old, new, reason))
        self.recorded_lock = lock
        return new

    def _changed_document(
        self,
        old: Document,
        change: Callable[[Document], Document | None],
        lock: Document | None,
        updated_at: str | None,
    ) -> Document:
        """Return the document with a change, in canonical order. `updated_at` is None if the change
        sets the time itself.
        """
        new = _copied(old)
        if updated_at is not None:
            new["updatedAt"] = updated_at
        new = change(new) or new
        if lock is not None:
            new["metadata"] = new["metadata"] | {"lock": lock}
        _keep_lock_fields(old, new)
        if updated_at is not None:
            new["updatedAt"] = updated_at
        upgraded, _ = migrations.upgrade(new, self.name)
        return canonical.in_order(upgraded)

    def _trash_record(
        self, old: Document, new: Document, reason: str
    ) -> tuple[str, Document] | None:
        """Return what goes to the trash: its kind, and a document of the messages that `new` lacks.
        None: nothing goes there.
        """
        from capsule.format.tree.branches import removal_record

        record = removal_record(old, new, reason) if reason else None
        if record is None:
            return None
        if self._agent is not None:
            record["removed"]["by"] = self._agent
        return REMOVED, record


def admit_any_instance(conversation: Conversation) -> None:
    """Admit every instance, and record no lock.

    Given to `StoreInternals.change`, this also turns off the permission checks of `change_head` and
    `rewrite`: its callers have checked the change, or make one that needs no permission.
    """


def _completed_messages(messages: list[Document], time: str) -> list[Document]:
    """Return the messages with an id and a time each, and set the ids in `messages`."""
    entries = []
    for index, message in enumerate(messages):
        entry = completed_message(message, time)
        entries.append(entry)
        messages[index] = message | {"id": entry["id"]}
    return entries


def _requested_entries(
    entries: Iterable[Document], requested_times: dict[str | None, str | None]
) -> dict[int, Document]:
    """Return, by position, the entries with a requested id, and with its time if one was given."""
    matching = {}
    for position, entry in enumerate(entries):
        if entry.get("id") in requested_times:
            time = requested_times[entry["id"]]
            if time is None or time == entry.get("timestamp"):
                matching[position] = entry
    return matching


def _set_title_and_leaf(title: str, leaf: str | None, head: Document) -> None:
    """Set the title of a head unless it is empty, and the end of its active branch unless None."""
    if title:
        head["title"] = title
    if leaf is not None:
        head["metadata"]["currentNode"] = leaf


def _keep_lock_fields(old: Document, new: Document) -> None:
    """Copy the fields that this version does not know from the old lock to the new one."""
    old_lock = old["metadata"].get("lock")
    new_lock = new["metadata"].get("lock")
    if isinstance(old_lock, dict) and isinstance(new_lock, dict):
        unknown = {key: value for key, value in old_lock.items() if key not in _LOCK_FIELDS}
        new["metadata"]["lock"] = unknown | new_lock


def _with_time_of_change(old: Document, new: Document) -> Document | None:
    """Return `new` with the `updatedAt` to write, or None if nothing changed. If only the lock
    changed, it keeps the time of `old`.
    """

    def undated(document: Document, **metadata: Any) -> bytes:
        return codec.encode(
            document | {"updatedAt": "", "metadata": document["metadata"] | metadata}
        )

    if undated(old, lock=None) != undated(new, lock=None):
        return new
    if undated(old) == undated(new):
        return None
    return new | {"updatedAt": old["updatedAt"]}


def _copied(value: Any) -> Any:
    """Return a copy of dicts and lists. Other values are shared, because a number's
    `orjson.Fragment` can't be copied.
    """
    if isinstance(value, dict):
        return {key: _copied(field) for key, field in value.items()}
    if isinstance(value, list):
        return [_copied(item) for item in value]
    return value
