"""The branches of a conversation: reading, switching, making and removing them.

The messages of a conversation form a tree: each message answers its parent. `currentNode` in the
metadata is the end of the active branch, once the conversation was switched to a branch.
`capsule.format.tree` has the functions on the tree. Here they run inside one write each.

What must stay true: a removal changes no answer between messages that stay. A write that removes
the end of the active branch also sets the new end.
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
from capsule.store.objects.edits import author_relation, message_label

if TYPE_CHECKING:
    from capsule.format.models import Message
    from capsule.format.tree.branches import Alternatives, Choose, Removal, Slot, Switched
    from capsule.format.tree.tree import Tree
    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

Entry = dict[str, Any]
#: The fields that a new version of a message takes over from the old one.
_INHERITED_FIELDS = ("from", "replyTo", "thread", "topic", "toolCallId", "attachments")


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
        history = document["history"]
        return history, Tree(history), document["metadata"].get("currentNode")

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
        encoded = b",".join(codec.encode_entry(entry) for _, entry in entries)
        messages = []
        for message, (position, _) in zip(parse_messages(b"[%b]" % encoded), entries, strict=True):
            messages.append(message.placed(position))
        return messages

    def alternatives(self, id: str, message_id: str) -> Alternatives:
        """List a message and the others that answer the same message.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        from capsule.format.tree.branches import Alternatives

        history, tree, _ = self.tree(id)
        position = find_message(history, message_id, id)
        siblings = tree.siblings_at(position)
        return Alternatives(
            history[position]["id"],
            siblings.index(position),
            tuple(history[sibling]["id"] for sibling in siblings),
            tuple(history[tree.leaf_at(sibling)]["id"] for sibling in siblings),
        )

    def descendants(self, id: str, message_id: str) -> list[str]:
        """List the ids of the answers to a message, and of the answers to these, breadth first.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.

        Raises NotFound, InvalidInput, InvalidDocument. Cost: reading the file.
        """
        history, tree, _ = self.tree(id)
        position = find_message(history, message_id, id)
        return [history[descendant]["id"] for descendant in tree.descendants_at(position)]

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
        position = find_answer(id, history, tree, current, message_id)
        return Slot(history[position]["id"], tree.id_at(tree.parents[position]))

    # -- Switching ---------------------------------------------------------------------------------

    def switch(self, id: str, message_id: str | None = None, *, step: int = 0) -> Switched:
        """Make another branch the active one: the branch through a message, and on to the newest
        answers.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it. None: the last message of the
                active branch that has alternatives. This needs a `step`.
            step: Switch to an alternative of this message, this many places further: 1 is the next,
                -1 the previous one.

        Raises the errors of `append`, and

            NotFound: The message does not exist.
            InvalidInput: No alternative is that many places further, or `message_id` fits several
                messages.

        Cost: parsing the file, and copying it.
        """
        if message_id is None and not step:
            raise InvalidInput("give the message to switch to, or a step from the active one")
        if message_id is not None:
            message_id = message_label(self._store, id, message_id)
        from capsule.format.tree.branches import plan_switch

        def switch_branch(conversation: Conversation) -> Switched:
            history = conversation.document()["history"]
            switched = plan_switch(history, conversation.head.current, message_id, step, id)
            if switched.changed:
                conversation.change_head(
                    lambda head: head["metadata"].update(currentNode=switched.leaf),
                    ends_active=switched.is_last,
                )
            return switched

        return self._store.inner.change(id, switch_branch)

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
        message_id = message_label(self._store, id, message_id)

        def new_version(history: list[Entry], tree: Tree, current: str | None) -> Entry:
            position = find_message(history, message_id, id)
            old = history[position]
            inherited = {name: old[name] for name in _INHERITED_FIELDS if name in old}
            parent = tree.id_at(tree.parents[position])
            message = {"role": old["role"], "content": content, "parent": parent}
            return message | inherited | fields

        return self._append_alternative(id, new_version, content, key)

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

        Raises the errors of `append_once`, and

            NotFound: The message does not exist, or the branch has no answer.
            InvalidInput: The message is no answer.

        Cost: as `revise`.
        """
        message = {"role": "assistant", "content": content, **fields_given(fields, extra)}
        check_message(message)
        from capsule.format.tree.branches import find_answer

        def new_answer(history: list[Entry], tree: Tree, current: str | None) -> Entry:
            position = find_answer(id, history, tree, current, message_id)
            return message | {"parent": tree.id_at(tree.parents[position])}

        return self._append_alternative(id, new_answer, content, key)

    def _append_alternative(
        self,
        id: str,
        make_message: Callable[[list[Entry], Tree, str | None], Entry],
        content: str,
        key: str | None,
    ) -> Message:
        """Append a message that answers the same message as an existing one, and make it the end of
        the active branch.

        Args:
            id: The conversation.
            make_message: Makes the message from the history, its tree and `currentNode`.
            content: The text of the message.
            key: An idempotency key. If it was used before, the earlier message is returned.
        """
        from capsule.format.tree.tree import Tree

        # The id is made before the first try, so that a second try finds the message that the first
        # has written.
        if key is None:
            new_id = new_message_id()
        else:
            new_id = keyed_message_id(check_id(id), check_key(key))
        own_fields = {"from": self._store.agent} if self._store.agent else {}
        own_fields["id"] = new_id

        def append(conversation: Conversation) -> tuple[int, Entry]:
            if key is not None:
                earlier = earlier_keyed_append(
                    conversation.transaction, {"id": new_id, "content": content}, ("content",)
                )
                if earlier is not None:
                    return earlier
            history = conversation.document()["history"]
            message = make_message(history, Tree(history), conversation.head.current)
            position, entries = conversation.append(
                [check_message(message | own_fields)], move=True
            )
            return position, entries[0]

        position, entry = self._store.inner.change(id, append)
        return message_model(entry, position)

    # -- Removing ----------------------------------------------------------------------------------

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
        """Move a message and all answers to it to the trash.

        An agent removes only messages that are from it, each alone, as with `keep_children`.

        If the active branch ended there, it then continues through the newest alternative of the
        message, or ends at the message's parent.

        Args:
            id: The conversation.
            message_id: The message, as `find_message` takes it.
            keep_children: Remove this message alone. Its answers become answers to its parent.
            dry_run: Change nothing; only return what would be removed.
            expected: The ids of the messages that may be removed, from a dry run. If the removal no
                longer concerns exactly these, nothing is removed. None: no check.
            is_agreed: Whether a person agreed to this removal. An agent may then remove any
                message of a chat.

        Raises the errors of `append`, and

            NotFound: The message does not exist.
            InvalidInput: Other messages than the expected ones would be removed.

        Cost: reading and writing the whole file.
        """
        message_id = message_label(self._store, id, message_id)
        agent = self._store.agent

        def choose(
            history: list[Entry], tree: Tree, current: str | None
        ) -> tuple[set[int], int | None]:
            position = find_message(history, message_id, id)
            is_own = agent is not None and author_relation(history[position], agent) == "own"
            if keep_children or is_own:
                return {position}, position
            return {position, *tree.descendants_at(position)}, position

        return self._remove(id, choose, dry_run, expected, "deleted", is_agreed)

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

        Raises the errors of `append`, and InvalidInput as `remove`. Cost: reading and writing the
        whole file.
        """

        def choose(
            history: list[Entry], tree: Tree, current: str | None
        ) -> tuple[set[int], int | None]:
            return set(range(len(history))) - set(tree.path(current)), None

        return self._remove(id, choose, dry_run, expected, "pruned", is_agreed)

    def _remove(
        self,
        id: str,
        choose: Choose,
        dry_run: bool,
        expected: Collection[str] | None,
        reason: str,
        is_agreed: bool,
    ) -> Removal:
        """Remove messages, and return what was removed.

        Args:
            id: The conversation.
            choose: Returns the positions of the messages to remove, and the position of the message
                that the caller named, if any. Gets the history, its tree and `currentNode`.
            dry_run, expected, is_agreed: As `remove` takes them.
            reason: As `Conversation.rewrite` takes it.
        """
        from capsule.format.tree.branches import PrunedHistory

        if dry_run:
            return PrunedHistory(self._store.document(id), choose).removal

        def remove(conversation: Conversation) -> Removal:
            pruned = PrunedHistory(conversation.document(), choose)
            if expected is not None and set(pruned.removal.ids) != set(expected):
                raise InvalidInput(
                    f"conversation {id} was changed meanwhile: {pruned.removal} would be "
                    f"removed now, not the {len(expected)} expected; nothing was removed; read "
                    "the conversation again, then try again"
                )
            if pruned.removal.ids:
                conversation.rewrite(pruned.apply_to, reason=reason, is_agreed=is_agreed)
            return pruned.removal

        return self._store.inner.change(id, remove)
