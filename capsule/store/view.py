"""What one agent sees of a store: an engine around the engine, which leaves out what the agent may
not read.

`AgentView` has the methods of `Engine`. Methods that read one conversation, or begin a transaction
on it, ask `capsule.rules.policy` at each call, with the head as it is then. Lists and searches pass
the agent on to the engine, whose index applies the same rule. `create`, `put`, `delete` and
`version` check only the kind of the document (`_KINDS`): the code that calls them has asked the
policy. A method that is neither checked nor listed here as harmless raises Refused. The tools of a
session give an agent the files of that session themselves.

What must stay true: a conversation that the agent may not read is in no list, search, change, count
and trash, and is refused where it is named. If the agent joined a group later, the earlier messages
are left out. The others keep their positions, so that a position means the same to all.
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
    from capsule.engines.queries import HeadField, Queries
    from capsule.format.documents.head import Head
    from capsule.rules.policy import InputsFor

T = TypeVar("T")
Document = dict[str, Any]
#: The kinds of documents that an agent may use. Any other kind is refused.
_KINDS = frozenset({CONVERSATIONS, "agents", "projects", "overrides", "applied"})


def can_read(engine: Engine, id: str) -> bool:
    """Return whether the user of this engine may read a conversation, or could before it was
    deleted. A damaged file counts as readable, because its error names no content.

    Cost: reading its head. If it was deleted, reading the trash.
    """
    if not isinstance(engine, AgentView):
        return True
    try:
        return engine.head(id) is not None
    except NotFound:
        return engine.trash.could_read(id)
    except InvalidDocument:
        return True
    except CapsuleError:
        return False


class AgentView:
    """An engine as an agent sees it. `Engine` describes the methods.

    Args:
        agent: The agent.
        engine: The engine of the whole store.
        inputs_for: Reads what a decision depends on besides its target (such as channels and other
            agents), as `AccessGuard.state` does.
    """

    def __init__(self, agent: str, engine: Engine, inputs_for: InputsFor) -> None:
        self.agent = agent
        self._engine = engine
        self._inputs_for = inputs_for
        # Passed on unchanged: they reveal nothing of conversations that the agent may not read.
        self.name = engine.name
        self.close = engine.close
        self.leases = LeasesView(engine.leases, self._is_agent_visible)

    def queries(self, asker: Viewer | None = None) -> Queries:
        """Return the queries of this agent. `asker` is ignored."""
        return self._engine.queries(Viewer(self.agent, self._inputs_for(None, ())))

    def _engine_for(self, kind: str) -> Engine:
        """Return the engine, if agents may use this kind of documents. Raises Refused."""
        if kind not in _KINDS:
            raise Refused(f"agent {self.agent} may not use {kind}, only a person may", path="")
        return self._engine

    # -- Checked by kind only: the callers have asked the policy -----------------------------------

    def create(
        self,
        kind: str,
        document: Document,
        written: Callable[[str], None] | None = None,
        read_set: ReadSet | None = None,
    ) -> int:
        return self._engine_for(kind).create(kind, document, written, read_set)

    def put(
        self,
        kind: str,
        id: str,
        data: bytes,
        expected: DocumentVersion | None,
        read_set: ReadSet | None = None,
    ) -> DocumentVersion:
        return self._engine_for(kind).put(kind, id, data, expected, read_set)

    def delete(self, kind: str, id: str) -> Trashed:
        return self._engine_for(kind).delete(kind, id)

    def version(
        self, kind: str, id: str, cached: DocumentVersion | None = None
    ) -> DocumentVersion | None:
        return self._engine_for(kind).version(kind, id, cached)

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise Refused(f"agent {self.agent} may not do this, only a person", path="")

    #: Not for agents.
    follow = toml = set_toml = _refuse

    @property
    def files(self) -> NoReturn:
        """Raises Refused. The tools of a session give an agent the session's files themselves."""
        self._refuse()

    # -- With a decision of the policy -------------------------------------------------------------

    def decide(self, action: policy.Action, target: policy.PolicyTarget) -> policy.PolicyDecision:
        """Return the decision of the policy on an action of the agent."""
        return policy.decide(self.agent, action, target, self._inputs_for(target, ()))

    def readable_from_head(self, head: Document) -> str:
        """Return the time from which the agent reads the conversation with this head. Empty: it
        reads all of it.

        Raises:
            Refused: The agent may not read it.
            NotFound: The agent may not know of it.
        """
        target = policy.PolicyTarget.from_document(head)
        policy.raise_if_denied(self.decide("read", target), target.id, self._inputs_for)
        return first_readable_time(self.agent, target, head["createdAt"])

    def readable_from(self, id: str) -> str:
        """Return the time from which the agent reads a conversation. Empty: it reads all of it.

        Raises:
            Refused: The agent may not read it.
            NotFound: It does not exist, or the agent may not know of it.
            InvalidDocument: Its head does not parse.
        """
        try:
            head = self._engine.head(id)[0]
        except InvalidDocument:
            if policy.hides_damaged_file(self.agent, id):
                raise not_found(CONVERSATIONS, id) from None
            raise
        return self.readable_from_head(head)

    @contextmanager
    def _hiding_damaged(self, kind: str, id: str) -> Iterator[None]:
        """Replace the error of a damaged file by NotFound if the agent may not know of the
        conversation.
        """
        try:
            yield
        except InvalidDocument:
            if kind == CONVERSATIONS:
                self.readable_from(id)
            raise

    @contextmanager
    def transaction(self, kind: str, id: str, *, exclusive: bool = False) -> Iterator[Transaction]:
        """Begin a transaction on a document that the agent may read.

        An agent that may not read a conversation, but may join it, gets the transaction too. It
        must then be able to read it at the end: anything but joining is refused.

        Raises:
            Refused: The agent may neither read nor join it.
            NotFound: The agent may not know of it.
        """
        with (
            self._hiding_damaged(kind, id),
            self._engine_for(kind).transaction(kind, id, exclusive=exclusive) as transaction,
        ):
            must_join = False
            if kind == CONVERSATIONS:
                must_join = self._must_join(id, transaction)
            yield transaction
            if must_join:
                target = policy.PolicyTarget.from_parsed_head(transaction.head)
                policy.raise_if_denied(self.decide("read", target), id, self._inputs_for)

    def _must_join(self, id: str, transaction: Transaction) -> bool:
        """Return whether the agent may not read the conversation of a transaction, but may join it.

        This sets `decision_inputs` and `read_set` of the transaction: what the decision depended
        on. The write is refused if that changes meanwhile.

        Raises Refused or NotFound if the agent may do neither.
        """
        target = policy.PolicyTarget.from_parsed_head(transaction.head)
        inputs = self._inputs_for(target, ())
        transaction.decision_inputs = target, inputs
        transaction.read_set = inputs.read_versions
        read_decision = policy.decide(self.agent, "read", target, inputs)
        if read_decision.allowed:
            return False
        if policy.decide(self.agent, "join", target, inputs).allowed:
            return True
        policy.raise_if_denied(read_decision, id, self._inputs_for)  # It always raises here.
        return False

    def exists(self, kind: str, id: str) -> bool:
        try:
            if not self._engine_for(kind).exists(kind, id):
                return False
            if kind == CONVERSATIONS:
                self.readable_from(id)
            return True
        except NotFound:
            return False
        except CapsuleError:  # The agent may know of it, though it may not or can't read it.
            return True

    def ids(self, kind: str) -> list[str]:
        ids = self._engine_for(kind).ids(kind)
        if kind != CONVERSATIONS:
            return ids
        from capsule.engines.queries import ListRequest

        listed = self.queries().conversations(ListRequest()).heads
        visible_ids = {head.id for head in listed}
        return [id for id in ids if id in visible_ids]

    def head(self, id: str) -> tuple[Document, int]:
        """Return the head and the size of the file: 0 if the agent may read only a part of it."""
        with self._hiding_damaged(CONVERSATIONS, id):
            head, size = self._engine.head(id)
        return head, 0 if self.readable_from_head(head) else size

    def heads_with(self, field: HeadField, value: str) -> list[Head]:
        return [head for head in self._engine.heads_with(field, value) if self._is_readable(head)]

    def _is_readable(self, head: Head) -> bool:
        if head.damaged:
            return not policy.hides_damaged_file(self.agent, head.id)
        return self.decide("read", policy.PolicyTarget.from_head(head)).allowed

    def document(self, kind: str, id: str) -> Document:
        """Return a document, with an empty object for each message that the agent may not read."""
        with self._hiding_damaged(kind, id):
            document = self._engine_for(kind).document(kind, id)
        if kind != CONVERSATIONS:
            return document
        readable_from = self.readable_from_head(document)
        if not readable_from:
            return document
        history = document["history"]
        count = count_before(history, readable_from)
        placeholders: list[Document] = [{} for _ in range(count)]
        return document | {"history": placeholders + history[count:]}

    def read(self, kind: str, id: str) -> bytes:
        if kind != CONVERSATIONS or not self.readable_from(id):
            return self._engine_for(kind).read(kind, id)
        return self.parsed(id, lambda data, _: data)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        if not self.readable_from(id):
            return self._engine.parsed(id, parse)
        document = self.document(CONVERSATIONS, id)
        # Without the placeholders, which are no valid messages.
        readable = [entry for entry in document["history"] if entry]
        return parse(codec.encode(document | {"history": readable}), True)

    def tail(self, id: str, n: int) -> tuple[bytes, int, str]:
        """Return the last entries: fewer than `n` if the agent may not read the earlier ones."""
        readable_from = self.readable_from(id)
        data, count, tag = self._engine.tail(id, n)
        if not readable_from:
            return data, count, tag
        entries = codec.decode_entries(data, self._engine.name(CONVERSATIONS, id))
        readable = entries[count_before(entries, readable_from) :]
        return codec.encode_entries(readable), count, tag

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
        """Flush as the engine does, and return 0. The engine's number would reveal hidden
        conversations.
        """
        self._engine.flush(kind, id)
        return 0

    def external_edits(self, purpose: str = "this") -> NoReturn:
        """Raises Refused: an agent has no access to the files of the store."""
        reason = (
            f"{purpose} needs the files of the store, which agent {self.agent} may not use, "
            "only a person"
        )
        raise Refused(reason, path="")

    def _is_agent_visible(self, agent: str) -> bool:
        """Return whether the agent finds another one. Empty stands for no agent."""
        if agent in ("", self.agent):
            return True
        target = policy.PolicyTarget(agent, "agent")
        inputs = self._inputs_for(None, (agent,))
        return policy.decide(self.agent, "find", target, inputs).allowed


