"""Open the store for the commands of rooms, with the objects that the rooms add to it, and complete
the names of agents, channels and projects. A room is a part that can be left out (`capsule.rooms`).
The use of an object of a missing room raises Refused.

What must stay true: the commands of the core don't import this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from capsule_cli.shared.options import completion_of, usage_error
from capsule_cli.shared.output import global_options
from capsule_cli.shared.stores import agent_name, open_store

if TYPE_CHECKING:
    from capsule import Store


def open_store_as(agent: str | None) -> AbstractContextManager[Store]:
    """Open the store for an agent. None: for its owner."""
    from capsule import Store

    return open_store(Store, agent)


def open_full_store() -> AbstractContextManager[Store]:
    """Open the store for the agent of the option, else for its owner."""
    return open_store_as(global_options.as_)


def open_named_agent_store() -> AbstractContextManager[Store]:
    """Open the store for the agent of the option or the environment, else for its owner."""
    return open_store_as(agent_name())


@contextmanager
def open_agent_store() -> Iterator[tuple[Store, str]]:
    """Open the store for the agent that the command acts for, and yield it with the agent's id.

    The agent is the one of the option or the environment, else the only agent that is registered
    for the current folder.

    Raises:
        typer.BadParameter: No agent is named, and not exactly one is registered for the folder.
    """
    with open_agent_or_owner_store() as (store, agent):
        if agent is None:
            candidates = store.agents.at(os.path.realpath(os.getcwd()))
            reason = "no agent works in this folder"
            if candidates:
                reason = f"{' and '.join(candidates)} work in this folder"
            remedy = (
                "name it with --as AGENT or CAPSULE_AGENT, or register one with: capsule agent "
                "register"
            )
            raise usage_error(f"which agent is this? {reason}; {remedy}", "--as")
        yield store, agent


@contextmanager
def open_agent_or_owner_store() -> Iterator[tuple[Store, str | None]]:
    """Open the store for the agent that the command acts for, as `open_agent_store` does, and yield
    it with the agent's id. Without an agent, yield the store of the owner and None.
    """
    with open_named_agent_store() as store:
        if store.agent is not None:
            yield store, store.agent
        elif len(agents := store.agents.at(os.path.realpath(os.getcwd()))) == 1:
            with store.beside(keep_locks=False, agent=agents[0]) as agent_store:
                yield agent_store, agent_store.agent
        else:
            yield store, None


# -- Completion ------------------------------------------------------------------------------------

complete_agent = completion_of(
    open_named_agent_store,
    lambda store: store.agents.list(),
    lambda agent: (agent.id, agent.status_message or agent.project_path or ""),
)
complete_channel = completion_of(
    open_named_agent_store,
    lambda store: store.channels.list(),
    lambda listed: (f"{listed.channel.name}@{listed.channel.scope}", listed.description),
)
complete_project = completion_of(
    open_named_agent_store,
    lambda store: store.projects.list(),
    lambda project: (project.id, project.path or ""),
)
