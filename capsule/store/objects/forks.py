"""Forks: conversations made from a branch of another one, the source.

`metadata.forkedFrom` of a fork is the id of its source. If a source is deleted, its forks become
forks of the source of the source.

What must stay true: a fork's messages have ids of their own, so that it shares only text with its
source. Deleting a conversation deletes no fork, unless the caller asks for it. A fork is as private
as its source.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsule import ids, timestamps
from capsule.engines.interface import CONVERSATIONS, Trashed
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound
from capsule.format.documents.channels import channel_in
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.head import Head
from capsule.format.references import find_message
from capsule.format.text.titles import check_title, derived_title
from capsule.ids import check_id
from capsule.rules import locking
from capsule.store.creation import create_once, write_new
from capsule.store.objects.trash import delete_without_forks

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

_log = logging.getLogger("capsule")
#: The fields of the source's metadata that a fork copies.
_COPIED_FIELDS = ("mcpServers", "description")
#: The number of characters that the channel's name and the copy's id each give to the name of a
#: copied channel.
_NAME_PART_LENGTH = 39
#: The fields of a message that name another message, besides `parent`.
_REFERENCES = ("replyTo", "thread")


def inherited_privacy(metadata: Mapping[str, Any], id: str) -> dict[str, Any]:
    """Return the metadata fields that hide a copy from all agents that may not read its source.

    The copy of a channel is another channel with a name of its own. The copy of a channel that is
    not open is private. So what was written for invited members stays with them, and whoever made
    the copy can't let others in.

    Args:
        metadata: The metadata of the source.
        id: The id of the copy.
    """
    fields = {name: metadata.get(name) for name in ("participants", "history")}
    channel = channel_in(metadata)
    if channel is None:
        return fields
    id_part = re.sub("[^a-z0-9]+", "-", id.lower())[:_NAME_PART_LENGTH].strip("-")
    copy = channel._replace(
        name=f"{channel.name[:_NAME_PART_LENGTH]}-{id_part}",
        access="open" if channel.access == "open" else "private",
        is_default=False,
    )
    return fields | {"channel": copy.as_json()}


class Forks:
    """The forks of the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def create(
        self,
        id: str,
        *,
        at: str | None = None,
        title: str | None = None,
        attachments: bool = True,
        new_id: str | None = None,
        created_by: str | None = None,
        key: str | None = None,
    ) -> Head:
        """Make a new conversation from a branch of another one; it is durable when this returns.

        It has the messages that lead to one message, with new ids and the same times, and the
        source's mode, type, tags, MCP servers, participants, description and project context.
        `forkedFrom` names the source.

        Args:
            id: The source. It is not changed, and another instance may have locked it.
            at: The last message to copy, as `find_message` takes it. None: the end of the active
                branch.
            title: The title. None: "Fork of " and the title of the source.
            attachments: Whether the messages keep their attachments.
            new_id: The new conversation's id. None: a new one.
            created_by: The agent that makes it.
            key: An idempotency key in place of `new_id`, as `store.create` takes it.

        Raises the errors of `load` and of `store.create`, and NotFound if the message does not
        exist.

        Cost: reading the source, and writing the new file.
        """
        if key is not None and new_id is not None:
            raise InvalidInput("give new_id or key, not both: the key determines the id")

        def make(fork_id: str) -> Head:
            return self._fork(id, at, title, attachments, fork_id, created_by)

        if key is not None:
            return create_once(self._store.inner, "fork", check_id(id), key, make)
        return make(ids.new_id() if new_id is None else check_id(new_id))

    def _fork(
        self,
        id: str,
        at: str | None,
        title: str | None,
        attachments: bool,
        fork_id: str,
        created_by: str | None,
    ) -> Head:
        """Make a fork under an id. The other arguments are those of `create`."""
        from capsule.format.tree.tree import Tree

        source = self._store.document(check_id(id))
        history = source["history"]
        metadata = source["metadata"]
        tree = Tree(history)
        if at is None:
            last = tree.active_leaf(metadata.get("currentNode"))
        else:
            last = find_message(history, at, id)
        branch = [history[position] for position in tree.path_to(last)]
        if title is None:
            user_texts = (str(entry["content"]) for entry in branch if entry["role"] == "user")
            fork_title = derived_title("Fork of ", source["title"], next(user_texts, ""))
        else:
            fork_title = check_title(title)
        type = str(metadata.get("type") or "chat")
        copied_fields = {name: metadata.get(name) for name in _COPIED_FIELDS}
        origin = {"forkedFrom": id, "createdBy": self._store.agent or created_by}
        document = new_capsule(
            fork_id,
            title=fork_title,
            stamp=timestamps.now(),
            mode=str(metadata.get("mode") or "api"),
            type=type,
            tags=metadata.get("tags") or (),
            title_set_by="auto" if title is None else "user",
            lock=self._store.inner.instance_locks.lock_for_new(type),
            messages=_with_new_ids(branch, attachments),
            context=source.get("context"),
            metadata=copied_fields | inherited_privacy(metadata, fork_id) | origin,
        )
        return write_new(self._store.inner, document)

    def delete(self, id: str) -> list[Trashed]:
        """Move a conversation, its forks, and their forks to the trash. The conversation goes last.

        An agent deletes only conversations whose messages are all from it.

        Args:
            id: The conversation.

        Raises NotFound, Locked, LockLost. If another instance has locked one of them, nothing is
        deleted.

        Cost: as `store.delete` for each.
        """
        family = [id, *self.list(check_id(id), deep=True)]
        instance_locks = self._store.inner.instance_locks
        for member in family:
            with suppress(InvalidDocument, NotFound):
                locking.check_writable(
                    member,
                    self._store.head(member).lock,
                    instance_locks.identity,
                    remembers_lock=False,
                    state=instance_locks.state_of,
                )
        deleted = []
        for member in reversed(family):
            try:
                deleted.append(delete_without_forks(self._store, member))
            except NotFound:
                if member == id:
                    raise
        return deleted

    def list(self, id: str, *, deep: bool = False) -> list[str]:
        """List the ids of the forks of a conversation, sorted. The conversation may have been
        deleted.

        Args:
            id: The conversation.
            deep: Also list the forks of these forks, and so on, each after its source.

        Raises StorageFailed, StoreBusy. Cost: as `heads`. In a database, a round trip for each
        listed source.
        """
        fork_ids = dict[str, None]()  # A set that keeps the order.
        sources = [id]
        for source in sources:  # It grows while it is read.
            forks = self._store.engine.heads_with("forkedFrom", source)
            new_ids = [head.id for head in forks if head.id not in fork_ids]
            fork_ids |= dict.fromkeys(new_ids)
            if deep:
                sources += new_ids
        fork_ids.pop(id, None)
        return list(fork_ids)


