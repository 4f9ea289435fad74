"""`project`: the folders that agents work in, and which of them see which."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from capsule_cli.commands.messaging.completion import complete_project
from capsule_cli.public import store_of
from capsule_cli.shared.options import argument, option
from capsule_cli.shared.output import details
from capsule_cli.shared.passing import Rows, passing

if TYPE_CHECKING:
    from capsule import Project as Shown

does = passing(store_of)

_PROJECT = "The project: its id or its name."
Project = Annotated[str, argument("PROJECT", _PROJECT, ..., autocompletion=complete_project)]
Other = Annotated[str, argument("OTHER", "Another project.", ..., autocompletion=complete_project)]
Direction = Literal["both", "out", "in"]
_DIRECTION = "Show OTHER to the agents of PROJECT (out), PROJECT to those of OTHER (in), or both."
_LINK = (
    "Show the agents of a project another project: its open channels, and the agents that its "
    "own agents find."
)
_ARROWS = {"out": "->", "in": "<-", "both": "<->"}


def _links(project: Shown) -> str:
    return ", ".join(
        f"{_ARROWS.get(str(link.get('direction')), '?')} "
        f"{other}{'' if link.get('enabled') is not False else ' (off)'}"
        for other, link in project.links.items()
    )


def show(project: Project) -> None:
    """Print the data of a project."""
    with store_of() as store:
        known = store.projects.get(project)
    details(known.as_json(), links=_links(known))


list_ = does("List the projects and their links: -> sees the other, <- is seen by it, <-> both.")(
    "projects.list",
    Rows(
        {"id": "id", "name": "name", "active": "last_active", "links": _links, "path": "path"},
        "no agent is registered with a folder; begin with: capsule agent register",
    ),
)
link = does(_LINK)(
    "projects.link",
    lambda project, **_: f"{project.id}: {_links(project)}",
    a=Project,
    b=Other,
    direction=(Annotated[Direction, option("--direction", _DIRECTION, ...)], "both"),
)
unlink = does(
    "End the link of two projects. Agents that are members of a channel only because "
    "of the link leave it."
)(
    "projects.unlink",
    lambda project, **_: f"{project.id}: {_links(project) or 'no link'}",
    a=Project,
    b=Other,
)
