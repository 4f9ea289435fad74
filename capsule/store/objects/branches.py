"""The branches of a conversation: reading, switching, making and removing them.

What must stay true: a removal changes no answer between messages that stay. The write that
invalidates the active branch also corrects it. Each operation is one write, under the same rule as
all other writes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.format.documents.message import check_message, fields_given
from capsule.format.json import codec
from capsule.format.references import find_message
from capsule.ids import check_id, keyed_message_id, new_message_id
from capsule.store.change.appends import check_key, earlier_keyed_append, message_model
from capsule.store.objects.edits import named, whose

if TYPE_CHECKING:
    from capsule.format.models import Message
    from capsule.format.tree.branches import Alternatives, Choose, Removal, Slot, Switched
    from capsule.format.tree.tree import Tree
    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

Entry = dict[str, Any]
#: What a new version of a message takes over from the old one.
_SAME_IN_A_BRANCH = ("from", "replyTo", "thread", "topic", "toolCallId", "attachments")


class Branches:
    """The branches of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    # -- Reading -----------------------------------------------------------------------------------

    def tree(self, id: str) -> tuple[list[dict[str, Any]], Tree, str | None]:
        """Read all messages, the tree of their answers, and `currentNode`; cheaper than `load`.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        from capsule.format.tree.tree import Tree

        document = self._store.document(id)
        return (
            document["history"],
            Tree(document["history"]),
            document["metadata"].get("currentNode"),
        )

    def path(self, id: str, message_id: str | None = None) -> list[Message]:
        """Read the messages of the active branch, oldest first; each answers the one before.

        Args:
            id: The conversation.
            message_id: If this message is not on the active branch, take the branch through it, as
                `page` does.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        from capsule.format.models import parse_messages

        entries = self._store.page(id, sys.maxsize, around=message_id).entries
        messages = parse_messages(
            b"[" + b",".join(codec.encode_entry(entry) for _, entry in entries) + b"]"
        )
        return [
            message.placed(place) for message, (place, _) in zip(messages, entries, strict=True)
        ]

    def alternatives(self, id: str, message_id: str) -> Alternatives:
        """List a message and the others that answer the same message.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        from capsule.format.tree.branches import Alternatives

        history, tree, _ = self.tree(id)
        place = find_message(history, message_id, id)
        siblings = tree.siblings_at(place)
        ids, leaves = (
            tuple(history[at]["id"] for at in places)
            for places in (siblings, map(tree.leaf_at, siblings))
        )
        return Alternatives(history[place]["id"], siblings.index(place), ids, leaves)

    def descendants(self, id: str, message_id: str) -> list[str]:
        """List the ids of the answers to a message, and of the answers to these, breadth first.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        history, tree, _ = self.tree(id)
        return [
            history[at]["id"] for at in tree.descendants_at(find_message(history, message_id, id))
        ]

    def slot(self, id: str, message_id: str | None = None) -> Slot:
        """Find the place of another answer: give `Slot.parent` to `append`.

        Args:
            id: The conversation.
            message_id: The existing answer, of role `assistant`. None: the last answer of the
                active branch.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        from capsule.format.tree.branches import Slot, find_answer

        history, tree, current = self.tree(id)
        place = find_answer(id, history, tree, current, message_id)
        return Slot(history[place]["id"], tree.id_at(tree.parents[place]))

    # -- Switching ---------------------------------------------------------------------------------

    def switch(self, id: str, message_id: str | None = None, *, step: int = 0) -> Switched:
        """Make another branch the active one: the branch through a message, and on to the newest
        answers.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it. None: the last message of the
                active branch that has alternatives; this needs a `step`.
            step: Switch to an alternative of this message, this many places further: 1 is the next,
                -1 the one before.

        Raises the errors of `append`; NotFound if there is no such message; InvalidInput if there
        is no alternative that many places further, or `message_id` fits several messages.

        Cost: parsing the file, and copying it.
        """
        if message_id is None and not step:
            raise InvalidInput("give the message to switch to, or a step from the active one")
        if message_id is not None:
            message_id = named(self._store, id, message_id)
        from capsule.format.tree.branches import plan_switch

        def act(conversation: Conversation) -> Switched:
            history, current = conversation.document()["history"], conversation.head.current
            done = plan_switch(history, current, message_id, step, id)
            if done.changed:
                conversation.change_head(
                    lambda head: head["metadata"].update(currentNode=done.leaf),
                    ends_active=done.is_last,
                )
            return done

        return self._store.inner.change(id, act)

    # -- Branching off -----------------------------------------------------------------------------

    def revise(
        self,
        id: str,
        message_id: str,
        content: str,
        *,
        key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Message:
        """Put a new version of a message beside it, and make it the end of the active branch.

        The new version answers what the old one answers, and has its role, its sender and its
        attachments. The answers to the old version stay with the old version.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.
            content: The text of the new version.
            key: An idempotency key for this one version. A retry with the same key returns the
                existing version.
            extra, fields: Fields that differ from the old version, as `append` takes them.

        Raises the errors of `append_once`. Cost: reading the file; then as `append`, or as `switch`
        if another branch was active.
        """
        fields = fields_given(fields, extra)
        check_message({"role": "user", "content": content, **fields})
        message_id = named(self._store, id, message_id)

        def made(history: list[Entry], tree: Tree, current: str | None) -> Entry:
            place = find_message(history, message_id, id)
            old = history[place]
            kept = {name: old[name] for name in _SAME_IN_A_BRANCH if name in old}
            parent = tree.id_at(tree.parents[place])
            return {"role": old["role"], "content": content, "parent": parent, **kept, **fields}

        return self._beside(id, made, content, key)

    def regenerate(
        self,
        id: str,
        content: str,
        message_id: str | None = None,
        *,
        key: str | None = None,
        extra: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> Message:
        """Put another answer beside an existing one, and make it the end of the active branch.

        Args:
            id: The conversation.
            content: The text of the new answer.
            message_id: The existing answer, of role `assistant`. None: the last answer of the
                active branch.
            key: As `revise` takes it.
            extra, fields: Further fields of the new answer, as `append` takes them.

        Raises the errors of `append_once`; NotFound if there is no such message, or no answer at
        all; InvalidInput if the message is no answer.

        Cost: as `revise`.
        """
        message = {"role": "assistant", "content": content, **fields_given(fields, extra)}
        check_message(message)
        from capsule.format.tree.branches import find_answer

        def made(history: list[Entry], tree: Tree, current: str | None) -> Entry:
            place = find_answer(id, history, tree, current, message_id)
            return {**message, "parent": tree.id_at(tree.parents[place])}

        return self._beside(id, made, content, key)

    def _beside(
        self,
        id: str,
        made: Callable[[list[Entry], Tree, str | None], Entry],
        content: str,
        key: str | None,
    ) -> Message:
        """Append the message that `made` gives, and make it the end of the active branch."""
        from capsule.format.tree.tree import Tree

        # The id is made before the first try, so that a second try finds the message that the first
        # has written.
        new = new_message_id() if key is None else keyed_message_id(check_id(id), check_key(key))
        author = {"from": self._store.agent} if self._store.agent else {}

        def act(conversation: Conversation) -> tuple[int, Entry]:
            if key is not None:
                before = earlier_keyed_append(
                    conversation.transaction, {"id": new, "content": content}, ("content",)
                )
                if before is not None:
                    return before
            history = conversation.document()["history"]
            message = check_message(
                {**made(history, Tree(history), conversation.head.current), **author, "id": new}
            )
            at, entries = conversation.append([message], move=True)
            return at, entries[0]

        at, entry = self._store.inner.change(id, act)
        return message_model(entry, at)

    # -- Taking out --------------------------------------------------------------------------------

    def remove(
        self,
        id: str,
        message_id: str,
        *,
        keep_children: bool = False,
        dry_run: bool = False,
        expected: Collection[str] | None = None,
        is_agreed: bool = False,
    ) -> Removal:
        """Move a message and all answers to it to the trash. An agent that removes its own message
        leaves the answers.

        An agent removes only messages that are from it.

        If the active branch ended there, it then continues through the newest alternative of the
        message, or ends at the message's parent.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.
            keep_children: Remove this message alone. Its answers become answers to its parent.
            dry_run: Change nothing; only return what would be removed.
            expected: The ids of the messages that may be removed, from a dry run. If the removal no
                longer concerns exactly these, nothing is removed. None: no check.
            is_agreed: Whether a person said yes to this removal. An agent may then remove any
                message of a chat.

        Raises the errors of `append`; NotFound if there is no such message; InvalidInput if other
        messages than the expected ones would be removed.

        Cost: reading and writing the whole file.
        """
        message_id = named(self._store, id, message_id)

        def chosen(
            history: list[Entry], tree: Tree, current: str | None
        ) -> tuple[set[int], int | None]:
            place = find_message(history, message_id, id)
            is_own = (
                self._store.agent is not None and whose(history[place], self._store.agent) == "own"
            )
            return {place} if keep_children or is_own else {
                place,
                *tree.descendants_at(place),
            }, place

        return self._remove(id, chosen, dry_run, expected, "deleted", is_agreed)

    def trim(
        self,
        id: str,
        *,
        dry_run: bool = False,
        expected: Collection[str] | None = None,
        is_agreed: bool = False,
    ) -> Removal:
        """Move every message that is not on the active branch to the trash.

        Args:
            id: The conversation.
            dry_run, expected, is_agreed: As `remove` takes them.

        Raises the errors of `append`; InvalidInput as `remove`. Cost: reading and writing the whole
        file.
        """

        def chosen(
            history: list[Entry], tree: Tree, current: str | None
        ) -> tuple[set[int], int | None]:
            return set(range(len(history))) - set(tree.path(current)), None

        return self._remove(id, chosen, dry_run, expected, "pruned", is_agreed)

    def _remove(
        self,
        id: str,
        chosen: Choose,
        dry_run: bool,
        expected: Collection[str] | None,
        reason: str,
        is_agreed: bool,
    ) -> Removal:
        from capsule.format.tree.branches import PrunedHistory

        if dry_run:
            return PrunedHistory(self._store.document(id), chosen).removal

        def act(conversation: Conversation) -> Removal:
            planned = PrunedHistory(conversation.document(), chosen)
            if expected is not None and set(planned.removal.ids) != set(expected):
                raise InvalidInput(
                    f"conversation {id} was changed meanwhile: {planned.removal} would be "
                    f"removed now, not the {len(expected)} expected; nothing was removed; read "
                    "the conversation again, then try again"
                )
            if planned.removal.ids:
                conversation.rewrite(planned.applied, reason=reason, is_agreed=is_agreed)
            return planned.removal

        return self._store.inner.change(id, act)
