"""`group`: conversations of several agents, which they make, join and leave."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from capsule_cli.shared.opening import acting, acting_or_owner
from capsule_cli.shared.options import Agents, Id, With, argument, names_in, option
from capsule_cli.shared.output import answer, listing, one_line

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

Name = Annotated[str, argument("NAME", "The name of the group.", ...)]


@group.callback()
def _group() -> None:
    """Make groups of agents. Only its participants read a group and write to it."""


@commands.command("new")
def new(
    name: Name,
    with_: With = None,
    history: Literal["joined", "all"] = option(
        "--history", "Let participants read what was said since they joined, or all of it.", "joined"
    ),
) -> None:
    """Make a group with the agent in it, and print its id."""
    with acting() as (store, agent):
        head = store.groups.create(name, agent=agent, with_=names_in(with_), history=history)
    answer(head.as_json(), head.id)


@commands.command("add")
def add(id: Id, agents: Agents) -> None:
    """Add agents to a group, or bring back those who left. They read what is said from now on."""
    with acting_or_owner() as (store, agent):
        head = store.groups.add(store.resolve(id), agents, agent=agent)
    answer(head.as_json(), f"{head.id}: added {one_line(', '.join(agents))}")


@commands.command("leave")
def leave(id: Id) -> None:
    """Leave a group. When the last one leaves, the group is archived."""
    with acting() as (store, agent):
        head = store.groups.leave(store.resolve(id), agent=agent)
    answer(head.as_json(), f"{head.id}: {agent} left")


@commands.command("rename")
def rename(id: Id, name: Name) -> None:
    """Change the name of a group."""
    with acting_or_owner() as (store, agent):
        head = store.groups.rename(store.resolve(id), name, agent=agent)
    answer(head.as_json(), f"{head.id}: renamed to {one_line(head.title)!r}")


@commands.command("list")
def list_() -> None:
    """List the groups that the agent is in, the latest first."""
    with acting() as (store, agent):
        found = store.groups.list(agent=agent)
    rows = [
        (head.id, head.updated_at, ",".join(one.id for one in head.participants if one.is_in), head.title)
        for head in found
    ]
    listing([head.as_json() for head in found], ("id", "updated", "agents", "title"), rows, "you are in no group")
