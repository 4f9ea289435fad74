"""Forks: conversations made from a branch of another one.

What must stay true: a fork's messages have ids of their own, so that it shares only text with its
source. Deleting a conversation deletes no fork, unless the caller asks for it.
"""

from __future__ import annotations

import logging
import re
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsule import ids, timestamps
from capsule.engines.interface import Trashed
from capsule.engines.queries import ListRequest
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, NotFound
from capsule.format.documents import creation
from capsule.format.documents.channels import channel_in
from capsule.format.documents.head import Head
from capsule.format.references import find_message
from capsule.format.text.titles import check_title, derived_title
from capsule.ids import check_id
from capsule.rules import locking
from capsule.store.base import KIND
from capsule.store.creation import create_once, write_new
from capsule.store.objects.trash import discard

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

_log = logging.getLogger("capsule")
#: The fields of the source's metadata that a fork copies.
_COPIED = ("mcpServers", "description")
#: Characters of a channel's name, and of the copy's id, in the name of a copy.
_OF_EACH = 39
#: Fields that name another message, besides `parent`.
_NAMING = ("replyTo", "thread")


def inherited_privacy(about: Mapping[str, Any], id: str) -> dict[str, Any]:
    """The fields of the metadata that close a copy to whom its source is closed.

    Args:
        about: The metadata of the source.
        id: The copy. Of a channel it is another channel, of a name of its own; who made it lets
            nobody into a private one, in which what was said by invitation stays with those who
            were invited.
    """
    fields = {name: about.get(name) for name in ("participants", "history")}
    if (channel := channel_in(about)) is None:
        return fields
    name = (
        f"{channel.name[:_OF_EACH]}-{re.sub('[^a-z0-9]+', '-', id.lower())[:_OF_EACH].strip('-')}"
    )
    access = "open" if channel.access == "open" else "private"
    return fields | {
        "channel": channel._replace(name=name, access=access, is_default=False).as_json()
    }


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

        Raises the errors of `load` and of `store.create`; NotFound if there is no such message.

        Cost: reading the source, and writing the new file.
        """
        if key is not None and new_id is not None:
            raise InvalidInput("give new_id or key, not both: the key determines the id")

        def make(made: str) -> Head:
            return self._fork(id, at, title, attachments, made, created_by)

        if key is not None:
            return create_once(self._store.inner, "fork", check_id(id), key, make)
        return make(ids.new_id() if new_id is None else check_id(new_id))

    def _fork(
        self,
        id: str,
        at: str | None,
        title: str | None,
        attachments: bool,
        new_id: str,
        created_by: str | None,
    ) -> Head:
        from capsule.format.tree.tree import Tree

        source = self._store.document(check_id(id))
        history, about = source["history"], source["metadata"]
        tree = Tree(history)
        place = (
            tree.active_leaf(about.get("currentNode"))
            if at is None
            else find_message(history, at, id)
        )
        path = [history[place] for place in tree.path_to(place)]
        first_text = next((str(entry["content"]) for entry in path if entry["role"] == "user"), "")
        new_ids = ids.message_ids_at(
            timestamps.ms_of(str(entry.get("timestamp"))) for entry in path
        )
        renamed = dict(zip((entry["id"] for entry in path), new_ids, strict=True))
        left_out = {"parent", *_NAMING} if attachments else {"parent", *_NAMING, "attachments"}
        type = str(about.get("type") or "chat")
        document = creation.new_capsule(
            new_id,
            derived_title("Fork of ", source["title"], first_text)
            if title is None
            else check_title(title),
            timestamps.now(),
            str(about.get("mode") or "api"),
            type,
            about.get("tags") or (),
            "auto" if title is None else "user",
            self._store.inner.instance_locks.lock_for_new(type),
            [
                {key: value for key, value in entry.items() if key not in left_out}
                | {"id": message}
                | {name: renamed[entry[name]] for name in _NAMING if entry.get(name) in renamed}
                for entry, message in zip(path, new_ids, strict=True)
            ],
            context=source.get("context"),
            metadata={name: about.get(name) for name in _COPIED}
            | inherited_privacy(about, new_id)
            | {"forkedFrom": id, "createdBy": self._store.agent or created_by},
        )
        return write_new(self._store.inner, document)

    def delete(self, id: str) -> list[Trashed]:
        """Move a conversation, its forks, and their forks to the trash; the conversation goes last.

        An agent deletes only conversations whose messages are all from it.

        Args:
            id: The conversation.

        Raises NotFound, Locked, LockLost; if another instance has locked one of them, nothing is
        deleted. Cost: as `store.delete` for each.
        """
        family = [id, *self.list(check_id(id), deep=True)]
        holder, deleted = self._store.inner.instance_locks, []
        for each in family:
            with suppress(InvalidDocument, NotFound):
                locking.check_writable(
                    each,
                    self._store.head(each).lock,
                    holder.identity,
                    held=False,
                    state=holder.state_of,
                )
        for each in reversed(family):
            try:
                deleted.append(discard(self._store, each))
            except NotFound:
                if each == id:
                    raise
        return deleted

    def list(self, id: str, *, deep: bool = False) -> list[str]:
        """List the ids of the forks of a conversation, sorted. The conversation may have been
        deleted.

        Args:
            id: The conversation.
            deep: Also list the forks of these forks, and so on, each after its source.

        Raises StorageFailed, StoreBusy. Cost: as `heads`.
        """
        all_, left = dict[str, None](), [id]
        for source in left:
            forks = self._store.queries.conversations(ListRequest(forks_of=source)).heads
            new = [head.id for head in forks if head.id not in all_]
            all_ |= dict.fromkeys(new)
            left += new if deep else ()
        all_.pop(id, None)
        return list(all_)


def delete_alone(store: BaseStore, id: str, *, is_agreed: bool = False) -> Trashed:
    """Move a conversation to the trash; its forks become forks of its own source. See
    `Store.delete`.
    """
    # The search for forks comes first: it puts the conversation into the index, which later reports
    # it as restored.
    forks: list[str] = []
    source = None
    try:
        forks = Forks(store).list(id) if store.engine.exists(KIND, check_id(id)) else []
    except CapsuleError as error:
        _log.warning("could not look for the forks of %s: %s", id, error.message)
    if forks:
        with suppress(CapsuleError):
            source = store.head(id).forked_from
    trashed = discard(store, id, is_agreed=is_agreed)
    for fork in forks:
        _set_source(store, fork, id, source)
    return trashed


def _set_source(store: BaseStore, fork: str, deleted: str, source: str | None) -> None:
    """Give a fork of `deleted` another source; None: it is then no fork."""

    def act(conversation: Conversation) -> None:
        if conversation.head.metadata.get("forkedFrom") != deleted:
            return

        def change(head: dict[str, Any]) -> None:
            if source is None or source == fork:
                head["metadata"].pop("forkedFrom", None)
            else:
                head["metadata"]["forkedFrom"] = source

        conversation.change_head(change)

    try:
        store.inner.change(fork, act, store.inner.instance_locks.admit_once)
    except NotFound:
        pass
    except CapsuleError as error:
        _log.warning(
            "conversation %s still names %s as its source, which was deleted: %s",
            fork,
            deleted,
            error,
        )
