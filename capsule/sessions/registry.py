"""The registry of the sessions, in `sessions/registry.json`: agents, places, wirings, sessions and
questions.

The file has a section for each of the five kinds of items, an object by the items' keys. `Registry`
reads it into a `RegistryState`, which never changes: a rule takes one state and returns another.
`format.fields` checks the fields of a file, and `rules` decides what follows from them.

What must stay true:
- Only the host process (`sessions.host`) and the commands write the registry, under its mutex.
- An item that breaks a rule is never written. Reading checks the schema of the whole file. Writing
  also checks the patterns, time zones and ids of changed items. A change touches only the items that it names, and
  keeps fields that this program does not know.
- A command of the registry runs only if exactly these words were approved on this machine, because
  a clone can bring a registry.
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
from capsule.format.documents.creation import FORMAT_VERSION
from capsule.format.documents.head import json_name
from capsule.format.validation import REGISTRY
from capsule.ids import check_id, new_id
from capsule.messaging.directory import Document, DocumentCollection
from capsule.sessions.events import zone

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

#: The local kind of document with an agent's command that was approved on this machine.
KIND_OF_COMMANDS = "commands"
_ID = "registry"
#: The fields of a wiring that other programs wrote in place of `engage`, `pattern` and `senders`.
_FOREIGN_FIELDS = frozenset({"trigger_rules", "response_scope"})
T = TypeVar("T")
#: The session whose file records why messages came to no session. It has no record and no worker.
UNSERVED = "unserved"
#: The pattern of a wiring that matches every message, also an empty one.
MATCH_ALL = "."


@dataclass(frozen=True, slots=True)
class AgentSetup:
    """An agent that workers answer for.

    Attributes:
        name: The agent's id.
        folder: The working directory of its command. Empty: the host's.
        command: The words of the command that answers.
        provider: The name of the program behind the command, as `claude`.
        settings: `idleS`, `limitS` (seconds), `maxHops` and `timeZone`.
        destinations: By name, the places that it may send to, each with `channel`, `place`, and
            perhaps `thread` and `title`.
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
    """A place that messages come from.

    Attributes:
        channel: The name of the adapter.
        place: The adapter's id of the place.
        name: The name of the place, for people.
        is_group: Whether several agents can be meant there.
        admin: The administrator of the place, for people.
    """

    section: ClassVar[str] = "places"
    keys: ClassVar[tuple[str, ...]] = ("channel", "place")
    channel: str
    place: str
    name: str = ""
    is_group: bool = False
    admin: str = ""


@dataclass(frozen=True, slots=True)
class Wiring:
    """The rule of an agent in a place, which `rules.messages` applies.

    Attributes:
        channel: The name of the adapter.
        place: The adapter's id of the place.
        agent: The agent's id.
        engage: What wakes the agent: a text that matches `pattern`, a mention, or also everything
            in a thread after a mention.
        pattern: The regular expression for `engage="pattern"`.
        senders: Whose messages can wake it.
        ignored: What becomes of other messages: they are dropped, or wait for one that wakes.
        session: Whether there is one session for the place, for each thread, or for all places of
            the agent.
    """

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
        """Its key in the registry, which messages name."""
        return key_of(self)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The entry of a session in the registry. Everything else is in the session's own files.

    Attributes:
        id: The session's id.
        agent: The agent's id.
        channel: The adapter of the place that it serves. Empty: it serves all places of the agent.
        place: The place.
        thread: The thread. Empty: it serves the whole place.
        provider: The name of the program behind its workers.
        status: A paused session takes messages and runs nothing. A closed one takes none.
        worker: The state of its worker, when it was last recorded.
        last_active: The time of the last change of its files.
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
    """A question of an agent to people, which `rules.questions` handles.

    Attributes:
        id: The question's id.
        session: The session that asks.
        message: The outbound message that asks.
        route: The place where it is asked: `channel`, `place`, and perhaps `thread`.
        options: The possible answers, each with `label` and `value`. None: any text.
        expires_at: The time until which an answer counts. Empty: without limit.
        state: Its state.
        closed_at: The time since which it is not open. Empty: it is open.
        answers: The answers, each with `value`, `from`, `at` and `message`. The one that counts is
            first.
    """

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
_ITEM_CLASSES: tuple[Any, ...] = (AgentSetup, ChannelPlace, Wiring, SessionRecord, Question)
#: What a session serves: its agent, channel, place and thread, as in `SessionRecord`.
SessionKey = tuple[str, str, str, str]


def key_of(item: RegistryItem) -> str:
    """Return the key of an item in its section of the registry."""
    return "/".join(str(getattr(item, name)) for name in item.keys)


