"""What one agent sees of a store: an engine around the engine, which leaves out what the agent may
not read.

What must stay true: the rule is `capsule.rules.policy`, asked anew at each question; what is
neither judged here nor listed as harmless is not there for an agent. A conversation that the agent
may not read is in no list, search, change, count and trash, and is refused where it is named. Of a
group that the agent joined later, the messages before are left out; the others keep their places,
so that a place means the same to all. A kind of documents that is not listed does not exist for an
agent, whatever asks; what the tools of a session give an agent of its files, they give themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from capsule.engines.interface import CONVERSATIONS, deleted_last, document_in, not_found
from capsule.errors import CapsuleError, InvalidDocument, NotFound, Refused
from capsule.format.json import codec
from capsule.rules import policy
from capsule.rules.policy import Viewer, first_readable_time
from capsule.store.change.conversation import REMOVED
from capsule.timestamps import sortable

if TYPE_CHECKING:
    from capsule.engines.interface import (
        DocumentVersion,
        Engine,
        Leases,
        ReadSet,
        Tracker,
        Transaction,
        Trash,
        Trashed,
    )
    from capsule.engines.local_documents import LocalDocuments
    from capsule.engines.queries import Queries
    from capsule.rules.policy import InputsFor

T = TypeVar("T")
Document = dict[str, Any]
#: The kinds of documents that an agent has anything to do with.
_KINDS = frozenset({CONVERSATIONS, "agents", "projects", "overrides", "applied"})


def can_read(engine: Engine, id: str) -> bool:
    """Whether the holder of this engine may read a conversation, or could before it was deleted.

    Cost: reading its head; of one that is gone, the trash.
    """
    if not isinstance(engine, AgentView):
        return True
    try:
        return engine.head(id) is not None
    except NotFound:
        return engine.trash.saw(id)
    except InvalidDocument:
        return True
    except CapsuleError:
        return False


class AgentView:
    """An engine as an agent sees it; `Engine` says what each method does.

    Args:
        agent: The agent.
        engine: The engine of the whole store.
        state_of: Gives what a decision depends on besides a conversation; see `AgentDirectory.state`.
    """

    def __init__(self, agent: str, engine: Engine, state_of: InputsFor) -> None:
        self.agent = agent
        self._engine = engine
        self._state_of = state_of
        # Passed on unchanged: they say nothing of conversations that the agent may not read.
        self.name, self.close = engine.name, engine.close
        self.leases = LeasesView(engine.leases, self._finds)

    def queries(self, asker: Viewer | None = None) -> Queries:
        """The questions of this agent, whatever `asker` is."""
        return self._engine.queries(Viewer(self.agent, self._state_of(None, ())))

    def _of(self, kind: str) -> Engine:
        """The engine, for documents of a kind. Raises Refused."""
        if kind not in _KINDS:
            raise Refused(f"agent {self.agent} may not use {kind}, only a person may", path="")
        return self._engine

    # -- Documents of some kinds -------------------------------------------------------------------

    def create(
        self,
        kind: str,
        document: Document,
        written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        return self._of(kind).create(kind, document, written, read_set)

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        return self._of(kind).put(kind, id, data, expected, read_set)

    def delete(self, kind: str, id: str) -> Trashed:
        return self._of(kind).delete(kind, id)

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        return self._of(kind).version(kind, id, cached)

    def _refuse(self, *args: Any, **named: Any) -> NoReturn:
        raise Refused(f"agent {self.agent} may not do this, only a person", path="")

    #: Not for agents.
    follow = toml = set_toml = _refuse

    @property
    def files(self) -> NoReturn:
        """Raises Refused: what the tools of a session give an agent of its files, they give
        themselves.
        """
        self._refuse()

    # -- What is judged ----------------------------------------------------------------------------

    def may(self, action: policy.Action, object: policy.PolicyTarget) -> policy.PolicyDecision:
        """What the policies say of an action of the agent."""
        return policy.decide(self.agent, action, object, self._state_of(object, ()))

    def since(self, head: Document) -> str:
        """The time from which the agent reads the conversation with this head; empty: all of it.

        Raises Refused if it may not, and NotFound if it is not to know that there is one.
        """
        object = policy.PolicyTarget.from_document(head)
        policy.raise_if_denied(self.may("read", object), object.id, self._state_of)
        return first_readable_time(self.agent, object, head["createdAt"])

    def seen_from(self, id: str) -> str:
        """The time from which the agent reads a conversation; empty: all of it.

        Raises Refused if it may not read it, and NotFound if it is not to know that there is one.
        """
        try:
            head = self._engine.head(id)[0]
        except InvalidDocument:
            if policy.hides_damaged_file(self.agent, id):
                raise not_found(CONVERSATIONS, id) from None
            raise
        return self.since(head)

    @contextmanager
    def _judged(self, kind: str, id: str) -> Iterator[None]:
        """Tell of a damaged file only who may know of the conversation."""
        try:
            yield
        except InvalidDocument:
            if kind == CONVERSATIONS:
                self.seen_from(id)
            raise

    @contextmanager
    def transaction(self, kind: str, id: str) -> Iterator[Transaction]:
        """An agent that may not read the document gets the transaction only if it may join.

        Raises Refused, or NotFound if the agent is not to know of the document.
        """
        with self._judged(kind, id), self._of(kind).transaction(kind, id) as transaction:
            joins = False
            if kind == CONVERSATIONS:
                object = policy.PolicyTarget.from_parsed_head(transaction.head)
                state = self._state_of(object, ())
                transaction.decision_inputs, transaction.read_set = (
                    (object, state),
                    state.read_versions,
                )
                reading = policy.decide(self.agent, "read", object, state)
                joins = (
                    not reading.allowed and policy.decide(self.agent, "join", object, state).allowed
                )
                if not joins:
                    policy.raise_if_denied(reading, id, self._state_of)
            yield transaction
            if joins:
                policy.raise_if_denied(
                    self.may("read", policy.PolicyTarget.from_parsed_head(transaction.head)),
                    id,
                    self._state_of,
                )

    def exists(self, kind: str, id: str) -> bool:
        try:
            return self._of(kind).exists(kind, id) and (
                kind != CONVERSATIONS or self.seen_from(id) is not None
            )
        except NotFound:
            return False
        except CapsuleError:
            return True

    def ids(self, kind: str) -> list[str]:
        ids = self._of(kind).ids(kind)
        if kind != CONVERSATIONS:
            return ids
        from capsule.engines.queries import ListRequest

        seen = {head.id for head in self.queries().conversations(ListRequest()).heads}
        return [id for id in ids if id in seen]

    def head(self, id: str) -> tuple[Document, int]:
        """The size is 0 if the agent may read only a part of the file."""
        with self._judged(CONVERSATIONS, id):
            head, size = self._engine.head(id)
        return head, 0 if self.since(head) else size

    def document(self, kind: str, id: str) -> Document:
        """A message that the agent may not read is an empty object."""
        with self._judged(kind, id):
            document = self._of(kind).document(kind, id)
        since = self.since(document) if kind == CONVERSATIONS else ""
        if not since:
            return document
        count = count_before(document["history"], since)
        return document | {"history": [*({} for _ in range(count)), *document["history"][count:]]}

    def read(self, kind: str, id: str) -> bytes:
        if kind != CONVERSATIONS or not self.seen_from(id):
            return self._of(kind).read(kind, id)
        return self.parsed(id, lambda data, _: data)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        if not self.seen_from(id):
            return self._engine.parsed(id, parse)
        document = self.document(CONVERSATIONS, id)
        return parse(
            codec.encode(document | {"history": [entry for entry in document["history"] if entry]}),
            True,
        )

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """There are fewer entries if the agent may not read those before."""
        since = self.seen_from(id)
        data, count, tag = self._engine.tail(id, n)
        if not since:
            return data, count, tag
        entries = codec.decode_entries(data, self._engine.name(CONVERSATIONS, id))
        return codec.encode_entries(entries[count_before(entries, since) :]), count, tag

    @property
    def trash(self) -> TrashView:
        return TrashView(self, self._engine.trash)

    @property
    def local(self) -> LocalDocuments:
        """The documents of this machine, of the kinds that an agent may use."""
        return self._engine.local.for_agent(self.agent)

    def tracker(self, kind: str | None = None) -> Tracker:
        """Raises Refused for any kind but conversations."""
        if kind != CONVERSATIONS:
            raise Refused(f"agent {self.agent} can watch conversations only", path="")
        return self._engine.tracker(kind)

    def flush(self, kind: str = "", id: str = "") -> int:
        """As the engine; the number stays untold, as it counts what the agent may not see."""
        self._engine.flush(kind, id)
        return 0

    def external_edits(self, purpose: str = "this") -> NoReturn:
        """Raises Refused: an agent has neither the paths of documents nor versions from outside."""
        why = (
            f"{purpose} needs the files of the store, which agent {self.agent} may not use, "
            "only a person"
        )
        raise Refused(why, path="")

    def _finds(self, agent: str) -> bool:
        if agent in ("", self.agent):
            return True
        return policy.decide(
            self.agent, "find", policy.PolicyTarget(agent, "agent"), self._state_of(None, (agent,))
        ).allowed


class TrashView:
    """The trash as an agent sees it. See `Trash`, which describes the methods."""

    def __init__(self, view: AgentView, trash: Trash) -> None:
        self._view = view
        self._trash = trash

    def entries(self, kind: str) -> list[Trashed]:
        """The entries that the agent itself put there. Cost: reading each entry."""
        return [trashed for trashed in self._trash.entries(kind) if self._is_seen(kind, trashed)]

    def _is_seen(self, kind: str, trashed: Trashed) -> bool:
        """Whether the agent put an entry there, and may read the conversation."""
        with suppress(CapsuleError):
            if kind == REMOVED:
                self._view.seen_from(trashed.id)
                kept = codec.decode(self._trash.read(trashed.token), trashed.token)
                return bool(kept["removed"].get("by") == self._view.agent)
            document = document_in(self._trash, trashed.token)
            self._view.since(document)
            return bool(document["metadata"].get("deletedBy") == self._view.agent)
        return False

    def saw(self, id: str) -> bool:
        """Whether a conversation is in it that the agent could read, as it was deleted last."""
        with suppress(CapsuleError):
            return any(
                self._view.since(document) is not None
                for document in deleted_last(self._trash, {id}).values()
            )
        return False

    def read(self, token: str) -> bytes:
        there = (
            (kind, it)
            for kind in (CONVERSATIONS, REMOVED)
            for it in self._trash.entries(kind)
            if it.token == token
        )
        if not any(self._is_seen(kind, trashed) for kind, trashed in there):
            raise NotFound(f"{token} is not in the trash", id=token)
        return self._trash.read(token)

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> NoReturn:
        """Raises Refused: an agent puts there only what it deletes."""
        raise Refused(f"agent {self._view.agent} may not do this, only a person", path="")

    def restore(self, kind: str, id: str, token: str) -> None:
        """Raises Refused if the agent could not have deleted it."""
        self.read(token)
        policy.raise_if_denied(
            self._view.may(
                "delete", policy.PolicyTarget.from_document(document_in(self._trash, token))
            ),
            id,
        )
        self._trash.restore(kind, id, token)

    def erase(self, token: str) -> None:
        """Erase an entry, unasked: its messages came back by a change that this agent was allowed
        to make.
        """
        self._trash.erase(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Raises Refused: what is erased is not the agent's alone."""
        raise Refused(f"only a person may empty the trash, not agent {self._view.agent}", path="")


class LeasesView:
    """The leases as an agent sees them. See `Leases`; of the live instances, those of agents that
    it finds.
    """

    def __init__(self, leases: Leases, finds: Callable[[str], bool]) -> None:
        self._leases, self._finds = leases, finds
        self.acquire, self.release, self.is_live = leases.acquire, leases.release, leases.is_live
        self.ensure_held = leases.ensure_held

    @property
    def boot_id(self) -> str:
        """As `Leases` has it."""
        return self._leases.boot_id

    def record_heartbeat(self, *args: Any, **named: Any) -> NoReturn:
        """Raises Refused: only sessions use it."""
        raise Refused("only a person may report heartbeats of sessions, not an agent", path="")

    last_heartbeat = record_heartbeat

    def live_instances(self) -> dict[str, dict[str, Any]]:
        """What each live instance says about itself, of agents that this one finds and of
        no agent.
        """
        return {
            id: about
            for id, about in self._leases.live_instances().items()
            if self._finds(about.get("agent", ""))
        }


def count_before(entries: list[Document], since: str) -> int:
    """The number of entries that come before the first one of this time or later."""
    times = (sortable(str(entry.get("timestamp"))) for entry in entries)
    return next((place for place, time in enumerate(times) if time >= since), len(entries))
