"""The commands `worker ...` except for the host: set workers up, run one, and look at sessions.

Each command opens the store, makes one call of `store.sessions` and prints the result.
`worker run` calls `worker_process.py`.
"""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsule_cli.commands.sessions import worker_process
from capsule_cli.completion import complete_agent, completion_of
from capsule_cli.public import open_full_store, open_named_agent_store
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import Agent, argument, flag, option, parse_duration, refuse_if
from capsule_cli.shared.output import (
    in_terminal,
    one_line,
    print_answer,
    print_fields,
    print_list,
    print_text,
    short_time,
)

if TYPE_CHECKING:
    from capsule.sessions.registry import RegistryItem


complete_session = completion_of(
    open_named_agent_store,
    lambda store: store.sessions.list(),
    lambda session: (session.id, f"{session.agent} {session.place}".strip()),
)
_SESSION_HELP = "The session: its id, or a unique beginning of it."
Session = Annotated[str, argument("SESSION", _SESSION_HELP, ..., autocompletion=complete_session)]
_PLACE_HELP = (
    "A conversation, a channel by its name, or an agent; or ADAPTER:PLACE, as webhook:ci for "
    "the webhook ci."
)
Place = Annotated[str, argument("PLACE", _PLACE_HELP, ...)]
Message = Annotated[str, argument("MESSAGE", "The id of a message, or of an answer.", ...)]
Series = Annotated[
    str | None, option("--series ID", "Change only this series of scheduled messages.", ...)
]
_CANCEL_HELP = "The id of a message, a series, a question or a session."
Title = Annotated[str | None, option("--name NAME", "Make the name from this text.", ...)]
_DESTINATION_HELP = "The name by which the agent calls the place, or the place."


def list_(
    agent: str | None = option(
        "--agent AGENT", "List only the sessions of this agent.", autocompletion=complete_agent
    ),
) -> None:
    """List the sessions, the last active first."""
    with open_full_store() as store:
        sessions = store.sessions.list(agent)
    rows = [
        (
            session.id,
            session.agent,
            session.status,
            session.worker,
            session.last_active,
            _place_text(session),
        )
        for session in sessions
    ]
    columns = ("id", "agent", "status", "worker", "seen", "place")
    print_list(
        _as_json(*sessions),
        columns,
        rows,
        "there is no session yet; a message makes one",
        last="place",
    )


def show(session: Session) -> None:
    """Print the state of a session: waiting messages, running work, and the destinations of its
    agent."""
    with open_full_store() as store:
        fields = store.sessions.get(session)
    print_fields(fields)


def pause(session: Session, series: Series = None) -> None:
    """Pause a session, or one of its series. New messages are kept, and nothing is answered until
    `resume`.
    """
    with open_full_store() as store:
        id = store.sessions.pause(session, series=series)
    print_answer({"id": id, "series": series, "paused": True}, f"{one_line(series or id)}: paused")


def resume(session: Session, series: Series = None) -> None:
    """Resume a session, or one of its series."""
    with open_full_store() as store:
        id = store.sessions.resume(session, series=series)
    print_answer(
        {"id": id, "series": series, "paused": False}, f"{one_line(series or id)}: goes on"
    )


def retry(message: Message) -> None:
    """Try again a message that failed or waits for its next try, or an answer that could not be
    delivered.
    """
    with open_full_store() as store:
        sessions = store.sessions.retry(message)
    print_answer(
        {"message": message, "sessions": list(sessions)},
        f"{one_line(message)}: will be tried again",
    )


def cancel(id: Annotated[str, argument("ID", _CANCEL_HELP, ...)]) -> None:
    """Cancel a message that is not answered yet, a series, or a question, or close a session with
    all that waits.
    """
    with open_full_store() as store:
        cancelled = store.sessions.cancel(id)
    print_answer({"id": id, "cancelled": list(cancelled)}, f"{one_line(id)}: cancelled")


def unwire(place: Place, agent: Agent) -> None:
    """Remove the wiring of an agent to a place. The agent still answers there when it is
    mentioned.
    """
    with open_full_store() as store:
        store.sessions.unwire(place, agent)
    print_answer(
        {"place": place, "agent": agent, "wired": False},
        f"{one_line(place)}: {one_line(agent)} is not wired",
    )


