"""Who answers where: what a store's owner says of the agents that workers answer for.

What must stay true: this is the owner's; a store that acts for an agent refuses it, as an agent has
what its tools give it. What is set up stands in the registry. A command runs only if a person set
or approved it on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.errors import NotFound, Refused
from capsule.messaging.people.agents import Agents
from capsule.messaging.people.people import People
from capsule.sessions import events
from capsule.sessions.places import ensure_heard, place_of
from capsule.sessions.registry import AgentGroup, Registry, State, Wiring
from capsule.sessions.rules import destinations

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


class Setup:
    """How sessions are set up."""

    registry: Registry

    def __init__(self, store: CoreStore) -> None:
        if store.agent is not None:
            raise Refused(
                f"sessions are for the store's owner to see, and not for {store.agent}", path=""
            )
        self._store = store
        self._engine = store.engine
        self.registry = Registry(store.engine)

    # -- Who answers -------------------------------------------------------------------------------

    def agent(self, name: str) -> AgentGroup:
        """How an agent answers.

        Args:
            name: Its id, its name, or `name@project`.

        Raises NotFound, InvalidInput. Cost: reading the registry, and a look at each agent for a
        name.
        """
        agents = self.registry.read().agents
        id = (
            name if name in agents else self._store.inner.part(People).directory.resolve(name, None)
        )
        if id not in agents:
            raise NotFound(f"no command answers for {id[:80]!r}", id=id)
        return agents[id]

    def set_agent(
        self,
        name: str,
        command: Sequence[str] | None = None,
        *,
        folder: str | None = None,
        provider: str | None = None,
        settings: Mapping[str, Any] | None = None,
    ) -> AgentGroup:
        """Say how an agent answers. What is not given stays. An agent that does not exist is
        registered.

        Args:
            name: The agent, as in `agent`.
            command: The words of its command, which is approved with that.
            folder: Where the command runs.
            provider: The program behind it, for people.
            settings: What changes of `idleS`, `limitS` (seconds), `maxHops` and `timeZone`.

        Raises InvalidInput, InvalidDocument. Cost: writing some small files.
        """
        agents = self._store.inner.part(Agents)
        id = agents.identity(name)
        if id not in agents.names():
            agents.register(id)
        given: dict[str, Any] = {
            "command": command and tuple(command),
            "folder": folder,
            "provider": provider,
        }
        given = {field: value for field, value in given.items() if value is not None}

        is_known = self.registry.is_approved(self.registry.read().agents.get(id, AgentGroup(id)))
        if (
            command is not None and not is_known
        ):  # A folder that a clone brought is not approved with it.
            given.setdefault("folder", "")

        def change(state: State) -> State:
            group = state.agents.get(id, AgentGroup(id))
            return state.put(
                replace(group, **given, settings={**group.settings, **(settings or {})})
            )

        group = self.registry.edit(change).agents[id]
        if command is not None or is_known:
            self.registry.approve(group)
        return group

    # -- Where -------------------------------------------------------------------------------------

    def wire(self, place: str, agent: str, **how: Any) -> Wiring:
        """Let an agent answer in a place; an earlier wiring of the two is replaced.

        Args:
            place: A conversation or a channel that the agent takes part in, another agent (the
                direct of the two), or `channel:place`.
            agent: The agent, as in `agent`.
            how: The other fields of a `Wiring`.

        Raises NotFound. InvalidInput: also if the agent gets no messages there. Cost: writing a
        small file.
        """
        id = self.agent(agent).name
        channel, there, _ = place_of(self._store, place, id)
        ensure_heard(self._store, channel, there, id)
        wiring = Wiring(channel, there, id, **how)
        return self.registry.edit(lambda state: state.put(wiring)).wirings[wiring.id]

    def unwire(self, place: str, agent: str) -> None:
        """Remove the wiring of an agent in a place.

        Args:
            place, agent: As `wire` takes them.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        id = self.agent(agent).name
        wiring = Wiring(*place_of(self._store, place, id)[:2], id)
        if wiring.id not in self.registry.read().wirings:
            raise NotFound(f"{wiring.agent} is not wired to {place}", id=wiring.id)
        self.registry.edit(lambda state: state.without(wiring))

    def allow(self, agent: str, place: str, *, title: str | None = None) -> str:
        """Let an agent send to a place by itself.

        Args:
            agent: The agent, as in `agent`.
            place: As `wire` takes it.
            title: What the agent is to call it; None: as people do.

        Returns:
            The name by which the agent calls it, made of the title.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        id, name = self.agent(agent).name, ""
        channel, there, called = place_of(self._store, place, id)

        def change(state: State) -> State:
            nonlocal name
            group, name = destinations.allow(
                state.agents[id], events.Route(channel, there), title or called
            )
            return state.put(group)

        self.registry.edit(change)
        return name

    def forbid(self, agent: str, name: str) -> None:
        """Let an agent send to a place no more; it may still answer what comes from there.

        Args:
            agent: The agent, as in `agent`.
            name: The name by which it calls the place; or the place, as `wire` takes it.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        group = self.agent(agent)
        id = group.name
        if name not in group.destinations:
            with suppress(NotFound):
                route = events.Route(*place_of(self._store, name, id)[:2])
                name = next(
                    (
                        key
                        for key, each in group.destinations.items()
                        if events.Route.of(each) == route
                    ),
                    name,
                )
        self.registry.edit(lambda state: state.put(destinations.forbid(state.agents[id], name)))
