"""Sessions as a room: workers, their commands and tools, and what an agent may do in one.

Every function imports what it names, so that listing a room loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capsule.rooms import Command, Room

if TYPE_CHECKING:
    from capsule.mcp_server.added import Added
    from capsule.sessions.sessions import Sessions
    from capsule.store.store import CoreStore


def _sessions() -> type[Sessions]:
    from capsule.sessions.sessions import Sessions

    return Sessions


def _forget_purged(store: CoreStore) -> None:
    store.inner.part(_sessions()).compact()


def _bind(store: CoreStore, session: str) -> None:
    from capsule.sessions.work import toolkit

    toolkit.bind(store, session)


def _session_tools() -> Added:
    from capsule.sessions.tools import SESSION

    return SESSION


def _session_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.sessions import session

    return {
        "worker list": session.list_,
        "worker show": session.show,
        "worker set": session.set_,
        "worker wire": session.wire,
        "worker unwire": session.unwire,
        "worker allow": session.allow,
        "worker forbid": session.forbid,
        "worker webhook": session.webhook,
        "worker why": session.why,
        "worker pause": session.pause,
        "worker resume": session.resume,
        "worker retry": session.retry,
        "worker cancel": session.cancel,
    }


def _worker_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.sessions import worker

    return {
        "worker run": worker.run,
    }


def _host_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.sessions import host

    return {
        "worker host": host.host,
        "worker status": host.status,
    }


ROOM = Room(
    "sessions",
    kinds=("sessions",),
    objects={"sessions": _sessions},
    commands={
        (
            "worker list, worker show, worker set, worker wire, worker unwire, worker allow, "
            "worker forbid, worker webhook, worker why, worker pause, worker resume, "
            "worker retry, worker cancel"
        ): _session_commands,
        "worker run": _worker_commands,
        "worker host, worker status": _host_commands,
    },
    groups={"worker": "Answer messages with programs, and see what becomes of each message."},
    help=(("Talk to each other", 60, "worker", "Answer messages with programs."),),
    forget_purged=_forget_purged,
    bind=_bind,
    tools={"session": _session_tools},
)
