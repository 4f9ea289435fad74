"""The registry of the sessions: agents, places, wirings, sessions and questions, in
`sessions/registry.json`.

What must stay true: only the host's side writes it, under its mutex, and nothing that no longer
parses or that breaks a rule is written; what a change does not name stays, fields that this program
does not know too. A command that the registry names is run only if these very words were approved
on this machine: a clone can bring a registry. What each field holds, `format.fields` says; what
follows from it, `rules`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar

import orjson

from capsule.errors import InvalidDocument, InvalidInput, NotFound
from capsule.format.documents.agents import check_agent_id
from capsule.format.documents.creation import CURRENT
from capsule.format.documents.head import json_name
from capsule.format.validation import DocumentKind
from capsule.ids import check_id, is_id, new_id
from capsule.messaging.directory import Document, DocumentCollection
from capsule.sessions.cron import zone

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

#: The local kind of document that holds the words of an agent's command that were approved on this
#: machine.
KIND_OF_COMMANDS = "commands"
REGISTRY = DocumentKind("sessions", "registry", "registry", is_id, check_id)
_ID = "registry"
T = TypeVar("T")
#: The session whose file says why messages came to none; it has no row, and no worker.
UNSERVED = "unserved"
#: The pattern of a wiring that fits every message, an empty one too.
EVERY = "."
#: Words for which a wiring has others today.
_OLDER_FIELDS = frozenset({"trigger_rules", "response_scope"})


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """An agent that workers answer for. Its `name` is its id.

    A destination has a name, and `channel`, `place`, and if need be `thread` and `title`.
    """

    section: ClassVar[str] = "agents"
    keys: ClassVar[tuple[str, ...]] = ("name",)
    name: str
    folder: str = ""
    command: tuple[str, ...] = ()
    provider: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    destinations: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ChannelPlace:
    """A place that messages come from."""

    section: ClassVar[str] = "places"
    keys: ClassVar[tuple[str, ...]] = ("channel", "place")
    channel: str
    place: str
    name: str = ""
    is_group: bool = False
    admin: str = ""


@dataclass(frozen=True, slots=True)
class Wiring:
    """Which agent answers in a place, and when; see `rules.wirings`."""

    section: ClassVar[str] = "wirings"
    keys: ClassVar[tuple[str, ...]] = ("channel", "place", "agent")
    channel: str
    place: str
    agent: str
    engage: Literal["pattern", "mention", "mention-sticky"] = "mention"
    pattern: str = ""
    senders: Literal["all", "known"] = "all"
    ignored: Literal["drop", "accumulate"] = "drop"
    session: Literal["shared", "per-thread", "agent-shared"] = "shared"

    @property
    def id(self) -> str:
        """Its key in the registry, by which messages name it."""
        return key_of(self)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """What the registry knows of a session; all else is in its files.

    A paused one takes messages and runs nothing; a closed one takes none.
    """

    section: ClassVar[str] = "sessions"
    keys: ClassVar[tuple[str, ...]] = ("id",)
    id: str
    agent: str
    channel: str = ""
    place: str = ""
    thread: str = ""
    provider: str = ""
    status: Literal["active", "paused", "closed"] = "active"
    worker: Literal["idle", "running", "stopped"] = "stopped"
    last_active: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """A question of an agent to people; see `rules.questions`."""

    section: ClassVar[str] = "questions"
    keys: ClassVar[tuple[str, ...]] = ("id",)
    id: str
    session: str
    message: str
    route: Mapping[str, str] = field(default_factory=dict)
    options: tuple[Mapping[str, str], ...] = ()
    expires_at: str = ""
    state: Literal["open", "answered", "cancelled", "expired"] = "open"
    closed_at: str = ""
    answers: tuple[Mapping[str, str], ...] = ()


RegistryItem = AgentSetup | ChannelPlace | Wiring | SessionRecord | Question
_KINDS: tuple[Any, ...] = (AgentSetup, ChannelPlace, Wiring, SessionRecord, Question)
#: What a session serves: its agent, channel, place and thread; empty ones as in `SessionRecord`.
SessionKey = tuple[str, str, str, str]


def key_of(item: RegistryItem) -> str:
    """The key of an item in its part of the registry."""
    return "/".join(str(getattr(item, name)) for name in item.keys)


@dataclass(frozen=True)
class RegistryState:
    """The registry as it stands, by the keys of its items. It never changes: `put` and `without`
    make another one.
    """

    agents: Mapping[str, AgentSetup] = field(default_factory=dict)
    places: Mapping[str, ChannelPlace] = field(default_factory=dict)
    wirings: Mapping[str, Wiring] = field(default_factory=dict)
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    questions: Mapping[str, Question] = field(default_factory=dict)

    def put(self, *items: RegistryItem) -> RegistryState:
        """The registry with these items, in place of those with the same keys."""
        return self._with(lambda part, item: {**part, key_of(item): item}, items)

    def without(self, *items: RegistryItem) -> RegistryState:
        """The registry without these items."""
        return self._with(
            lambda part, item: {key: row for key, row in part.items() if key != key_of(item)}, items
        )

    def _with(
        self,
        change: Callable[[Mapping[str, RegistryItem], RegistryItem], Mapping[str, RegistryItem]],
        items: Sequence[RegistryItem],
    ) -> RegistryState:
        parts = {item.section: getattr(self, item.section) for item in items}
        for item in items:
            parts[item.section] = change(parts[item.section], item)
        return replace(self, **parts)

    def provider(self, session: str) -> str:
        """The program behind the workers of a session; empty: it is not known, or there is no such
        session.
        """
        row = self.sessions.get(session)
        return row.provider if row else ""

    @cached_property
    def wired(self) -> Mapping[tuple[str, str], Sequence[Wiring]]:
        """The wirings by channel and place, in the order of their agents."""
        by_place: dict[tuple[str, str], list[Wiring]] = defaultdict(list)
        for wiring in sorted(self.wirings.values(), key=lambda wiring: wiring.agent):
            by_place[wiring.channel, wiring.place].append(wiring)
        return by_place

    @cached_property
    def serving(self) -> Mapping[SessionKey, SessionRecord]:
        """The sessions that take messages, by agent, channel, place and thread."""
        rows = (row for row in self.sessions.values() if row.status != "closed")
        return {(row.agent, row.channel, row.place, row.thread): row for row in rows}


class _RegistryDocuments(DocumentCollection):
    kind = REGISTRY


class Registry:
    """The registry of one store.

    Args:
        engine: The engine that keeps it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._documents = _RegistryDocuments(engine)
        self._last: tuple[Document | None, RegistryState] = None, RegistryState()

    def read(self) -> RegistryState:
        """The registry as it stands; empty if there is none. Raises InvalidDocument.

        Cost: an lstat, and reading a file if it changed.
        """
        document, last = self._documents.find(_ID), self._last
        if document is not last[0]:
            self._last = last = document, _parse_state(document or {})
        return last[1]

    def edit(self, change: Callable[[RegistryState], RegistryState]) -> RegistryState:
        """Change the registry, and make it if there is none.

        Args:
            change: Makes the new state of the present one; it runs again if another program wrote
                it meanwhile.

        Returns:
            The new state.

        Raises:
            InvalidInput: A changed item breaks a rule: a pattern or a time zone that can't be read,
                an unknown word.
            InvalidDocument: The file is damaged.

        Cost: writing a file, unless nothing changes.
        """
        after = RegistryState()

        def apply(document: Document) -> None:
            nonlocal after
            last = self._last
            before = last[1] if document == last[0] else _parse_state(document)
            after = change(before)
            for section in (kind.section for kind in _KINDS):
                old, new, raw = (
                    getattr(before, section),
                    getattr(after, section),
                    document.get(section) or {},
                )
                if new != old:
                    document[section] = {
                        key: raw[key]
                        if key in raw and old.get(key) == item
                        else _entry_of(_checked(item), raw.get(key, {}))
                        for key, item in new.items()
                    }

        def make(now: str) -> Document:
            document = {"id": _ID, "version": CURRENT, "createdAt": now, "updatedAt": now}
            apply(document)
            return document

        self._documents.edit(_ID, apply, make)
        return after

    def decide(self, change: Callable[[RegistryState], tuple[RegistryState, T]]) -> T:
        """Change the registry as `edit` does.

        Args:
            change: Makes the new state of the present one, and says what was decided.

        Returns:
            What was decided on the state that was really changed.

        Raises and costs what `edit` does.
        """
        decisions: list[T] = []

        def apply(state: RegistryState) -> RegistryState:
            after, decision = change(state)
            decisions.append(decision)
            return after

        self.edit(apply)
        return decisions[-1]

    def ensure_session(
        self, serves: SessionKey, now: str, place: ChannelPlace | None = None
    ) -> SessionRecord:
        """The session that serves a place, made if there is none.

        Args:
            serves: Agent, channel, place and thread, as a decision of `rules.wirings` gives them.
            now: The time, as the format writes times.
            place: What is known of the place, which is noted with the session unless it was before.

        Raises NotFound if there is no such agent, and as `edit`. Cost: as `read`; a new one, as
        `edit`.
        """
        id = f"s_{new_id()}"

        def change(state: RegistryState) -> RegistryState:
            if serves in state.serving:
                return state
            agent = serves[0]
            if agent not in state.agents:
                raise NotFound(f"no workers are set up for agent {agent[:80]!r}", id=agent)
            new: list[RegistryItem] = [
                SessionRecord(id, *serves, provider=state.agents[agent].provider, last_active=now)
            ]
            new += [place] if place is not None and key_of(place) not in state.places else []
            return state.put(*new)

        row = self.read().serving.get(serves)
        return row or self.edit(change).serving[serves]

    # -- Commands ----------------------------------------------------------------------------------

    def approve(self, group: AgentSetup) -> None:
        """Let the command of an agent run on this machine: these words, in this folder, and no
        others.

        Args:
            group: The agent as it was shown to the person who approves.

        Cost: writing a small file.
        """
        self._engine.local.edit(KIND_OF_COMMANDS, group.name, lambda _: _command_words(group))

    def is_approved(self, group: AgentSetup) -> bool:
        """Whether the command of an agent may run on this machine. Cost: reading a small file."""
        return self._engine.local.read(KIND_OF_COMMANDS, group.name) == _command_words(group)


