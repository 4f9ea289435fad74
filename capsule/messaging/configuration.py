"""Configuration as code: the channels, agents and links that `capsule.toml` and the files of agents
declare.

`Configuration.plan` compares the declarations with the store. It makes a copy of the store's
agents, projects and channels in memory and performs each action there at once, so that the same
rules decide and the next action sees the result. `apply` performs the planned actions on the real
store and records them. `rollback` plans the reverse of recorded actions.

What must stay true:
- An action goes through the methods of the store's objects, as the agent whose file declares it. So
  the rules about permissions decide, under the lock of each write. This module permits nothing. All
  these methods are public, except the one that sets the description of an agent.
- A refused action is reported and not performed. The others are.
- Only what an earlier apply did is undone, and only if it is still as that apply left it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal

from capsule import timestamps
from capsule.engines import opening
from capsule.engines.interface import CONVERSATIONS, retry
from capsule.errors import CapsuleError, NotFound, Problem, Refused
from capsule.format.documents.agents import GLOBAL, MAX_AGENT_ID, project_id
from capsule.format.documents.channels import channel_id, check_channel_name
from capsule.format.documents.creation import FORMAT_VERSION
from capsule.format.json import codec
from capsule.format.validation import AGENT, PROJECT
from capsule.ids import folder_ids
from capsule.messaging.agent_files import AgentFile, agents_in
from capsule.messaging.agents import Agents
from capsule.messaging.channels import Channels
from capsule.messaging.directory import StoreAgents
from capsule.messaging.projects import Projects

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.store import CoreStore


ActionKind = Literal["register", "agent", "entry", "link", "channel", "member"]
ActionKey = tuple[ActionKind, str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """One change.

    Attributes:
        kind: What is changed. `register`: agent `on` is registered, with the name and project in
            `after`. `agent`: the field `other` of agent `on`. `entry`: the entry of agent `on`
            about agent `other`, `allow` or `block`. `link`: True if the agents of project `on` see
            those of project `other`. `channel`: the field `other` of channel `on`. `member`: True
            if agent `other` is a member of channel `on`.
        on: The id of the agent, project or channel. In a refused action, the name in the file if it
            has no id.
        other: The field, or the id of the other agent or project, or of the member.
        before, after: The value before and after, or None. A value for the field
            `access` makes a channel, and None for it archives the channel.
        by: The agent whose file declares it, and which does it. None: the store's owner.
        file: The file that declares it. Empty: it undoes an earlier apply.
        outcome: `planned`, `done` or `refused`.
        reason: Why it is refused.
    """

    kind: ActionKind
    on: str
    other: str
    before: Any
    after: Any
    by: str | None = None
    file: str = ""
    outcome: Literal["planned", "done", "refused"] = "planned"
    reason: str = ""

    @property
    def key(self) -> ActionKey:
        """Return what identifies the changed value."""
        return self.kind, self.on, self.other

    def refused(self, reason: str) -> Action:
        """Return the action as refused."""
        return replace(self, outcome="refused", reason=reason)

    def done(self, store: CoreStore) -> Action:
        """Perform the action, and return it with its outcome. A refused one is not performed."""
        if self.outcome == "refused":
            return self
        try:
            _apply_action(store, self)
        except CapsuleError as error:
            return self.refused(error.message)
        return replace(self, outcome="done")


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that make a store match its files, and their outcomes.

    Attributes:
        actions: The actions in their order.
        snapshot: The declarations of the files. After a rollback, the number of the undone apply.
        problems: The errors in files of agents. Such a file is ignored.
        number: Its number in the history. 0: it was not applied.
        time: When it was applied. Empty: it was not.
    """

    actions: tuple[Action, ...]
    snapshot: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    number: int = 0
    time: str = ""

    def having(self, outcome: str) -> list[Action]:
        """Return the actions with this outcome."""
        return [action for action in self.actions if action.outcome == outcome]

    def as_json(self) -> dict[str, Any]:
        """The plan as `--json` prints it, and as it is recorded on this machine."""
        digest = hashlib.sha256(codec.encode(dict(self.snapshot))).hexdigest()
        return {"version": FORMAT_VERSION, "hash": f"sha256:{digest}"} | asdict(self)


