"""What one agent sees of a store: an engine around the engine, which leaves out what the agent may not read.

What must stay true: the rule is `capsule.messaging.policy`, asked anew at each question. A conversation that the agent
may not read is in no list, search, change, count and trash, and is refused where it is named. Of a group that the agent
joined later, the messages before are left out; the others keep their places, so that a place means the same to all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeVar, cast

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, NotFound, Refused
from capsule.format import codec, migrations
from capsule.messaging import policy
from capsule.store.change import REMOVED
from capsule.timestamps import parse, sortable

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.engines.files.protocols import Trashed
    from capsule.engines.index.facts import Place, Value
    from capsule.engines.index.pages import Listed
    from capsule.engines.index.search.hits import Found
    from capsule.engines.index.search.search import Asked
    from capsule.engines.index.stats import Stats
    from capsule.engines.interface import Engine, Transaction
    from capsule.format.head import Head

T = TypeVar("T")
Document = dict[str, Any]
Progress = Callable[[int, int], None]


def seen_by(agent: str, engine: Engine) -> Engine:
    """The engine as this agent sees it."""
    return cast("Engine", AgentView(agent, engine))


def sees(engine: Engine, change: Change) -> bool:
    """Whether who has this engine may read the conversation that changed. Cost: as `Index.heads`."""
    view: object = engine
    return not isinstance(view, AgentView) or change.id not in view.index.unseen_among([change])


class AgentView:
    """An engine as an agent sees it. See `Engine`; what is not here is as the engine has it.

    Args:
        agent: The agent.
        engine: The engine of the whole store.
    """

    #: An agent has neither the paths of documents nor versions from outside, as git and the doctor need them.
    capabilities: frozenset[str] = frozenset()

    def __init__(self, agent: str, engine: Engine) -> None:
        self.agent = agent
        self._engine = engine
        self.index = IndexView(agent, engine)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def _seen_from(self, id: str) -> str:
        """The time from which the agent reads a conversation; empty: all of it. Raises Refused if it may not."""
        head = self._engine.head(id)[0]
        object = policy.Object.of(head)
        policy.ensure(policy.may(self.agent, "read", object), id)
        return _later(policy.seen_from(self.agent, object), head["createdAt"])

    @contextmanager
    def transaction(self, kind: str, id: str) -> Iterator[Transaction]:
        """See `Engine.transaction`. Raises Refused if the agent may not read the document."""
        with self._engine.transaction(kind, id) as transaction:
            if kind == CONVERSATIONS:
                object = policy.Object.of(transaction.head.document)
                policy.ensure(policy.may(self.agent, "read", object), id)
            yield transaction

    def ids(self, kind: str) -> list[str]:
        """See `Engine.ids`."""
        ids = self._engine.ids(kind)
        if kind != CONVERSATIONS:
            return ids
        unseen = self.index.unseen()
        return [id for id in ids if id not in unseen]

    def head(self, id: str) -> tuple[Document, int]:
        """See `Engine.head`."""
        self._seen_from(id)
        return self._engine.head(id)

    def document(self, kind: str, id: str) -> Document:
        """See `Engine.document`. A message that the agent may not read is an empty object."""
        since = self._seen_from(id) if kind == CONVERSATIONS else ""
        document = self._engine.document(kind, id)
        if not since:
            return document
        count = _before(document["history"], since)
        return document | {"history": [*({} for _ in range(count)), *document["history"][count:]]}

    def read(self, kind: str, id: str) -> bytes:
        """See `Engine.read`."""
        if kind != CONVERSATIONS or not self._seen_from(id):
            return self._engine.read(kind, id)
        return self.parsed(id, lambda data, _: data)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        """See `Engine.parsed`."""
        if not self._seen_from(id):
            return self._engine.parsed(id, parse)
        document = self.document(CONVERSATIONS, id)
        return parse(codec.encode(document | {"history": [entry for entry in document["history"] if entry]}), True)

    def tail(self, id: str, n: int) -> tuple[bytes, int]:
        """See `Engine.tail`. There are fewer entries if the agent may not read those before."""
        since = self._seen_from(id)
        data, count = self._engine.tail(id, n)
        if not since:
            return data, count
        entries = codec.decode_entries(data, self._engine.name(CONVERSATIONS, id))
        return codec.encode_entries(entries[_before(entries, since) :]), count

    # -- Trash -----------------------------------------------------------------------------------------------------

    def trash(self, kind: str) -> list[Trashed]:
        """See `Engine.trash`. Cost: reading each entry."""
        return [trashed for trashed in self._engine.trash(kind) if self._is_seen(kind, trashed)]

    def _is_seen(self, kind: str, trashed: Trashed) -> bool:
        with suppress(CapsuleError):
            if kind == REMOVED:  # They may be of any time.
                return not self._seen_from(trashed.id)
            return policy.may(self.agent, "read", self._deleted(trashed.token)).allowed
        return False

    def _deleted(self, token: str) -> policy.Object:
        document = migrations.current(codec.decode(self._engine.trashed(token), token), token)[0]
        return policy.Object.of(document)

    def trashed(self, token: str) -> bytes:
        """See `Engine.trashed`."""
        if not any(token == trashed.token for kind in (CONVERSATIONS, REMOVED) for trashed in self.trash(kind)):
            raise NotFound(f"{token} is not in the trash", id=token)
        return self._engine.trashed(token)

    def restore(self, kind: str, id: str, token: str) -> None:
        """See `Engine.restore`. Raises Refused if the agent could not have deleted it."""
        self.trashed(token)
        policy.ensure(policy.may(self.agent, "delete", self._deleted(token)), id)
        self._engine.restore(kind, id, token)

    def purge(self, older_than_s: float) -> list[str]:
        """Raises Refused: what is erased is not the agent's alone."""
        raise Refused(f"the trash was not emptied: agent {self.agent} may not, only a person", path="")


