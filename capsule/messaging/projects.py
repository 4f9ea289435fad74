"""The projects of a store (folders that agents work in), and the links between them, by which the
agents of one project see those of another.

What must stay true: only the store's owner makes and ends links. A link is in the documents of both
projects, and counts while both have it. When the end of a link is acknowledged, no write that it
permitted is still running.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
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


#: How a link is called at its other end.
_OPPOSITE = {"both": "both", "out": "in", "in": "out"}


@dataclass(frozen=True, slots=True)
class Project:
    """A folder that agents work in.

    Attributes:
        id: Its id.
        name: Its name, for people.
        path: The folder; None: unknown.
        created_at: When its first agent was registered.
        last_active: The time when an agent of it was last registered, to a minute.
        links: By the id of another project: `direction` (`out`: the agents of this one see that
            one, `in`, `both`), `enabled`, `createdBy` and `createdAt`. A link counts while both
            projects have it.
        metadata: What programs keep there.
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
        """List the projects, in the order of their ids: for an agent, those in its reach.

        Raises InvalidDocument. Cost: a look at each document, and reading those that changed.
        """
        return [self._project(id) for id in self._reached()]

    def _reached(self) -> Sequence[str]:
        ids, me = self._directory.projects.ids(), self._store.agent
        if me is None:
            return ids
        about = self._directory.profile(me)
        sight = self._directory.visible_projects(about.project)
        return [id for id in ids if in_scope(about, id, sight)]

    def get(self, project: str) -> Project:
        """Look up a project.

        Args:
            project: Its id, or its name.

        Raises:
            NotFound: There is no such project, or it is out of an agent's reach.
            InvalidInput: Several have this name.

        Cost: as `list`.
        """
        return self._project(self._directory.resolve_project(project, self._reached()))

    def _project(self, id: str) -> Project:
        document = self._directory.projects.read(id)
        links = document.get("links") or {}
        if self._store.agent is not None:
            links = {other: links[other] for other in self._reached() if other in links}
        return Project(
            id,
            document.get("name") or id,
            document.get("path"),
            document.get("createdAt") or "",
            document.get("lastActive") or "",
            dict(links),
            document.get("metadata") or {},
        )

    def link(self, a: str, b: str, *, direction: str = "both") -> Project:
        """Let the agents of a project see another project: its agents and its channels. It replaces
        an earlier link.

        Args:
            a, b: The projects, by id or name.
            direction: `out`: the agents of `a` see `b`; `in`: those of `b` see `a`; `both`: each
                the other.

        Returns:
            The project `a`.

        Raises:
            NotFound: There is no such project.
            InvalidInput: The direction can't be accepted, or it is one project.
            Refused: An agent asks.

        Cost: writing two small files, and as `agents.policy`.
        """
        if direction not in _OPPOSITE:
            raise InvalidInput(
                f"{direction[:40]!r} is not a direction; it is one of {', '.join(_OPPOSITE)}"
            )
        made = {
            "enabled": True,
            "createdBy": self._store.inner.instance_locks.identity.user,
            "createdAt": timestamps.now(),
        }
        return self._set(
            a, b, {"direction": direction} | made, {"direction": _OPPOSITE[direction]} | made
        )

    def unlink(self, a: str, b: str) -> Project:
        """End the link of two projects.

        Args:
            a, b: The projects, by id or name.

        Raises NotFound, InvalidInput, Refused. Cost: as `link`.
        """
        return self._set(a, b, None, None)

    def _set(self, a: str, b: str, there: Document | None, back: Document | None) -> Project:
        raise_if_denied(decide(self._store.agent, "link", PolicyTarget(a, "project")), a)
        first, second = self._directory.resolve_project(a), self._directory.resolve_project(b)
        if first == second:
            raise InvalidInput(f"{first} can be linked to another project, not to itself")
        for id, to, link in ((first, second, there), (second, first, back)):

            def change(document: Document, to: str = to, link: Document | None = link) -> None:
                links = {
                    key: value for key, value in (document.get("links") or {}).items() if key != to
                }
                document["links"] = links | ({} if link is None else {to: link})

            self._directory.projects.edit(id, change)
        self._directory.wait_for_running_writes()
        return self._project(first)