@dataclass(frozen=True)
class RegistryState:
    """The items of the registry by section and key. It never changes: `put` and `without` return
    another one.

    Attributes:
        agents: The agents, by id.
        places: The places, by channel and place.
        wirings: The wirings, by channel, place and agent.
        sessions: The sessions, by id.
        questions: The questions, by id.
    """

    agents: Mapping[str, AgentSetup] = field(default_factory=dict)
    places: Mapping[str, ChannelPlace] = field(default_factory=dict)
    wirings: Mapping[str, Wiring] = field(default_factory=dict)
    sessions: Mapping[str, SessionRecord] = field(default_factory=dict)
    questions: Mapping[str, Question] = field(default_factory=dict)

    def put(self, *items: RegistryItem) -> RegistryState:
        """Return the registry with these items, which replace those with the same keys."""
        sections = self._sections_of(items)
        for item in items:
            sections[item.section][key_of(item)] = item
        return replace(self, **sections)

    def without(self, *items: RegistryItem) -> RegistryState:
        """Return the registry without these items."""
        sections = self._sections_of(items)
        for item in items:
            sections[item.section].pop(key_of(item), None)
        return replace(self, **sections)

    def _sections_of(self, items: Sequence[RegistryItem]) -> dict[str, Any]:
        """Return copies of the sections that these items belong to."""
        return {item.section: dict(getattr(self, item.section)) for item in items}

    def provider(self, session: str) -> str:
        """Return the program behind the workers of a session. Empty: unknown, or no session."""
        record = self.sessions.get(session)
        return record.provider if record else ""

    @cached_property
    def wirings_by_place(self) -> Mapping[tuple[str, str], Sequence[Wiring]]:
        """The wirings by channel and place, in the order of their agents."""
        by_place: dict[tuple[str, str], list[Wiring]] = defaultdict(list)
        for wiring in sorted(self.wirings.values(), key=lambda wiring: wiring.agent):
            by_place[wiring.channel, wiring.place].append(wiring)
        return by_place

    @cached_property
    def sessions_by_key(self) -> Mapping[SessionKey, SessionRecord]:
        """The sessions that take messages, by agent, channel, place and thread."""
        return {
            (record.agent, record.channel, record.place, record.thread): record
            for record in self.sessions.values()
            if record.status != "closed"
        }


class _RegistryDocuments(DocumentCollection):
    kind = REGISTRY


