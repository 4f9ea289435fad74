"""The web page as a room: one command.

Every function imports what it names, so that listing a room loads nothing else.
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
