"""What a store offers of sessions: who answers where, what became of a message, and a person's word about both.

What must stay true: this is the owner's; a store that acts for an agent refuses it, as an agent has what its tools give
it. How sessions are set up stands in the registry. A command runs only if a person set or approved it on this machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput, NotFound, Refused
from capsule.sessions.registry import AgentGroup, Registry, SessionRow, State, Wiring

if TYPE_CHECKING:
    from capsule.sessions.adapters.webhook import Webhooks
    from capsule.store.store import Store

#: The channel of the conversations of the store.
CONVERSATIONS = "conversations"


class Sessions:
    """Workers that messages wake: how they are set up, and what they do. For the store's owner only."""

    def __init__(self, store: Store) -> None:
        if store.agent is not None:
            raise Refused(f"sessions are for the store's owner to see, and not for {store.agent}", path="")
        self._store = store
        self._registry = Registry(store.engine)

    @property
    def webhooks(self) -> Webhooks:
        """The webhooks of this machine, with their secrets."""
        from capsule.sessions.adapters.webhook import Webhooks

        return Webhooks(self._store.engine)

    # -- Sessions --------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """What the registry holds: agents, places, wirings, sessions and questions.

        Raises InvalidDocument. Cost: a look, and reading a file if it changed.
        """
        return self._registry.read()

    def list(self, agent: str | None = None) -> Sequence[SessionRow]:
        """List the sessions, the last active first.

        Args:
            agent: Only those of this agent.

        Raises InvalidDocument. Cost: as `state`.
        """
        rows = [row for row in self.state().sessions.values() if agent in (None, row.agent)]
        return sorted(rows, key=lambda row: row.last_active, reverse=True)

    # -- Who answers -----------------------------------------------------------------------------------------------

    def agent(self, name: str) -> AgentGroup:
        """How an agent answers.

        Args:
            name: Its id, its name, or `name@project`.

        Raises NotFound, InvalidInput. Cost: as `state`, and a look at each agent for a name.
        """
        agents, id = self.state().agents, self._store.agents.identity(name)
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
        """Say how an agent answers. What is not given stays. An agent that does not exist is registered.

        Args:
            name: The agent, as in `agent`.
            command: The words of its command, which is approved with that.
            folder: Where the command runs.
            provider: The program behind it, for people.
            settings: What changes of `idleS`, `limitS` (seconds), `maxHops` and `timeZone`.

        Raises InvalidInput, InvalidDocument. Cost: writing some small files.
        """
        id = self._store.agents.identity(name)
        if id not in self._store.agents.names():
            self._store.agents.register(id)
        given: dict[str, Any] = {"command": command and tuple(command), "folder": folder, "provider": provider}
        given = {field: value for field, value in given.items() if value is not None}

        def change(state: State) -> State:
            group = state.agents.get(id, AgentGroup(id))
            return state.put(replace(group, **given, settings={**group.settings, **(settings or {})}))

        is_known = command is not None or self.is_approved(self.state().agents.get(id, AgentGroup(id)))
        group = self._registry.edit(change).agents[id]
        if is_known:
            self._registry.approve(group)
        return group

    def is_approved(self, group: AgentGroup) -> bool:
        """Whether the command of an agent may run on this machine. Args: `group`, as `agent` gives it.

        Raises nothing. Cost: reading a small file.
        """
        return self._registry.is_approved(group)

    def approve(self, group: AgentGroup) -> None:
        """Let the command of an agent run on this machine: these very words, in this folder.

        Args:
            group: The agent, as it was shown to the person who approves.

        Raises StorageFailed. Cost: writing a small file.
        """
        self._registry.approve(group)

    # -- Where -----------------------------------------------------------------------------------------------------

    def wire(self, place: str, agent: str, **how: Any) -> Wiring:
        """Let an agent answer in a place; an earlier wiring of the two is replaced.

        Args:
            place: A conversation, or `channel:place`.
            agent: The agent, as in `agent`.
            how: The other fields of a `Wiring`.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        wiring = Wiring(*self._place(place), self.agent(agent).name, **how)
        return self._registry.edit(lambda state: state.put(wiring)).wirings[wiring.id]

    def unwire(self, place: str, agent: str) -> None:
        """Remove the wiring of an agent in a place.

        Args:
            place, agent: As `wire` takes them.

        Raises NotFound, InvalidInput. Cost: writing a small file.
        """
        wiring = Wiring(*self._place(place), self._store.agents.identity(agent))
        if wiring.id not in self.state().wirings:
            raise NotFound(f"{wiring.agent} is not wired to {place}", id=wiring.id)
        self._registry.edit(lambda state: state.without(wiring))

    def _place(self, text: str) -> tuple[str, str]:
        """The channel and the place in a text."""
        channel, colon, place = text.partition(":")
        if not colon:
            return CONVERSATIONS, self._store.resolve(text)
        if not channel or not place:
            raise InvalidInput(f"{text[:80]!r} is no place: name a conversation, or write CHANNEL:PLACE")
        return channel, place