class TrashView:
    """The trash as an agent sees it: the conversations and messages that it deleted itself. `Trash`
    describes the methods.
    """

    def __init__(self, view: AgentView, trash: Trash) -> None:
        self._view = view
        self._trash = trash

    def entries(self, kind: str) -> list[Trashed]:
        """Return the entries that the agent itself put there. Cost: reading each entry."""
        return [trashed for trashed in self._trash.entries(kind) if self._is_visible(kind, trashed)]

    def _is_visible(self, kind: str, trashed: Trashed) -> bool:
        """Return whether the agent put an entry there, and may read the conversation.

        An entry of the kind REMOVED has deleted messages. The conversation itself still exists.
        """
        with suppress(CapsuleError):
            if kind == REMOVED:
                self._view.readable_from(trashed.id)
                record = codec.decode(self._trash.read(trashed.token), trashed.token)
                deleted_by = record["removed"].get("by")
            else:
                document = document_in(self._trash, trashed.token)
                self._view.readable_from_head(document)
                deleted_by = document["metadata"].get("deletedBy")
            return bool(deleted_by == self._view.agent)
        return False

    def could_read(self, id: str) -> bool:
        """Return whether the conversation was deleted, and the agent could read its last version."""
        with suppress(CapsuleError):
            documents = deleted_last(self._trash, {id}).values()
            for document in documents:
                self._view.readable_from_head(document)
                return True
        return False

    def read(self, token: str) -> bytes:
        for kind in (CONVERSATIONS, REMOVED):
            for trashed in self._trash.entries(kind):
                if trashed.token == token and self._is_visible(kind, trashed):
                    return self._trash.read(token)
        raise NotFound(f"{token} is not in the trash", id=token)

    def add(self, kind: str, id: str, data: bytes, deleted_at: str = "") -> NoReturn:
        """Raises Refused: an agent puts there only what it deletes."""
        raise Refused(f"agent {self._view.agent} may not do this, only a person", path="")

    def restore(self, kind: str, id: str, token: str) -> None:
        """Raises Refused if the agent could not have deleted it."""
        self.read(token)
        target = policy.PolicyTarget.from_document(document_in(self._trash, token))
        policy.raise_if_denied(self._view.decide("delete", target), id)
        self._trash.restore(kind, id, token)

    def erase(self, token: str) -> None:
        """Erase an entry without a check. The change that restored its messages was checked."""
        self._trash.erase(token)

    def purge(self, older_than_s: float) -> list[str]:
        """Raises Refused: the trash also has entries of others."""
        raise Refused(f"only a person may empty the trash, not agent {self._view.agent}", path="")


