"""`tokens`: who may use the MCP server over HTTP.

What must stay true: a token is shown once, when it is made; nothing stored can be turned back into it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capsule.mcp_server.access import Scope
from capsule_cli.options import asked, seconds
from capsule_cli.output import out, out_json, say, short_time, table

if TYPE_CHECKING:
    from capsule.mcp_server.tokens import Tokens

__all__ = ["commands", "group", "tokens_of"]

group = typer.Typer(no_args_is_help=True)
commands = typer.Typer()

Name = Annotated[str, typer.Argument(metavar="NAME", help="The agent that the token is for.")]


def tokens_of(root: str) -> Tokens:
    """The tokens of the store at `root`, in the user's configuration."""
    import platformdirs

    from capsule.mcp_server.tokens import Tokens

    return Tokens(platformdirs.user_config_path("capsule", appauthor=False), root)


def _tokens(ctx: typer.Context) -> Tokens:
    from capsule import discovery

    return tokens_of(discovery.find_store(asked(ctx).store))


@group.callback()
def tokens() -> None:
    """Say who may use the MCP server over HTTP."""


@commands.command("add")
def add(
    ctx: typer.Context,
    name: Name,
    scope: Annotated[
        Scope,
        typer.Option(help="What it allows: to read; also to write; also to delete and to take locks from others."),
    ] = "write",
    expires: Annotated[
        str | None, typer.Option("--expires", metavar="DURATION", help="Make it of no use after that time, like 30d.")
    ] = None,
) -> None:
    """Make a token for an agent and print it: this once, only its hash is kept."""
    expires_in_s = None if expires is None else seconds(expires, "--expires")
    token = _tokens(ctx).add(name, scope=scope, expires_in_s=expires_in_s)
    if asked(ctx).json:
        out_json({"name": name, "token": token, "scope": scope})
    else:
        out(token)
        say(f"this is the one time it is shown; clients send it as: Authorization: Bearer {token[:12]}...")


@commands.command("list")
def list_(ctx: typer.Context) -> None:
    """List the agents that have a token, and what it allows."""
    found = _tokens(ctx).all()
    if asked(ctx).json:
        out_json(
            [
                {"name": one.name, "scope": one.scope, "createdAt": one.created_at, "expiresAt": one.expires_at}
                for one in found
            ]
        )
    else:
        rows = [(one.name, one.scope, short_time(one.created_at), short_time(one.expires_at or "")) for one in found]
        empty = "there is no token; make one with: capsule tokens add NAME"
        table(("name", "scope", "created", "expires"), rows, last="name", empty=empty)


@commands.command("revoke")
def revoke(ctx: typer.Context, name: Name) -> None:
    """Take an agent's token away; a running server refuses it from the next request on."""
    gone = _tokens(ctx).revoke(name)
    if asked(ctx).json:
        out_json({"name": gone.name, "revoked": True})
    else:
        out(f"{gone.name}: its token is of no use any more")
