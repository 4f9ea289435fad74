"""The pages of agents, projects, channels and groups, with unread messages and permissions.

What must stay true: an agent sees only what its store returns to it. The inbox and the settings of
an agent are shown to the owner and to this agent alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, get_args

from starlette.responses import Response

from capsule.errors import CapsuleError, NotFound, Refused
from capsule.messaging.doorbells import load_targets
from capsule.rules.policy import Action, PolicyTarget
from capsule.web.view import View, forms, get

if TYPE_CHECKING:
    from capsule import Store

#: The greatest number of agents, of groups, and of members in a page, and that of notes of an agent.
_PAGE: Final = 200
_NOTES: Final = 5
#: The names of permissions of a member in a channel, by the fields of `Member`.
_RIGHTS: Final = {
    "can_send": "write",
    "can_invite": "invite",
    "can_manage": "manage",
    "can_leave": "leave",
}


def _people(view: View) -> Response:
    from capsule.engines.queries import Filter

    store = view.store
    after = view.parameter("after")
    agents = [agent for agent in store.agents.list() if agent.id > after]
    page_agents = agents[:_PAGE]
    return view.page(
        "people.html",
        agents=page_agents,
        waits={
            agent.id: store.messages.inbox(agent=agent.id)
            for agent in page_agents
            if agent.dm is not None
        },
        following=page_agents[-1].id if len(agents) > _PAGE else "",
        projects={project.id: project for project in store.projects.list()},
        channels=store.channels.list(archived=True),
        groups=store.list(Filter(type="group"), limit=_PAGE),
    )


def _agent(view: View) -> Response:
    store = view.store
    agent = store.agents.get(view.path_part())
    values: dict[str, Any] = {"agent": agent, "notes": _notes(store, agent.id)}
    if agent.dm is not None:  # Only the agent itself and the owner get this field.
        values |= {
            "inbox": store.messages.inbox(agent=agent.id),
            "requests": store.agents.requests(agent.id),
            "bells": load_targets(store, agent.id).targets,
            "actions": get_args(Action),
            "permission": _permission(view, agent.id),
        }
    return view.page("agent.html", **values)


def _notes(store: Store, agent: str) -> list[Any]:
    try:
        return store.notes.search(of=agent, limit=_NOTES)
    except NotFound:
        return []


def _permission(view: View, agent: str) -> Any:
    """Return the decision on the action in the address, or the error. None: it names no action."""
    action = view.parameter("action")
    if not action:
        return None
    target = {name: view.parameter(name).strip() or None for name in ("conversation", "other")}
    try:
        return view.store.agents.may(action, agent=agent, **target)
    except CapsuleError as error:
        return error


def _project(view: View) -> Response:
    store = view.store
    project = store.projects.get(view.path_part())
    return view.page(
        "project.html",
        project=project,
        others={other.id: other.name for other in store.projects.list() if other.id != project.id},
        agents=[agent for agent in store.agents.list() if agent.project == project.id],
        channels=[
            listed
            for listed in store.channels.list(archived=True)
            if listed.channel.scope == project.id
        ],
    )


def _channel(view: View) -> Response:
    channels = view.store.channels
    listed = channels.get(view.path_part())
    try:
        target = PolicyTarget.from_head(view.store.head(listed.id))
    except Refused as error:
        return view.page("channel.html", listed=listed, refused=error.message)
    present_members = [member for member in target.members if member.is_in]
    members = []
    for member in present_members[:_PAGE]:
        rights = [name for right, name in _RIGHTS.items() if target.grants(member, right)]
        members.append((member, rights))
    allowed_actions: set[str] = set()
    if view.may("write"):
        for action in ("join", "leave", "invite", "remove"):
            if _may(view, action, listed.id):
                allowed_actions.add(action)
    return view.page(
        "channel.html",
        listed=listed,
        members=members,
        count=len(present_members),
        is_in=any(member.id == view.acting_agent for member in present_members),
        topics=channels.topics(listed.id),
        refused="",
        may=allowed_actions,
    )


def _may(view: View, action: str, channel: str) -> bool:
    """Return whether the agent that the visitor writes as may do something in a channel."""
    if view.acting_agent is None:
        return True
    try:
        return view.acting_store.agents.may(action, conversation=channel).allowed
    except CapsuleError:
        return False


ROUTES = [
    get("/people", _people),
    get("/people/{agent}", _agent),
    get("/projects/{project}", _project),
    get("/channels/{channel}", _channel),
    forms(
        "/people/{agent}",
        {
            "allow": lambda view: view.store.agents.allow(
                agent=view.path_part(), other=view.field("other")
            ),
            "block": lambda view: view.store.agents.block(
                agent=view.path_part(), other=view.field("other")
            ),
            "unblock": lambda view: view.store.agents.forget(
                agent=view.path_part(), other=view.field("other")
            ),
            "policy": lambda view: view.store.agents.policy(
                view.path_part(),
                dm=view.field("dm") or None,
                discoverable=view.field("discoverable") or None,
            ),
            "status": lambda view: view.store.agents.set_status(
                view.path_part(), view.field("text"), busy=bool(view.field("busy"))
            ),
        },
    ),
    forms(
        "/projects/{project}",
        {
            "link": lambda view: view.store.projects.link(
                view.path_part(), view.field("other"), direction=view.field("direction")
            ),
            "unlink": lambda view: view.store.projects.unlink(
                view.path_part(), view.field("other")
            ),
        },
    ),
    forms(
        "/channels/{channel}",
        {
            "join": lambda view: view.acting_store.channels.join(view.path_part()),
            "leave": lambda view: view.acting_store.channels.leave(view.path_part()),
            "invite": lambda view: view.acting_store.channels.invite(
                view.path_part(), view.field("agents").replace(",", " ").split()
            ),
            "remove": lambda view: view.acting_store.channels.remove(
                view.path_part(), view.field("member")
            ),
            "mute": lambda view: view.acting_store.channels.mute(
                view.path_part(), False, notify=view.field("notify") or None
            ),
        },
    ),
]