def current_value(store: CoreStore, key: ActionKey) -> Any:
    """Return the present value of what an action changes, or None.

    Raises InvalidDocument.
    """
    kind, on, other = key
    agents = store.inner.object_of(StoreAgents)
    match kind:
        case "link":
            return other in agents.directory.visible_projects(on) or None
        case "entry":
            return agents.directory.profile(on).dm_entries.get(other)
        case "agent":
            return _current_agent_field(agents, on, other)
    try:
        head = store.head(store.inner.object_of(Channels).resolve(on))
    except NotFound:
        return None
    if kind == "member":
        return any(member.id == other and member.is_in for member in head.participants) or None
    return _current_channel_field(head, other)


def _current_agent_field(agents: StoreAgents, id: str, field: str) -> Any:
    try:
        document = agents.documents.read(id)
    except NotFound:
        return None
    if field == "description":
        return document.get("description") or ""
    return getattr(agents.directory.profile(id), field)


def _current_channel_field(head: Head, field: str) -> Any:
    if head.archived or head.channel is None:
        return None
    if field == "description":
        return head.description or ""
    if field == "default":
        return head.channel.is_default
    return getattr(head.channel, field)


def has_left(store: CoreStore, key: ActionKey) -> bool:
    """Return whether an action is about a member that has left a channel by itself. No file brings
    it back.
    """
    kind, on, other = key
    if kind != "member" or not store.engine.exists(CONVERSATIONS, on):
        return False
    return any(
        member.id == other and member.opted_out_at and not member.is_in
        for member in store.head(on).participants
    )


def _apply_action(store: CoreStore, action: Action) -> None:
    """Perform an action with the methods of the store. Raises CapsuleError if it is refused."""
    match action.kind:
        case "register":
            agents = store.inner.object_of(Agents)
            agents.register(action.on, action.after["project"], name=action.after["name"])
        case "agent":
            acting_agents = store.inner.store_for(action.by).inner.object_of(Agents)
            if action.other == "description":
                # No public method sets it alone: to register the agent again would also let it join
                # default channels.
                acting_agents._set_fields(action.on, {"description": action.after})
            else:
                acting_agents.policy(action.on, **{action.other: action.after})
        case "entry":
            _apply_entry(store, action)
        case "link":
            _apply_link(store, action)
        case "channel":
            _apply_channel(store, action)
        case "member":
            _apply_member(store, action)


def _apply_entry(store: CoreStore, action: Action) -> None:
    """Set or remove the entry of an agent about another one."""
    acting_agents = store.inner.store_for(action.by).inner.object_of(Agents)
    directory = store.inner.object_of(StoreAgents).directory
    # With its project, because its id alone may be the name of an agent in the project of `on`.
    other = f"{action.other}@{directory.profile(action.other).project}"
    if action.after is None:
        acting_agents.forget(agent=action.on, other=other)
    elif action.after == "allow":
        acting_agents.allow(agent=action.on, other=other, reason=action.file or None)
    else:
        acting_agents.block(agent=action.on, other=other, reason=action.file or None)


def _apply_link(store: CoreStore, action: Action) -> None:
    """Let a project see another one, or not any more. The other direction stays."""
    projects = store.inner.object_of(Projects)
    directory = store.inner.object_of(StoreAgents).directory
    is_seen_by_other = action.on in directory.visible_projects(action.other)
    if action.after is True:
        direction = "both" if is_seen_by_other else "out"
        projects.link(action.on, action.other, direction=direction)
    elif is_seen_by_other:
        projects.link(action.on, action.other, direction="in")
    else:
        projects.unlink(action.on, action.other)


def _apply_channel(store: CoreStore, action: Action) -> None:
    """Make or archive a channel, or change a field of it."""
    channels = store.inner.object_of(Channels)
    if action.other != "access":
        settings: Any = {action.other: action.after}
        channels.update(action.on, **settings)
    elif action.after is None:
        channels.update(action.on, archived=True)
    else:
        try:
            channels.update(action.on, access=action.after, archived=False)
        except NotFound:
            _, scope, name = action.on.split("_")  # As `channel_id` made it.
            channels.create(name, scope=scope, access=action.after)


def _apply_member(store: CoreStore, action: Action) -> None:
    """Let an agent join or leave by its own file, or add or remove it for the owner."""
    if action.by is None:
        channels = store.inner.object_of(Channels)
        if action.after is None:
            channels.remove(action.on, action.other)
        else:
            channels.invite(action.on, [action.other])
        return
    channels = store.inner.store_for(action.by).inner.object_of(Channels)
    if action.after is None:
        channels.leave(action.on)
    else:
        channels.join(action.on, agent=action.by, source="frontmatter")


