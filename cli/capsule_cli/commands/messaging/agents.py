"""`agents`: who there is to talk to, and as whom."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Literal

import typer

from capsule_cli.shared.inputs import ensure_agreed
from capsule_cli.shared.opening import acting, agent_named, store_as, store_of
from capsule_cli.shared.options import Agent, Yes, argument, names_in, option, refuse
from capsule_cli.shared.output import answer, details, listing, one_line

if TYPE_CHECKING:
    import capsule

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()


@group.callback()
def _agents() -> None:
    """Register people and programs that write to each other, and see who is there."""


@commands.command("register")
def register(
    project: str | None = option(
        "--project DIR", "The folder that the agent works in. Default: this one; with --as, its project, if any."
    ),
    name: str | None = option("--name NAME", "Give it a name to show."),
    description: str | None = option("--description TEXT", "Say what it is there for."),
    exclude: list[str] | None = option(
        "--exclude CHANNELS", "Stay out of these default channels for good: names with commas between them, or *."
    ),
) -> None:
    """Register an agent and print its id: that of --as, else one that is made of the folder's name.

    Repeated, it changes only what is given, and moves nothing: see `agents set`. If an agent of another project has the
    id of --as, the new agent gets this name, and an id with a suffix.
    """
    id = agent_named()
    folder = project if project is not None or id is not None else os.getcwd()
    refuse(folder is not None and not os.path.isdir(folder), f"{folder} is no directory", "--project")
    path = folder and os.path.realpath(folder)
    with store_as(None if path else id) as store:  # In another project, the name is that of another agent.
        agent = store.agents.register(
            store.agent or id, path, name=name, description=description, exclude=names_in(exclude)
        )
    answer(agent.as_json(), agent.id)


@commands.command("list")
def list_() -> None:
    """List the agents, and say who is online (a program serves it now) or listening (it waits for messages)."""
    with store_of() as store:
        found = store.agents.list()
    rows = [(one.id, _state(one), one.last_seen, one.project_path or "", one.status_message) for one in found]
    columns = ("id", "state", "seen", "project", "status")
    told = [one.as_json() for one in found]
    listing(told, columns, rows, "nobody is registered yet; begin with: capsule agents register", last="status")


def _state(agent: capsule.Agent) -> str:
    return "listening" if agent.listening else agent.status if agent.online else ""


@commands.command("show")
def show(agent: Agent) -> None:
    """Print what is known of an agent."""
    with store_of() as store:
        details(store.agents.get(agent).as_json())


@commands.command("set")
def set_(agent: Agent, project: str = option("--project DIR", "The folder of the project.", ...)) -> None:
    """Move an agent into another project. No other command moves one."""
    refuse(not os.path.isdir(project), f"{project} is no directory", "--project")
    with store_of() as store:
        found = store.agents.move(agent, os.path.realpath(project))
    answer(found.as_json(), f"{found.id}: in the project {found.project}")


@commands.command("status")
def status(
    text: str = argument("TEXT", "What the agent is doing, for others to read. Empty: nothing.", ...),
    busy: bool | None = option("--busy/--free", "Say that the agent is busy, or no more. Default: as before."),
) -> None:
    """Say what the agent is doing."""
    with acting() as (store, agent):
        found = store.agents.set_status(agent, text, busy=busy)
    answer(found.as_json(), f"{agent}: {one_line(text)}")


@commands.command("forget")
def forget(agent: Agent, yes: Yes = False) -> None:
    """Remove an agent, and what it has read. Its messages stay."""
    with store_of() as store:
        agent = store.agents.get(agent).id
        ensure_agreed(f"Forget {agent}, and what it has read?", yes=yes)
        store.agents.forget(agent)
    answer({"id": agent, "forgotten": True}, f"{agent}: forgotten")


@commands.command("discover")
def discover() -> None:
    """List the agents that the agent finds, and whether they and it may write to each other.

    Each is available, requires permission (one of the two is restricted), is blocked (by one of the two), or is
    unavailable (one of the two takes no direct messages).
    """
    with acting() as (store, _):
        found = store.agents.discover()
    rows = [
        (one.agent.id, one.availability, _state(one.agent), one.agent.project, one.agent.description) for one in found
    ]
    columns = ("id", "availability", "state", "project", "description")
    listing([one.as_json() for one in found], columns, rows, "you find nobody", last="description")


@commands.command("policy")
def policy(
    dm: Literal["open", "restricted", "closed"] | None = option(
        "--dm", "Let everybody write directly to the agent, those that it allows, or nobody. It binds the agent alike."
    ),
    discoverable: Literal["public", "project", "private"] | None = option(
        "--discoverable",
        "Let everybody find the agent, those of its project and of projects that see it, or those it has written with.",
    ),
) -> None:
    """Say who may write to the agent, and who finds it; without an option, print it.

    When this returns, no message comes any more that the earlier policy let through.
    """
    with acting() as (store, agent):
        found = store.agents.policy(dm=dm, discoverable=discoverable)
    answer(found.as_json(), f"{agent}: dm {found.dm_policy}, discoverable {found.discoverable}")


_REASON = "Keep this reason with it, for people."


@commands.command("allow")
def allow(other: Agent, reason: str | None = option("--reason TEXT", _REASON)) -> None:
    """Let another agent write to the agent, if it is restricted."""
    with acting() as (store, agent):
        found = store.agents.allow(other=other, reason=reason)
    answer(found.as_json(), f"{agent}: allowed {one_line(other)}")


@commands.command("block")
def block(other: Agent, reason: str | None = option("--reason TEXT", _REASON)) -> None:
    """Let the agent and another one write to each other no more. What they said stays readable."""
    with acting() as (store, agent):
        found = store.agents.block(other=other, reason=reason)
    answer(found.as_json(), f"{agent}: blocked {one_line(other)}")


@commands.command("unblock")
def unblock(other: Agent) -> None:
    """Take back what the agent said of another one: neither allowed nor blocked."""
    with acting() as (store, agent):
        store.agents.forget(other=other)
        found = store.agents.get(agent)
    answer(found.as_json(), f"{agent}: neither allows nor blocks {one_line(other)}")


@commands.command("requests")
def requests() -> None:
    """List the agents that wanted to write to the agent, which is restricted. Answer with `allow` or `block`."""
    with acting() as (store, _):
        found = store.agents.requests()
    rows = [(one.agent.id, one.asked_at, one.agent.project, one.agent.description) for one in found]
    columns = ("id", "asked", "project", "description")
    listing([one.as_json() for one in found], columns, rows, "nobody asks to write to you", last="description")
