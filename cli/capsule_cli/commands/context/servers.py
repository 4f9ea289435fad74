"""`mcp servers`: switch MCP servers on or off for one conversation, in place of the default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from capsule_cli.completion import complete_id_or_next
from capsule_cli.shared.options import argument
from capsule_cli.shared.output import on_or_off, one_line, print_answer, print_list
from capsule_cli.shared.stores import open_core_store

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The name of the next new conversation. No id can be the same.
NEXT = "@next"

_CONVERSATION_OR_NEXT = (
    "The conversation: its id, a unique beginning of it, @last; or @next, the next one that "
    "is made."
)
ConversationOrNext = Annotated[
    str, argument("ID", _CONVERSATION_OR_NEXT, ..., autocompletion=complete_id_or_next)
]
Server = Annotated[str, argument("SERVER", "The MCP server, by its name.", ...)]
Names = Annotated[list[str], argument("SERVER", "MCP servers, by their names.", ...)]
Switch = Annotated[Literal["on", "off"], argument("on|off", "Whether the server is on there.", ...)]


def set_(id: ConversationOrNext, server: Server, switch: Switch) -> None:
    """Switch an MCP server on or off."""
    _set(id, {server: switch == "on"})


def remove(id: ConversationOrNext, servers: Names) -> None:
    """Reset MCP servers to their default."""
    _set(id, dict.fromkeys(servers))


def toggle(id: ConversationOrNext, server: Server) -> None:
    """Switch an MCP server off when it is on, and on when it is off. Without an override it counts
    as on.
    """
    with open_core_store() as store:
        conversation_id = _resolve(store, id)
        _print_switches(conversation_id, store.servers.toggle(conversation_id, server))


def list_(id: ConversationOrNext) -> None:
    """List the MCP servers that differ from the default."""
    with open_core_store() as store:
        conversation_id = _resolve(store, id)
        switches = store.servers.get(conversation_id)
    rows = [(name, on_or_off(is_on)) for name, is_on in switches.items()]
    value = _as_json(conversation_id, switches)
    print_list(value, ("server", "here"), rows, "all servers have their default", last="server")


def _set(id: str, changes: dict[str, bool | None]) -> None:
    with open_core_store() as store:
        conversation_id = _resolve(store, id)
        _print_switches(conversation_id, store.servers.set(conversation_id, changes))


def _resolve(store: CoreStore, id: str) -> str | None:
    """Return the id of a conversation. None: the next new conversation."""
    return None if id == NEXT else store.resolve(id)


def _as_json(id: str | None, switches: dict[str, bool]) -> dict[str, object]:
    return {"id": id, "mcpServers": {name: {"enabled": on} for name, on in switches.items()}}


def _print_switches(id: str | None, switches: dict[str, bool]) -> None:
    texts = [f"{one_line(name)} {on_or_off(is_on)}" for name, is_on in switches.items()]
    text = ", ".join(texts) or "all as by default"
    print_answer(_as_json(id, switches), f"{id or 'the next conversation'}: {text}")
