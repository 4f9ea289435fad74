"""What one agent sees of a store: an engine around the engine, which leaves out what the agent may not read.

What must stay true: the rule is `capsule.rules.policy`, asked anew at each question; what is neither judged here
nor listed as harmless is not there for an agent. A conversation that the agent may not read is in no list, search,
change, count and trash, and is refused where it is named. Of a group that the agent joined later, the messages before
are left out; the others keep their places, so that a place means the same to all. A kind of documents that is not
listed does not exist for an agent, whatever asks; what the tools of a session give an agent of its files, they give
themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from capsule.engines.interface import CONVERSATIONS, missing
from capsule.errors import CapsuleError, InvalidDocument, NotFound, Refused
from capsule.format.json import codec
from capsule.rules import policy
from capsule.store.parts import OfKinds, before, is_at, later, places_since, told_since
from capsule.store.sealed import Seal
from capsule.store.trash_view import TrashView
from capsule.timestamps import from_ms, ms_of, sortable

if TYPE_CHECKING:
    from capsule.engines.answers import Found, Listed, Mine, Place, Stats, Value
    from capsule.engines.changes import Change
    from capsule.engines.index.search.search import Asked
    from capsule.engines.interface import Engine, Transaction
    from capsule.engines.machine import Machine
    from capsule.engines.values import Tracker
    from capsule.format.documents.head import Head
    from capsule.rules.policy import StateOf

#: What an agent has of an engine as it is: it tells of no conversation that the agent may not read.
HANDED_ON = frozenset({"create", "edit", "delete", "version", "versions", "name", "close"})
HANDED_ON |= {"announce", "withdraw", "is_alive"}
#: The same, of an index.
HANDED_ON_BY_THE_INDEX = frozenset({"refresh", "rebuild", "drop", "close"})
T = TypeVar("T")
Document = dict[str, Any]
Progress = Callable[[int, int], None]


def seen_by(agent: str, engine: Engine, state_of: StateOf) -> Engine:
    """The engine as this agent sees it. `state_of` gives what a decision depends on besides a conversation."""
    return cast("Engine", AgentView(agent, engine, state_of))


def sees(engine: Engine, change: Change) -> bool:
    """Whether who has this engine may read the conversation that changed. Cost: as `Index.heads`."""
    view: object = engine
    return not isinstance(view, AgentView) or view.index.hidden_among([change]).get(change.id, 0) is not None


class AgentView:
    """An engine as an agent sees it. `Engine` describes the methods; what is not here it has not, but for `HANDED_ON`.

    Args:
        agent: The agent.
        engine: The engine of the whole store.
        state_of: Gives what a decision depends on besides a conversation; see `Directory.state`.
    """

    def __init__(self, agent: str, engine: Engine, state_of: StateOf) -> None:
        self.agent = agent
        self._engine = cast("Engine", OfKinds(agent, engine))
        self._state_of = state_of
        self.index = IndexView(agent, engine, state_of)

    def __getattr__(self, name: str) -> Any:
        if name not in HANDED_ON:
            raise AttributeError(f"an agent has no {name} of an engine")
        return getattr(self._engine, name)

    def may(self, action: policy.Action, object: policy.Object) -> policy.Decision:
        return policy.may(self.agent, action, object, self._state_of(object, ()))

    def since(self, head: Document) -> str:
        """The time from which the agent reads the conversation with this head; empty: all of it.

        Raises Refused if it may not, and NotFound if it is not to know that there is one.
        """
        object = policy.Object.of(head)
        policy.ensure(self.may("read", object), object.id, self._state_of)
        return later(policy.seen_from(self.agent, object), head["createdAt"])

    def seen_from(self, id: str) -> str:
        try:
            head = self._engine.head(id)[0]
        except InvalidDocument:
            if policy.is_hidden_damaged(self.agent, id):
                raise missing(CONVERSATIONS, id) from None
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
        """Who may not read the document is let in to join it, and else learns nothing.

        Raises Refused or NotFound.
        """
        with self._judged(kind, id), self._engine.transaction(kind, id) as transaction:
            joins = False
            if kind == CONVERSATIONS:
                object = policy.Object.at(transaction.head)
                reading = self.may("read", object)
                joins = not reading.allowed and self.may("join", object).allowed
                if not joins:
                    policy.ensure(reading, id, self._state_of)
            yield transaction
            if joins:
                policy.ensure(self.may("read", policy.Object.at(transaction.head)), id, self._state_of)

    def exists(self, kind: str, id: str) -> bool:
        try:
            return self._engine.exists(kind, id) and (kind != CONVERSATIONS or self.seen_from(id) is not None)
        except NotFound:
            return False
        except CapsuleError:
            return True

    def ids(self, kind: str) -> list[str]:
        ids = self._engine.ids(kind)
        if kind != CONVERSATIONS:
            return ids
        unseen = self.index.unseen()
        return [id for id in ids if id not in unseen]

    def head(self, id: str) -> tuple[Document, int]:
        """The size of a file that the agent reads in part is not told: 0."""
        with self._judged(CONVERSATIONS, id):
            head, size = self._engine.head(id)
        return head, 0 if self.since(head) else size

    def document(self, kind: str, id: str) -> Document:
        """A message that the agent may not read is an empty object."""
        with self._judged(kind, id):
            document = self._engine.document(kind, id)
        since = self.since(document) if kind == CONVERSATIONS else ""
        if not since:
            return document
        count = before(document["history"], since)
        return document | {"history": [*({} for _ in range(count)), *document["history"][count:]]}

    def read(self, kind: str, id: str) -> bytes:
        if kind != CONVERSATIONS or not self.seen_from(id):
            return self._engine.read(kind, id)
        return self.parsed(id, lambda data, _: data)

    def parsed(self, id: str, parse: Callable[[bytes, bool], T]) -> T:
        if not self.seen_from(id):
            return self._engine.parsed(id, parse)
        document = self.document(CONVERSATIONS, id)
        return parse(codec.encode(document | {"history": [entry for entry in document["history"] if entry]}), True)

    def tail(self, id: str, n: int) -> tuple[bytes, int]:
        """There are fewer entries if the agent may not read those before."""
        since = self.seen_from(id)
        data, count = self._engine.tail(id, n)
        if not since:
            return data, count
        entries = codec.decode_entries(data, self._engine.name(CONVERSATIONS, id))
        return codec.encode_entries(entries[before(entries, since) :]), count

    @property
    def trash(self) -> TrashView:
        return TrashView(self, self._engine.trash)

    @property
    def machine(self) -> Machine:
        """An agent reaches some kinds of documents."""
        return self._engine.machine.for_agent(self.agent)

    def tracker(self, kind: str | None = None) -> Tracker:
        """Raises Refused for what is not about conversations."""
        if kind != CONVERSATIONS:
            raise Refused(f"agent {self.agent} hears of conversations alone", path="")
        return self._engine.tracker(kind)

    def outside_edits(self, what: str = "this") -> NoReturn:
        """Raises Refused: an agent has neither the paths of documents nor versions from outside."""
        why = f"{what} needs the files of the store, which agent {self.agent} does not reach, only a person"
        raise Refused(why, path="")

    def instances(self) -> dict[str, dict[str, Any]]:
        """Those of agents that the agent does not find are left out."""
        live = self._engine.instances().items()
        return {id: about for id, about in live if self._finds(about.get("agent", self.agent))}

    def _finds(self, agent: str) -> bool:
        found = policy.may(self.agent, "find", policy.Object(agent, "agent"), self._state_of(None, (agent,)))
        return agent == self.agent or found.allowed


class IndexView:
    """The index as an agent sees it. See `Index`; what is not here it has not, but for `HANDED_ON_BY_THE_INDEX`."""

    def __init__(self, agent: str, engine: Engine, state_of: StateOf) -> None:
        self._agent = agent
        self._engine = engine
        self._state_of = state_of
        self._seal = Seal(agent, engine.machine)
        #: How far the journal was read from the last cursor without a change to tell.
        self._read_to: dict[str, str] = {}
        self._last = policy.State()
        #: What the rule says of a head in a state, as long as the index has this head.
        self._kept: dict[str, tuple[Head, policy.State, int | None]] = {}

    def __getattr__(self, name: str) -> Any:
        if name not in HANDED_ON_BY_THE_INDEX:
            raise AttributeError(f"an agent has no {name} of an index")
        return getattr(self._engine.index, name)

    def _state(self) -> policy.State:
        """What decisions depend on now; the same object as long as it is the same."""
        if (state := self._state_of(None, ())) != self._last:
            self._last = state
        return self._last

    def _hidden_until(self, head: Head, state: policy.State) -> int | None:
        """The time in milliseconds since 1970 from which the agent reads; 0: it reads all, None: nothing."""
        if not head.participants and head.channel is None:
            return None if head.damaged and policy.is_hidden_damaged(self._agent, head.id) else 0
        kept = self._kept.get(head.id)
        if kept is None or kept[0] is not head or kept[1] is not state:
            object = policy.Object.listed(head)
            until: int | None = None
            if policy.may(self._agent, "read", object, state).allowed:
                since = later(policy.seen_from(self._agent, object), head.created_at)
                until = ms_of(since) if since else 0
            kept = self._kept[head.id] = head, state, until
        return kept[2]

    def hidden(self) -> dict[str, int | None]:
        """The conversations that the agent may not read (None), or only from a time in milliseconds since 1970."""
        heads, state = self._engine.index.heads(), self._state()
        return {head.id: until for head in heads if (until := self._hidden_until(head, state)) != 0}

    def unseen(self) -> set[str]:
        """The conversations that the agent may not read."""
        return {id for id, until in self.hidden().items() if until is None}

    def heads(self, progress: Progress | None = None) -> list[Head]:
        return self._shown(self._engine.index.heads(progress), self.hidden())

    def _shown(self, heads: list[Head], hidden: dict[str, int | None]) -> list[Head]:
        """The heads of what is not hidden, without the sizes of files that the agent reads in part."""
        there = (head for head in heads if hidden.get(head.id, 0) is not None)
        return [replace(head, bytes=0) if head.id in hidden else head for head in there]

    def latest(self) -> str | None:
        """Conversations of one millisecond come in no order."""
        heads = [head for head in self.heads() if not head.damaged]
        return max(heads, key=lambda head: sortable(head.updated_at)).id if heads else None

    def of_agent(self, agent: str, *, refresh: bool = True) -> list[Mine]:
        unseen = self.unseen()
        return [mine for mine in self._engine.index.of_agent(agent, refresh=refresh) if mine.id not in unseen]

    def forks_of(self, id: str) -> list[str]:
        unseen = self.unseen()
        return [fork for fork in self._engine.index.forks_of(id) if fork not in unseen]

    def locks(self) -> dict[str, dict[str, Any]]:
        unseen = self.unseen()
        return {id: lock for id, lock in self._engine.index.locks().items() if id not in unseen}

    def changes(self, since: str | None, limit: int, *, refresh: bool = True) -> tuple[list[Change], str]:
        """Of a conversation that is gone, the trash says whether the agent could read it.

        Of one that the agent joined later, no earlier change is told, and no message that it may not read. What was
        removed there is not named: its time is not known any more. The cursor is that of the last change that is told.
        """
        seen: list[Change] = []
        place = begin = since if since is None else self._read_to.get(since, since)
        while True:
            wanted = limit - len(seen)
            found, cursor = self._engine.index.changes(place, wanted, refresh=refresh)
            hidden = self.hidden_among(found)
            said = {
                id: places_since(self._engine.index, id, until) for id, until in hidden.items() if until is not None
            }
            for change in found:
                if change.id not in hidden:
                    seen.append(change)
                elif (until := hidden[change.id]) is not None:
                    seen += told_since(change, from_ms(until), said[change.id])
            if len(found) < wanted or len(seen) == limit:
                break
            place, refresh = cursor, False
        after = cursor if seen or since is None else since
        if seen and begin is not None and not is_at(seen[-1].cursor, begin):  # Else the files were asked, by time.
            after = seen[-1].cursor
        self._read_to = {after: cursor}
        return seen, after

    def hidden_among(self, changes: list[Change]) -> dict[str, int | None]:
        """As `hidden`, of the conversations that changed; of those that went, what the agent could not read."""
        if not changes:
            return {}
        ids, state = {change.id for change in changes}, self._state()
        there = [head for head in self._engine.index.heads() if head.id in ids]
        hidden = {head.id: until for head in there if (until := self._hidden_until(head, state)) != 0}
        if gone := ids - {head.id for head in there}:
            since = AgentView(self._agent, self._engine, self._state_of).trash.deleted(gone)
            hidden |= {id: ms_of(since[id]) if id in since else None for id in gone if since.get(id) != ""}
        return hidden

    def search(self, asked: Asked, now_ms: int, progress: Progress | None = None) -> Found:
        # Whose a damaged file is can't be known, and its last sound messages are still in the index.
        damaged = {head.id: None for head in self._engine.index.heads() if head.damaged}
        cursor = None if asked.cursor is None else self._seal.open(asked.cursor)
        hidden = self.hidden() | damaged
        found = self._engine.index.search(replace(asked, cursor=cursor), now_ms, progress, hidden=hidden)
        return found if found.cursor is None else replace(found, cursor=self._seal.seal(found.cursor))

    def messages_with(self, where: object, conversation: str | None = None) -> list[Place]:
        return self._engine.index.messages_with(where, conversation, hidden=self.hidden())

    def values_of(self, path: str, conversation: str) -> list[Value]:
        return self._engine.index.values_of(path, conversation, hidden=self.hidden())

    def listed(
        self,
        choose: Callable[[list[Head]], list[Head]],
        limit: int | None,
        cursor: str,
        asked: str,
        progress: Progress | None = None,
    ) -> Listed:
        hidden = self.hidden()

        opened = self._seal.open(cursor) if cursor else ""
        page = self._engine.index.listed(
            lambda heads: choose(self._shown(heads, hidden)), limit, opened, asked, progress, hidden
        )
        return replace(page, _cursor=lambda shown: (text := page._cursor(shown)) and self._seal.seal(text))

    def stats(self, progress: Progress | None = None) -> Stats:
        return self._engine.index.stats(progress, self.hidden())
