"""The rooms that stand on the core: which there are, and what each of them adds.

What must stay true: the core names a room here and nowhere else, and works without any of them. If
a room that comes with Capsule is not installed, what needs it raises Refused with its name. Rooms
of other packages come by the entry points `capsule.rooms`, if `capsule.toml` names them; else
nothing is scanned, since a scan takes 46 ms.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from capsule.errors import Refused

#: The rooms that come with Capsule, each a package here, with its commands and groups of commands.
BUILT_IN = {
    "context": ("context", "mcp servers"),
    "git": ("git",),
    "messaging": (
        *(
            "send",
            "inbox",
            "listen",
            "history",
            "agent",
            "channel",
            "group",
            "note",
            "mention",
            "message",
        ),
        *("project", "config"),
    ),
    "sessions": ("worker",),
    "transfer": ("import", "export"),
    "web": ("web",),
}
#: Which of them has what the core asks for, by the field of `Room` that says where it is.
ANSWERS = {
    "guard": "messaging",
    "complete_agent": "messaging",
    "bind": "sessions",
    "clone": "git",
    "past_of": "git",
}
GROUP = "capsule.rooms"

_NONE: Mapping[str, Any] = MappingProxyType({})


class Room(NamedTuple):
    """What a room adds. A place is the text `module:name`, and nothing is imported before it is
    needed.

    Attributes:
        name: The name of the room.
        kinds: The kinds of documents that are its own.
        objects: The place of the class of each object that it adds to the Store, by the name of the
            attribute.
        package: Where the modules of its commands are.
        commands: Its commands, separated by commas, by the name of the module that has their
            functions. A command is one word, or those of its groups and one more: `agent wake
            test`.
        groups: The words that explain each group of commands.
        help: Its lines in the help: the topic, the place among the lines of the topic (those of the
            core have the places 10, 20, 30 ...), the commands, and what they do.
        tools: The place of what it adds to an MCP server (`mcp_server.added.Added`), by the sets of
            tools that have it, separated by spaces.
        resources: The place of the function that registers its resources on an MCP server.
        keepers: Those of its objects that keep traces of deleted texts, with the method that
            removes these.
        guard: The place of what it has to say before an agent reads or writes
            (`store.inner.Guard`).
        bind: The place of the function that lets a store do only what the agent may in a session.
        complete_agent: The place of what completes the name of an agent on the command line.
        clone: The place of the function that takes a store as part of its git repository.
        past_of: The place of the function that gives a past version of a conversation to show.
    """

    name: str
    kinds: tuple[str, ...] = ()
    objects: Mapping[str, str] = _NONE
    package: str = ""
    commands: Mapping[str, str] = _NONE
    groups: Mapping[str, str] = _NONE
    help: tuple[tuple[str, int, str, str], ...] = ()
    tools: Mapping[str, str] = _NONE
    resources: str = ""
    keepers: Mapping[str, str] = _NONE
    guard: str = ""
    bind: str = ""
    complete_agent: str = ""
    clone: str = ""
    past_of: str = ""

    def modules(self) -> dict[str, str]:
        """The module of each command, by all of its words."""
        declared = (
            (name, module) for module, names in self.commands.items() for name in names.split(", ")
        )
        return {name: f"{self.package}.{module}" for name, module in declared}

    def names(self, group: str = "") -> list[str]:
        """The names of the commands and groups at the top, or in a group, in the order of their
        declaration.
        """
        before = f"{group} " if group else ""
        here = (name.removeprefix(before) for name in self.modules() if name.startswith(before))
        return list(dict.fromkeys(name.partition(" ")[0] for name in here))


def load(place: str) -> Any:
    """What stands at a place. Raises Refused if it is in a room that is not installed."""
    module, _, name = place.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise (missing(error) or error) from error


def missing(error: ModuleNotFoundError) -> Refused | None:
    """The error to show for an import that failed; None: what is missing is no room that comes with
    Capsule.
    """
    for name in BUILT_IN:
        for package in (f"capsule.{name}", f"capsule_cli.commands.{name}"):
            if f"{error.name}.".startswith(f"{package}."):
                return Refused(
                    f"{name} is not installed here: this Capsule lacks its part {package}", path=""
                )
    return None


def built_in(name: str) -> Room:
    """A room that comes with Capsule. Raises Refused: it is not installed."""
    room: Room = load(f"capsule.{name}.room:ROOM")
    return room


def answer(question: str) -> Any:
    """What a room that comes with Capsule has for the core: see `ANSWERS`. Raises Refused: it is
    not installed.
    """
    return load(getattr(built_in(ANSWERS[question]), question))


def of_command(command: str) -> Room | None:
    """The room that comes with Capsule and has a command or a group; None: none has.

    Raises Refused: it is not installed.
    """
    for room, names in BUILT_IN.items():
        if any(f"{command} ".startswith(f"{name} ") for name in names):
            return built_in(room)
    return None


def installed(names: Iterable[str] = ()) -> list[Room]:
    """The rooms that come with Capsule and are installed, and those of other packages.

    Args:
        names: The rooms of other packages, as `capsule.toml` names them.

    Raises Refused: no package has such a room.
    """
    present = []
    for name in BUILT_IN:
        try:
            present.append(built_in(name))
        except Refused:
            continue
    return present + [of_others(name) for name in names]


def of_others(name: str) -> Room:
    """A room of another package. Raises Refused: no package that is installed has it."""
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        room: Room = point.load()
        return room
    raise Refused(
        f"capsule.toml names the room {name!r}, and no package that is installed has one", path=""
    )


def objects_of(store: object, room: Room) -> SimpleNamespace:
    """What a room adds to a store, as attributes."""
    return SimpleNamespace(**{name: load(place)(store) for name, place in room.objects.items()})
