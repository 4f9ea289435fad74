"""Who is there: agents, projects, channels and groups; what waits for whom, and who may do what.

What must stay true: an agent is shown what its store tells it. What others say of each other, and
what waits for them, is for the owner and for each of them.
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

#: The number of agents in a page, of groups, of members and of notes.
_PAGE: Final = 200
_NOTES: Final = 5
#: What a member of a channel may do there, by its field in `Member`.
_RIGHTS: Final = {
    "can_send": "write",
    "can_invite": "invite",
    "can_manage": "manage",
    "can_leave": "leave",
}


def _people(view: View) -> Response:
    from capsule.engines.queries import Filter

    store, after = view.store, view.asked("after")
    agents = [agent for agent in store.agents.list() if agent.id > after]
    shown = agents[:_PAGE]
    return view.page(
        "people.html",
        agents=shown,
        waits={
            agent.id: store.messages.inbox(agent=agent.id)
            for agent in shown
            if agent.dm is not None
        },
        following=shown[-1].id if len(agents) > _PAGE else "",
        projects={project.id: project for project in store.projects.list()},
        channels=store.channels.list(archived=True),
        groups=store.list(Filter(type="group"), limit=_PAGE),
    )


def _agent(view: View) -> Response:
    store = view.store
    agent = store.agents.get(view.at())
    shown: dict[str, Any] = {"agent": agent, "notes": _notes(store, agent.id)}
    if agent.dm is not None:  # It is told to the agent itself and to the owner.
        shown |= {
            "inbox": store.messages.inbox(agent=agent.id),
            "requests": store.agents.requests(agent.id),
            "bells": load_targets(store, agent.id).targets,
            "actions": get_args(Action),
            "permission": _permission(view, agent.id),
        }
    return view.page("agent.html", **shown)


def _notes(store: Store, agent: str) -> list[Any]:
    try:
        return store.notes.search(of=agent, limit=_NOTES)
    except NotFound:
        return []


def _permission(view: View, agent: str) -> Any:
    """The answer to the question of the address, or why there is none; None: it asks nothing."""
    if not (what := view.asked("action")):
        return None
    about = {name: view.asked(name).strip() or None for name in ("conversation", "other")}
    try:
        return view.store.agents.may(what, agent=agent, **about)
    except CapsuleError as error:
        return error


def _project(view: View) -> Response:
    store = view.store
    project = store.projects.get(view.at())
    return view.page(
        "project.html",
        project=project,
        others={other.id: other.name for other in store.projects.list() if other.id != project.id},
        agents=[agent for agent in store.agents.list() if agent.project == project.id],
        channels=[
            each for each in store.channels.list(archived=True) if each.channel.scope == project.id
        ],
    )


def _channel(view: View) -> Response:
    channels, id = view.store.channels, view.at()
    listed = channels.get(id)
    try:
        object = PolicyTarget.from_head(view.store.head(listed.id))
    except Refused as error:
        return view.page("channel.html", listed=listed, refused=error.message)
    there = [member for member in object.members if member.is_in]
    members = [
        (member, [word for right, word in _RIGHTS.items() if object.grants(member, right)])
        for member in there[:_PAGE]
    ]
    return view.page(
        "channel.html",
        listed=listed,
        members=members,
        count=len(there),
        is_in=any(member.id == view.me for member in there),
        topics=channels.topics(listed.id),
        refused="",
        may={
            do
            for do in ("join", "leave", "invite", "remove")
            if view.may("write") and _may(view, do, listed.id)
        },
    )


def _may(view: View, do: str, channel: str) -> bool:
    """Whether the agent that the visitor writes as may do something in a channel."""
    try:
        return view.me is None or view.acting.agents.may(do, conversation=channel).allowed
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
                agent=view.at(), other=view.sent("other")
            ),
            "block": lambda view: view.store.agents.block(
                agent=view.at(), other=view.sent("other")
            ),
            "unblock": lambda view: view.store.agents.forget(
                agent=view.at(), other=view.sent("other")
            ),
            "policy": lambda view: view.store.agents.policy(
                view.at(),
                dm=view.sent("dm") or None,
                discoverable=view.sent("discoverable") or None,
            ),
            "status": lambda view: view.store.agents.set_status(
                view.at(), view.sent("text"), busy=bool(view.sent("busy"))
            ),
        },
    ),
    forms(
        "/projects/{project}",
        {
            "link": lambda view: view.store.projects.link(
                view.at(), view.sent("other"), direction=view.sent("direction")
            ),
            "unlink": lambda view: view.store.projects.unlink(view.at(), view.sent("other")),
        },
    ),
    forms(
        "/channels/{channel}",
        {
            "join": lambda view: view.acting.channels.join(view.at()),
            "leave": lambda view: view.acting.channels.leave(view.at()),
            "invite": lambda view: view.acting.channels.invite(
                view.at(), view.sent("agents").replace(",", " ").split()
            ),
            "remove": lambda view: view.acting.channels.remove(view.at(), view.sent("member")),
            "mute": lambda view: view.acting.channels.mute(
                view.at(), False, notify=view.sent("notify") or None
            ),
        },
    ),
]
