"""Configuration as code: what `capsule.toml` and the files of agents declare of channels, agents
and links.

What must stay true: a plan is made on a copy in memory, where each action is done at once, so that
the same rule decides there too; a refused action is reported and not done. Nothing is taken back
but what an earlier apply did, if it is still as that apply left it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.engines import opening
from capsule.engines.interface import CONVERSATIONS
from capsule.engines.retrying import again
from capsule.errors import CapsuleError, NotFound, Problem, Refused
from capsule.format.documents.agents import GLOBAL, MAX_AGENT_ID, project_id
from capsule.format.documents.channels import channel_id, check_channel_name
from capsule.format.json import codec
from capsule.format.kinds import AGENT, PROJECT
from capsule.ids import folder_ids
from capsule.messaging.channels import Channels
from capsule.messaging.configuration.frontmatter import AgentFile, agents_in
from capsule.messaging.configuration.plans import Action, Key, Kind, Plan, has_left, state_of
from capsule.messaging.people.people import People

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The kind of document that records an apply.
KIND_OF_APPLIED = "applied"
_TRIES = 50
_TOML = "capsule.toml"
#: The fields of an agent's file that `capsule.toml` calls otherwise.
_DECLARED = {"dm_policy": "dm", "dm_whitelist": "allow"}
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
        """Take back an apply and those after it. What was changed since stays, and no agent is
        forgotten.

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
        """List what was applied here, the oldest first. Raises InvalidDocument. Cost: reading a
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

        return again(record, KIND_OF_APPLIED, tries=_TRIES)

    def _ensure_owner(self) -> None:
        if self._store.agent is not None:
            raise Refused(
                "the configuration is planned and applied by a person, and not by an agent", path=""
            )

    def _files(self, folders: Iterable[str], home: str | None) -> Iterator[AgentFile | Problem]:
        documents = self._store.inner.part(People).documents
        homes = filter(None, map(documents.home, documents.ids()))
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
        self._people = copy.inner.part(People)
        self._declared: set[Key] = set()

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
            channel = _placed(name, about.get("scope", GLOBAL))
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
        about = {_DECLARED.get(name, name): value for name, value in file.fields.items()}
        self._declare_policy(id, about, file.path, id)
        for scope, names in ((GLOBAL, "channels.global"), (_scope_of(file), "channels.project")):
            for name in file.fields.get(names, ()):
                self._want("member", _placed(name, scope), id, True, file.path, id)

    def take_back(self, history: Iterable[Plan]) -> None:
        """Plan to take back what was applied, where nothing else is declared."""
        applied: dict[Key, Action] = {}
        for action in (
            action for plan in history for action in plan.actions if action.outcome != "refused"
        ):
            first = applied.pop(action.key, action)
            is_final = action.kind == "register" or (action.by is not None and action.after is None)
            if not is_final and first.before != action.after:
                applied[action.key] = replace(action, before=first.before)
        for key, was in applied.items():
            now = state_of(self._copy, key)
            action = Action(*key, now, was.before)
            if key in self._declared or now == was.before:
                continue
            if now == was.after:
                self._plan(action)
            elif now is not None:
                self._plan(action.refused("it was changed since, and stays as it is"))

    def leave_defaults(self, file: AgentFile, id: str) -> None:
        """Plan that an agent leaves the default channels that its file excludes."""
        excluded = (
            {"*"}
            if file.fields.get("never_default")
            else {*file.fields.get("channels.exclude", ())}
        )
        for each in self._copy.inner.part(Channels).list(agent=id):
            action = Action("member", each.id, id, True, None, id, file.path)
            is_meant = (
                each.channel.is_default
                and each.is_in
                and excluded & {"*", each.channel.name, each.id}
            )
            if is_meant and action.key not in self._declared:
                (member,) = (
                    member
                    for member in self._copy.inner.part(Channels).members(each.id)
                    if member.id == id
                )
                if member.source == "default":  # Else it joined by itself, or was invited.
                    self._plan(action)

    def _want(
        self, kind: Kind, on: str, other: str, after: Any, file: str = _TOML, by: str | None = None
    ) -> None:
        try:
            key = (kind, *self._ids(kind, on, other, by))
            before = state_of(self._copy, key)
        except CapsuleError as error:
            self._plan(Action(kind, on, other, None, after, by, file).refused(error.message))
            return
        # The access of a channel that is only named stays as it is.
        action = Action(*key, before, (before or "open") if after is None else after, by, file)
        if (before, after) == ("block", "allow"):
            action = action.refused(f"{key[1]} has blocked {key[2]}, and a file does not lift that")
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

    def _ids(self, kind: Kind, on: str, other: str, by: str | None) -> tuple[str, str]:
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


def _placed(name: str, scope: str) -> str:
    """The name of a channel with its scope."""
    return name if "@" in name else f"{name}@{scope}"
