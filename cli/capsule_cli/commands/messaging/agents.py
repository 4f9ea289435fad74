"""`agent`, `project` and `config`: register and find agents, link projects, and apply what files
declare about agents, links and channels.

`agent notify` switches the notices about unread messages in the files of an agent's folder.
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsule.errors import Refused
from capsule_cli.public import (
    complete_project,
    open_agent_store,
    open_full_store,
    open_named_agent_store,
    open_store_as,
)
from capsule_cli.shared.inputs import ensure_confirmed
from capsule_cli.shared.options import (
    Agent,
    Yes,
    argument,
    complete_agent,
    option,
    refuse_if,
    split_names,
)
from capsule_cli.shared.output import (
    as_json,
    on_or_off,
    one_line,
    print_answer,
    print_fields,
    print_list,
    print_notice,
)
from capsule_cli.shared.stores import agent_name

if TYPE_CHECKING:
    import capsule
    from capsule import Plan, Store


# -- agent, project --------------------------------------------------------------------------------

Reason = Annotated[
    str | None, option("--reason TEXT", "Keep this reason with it, for people.", ...)
]


def agent_register(
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
    id = agent_name()
    folder = project if project is not None or id is not None else os.getcwd()
    refuse_if(
        folder is not None and not os.path.isdir(folder),
        f"{folder} is not a directory",
        "--project",
    )
    path = folder and os.path.realpath(folder)
    # A name in another project belongs to another agent, so the owner registers it there.
    with open_store_as(None if path else id) as store:
        agent = store.agents.register(
            store.agent or id,
            path,
            name=name,
            description=description,
            exclude=split_names(stay_out),
        )
    print_answer(agent.as_json(), agent.id)


def _online_state(agent: capsule.Agent) -> str:
    if agent.listening:
        return "listening"
    return agent.status if agent.online else ""


def agent_list() -> None:
    """List the agents, and whether each is online (a program serves it now) or listening (it waits
    for messages).
    """
    with open_full_store() as store:
        agents = store.agents.list()
    rows = [
        (
            agent.id,
            _online_state(agent),
            agent.last_seen,
            agent.project_path or "",
            agent.status_message,
        )
        for agent in agents
    ]
    columns = ("id", "state", "seen", "project", "status")
    empty = "no agent is registered yet; begin with: capsule agent register"
    print_list(as_json(agents), columns, rows, empty, last="status")


def agent_show(id: Agent) -> None:
    """Print the data of an agent."""
    with open_full_store() as store:
        agent = store.agents.get(id)
    print_fields(agent.as_json(), {"dmPolicy": "policy", "dm": "decided"})


def agent_set(
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
    refuse_if(
        project is not None and not os.path.isdir(project),
        f"{project} is not a directory",
        "--project",
    )
    with ExitStack() as stack:
        if agent is None:
            store, agent_id = stack.enter_context(open_agent_store())
        else:
            store = stack.enter_context(open_named_agent_store())
            agent_id = agent
        if project is not None:
            store.agents.move(agent_id or store.agent or "", os.path.realpath(project))
        agent_state = store.agents.policy(agent_id, dm=dm, discoverable=discoverable)
    project_text = f"in the project {agent_state.project}, " if project is not None else ""
    print_answer(
        agent_state.as_json(),
        f"{agent_state.id}: {project_text}dm {agent_state.dm_policy}, discoverable {agent_state.discoverable}",
    )


def agent_forget(agent: Agent, yes: Yes = False) -> None:
    """Remove an agent and its reading state. Its messages stay."""
    with open_full_store() as store:
        agent = store.agents.get(agent).id
        ensure_confirmed(f"Forget {agent}, and what it has read?", yes=yes)
        store.agents.forget(agent)
    print_answer({"id": agent, "forgotten": True}, f"{agent}: forgotten")


def agent_discover() -> None:
    """List the agents that the agent finds, and whether they and it may write to each other.

    Each is available, requires permission (one of the two is restricted), is blocked (by one of the
    two), or is unavailable (one of the two takes no direct messages).
    """
    with open_agent_store() as (store, _):
        contacts = store.agents.discover()
    rows = [
        (
            contact.agent.id,
            contact.availability,
            _online_state(contact.agent),
            contact.agent.project,
            contact.agent.description,
        )
        for contact in contacts
    ]
    columns = ("id", "availability", "state", "project", "description")
    print_list(as_json(contacts), columns, rows, "no agent was found", last="description")


def agent_requests() -> None:
    """List the agents that asked to write to the restricted agent. Answer with `allow`
    or `block`.
    """
    with open_agent_store() as (store, _):
        contacts = store.agents.requests()
    rows = [
        (
            contact.agent.id,
            contact.asked_at,
            contact.agent.project,
            contact.agent.description,
        )
        for contact in contacts
    ]
    columns = ("id", "asked", "project", "description")
    print_list(
        as_json(contacts), columns, rows, "no agent asks to write to you", last="description"
    )


def agent_allow(other_agent: Agent, reason: Reason = None) -> None:
    """Allow another agent to write to the agent, if it is restricted."""
    with open_agent_store() as (store, agent):
        agent_state = store.agents.allow(other=other_agent, reason=reason)
    print_answer(agent_state.as_json(), f"{agent}: allowed {one_line(other_agent)}")


def agent_block(other_agent: Agent, reason: Reason = None) -> None:
    """Stop the agent and another one from writing to each other. Their messages stay readable."""
    with open_agent_store() as (store, agent):
        agent_state = store.agents.block(other=other_agent, reason=reason)
    print_answer(agent_state.as_json(), f"{agent}: blocked {one_line(other_agent)}")


def agent_unblock(other_agent: Agent) -> None:
    """Remove the agent's decision about another agent, which is then neither allowed
    nor blocked.
    """
    with open_agent_store() as (store, agent):
        store.agents.forget(other=other_agent)
        agent_state = store.agents.get(agent)
    print_answer(
        agent_state.as_json(), f"{agent}: neither allows nor blocks {one_line(other_agent)}"
    )


def agent_status(
    text: str = argument(
        "TEXT", "The present work of the agent, for others to read. Empty: no status.", ...
    ),
    busy: bool | None = option(
        "--busy/--free", "Mark the agent as busy, or as not busy. Default: as before."
    ),
) -> None:
    """Set the status text of the agent."""
    with open_agent_store() as (store, agent):
        agent_state = store.agents.set_status(agent, text, busy=busy)
    print_answer(agent_state.as_json(), f"{agent}: {one_line(text)}")


# -- project ---------------------------------------------------------------------------------------

_PROJECT = "The project: its id or its name."
Project = Annotated[str, argument("PROJECT", _PROJECT, ..., autocompletion=complete_project)]
OtherProject = Annotated[
    str, argument("OTHER", "Another project.", ..., autocompletion=complete_project)
]
_DIRECTION = "Show OTHER to the agents of PROJECT (out), PROJECT to those of OTHER (in), or both."
_ARROWS = {"out": "->", "in": "<-", "both": "<->"}


def _links(project: capsule.Project) -> str:
    parts = []
    for other_project, link in project.links.items():
        arrow = _ARROWS.get(str(link.get("direction")), "?")
        suffix = "" if link.get("enabled") is not False else " (off)"
        parts.append(f"{arrow} {other_project}{suffix}")
    return ", ".join(parts)


def project_show(id: Project) -> None:
    """Print the data of a project."""
    with open_full_store() as store:
        project = store.projects.get(id)
    print_fields(project.as_json(), links=_links(project))


def project_list() -> None:
    """List the projects and their links: -> sees the other, <- is seen by it, <-> both."""
    with open_full_store() as store:
        projects = store.projects.list()
    rows = [
        (project.id, project.name, project.last_active, _links(project), project.path or "")
        for project in projects
    ]
    columns = ("id", "name", "active", "links", "path")
    empty = "no agent is registered with a folder; begin with: capsule agent register"
    print_list(as_json(projects), columns, rows, empty, last="path")


def project_link(
    project: Project,
    other_project: OtherProject,
    direction: Literal["both", "out", "in"] = option("--direction", _DIRECTION, "both"),
) -> None:
    """Let the agents of a project see another project: its open channels, and the agents that its
    own agents find.
    """
    with open_full_store() as store:
        linked = store.projects.link(project, other_project, direction=direction)
    print_answer(linked.as_json(), f"{linked.id}: {_links(linked)}")


def project_unlink(project: Project, other_project: OtherProject) -> None:
    """End the link of two projects. Agents that are members of a channel only because of the link
    leave it.
    """
    with open_full_store() as store:
        unlinked = store.projects.unlink(project, other_project)
    print_answer(unlinked.as_json(), f"{unlinked.id}: {_links(unlinked) or 'no link'}")


# -- agent notify ----------------------------------------------------------------------------------


def notify_on() -> None:
    """Switch the block on, so that it is written while the agent is away."""
    _switch_notices(True)


def notify_off() -> None:
    """Switch the block off, and remove an existing one."""
    _switch_notices(False)


def notify_status() -> None:
    """List the agents with their blocks: on or off, and the files that have one. With --as: only
    this agent.
    """
    from capsule.messaging import notices

    with open_named_agent_store() as store:
        agents = store.agents.list() if store.agent is None else [store.agents.get(store.agent)]
        blocks = [(agent, notices.files_with_block(store, agent.id)) for agent in agents]
    value = [
        {"agent": agent.id, "notifications": agent.notifications, "files": files}
        for agent, files in blocks
    ]
    rows = [(agent.id, on_or_off(agent.notifications), ", ".join(files)) for agent, files in blocks]
    print_list(value, ("id", "notifications", "files"), rows, "nobody is registered", last="files")


def notify_clean() -> None:
    """Remove the blocks of all agents. With --as: of this agent. The next message to an agent
    brings its block back.
    """
    from capsule.messaging import notices

    with open_named_agent_store() as store:
        agents = (
            [agent.id for agent in store.agents.list()] if store.agent is None else [store.agent]
        )
        files = [path for agent in agents for path in notices.remove_blocks(store, agent)]
    print_answer(
        {"cleaned": files},
        "\n".join(f"{path}: the block was removed" for path in files) or "there was no block",
    )


def _switch_notices(is_on: bool) -> None:
    from capsule.messaging import notices

    with open_agent_store() as (store, agent):
        store.agents.set_notifications(agent, is_on)
        notices.write(store, agent)
        files = notices.files_with_block(store, agent)
    value: dict[str, Any] = {"agent": agent, "notifications": is_on, "files": files}
    print_answer(value, f"{agent}: notifications {on_or_off(is_on)}")


# -- config ----------------------------------------------------------------------------------------

_PRUNE = "Undo changes of earlier applies that no file declares any more."
Prune = Annotated[bool, option("--prune", _PRUNE, ...)]


def config_plan(prune: Prune = False) -> None:
    """Show what an apply would change and what it would refuse; change nothing.

    The exit code is 1 if there is something to do, else 6 if something is refused or a file is
    wrong.
    """
    with open_full_store() as store:
        _print_plan(_plan_of(store, prune), "there is nothing to do")


def config_apply(prune: Prune = False) -> None:
    """Apply what the files declare. The exit code is 6 if something is refused or a file
    is wrong.
    """
    with open_full_store() as store:
        applied = store.configuration.apply(_plan_of(store, prune))
    if applied.number:  # 0: nothing was applied.
        print_notice(
            f"this is apply {applied.number}; undo it with: capsule config rollback "
            f"{applied.number}"
        )
    _print_plan(applied, "there was nothing to do")


def config_history() -> None:
    """List the applies of this machine, the oldest first."""
    with open_full_store() as store:
        applied = store.configuration.history()
    rows = [
        (
            str(applied_plan.number),
            applied_plan.time,
            *(f"{len(applied_plan.having(outcome))} {outcome}" for outcome in ("done", "refused")),
        )
        for applied_plan in applied
    ]
    value = [applied_plan.as_json() for applied_plan in applied]
    print_list(
        value, ("n", "time", "done", "refused"), rows, "nothing was applied yet", last="refused"
    )


def config_rollback(number: Annotated[int, argument("N", "The number of the apply.", ...)]) -> None:
    """Undo an apply and all later ones. Later changes by others stay, and no agent is forgotten. The
    exit code is 6 if something is refused.
    """
    with open_full_store() as store:
        _print_plan(store.configuration.rollback(number), "there was nothing to undo")


def _plan_of(store: Store, prune: bool) -> Plan:
    """Return the plan. Besides the files of the store and its projects, it has the agent files of
    the home, and of the nearest folder upwards that has some.
    """
    from pathlib import Path

    start = Path.cwd().resolve()
    folders = [
        str(folder)
        for folder in (start, *start.parents)
        if (folder / ".claude" / "agents").is_dir()
    ]
    return store.configuration.plan(folders[:1], str(Path.home().resolve()), prune=prune)


def _print_plan(plan: Plan, empty: str) -> None:
    """Print the actions and problems of a plan, or of what was applied or undone. `empty` is the
    text if it has no action.

    Raises typer.Exit: something is to do (1), is refused, or a file is wrong.
    """
    import typer

    columns = ("outcome", "kind", "on", "field", "before", "after", "reason")
    rows = [
        (
            action.outcome,
            action.kind,
            action.on,
            action.other,  # The field, or the other agent or project.
            _cell(action.before),
            _cell(action.after),
            action.reason or action.file,  # Not refused: the file that declares it.
        )
        for action in plan.actions
    ]
    reasons = [
        one_line(action.reason) for action in plan.actions
    ]  # In full: a column is cut to the width of the screen.
    print_list(plan.as_json(), columns, rows, empty, last="reason", below=reasons)
    for problem in plan.problems:
        print_notice(str(problem))
    if plan.having("planned"):
        raise typer.Exit(1)
    if plan.having("refused") or plan.problems:
        raise typer.Exit(Refused.exit_code)


def _cell(value: Any) -> str:
    """Return a value as text. The value of a new agent is a dict, of which the name is shown."""
    if isinstance(value, bool):
        return str(value).lower()
    return str(value["name"] if isinstance(value, dict) else value or "")
