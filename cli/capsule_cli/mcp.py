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
    require_token: Annotated[
        bool, typer.Option("--require-token", help="Over HTTP: answer nobody without a token, on loopback too.")
    ] = False,
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
        if http is not None or require_token or allow_host:
            raise usage("these options are for serving, which `mcp` does without a further command", "--http")
        return
    # The SDK's import makes objects by the hundred thousand, none of them garbage; looking for some among them takes a
    # tenth of the start.
    gc.disable()
    if http is None:
        if require_token or allow_host:
            raise usage("this option is for --http: over stdin and stdout the client is who started the server")
        _over_stdio(ctx)
    else:
        _over_http(ctx, http, require_token, tuple(allow_host or ()))


def _over_stdio(ctx: typer.Context) -> None:
    from capsule import Store, __version__
    from capsule.mcp_server.lifetime import Lifetime, own_stdout

    if sys.stdin.isatty():
        say("this is for a program, which speaks with it over stdin and stdout; Ctrl-D ends it")
    stdout = own_stdout()
    store = Store.open(asked(ctx).store, keep_locks=False, instance=holder(ctx))
    lifetime = Lifetime(store.release, store.close)
    lifetime.listen()
    _log_to_stderr(ctx)
    from capsule.mcp_server import stdio
    from capsule.mcp_server.server import build
    from capsule.mcp_server.stores import OneStore

    server = build(OneStore(store), version=__version__)
    _look_for_garbage()
    stdio.serve(server, stdout, lifetime)
    lifetime.finish()


def _over_http(ctx: typer.Context, where: str, require_token: bool, hosts: tuple[str, ...]) -> None:
    if asked(ctx).instance is not None:
        raise usage("over HTTP each client is an instance of its own, named by its token", "--instance")
    from capsule import __version__, discovery
    from capsule.errors import Refused

    root = discovery.find_store(asked(ctx).store)
    tokens = tokens_of(root)
    is_open = not (tokens.all() or require_token)
    _log_to_stderr(ctx)
    from capsule.mcp_server import http
    from capsule.mcp_server.server import build
    from capsule.mcp_server.sessions import HttpStores

    listener = http.listen(http.parse(where))
    if not tokens.all() and (require_token or not listener.is_loopback):
        raise Refused(
            f"{where}: will not serve without a token {'there' if require_token else 'beyond this machine'}, and there "
            f"is none; make one for each holder with: capsule tokens add NAME",
            path=where,
        )

    def ready() -> None:
        if asked(ctx).json:
            sys.stderr.write(orjson.dumps({"serving": root, "url": listener.url, "open": is_open}).decode() + "\n")
            sys.stderr.flush()
            return
        say(f"serving {shown(root)} at {listener.url}")
        if is_open:
            say("whoever can log in on this machine can use it; to demand a token: capsule tokens add NAME")

    stores = HttpStores(root)
    server = build(stores, version=__version__)
    _look_for_garbage()
    http.serve(server, stores, listener, tokens=tokens, require_token=require_token, hosts=hosts, ready=ready)


def _look_for_garbage() -> None:
    """From here on, and not among what is there by now."""
    gc.freeze()
    gc.enable()


def _log_to_stderr(ctx: typer.Context) -> None:
    """What goes wrong, on stderr. Before the SDK sets up a log of its own, which tells of every request."""
    logging.basicConfig(level=logging.WARNING, handlers=[ToStderr(as_json=asked(ctx).json)], force=True)
