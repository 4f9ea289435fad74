"""`worker`: who answers where, what the sessions do, and why a message was answered or not."""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsule_cli.completion import complete_agent, completing
from capsule_cli.public import named, store_of
from capsule_cli.shared.asked import asked
from capsule_cli.shared.options import Agent, argument, flag, option, refuse, seconds
from capsule_cli.shared.output import answer, in_terminal, listing, one_line, out, short_time
from capsule_cli.shared.passing import passing

if TYPE_CHECKING:
    from capsule.sessions.registry import Item

does = passing(store_of)

complete_session = completing(
    named,
    lambda store: store.sessions.list(),
    lambda session: (session.id, f"{session.agent} {session.place}".strip()),
)
_SESSION = "The session: its id, or a unique beginning of it."
Session = Annotated[str, argument("SESSION", _SESSION, ..., autocompletion=complete_session)]
_PLACE = (
    "A conversation, a channel by its name, or an agent; or ADAPTER:PLACE, as webhook:ci for "
    "the webhook ci."
)
Place = Annotated[str, argument("PLACE", _PLACE, ...)]
Message = Annotated[str, argument("MESSAGE", "The id of a message, or of an answer.", ...)]
Series = Annotated[
    str | None, option("--series ID", "Change only this series of scheduled messages.", ...)
]
_CANCELLED = "The id of a message, a series, a question or a session."
_CANCEL = (
    "Cancel a message that is not answered yet, a series, or a question, or close a session "
    "with all that waits."
)
_FORBIDDEN = "The name by which the agent calls the place, or the place."


def list_(
    agent: str | None = option(
        "--agent AGENT", "List only the sessions of this agent.", autocompletion=complete_agent
    ),
) -> None:
    """List the sessions, the last active first."""
    with store_of() as store:
        sessions = store.sessions.list(agent)
    rows = [
        (row.id, row.agent, row.status, row.worker, row.last_active, _place(row))
        for row in sessions
    ]
    columns = ("id", "agent", "status", "worker", "seen", "place")
    listing(
        _as_json(*sessions),
        columns,
        rows,
        "there is no session yet; a message makes one",
        last="place",
    )


show = does("Print what is known of a session: what waits, what runs, where its agent may send.")(
    "sessions.get", session=Session
)
pause = does(
    "Pause a session, or one of its series: what comes is kept, and nothing is answered until "
    "`resume`."
)(
    "sessions.pause",
    lambda id, series, **_: f"{series or id}: paused",
    value=lambda id, session, series: {"id": id, "series": series, "paused": True},
    session=Session,
    series=Series,
)
resume = does("Resume a session, or one of its series.")(
    "sessions.resume",
    lambda id, series, **_: f"{series or id}: goes on",
    value=lambda id, session, series: {"id": id, "series": series, "paused": False},
    session=Session,
    series=Series,
)
retry = does(
    "Try a message again that failed or waits for its next try, or an answer that could not be "
    "delivered."
)(
    "sessions.retry",
    "{message}: is tried again",
    value=lambda sessions, message: {"message": message, "sessions": sessions},
    message=Message,
)
cancel = does(_CANCEL)(
    "sessions.cancel",
    "{id}: cancelled",
    value=lambda cancelled, id: {"id": id, "cancelled": cancelled},
    id=Annotated[str, argument("ID", _CANCELLED, ...)],
)
unwire = does(
    "Remove the wiring of an agent to a place. The agent still answers there when it is mentioned."
)(
    "sessions.unwire",
    "{place}: {agent} is not wired",
    value=lambda _, place, agent: {"place": place, "agent": agent, "wired": False},
    place=Place,
    agent=Agent,
)
allow = does(
    "Permit an agent to send to a place by itself, and print the name that it has for the place."
)(
    "sessions.allow",
    "{0}",
    value=lambda name, agent, place, title: {"agent": agent, "place": place, "name": name},
    agent=Agent,
    place=Place,
    title=Annotated[str | None, option("--name NAME", "Make the name from this text.", ...)],
)
forbid = does(
    "Stop an agent from sending to a place by itself. It may still answer what comes from there."
)(
    "sessions.forbid",
    "{agent} no longer sends to {name}",
    value=lambda _, agent, name: {"agent": agent, "name": name, "allowed": False},
    agent=Agent,
    name=Annotated[str, argument("NAME", _FORBIDDEN, ...)],
)


def why(message: Message) -> None:
    """Print the whole way of a message: who got it and why, who claimed it, what was answered and
    delivered.
    """
    with store_of() as store:
        steps = store.sessions.why(message)
    if in_terminal() and not asked.json:  # Not a table, which would cut the details.
        for step in steps:
            out(
                one_line(
                    f"{short_time(step.at, 'seconds')}  {step.agent}  {step.kind:<9}  {step.text}"
                )
            )
    else:
        rows = [(step.at, step.agent, step.kind, step.text) for step in steps]
        listing([asdict(step) for step in steps], ("time", "agent", "step", "details"), rows, "")


