"""The commands `worker ...`: set workers up, run one, run a host, and look at sessions.

Most commands open the store, make one call of `store.sessions` and print the result. A host starts a
worker (`capsule worker run --agent NAME [--session ID] [-- COMMAND]`) for a waiting message. It also
starts one ahead of any message, with `--agent -`. That one opens the store, and reads two lines when
it gets its work: the agent, and the session.

What must stay true:
- A worker imports no typer, no pydantic and no mcp, and nothing at all once a message came. It ends,
  together with its command, when SIGTERM comes or its host ends.
- A first signal ends a host between two steps, and a second one ends it at once. Its log is JSON
  lines on stderr. Only the messages of --stdio go to stdout.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal

from capsule import timestamps
from capsule_cli.exits import INTERRUPTED, TERMINATED, end_at_once
from capsule_cli.public import open_full_store, open_named_agent_store
from capsule_cli.shared.options import (
    Agent,
    argument,
    complete_agent,
    completion_of,
    flag,
    option,
    parse_duration,
    refuse_if,
)
from capsule_cli.shared.output import (
    global_options,
    in_terminal,
    one_line,
    print_answer,
    print_fields,
    print_json_bytes,
    print_list,
    print_safe_bytes,
    print_text,
    short_time,
)
from capsule_cli.shared.stores import ensure_person

if TYPE_CHECKING:
    import socket

    import psutil  # type: ignore[import-untyped]

    from capsule.sessions.registry import RegistryItem


# -- The process of a worker -----------------------------------------------------------------------


def run_worker(
    *, store: str | None = None, agent: str, command: Sequence[str], **options: Any
) -> None:
    """Run a worker until it ends. Raises CapsuleError.

    Args:
        store: The store's directory. None: it is located.
        agent: The agent, or `-` to read the agent and the session from stdin.
        command: The command. Empty: the command of the registry.
        options: Other arguments of `worker_of`.
    """
    from capsule import Store
    from capsule.sessions.worker.worker import worker_of

    signal.signal(signal.SIGTERM, _end_worker)
    with Store.open(store, keep_locks=False) as opened_store:
        agent_id = agent
        worker_options = dict(options)
        if agent == "-":
            # What this imports is there when a message comes.
            opened_store.engine.tracker().close()
            agent_id = sys.stdin.readline().strip()
            worker_options["session"] = sys.stdin.readline().strip()
            if not agent_id:  # The host has ended.
                return
            threading.Thread(target=_end_with_host, daemon=True).start()
        worker_of(
            opened_store, agent_id, command, os.environ, log=_write_step, **worker_options
        ).run()


def _end_with_host() -> None:
    """Wait for the end of stdin, which only the host holds open, and end this process. If the host
    is killed, the kernel closes it.
    """
    os.read(0, 1)
    os.kill(os.getpid(), signal.SIGTERM)


def _end_worker(*_: object) -> None:
    # A second signal would interrupt the worker while it gives its messages back.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    sys.exit(0)


def run_worker_and_log(options: Mapping[str, Any]) -> int:
    """Run a worker, write an error as a line of the log, and return the exit code.

    Args:
        options: The arguments of `run`.
    """
    from capsule.errors import CapsuleError

    try:
        run_worker(**options)
    except CapsuleError as error:
        _write_step("failed", error=error.message)
        return error.exit_code
    except Exception as error:
        import traceback

        _write_step(
            "failed", error=f"{type(error).__name__}: {error}", trace=traceback.format_exc()
        )
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def write_line(line: dict[str, Any]) -> None:
    """Write a line of the log in one piece, because hosts, workers and threads write to one log.

    If its reader has ended, as a host that was killed, the line is lost and the worker goes on.
    """
    import orjson

    with suppress(OSError):
        os.write(sys.stderr.fileno(), orjson.dumps(line) + b"\n")


def _write_step(step: str, **fields: Any) -> None:
    from capsule import timestamps

    write_line({"time": timestamps.now(), "step": step, **fields})


# -- Workers and sessions --------------------------------------------------------------------------

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
        sys.exit(run_worker_and_log(options))
    idle_s = None if idle is None else parse_duration(idle, "--idle")
    limit_s = None if for_ is None else parse_duration(for_, "--for")
    run_worker(**options, idle_s=idle_s, limit_s=limit_s)


# -- The host --------------------------------------------------------------------------------------

#: Seconds after which `status` refreshes the table at a terminal.
_REFRESH_S = 1.0
#: The columns of `status`, which are the names of JSON fields.
_COLUMNS = ("what", "agent", "state", "pid", "cpu", "memory", "since", "session")


def host(
    webhook: str | None = option(
        "--webhook [HOST:]PORT", "Take signed messages by HTTP there. Without HOST: 127.0.0.1."
    ),
    stdio: bool = flag(
        "--stdio",
        "Take messages as JSON lines on standard input, and write answers to standard output.",
    ),
    workers: int = option("--workers N", "Run at most N workers at once.", 8, min=1),
) -> None:
    """Wake workers when messages come, deliver their answers, retry, schedule, and recover after
    crashes.

    It runs until Ctrl-C or SIGTERM; with --stdio also until its input ends. A second host on the
    same store waits, and takes over when the first one ends.
    """
    import typer

    from capsule_cli.commands.mcp import launch_words

    ensure_person("hosts")
    from capsule.sessions.adapters.interface import installed
    from capsule.sessions.adapters.programs import StdioAdapter, WebhookAdapter
    from capsule.sessions.host.host import Host, prestarted_workers

    stop = threading.Event()
    exit_codes = [0]
    read_end, write_end = os.pipe()

    def on_signal(number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_DFL)  # So a second signal ends the process.
        exit_codes.append(INTERRUPTED if number == signal.SIGINT else TERMINATED)
        # Not `stop.set`, because the interrupted code may hold the lock of the event.
        os.write(write_end, b".")

    def stop_after_signal() -> None:
        os.read(read_end, 1)
        stop.set()

    threading.Thread(target=stop_after_signal, name="signals", daemon=True).start()
    with open_full_store() as store:
        listen = _listener_of(webhook) if webhook else None
        adapters: list[Any] = [WebhookAdapter(store.engine, listen)]
        adapters += installed(store)
        if stdio:
            wirings = store.sessions.registry.read().wirings.values()
            is_wired = any(wiring.channel == StdioAdapter.name for wiring in wirings)
            hint = (
                "no agent is wired to it; begin with: capsule worker wire stdio:stdio AGENT "
                "--pattern ."
            )
            refuse_if(not is_wired, hint, "--stdio")
            # Not `sys.stdin.buffer`: a thread that reads from it is fatal when the interpreter
            # ends.
            lines = open(sys.stdin.fileno(), "rb", closefd=False)  # noqa: SIM115
            adapters.append(StdioAdapter(lines, print_json_bytes, stop.set))
        words = [*launch_words(), "worker", "run", "--store", store.root, "--agent", "-"]
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, on_signal)
        with prestarted_workers(words) as spawn:
            running_host = Host(
                store, spawn=spawn, adapters=adapters, log=write_line, max_workers=workers
            )
            running_host.run(stop)
    raise typer.Exit(exit_codes[-1])


def _listener_of(address: str) -> Callable[[], socket.socket]:
    """Return a function that opens the port of an address and logs it.

    Raises InvalidInput if the address cannot be read.
    """
    from capsule.mcp_server.transport import process

    host_and_port = process.parse_address(address)

    def listen() -> socket.socket:
        listener = process.listen(*host_and_port)
        fields = {"host": listener.host, "port": listener.port}
        write_line({"time": timestamps.now(), "step": "listening", **fields})
        return listener.socket

    return listen


def status() -> None:
    """Print the running hosts and workers. At a terminal the table is refreshed until Ctrl-C."""
    end_at_once()
    processes: dict[int, psutil.Process] = {}
    with open_full_store() as store:
        while True:
            instances = []
            for fields in store.engine.leases.live_instances().values():
                instance = _describe_instance(fields)
                if instance:
                    instances.append(instance | _load_of(instance.get("pid"), processes))
            rows = [
                tuple(str(instance.get(name, "")) for name in _COLUMNS) for instance in instances
            ]
            is_refreshed = in_terminal() and not global_options.json
            if is_refreshed:
                print_safe_bytes(b"\x1b[H\x1b[J")
            print_list(
                instances,
                _COLUMNS,
                rows,
                "no host runs; begin with: capsule worker host",
                last="session",
            )
            if not is_refreshed:
                return
            time.sleep(_REFRESH_S)


def _describe_instance(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON of an instance, from the fields that it announces. Empty: it is neither a
    host nor a worker.
    """
    if "host" in fields:
        return {"what": "host", **fields, "pid": fields["host"]}
    if "session" in fields:
        return {"what": "worker", **fields}
    return {}


def _load_of(pid: Any, processes: dict[int, psutil.Process]) -> dict[str, str]:
    """Return how much processor time and memory a process uses. Empty: it ended, or is another
    user's.

    Args:
        pid: Its process id.
        processes: The processes by id, which remember the last measurement.
    """
    import psutil

    try:
        process = processes.setdefault(pid, psutil.Process(pid))
        return {
            "cpu": f"{process.cpu_percent():.0f}%",
            "memory": f"{process.memory_info().rss >> 20} MiB",
        }
    except (psutil.Error, TypeError):
        return {}
