"""`mcp servers`: which MCP servers a conversation has other than by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from capsule_cli.completion import complete_id_or_next
from capsule_cli.shared.options import argument
from capsule_cli.shared.output import on_or_off, one_line, print_answer, print_list
from capsule_cli.shared.stores import open_core_store

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: What stands for the next new conversation where a conversation is named; it can be nobody's id.
NEXT = "@next"

_WHICH = (
    "The conversation: its id, a unique beginning of it, @last; or @next, the next one that "
    "is made."
)
Which = Annotated[str, argument("ID", _WHICH, ..., autocompletion=complete_id_or_next)]
Server = Annotated[str, argument("SERVER", "The MCP server, by its name.", ...)]
Names = Annotated[list[str], argument("SERVER", "MCP servers, by their names.", ...)]
Switch = Annotated[Literal["on", "off"], argument("on|off", "Whether the server is on there.", ...)]


def set_(id: Which, server: Server, switch: Switch) -> None:
    """Switch an MCP server on or off."""
    _set(id, {server: switch == "on"})


def remove(id: Which, servers: Names) -> None:
    """Reset MCP servers to their default."""
    _set(id, dict.fromkeys(servers))


def toggle(id: Which, server: Server) -> None:
    """Switch an MCP server off when it is on, and on when it is off. Without an override it counts
    as on.
    """
    with open_core_store() as store:
        _tell(named := _named(store, id), store.servers.toggle(named, server))


def list_(id: Which) -> None:
    """List the MCP servers that differ from the default."""
    with open_core_store() as store:
        switches = store.servers.get(named := _named(store, id))
    rows = [(name, on_or_off(on)) for name, on in switches.items()]
    print_list(
        _as_json(named, switches),
        ("server", "here"),
        rows,
        "all servers are as by default",
        last="server",
    )


def _set(id: str, changes: dict[str, bool | None]) -> None:
    with open_core_store() as store:
        _tell(named := _named(store, id), store.servers.set(named, changes))


def _named(store: CoreStore, id: str) -> str | None:
    """The conversation's id; None for the next one that is made."""
    return None if id == NEXT else store.resolve(id)


def _as_json(id: str | None, switches: dict[str, bool]) -> dict[str, object]:
    return {"id": id, "mcpServers": {name: {"enabled": on} for name, on in switches.items()}}


def _tell(id: str | None, switches: dict[str, bool]) -> None:
    said = ", ".join(f"{one_line(name)} {on_or_off(on)}" for name, on in switches.items())
    print_answer(
        _as_json(id, switches), f"{id or 'the next conversation'}: {said or 'all as by default'}"
    )