#: The kind of document that records an apply.
KIND_OF_APPLIED = "applied"
_TRIES = 50
_TOML = "capsule.toml"
#: The fields of an agent's file that have another name in `capsule.toml`.
_FIELDS_IN_TOML = {"dm_policy": "dm", "dm_whitelist": "allow"}
_Tables = Mapping[str, Mapping[str, Any]]


class Configuration:
    """Plans and applies the declarations of `capsule.toml` and of the files of agents. Only a
    person may do that.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store

    def plan(
        self, folders: Iterable[str] = (), home: str | None = None, *, prune: bool = False
    ) -> Plan:
        """Plan the changes that make the store match the files. Nothing is changed.

        The files are `capsule.toml`, as it was when the store was opened, and `.claude/agents/*.md`
        in the folder of each project that has an agent on this machine.

        Args:
            folders: The folders of further projects.
            home: The folder of the person, whose agents belong to no project, or None.
            prune: Whether to undo what an earlier apply did and no file declares any more.

        Raises Refused if the store acts for an agent, and InvalidDocument. Cost: copying the
        documents of the agents and projects, and the beginning of each channel's file, into memory.
        """
        files = []
        problems = []
        for file_or_problem in self._files(folders, home):
            if isinstance(file_or_problem, AgentFile):
                files.append(file_or_problem)
            else:
                problems.append(file_or_problem)
        settings = self._store.settings
        with self._copy() as copy:
            planner = _Planner(copy)
            registered = []
            for file in files:
                id = planner.register(file)
                if id is not None:
                    registered.append((file, id))
            planner.declare(settings.channels, settings.agents, settings.links)
            for file, id in registered:
                planner.declare_agent(file, id)
            if prune:
                planner.plan_undo(self.history())
            for file, id in registered:
                planner.plan_leaving_defaults(file, id)
        snapshot = {
            "channels": dict(settings.channels),
            "agents": dict(settings.agents),
            "links": dict(settings.links),
            "files": {file.path: file.fields for file in files},
        }
        return Plan(tuple(planner.actions), snapshot, tuple(problems))

    def apply(self, plan: Plan) -> Plan:
        """Perform the actions of a plan, and nothing else. If one is refused by now, the others are
        performed.

        Args:
            plan: The plan. It is performed as it is: values that changed since are not compared.

        Returns the plan with the outcome of each action. Raises Refused if the store acts for an
        agent, and StorageFailed.

        Cost: as the actions, and writing a small file twice. Nothing if nothing is planned.
        """
        self._ensure_owner()
        if not plan.having("planned"):
            return plan
        # The plan is recorded first, because a crash may interrupt its actions.
        recorded = self._record(replace(plan, time=timestamps.now()))
        actions = tuple(action.done(self._store) for action in recorded.actions)
        return self._record(replace(recorded, actions=actions))

    def rollback(self, number: int) -> Plan:
        """Undo an apply and all later ones. Later changes by others stay, and no agent is
        forgotten.

        The actions that undo them are applied at once, as the next apply of the history.

        Args:
            number: Its number in the history.

        Raises NotFound, and the errors of `apply`. Cost: as `plan` and `apply`.
        """
        history = self.history()
        if number not in (plan.number for plan in history):
            raise NotFound(f"there is no apply {number}", id=str(number))
        with self._copy() as copy:
            planner = _Planner(copy)
            planner.plan_undo(plan for plan in history if plan.number >= number)
        return self.apply(Plan(tuple(planner.actions), {"rollback": number}))

    def history(self) -> list[Plan]:
        """List the applies of this machine, the oldest first. Raises InvalidDocument. Cost: reading
        a small file for each.
        """
        self._ensure_owner()
        plans = []
        for number in self._numbers():
            document = self._store.engine.document(KIND_OF_APPLIED, str(number))
            plan = Plan(
                actions=tuple(Action(**fields) for fields in document["actions"]),
                snapshot=document["snapshot"],
                number=document["number"],
                time=document["time"],
            )
            plans.append(plan)
        return plans

    def _numbers(self) -> list[int]:
        return sorted(int(id) for id in self._store.engine.ids(KIND_OF_APPLIED) if id.isdecimal())

    def _record(self, plan: Plan) -> Plan:
        """Record a plan under its number, or under the next one, and return it with its number."""
        engine = self._store.engine

        def record() -> Plan:
            if plan.number:
                id = str(plan.number)
                version = engine.version(KIND_OF_APPLIED, id)
                engine.put(KIND_OF_APPLIED, id, codec.encode(plan.as_json()), version)
                return plan
            numbered = replace(plan, number=max(self._numbers(), default=0) + 1)
            # Raises ConcurrentWrite if another program took this number. Then it is tried again.
            id = str(numbered.number)
            engine.put(KIND_OF_APPLIED, id, codec.encode(numbered.as_json()), None)
            return numbered

        return retry(record, KIND_OF_APPLIED, tries=_TRIES)

    def _ensure_owner(self) -> None:
        if self._store.agent is not None:
            raise Refused(
                "only a person may plan and apply the configuration, not an agent", path=""
            )

    def _files(self, folders: Iterable[str], home: str | None) -> Iterator[AgentFile | Problem]:
        documents = self._store.inner.object_of(StoreAgents).documents
        homes = filter(None, map(documents.registered_folder, documents.ids()))
        for project in dict.fromkeys((*homes, *folders)):
            if project != home:
                yield from agents_in(project, project)
        if home is not None:
            yield from agents_in(home, None)

    def _copy(self) -> CoreStore:
        """Return a store in memory with the agents, projects and channels, without messages."""
        self._ensure_owner()
        engine = self._store.engine
        documents: list[tuple[str, Any, bytes]] = []
        for kind in (AGENT.name, PROJECT.name):
            for id in engine.ids(kind):
                documents.append((kind, engine.document(kind, id), b""))
        for id in engine.ids(CONVERSATIONS):
            if id.startswith("channel_"):
                head, *_ = engine.head(id)
                documents.append((CONVERSATIONS, head | {"history": []}, b""))
        return type(self._store)("", self._store.settings, opening.in_memory(documents))


class _Planner:
    """Plans actions. Each is performed on a copy of the store, so that the next one sees its
    result.
    """

    def __init__(self, copy: CoreStore) -> None:
        self.actions: list[Action] = []
        self._copy = copy
        self._people = copy.inner.object_of(StoreAgents)
        self._declared: set[ActionKey] = set()

    def register(self, file: AgentFile) -> str | None:
        """Return the id of a file's agent, and plan its registration unless it is registered.

        None: it can't be registered.
        """
        name = file.fields["name"]
        scope = _scope_of(file)
        id = folder_ids(name, MAX_AGENT_ID, "agent")[0]
        if self._people.documents.exists(id):  # An agent of another project has this id.
            id = f"{id}-{scope[-6:]}"
        action = Action(
            kind="register",
            on=id,
            other="",
            before=None,
            after={"name": name, "project": file.project},
            file=file.path,
        )
        try:
            return self._people.directory.resolve(f"{name}@{scope}", None)
        except NotFound:
            self._plan(action)
        except CapsuleError as error:
            self._plan(action.refused(error.message))
        if self.actions[-1].outcome != "planned":
            return None
        return id

    def declare(
        self, channels: _Tables, agents: _Tables, links: Mapping[str, Iterable[str]]
    ) -> None:
        """Plan the declarations of `capsule.toml`."""
        for project, visible_projects in links.items():
            for other in visible_projects:
                self._plan_value("link", project, other, True)
        for name, declared in channels.items():
            channel = _with_scope(name, declared.get("scope", GLOBAL))
            self._plan_value("channel", channel, "access", declared.get("access"))
            for field in ("description", "default", "topic_required", "default_topic"):
                if field in declared:
                    self._plan_value("channel", channel, field, declared[field])
            for member in declared.get("members", ()):
                self._plan_value("member", channel, member, True)
        for agent, declared in agents.items():
            self._declare_policy(agent, declared)

    def _declare_policy(
        self, agent: str, declared: Mapping[str, Any], file: str = _TOML, by: str | None = None
    ) -> None:
        for field in ("dm", "discoverable", "description"):
            if field in declared:
                self._plan_value("agent", agent, field, declared[field], file, by)
        for permission in ("block", "allow"):
            for other in declared.get(permission, ()):
                self._plan_value("entry", agent, other, permission, file, by)

    def declare_agent(self, file: AgentFile, id: str) -> None:
        """Plan the declarations of an agent's file. `capsule.toml` overrides them."""
        declared = {_FIELDS_IN_TOML.get(name, name): value for name, value in file.fields.items()}
        self._declare_policy(id, declared, file.path, id)
        for scope, field in ((GLOBAL, "channels.global"), (_scope_of(file), "channels.project")):
            for name in file.fields.get(field, ()):
                self._plan_value("member", _with_scope(name, scope), id, True, file.path, id)

    def plan_undo(self, history: Iterable[Plan]) -> None:
        """Plan to undo what was applied, unless it is declared."""
        for key, applied in _applied_changes(history).items():
            current = current_value(self._copy, key)
            if key in self._declared or current == applied.before:
                continue
            kind, on, other = key
            action = Action(kind, on, other, before=current, after=applied.before)
            if current == applied.after:
                self._plan(action)
            elif current is not None:
                self._plan(action.refused("it was changed since, and stays unchanged"))

    def plan_leaving_defaults(self, file: AgentFile, id: str) -> None:
        """Plan that an agent leaves the default channels that its file excludes."""
        excluded = {*file.fields.get("channels.exclude", ())}
        if file.fields.get("never_default"):
            excluded = {"*"}
        channels = self._copy.inner.object_of(Channels)
        for listing in channels.list(agent=id):
            channel = listing.channel
            is_excluded = bool(excluded & {"*", channel.name, listing.id})
            if not (channel.is_default and listing.is_in and is_excluded):
                continue
            action = Action(
                kind="member",
                on=listing.id,
                other=id,
                before=True,
                after=None,
                by=id,
                file=file.path,
            )
            if action.key in self._declared:
                continue
            (member,) = (member for member in channels.members(listing.id) if member.id == id)
            if member.source == "default":  # Else it joined by itself, or was invited.
                self._plan(action)

    def _plan_value(
        self,
        kind: ActionKind,
        on: str,
        other: str,
        after: Any,
        file: str = _TOML,
        by: str | None = None,
    ) -> None:
        try:
            key = (kind, *self._ids(kind, on, other, by))
            before = current_value(self._copy, key)
        except CapsuleError as error:
            action = Action(kind, on, other, before=None, after=after, by=by, file=file)
            self._plan(action.refused(error.message))
            return
        if after is None:  # A channel that is declared without an access keeps it, or is open.
            after = before or "open"
        action = Action(*key, before=before, after=after, by=by, file=file)
        if (before, after) == ("block", "allow"):
            action = action.refused(
                f"{key[1]} has blocked {key[2]}, and a file can't lift the block"
            )
        is_change = action.before != action.after and not has_left(self._copy, key)
        if is_change and key not in self._declared:
            self._plan(action)
        self._declared.add(key)

    def _plan(self, action: Action) -> None:
        """Add an action, after performing it on the copy. If it is refused there, it is added as
        refused.
        """
        performed = action.done(self._copy)
        self.actions.append(action if performed.outcome == "done" else performed)

    def _ids(self, kind: ActionKind, on: str, other: str, by: str | None) -> tuple[str, str]:
        """Return the ids of the names that a declaration has for `Action.on` and `Action.other`.

        Args:
            kind: The kind of the action.
            on, other: The names. `other` is a field for an agent and a channel.
            by: The agent whose file declares it. Its own id is given. None: `capsule.toml` does.
        """
        resolve = self._people.directory.resolve
        if kind == "link":
            return self._project(on), self._project(other)
        on_id = on
        if kind in ("channel", "member"):
            name, _, scope = on.partition("@")
            on_id = channel_id(self._project(scope), check_channel_name(name))
        elif by is None:
            on_id = resolve(on, None)
        if kind == "entry" or (kind == "member" and by is None):
            return on_id, resolve(other, by)
        return on_id, other

    def _project(self, name: str) -> str:
        if name == GLOBAL:
            return GLOBAL
        return self._people.directory.resolve_project(name)


def _applied_changes(history: Iterable[Plan]) -> dict[ActionKey, Action]:
    """Return for each value the change that all applied plans together made.

    An action that is still `planned` counts: a crash interrupted its apply, perhaps after it was
    done.

    Registrations are left out, as no agent is forgotten. So are channels that an agent left by its
    own file, as it left them for good.
    """
    changes: dict[ActionKey, Action] = {}
    for plan in history:
        for action in plan.actions:
            if action.outcome == "refused":
                continue
            # Leaving and registering drop what earlier plans did to the value, so it is not undone.
            first_action = changes.pop(action.key, action)
            has_left_by_itself = action.by is not None and action.after is None
            if action.kind == "register" or has_left_by_itself:
                continue
            if first_action.before != action.after:
                changes[action.key] = replace(action, before=first_action.before)
    return changes


def _scope_of(file: AgentFile) -> str:
    return GLOBAL if file.project is None else project_id(file.project)


def _with_scope(name: str, scope: str) -> str:
    """Return the name of a channel with its scope."""
    if "@" in name:
        return name
    return f"{name}@{scope}"
