"""The conversations of agents: directs of two, and groups.

What must stay true: two agents have one direct, whoever of them begins it, and if both do so at once; its id can't be
taken for that of another pair. Who may do what is asked by the Store in the mutex of each write.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput, Refused
from capsule.format.documents.agents import direct_id
from capsule.format.documents.members import Member, as_json, joined, left, members_in
from capsule.format.documents.new import new_capsule
from capsule.format.text.titles import check_title
from capsule.messaging.people.people import People
from capsule.store.creation import TakenId, write_new

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.change.conversation import Conversation
    from capsule.store.store import CoreStore

_RANDOM = "abcdefghijklmnopqrstuvwxyz0123456789"
Document = dict[str, Any]


def random_suffix() -> str:
    """What makes an id that nobody can guess."""
    import secrets  # It loads OpenSSL, which a command that reads has no use for.

    return "".join(secrets.choice(_RANDOM) for _ in range(9))


def ensure_direct(acting: CoreStore, a: str, b: str) -> str:
    """Make the direct of two agents, unless it exists; its id.

    Args:
        acting: The store that acts for one of them.
        a, b: The agents.

    Raises Refused if they are the same one. Cost: writing a new file.
    """
    if a == b:
        raise Refused(f"{a} can't write to itself: a message goes to another agent", path="")
    id = direct_id(a, b)
    both = sorted((a, b))
    document = new_capsule(
        id, ", ".join(both), timestamps.now(), type="direct", metadata={"participants": both, "createdBy": a}
    )
    with suppress(TakenId):  # The other side was quicker.
        write_new(acting.inner, document)
    return id


class OfOneType:
    """What the Store offers for the conversations of one type: their heads are changed here, and nowhere else."""

    _type = ""

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.part(People)

    def _who(self, agent: str | None) -> str | None:
        """The agent that a call is for; None: the store's owner."""
        return None if agent is None and self._store.agent is None else self._store.inner.subject(agent)

    def _change(self, id: str, agent: str | None, change: Callable[[Document, str], None]) -> Head:
        """Change the head of a conversation, for an agent or for the owner: `change` is given it, and the time."""
        acting = self._store.inner.acting(self._who(agent))

        def act(conversation: Conversation) -> Document:
            if conversation.head.type != self._type:
                raise InvalidInput(f"conversation {id} is no {self._type}, but a {conversation.head.type}")
            # Later than each message that there is, so that times tell who reads what.
            stamp = timestamps.later_than(
                max(conversation.transaction.state.time, conversation.transaction.state.updated_at)
            )
            return conversation.change_head(lambda head: change(head, stamp))

        return acting.inner.head_of(id, acting.inner.change(id, act))


class Groups(OfOneType):
    """Conversations of several agents, which only they read and write."""

    _type = "group"

    def create(
        self, name: str, *, agent: str | None = None, with_: Iterable[str] = (), history: str = "joined"
    ) -> Head:
        """Make a group.

        Args:
            name: Its name.
            agent: The agent that makes it and takes part; None: the one that the store acts for.
            with_: The other agents that take part.
            history: What an agent reads that is added later: `joined`, from then on; `all`, everything.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: The name or `history` can't be accepted.
            Refused, StorageFailed: The system did not permit it.

        Cost: writing a new file.
        """
        maker = self._people.known(agent)
        if history not in ("joined", "all"):
            raise InvalidInput(f"history: joined or all, not {history[:40]!r}")
        members = dict.fromkeys((maker, *(self._people.directory.resolve(each, maker) for each in with_)))
        stamp = timestamps.now()
        about: Document = {"participants": as_json(Member(id, stamp) for id in members), "createdBy": maker}
        if history == "all":
            about["history"] = history
        id = f"group_{time.time_ns() // 1_000_000}_{random_suffix()}"
        document = new_capsule(id, check_title(name), stamp, type="group", title_set_by="user", metadata=about)
        return write_new(self._store.inner.acting(maker).inner, document)

    def add(self, id: str, agents: Iterable[str], *, agent: str | None = None) -> Head:
        """Add agents to a group, or let them come back. It comes back from the archive too.

        Args:
            id: The group.
            agents: The agents to add. Those that take part already stay as they are.
            agent: The agent that adds them; None: the one that the store acts for, or the store's owner.

        Raises:
            NotFound: There is no such group, or no such agent.
            Refused: The agent does not take part in it.
            InvalidInput: The conversation is no group.

        Cost: copying the file.
        """
        added = [self._people.directory.resolve(each, agent or self._store.agent) for each in agents]

        def change(head: Document, stamp: str) -> None:
            head["metadata"]["participants"] = joined(head["metadata"].get("participants"), added, stamp)
            head["metadata"].pop("archived", None)

        return self._change(id, agent, change)

    def leave(self, id: str, *, agent: str | None = None) -> Head:
        """Leave a group. When the last one leaves, it is archived.

        Args:
            id: The group.
            agent: The agent that leaves; None: the one that the store acts for.

        Raises the errors of `add`. Cost: copying the file.
        """
        who = self._store.inner.subject(agent)

        def change(head: Document, stamp: str) -> None:
            about = head["metadata"]
            about["participants"] = left(about.get("participants"), [who], stamp)
            if not any(member.is_in for member in members_in(about["participants"])):
                about["archived"] = True

        return self._change(id, who, change)

    def rename(self, id: str, name: str, *, agent: str | None = None) -> Head:
        """Give a group another name.

        Args:
            id: The group.
            name: The name.
            agent: The agent that renames it; None: the one that the store acts for, or the store's owner.

        Raises the errors of `add`. Cost: copying the file.
        """
        title = check_title(name)
        return self._change(id, agent, lambda head, stamp: head.update(title=title))

    def list(self, *, agent: str | None = None) -> list[Head]:
        """List the groups that an agent takes part in, the latest first.

        Args:
            agent: The agent; None: the one that the store acts for.

        Raises NotFound, Refused. Cost: bringing the index up to date, and reading the beginning of each group's file.
        """
        who = self._store.inner.subject(agent)
        mine = self._store.questions.mine(who)
        return [self._store.inner.acting(who).head(each.id) for each in mine if each.type == "group"]
