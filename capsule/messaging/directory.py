"""Who there is, as far as decisions depend on it: the profiles of agents, and which project sees which.

What must stay true: an answer is what the documents say now, by whatever process or person they were changed; asking
again costs a look at each document, and no reading. A document that can't be read grants nothing. The module decides
nothing: `capsule.messaging.policy` does.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import CapsuleError, NotFound
from capsule.messaging.conversations import direct_id
from capsule.messaging.documents import AgentDocuments, Document, ProjectDocuments
from capsule.messaging.policy import Object, Profile, State

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

_NOTHING = State()


class Directory:
    """The agents and the projects of a store.

    Args:
        engine: The engine of the whole store.
    """

    def __init__(self, engine: Engine) -> None:
        self.agents = AgentDocuments(engine)
        self.projects = ProjectDocuments(engine)
        self._engine = engine
        self._profiles: dict[str, tuple[Document, Profile]] = {}

    def profile(self, id: str) -> Profile:
        """The profile of an agent. Cost: an lstat, and reading a small file if it changed."""
        try:
            document = self.agents.read(id)
        except NotFound:
            return Profile(id)
        except CapsuleError:
            return Profile(id, dm="closed", discoverable="private")
        kept = self._profiles.get(id)
        if kept is None or kept[0] is not document:
            kept = self._profiles[id] = document, Profile.of(document)
        return kept[1]

    def sight(self, project: str) -> frozenset[str]:
        """The projects whose channels and agents the agents of a project see, its own included.

        A link counts while both projects have it, so that each of them can end it.

        Cost: as `profile`, for the project and for each that it has a link to.
        """
        there = (other for other, link in self._links(project).items() if _goes(link, "out"))
        return frozenset({project, *(other for other in there if _goes(self._links(other).get(project), "in"))})

    def _links(self, project: str) -> Document:
        try:
            links = self.projects.read(project).get("links")
        except CapsuleError:
            return {}
        return links if isinstance(links, dict) else {}

    def state(self, subject: str | None, object: Object | None = None, others: Iterable[str] = ()) -> State:
        """What a decision depends on besides the object.

        Args:
            subject: The agent that asks; None: the store's owner.
            object: The conversation that it is about; None: agents.
            others: The agents that it is about: who is looked for, or who is added.

        Cost: as `profile`, for each agent that counts, and as `sight` where that counts; else nothing.
        """
        ids = {*others}
        if subject is None or (object is not None and not ids and object.type not in ("direct", "channel")):
            return _NOTHING
        if object is not None and object.type == "direct":
            ids |= object.present
        profiles = {id: self.profile(id) for id in {subject, *ids}}
        sight = self.sight(profiles[subject].project) if object is None or object.type == "channel" else frozenset()
        hidden = (id for id in ids if object is None and profiles[id].discoverable == "private")
        met = frozenset(id for id in hidden if self._engine.exists(CONVERSATIONS, direct_id(subject, id)))
        return State(profiles, sight, met)


def _goes(link: Any, way: str) -> bool:
    """Whether a link of a project goes out of it, or comes in."""
    return isinstance(link, dict) and link.get("enabled") is not False and link.get("direction") in ("both", way)
