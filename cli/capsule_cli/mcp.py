"""`mcp`: serves the store to AI agents; what configures their programs stands in `mcp_clients`.

What must stay true: nothing but the protocol goes to stdout; what the server says is said on stderr.
"""

from __future__ import annotations

import gc
import logging
import sys
from typing import Annotated

import orjson
import typer

from capsule_cli.opening import ToStderr, holder
from capsule_cli.options import asked, usage
from capsule_cli.output import say, shown
from capsule_cli.tokens import tokens_of

__all__ = ["group"]

group = typer.Typer(subcommand_metavar="[COMMAND]")


@group.callback(invoke_without_command=True)
def mcp(
    ctx: typer.Context,
    http: Annotated[
        str | None,
        typer.Option(
            "--http",
            metavar="[HOST:]PORT",
            help="Serve HTTP there, instead of stdin and stdout. Host: 127.0.0.1 when left out; port 0: any free one.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(
            "--as",
            metavar="NAME",
            help="The agent that the client is, over stdin and stdout: its messages are from it.",
        ),
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="Let clients read, and nothing else.")] = False,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            "--allow-host",
            metavar="NAME",
            help="Over HTTP: a further name by which clients may call the server, as of a proxy before it. Repeatable.",
        ),
    ] = None,
) -> None:
    """Serve the store to AI agents, by the Model Context Protocol, until the client goes away or SIGTERM comes."""
    if ctx.invoked_subcommand is not None:
        if http is not None or allow_host or name is not None or read_only:
            raise usage("these options are for serving, which `mcp` does without a further command", "--http")
        return
    # The SDK's import makes objects by the hundred thousand, none of them garbage; looking for some among them takes a
    # tenth of the start.
    gc.disable()
    if http is None:
        if allow_host:
            raise usage("is for --http: over stdin and stdout the client is who started the server", "--allow-host")
        _over_stdio(ctx, name, read_only)
    else:
        if name is not None:
            raise usage("is for stdin and stdout: over HTTP the token says who the client is", "--as")
        _over_http(ctx, http, read_only, tuple(allow_host or ()))


def _over_stdio(ctx: typer.Context, name: str | None, read_only: bool) -> None:
    from capsule import Store, __version__
    from capsule.ids import check_id
    from capsule.mcp_server.lifetime import own_streams

    if name is not None:
        check_id(name)
    if sys.stdin is not None and sys.stdin.isatty():
        say("this is for a program, which speaks with it over stdin and stdout; Ctrl-D ends it")
    stdin, stdout = own_streams()
    store = Store.open(asked(ctx).store, keep_locks=False, instance=holder(ctx))
    _log_to_stderr(ctx)
    from capsule.mcp_server import stdio
    from capsule.mcp_server.access import Access
    from capsule.mcp_server.server import build
    from capsule.mcp_server.stores import OneStore

    access = Access(name, "read" if read_only else "admin")
    server = build(OneStore(store, access), version=__version__)
    _look_for_garbage()
    stdio.serve(server, store, stdin, stdout)


def _over_http(ctx: typer.Context, where: str, read_only: bool, hosts: tuple[str, ...]) -> None:
    if asked(ctx).instance is not None:
        raise usage("over HTTP each client is an instance of its own, named by its token", "--instance")
    from capsule import __version__, discovery
    from capsule.errors import Refused

    root = discovery.find_store(asked(ctx).store)
    tokens = tokens_of(root)
    if not tokens.all():
        raise Refused(
            f"{where}: nobody is served without a token, and there is none; make one for each client with: "
            "capsule tokens add NAME",
            path=where,
        )
    _log_to_stderr(ctx)
    from capsule.mcp_server import address, http
    from capsule.mcp_server.server import build
    from capsule.mcp_server.sessions import HttpStores

    listener = address.listen(address.parse(where))

    def ready() -> None:
        if asked(ctx).json:
            sys.stderr.write(orjson.dumps({"serving": root, "url": listener.url}).decode() + "\n")
            sys.stderr.flush()
            return
        say(f"serving {shown(root)} at {listener.url}")

    stores = HttpStores(root, most="read" if read_only else "admin")
    server = build(stores, version=__version__, **http.admitting(tokens))
    _look_for_garbage()
    http.serve(server, stores, listener, tokens=tokens, hosts=hosts, ready=ready)


def _look_for_garbage() -> None:
    """From here on, and not among what is there by now."""
    gc.freeze()
    gc.enable()


def _log_to_stderr(ctx: typer.Context) -> None:
    """What goes wrong, on stderr. Before the SDK sets up a log of its own, which tells of every request."""
    logging.basicConfig(level=logging.WARNING, handlers=[ToStderr(as_json=asked(ctx).json)], force=True)
