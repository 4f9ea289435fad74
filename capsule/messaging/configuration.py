"""Configuration as code: what `capsule.toml` and the files of agents declare of channels, agents and
links, as a plan of actions.

`Configuration.plan` compares the declarations with the store. It makes a copy of the store's agents,
projects and channels in memory and performs each action there at once, so that the same rules
decide and the next action sees the result. `apply` performs the planned actions on the real store
and records them; `rollback` plans the reverse of recorded actions.

What must stay true:
- An action goes through the public methods of the store, as the agent whose file declares it. So
  the rules about permissions decide, under the lock of each write. This module permits nothing.
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
from capsule.format.documents.creation import CURRENT
from capsule.format.json import codec
from capsule.format.validation import AGENT, PROJECT
from capsule.ids import folder_ids
from capsule.messaging.agent_files import AgentFile, agents_in
from capsule.messaging.agents import Agents
from capsule.messaging.channels import Channels
from capsule.messaging.directory import StoreAgents
from capsule.messaging.projects import Projects

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


ActionKind = Literal["register", "agent", "entry", "link", "channel", "member"]
ActionKey = tuple[ActionKind, str, str]


@dataclass(frozen=True, slots=True)
class Action:
    """One thing that is changed.

    Attributes:
        kind: `register` an agent; a field of an `agent`; the `entry` of an agent about another; a
            `link`, by which the agents of a project see those of another; a field of a `channel`,
            made by its `access`; a `member` of one.
        on: The id of the agent, project or channel that is changed.
        other: The field, or the id of the other agent or project.
        before, after: The value before and after; None: it is not there. A channel is then
            archived.
        by: The agent that does it, as its file declares it; None: the store's owner.
        file: The file that declares it; empty: an earlier apply is taken back.
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
        """What is changed."""
        return self.kind, self.on, self.other

    def refused(self, reason: str) -> Action:
        """The action, refused."""
        return replace(self, outcome="refused", reason=reason)

    def done(self, store: CoreStore) -> Action:
        """The action after an attempt to do it. A refused one is not tried."""
        if self.outcome != "refused":
            try:
                _apply_action(store, self)
            except CapsuleError as error:
                return self.refused(error.message)
            return replace(self, outcome="done")
        return self


@dataclass(frozen=True, slots=True)
class Plan:
    """The changes that bring a store in line with its files, and what became of them.

    Attributes:
        actions: The actions in their order.
        snapshot: What the files declare.
        problems: What is wrong with files of agents. Such a file counts for nothing.
        number: Its number in the history; 0: it was not applied.
        time: When it was applied; empty: it was not.
    """

    actions: tuple[Action, ...]
    snapshot: Mapping[str, Any]
    problems: tuple[Problem, ...] = ()
    number: int = 0
    time: str = ""

    def having(self, outcome: str) -> list[Action]:
        """The actions with this outcome."""
        return [action for action in self.actions if action.outcome == outcome]

    def as_json(self) -> dict[str, Any]:
        """The plan as `--json` prints it, and as it is recorded."""
        digest = hashlib.sha256(codec.encode(dict(self.snapshot))).hexdigest()
        return {"version": CURRENT, "hash": f"sha256:{digest}"} | asdict(self)


def current_value(store: CoreStore, key: ActionKey) -> Any:
    """The present value of what an action changes; None: it is not there.
    Raises InvalidDocument.
    """
    (kind, on, other), people = key, store.inner.object_of(StoreAgents)
    if kind == "link":
        return other in people.directory.visible_projects(on) or None
    if kind == "entry":
        return people.directory.profile(on).dm_entries.get(other)
    try:
        if kind == "agent":
            description = people.documents.read(on).get("description") or ""
            return (
                description
                if other == "description"
                else getattr(people.directory.profile(on), other)
            )
        head = store.head(store.inner.object_of(Channels).resolve(on))
    except NotFound:
        return None
    if kind == "member":
        return any(member.id == other and member.is_in for member in head.participants) or None
    if head.archived or head.channel is None:
        return None
    if other == "description":
        return head.description or ""
    return getattr(head.channel, "is_default" if other == "default" else other)


def has_left(store: CoreStore, key: ActionKey) -> bool:
    """Whether it is a member of a channel that has left by itself: no file brings it back."""
    kind, on, other = key
    if kind != "member" or not store.engine.exists(CONVERSATIONS, on):
        return False
    return any(
        each.id == other and each.opted_out_at and not each.is_in
        for each in store.head(on).participants
    )


