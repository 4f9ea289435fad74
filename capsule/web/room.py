"""The room of the web page: it adds one command.

Each function imports its command when it is called, so that listing rooms loads nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping

from capsule.rooms import Command, Room


def _web_commands() -> Mapping[str, Command]:
    from capsule_cli.commands.web import web

    return {
        "web": web.web,
    }


ROOM = Room(
    "web",
    commands={
        "web": _web_commands,
    },
    help=(("Write and read", 45, "web", "Open the store in a browser."),),
)
