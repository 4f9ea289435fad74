"""`agent`: who there is to talk to, and as whom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

from capsule_cli.completion import complete_agent
from capsule_cli.public import acting, named, store_as, store_of
from capsule_cli.shared.inputs import ensure_agreed
from capsule_cli.shared.opening import agent_named
from capsule_cli.shared.options import Agent, Yes, argument, names_in, option, refuse
from capsule_cli.shared.output import answer
from capsule_cli.shared.passing import Rows, passing

if TYPE_CHECKING:
    import capsule

does = passing(acting)

Reason = Annotated[
    str | None, option("--reason TEXT", "Keep this reason with it, for people.", ...)
]
_BUSY = "Mark the agent as busy, or as not busy. Default: as before."


def register(
    project: str | None = option(
        "--project DIR",
        "The folder that the agent works in. Default: this one; with --as, its project, if any.",
    ),
    name: str | None = option("--name NAME", "Give it a name to show."),
    description: str | None = option("--description TEXT", "Describe its purpose."),
    stay_out: list[str] | None = option(
        "--stay-out CHANNELS",
        "Never join these default channels: names with commas between them, or *.",
    ),
) -> None:
    """Register an agent and print its id, which is given by --as or made from the folder's name.

    If repeated, it changes only the given values, and does not move the agent: see `agent set`. If
    an agent of another project has the id of --as, the new agent gets this name, and an id with a
    suffix.
    """
    id = agent_named()
    folder = project if project is not None or id is not None else os.getcwd()
    refuse(
        folder is not None and not os.path.isdir(folder), f"{folder} is no directory", "--project"
    )
    path = folder and os.path.realpath(folder)
    with store_as(
        None if path else id
    ) as store:  # In another project, the name is that of another agent.
        agent = store.agents.register(
            store.agent or id, path, name=name, description=description, exclude=names_in(stay_out)
        )
    answer(agent.as_json(), agent.id)


def _state(agent: capsule.Agent) -> str:
    return "listening" if agent.listening else agent.status if agent.online else ""


list_ = does(
    "List the agents, and whether each is online (a program serves it now) or "
    "listening (it waits for messages)."
)(
    "agents.list",
    Rows(
        {
            "id": "id",
            "state": _state,
            "seen": "last_seen",
            "project": "project_path",
            "status": "status_message",
        },
        "nobody is registered yet; begin with: capsule agent register",
    ),
    opens=store_of,
)
show = does("Print the data of an agent.")(
    "agents.get", {"dmPolicy": "policy", "dm": "decided"}, opens=store_of, id=Agent
)


def set_(
    agent: str | None = argument(
        "AGENT",
        "The agent: its id, its name, or NAME@PROJECT. Without it: the agent of --as.",
        autocompletion=complete_agent,
    ),
    project: str | None = option(
        "--project DIR", "Move it into the project of this folder; no other command does."
    ),
    dm: Literal["open", "restricted", "closed"] | None = option(
        "--dm",
        "Choose which agents may write directly to it, and to which it may write: "
        "everybody, those that it allows, or nobody.",
    ),
    discoverable: Literal["public", "project", "private"] | None = option(
        "--discoverable",
        "Choose who finds it: everybody, the agents that see its project, or those it has a "
        "direct conversation with.",
    ),
) -> None:
    """Move an agent into another project, or choose who may write to it and who finds it; without
    an option, print it.

    Takes effect at once: after this returns, the old policy admits nothing.
    """
    refuse(
        project is not None and not os.path.isdir(project),
        f"{project} is no directory",
        "--project",
    )
    with acting() if agent is None else named() as opened:
        store, id = opened if isinstance(opened, tuple) else (opened, agent)
        if project is not None:
            store.agents.move(id or store.agent or "", os.path.realpath(project))
        changed = store.agents.policy(id, dm=dm, discoverable=discoverable)
    moved = f"in the project {changed.project}, " if project is not None else ""
    answer(
        changed.as_json(),
        f"{changed.id}: {moved}dm {changed.dm_policy}, discoverable {changed.discoverable}",
    )


def forget(agent: Agent, yes: Yes = False) -> None:
    """Remove an agent and its reading state. Its messages stay."""
    with store_of() as store:
        agent = store.agents.get(agent).id
        ensure_agreed(f"Forget {agent}, and what it has read?", yes=yes)
        store.agents.forget(agent)
    answer({"id": agent, "forgotten": True}, f"{agent}: forgotten")


discover = does(
    """List the agents that the agent finds, and whether they and it may write to each other.

    Each is available, requires permission (one of the two is restricted), is blocked (by one of the two), or is
    unavailable (one of the two takes no direct messages).
    """,
)(
    "agents.discover",
    Rows(
        {
            "id": "agent.id",
            "availability": "availability",
            "state": lambda contact: _state(contact.agent),
        }
        | {"project": "agent.project", "description": "agent.description"},
        "you find nobody",
    ),
)
requests = does(
    "List the agents that asked to write to the restricted agent. Answer with `allow` or `block`.",
)(
    "agents.requests",
    Rows(
        {
            "id": "agent.id",
            "asked": "asked_at",
            "project": "agent.project",
            "description": "agent.description",
        },
        "nobody asks to write to you",
    ),
)
allow = does("Allow another agent to write to the agent, if it is restricted.")(
    "agents.allow", "{agent}: allowed {other}", other=Agent, reason=Reason
)
block = does(
    "Stop the agent and another one from writing to each other. Their messages stay readable."
)("agents.block", "{agent}: blocked {other}", other=Agent, reason=Reason)
unblock = does(
    "Remove the agent's decision about another agent, which is then neither allowed nor blocked."
)(
    lambda store, other: store.agents.forget(other=other) or store.agents.get(store.agent),
    "{agent}: neither allows nor blocks {other}",
    other=Agent,
)
status = does("Set the status text of the agent.")(
    lambda store, **said: store.agents.set_status(store.agent, **said),
    "{agent}: {text}",
    text=Annotated[
        str,
        argument(
            "TEXT", "The present work of the agent, for others to read. Empty: no status.", ...
        ),
    ],
    busy=Annotated[bool | None, option("--busy/--free", _BUSY, ...)],
)