def allow(agent: Agent, place: Place, title: Title = None) -> None:
    """Permit an agent to send to a place by itself, and print the agent's name for the place."""
    with open_full_store() as store:
        name = store.sessions.allow(agent, place, title=title)
    print_answer({"agent": agent, "place": place, "name": name}, name)


def forbid(agent: Agent, name: Annotated[str, argument("NAME", _DESTINATION_HELP, ...)]) -> None:
    """Stop an agent from sending to a place by itself. It may still answer messages from there."""
    with open_full_store() as store:
        store.sessions.forbid(agent, name)
    print_answer(
        {"agent": agent, "name": name, "allowed": False},
        f"{one_line(agent)} no longer sends to {one_line(name)}",
    )


def why(message: Message) -> None:
    """Print the whole path of a message: its recipients with the reasons, its claims, its answers
    and their delivery.
    """
    with open_full_store() as store:
        steps = store.sessions.why(message)
    if in_terminal() and not global_options.json:  # Not a table, which would cut the details.
        for step in steps:
            time = short_time(step.at, "seconds")
            print_text(one_line(f"{time}  {step.agent}  {step.kind:<9}  {step.text}"))
    else:
        rows = [(step.at, step.agent, step.kind, step.text) for step in steps]
        print_list([asdict(step) for step in steps], ("time", "agent", "step", "details"), rows, "")


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
        "--idle DURATION", "End a worker after this time without work, for example 10m."
    ),
    for_: str | None = option(
        "--for DURATION", "Stop the command after this time, for example 30m."
    ),
    max_hops: int | None = option(
        "--max-hops N", "Ignore messages that came through more agents than this."
    ),
    approve: bool = flag(
        "--approve", "Approve the command that the store has: it may run on this machine."
    ),
) -> None:
    """Set the command that answers for an agent, or print it. A command that another machine set
    must be approved here.
    """
    refuse_if(name is None and (command or approve), "name the agent", "AGENT")
    is_folder_wrong = folder is not None and not os.path.isdir(folder)
    refuse_if(is_folder_wrong, f"{folder} is not a directory", "--folder")
    # The absolute path, because the host may run in another folder.
    real_folder = os.path.realpath(folder) if folder else folder
    settings = _settings(time_zone, idle, for_, max_hops)
    changes_setup = command or settings or folder is not None or provider is not None
    with open_full_store() as store:
        sessions = store.sessions
        if name is None:
            agents = list(sessions.registry.read().agents.values())
        elif changes_setup:
            agent_setup = sessions.set_agent(
                name, command, folder=real_folder, provider=provider, settings=settings
            )
            agents = [agent_setup]
        else:
            agents = [sessions.agent(name)]
        if approve:
            sessions.registry.approve(agents[0])
        entries = _as_json(*agents)
        for entry, agent_setup in zip(entries, agents, strict=True):
            entry["approved"] = sessions.registry.is_approved(agent_setup)
    rows = []
    for entry in entries:
        state = "" if entry["approved"] else "not approved"
        rows.append((entry["name"], " ".join(entry["command"]), state, entry["folder"]))
    print_list(
        entries,
        ("name", "command", "state", "folder"),
        rows,
        "no agent has a command; see: capsule worker set --help",
        last="command",
    )


def _settings(
    time_zone: str | None, idle: str | None, for_: str | None, max_hops: int | None
) -> dict[str, Any]:
    """Return the given options of `set_` as settings of the registry."""
    settings: dict[str, Any] = {}
    if time_zone is not None:
        settings["timeZone"] = time_zone
    if idle is not None:
        settings["idleS"] = parse_duration(idle, "--idle", unit="s")
    if for_ is not None:
        settings["limitS"] = parse_duration(for_, "--for", unit="s")
    if max_hops is not None:
        settings["maxHops"] = max_hops
    return settings


