"""Destinations: where an agent may send by itself, by name.

What must stay true: the map of names is the permission. It stands in the registry, and a session's
inbound file has a copy, which is renewed before anything is delivered. Whatever writes for a
session stays within `reach`. No file, no clock.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import count

from capsule.errors import NotFound
from capsule.ids import slug
from capsule.sessions.events import Event, Route, destinations
from capsule.sessions.folds import Folds
from capsule.sessions.registry import AgentGroup, SessionRow, State

#: The channel of the conversations of the store.
CONVERSATIONS = "conversations"


def allow(group: AgentGroup, route: Route, title: str = "") -> tuple[AgentGroup, str]:
    """Let an agent send to a place.

    Args:
        group: The agent.
        route: The place, and a thread there if need be.
        title: What people call it; empty: as the place.

    Returns:
        The agent with the destination, and its name: that which it had, if it was allowed before,
        else one made of the title; one that is taken gets `-2`, then `-3`.
    """
    for name, entry in group.destinations.items():
        if Route.of(entry) == route:
            return group, name
    plain = slug(title or route.place) or "unnamed"
    names = (plain if number == 1 else f"{plain}-{number}" for number in count(1))
    name = next(name for name in names if name not in group.destinations)
    entry = route.written() | {"title": title or route.place}
    return replace(group, destinations={**group.destinations, name: entry}), name


def forbid(group: AgentGroup, name: str) -> AgentGroup:
    """Take a destination away. Raises NotFound, which lists those there are."""
    if name not in group.destinations:
        names = ", ".join(sorted(group.destinations)) or "none yet"
        raise NotFound(f"{group.name} has no destination {name[:80]!r}; it has: {names}", id=name)
    return replace(
        group, destinations={key: entry for key, entry in group.destinations.items() if key != name}
    )


def of(folds: Folds, state: State, row: SessionRow) -> list[Event]:
    """The event that gives a session the map of its agent; nothing if it has that. An entry without
    a place is left.
    """
    group = state.agents.get(row.agent)
    named = {
        name: dict(entry)
        for name, entry in (group.destinations if group else {}).items()
        if Route.of(entry)
    }
    return [] if named == folds.inbound.destinations else [destinations(destinations=named)]


def reach(folds: Folds) -> frozenset[str]:
    """The conversations that an agent may write to in a session: its destinations, and where the
    messages came from that it answers now, or the last one that woke it."""
    there, claims = folds.inbound.messages, folds.outbound.claims
    answered = (
        there[id].route for id in claims if id in there and folds.status(id) == "processing"
    )
    routes = [*map(Route.of, folds.inbound.destinations.values()), folds.inbound.route, *answered]
    return frozenset(route.place for route in routes if route and route.channel == CONVERSATIONS)
