"""`mcp serve`: serve the store to AI agents, over stdin and stdout or over HTTP.

What must stay true: stdout gets nothing but the protocol. The messages of the server go to stderr.
"""

from __future__ import annotations

import gc
import logging
import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from capsule import rooms
from capsule.mcp_server.access import Toolset
from capsule.mcp_server.extensions import ServerExtension, extensions_for, open_http_client
from capsule_cli.commands.mcp.tokens import tokens_of
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import flag, option, refuse_if, usage_error
from capsule_cli.shared.output import print_json_to_stderr, print_notice
from capsule_cli.shared.stores import (
    StderrHandler,
    agent_folder,
    current_folder,
    ensure_person,
    instance_name,
    session_name,
)

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The help of --tools, here and in `mcp install`.
SETS = (
    "Offer these tools: conversations, messaging, or all of them; session, for what a worker runs."
)
TOOLS: Toolset = option("--tools SET", SETS, "conversations")


def serve(
    http: str | None = option(
        "--http [HOST:]PORT",
        "Serve over HTTP there, instead of stdin and stdout. Without HOST: 127.0.0.1. Port 0: any "
        "free one.",
    ),
    read_only: bool = flag("--read-only", "Refuse all changes by clients."),
    tools: Toolset = TOOLS,
    allow_host: list[str] | None = option(
        "--allow-host NAME",
        "Over HTTP: also accept this Host header, e.g. a proxy's. Repeatable.",
    ),
) -> None:
    """Serve the store to AI agents over the Model Context Protocol, until the client disconnects or
    SIGTERM comes.

    Over stdin and stdout the client is the agent of --as, else of CAPSULE_AGENT, and its messages
    are from this agent. With the tools of messaging, it is else the agent of the current directory,
    and the agent is registered. With the tools of a session, the environment says which session it
    is, as `capsule worker run` gives it to its command.
    """
    # The import of the SDK makes some 100,000 objects, and none is garbage. Collections during it
    # would take a tenth of the start.
    gc.disable()
    if http is None:
        refuse_if(
            allow_host,
            "is for --http: over stdin and stdout the client is the program that started the "
            "server",
            "--allow-host",
        )
        _over_stdio(read_only, tools)
    else:
        refuse_if(
            tools == "session",
            "a session has one agent, which starts its own server: without --http",
            "--tools",
        )
        refuse_if(
            global_options.as_ is not None,
            "is for stdin and stdout: over HTTP the token says who the client is",
            "--as",
        )
        ensure_person("servers over HTTP")
        _over_http(http, read_only, tools, tuple(allow_host or ()))


def _over_stdio(read_only: bool, tools: Toolset) -> None:
    """Serve one client over stdin and stdout. Never returns."""
    from capsule import __version__
    from capsule.ids import check_id
    from capsule.mcp_server.transport.process import claim_stdio

    agent = global_options.as_ or os.environ.get("CAPSULE_AGENT") or None
    if agent is not None:
        check_id(agent)
    if sys.stdin is not None and sys.stdin.isatty():
        print_notice(
            "this server is for a program, which uses its stdin and stdout; Ctrl-D ends it"
        )
    stdin, stdout = claim_stdio()
    session = session_name()
    if tools == "session" and not (session and agent):
        raise usage_error(
            "CAPSULE_SESSION and CAPSULE_AGENT name it, as for the command of `capsule worker run`",
            "--tools",
        )
    _log_to_stderr()
    extensions = extensions_for(tools)
    store = _open_client_store(extensions, agent, session)
    # Imported only now, because the SDK takes long.
    from capsule.mcp_server.access import Access
    from capsule.mcp_server.server import build
    from capsule.mcp_server.stores import ClientStores
    from capsule.mcp_server.transport import stdio

    room_state: dict[str, object] = {}
    for extension in extensions:
        if extension.client_state is not None:
            room_state |= extension.client_state(store, os.environ, current_folder())
    access = Access(store.agent, "read" if read_only else "admin")
    server = build(
        ClientStores(store, access, room_state),
        version=__version__,
        tools=tools,
        room_names=store.settings.rooms,
    )
    _tune_garbage_collector()
    stdio.serve(server, store, stdin, stdout)


def _open_client_store(
    extensions: Sequence[ServerExtension], agent: str | None, session: str | None
) -> CoreStore:
    """Open the store for the client of a server over stdio, and prepare it for the extensions.

    Outside of a session an extension may register the agent, by its name or by the current folder.
    """
    from capsule.store.store import CoreStore

    folder = agent_folder()
    for extension in extensions:
        if extension.register_agent is None or session:
            continue
        with CoreStore.open(global_options.store, keep_locks=False) as owner_store:
            # Desktop programs start servers in one of these two folders. Neither may become a
            # project, because it would contain all other folders.
            is_project = folder not in ("/", os.path.realpath(os.path.expanduser("~")))
            agent = extension.register_agent(owner_store, agent, folder, is_project)
            folder = None  # The agent is named by its id now, which needs no folder.
    store = CoreStore.open(
        global_options.store,
        keep_locks=False,
        instance=instance_name(),
        agent=agent,
        folder=folder,
    )
    if session:
        rooms.bind(store, session)
    for extension in extensions:
        if extension.on_open is not None:
            extension.on_open(store)
    return store


def _over_http(address: str, read_only: bool, tools: Toolset, hosts: tuple[str, ...]) -> None:
    """Serve many clients over HTTP at an address. Never returns."""
    if global_options.instance is not None:
        raise usage_error(
            "over HTTP each client is an instance of its own, named by its token", "--instance"
        )
    from capsule import __version__, locate
    from capsule.errors import Refused

    root = locate.find_store(global_options.store)
    tokens = tokens_of(root)
    if not tokens.all():
        raise Refused(
            f"{address}: the server needs a token, and there is none; make one for each client "
            "with: capsule mcp tokens add NAME",
            path=address,
        )
    _log_to_stderr()
    from capsule.mcp_server.server import build
    from capsule.mcp_server.stores import HttpClientStores
    from capsule.mcp_server.transport import http, process

    listener = process.listen(*process.parse_address(address))

    def ready() -> None:
        url = listener.url + http.PATH
        if global_options.json:
            print_json_to_stderr({"serving": root, "url": url})
        else:
            print_notice(f"serving {root} at {url}")

    stores = HttpClientStores(
        root,
        max_scope="read" if read_only else "admin",
        on_open=partial(open_http_client, extensions_for(tools)),
    )
    room_names = stores.server_store().settings.rooms
    server = build(
        stores,
        version=__version__,
        tools=tools,
        room_names=room_names,
        **http.token_options(tokens),
    )
    _tune_garbage_collector()
    http.serve(server, stores, listener, tokens=tokens, hosts=hosts, ready=ready)


def _tune_garbage_collector() -> None:
    """Start garbage collection, and exclude the objects that exist now."""
    gc.freeze()
    gc.enable()


def _log_to_stderr() -> None:
    """Log warnings to stderr. Called before the SDK, which would set up a log of every request."""
    logging.basicConfig(
        level=logging.WARNING, format="%(message)s", handlers=[StderrHandler()], force=True
    )