def wire(
    place: str | None = argument("PLACE", f"{_PLACE_HELP} Without: all wirings are listed."),
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
    """Wire an agent to a place, so that it answers there. Direct messages and mentions need no
    wiring.
    """
    refuse_if((place is None) != (agent is None), "name the agent that answers there", "AGENT")
    with open_full_store() as store:
        if place is None or agent is None:
            wirings = list(store.sessions.registry.read().wirings.values())
        else:
            fields: dict[str, Any] = {
                "senders": senders,
                "ignored": ignored,
                "session": one_for,
            }
            if pattern is not None:
                fields["engage"] = "pattern"
                fields["pattern"] = pattern
            else:
                fields["engage"] = engage
            wirings = [store.sessions.wire(place, agent, **fields)]
    rows = [
        (
            _place_text(wiring),
            wiring.agent,
            wiring.engage,
            wiring.pattern,
            wiring.senders,
            wiring.ignored,
            wiring.session,
        )
        for wiring in wirings
    ]
    columns = ("place", "agent", "engage", "pattern", "senders", "ignored", "session")
    print_list(_as_json(*wirings), columns, rows, "nothing is wired", last="pattern")


def webhook(
    name: str = argument("NAME", "Its name: messages come to /hooks/NAME.", ...),
    url: str = option("--url URL", "Send the agents' messages there to this address.", ""),
    remove: bool = flag("--remove", "Remove it, with its secret."),
) -> None:
    """Make a webhook on this machine and print its secret, with which both sides sign (Standard
    Webhooks).
    """
    with open_full_store() as store:
        if remove:
            store.sessions.webhooks.remove(name)
            print_answer({"name": name, "removed": True}, f"{name}: removed")
        else:
            hook = store.sessions.webhooks.keep(name, url)
            print_answer(asdict(hook), hook.secret)


def _as_json(*items: RegistryItem) -> list[dict[str, Any]]:
    from capsule.format.documents.head import json_name

    return [{json_name(name): value for name, value in asdict(item).items()} for item in items]


def _place_text(item: Any) -> str:
    """Return the place of a session or a wiring, with its channel and thread where it has them."""
    place = item.place
    if item.channel not in ("", "conversations"):
        place = f"{item.channel}:{item.place}"
    return f"{place} {getattr(item, 'thread', '')}".strip()


def run(
    command: list[str] = argument("COMMAND", "After --: the command and its arguments.", []),
    agent: str = option(
        "--agent AGENT", "Answer for this agent, which is set up if necessary.", ...
    ),
    session: str | None = option(
        "--session ID", "Serve this session only. Else: all those of the agent, in turn."
    ),
    idle: str | None = option(
        "--idle DURATION", "End after this time without work. With --session: 10m, else never."
    ),
    for_: str | None = option("--for DURATION", "Stop the command after this time. Else: 30m."),
) -> None:
    """Answer the messages of an agent by a command, until SIGTERM comes.

    The command reads the messages from stdin, and its output is the answer. If it prints nothing,
    no answer is sent. Exit code 0 means done, and 65, 126 or 127 a permanent failure. After any
    other code it is tried again, up to five times, with growing pauses. Without COMMAND, the
    command of `capsule worker set` is used.

    The environment has CAPSULE_STORE, CAPSULE_AGENT, CAPSULE_SESSION and CAPSULE_MESSAGE, so
    `capsule mcp serve --tools session` gives the command tools. To continue its own session, the
    command writes the session's id to the file $CAPSULE_CONTINUATION_FILE, and finds it the next
    time in CAPSULE_CONTINUATION. A blank id is ignored.

    The command and its child processes end with the worker, even if the worker is killed.
    """
    options: dict[str, Any] = {
        "store": global_options.store,
        "agent": agent,
        "session": session,
        "command": command,
    }
    has_other_options = (
        global_options.json
        or global_options.as_
        or global_options.instance
        or global_options.no_pager
    )
    if idle is None and for_ is None and not has_other_options:
        # A host starts it in this way, and reads an error as a line of the log.
        sys.exit(worker_process.main(options))
    idle_s = None if idle is None else parse_duration(idle, "--idle")
    limit_s = None if for_ is None else parse_duration(for_, "--for")
    worker_process.run(**options, idle_s=idle_s, limit_s=limit_s)
