"""How the commands of rooms get their store, which has what the rooms add to it.

What must stay true: the commands of the core use nothing of this.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import usage_error
from capsule_cli.shared.stores import agent_name, open_store

if TYPE_CHECKING:
    from capsule import Store


def open_store_as(agent: str | None) -> AbstractContextManager[Store]:
    """The store for an agent (None: for its owner), as `open_store` gives it."""
    from capsule import Store

    return open_store(Store, agent)


def open_full_store() -> AbstractContextManager[Store]:
    """The store for the agent of the option, else for its owner, as `open_store` gives it."""
    return open_store_as(global_options.as_)


def open_named_agent_store() -> AbstractContextManager[Store]:
    """The store for the agent of the option or the environment, else for its owner, as `open_store`
    gives it.
    """
    return open_store_as(agent_name())


@contextmanager
def open_agent_store() -> Iterator[tuple[Store, str]]:
    """The store of the agent that the command acts for, open while the body runs, and the agent's
    id.

    Raises:
        typer.BadParameter: Neither the option nor the environment names it, nor is one agent
            registered for the folder.
    """
    with open_agent_or_owner_store() as (store, agent):
        if agent is None:
            agents = store.agents.at(os.path.realpath(os.getcwd()))
            who = (
                f"{' and '.join(agents)} work in this folder"
                if agents
                else "no agent works in this folder"
            )
            ways = (
                "name it with --as AGENT or CAPSULE_AGENT, or register one with: capsule agent "
                "register"
            )
            raise usage_error(f"which agent is this? {who}; {ways}", "--as")
        yield store, agent


@contextmanager
def open_agent_or_owner_store() -> Iterator[tuple[Store, str | None]]:
    """The store of the agent that the command acts for, and its id; of the owner, and None, where
    there is no agent.
    """
    with open_named_agent_store() as store:
        if store.agent is not None:
            yield store, store.agent
        elif len(agents := store.agents.at(os.path.realpath(os.getcwd()))) == 1:
            with store.beside(keep_locks=False, agent=agents[0]) as mine:
                yield mine, mine.agent
        else:
            yield store, None
