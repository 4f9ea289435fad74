"""The agents of a store: registration, identity, policies, and the list of who can be found.

An agent is one document, `agents/{id}.json`. Registration creates or changes it. A policy decides
who may write to the agent and who finds it. An entry (`allow`, `block`) decides about one other
agent.

What must stay true:
- One rule (`directory.acting_agent`) decides as which agent a program acts, for the command line,
  the MCP server and the Python API.
- Registering again changes only the fields that were given, and moves nothing. The folder of a
  project always gives the same id, and no two projects share an agent.
- Only a person names the folder where the notices for an agent are written.
- An agent learns only of agents that it may find.
- When a stricter policy is acknowledged, no write that the old policy permitted is still running.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, cast, get_args

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused, Remedy
from capsule.format.documents.agents import (
    GLOBAL,
    MAX_AGENT_ID,
    check_agent_id,
    direct_id,
    project_id,
    project_of,
)
from capsule.format.documents.members import Member
from capsule.ids import folder_ids
from capsule.messaging.directory import (
    KIND_OF_BELLS,
    KIND_OF_HOMES,
    Document,
    StoreAgents,
    acting_agent,
    new_project,
    new_record,
)
from capsule.rules.consent import DISCOVERABLE, DM_POLICIES, AgentProfile, dm_availability
from capsule.rules.policy import Action, PolicyTarget, decide, raise_if_denied

if TYPE_CHECKING:
    from capsule.messaging.contacts import Agent, Contact, Permission
    from capsule.store.store import CoreStore


_log = logging.getLogger("capsule")


class Agents:
    """The agents of a store: people and programs that exchange messages."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.object_of(StoreAgents)
        self._directory = self._people.directory
        self._documents = self._people.documents

    def identity(self, name: str, folder: str | None = None) -> str:
        """Look up the agent that a program acts as.

        In the folder of a project it is the agent of this name there, else the agent without a
        project that has this id. If there is none, it is made in the project, with a warning in the
        log. In another folder it is the agent with this id.

        Args:
            name: Its name, its id, or `name@project`.
            folder: The folder where the program runs, without links in its path. None: none.

        Returns:
            Its id. It is `name` if there is no such agent and no project to make it in.

        Raises InvalidInput: several agents have this name there. Cost: a look at each document, at
        most. The first time, as `register`.
        """
        return self._directory.identity(name, folder) or self._create_agent(name, folder or "")

    def ensure(
        self, name: str | None, folder: str | None = None, *, is_project: bool = True
    ) -> str:
        """Look up the agent that a program acts as, as `identity`, and make it if there is none.

        Args:
            name: As `identity` takes it. None: the one agent that works in the folder, else one of
                the folder's name.
            folder: The folder where the program runs, without links in its path. None: none.
            is_project: Whether a folder that is in no project becomes one for an agent without a
                name. An agent with a name is then made without a project, so that the name means it
                in other folders too.

        Returns:
            Its id. It is registered, and has joined the default channels of its scope.

        Raises:
            InvalidInput: The name or the folder can't be accepted, or several agents have this
                name.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: reading small files, and writing them if there is no such agent yet.
        """
        id = None
        if name is not None:
            id = self._directory.identity(name, folder)
        elif folder:
            agents_of_folder = self.at(folder)
            if len(agents_of_folder) == 1:
                id = agents_of_folder[0]
        if folder is None or (id is not None and self._documents.exists(id)):
            return self.register(id).id
        return self._create_agent(name, folder, is_project=is_project)

    def _create_agent(self, name: str | None, folder: str, *, is_project: bool = False) -> str:
        """Make the agent that a program acts as, and return its id.

        It gets no notices in the folder, because no person said that it works there.

        Args:
            name: Its name. None: that of the folder.
            folder: The folder where the program runs.
            is_project: Whether a folder that is in no project becomes one.
        """
        path = self._directory.project_folder(folder)
        if path is None and is_project and name is None:
            path = folder
        if path is not None:
            id = self._join_default_channels(self._register_in(path, name, {}), ()).id
        else:
            if not name:
                name = folder_ids(folder, MAX_AGENT_ID, "agent")[0]
            id = self.register(name).id
        _log.warning("%s is a new agent, %s in the project %s", id, name or id, path or GLOBAL)
        return id

    def register(
        self,
        id: str | None = None,
        project: str | None = None,
        *,
        name: str | None = None,
        description: str | None = None,
        exclude: Iterable[str] = (),
    ) -> Agent:
        """Register an agent, or change its document. Fields that are not given keep their values.

        The agent joins the open default channels of its scope, except those in which it was before.

        Args:
            id: Its id: lower-case letters, digits and `-`. None: made from the name of the
                project's folder. The same folder always gives the same id. If an agent of another
                project has it, the agent gets this name, and an id with a suffix.
            project: The folder that it works in. An agent that exists stays where it is: see
                `move`.
            name: Its name, for people. None: the id.
            description: Its task.
            exclude: Names or ids of default channels that it never joins. `*`: all.

        Raises:
            InvalidInput: The id can't be accepted, or it is that of an agent in no project, or
                neither `id` nor `project` is given.
            Refused, StorageFailed: The system refused a read or a write, or the store acts for another
                agent.

        Cost: reading small files, and writing them if something changes. If there are channels, as
        `channels.list`.
        """
        fields = {"name": name, "description": description}
        if project is None:
            if id is None:
                raise InvalidInput("give the agent an id, or the folder of its project")
            self._register(check_agent_id(id), id, fields)
            return self._join_default_channels(id, exclude)
        path = os.path.abspath(project)
        id = self._register_in(path, id, fields)
        self._set_registered_folder(id, path)
        return self._join_default_channels(id, exclude)

    def _register_in(self, path: str, name: str | None, fields: Document) -> str:
        """Register an agent in the project of a folder, and return its id.

        Args:
            path: The folder.
            name: The name or id of the agent. None: the name of the folder.
            fields: The fields of its document that are given. None stands for a field that is not.
        """
        project = project_id(path)
        candidates: Iterable[AgentProfile] = self._directory.profiles().values()
        if name is None:
            name = folder_ids(path, MAX_AGENT_ID, "agent")[0]
            candidates = [profile for profile in candidates if profile.project != GLOBAL]
        else:
            name = check_agent_id(name)
        existing_id = acting_agent(name, project, candidates)
        suffixed_name = f"{name[: MAX_AGENT_ID - 7].rstrip('-')}-{project[-6:]}"
        possible_ids = [name, suffixed_name] if existing_id is None else [existing_id]
        for id in possible_ids:
            if self._register(id, name, fields, {"project": project, "projectPath": path}):
                self._directory.projects.edit(project, lambda _: None, partial(new_project, path))
                return id
        if existing_id is not None:
            raise InvalidInput(
                f"agent {existing_id} is in no project, and stays there",
                remedy=Remedy("move", existing_id),
            )
        raise InvalidInput(
            f"{name} and {suffixed_name} are agents of other projects; choose another id"
        )

    def _register(
        self, id: str, name: str, fields: Document, project_fields: Document | None = None
    ) -> bool:
        """Make or change the document of an agent. Return False if the agent is in another project.

        Args:
            id: The agent.
            name: The name of a new agent, if `fields` has none.
            fields: The fields that are given. None stands for a field that is not.
            project_fields: The id and the folder of the project. None: they keep their values.
        """
        changes = {field: value for field, value in fields.items() if value is not None}
        self._ensure_manages(self._store.inner.required_agent(id))

        def change(document: Document) -> None:
            project = project_of(document)
            if project_fields is not None and project != project_fields["project"]:
                raise _BelongsToOtherProject
            document.update({"project": project} | (project_fields or {}) | changes)

        def make(stamp: str) -> Document:
            defaults: Document = {
                "project": GLOBAL,
                "projectPath": None,
                "lastSeen": stamp,
                "statusMessage": None,
                "notifications": True,
                "cursors": {},
            }
            return new_record(id, name, stamp) | defaults | (project_fields or {}) | changes

        try:
            self._documents.edit(id, change, make)
        except _BelongsToOtherProject:
            return False
        return True

    def move(self, id: str, project: str) -> Agent:
        """Move an agent into a project. Nothing else does.

        Args:
            id: Its id or name.
            project: The folder of the project.

        Raises:
            NotFound: The agent does not exist.
            InvalidInput: An agent of the project has its name.
            Refused: The store acts for an agent.

        Cost: writing small files, and as `policy`.
        """
        moved = self._directory.profile(self.get(id).id)
        path = os.path.abspath(project)
        target_project = project_id(path)
        raise_if_denied(
            decide(self._store.agent, "move", PolicyTarget(moved.id, "agent")), moved.id
        )
        for profile in self._directory.profiles().values():
            if profile.project != target_project or profile.id == moved.id:
                continue
            if {moved.id, moved.name} & {profile.id, profile.name}:
                raise InvalidInput(
                    f"the project {path} has an agent of the name {moved.name} already"
                )
        project_fields = {"project": target_project, "projectPath": path}
        self._documents.edit(moved.id, lambda document: document.update(project_fields))
        self._directory.projects.edit(target_project, lambda _: None, partial(new_project, path))
        self._set_registered_folder(moved.id, path)
        self._directory.wait_for_running_writes(moved.id)
        return self._join_default_channels(moved.id, ())

    def _ensure_manages(self, id: str) -> None:
        """Raise Refused unless the store may change the document of an agent."""
        inputs = self._store.inner.inputs_for(None, ())
        target = PolicyTarget(id, "agent")
        raise_if_denied(decide(self._store.agent, "manage", target, inputs), id)

    def _set_registered_folder(self, id: str, path: str) -> None:
        """Record the folder where a person says that an agent works. Its notices are written
        there, and removed from the folder before.
        """
        if self._documents.registered_folder(id) not in (None, path):
            from capsule.messaging.notices import try_remove_blocks

            try_remove_blocks(self._store, id)
        self._documents.set_registered_folder(id, path)

    def _join_default_channels(self, id: str, exclude: Iterable[str]) -> Agent:
        """Let an agent join the default channels of its scope, except those in `exclude`."""
        from capsule.messaging.channels import Channels

        self._store.inner.object_of(Channels).join_defaults(id, exclude)
        return self.get(id)

    # -- Look-ups ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """List the ids of the agents, sorted. For an agent: its own, and those of the agents that it
        may find.

        Raises Refused, StorageFailed. Cost: one scan of a directory. For an agent also a look at
        each document.
        """
        return self._directory.agents_visible_to(self._store.agent)

    def get(self, id: str) -> Agent:
        """Look up an agent.

        Args:
            id: Its id. If no agent has it: a name or `name@project`, as the store's agent means it.

        Raises:
            NotFound: There is no such agent, or the store acts for an agent that may not find it.
            InvalidInput: Several agents have the name.
            InvalidDocument: Its file does not parse.

        Cost: reading a small file, and a look at each instance that is alive. For a name also a
        look at each document.
        """
        reader = self._store.agent
        found_id = id if self._documents.exists(id) else self._directory.resolve(id, reader)
        if reader != found_id:
            inputs = self._directory.state(reader, None, [found_id])
            if not decide(reader, "find", PolicyTarget(found_id, "agent"), inputs).allowed:
                raise self._documents.missing(id)
        return self._agent(found_id, self._people.online())

    def may(
        self,
        action: str,
        *,
        agent: str | None = None,
        conversation: str | None = None,
        other: str | None = None,
    ) -> Permission:
        """Ask the rule whether an agent may do something, and why not. Nothing is done or noted.

        Args:
            action: What it would do, by a word of the rule: `read`, `append`, `edit`, `rename`,
                `join`, `invite`, `message` and so on. Who holds a lock is no matter of this rule.
            agent: The agent; None: the one that the store acts for.
            conversation: Where it would do it: a channel, or any conversation as `Store.resolve`
                takes it.
            other: The agent that it is about: whom it would add, invite or readmit there; without a
                conversation, whom it would find, or what it would do in the direct of the two.

        Raises:
            NotFound: There is no such agent or conversation, or the store's agent does not find it.
            InvalidInput: There is no such action, or neither a conversation nor another agent is
                given.
            Refused: The store acts for another agent.
            InvalidDocument: The conversation does not parse.

        Cost: as `get`, and reading the beginning of the conversation's file.
        """
        from capsule.messaging.contacts import Permission

        asked_agent = self._people.registered_agent(agent)
        if action not in get_args(Action):
            raise InvalidInput(
                f"{action[:40]!r} is not an action; it is one of {', '.join(get_args(Action))}"
            )
        other_id = None if other is None else self.get(other).id
        others: tuple[str, ...] = ()
        if conversation is not None:
            target = self._target(conversation)
            if other_id is not None and action in ("add", "invite", "readmit"):
                others = (other_id,)
        elif other_id is None:
            raise InvalidInput("name the conversation, or the other agent")
        elif action in ("find", "manage", "delete", "move"):
            target = PolicyTarget(other_id, "agent")
            others = (other_id,)
        else:
            both = tuple(map(Member, sorted({asked_agent, other_id})))
            target = PolicyTarget(direct_id(asked_agent, other_id), "direct", both)
        inputs_for = self._store.inner.store_for(asked_agent).inner.inputs_for
        inputs = inputs_for(None if target.type == "agent" else target, others)
        decision = decide(asked_agent, cast("Action", action), target, inputs)
        if decision.hidden:
            hint = f"{asked_agent} can't see that it exists"
        elif isinstance(decision.hint, str):
            hint = decision.hint
        else:
            hint = decision.hint(inputs_for)
        return Permission(decision.allowed, decision.reason, hint)

    def _target(self, conversation: str) -> PolicyTarget:
        """Return a conversation that the store's agent may find, as the rules see it.

        Raises NotFound, InvalidDocument.
        """
        from capsule.messaging.channels import Channels

        with suppress(NotFound):
            conversation = self._store.inner.object_of(Channels).resolve(
                conversation, self._store.agent
            )
        id = self._store.resolve(conversation)
        with suppress(Refused):  # The agent may find channels that it may not read.
            self._store.engine.head(id)
        return PolicyTarget.from_document(self._store.inner.whole_engine.head(id)[0])

    # -- Who may write to it -----------------------------------------------------------------------

    def policy(
        self, id: str | None = None, *, dm: str | None = None, discoverable: str | None = None
    ) -> Agent:
        """Set who may write to an agent, and who may find it. A policy that is not given stays.

        Args:
            id: The agent. None: the one that the store acts for.
            dm: Which agents may write to it directly: `open` (all), `restricted` (those that it
                allows) or `closed` (none).
            discoverable: Which agents may find it: `public` (all), `project` or `private` (those
                with which it has a direct).

        Raises:
            NotFound: The agent does not exist.
            InvalidInput: The policy does not exist.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation for too long. The policy is changed.

        Cost: writing a small file, and taking the mutex of each conversation that the policy
        affects, so that no write that the old policy permitted comes later.
        """
        for value, choices in ((dm, DM_POLICIES), (discoverable, DISCOVERABLE)):
            if value not in (None, *choices):
                raise InvalidInput(
                    f"{value[:40]!r} is not a policy; it is one of {', '.join(choices)}"
                )
        fields = {}
        if dm:
            fields["dmPolicy"] = dm
        if discoverable:
            fields["discoverable"] = discoverable
        return self._edit(
            self._store.inner.required_agent(id),
            lambda document: document.update(fields),
            decides_on_writes=bool(fields),
        )

    def allow(self, *, agent: str | None = None, other: str, reason: str | None = None) -> Agent:
        """Let another agent write to a restricted one.

        Args:
            agent: The restricted agent. None: the one that the store acts for.
            other: The other agent: its id, or its name as `name@project`.
            reason: The reason, for people.

        Raises:
            NotFound: The agent does not exist.
            InvalidInput: Both are the same agent, or several have this name.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation for too long. The entry is written.

        Cost: writing a small file, and taking the mutex of each conversation that it affects.
        """
        return self._set_entry(agent, other, {"permission": "allow", "reason": reason})

    def block(self, *, agent: str | None = None, other: str, reason: str | None = None) -> Agent:
        """Stop two agents from writing to each other. Their messages stay readable.

        Args:
            agent: The agent that blocks. None: the one that the store acts for.
            other, reason: As `allow` takes them.

        Raises:
            NotFound: The agent does not exist.
            InvalidInput: Both are the same agent, or several have this name.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation for too long. The entry is written.

        Cost: writing a small file, and taking the mutex of each conversation that it affects.
        """
        return self._set_entry(agent, other, {"permission": "block", "reason": reason})

    def _set_entry(self, agent: str | None, other: str, entry: Document | None) -> Agent:
        """Set the entry of an agent about another one. None removes it."""
        id = self._store.inner.required_agent(agent)
        other_id = other
        has_entry = other in self._directory.profile(id).dm_entries
        if entry is not None or not has_entry:  # The other agent may have been forgotten.
            other_id = self._directory.resolve(other, id)
        if other_id == id:
            raise InvalidInput(f"{id} needs no permission to write to itself")
        now = timestamps.now()

        def change(document: Document) -> None:
            entries = dict(document.get("dm") or {})
            entries.pop(other_id, None)
            if entry is not None:
                entries[other_id] = entry | {"at": now}
            document["dm"] = entries

        return self._edit(id, change, decides_on_writes=True)

    def requests(self, agent: str | None = None) -> Sequence[Contact]:
        """List the agents that wanted to write to a restricted one, if it has neither allowed nor
        blocked them. The earliest request is first.

        Args:
            agent: The restricted agent. None: the one that the store acts for.

        Raises NotFound, Refused, InvalidDocument. Cost: a look at each document.
        """
        profile = self._directory.profile(self._people.registered_agent(agent))
        if profile.dm != "restricted":
            return []
        requesting_agents = []
        for other in self._directory.agents.ids():
            is_undecided = other not in profile.dm_entries
            if is_undecided and profile.id in self._people.requests_of(other):
                requesting_agents.append(other)
        contacts = self._contacts(profile, requesting_agents)
        return sorted(contacts, key=lambda contact: contact.asked_at)

    def discover(self, agent: str | None = None) -> Sequence[Contact]:
        """List the agents that an agent may find, and whether the two may write to each other.

        Args:
            agent: The agent that searches. None: the one that the store acts for.

        Raises NotFound, Refused, InvalidDocument. Cost: a look at each document.
        """
        profile = self._directory.profile(self._people.registered_agent(agent))
        return self._contacts(profile, self._directory.agents_found_by(profile.id))

    def _contacts(self, profile: AgentProfile, others: Iterable[str]) -> list[Contact]:
        """Return other agents as contacts of one agent."""
        from capsule.messaging.contacts import Agent, Contact

        presence = self._people.online()
        contacts = []
        for other in others:
            request = self._people.requests_of(other).get(profile.id, {})
            contact = Contact(
                Agent.of(self._directory.agents.read(other), presence, shows_entries=False),
                dm_availability(profile, self._directory.profile(other)),
                request.get("at") or "",
            )
            contacts.append(contact)
        return contacts

    def set_status(self, agent: str | None, text: str, *, busy: bool | None = None) -> Agent:
        """Set a short text that says what an agent does.

        Args:
            agent: The agent. None: the one that the store acts for.
            text: The text. Empty: none.
            busy: Whether it is busy. None: that is not changed.

        Raises NotFound, InvalidInput, Refused. Cost: writing a small file.
        """
        fields: Document = {"statusMessage": text or None}
        if busy is not None:
            fields["busy"] = busy
        return self._set_fields(agent, fields)

    def set_notifications(self, agent: str | None, on: bool) -> Agent:
        """Switch the notices on or off that are written into files of an agent's project while it is
        away.

        Args:
            agent: The agent. None: the one that the store acts for.
            on: Whether they are written.

        Raises NotFound, Refused. Cost: writing a small file.
        """
        return self._set_fields(agent, {"notifications": on})

    def _set_fields(self, agent: str | None, fields: Document) -> Agent:
        id = self._store.inner.required_agent(agent)
        return self._edit(id, lambda document: document.update(fields))

    def _edit(
        self,
        id: str,
        change: Callable[[Document], object],
        *,
        decides_on_writes: bool = False,
    ) -> Agent:
        """Change the document of an agent.

        Args:
            id: The agent.
            change: Changes the document in place.
            decides_on_writes: Whether the change may forbid writes. Then those that were permitted
                before have ended when this returns. It waits for them also if nothing changes:
                another process may have made the change just now, and still be waiting.
        """
        self._ensure_manages(self._documents.ensure_exists(id))
        self._documents.edit(id, change)
        if decides_on_writes:
            self._directory.wait_for_running_writes(id)
        return self.get(id)

    def forget(
        self, id: str | None = None, *, agent: str | None = None, other: str | None = None
    ) -> None:
        """Forget an agent, or its entry about another agent.

        The document of an agent goes to the trash. Its folder and its doorbells on this machine are
        forgotten, and its notices are removed from its project. Its conversations stay.

        Args:
            id: The agent to forget.
            agent: Instead of it, the agent that removes an entry. None: the one that the store acts
                for.
            other: The agent that it allowed or blocked.

        Raises NotFound, InvalidInput, and Refused if the store acts for an agent that is to forget
        one. Cost: moving a small file. For an entry, as `policy`.
        """
        if other is not None:
            self._set_entry(agent, other, None)
            return
        if id is None:
            raise InvalidInput(
                "name the agent to forget, or the other agent whose permission to forget"
            )
        raise_if_denied(decide(self._store.agent, "delete", PolicyTarget(id, "agent")), id)
        from capsule.messaging import notices

        notices.try_remove_blocks(self._store, self._documents.ensure_exists(id))
        self._documents.delete(id)
        for kind in (KIND_OF_HOMES, KIND_OF_BELLS):
            self._store.engine.local.delete(kind, id)

    def serve(self, agent: str | None = None) -> None:
        """Announce that this instance serves an agent. The agent is online until the store is closed
        or the process ends.

        Args:
            agent: The agent. None: the one that the store acts for.

        Raises NotFound, Refused, StorageFailed. Cost: making a small file, the first time.
        """
        id = self._people.registered_agent(agent)
        self._store.inner.store_for(id).inner.object_of(StoreAgents).announce(id)

    def at(self, folder: str) -> Sequence[str]:
        """Look up the agents that work in a folder, or else in the nearest folder above it that has
        agents.

        Args:
            folder: The folder, without links in its path.

        Raises InvalidDocument. Cost: reading a small file for each agent.
        """
        by_project: dict[str, list[str]] = {}
        for id in self.names():
            by_project.setdefault(self._documents.read(id).get("projectPath") or "", []).append(id)
        ancestors = list(accumulate(os.path.abspath(folder).split("/"), "{}/{}".format))
        for ancestor in reversed(ancestors):
            if ancestor and ancestor in by_project:
                return by_project[ancestor]
        return []

    def list(self) -> list[Agent]:
        """List the agents, in the order of their ids. For an agent: itself, and those that it may
        find.

        Raises InvalidDocument. Cost: a look at each document, and reading those that changed.
        """
        presence = self._people.online()
        return [self._agent(id, presence) for id in self.names()]

    def _agent(self, id: str, presence: dict[str, bool]) -> Agent:
        from capsule.messaging.contacts import Agent

        return Agent.of(
            self._documents.read(id), presence, shows_entries=self._store.agent in (None, id)
        )


class _BelongsToOtherProject(Exception):
    """The document is that of an agent of another project."""
