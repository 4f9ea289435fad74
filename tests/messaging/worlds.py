"""Random stores for the property that nothing leaks: projects, agents, and conversations of every
kind.

Each conversation has a word of its own, its canary, in its title, description, tags, messages,
topics and context, and in its name if it is a channel. `reads` is the rule in other words than the
program's.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from hypothesis import strategies as st

from capsule import Store
from capsule.format.documents import creation
from capsule.format.documents.agents import GLOBAL, direct_id, project_id
from capsule.format.documents.channels import Channel
from capsule.format.json.canonical import order_message
from capsule.messaging.directory import StoreAgents, new_project
from capsule.store.creation import write_new

EARLY, STAMP = "2025-01-01T00:00:00.000Z", "2026-01-01T00:00:00.000Z"
AGENTS = ("anna", "bob", "carl")
PATHS = ("/home/api", "/home/web")
PROJECTS = tuple(map(project_id, PATHS))
RIGHTS = dict.fromkeys(("canLeave", "canSend", "canInvite", "canManage"), True)
#: How a member came, and whether it is still there: the fields of its item.
STANDINGS: dict[str, dict[str, Any]] = {
    "made it": {"invitedBy": "self", **RIGHTS},
    "was invited": {"invitedBy": "zoe", "source": "manual"},
    "joined": {"invitedBy": "self", "source": "manual"},
    "by default": {"invitedBy": "system", "source": "default"},
    "left": {"invitedBy": "zoe", "leftAt": STAMP, "optedOutAt": STAMP},
    "was removed": {"invitedBy": "zoe", "leftAt": STAMP},
}


@dataclass(frozen=True)
class Room:
    """A conversation: its type (or "notes"), and how each agent stands there."""

    type: str
    standings: tuple[tuple[str, str], ...]
    scope: str = GLOBAL
    access: str = "open"
    fate: str = "stays"
    number: int = 0

    @property
    def canary(self) -> str:
        return f"canary{self.number}x"

    @property
    def channel(self) -> Channel | None:
        if self.type == "notes":
            return Channel("notes", GLOBAL, "private", owner=self.standings[0][0])
        return (
            Channel(self.canary, self.scope, self.access, True) if self.type == "channel" else None
        )

    @property
    def id(self) -> str:
        if self.type == "direct":
            return direct_id(*(agent for agent, _ in self.standings))
        return self.channel.id if self.channel is not None else f"group-{self.number}"


@dataclass(frozen=True)
class World:
    """A store: by agent its project and what it says; the links of the projects; and the
    conversations.
    """

    agents: tuple[tuple[str, dict[str, Any]], ...]
    links: tuple[tuple[str, str, str, bool], ...]
    rooms: tuple[Room, ...]

    def project(self, agent: str) -> str:
        return str(dict(self.agents)[agent]["project"])

    def sees(self, project: str, scope: str) -> bool:
        """Whether the agents of a project see a scope."""
        ways = [(one, other, way) for one, other, way, on in self.links if on]
        seen = {other for one, other, way in ways if one == project and way in ("out", "both")}
        seen |= {one for one, other, way in ways if other == project and way in ("in", "both")}
        return GLOBAL in (scope, project) or scope in {project, *seen}

    def reads(self, agent: str, room: Room) -> bool:
        """Whether an agent may read a conversation."""
        standing = dict(room.standings).get(agent, "")
        if room.type == "direct":
            return bool(standing)
        is_in = standing not in ("", "left", "was removed")
        if room.channel is None or room.type == "notes":
            return is_in
        reached = self.sees(self.project(agent), room.scope)
        return (is_in and (reached or standing == "was invited")) or (
            reached and room.access == "open"
        )

    def finds(self, agent: str, room: Room) -> bool:
        """Whether it may know that there is this conversation."""
        named = (
            room.type == "channel"
            and room.access == "members"
            and self.sees(self.project(agent), room.scope)
        )
        came_back = (
            dict(room.standings).get(agent) == "left"
            and room.type == "channel"
            and room.access != "private"
        )
        return self.reads(agent, room) or named or came_back

    def finds_agent(self, agent: str, other: str) -> bool:
        """Whether an agent finds another one."""
        says, own, project = (
            dict(self.agents)[other]["discoverable"],
            self.project(agent),
            self.project(other),
        )
        there = {room.id for room in self.rooms if room.fate != "deleted"}
        if says == "private":
            return direct_id(agent, other) in there
        return (
            says == "public"
            or own in (GLOBAL, project)
            or (project != GLOBAL and self.sees(own, project))
        )


@st.composite
def worlds(draw: st.DrawFn) -> World:
    def one(*values: Any) -> Any:
        return draw(st.sampled_from(values))

    def standings(*agents: str) -> tuple[tuple[str, str], ...]:
        return tuple((agent, one(*STANDINGS)) for agent in agents if one(True, True, False))

    entries = st.dictionaries(
        st.sampled_from(AGENTS), st.sampled_from(["allow", "block"]), max_size=2
    )
    agents = []
    for agent in AGENTS:
        says = {
            other: {"permission": entry} for other, entry in draw(entries).items() if other != agent
        }
        about = {
            "dmPolicy": one("open", "restricted", "closed"),
            "discoverable": one("public", "project", "private"),
        }
        about["description"] = f"about-{agent}"
        agents.append((agent, {"project": one(GLOBAL, *PROJECTS), "dm": says, **about}))
    links = ((*PROJECTS, one("both", "out", "in"), one(True, False)),) if one(True, False) else ()
    rooms: dict[str, Room] = {}
    for number in range(draw(st.integers(2, 6))):
        type, fate = (
            one("direct", "group", "channel", "channel", "notes"),
            one("stays", "stays", "edited", "deleted"),
        )
        order = draw(st.permutations(AGENTS))
        who = standings(*order)
        if type == "direct":
            who = tuple((agent, "joined") for agent in sorted(order[:2]))
        elif type == "notes":
            who = ((order[0], "made it"), *standings(*order[1:]))
        scope, access = one(GLOBAL, *PROJECTS), one("open", "members", "private")
        room = Room(type, who or (("zoe", "joined"),), scope, access, fate, number)
        rooms.setdefault(room.id, room)
    return World(tuple(agents), links, tuple(rooms.values()))


def build(world: World, store: Store, *, without: frozenset[str] = frozenset()) -> None:
    """Make a world in an empty store, as its owner.

    Args:
        world: The world.
        store: The store.
        without: Conversations that are not made.
    """
    projects = store.inner.object_of(StoreAgents).directory.projects
    for path in PATHS:
        projects.edit(project_id(path), lambda document: None, partial(new_project, path))
    for one, other, way, on in world.links:
        for here, there, goes in (
            (one, other, way),
            (other, one, {"out": "in", "in": "out"}.get(way, way)),
        ):
            link = {
                there: {"direction": goes, "enabled": on, "createdBy": None, "createdAt": STAMP}
            }
            projects.edit(here, lambda document, link=link: document.update(links=link))  # type: ignore[misc]
    for agent, about in world.agents:
        store.agents.register(agent)
        store.agents._documents.edit(agent, lambda document, about=about: document.update(about))  # type: ignore[misc]
    write_new(
        store.inner,
        creation.new_capsule("plan", "Plan", STAMP, messages=[_message("plan", "a plan")]),
    )
    for room in world.rooms:
        if room.id in without:
            continue
        word, channel = room.canary, room.channel
        about = {
            "description": f"about {word}",
            "participants": [
                {"id": agent, "joinedAt": EARLY} | STANDINGS[how] for agent, how in room.standings
            ],
            **({} if channel is None else {"channel": channel.as_json()}),
        }
        type = "channel" if room.type == "notes" else room.type
        messages = [
            _message(room.id, f"first {word}", topic=f"topic-{word}", metadata={"tags": [word]})
        ]
        document = creation.new_capsule(
            *(room.id, f"Team {word}", STAMP),
            type=type,
            messages=messages,
            tags=[word],
            metadata=about,
        )
        write_new(store.inner, document)
        store.context.set(room.id, {"fullContext": f"context {word}", "metadata": {}})
        if room.fate == "edited":
            store.edits.message(room.id, f"{room.id}-first", f"first again {word}")
        elif room.fate == "deleted":
            store.changes()  # The index has to see a conversation before it goes.
            store.delete(room.id)


def _message(id: str, content: str, **fields: Any) -> dict[str, Any]:
    fields = {
        "role": "user",
        "content": content,
        "timestamp": STAMP,
        "id": f"{id}-first",
        "from": "zoe",
        **fields,
    }
    return order_message(fields)