def _apply_action(store: CoreStore, action: Action) -> None:
    on, other, after, acting = (
        action.on,
        action.other,
        action.after,
        store.inner.store_for(action.by),
    )
    directory = store.inner.object_of(StoreAgents).directory
    # An id may be the name of another agent, for `on`.
    whom = f"{other}@{directory.profile(other).project}"
    agents, mine = store.inner.object_of(Agents), acting.inner.object_of(Agents)
    channels, projects = store.inner.object_of(Channels), store.inner.object_of(Projects)
    match action.kind, other, after:
        case "register", _, _:
            agents.register(on, after["project"], name=after["name"])
        case "agent", "description", _:
            mine._set_fields(
                on, {"description": after}
            )  # To register it would join default channels too.
        case "agent", _, _:
            mine.policy(on, **{other: after})
        case "entry", _, None:
            mine.forget(agent=on, other=whom)
        case "entry", _, _:
            (mine.allow if after == "allow" else mine.block)(
                agent=on, other=whom, reason=action.file or None
            )
        case "link", _, True:
            projects.link(
                on, other, direction="both" if on in directory.visible_projects(other) else "out"
            )
        case "link", _, _ if on in directory.visible_projects(other):
            projects.link(on, other, direction="in")
        case "link", _, _:
            projects.unlink(on, other)
        case "channel", "access", None:
            channels.update(on, archived=True)
        case "channel", "access", _:
            try:
                channels.update(on, access=after, archived=False)
            except NotFound:
                _, scope, name = on.split("_")
                channels.create(name, scope=scope, access=after)
        case "channel", _, _:
            channels.update(on, **{other: after})
        case "member", _, None if action.by is not None:
            acting.inner.object_of(Channels).leave(on)
        case "member", _, None:
            channels.remove(on, other)
        case "member", _, _ if action.by is not None:
            acting.inner.object_of(Channels).join(on, agent=action.by, source="frontmatter")
        case _:
            channels.invite(on, [other])


#: The kind of document that records an apply.
KIND_OF_APPLIED = "applied"
_TRIES = 50
_TOML = "capsule.toml"
#: The fields of an agent's file that `capsule.toml` calls otherwise.
_FIELDS_IN_TOML = {"dm_policy": "dm", "dm_whitelist": "allow"}
_Tables = Mapping[str, Mapping[str, Any]]


