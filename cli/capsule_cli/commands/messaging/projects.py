"""`projects`: the folders that agents work in, and which of them see which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capsule_cli.commands.messaging.completion import complete_project
from capsule_cli.shared.opening import store_of
from capsule_cli.shared.options import argument, option
from capsule_cli.shared.output import answer, details, listing

if TYPE_CHECKING:
    from capsule import Project as Shown

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

_PROJECT = "The project: its id or its name."
Project = Annotated[str, argument("PROJECT", _PROJECT, ..., autocompletion=complete_project)]
Other = Annotated[str, argument("OTHER", "Another project.", ..., autocompletion=complete_project)]
_ARROWS = {"out": "->", "in": "<-", "both": "<->"}


@group.callback()
def _projects() -> None:
    """See the projects of the agents, and say which of them see which."""


@commands.command("list")
def list_() -> None:
    """List the projects and their links: -> sees the other, <- is seen by it, <-> both."""
    with store_of() as store:
        found = store.projects.list()
    rows = [(one.id, one.name, one.last_active, _links(one), one.path or "") for one in found]
    columns = ("id", "name", "active", "links", "path")
    empty = "no agent is registered with a folder; begin with: capsule agents register"
    listing([one.as_json() for one in found], columns, rows, empty, last="path")


@commands.command("show")
def show(project: Project) -> None:
    """Print what is known of a project."""
    with store_of() as store:
        found = store.projects.get(project)
    details(found.as_json(), links=_links(found))


@commands.command("link")
def link(
    project: Project,
    other: Other,
    direction: Literal["both", "out", "in"] = option(
        "--direction", "Let the agents of PROJECT see OTHER (out), those of OTHER see PROJECT (in), or both.", "both"
    ),
) -> None:
    """Let the agents of a project see another project: its open channels, and its agents that only projects find."""
    with store_of() as store:
        found = store.projects.link(project, other, direction=direction)
    answer(found.as_json(), f"{found.id}: {_links(found)}")


@commands.command("unlink")
def unlink(project: Project, other: Other) -> None:
    """End the link of two projects. Who is in a channel of the other only by the link is out of it."""
    with store_of() as store:
        found = store.projects.unlink(project, other)
    answer(found.as_json(), f"{found.id}: {_links(found) or 'no link'}")


def _links(project: Shown) -> str:
    return ", ".join(
        f"{_ARROWS.get(str(link.get('direction')), '?')} {other}{'' if link.get('enabled') is not False else ' (off)'}"
        for other, link in project.links.items()
    )
