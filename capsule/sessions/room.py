"""The room of sessions: the object, commands and tools that it adds to the core.

Each function imports what it returns, so that listing the room imports nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from capsule.rooms import Command, Room

if TYPE_CHECKING:
    from capsule.mcp_server.extensions import ServerExtension
    from capsule.sessions.sessions import Sessions
    from capsule.store.store import CoreStore


def _sessions() -> type[Sessions]:
    from capsule.sessions.sessions import Sessions

    return Sessions


def _forget_purged(store: CoreStore) -> None:
    store.inner.object_of(_sessions()).compact()


def _restrict(store: CoreStore, session: str) -> None:
    from capsule.sessions.worker import toolkit

    toolkit.restrict_to_destinations(store, session)


def _session_tools() -> ServerExtension:
    from capsule.sessions.mcp_tools import SESSION

    return SESSION


def _worker_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.sessions import workers

    return {
        "worker list": workers.list_,
        "worker show": workers.show,
        "worker set": workers.set_,
        "worker wire": workers.wire,
        "worker unwire": workers.unwire,
        "worker allow": workers.allow,
        "worker forbid": workers.forbid,
        "worker webhook": workers.webhook,
        "worker why": workers.why,
        "worker pause": workers.pause,
        "worker resume": workers.resume,
        "worker retry": workers.retry,
        "worker cancel": workers.cancel,
        "worker run": workers.run,
        "worker host": workers.host,
        "worker status": workers.status,
    }


ROOM = Room(
    "sessions",
    kinds=("sessions",),
    objects={"sessions": _sessions},
    commands={
        (
            "worker list, worker show, worker set, worker wire, worker unwire, worker allow, "
            "worker forbid, worker webhook, worker why, worker pause, worker resume, "
            "worker retry, worker cancel, worker run, worker host, worker status"
        ): _worker_commands,
    },
    groups={"worker": "Answer messages with programs, and trace each message."},
    help=(("Talk to each other", 60, "worker", "Answer messages with programs."),),
    forget_purged=_forget_purged,
    bind=_restrict,
    tools={"session": _session_tools},
)