class Registry:
    """The registry of one store.

    Args:
        engine: The engine that stores it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._documents = _RegistryDocuments(engine)
        #: The document that was read last, and its state.
        self._last_read: tuple[Document | None, RegistryState] = None, RegistryState()

    def read(self) -> RegistryState:
        """Return the registry. It is empty if the file does not exist. Raises InvalidDocument.

        Cost: an lstat, and reading a file if it changed.
        """
        document = self._documents.find(_ID)
        last_read = self._last_read
        if document is not last_read[0]:
            last_read = document, _parse_state(document or {})
            self._last_read = last_read
        return last_read[1]

    def edit(self, change: Callable[[RegistryState], RegistryState]) -> RegistryState:
        """Change the registry. It is created if it does not exist.

        Args:
            change: Returns the new state for the current one. It runs again if another program
                wrote the registry meanwhile.

        Returns:
            The new state.

        Raises:
            InvalidInput: A changed item breaks a rule, as by a pattern or a time zone that cannot
                be read, or an unknown word.
            InvalidDocument: The file is damaged.

        Cost: writing a file, unless nothing changes.
        """
        new_state = RegistryState()

        def apply(document: Document) -> None:
            nonlocal new_state
            last_document, old_state = self._last_read
            # Its content is compared, because `document` is a copy.
            if document != last_document:
                old_state = _parse_state(document)
            new_state = change(old_state)
            for item_class in _ITEM_CLASSES:
                section = item_class.section
                old_items = getattr(old_state, section)
                new_items = getattr(new_state, section)
                if new_items != old_items:
                    entries = document.get(section) or {}
                    document[section] = _new_entries(entries, old_items, new_items)

        def make(now: str) -> Document:
            document = {"id": _ID, "version": FORMAT_VERSION, "createdAt": now, "updatedAt": now}
            apply(document)
            return document

        self._documents.edit(_ID, apply, make)
        return new_state

    def decide(self, change: Callable[[RegistryState], tuple[RegistryState, T]]) -> T:
        """Change the registry as `edit` does, and return a decision about the change.

        Args:
            change: Returns the new state for the current one, and the decision.

        Returns:
            The decision for the state that was really changed.

        Raises and costs what `edit` does.
        """
        decisions: list[T] = []

        def apply(registry_state: RegistryState) -> RegistryState:
            new_state, decision = change(registry_state)
            decisions.append(decision)
            return new_state

        self.edit(apply)
        return decisions[-1]

    def ensure_session(
        self, key: SessionKey, now: str, place: ChannelPlace | None = None
    ) -> SessionRecord:
        """Return the session that serves a place. It is created if it does not exist.

        Args:
            key: The agent, channel, place and thread, as in a decision of `rules.messages`.
            now: The time.
            place: The place, which is recorded together with a new session.

        Raises NotFound if the agent is not set up, and as `edit`. Cost: as `read`; for a new
        session, as `edit`.
        """
        id = f"s_{new_id()}"

        def change(registry_state: RegistryState) -> RegistryState:
            if key in registry_state.sessions_by_key:
                return registry_state
            agent = key[0]
            if agent not in registry_state.agents:
                raise NotFound(f"no workers are set up for agent {agent[:80]!r}", id=agent)
            provider = registry_state.agents[agent].provider
            new_items: list[RegistryItem] = [
                SessionRecord(id, *key, provider=provider, last_active=now)
            ]
            if place is not None and key_of(place) not in registry_state.places:
                new_items.append(place)
            return registry_state.put(*new_items)

        record = self.read().sessions_by_key.get(key)
        return record or self.edit(change).sessions_by_key[key]

    # -- Commands ----------------------------------------------------------------------------------

    def approve(self, agent_setup: AgentSetup) -> None:
        """Let the command of an agent run on this machine: these words, in this folder.

        Args:
            agent_setup: The agent as the approving person saw it.

        Cost: writing a small file.
        """
        approved = _approval_of(agent_setup)
        self._engine.local.edit(KIND_OF_COMMANDS, agent_setup.name, lambda _: approved)

    def is_approved(self, agent_setup: AgentSetup) -> bool:
        """Return whether the command of an agent may run on this machine.

        Cost: reading a small file.
        """
        approved = self._engine.local.read(KIND_OF_COMMANDS, agent_setup.name)
        return approved == _approval_of(agent_setup)


def _approval_of(agent_setup: AgentSetup) -> Document:
    """Return the document that approves the command of an agent."""
    return {"command": list(agent_setup.command), "folder": agent_setup.folder}


def _parse_state(document: Mapping[str, Any]) -> RegistryState:
    sections: dict[str, Any] = {
        item_class.section: _parse_items(item_class, document.get(item_class.section) or {})
        for item_class in _ITEM_CLASSES
    }
    return RegistryState(**sections)


@cache
def _fields_and_keys(item_class: Any) -> tuple[tuple[str, str], ...]:
    """Return the attributes of an item that its entry has, each with its key there.

    If an item has a single key, that attribute is not in its entry.
    """
    return tuple(
        (field.name, json_name(field.name))
        for field in fields(item_class)
        if (field.name,) != item_class.keys
    )


def _parse_items(
    item_class: Any, entries: Mapping[str, Mapping[str, Any]]
) -> dict[str, RegistryItem]:
    """Return the items of a section by their keys."""
    items = {}
    for entry_key, stored_entry in entries.items():
        entry = stored_entry
        if item_class is Wiring:
            entry = _with_current_fields(stored_entry)
        values: dict[str, Any] = {}
        for name, json_key in _fields_and_keys(item_class):
            if json_key in entry:
                value = entry[json_key]
                values[name] = tuple(value) if isinstance(value, list) else value
        if len(item_class.keys) == 1:
            values[item_class.keys[0]] = entry_key
        item = item_class(**values)
        items[key_of(item)] = item
    return items


def _new_entries(
    entries: Mapping[str, Document],
    old_items: Mapping[str, RegistryItem],
    new_items: Mapping[str, RegistryItem],
) -> Document:
    """Return the entries of a changed section. Entries of unchanged items stay as in the file.

    Raises InvalidInput if a changed item may not be written.
    """
    new_entries: Document = {}
    for key, item in new_items.items():
        if key in entries and old_items.get(key) == item:
            new_entries[key] = entries[key]
        else:
            _check_item(item)
            new_entries[key] = _entry_of(item, entries.get(key, {}))
    return new_entries


def _entry_of(item: RegistryItem, old_entry: Mapping[str, Any]) -> Document:
    """Return the entry of an item, with the fields of `old_entry` that this program does
    not know.
    """
    entry = {name: value for name, value in old_entry.items() if name not in _FOREIGN_FIELDS}
    item_class: Any = type(item)
    for name, json_key in _fields_and_keys(item_class):
        value = getattr(item, name)
        entry[json_key] = list(value) if isinstance(value, tuple) else value
    return entry


def _with_current_fields(entry: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a wiring with the fields of this format for those of other programs.

    `trigger_rules` is an object, or its JSON, with `pattern` and `requiresTrigger`.
    `response_scope` is `all`, `triggered` or `allowlisted`. A field of this format counts more.
    """
    if not entry.keys() & _FOREIGN_FIELDS:
        return entry
    rules = entry.get("trigger_rules")
    if isinstance(rules, str):
        try:
            rules = orjson.loads(rules)
        except orjson.JSONDecodeError:
            rules = {}
    if not isinstance(rules, dict):
        rules = {}
    scope = entry.get("response_scope")
    pattern = rules.get("pattern")
    if not isinstance(pattern, str):
        pattern = ""
    if not pattern and (rules.get("requiresTrigger") is False or scope == "all"):
        pattern = MATCH_ALL
    fields_of_rules = {
        "engage": "pattern" if pattern else "mention",
        "pattern": pattern,
        "senders": "known" if scope == "allowlisted" else "all",
    }
    return {**fields_of_rules, **entry}


def _check_item(item: RegistryItem) -> None:
    """Check whether an item may be written. Raises InvalidInput."""
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
    document = {"id": _ID, item.section: {key_of(item): _entry_of(item, {})}}
    try:
        REGISTRY.check(document, "the registry")
    except InvalidDocument as error:
        raise InvalidInput(error.message) from error