class Configuration:
    """What `capsule.toml` and the files of agents declare of channels, agents and links. It is a
    person's.
    """

    def __init__(self, store: CoreStore) -> None:
        self._store = store

    def plan(
        self, folders: Iterable[str] = (), home: str | None = None, *, prune: bool = False
    ) -> Plan:
        """Plan the changes that bring the store in line with the files; change nothing.

        The files are `capsule.toml`, as it was when the store was opened, and `.claude/agents/*.md`
        in the folder of each project that has an agent on this machine.

        Args:
            folders: The folders of further projects.
            home: The folder of the person, whose agents belong to no project. None: there are none.
            prune: Whether to take back what an earlier apply did and no file declares any more.

        Raises Refused if the store acts for an agent; InvalidDocument. Cost: copying the documents
        of the agents and projects, and the beginning of each channel's file, into memory.
        """
        parts = [*self._files(folders, home)]
        files = [each for each in parts if isinstance(each, AgentFile)]
        settings = self._store.settings
        with self._copy() as copy:
            planner = _Planner(copy)
            agents = [(file, id) for file in files if (id := planner.register(file))]
            planner.declare(settings.channels, settings.agents, settings.links)
            for file, id in agents:
                planner.declare_agent(file, id)
            if prune:
                planner.take_back(self.history())
            for file, id in agents:
                planner.leave_defaults(file, id)
        snapshot = {name: dict(getattr(settings, name)) for name in ("channels", "agents", "links")}
        snapshot["files"] = {file.path: file.fields for file in files}
        return Plan(
            (*planner.actions,),
            snapshot,
            tuple(each for each in parts if isinstance(each, Problem)),
        )

    def apply(self, plan: Plan) -> Plan:
        """Do the actions of a plan, and nothing else. If one is refused by now, the others are done
        all the same.

        Args:
            plan: The plan.

        Returns the plan with the outcome of each action. Raises Refused if the store acts for an
        agent; StorageFailed.

        Cost: as the actions, and writing a small file twice; nothing if there is nothing to do.
        """
        self._ensure_owner()
        if not plan.having("planned"):
            return plan
        plan = self._recorded(
            replace(plan, time=timestamps.now())
        )  # First: a crash may cut short what follows.
        return self._recorded(
            replace(plan, actions=tuple(action.done(self._store) for action in plan.actions))
        )

    def rollback(self, number: int) -> Plan:
        """Undo an apply and all later ones. Later changes by others stay, and no agent is forgotten.

        Args:
            number: Its number in the history.

        Raises NotFound, and the errors of `apply`. Cost: as `plan` and `apply`.
        """
        history = self.history()
        if number not in (plan.number for plan in history):
            raise NotFound(f"there is no apply {number}", id=str(number))
        with self._copy() as copy:
            planner = _Planner(copy)
            planner.take_back(plan for plan in history if plan.number >= number)
        return self.apply(Plan((*planner.actions,), {"rollback": number}))

    def history(self) -> list[Plan]:
        """List the applies of this machine, the oldest first. Raises InvalidDocument. Cost: reading a
        small file for each.
        """
        self._ensure_owner()
        documents = (
            self._store.engine.document(KIND_OF_APPLIED, str(number)) for number in self._numbers()
        )
        return [
            Plan(
                tuple(Action(**of) for of in each["actions"]),
                each["snapshot"],
                (),
                each["number"],
                each["time"],
            )
            for each in documents
        ]

    def _numbers(self) -> list[int]:
        return sorted(int(id) for id in self._store.engine.ids(KIND_OF_APPLIED) if id.isdecimal())

    def _recorded(self, plan: Plan) -> Plan:
        """The plan, recorded under its number, or else under the next one."""
        engine = self._store.engine

        def record() -> Plan:
            numbered = replace(plan, number=plan.number or max(self._numbers(), default=0) + 1)
            place = KIND_OF_APPLIED, str(numbered.number)
            # Without a number of its own it is Interfered if another program took this one.
            engine.put(
                *place,
                codec.encode(numbered.as_json()),
                engine.version(*place) if plan.number else None,
            )
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
        """The agents, projects and channels in memory, without messages."""
        self._ensure_owner()
        engine, settings = self._store.engine, self._store.settings
        names = [(kind, id) for kind in (AGENT.name, PROJECT.name) for id in engine.ids(kind)]
        channels = (id for id in engine.ids(CONVERSATIONS) if id.startswith("channel_"))
        copied = [(kind, engine.document(kind, id), b"") for kind, id in names]
        copied += [(CONVERSATIONS, engine.head(id)[0] | {"history": []}, b"") for id in channels]
        return type(self._store)("", settings, opening.in_memory(copied))


