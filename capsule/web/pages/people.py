"""Who is there: agents, projects, channels and groups; what waits for whom, and who may do what.

What must stay true: an agent is shown what its store tells it. What others say of each other, and what waits for them,
is for the owner and for each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, get_args

from starlette.responses import Response
from starlette.routing import Route

from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused
from capsule.messaging.doorbells.registry import bells
from capsule.rules.policy import Action, Object
from capsule.web.view import View, action, page
from capsule.web.words import address

if TYPE_CHECKING:
    from starlette.datastructures import FormData

    from capsule import Store

#: The number of agents in a page, of groups, of members and of notes.
_PAGE: Final = 200
_NOTES: Final = 5
#: What a member of a channel may do there, by its field in `Member`.
_RIGHTS: Final = {"can_send": "write", "can_invite": "invite", "can_manage": "manage", "can_leave": "leave"}


def _people(view: View) -> Response:
    from capsule.engines.questions import Filter

    store, after = view.store, view.asked("after")
    agents = [agent for agent in store.agents.list() if agent.id > after]
    shown = agents[:_PAGE]
    return view.page(
        "people.html",
        agents=shown,
        waits={agent.id: store.messages.inbox(agent=agent.id) for agent in shown if agent.dm is not None},
        following=shown[-1].id if len(agents) > _PAGE else "",
        projects={project.id: project for project in store.projects.list()},
        channels=store.channels.list(archived=True),
        groups=store.list(Filter(type="group"), limit=_PAGE),
    )


def _agent(view: View) -> Response:
    store = view.store
    agent = store.agents.get(view.request.path_params["agent"])
    shown: dict[str, Any] = {"agent": agent, "notes": _notes(store, agent.id)}
    if agent.dm is not None:  # It is told to the agent itself and to the owner.
        shown |= {
            "inbox": store.messages.inbox(agent=agent.id),
            "requests": store.agents.requests(agent.id),
            "bells": bells(store, agent.id).bells,
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
    project = store.projects.get(view.request.path_params["project"])
    return view.page(
        "project.html",
        project=project,
        others={other.id: other for other in store.projects.list() if other.id != project.id},
        agents=[agent for agent in store.agents.list() if agent.project == project.id],
        channels=[each for each in store.channels.list(archived=True) if each.channel.scope == project.id],
    )


def _channel(view: View) -> Response:
    channels, id = view.store.channels, view.request.path_params["channel"]
    listed = channels.get(id)
    try:
        object = Object.listed(view.store.head(listed.id))
    except Refused as error:
        return view.page("channel.html", listed=listed, refused=error.message)
    there = [member for member in object.members if member.is_in]
    members = [
        (member, [word for right, word in _RIGHTS.items() if object.has(member, right)]) for member in there[:_PAGE]
    ]
    return view.page(
        "channel.html",
        listed=listed,
        members=members,
        count=len(there),
        is_in=any(member.id == view.me for member in there),
        topics=channels.topics(listed.id),
        refused="",
        may={do for do in ("join", "leave", "invite", "remove") if view.may("write") and _may(view, do, listed.id)},
    )


def _may(view: View, do: str, channel: str) -> bool:
    """Whether the agent that the visitor writes as may do something in a channel."""
    try:
        return view.me is None or view.acting.agents.may(do, conversation=channel).allowed
    except CapsuleError:
        return False


#: By the field `do` of a form: the change of an agent, a project or a channel, given its id and the form's fields.
_Does = dict[str, Callable[[View, str, dict[str, str]], Any]]
_TO_AGENT: Final[_Does] = {
    "allow": lambda view, id, said: view.store.agents.allow(agent=id, other=said.get("other", "")),
    "block": lambda view, id, said: view.store.agents.block(agent=id, other=said.get("other", "")),
    "unblock": lambda view, id, said: view.store.agents.forget(agent=id, other=said.get("other", "")),
    "policy": lambda view, id, said: view.store.agents.policy(
        id, dm=said.get("dm"), discoverable=said.get("discoverable")
    ),
    "status": lambda view, id, said: view.store.agents.set_status(id, said.get("text", ""), busy="busy" in said),
}
_TO_PROJECT: Final[_Does] = {
    "link": lambda view, id, said: view.store.projects.link(
        id, said.get("other", ""), direction=said.get("direction", "")
    ),
    "unlink": lambda view, id, said: view.store.projects.unlink(id, said.get("other", "")),
}
_TO_CHANNEL: Final[_Does] = {
    "join": lambda view, id, said: view.acting.channels.join(id),
    "leave": lambda view, id, said: view.acting.channels.leave(id),
    "invite": lambda view, id, said: view.acting.channels.invite(id, said.get("agents", "").replace(",", " ").split()),
    "remove": lambda view, id, said: view.acting.channels.remove(id, said.get("member", "")),
    "mute": lambda view, id, said: view.acting.channels.mute(id, False, notify=said.get("notify")),
}


def _changes(folder: str, name: str, does: _Does) -> Route:
    """The route of the forms of a page."""

    def change(view: View, form: FormData) -> Response:
        id, do = view.request.path_params[name], str(form.get("do"))
        said = {key: str(value) for key, value in form.items()}
        if do not in does:
            raise InvalidInput(f"{do[:40]!r} can't be done here; it is one of {', '.join(does)}")
        does[do](view, id, said)
        return view.done(address(folder, id), id=id)

    return Route(f"/{folder}/{{{name}}}", action(change), methods=["POST"])


ROUTES = [
    Route("/people", page(_people)),
    Route("/people/{agent}", page(_agent)),
    Route("/projects/{project}", page(_project)),
    Route("/channels/{channel}", page(_channel)),
    _changes("people", "agent", _TO_AGENT),
    _changes("projects", "project", _TO_PROJECT),
    _changes("channels", "channel", _TO_CHANNEL),
]
