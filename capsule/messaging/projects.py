"""The projects of a store (folders that agents work in), and the links between them, by which the
agents of one project see those of another.

What must stay true: only the store's owner makes and ends links. A link is in the documents of both
projects, and counts while both have it. When the end of a link is acknowledged, no write that it
permitted is still running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.documents.head import json_name
from capsule.messaging.directory import StoreAgents
from capsule.rules.consent import in_scope
from capsule.rules.policy import PolicyTarget, decide, raise_if_denied

if TYPE_CHECKING:
    from capsule.messaging.directory import Document
    from capsule.store.store import CoreStore


#: The direction of a link at its other end.
_OPPOSITE = {"both": "both", "out": "in", "in": "out"}


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that agents work in.

    Attributes:
        id: Its id.
        name: Its name, for people.
        path: The folder. None: unknown.
        created_at: When its first agent was registered.
        last_active: The time when an agent of it was last registered, to a minute.
        links: The links by the id of the other project: `direction` (`out`: the agents of this
            project see the other one, `in` or `both`), `enabled`, `createdBy` and `createdAt`. A
            link counts while both projects have it.
        metadata: Fields of other programs.
    """

    id: str
    name: str
    path: str | None
    created_at: str
    last_active: str
    links: Mapping[str, Mapping[str, Any]]
    metadata: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        """The project as `--json` prints it."""
        return {json_name(name): value for name, value in asdict(self).items()}


class Projects:
    """The projects of a store, and the links between them."""

    def __init__(self, store: CoreStore) -> None:
        self._store = store
        self._directory = store.inner.object_of(StoreAgents).directory

    def list(self) -> Sequence[Project]:
        """List the projects, in the order of their ids. For an agent: those that it sees.

        Raises InvalidDocument. Cost: a look at each document, and reading those that changed.
        """
        return [self._project(id) for id in self._visible_ids()]

    def _visible_ids(self) -> Sequence[str]:
        ids = self._directory.projects.ids()
        reader = self._store.agent
        if reader is None:
            return ids
        profile = self._directory.profile(reader)
        visible_projects = self._directory.visible_projects(profile.project)
        return [id for id in ids if in_scope(profile, id, visible_projects)]

    def get(self, project: str) -> Project:
        """Look up a project.

        Args:
            project: Its id, or its name.

        Raises:
            NotFound: There is no such project, or the agent does not see it.
            InvalidInput: Several have this name.

        Cost: as `list`.
        """
        return self._project(self._directory.resolve_project(project, self._visible_ids()))

    def _project(self, id: str) -> Project:
        document = self._directory.projects.read(id)
        links = dict(document.get("links") or {})
        if self._store.agent is not None:
            links = {other: links[other] for other in self._visible_ids() if other in links}
        return Project(
            id=id,
            name=document.get("name") or id,
            path=document.get("path"),
            created_at=document.get("createdAt") or "",
            last_active=document.get("lastActive") or "",
            links=links,
            metadata=document.get("metadata") or {},
        )

    def link(self, a: str, b: str, *, direction: str = "both") -> Project:
        """Let the agents of a project see another project: its agents and its channels. It replaces
        an earlier link.

        Args:
            a, b: The projects, by id or name.
            direction: `out`: the agents of `a` see `b`. `in`: those of `b` see `a`. `both`: both.

        Returns:
            The project `a`.

        Raises:
            NotFound: The project does not exist.
            InvalidInput: The direction can't be accepted, or both are the same project.
            Refused: The store acts for an agent.

        Cost: writing two small files, and as `agents.policy`.
        """
        if direction not in _OPPOSITE:
            raise InvalidInput(
                f"{direction[:40]!r} is not a direction; it is one of {', '.join(_OPPOSITE)}"
            )
        fields: Document = {
            "enabled": True,
            "createdBy": self._store.inner.instance_locks.identity.user,
            "createdAt": timestamps.now(),
        }
        link = {"direction": direction} | fields
        reverse_link = {"direction": _OPPOSITE[direction]} | fields
        return self._write_link(a, b, link, reverse_link)

    def unlink(self, a: str, b: str) -> Project:
        """End the link of two projects.

        Args:
            a, b: The projects, by id or name.

        Raises NotFound, InvalidInput, Refused. Cost: as `link`.
        """
        return self._write_link(a, b, None, None)

    def _write_link(
        self, a: str, b: str, link: Document | None, reverse_link: Document | None
    ) -> Project:
        """Write the link of `a` to `b`, and the one of `b` to `a`. None removes it."""
        raise_if_denied(decide(self._store.agent, "link", PolicyTarget(a, "project")), a)
        first = self._directory.resolve_project(a)
        second = self._directory.resolve_project(b)
        if first == second:
            raise InvalidInput(f"{first} can be linked to another project, not to itself")
        self._directory.projects.edit(first, partial(_set_link, second, link))
        self._directory.projects.edit(second, partial(_set_link, first, reverse_link))
        self._directory.wait_for_running_writes()
        return self._project(first)


def _set_link(other: str, link: Document | None, document: Document) -> None:
    """Set the link to another project in the document of a project. None removes it."""
    links = dict(document.get("links") or {})
    links.pop(other, None)
    if link is not None:
        links[other] = link
    document["links"] = links