class _Planner:
    """The actions of a plan. Each is done on a copy of the store, so that the next one is judged
    after it.
    """

    def __init__(self, copy: CoreStore) -> None:
        self.actions: list[Action] = []
        self._copy = copy
        self._people = copy.inner.object_of(StoreAgents)
        self._declared: set[ActionKey] = set()

    def register(self, file: AgentFile) -> str | None:
        """The id of a file's agent, which is registered if need be; None: it can't be."""
        name, scope = file.fields["name"], _scope_of(file)
        id = folder_ids(name, MAX_AGENT_ID, "agent")[0]
        if self._people.documents.exists(
            id
        ):  # An agent of another project, which the file is not of.
            id = f"{id}-{scope[-6:]}"
        action = Action(
            "register", id, "", None, {"name": name, "project": file.project}, file=file.path
        )
        try:
            return self._people.directory.resolve(f"{name}@{scope}", None)
        except NotFound:
            self._plan(action)
        except CapsuleError as error:
            self._plan(action.refused(error.message))
        return id if self.actions[-1].outcome == "planned" else None

    def declare(
        self, channels: _Tables, agents: _Tables, links: Mapping[str, Iterable[str]]
    ) -> None:
        """Plan what `capsule.toml` declares."""
        for project, seen in links.items():
            for other in seen:
                self._want("link", project, other, True)
        for name, about in channels.items():
            channel = _with_scope(name, about.get("scope", GLOBAL))
            self._want("channel", channel, "access", about.get("access"))
            for field in ("description", "default", "topic_required", "default_topic"):
                if field in about:
                    self._want("channel", channel, field, about[field])
            for member in about.get("members", ()):
                self._want("member", channel, member, True)
        for agent, about in agents.items():
            self._declare_policy(agent, about)

    def _declare_policy(
        self, agent: str, about: Mapping[str, Any], file: str = _TOML, by: str | None = None
    ) -> None:
        for field in ("dm", "discoverable", "description"):
            if field in about:
                self._want("agent", agent, field, about[field], file, by)
        for permission in ("block", "allow"):
            for other in about.get(permission, ()):
                self._want("entry", agent, other, permission, file, by)

    def declare_agent(self, file: AgentFile, id: str) -> None:
        """Plan what the file of an agent declares; what `capsule.toml` says of the same counts
        more.
        """
        about = {_FIELDS_IN_TOML.get(name, name): value for name, value in file.fields.items()}
        self._declare_policy(id, about, file.path, id)
        for scope, names in ((GLOBAL, "channels.global"), (_scope_of(file), "channels.project")):
            for name in file.fields.get(names, ()):
                self._want("member", _with_scope(name, scope), id, True, file.path, id)

    def take_back(self, history: Iterable[Plan]) -> None:
        """Plan to take back what was applied, where nothing else is declared."""
        applied: dict[ActionKey, Action] = {}
        for action in (
            action for plan in history for action in plan.actions if action.outcome != "refused"
        ):
            first = applied.pop(action.key, action)
            is_final = action.kind == "register" or (action.by is not None and action.after is None)
            if not is_final and first.before != action.after:
                applied[action.key] = replace(action, before=first.before)
        for key, was in applied.items():
            now = current_value(self._copy, key)
            action = Action(*key, now, was.before)
            if key in self._declared or now == was.before:
                continue
            if now == was.after:
                self._plan(action)
            elif now is not None:
                self._plan(action.refused("it was changed since, and stays unchanged"))

    def leave_defaults(self, file: AgentFile, id: str) -> None:
        """Plan that an agent leaves the default channels that its file excludes."""
        excluded = (
            {"*"}
            if file.fields.get("never_default")
            else {*file.fields.get("channels.exclude", ())}
        )
        for each in self._copy.inner.object_of(Channels).list(agent=id):
            action = Action("member", each.id, id, True, None, id, file.path)
            is_meant = (
                each.channel.is_default
                and each.is_in
                and excluded & {"*", each.channel.name, each.id}
            )
            if is_meant and action.key not in self._declared:
                (member,) = (
                    member
                    for member in self._copy.inner.object_of(Channels).members(each.id)
                    if member.id == id
                )
                if member.source == "default":  # Else it joined by itself, or was invited.
                    self._plan(action)

    def _want(
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
            self._plan(Action(kind, on, other, None, after, by, file).refused(error.message))
            return
        # The access of a channel that is only named stays as it is.
        action = Action(*key, before, (before or "open") if after is None else after, by, file)
        if (before, after) == ("block", "allow"):
            action = action.refused(
                f"{key[1]} has blocked {key[2]}, and a file can't lift the block"
            )
        if (
            key not in self._declared
            and action.before != action.after
            and not has_left(self._copy, key)
        ):
            self._plan(action)
        self._declared.add(key)

    def _plan(self, action: Action) -> None:
        tried = action.done(self._copy)
        self.actions.append(action if tried.outcome == "done" else tried)

    def _ids(self, kind: ActionKind, on: str, other: str, by: str | None) -> tuple[str, str]:
        resolve = self._people.directory.resolve
        if kind == "link":
            return self._project(on), self._project(other)
        if kind in ("channel", "member"):
            name, _, scope = on.partition("@")
            on = channel_id(self._project(scope), check_channel_name(name))
        elif by is None:
            on = resolve(on, None)
        if kind == "entry" or (kind == "member" and by is None):
            other = resolve(other, by)
        return on, other

    def _project(self, name: str) -> str:
        return GLOBAL if name == GLOBAL else self._people.directory.resolve_project(name)


def _scope_of(file: AgentFile) -> str:
    return GLOBAL if file.project is None else project_id(file.project)


def _with_scope(name: str, scope: str) -> str:
    """The name of a channel with its scope."""
    return name if "@" in name else f"{name}@{scope}"