def _command_words(group: AgentSetup) -> Document:
    return {"command": list(group.command), "folder": group.folder}


def _parse_state(document: Mapping[str, Any]) -> RegistryState:
    parts: dict[str, Any] = {
        kind.section: _parse_items(kind, document.get(kind.section) or {}) for kind in _KINDS
    }
    return RegistryState(**parts)


@cache
def _fields_and_keys(kind: Any) -> tuple[tuple[str, str], ...]:
    """The attributes of an item, each with its key in the file; not those that are the item's only
    key.
    """
    return tuple(
        (field.name, json_name(field.name)) for field in fields(kind) if (field.name,) != kind.keys
    )


def _parse_items(kind: Any, entries: Mapping[str, Mapping[str, Any]]) -> dict[str, RegistryItem]:
    items = {}
    for key, entry in entries.items():
        entry = _migrated(entry) if kind is Wiring else entry
        said = {name: entry[there] for name, there in _fields_and_keys(kind) if there in entry}
        said = {
            name: tuple(value) if isinstance(value, list) else value for name, value in said.items()
        }
        item = kind(**said, **({kind.keys[0]: key} if len(kind.keys) == 1 else {}))
        items[key_of(item)] = item
    return items


def _entry_of(item: RegistryItem, raw: Mapping[str, Any]) -> Document:
    """An item as it stands in the file, with the fields of `raw` that this program does
    not know.
    """
    kind: Any = type(item)
    values = {there: getattr(item, name) for name, there in _fields_and_keys(kind)}
    plain = {
        there: list(value) if isinstance(value, tuple) else value for there, value in values.items()
    }
    return {name: value for name, value in raw.items() if name not in _OLDER_FIELDS} | plain