class IndexView:
    """The index as an agent sees it. See `Index`; what is not here is as the index has it."""

    def __init__(self, agent: str, engine: Engine) -> None:
        self._agent = agent
        self._engine = engine
        #: What the rule says of a head, as long as the index has this head.
        self._kept: dict[str, tuple[Head, int | None]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine.index, name)

    def _hidden_until(self, head: Head) -> int | None:
        """The time in milliseconds since 1970 from which the agent reads; 0: it reads all, None: nothing."""
        kept = self._kept.get(head.id)
        if kept is None or kept[0] is not head:
            object = policy.Object(head.id, head.type, head.participants, head.archived, head.history)
            until: int | None = None
            if policy.may(self._agent, "read", object).allowed:
                since = _later(policy.seen_from(self._agent, object), head.created_at)
                until = round(parse(since).timestamp() * 1000) if since else 0
            kept = self._kept[head.id] = head, until
        return kept[1]

    def hidden(self) -> dict[str, int | None]:
        """The conversations that the agent may not read (None), or only from a time in milliseconds since 1970."""
        heads = (head for head in self._engine.index.heads() if head.participants)
        return {head.id: until for head in heads if (until := self._hidden_until(head)) != 0}

    def unseen(self) -> set[str]:
        """The conversations that the agent may not read."""
        return {id for id, until in self.hidden().items() if until is None}

    def heads(self, progress: Progress | None = None) -> list[Head]:
        """See `Index.heads`."""
        return self._seen(self._engine.index.heads(progress))

    def _seen(self, heads: list[Head]) -> list[Head]:
        unseen = self.unseen()
        return [head for head in heads if head.id not in unseen]

    def latest(self) -> str | None:
        """See `Index.latest`. Conversations of one millisecond come in no order."""
        heads = [head for head in self.heads() if not head.damaged]
        return max(heads, key=lambda head: sortable(head.updated_at)).id if heads else None

    def forks_of(self, id: str) -> list[str]:
        """See `Index.forks_of`."""
        unseen = self.unseen()
        return [fork for fork in self._engine.index.forks_of(id) if fork not in unseen]

    def locks(self) -> dict[str, dict[str, Any]]:
        """See `Index.locks`."""
        unseen = self.unseen()
        return {id: lock for id, lock in self._engine.index.locks().items() if id not in unseen}

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> tuple[list[Change], str]:
        """See `Index.changes`. Of a conversation that is gone, the trash says whether the agent could read it."""
        seen: list[Change] = []
        while True:
            wanted = limit - len(seen)
            found, cursor = self._engine.index.changes(since, wanted, refresh=refresh)
            unseen = self.unseen_among(found)
            seen += [change for change in found if change.id not in unseen]
            if len(found) < wanted or len(seen) == limit:
                return seen, cursor
            since, refresh = cursor, False

    def unseen_among(self, changes: list[Change]) -> set[str]:
        """The conversations that the agent may not read; of those that went, the ones that it could not."""
        if not changes:
            return set()
        ids = {change.id for change in changes}
        there = [head for head in self._engine.index.heads() if head.id in ids]
        unseen = {head.id for head in there if head.participants and self._hidden_until(head) is None}
        gone = ids - {head.id for head in there}
        if gone:
            left = {trashed.id for trashed in AgentView(self._agent, self._engine).trash(CONVERSATIONS)}
            unseen |= {trashed.id for trashed in self._engine.trash(CONVERSATIONS) if trashed.id in gone} - left
        return unseen

    def search(self, asked: Asked, now_ms: int, progress: Progress | None = None) -> Found:
        """See `Index.search`."""
        return self._engine.index.search(asked, now_ms, progress, hidden=self.hidden())

    def messages_with(self, where: object, conversation: str | None = None) -> list[Place]:
        """See `Index.messages_with`."""
        return self._engine.index.messages_with(where, conversation, hidden=self.hidden())

    def mentions_of(self, agent: str) -> list[Place]:
        """See `Index.mentions_of`."""
        return self._engine.index.mentions_of(agent, hidden=self.hidden())

    def values_of(self, path: str, conversation: str) -> list[Value]:
        """See `Index.values_of`."""
        return self._engine.index.values_of(path, conversation, hidden=self.hidden())

    def listed(
        self,
        choose: Callable[[list[Head]], list[Head]],
        limit: int | None,
        cursor: str,
        asked: str,
        progress: Progress | None = None,
    ) -> Listed:
        """See `Index.listed`."""
        unseen = self.unseen()

        def chosen(heads: list[Head]) -> list[Head]:
            return choose([head for head in heads if head.id not in unseen])

        return self._engine.index.listed(chosen, limit, cursor, asked, progress)

    def stats(self, progress: Progress | None = None) -> Stats:
        """See `Index.stats`."""
        return self._engine.index.stats(progress, self.unseen())


def _later(since: str, created_at: str) -> str:
    """`since`, unless it is the time when the conversation was made, or earlier: nothing was said before."""
    return since if since > sortable(created_at) else ""


def _before(entries: list[Document], since: str) -> int:
    """The number of entries that come before the first one of this time or later."""
    times = (sortable(str(entry.get("timestamp"))) for entry in entries)
    return next((place for place, time in enumerate(times) if time >= since), len(entries))
