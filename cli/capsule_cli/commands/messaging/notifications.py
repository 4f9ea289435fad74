"""`agent notify`: the block in CLAUDE.md and AGENTS.md that says how much mail waits for an agent
that is away.
"""

from __future__ import annotations

from typing import Any

from capsule_cli.public import acting, named
from capsule_cli.shared.output import answer, listing, on_or_off


def on() -> None:
    """Switch the block on, so that it is written while the agent is away."""
    _switch(True)


def off() -> None:
    """Switch the block off, and remove an existing one."""
    _switch(False)


def status() -> None:
    """List the agents with their blocks: on or off, and the files that have one. With --as: only
    this agent.
    """
    from capsule.messaging import notices

    with named() as store:
        agents = store.agents.list() if store.agent is None else [store.agents.get(store.agent)]
        blocks = [(agent, notices.files_with_block(store, agent.id)) for agent in agents]
    value = [
        {"agent": agent.id, "notifications": agent.notifications, "files": files}
        for agent, files in blocks
    ]
    rows = [(agent.id, on_or_off(agent.notifications), ", ".join(files)) for agent, files in blocks]
    listing(value, ("id", "notifications", "files"), rows, "nobody is registered", last="files")


def clean() -> None:
    """Remove the blocks of all agents. With --as: of this agent. The next message to an agent
    brings its block back.
    """
    from capsule.messaging import notices

    with named() as store:
        agents = (
            [agent.id for agent in store.agents.list()] if store.agent is None else [store.agent]
        )
        files = [path for agent in agents for path in notices.remove_blocks(store, agent)]
    answer(
        {"cleaned": files},
        "\n".join(f"{path}: the block is gone" for path in files) or "there was no block",
    )


def _switch(is_on: bool) -> None:
    from capsule.messaging import notices

    with acting() as (store, agent):
        store.agents.set_notifications(agent, is_on)
        notices.write(store, agent)
        files = notices.files_with_block(store, agent)
    value: dict[str, Any] = {"agent": agent, "notifications": is_on, "files": files}
    answer(value, f"{agent}: notifications {on_or_off(is_on)}")
