"""`agents`: who there is to talk to, and as whom."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from capsule_cli.completion import complete_agent
from capsule_cli.shared.inputs import ensure_agreed
from capsule_cli.shared.opening import acting, agent_named, store_of
from capsule_cli.shared.options import Yes, argument, option, refuse
from capsule_cli.shared.output import answer, listing, one_line

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

Agent = Annotated[str, typer.Argument(metavar="AGENT", autocompletion=complete_agent, help="The agent: its id.")]


@group.callback()
def _agents() -> None:
    """Register people and programs that write to each other, and see who is there."""


@commands.command("register")
def register(
    project: str | None = option(
        "--project DIR", "The folder that the agent works in. Default: this one, unless --as names the agent."
    ),
    name: str | None = option("--name NAME", "Give it a name to show."),
) -> None:
    """Register an agent and print its id: that of --as, else one that is made of the folder's name.

    Repeated, it changes only what is given.
    """
    id = agent_named()
    folder = project if project is not None or id is not None else os.getcwd()
    refuse(folder is not None and not os.path.isdir(folder), f"{folder} is no directory", "--project")
    with store_of() as store:
        agent = store.agents.register(id, folder and os.path.realpath(folder), name=name)
    answer(agent.as_json(), agent.id)


@commands.command("list")
def list_() -> None:
    """List the agents, and say who is online (a program serves it now) or listening (it waits for messages)."""
    with store_of() as store:
        found = store.agents.list()
    states = ["listening" if one.listening else "online" if one.online else "" for one in found]
    rows = [
        (one.id, state, one.last_seen, one.project_path or "", one.status_message)
        for one, state in zip(found, states, strict=True)
    ]
    columns = ("id", "state", "seen", "project", "status")
    told = [one.as_json() for one in found]
    listing(told, columns, rows, "nobody is registered yet; begin with: capsule agents register", last="status")


@commands.command("show")
def show(agent: Agent) -> None:
    """Print what is known of an agent."""
    with store_of() as store:
        found = store.agents.get(agent).as_json()
    answer(found, "\n".join(f"{name}: {one_line(str(value))}" for name, value in found.items()))


@commands.command("status")
def status(text: str = argument("TEXT", "What the agent is doing, for others to read. Empty: nothing.", ...)) -> None:
    """Say what the agent is doing."""
    with acting() as (store, agent):
        found = store.agents.set_status(agent, text)
    answer(found.as_json(), f"{agent}: {one_line(text)}")


@commands.command("forget")
def forget(agent: Agent, yes: Yes = False) -> None:
    """Remove an agent, and what it has read. Its messages stay."""
    with store_of() as store:
        store.agents.get(agent)
        ensure_agreed(f"Forget {agent}, and what it has read?", yes=yes)
        store.agents.forget(agent)
    answer({"id": agent, "forgotten": True}, f"{agent}: forgotten")