def set_(
    name: str | None = argument(
        "AGENT", "The agent. Without: all of them.", autocompletion=complete_agent
    ),
    command: list[str] | None = argument(
        "COMMAND",
        "The command that answers, after --: prompt on its standard input, answer on its standard "
        "output.",
    ),
    folder: str | None = option("--folder DIR", "Run the command in this folder."),
    provider: str | None = option(
        "--provider NAME", "Name the program behind the command, as claude."
    ),
    time_zone: str | None = option(
        "--time-zone ZONE", "Read schedules in this time zone, as Europe/Berlin."
    ),
    idle: str | None = option(
        "--idle DURATION", "End a worker that had nothing to do for this time, for example 10m."
    ),
    for_: str | None = option(
        "--for DURATION", "Stop the command after this time, for example 30m."
    ),
    max_hops: int | None = option(
        "--max-hops N", "Answer no message that came through more agents than this."
    ),
    approve: bool = flag(
        "--approve", "Approve the command that the store has: it may run on this machine."
    ),
) -> None:
    """Set the command by which an agent answers, or print it. One that another machine set has to
    be approved here.
    """
    refuse(name is None and (command or approve), "say which agent", "AGENT")
    refuse(
        folder is not None and not os.path.isdir(folder), f"{folder} is no directory", "--folder"
    )
    folder = folder and os.path.realpath(folder)  # The host may run elsewhere.
    settings = {
        "timeZone": time_zone,
        "idleS": None if idle is None else seconds(idle, "--idle", unit="s"),
        "limitS": None if for_ is None else seconds(for_, "--for", unit="s"),
        "maxHops": max_hops,
    }
    given = {key: value for key, value in settings.items() if value is not None}
    with store_of() as store:
        sessions = store.sessions
        if name is None:
            agents = list(sessions.registry.read().agents.values())
        elif command or given or folder is not None or provider is not None:
            agents = [
                sessions.set_agent(name, command, folder=folder, provider=provider, settings=given)
            ]
        else:
            agents = [sessions.agent(name)]
        if approve:
            sessions.registry.approve(agents[0])
        facts = [
            fact | {"approved": sessions.registry.is_approved(each)}
            for fact, each in zip(_as_json(*agents), agents, strict=True)
        ]
    rows = [
        (
            fact["name"],
            " ".join(fact["command"]),
            "" if fact["approved"] else "not approved",
            fact["folder"],
        )
        for fact in facts
    ]
    listing(
        facts,
        ("name", "command", "state", "folder"),
        rows,
        "no agent has a command; see: capsule worker set --help",
        last="command",
    )


def wire(
    place: str | None = argument("PLACE", f"{_PLACE} Without: all wirings are listed."),
    agent: str | None = argument(
        "AGENT",
        "The agent that answers there: its id, its name, or NAME@PROJECT.",
        autocompletion=complete_agent,
    ),
    engage: Literal["pattern", "mention", "mention-sticky"] = option(
        "--engage",
        "Wake it by texts with a pattern, by mentions, or by all that follows a mention in a "
        "thread.",
        "mention",
    ),
    pattern: str | None = option(
        "--pattern REGEX", "Wake it by texts in which this is found; . is any text."
    ),
    senders: Literal["all", "known"] = option(
        "--senders", "Wake it by everybody, or by known agents.", "all"
    ),
    ignored: Literal["drop", "accumulate"] = option(
        "--ignored", "Drop other messages, or keep them for later.", "drop"
    ),
    one_for: Literal["shared", "per-thread", "agent-shared"] = option(
        "--one-for",
        "Have one session for the place, for each thread, or for all places of the agent.",
        "shared",
    ),
) -> None:
    """Wire an agent to a place, so that it answers there. It answers directs and mentions without a
    wiring.
    """
    refuse((place is None) != (agent is None), "say which agent answers there", "AGENT")
    with store_of() as store:
        if place is None or agent is None:
            wirings = list(store.sessions.registry.read().wirings.values())
        else:
            words: dict[str, Any] = {"senders": senders, "ignored": ignored, "session": one_for}
            words |= (
                {"engage": "pattern", "pattern": pattern}
                if pattern is not None
                else {"engage": engage}
            )
            wirings = [store.sessions.wire(place, agent, **words)]
    rows = [
        (_place(it), it.agent, it.engage, it.pattern, it.senders, it.ignored, it.session)
        for it in wirings
    ]
    columns = ("place", "agent", "engage", "pattern", "senders", "ignored", "session")
    listing(_as_json(*wirings), columns, rows, "nothing is wired", last="pattern")


def webhook(
    name: str = argument("NAME", "Its name: messages come to /hooks/NAME.", ...),
    url: str = option("--url URL", "Send what is said there to this address.", ""),
    remove: bool = flag("--remove", "Remove it, with its secret."),
) -> None:
    """Make a webhook on this machine and print its secret, with which both sides sign (Standard
    Webhooks).
    """
    with store_of() as store:
        if remove:
            store.sessions.webhooks.remove(name)
            answer({"name": name, "removed": True}, f"{name}: removed")
        else:
            hook = store.sessions.webhooks.keep(name, url)
            answer(asdict(hook), hook.secret)


def _as_json(*items: Item) -> list[dict[str, Any]]:
    from capsule.format.documents.head import camel

    return [{camel(name): value for name, value in asdict(item).items()} for item in items]


def _place(item: Any) -> str:
    place = item.place if item.channel in ("", "conversations") else f"{item.channel}:{item.place}"
    return f"{place} {getattr(item, 'thread', '')}".strip()