class LeasesView:
    """The leases as an agent sees them. `Leases` describes the methods.

    Args:
        leases: The leases of the whole store.
        is_agent_visible: Returns whether the agent finds another agent, by id.
    """

    def __init__(self, leases: Leases, is_agent_visible: Callable[[str], bool]) -> None:
        self._leases = leases
        self._is_agent_visible = is_agent_visible
        self.acquire = leases.acquire
        self.release = leases.release
        self.is_live = leases.is_live
        self.ensure_held = leases.ensure_held

    @property
    def boot_id(self) -> str:
        """As `Leases` has it."""
        return self._leases.boot_id

    def record_heartbeat(self, *args: Any, **options: Any) -> NoReturn:
        """Raises Refused: only sessions use it."""
        raise Refused("only a person may report heartbeats of sessions, not an agent", path="")

    last_heartbeat = record_heartbeat

    def live_instances(self) -> dict[str, dict[str, Any]]:
        """Return the details of live instances by id: those without an agent, and those of agents
        that this agent finds.
        """
        visible = {}
        for id, details in self._leases.live_instances().items():
            if self._is_agent_visible(details.get("agent", "")):
                visible[id] = details
        return visible


def count_before(entries: list[Document], time: str) -> int:
    """Return the number of entries before the first one of this time or later."""
    for position, entry in enumerate(entries):
        if sortable(str(entry.get("timestamp"))) >= time:
            return position
    return len(entries)