def _with_new_ids(branch: list[dict[str, Any]], attachments: bool) -> list[dict[str, Any]]:
    """Return copies of the messages of a branch, with new ids and the same times. They need no
    parents. A reference to a message outside the branch is left out.
    """
    times_ms = [timestamps.ms_of(str(entry.get("timestamp"))) for entry in branch]
    new_ids = ids.message_ids_at(times_ms)
    new_id_by_old = dict(zip((entry["id"] for entry in branch), new_ids, strict=True))
    omitted = {"parent", *_REFERENCES}
    if not attachments:
        omitted.add("attachments")
    copies = []
    for entry, new_id in zip(branch, new_ids, strict=True):
        copy = {name: value for name, value in entry.items() if name not in omitted}
        copy["id"] = new_id
        for name in _REFERENCES:
            if entry.get(name) in new_id_by_old:
                copy[name] = new_id_by_old[entry[name]]
        copies.append(copy)
    return copies


def delete_and_relink_forks(store: BaseStore, id: str, *, is_agreed: bool = False) -> Trashed:
    """Move a conversation to the trash. Its forks become forks of its own source. See
    `Store.delete`.
    """
    # The search for forks comes first: it puts the conversation into the index, which later reports
    # it as restored.
    forks: list[str] = []
    source = None
    try:
        if store.engine.exists(CONVERSATIONS, check_id(id)):
            forks = Forks(store).list(id)
    except CapsuleError as error:
        _log.warning("could not look for the forks of %s: %s", id, error.message)
    if forks:
        with suppress(CapsuleError):
            source = store.head(id).forked_from
    trashed = delete_without_forks(store, id, is_agreed=is_agreed)
    for fork in forks:
        _set_source(store, fork, id, source)
    return trashed


def _set_source(store: BaseStore, fork: str, deleted: str, source: str | None) -> None:
    """Give a fork of `deleted` another source. With None it is no fork any more. A failure is
    logged.
    """

    def set_source(conversation: Conversation) -> None:
        if conversation.head.metadata.get("forkedFrom") != deleted:
            return

        def change(head: dict[str, Any]) -> None:
            if source is None or source == fork:
                head["metadata"].pop("forkedFrom", None)
            else:
                head["metadata"]["forkedFrom"] = source

        conversation.change_head(change)

    try:
        store.inner.change(fork, set_source, store.inner.instance_locks.admit_once)
    except NotFound:
        pass
    except CapsuleError as error:
        _log.warning(
            "conversation %s still names %s as its source, which was deleted: %s",
            fork,
            deleted,
            error,
        )
