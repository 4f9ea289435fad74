"""`servers`: which MCP servers a conversation has other than by default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import typer

from capsule_cli.completion import complete_id_or_next
from capsule_cli.opening import store_of
from capsule_cli.options import asked
from capsule_cli.output import one_line, out, out_json, table

if TYPE_CHECKING:
    from capsule import Store

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

#: What stands for the next new conversation where a conversation is named; it can be nobody's id.
NEXT = "@next"

Which = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        autocompletion=complete_id_or_next,
        help="The conversation: its id, a unique beginning of it, @last; or @next, the next one that is made.",
    ),
]
Server = Annotated[str, typer.Argument(metavar="SERVER", help="The MCP server, by its name.")]
Names = Annotated[list[str], typer.Argument(metavar="SERVER", help="MCP servers, by their names.")]
Switch = Literal["on", "off"]


@group.callback()
def _servers() -> None:
    """Switch MCP servers on or off for one conversation; one that isn't named is as by default.

    @next stands for the next conversation that is made: it gets what waits for it, and then nothing waits any more.
    """


@commands.command("set")
def set_(
    ctx: typer.Context,
    id: Which,
    server: Server,
    switch: Annotated[Switch, typer.Argument(metavar="on|off", help="What it is to be there.")],
) -> None:
    """Switch an MCP server on or off."""
    with store_of(ctx) as store:
        named = _named(store, id)
        _tell(ctx, named, store.set_mcp_servers(named, {server: switch == "on"}))


@commands.command("toggle")
def toggle(ctx: typer.Context, id: Which, server: Server) -> None:
    """Switch an MCP server the other way; one without an override counts as on."""
    with store_of(ctx) as store:
        named = _named(store, id)
        _tell(ctx, named, store.toggle_mcp_server(named, server))


@commands.command("remove")
def remove(ctx: typer.Context, id: Which, servers: Names) -> None:
    """Reset MCP servers to their default."""
    with store_of(ctx) as store:
        named = _named(store, id)
        _tell(ctx, named, store.set_mcp_servers(named, dict.fromkeys(servers)))


@commands.command("list")
def list_(ctx: typer.Context, id: Which) -> None:
    """List the MCP servers that differ from the default."""
    with store_of(ctx) as store:
        named = _named(store, id)
        found = store.mcp_servers(named)
    if asked(ctx).json:
        _tell(ctx, named, found)
    else:
        rows = [(name, _word(on)) for name, on in found.items()]
        table(("server", "here"), rows, last="server", empty="all servers are as by default")


def _named(store: Store, id: str) -> str | None:
    """The conversation's id; None for the next one that is made."""
    return None if id == NEXT else store.resolve(id)


def _word(on: bool) -> str:
    return "on" if on else "off"


def _tell(ctx: typer.Context, id: str | None, switches: dict[str, bool]) -> None:
    if asked(ctx).json:
        out_json({"id": id, "mcpServers": {name: {"enabled": on} for name, on in switches.items()}})
    else:
        said = ", ".join(f"{one_line(name)} {_word(on)}" for name, on in switches.items())
        out(f"{id or 'the next conversation'}: {said or 'all as by default'}")
