"""The agents of a store: registration, identity, policies, and the list of who can be found.

An agent is one document, `agents/{id}.json`. Registration creates or changes it. A policy decides
who may write to the agent and who finds it; an entry (`allow`, `block`) decides about one other
agent.

What must stay true:
- One rule (`directory.acting_agent`) decides as which agent somebody acts, for the command line,
  the MCP server and the Python API.
- Registering again changes only the fields that were given, and moves nothing. The folder of a
  project always gives the same id, and no two projects share an agent.
- Only a person names the folder in which the notices for an agent are written.
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
from typing import TYPE_CHECKING, Any, cast, get_args

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
        self._directory, self._documents = self._people.directory, self._people.documents

    def identity(self, name: str, folder: str | None = None) -> str:
        """Look up the agent that somebody acts as.

        In the folder of a project it is the agent of this name there, else the agent without a
        project that has this id; else it is made there, and a warning in the log says so. Elsewhere
        it is the agent with this id.

        Args:
            name: Its name, its id, or `name@project`.
            folder: The folder where it is said, without links in its path; None: none.

        Returns:
            Its id; `name`, if there is no such agent and no project to make it in.

        Raises InvalidInput: several have this name there. Cost: a look at each document, at most;
        once, as `register`.
        """
        return self._directory.identity(name, folder) or self._made(name, folder or "")

    def ensure(
        self, name: str | None, folder: str | None = None, *, is_project: bool = True
    ) -> str:
        """Look up the agent that a program acts as, as `identity`, and make it if there is none.

        Args:
            name: As `identity` takes it. None: the one agent that works in the folder, else one of
                the folder's name.
            folder: The folder where the program runs, without links in its path. None: none.
            is_project: Whether a folder that is in no project becomes one for an agent without a
                name. One with a name is then made without a project, so that the name means it in
                other folders too.

        Returns:
            Its id. It is registered, and has joined the default channels of its scope.

        Raises:
            InvalidInput: The name or the folder can't be accepted, or several agents of this name
                are meant.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: reading small files; writing them if there is no such agent yet.
        """
        here = self.at(folder) if name is None and folder else []
        id = (
            self._directory.identity(name, folder)
            if name is not None
            else here[0]
            if len(here) == 1
            else None
        )
        if folder is None or (id and self._documents.exists(id)):
            return self.register(id).id
        return self._made(name, folder, is_project=is_project)

    def _made(self, name: str | None, folder: str, *, is_project: bool = False) -> str:
        """Make the agent that a program acts as. It gets no notices: no person said that it works
        in the folder.
        """
        path = self._directory.project_folder(folder) or (
            folder if is_project and name is None else None
        )
        name = name or folder_ids(folder, MAX_AGENT_ID, "agent")[0] if path is None else name
        id = (
            self.register(name).id
            if path is None
            else self._with_defaults(self._register_in(path, name, {}), ()).id
        )
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
        """Register an agent, or change what is known of it. What is not given stays as it is.

        It joins the open default channels of its scope, but for those in which it was before.

        Args:
            id: Its id: lower-case letters, digits and `-`. None: made from the name of the
                project's folder. The same folder always gives the same id. If an agent of another
                project has it, the agent gets this name, and an id with a suffix.
            project: The folder that it works in. An agent that exists stays where it is: see
                `move`.
            name: Its name, for people. None: the id.
            description: What it is there for.
            exclude: Names or ids of default channels that it stays out of for good; `*`: all.

        Raises:
            InvalidInput: The id can't be accepted, or it is that of an agent in no project, or
                neither `id` nor `project` is given.
            Refused, StorageFailed: The system refused a read or a write, or the store acts for another
                agent.

        Cost: writing small files if something changes; else reading them. If there are channels, as
        `channels.list`.
        """
        about = {"name": name, "description": description}
        if project is None:
            if id is None:
                raise InvalidInput("give the agent an id, or the folder of its project")
            self._register(check_agent_id(id), id, about)
            return self._with_defaults(id, exclude)
        path = os.path.abspath(project)
        id = self._register_in(path, id, about)
        self._set_home(id, path)
        return self._with_defaults(id, exclude)

    def _register_in(self, path: str, name: str | None, about: Document) -> str:
        """Register the agent of this name in the project of a folder; None: that of the folder's
        name. Its id.
        """
        where = {"project": project_id(path), "projectPath": path}
        plain = folder_ids(path, MAX_AGENT_ID, "agent")[0] if name is None else check_agent_id(name)
        agents = [
            each
            for each in self._directory.profiles().values()
            if name is not None or each.project != GLOBAL
        ]
        id = acting_agent(plain, where["project"], agents)
        suffixed = f"{plain[: MAX_AGENT_ID - 7].rstrip('-')}-{where['project'][-6:]}"
        for each in (plain, suffixed) if id is None else (id,):
            if self._register(each, plain, about, where):
                self._directory.projects.edit(
                    where["project"], lambda _: None, partial(new_project, path)
                )
                return each
        if id is not None:
            raise InvalidInput(
                f"agent {id} belongs to no project, and is not moved into one",
                remedy=Remedy("move", id),
            )
        raise InvalidInput(
            f"{plain} and {suffixed} are agents of other projects; choose another id"
        )

    def _register(self, id: str, name: str, about: Document, where: Document | None = None) -> bool:
        """Make or change the document; False: it is that of an agent of another project.

        Args:
            name: The name, if none is given or known.
            about: What is given of the agent.
            where: The project, by its id and its folder; None: as it is.
        """
        given = {field: value for field, value in about.items() if value is not None}
        self._ensure_manages(self._store.inner.required_agent(id))

        def change(document: Document) -> None:
            project = project_of(document)
            if where is not None and project != where["project"]:
                raise _BelongsToOtherProject
            document.update({"project": project} | (where or {}) | given)

        def make(stamp: str) -> Document:
            made = new_record(id, name, stamp) | {
                "project": GLOBAL,
                "projectPath": None,
                "lastSeen": stamp,
            }
            return (
                made
                | {"statusMessage": None, "notifications": True, "cursors": {}}
                | (where or {})
                | given
            )

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
            NotFound: There is no such agent.
            InvalidInput: An agent of the project has its name.
            Refused: An agent asks.

        Cost: writing small files, and as `policy`.
        """
        about, path = self._directory.profile(self.get(id).id), os.path.abspath(project)
        raise_if_denied(
            decide(self._store.agent, "move", PolicyTarget(about.id, "agent")), about.id
        )
        where = {"project": project_id(path), "projectPath": path}
        there = [
            each for each in self._directory.profiles().values() if each.project == where["project"]
        ]
        if any(
            each.id != about.id and {about.id, about.name} & {each.id, each.name} for each in there
        ):
            raise InvalidInput(f"the project {path} already has an agent of the name {about.name}")
        self._documents.edit(about.id, lambda document: document.update(where))
        self._directory.projects.edit(where["project"], lambda _: None, partial(new_project, path))
        self._set_home(about.id, path)
        self._directory.wait_for_running_writes(about.id)
        return self._with_defaults(about.id, ())

    def _ensure_manages(self, id: str) -> None:
        raise_if_denied(
            decide(
                self._store.agent,
                "manage",
                PolicyTarget(id, "agent"),
                self._store.inner.inputs_for(None, ()),
            ),
            id,
        )

    def _set_home(self, id: str, path: str) -> None:
        """Note the folder where a person says that an agent works here: what waits for it is told
        there.
        """
        if self._documents.registered_folder(id) not in (None, path):
            from capsule.messaging.notices import try_remove_blocks

            try_remove_blocks(self._store, id)
        self._documents.set_registered_folder(id, path)

    def _with_defaults(self, id: str, exclude: Iterable[str]) -> Agent:
        from capsule.messaging.channels import Channels

        self._store.inner.object_of(Channels).join_defaults(id, exclude)
        return self.get(id)

    # -- Look-ups ----------------------------------------------------------------------------------

    def names(self) -> list[str]:
        """List the ids of the agents, sorted: for an agent, its own and those of the agents that it
        finds.

        Raises Refused, StorageFailed. Cost: one scan of a directory; for an agent, also a look at
        each document.
        """
        return self._directory.agents_visible_to(self._store.agent)

    def get(self, id: str) -> Agent:
        """Look up an agent.

        Args:
            id: Its id; or, if no agent has it, a name or `name@project`, as the store's agent means
                it.

        Raises:
            NotFound: There is no such agent, or an agent asks that does not find it.
            InvalidInput: Several agents have the name.
            InvalidDocument: Its file does not parse.

        Cost: reading a small file, and a look at each instance that is alive; for a name, also at
        each document.
        """
        me, named = self._store.agent, id
        id = id if self._documents.exists(id) else self._directory.resolve(id, me)
        if (
            me != id
            and not decide(
                me, "find", PolicyTarget(id, "agent"), self._directory.state(me, None, [id])
            ).allowed
        ):
            raise self._documents.missing(named)
        return self._agent(id, self._people.online())

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

        me = self._people.registered_agent(agent)
        if action not in get_args(Action):
            raise InvalidInput(
                f"{action[:40]!r} is not an action; it is one of {', '.join(get_args(Action))}"
            )
        others = () if other is None else (self.get(other).id,)
        if conversation is not None:
            object = self._object(conversation)
        elif not others:
            raise InvalidInput("name the conversation, or the other agent")
        elif action in ("find", "manage", "delete", "move"):
            object = PolicyTarget(others[0], "agent")
        else:
            object = PolicyTarget(
                direct_id(me, others[0]), "direct", tuple(map(Member, sorted({me, *others})))
            )
        state_of = self._store.inner.store_for(me).inner.inputs_for
        asks_them = conversation is not None and action in ("add", "invite", "readmit")
        is_agent = object.type == "agent"
        state = state_of(None if is_agent else object, others if asks_them or is_agent else ())
        said = decide(me, cast("Action", action), object, state)
        hint = said.hint if isinstance(said.hint, str) else said.hint(state_of)
        return Permission(
            said.allowed, said.reason, f"{me} can't see that it exists" if said.hidden else hint
        )

    def _object(self, conversation: str) -> PolicyTarget:
        """A conversation that the store's agent finds, as the rule sees it. Raises NotFound,
        InvalidDocument.
        """
        from capsule.messaging.channels import Channels

        with suppress(NotFound):
            conversation = self._store.inner.object_of(Channels).resolve(
                conversation, self._store.agent
            )
        id = self._store.resolve(conversation)
        with suppress(Refused):  # It finds a channel that it may not read.
            self._store.engine.head(id)
        return PolicyTarget.from_document(self._store.inner.whole_engine.head(id)[0])

    # -- Who may write to it -----------------------------------------------------------------------

    def policy(
        self, id: str | None = None, *, dm: str | None = None, discoverable: str | None = None
    ) -> Agent:
        """Say who may write to an agent, and who finds it. What is not given stays as it is.

        Args:
            id: The agent; None: the one that the store acts for.
            dm: Who may write to it directly: `open`, `restricted` (whom it allows) or `closed`.
            discoverable: Who finds it: `public`, `project` or `private`.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: There is no such policy.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation; the policy is changed.

        Cost: writing a small file, and taking the mutex of each conversation that the policy is
        about: no write that the old policy let through comes later.
        """
        for value, choices in ((dm, DM_POLICIES), (discoverable, DISCOVERABLE)):
            if value not in (None, *choices):
                raise InvalidInput(
                    f"{value[:40]!r} is not a policy; it is one of {', '.join(choices)}"
                )
        given = {
            field: value
            for field, value in (("dmPolicy", dm), ("discoverable", discoverable))
            if value
        }
        return self._edit(
            self._store.inner.required_agent(id),
            lambda document: document.update(given),
            decides=bool(given),
        )

    def allow(self, *, agent: str | None = None, other: str, reason: str | None = None) -> Agent:
        """Let another agent write to a restricted one.

        Args:
            agent: The agent that is written to; None: the one that the store acts for.
            other: The other agent: its id, or its name as `name@project`.
            reason: The reason, for people.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: Both are the same agent, or several have this name.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation; the word is written.

        Cost: writing a small file, and taking the mutex of each conversation that it is about.
        """
        return self._say(agent, other, {"permission": "allow", "reason": reason})

    def block(self, *, agent: str | None = None, other: str, reason: str | None = None) -> Agent:
        """Let two agents write to each other no more. What was said stays readable.

        Args:
            agent: The agent that blocks; None: the one that the store acts for.
            other, reason: As `allow` takes them.

        Raises:
            NotFound: There is no such agent.
            InvalidInput: Both are the same agent, or several have this name.
            Refused: The store acts for another agent.
            StoreBusy: A writer holds a conversation; the word is written.

        Cost: writing a small file, and taking the mutex of each conversation that it is about.
        """
        return self._say(agent, other, {"permission": "block", "reason": reason})

    def _say(self, agent: str | None, other: str, entry: Document | None) -> Agent:
        id = self._store.inner.required_agent(agent)
        is_gone = (
            entry is None and other in self._directory.profile(id).dm_entries
        )  # Perhaps the agent was forgotten.
        whom = other if is_gone else self._directory.resolve(other, id)
        if whom == id:
            raise InvalidInput(f"{id} needs no permission to write to itself")
        said = {} if entry is None else {whom: entry | {"at": timestamps.now()}}

        def change(document: Document) -> None:
            document["dm"] = {
                key: value for key, value in (document.get("dm") or {}).items() if key != whom
            } | said

        return self._edit(id, change, decides=True)

    def requests(self, agent: str | None = None) -> Sequence[Contact]:
        """List the agents that wanted to write to a restricted one and that it has neither allowed
        nor blocked.

        Args:
            agent: The restricted agent; None: the one that the store acts for.

        Raises NotFound, Refused, InvalidDocument. Cost: a look at each document.
        """
        me = self._directory.profile(self._people.registered_agent(agent))
        others = (
            other
            for other in self._directory.agents.ids()
            if other not in me.dm_entries and me.dm == "restricted"
        )
        asking = self._contacts(
            me, (other for other in others if me.id in self._people.requests_of(other))
        )
        return sorted(asking, key=lambda contact: contact.asked_at)

    def discover(self, agent: str | None = None) -> Sequence[Contact]:
        """List the agents that an agent finds, and whether the two may write to each other.

        Args:
            agent: The agent that looks; None: the one that the store acts for.

        Raises NotFound, Refused, InvalidDocument. Cost: a look at each document.
        """
        me = self._directory.profile(self._people.registered_agent(agent))
        return self._contacts(me, self._directory.agents_found_by(me.id))

    def _contacts(self, me: AgentProfile, others: Iterable[str]) -> Sequence[Contact]:
        from capsule.messaging.contacts import Agent, Contact

        presence = self._people.online()
        return [
            Contact(
                Agent.of(self._directory.agents.read(other), presence, is_known=False),
                dm_availability(me, self._directory.profile(other)),
                self._people.requests_of(other).get(me.id, {}).get("at") or "",
            )
            for other in others
        ]

    def set_status(self, agent: str | None, text: str, *, busy: bool | None = None) -> Agent:
        """Say in a few words what an agent does.

        Args:
            agent: The agent; None: the one that the store acts for.
            text: The words; empty: nothing.
            busy: Whether it is busy; None: as it is.

        Raises NotFound, InvalidInput, Refused. Cost: writing a small file.
        """
        return self._set(
            agent, statusMessage=text or None, **({} if busy is None else {"busy": busy})
        )

    def set_notifications(self, agent: str | None, on: bool) -> Agent:
        """Switch on or off that the files of an agent's project say what waits for it while it is
        away.

        Args:
            agent: The agent; None: the one that the store acts for.
            on: Whether they do.

        Raises NotFound, Refused. Cost: writing a small file.
        """
        return self._set(agent, notifications=on)

    def _set(self, agent: str | None, **fields: Any) -> Agent:
        return self._edit(
            self._store.inner.required_agent(agent), lambda document: document.update(fields)
        )

    def _edit(
        self, id: str, change: Callable[[Document], object], *, decides: bool = False
    ) -> Agent:
        """Change a document. If that decides on writes, wait for those that were let through
        before.

        It waits too if nothing changes: another process may have made the change, and wait still.
        """
        self._ensure_manages(self._documents.ensure_exists(id))
        self._documents.edit(id, change)
        if decides:
            self._directory.wait_for_running_writes(id)
        return self.get(id)

    def forget(
        self, id: str | None = None, *, agent: str | None = None, other: str | None = None
    ) -> None:
        """Forget an agent, or what one says of another.

        The document of an agent goes to the trash, with its folder and its doorbells on this
        machine, and its notices out of its project. Its conversations stay.

        Args:
            id: The agent to forget.
            agent: In place of it, the agent that takes back what it says; None: the one that the
                store acts for.
            other: The agent that it allowed or blocked.

        Raises NotFound, InvalidInput, and Refused if an agent wants to forget one. Cost: moving a
        small file; for an entry, as `policy`.
        """
        if other is not None:
            self._say(agent, other, None)
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
        """Announce that this instance serves an agent: it is online until the store is closed or
        the process ends.

        Args:
            agent: The agent; None: the one that the store acts for.

        Raises NotFound, Refused, StorageFailed. Cost: making a small file, the first time.
        """
        id = self._people.registered_agent(agent)
        self._store.inner.store_for(id).inner.object_of(StoreAgents).announce(id)

    def at(self, folder: str) -> Sequence[str]:
        """Look up the agents of a folder: those whose project it is, or the nearest one above it
        that is one's.

        Args:
            folder: The folder, without links in its path.

        Raises InvalidDocument. Cost: reading a small file for each agent.
        """
        by_project: dict[str, list[str]] = {}
        for id in self.names():
            by_project.setdefault(self._documents.read(id).get("projectPath") or "", []).append(id)
        above = accumulate(os.path.abspath(folder).split("/"), "{}/{}".format)
        return next(
            (by_project[each] for each in reversed(list(above)) if each and each in by_project), []
        )

    def list(self) -> list[Agent]:
        """List the agents, in the order of their ids: for an agent, itself and those that it finds.

        Raises InvalidDocument. Cost: a look at each document, and reading those that changed.
        """
        presence = self._people.online()
        return [self._agent(id, presence) for id in self.names()]

    def _agent(self, id: str, presence: dict[str, bool]) -> Agent:
        from capsule.messaging.contacts import Agent

        return Agent.of(
            self._documents.read(id), presence, is_known=self._store.agent in (None, id)
        )


class _BelongsToOtherProject(Exception):
    """The document is that of an agent of another project."""
