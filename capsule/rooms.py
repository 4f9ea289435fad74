"""The rooms: parts of Capsule that can be left out, and what each of them adds to the core.

A room is a package, such as `capsule.git`. Its module `room.py` describes what it adds in a `Room`.
The functions of a `Room` import what they name when they are called, so that a `Room` itself costs
nothing.

What must stay true: the core names a room here and nowhere else, and works without any of them. If
a built-in room is not installed, whatever needs it raises Refused with its name. Rooms of other
packages are found by the entry points `capsule.rooms`, but only those that `capsule.toml` names:
a scan of the entry points takes 46 ms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from types import MappingProxyType, SimpleNamespace
from typing import Any, NamedTuple

from capsule.errors import Refused

#: The built-in rooms, and the first words of the commands of each.
BUILT_IN = {
    "context": ("context", "mcp servers"),
    "git": ("git",),
    "messaging": (
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
        "project",
        "config",
    ),
    "sessions": ("worker",),
    "transfer": ("import", "export"),
    "web": ("web",),
}
GROUP = "capsule.rooms"

#: The function of a command. Its parameters are the options and arguments.
Command = Callable[..., Any]

_NONE: Mapping[str, Any] = MappingProxyType({})


def _not_added(*arguments: Any, **options: Any) -> Any:
    raise NotImplementedError("this room does not add this")


def _do_nothing(*arguments: Any) -> None:
    """Do nothing, for a room that has nothing to do."""


class Room(NamedTuple):
    """What a room adds. Each function imports what it returns or calls when it is called.

    Attributes:
        name: The name of the room.
        kinds: The kinds of documents that only this room writes.
        objects: The objects that the room adds to the Store, by the name of the attribute. The
            function returns the class of the object, which takes the store.
        commands: The commands, as names separated by commas and the function that returns the
            function of each command by its name. The name of a command in a group begins with the
            words of the group: `agent wake test`.
        groups: The help of each group of commands.
        help: The lines in the help of the program: the topic, the position in the topic (the core's
            lines have the positions 10, 20, 30 ...), the commands, and what they do.
        tools: What the room adds to an MCP server, by the sets of tools that have it, separated by
            spaces. The function returns a `mcp_server.extensions.ServerExtension`.
        register_resources: Registers the resources of the room on an MCP server.
        forget_purged: Removes what the room stores of deleted texts. It takes the store.
        guard_class: Returns the class that decides what an agent may read and write
            (`store.inner.AccessGuard`). Only messaging has it.
        bind: Restricts a store to what its agent may do in a session. It takes the store and the
            id of the session. Only sessions has it.
        complete_agent: Returns completions for the name of an agent on the command line. Only
            messaging has it.
        open_clone: Opens the git repository that a store is in. Only git has it.
        past_version: Opens a past version of a conversation. It takes the store, the id, the
            revision, and `announce`, whether stderr names the commit. Only git has it.
    """

    name: str
    kinds: tuple[str, ...] = ()
    objects: Mapping[str, Callable[[], Callable[[Any], Any]]] = _NONE
    commands: Mapping[str, Callable[[], Mapping[str, Command]]] = _NONE
    groups: Mapping[str, str] = _NONE
    help: tuple[tuple[str, int, str, str], ...] = ()
    tools: Mapping[str, Callable[[], Any]] = _NONE
    register_resources: Callable[[Any], None] = _do_nothing
    forget_purged: Callable[[Any], None] = _do_nothing
    guard_class: Callable[[], Any] = _not_added
    bind: Callable[[Any, str], None] = _not_added
    complete_agent: Callable[[str], list[tuple[str, str]]] = _not_added
    open_clone: Callable[[Any], Any] = _not_added
    past_version: Callable[..., Any] = _not_added

    def command_names(self) -> list[str]:
        """Return the full names of all commands, in the order of their declaration."""
        return [name for names in self.commands for name in names.split(", ")]

    def command(self, name: str) -> Command:
        """Return the function of a command, and import its module.

        Args:
            name: The full name of the command.

        Raises:
            KeyError: The room has no such command.
        """
        for names, load_functions in self.commands.items():
            if name in names.split(", "):
                return load_functions()[name]
        raise KeyError(name)

    def names_in(self, group: str = "") -> list[str]:
        """Return the names of the commands and groups in a group, in the order of their
        declaration. Without a group: those at the top.
        """
        prefix = f"{group} " if group else ""
        names = []
        for command in self.command_names():
            if command.startswith(prefix):
                names.append(command.removeprefix(prefix).partition(" ")[0])
        return list(dict.fromkeys(names))


def missing(error: ModuleNotFoundError) -> Refused | None:
    """Return the error to show for an import that failed because a built-in room is not installed.
    None if it failed for another reason.
    """
    for name in BUILT_IN:
        for package in (f"capsule.{name}", f"capsule_cli.commands.{name}"):
            if f"{error.name}.".startswith(f"{package}."):
                return Refused(
                    f"{name} is not installed here: this Capsule lacks its part {package}", path=""
                )
    return None


def built_in(name: str) -> Room:
    """Return a built-in room. Raises Refused: it is not installed."""
    try:
        room: Room = import_module(f"capsule.{name}.room").ROOM
        return room
    except ModuleNotFoundError as error:
        raise (missing(error) or error) from error


def guard_class() -> Any:
    """Return the class of messaging that decides what an agent may read and write.

    Raises Refused: messaging is not installed.
    """
    return built_in("messaging").guard_class()


def complete_agent(incomplete: str) -> list[tuple[str, str]]:
    """Return the ids of agents that begin with `incomplete`, each with its name.

    Raises Refused: messaging is not installed.
    """
    return built_in("messaging").complete_agent(incomplete)


def bind(store: Any, session: str) -> None:
    """Restrict a store to what its agent may do in a session.

    Raises Refused: sessions are not installed, or the session is of another agent.
    """
    built_in("sessions").bind(store, session)


def open_clone(store: Any) -> Any:
    """Open the git repository that a store is in, as a `capsule.git.clone.Clone`.

    Raises Refused: git is not installed.
    """
    return built_in("git").open_clone(store)


def past_version(store: Any, id: str, at: str, *, announce: bool) -> Any:
    """Open a conversation as it was at a revision of git.

    Args:
        store: The store.
        id: The conversation, which may be deleted by now.
        at: A commit, or a date or time.
        announce: Whether stderr names the commit.

    Returns: The store that holds the version (`store`), and the id of it there (`id`).

    Raises Refused: git is not installed. NotFound: the conversation has no such version.
    """
    return built_in("git").past_version(store, id, at, announce=announce)


def of_command(command: str) -> Room | None:
    """Return the built-in room that has a command or a group, or None if none has it.

    Raises Refused: the room is not installed.
    """
    for room, names in BUILT_IN.items():
        if any(f"{command} ".startswith(f"{name} ") for name in names):
            return built_in(room)
    return None


def installed(names: Iterable[str] = ()) -> list[Room]:
    """Return the built-in rooms that are installed, and those of other packages.

    Args:
        names: The rooms of other packages, as `capsule.toml` names them.

    Raises Refused: no installed package has a room of such a name.
    """
    present = []
    for name in BUILT_IN:
        try:
            present.append(built_in(name))
        except Refused:
            continue
    return present + [of_others(name) for name in names]


def of_others(name: str) -> Room:
    """Return a room of another package. Raises Refused: no installed package has it."""
    from importlib.metadata import entry_points

    for point in entry_points(group=GROUP, name=name):
        room: Room = point.load()
        return room
    raise Refused(f"capsule.toml names the room {name!r}, but no installed package has it", path="")


def objects_of(store: object, room: Room) -> SimpleNamespace:
    """Return the objects that a room adds to a store, as attributes."""
    return SimpleNamespace(
        **{name: object_class()(store) for name, object_class in room.objects.items()}
    )
