"""Who an agent is: it is registered, looked up by whoever acts as it, and moved.

What must stay true: one rule (`meant`) says as whom somebody acts, at every door; registering again
changes only what is given, and moves nothing; the folder of a project always gives the same id, and
no two projects share an agent. Only a person says in which folder an agent is told what waits for
it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from capsule.errors import InvalidInput, Remedy
from capsule.format.documents.agents import (
    GLOBAL,
    MAX_AGENT_ID,
    check_agent_id,
    project_id,
    project_of,
)
from capsule.ids import folder_ids
from capsule.messaging.people.directory import meant
from capsule.messaging.people.documents import Document, new_project, new_record
from capsule.messaging.people.people import People
from capsule.rules.policy import Object, ensure, may

if TYPE_CHECKING:
    from capsule.messaging.people.contacts import Agent
    from capsule.store.store import CoreStore

_log = logging.getLogger("capsule")


class Registration:
    """How agents come to be. A base of `Agents`."""

    #: Looks up an agent, and the agents of a folder.
    get: Callable[[str], Agent]
    at: Callable[[str], Sequence[str]]

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._people = store.inner.part(People)
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
            Refused, StorageFailed: The system did not permit it.

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
            Refused, StorageFailed: The system did not permit it, or the store acts for another
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
        id = meant(plain, where["project"], agents)
        suffixed = f"{plain[: MAX_AGENT_ID - 7].rstrip('-')}-{where['project'][-6:]}"
        for each in (plain, suffixed) if id is None else (id,):
            if self._register(each, plain, about, where):
                self._directory.projects.edit(
                    where["project"], lambda _: None, partial(new_project, path)
                )
                return each
        if id is not None:
            raise InvalidInput(
                f"agent {id} is in no project, and stays there", remedy=Remedy("move", id)
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
        self._ensure_manages(self._store.inner.subject(id))

        def change(document: Document) -> None:
            project = project_of(document)
            if where is not None and project != where["project"]:
                raise _OfAnother
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
        except _OfAnother:
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
        ensure(may(self._store.agent, "move", Object(about.id, "agent")), about.id)
        where = {"project": project_id(path), "projectPath": path}
        there = [
            each for each in self._directory.profiles().values() if each.project == where["project"]
        ]
        if any(
            each.id != about.id and {about.id, about.name} & {each.id, each.name} for each in there
        ):
            raise InvalidInput(f"the project {path} has an agent of the name {about.name} already")
        self._documents.edit(about.id, lambda document: document.update(where))
        self._directory.projects.edit(where["project"], lambda _: None, partial(new_project, path))
        self._set_home(about.id, path)
        self._directory.drain(about.id)
        return self._with_defaults(about.id, ())

    def _ensure_manages(self, id: str) -> None:
        ensure(
            may(
                self._store.agent,
                "manage",
                Object(id, "agent"),
                self._store.inner.state_of(None, ()),
            ),
            id,
        )

    def _set_home(self, id: str, path: str) -> None:
        """Note the folder where a person says that an agent works here: what waits for it is told
        there.
        """
        if self._documents.home(id) not in (None, path):
            from capsule.messaging.notices import withdraw

            withdraw(self._store, id)
        self._documents.set_home(id, path)

    def _with_defaults(self, id: str, exclude: Iterable[str]) -> Agent:
        from capsule.messaging.channels import Channels

        self._store.inner.part(Channels).join_defaults(id, exclude)
        return self.get(id)


class _OfAnother(Exception):
    """The document is that of an agent of another project."""