def _migrated(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """A wiring with the words of today for older ones: `trigger_rules`, an object or its JSON, and
    `response_scope`.
    """
    if not entry.keys() & _OLDER_FIELDS:
        return entry
    rules, scope = entry.get("trigger_rules"), entry.get("response_scope")
    if isinstance(rules, str):
        try:
            rules = orjson.loads(rules)
        except orjson.JSONDecodeError:
            rules = {}
    rules = rules if isinstance(rules, dict) else {}
    always = EVERY if rules.get("requiresTrigger") is False or scope == "all" else ""
    pattern = rules.get("pattern") if isinstance(rules.get("pattern"), str) else ""
    pattern = pattern or always
    senders = "known" if scope == "allowlisted" else "all"
    return {
        "engage": "pattern" if pattern else "mention",
        "pattern": pattern,
        "senders": senders,
        **entry,
    }


def _checked(item: RegistryItem) -> RegistryItem:
    """`item`, if it may be written. Raises InvalidInput."""
    from capsule.format.filters import compile_pattern  # A worker that starts only reads.

    if isinstance(item, AgentSetup):
        check_agent_id(item.name)
        zone(str(item.settings.get("timeZone", "")))
    elif isinstance(item, Wiring) and item.engage == "pattern":
        compile_pattern(item.pattern)
    elif isinstance(item, SessionRecord):
        check_id(item.id)
    if "/" in getattr(item, "channel", ""):
        raise InvalidInput(f"the name of a channel has no /: {item}")
    try:
        REGISTRY.check(
            {"id": _ID, item.section: {key_of(item): _entry_of(item, {})}}, "the registry"
        )
    except InvalidDocument as error:
        raise InvalidInput(error.message) from error
    return item
