"""`web`: serve the store to a browser.

What must stay true: stdout gets one line, the address with its token. Without TLS or a named proxy,
nothing is served beyond this machine.
"""

from __future__ import annotations

import sys
from importlib import import_module
from typing import TYPE_CHECKING

from capsule_cli.commands.mcp import tokens_of
from capsule_cli.public import open_named_agent_store
from capsule_cli.shared.options import flag, option, refuse_if
from capsule_cli.shared.output import global_options, print_answer, print_notice

if TYPE_CHECKING:
    from capsule.mcp_server.transport.process import ListeningSocket

#: The port that is tried first. It is fixed, so that a bookmark works again.
_PORT = 7450


def web(
    port: int | None = option(
        "--port N", f"Listen on this port; 0: any free one. Default: {_PORT}, or a free one.", min=0
    ),
    host: str = option(
        "--host ADDRESS",
        "Listen at this address; beyond this machine with --cert, or --allow-host.",
        "127.0.0.1",
    ),
    cert: str | None = option("--cert FILE", "Speak TLS with this certificate; with --key."),
    key: str | None = option("--key FILE", "Take the certificate's key from this file."),
    allow_host: list[str] | None = option(
        "--allow-host NAME",
        "Also accept this Host header, e.g. a proxy's (NAME or NAME:PORT). Repeatable.",
    ),
    no_browser: bool = flag("--no-browser", "Open no browser: only print the address."),
) -> None:
    """Open the store in a browser: read, search, follow and answer.

    It prints an address that opens the page once, and serves until Ctrl-C. The page acts for the
    agent of --as or CAPSULE_AGENT, else as the store's owner. An agent's token (capsule mcp tokens
    add) opens it for that agent.
    """
    refuse_if(
        (cert is None) != (key is None),
        "a certificate and its key go together: --cert FILE --key FILE",
        "--cert",
    )
    _ensure_packages()
    from capsule.web import names, server
    from capsule.web.site import WebSite

    hosts = tuple(allow_host or ())
    listener = _listen(host, port, hosts, has_certificate=cert is not None)
    with open_named_agent_store() as store:
        own_name = names.own_name(store.inner.whole_engine.local)
        if listener.is_loopback or hosts:
            host_headers = listener.names(hosts, own_name)
        else:
            host_headers = [f"{host}:{listener.port}".lower()]
        origin = browser_origin = listener.url
        if cert is not None:
            origin = browser_origin = listener.url.replace("http:", "https:", 1)
        elif listener.is_loopback:
            browser_origin = names.address_for_browser(own_name, listener)
        if hosts and not listener.is_loopback:
            origin = browser_origin = f"https://{hosts[0]}"
        site = WebSite(store, tokens_of(store.root))

        def ready() -> None:
            print_answer({"url": site.opening(origin)}, site.opening(browser_origin), line=True)
            sys.stdout.flush()
            if not no_browser and sys.stdout.isatty() and not global_options.json:
                import webbrowser

                webbrowser.open(site.opening(browser_origin))
                print_notice("Ctrl-C ends it; for another browser use this address, once")

        certificate = None if cert is None else (cert, str(key))
        server.serve(site, tuple(host_headers), listener, ready, certificate)


def _ensure_packages() -> None:
    """Raise Refused if a package that the page needs is not installed."""
    from capsule.errors import Refused

    try:
        # The page imports these packages only at the first request.
        for name in ("jinja2", "nh3", "python_multipart"):
            import_module(name)
        import_module("capsule.web.server")
        import_module("capsule.web.site")
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("capsule"):
            raise
        raise Refused(
            f"the page needs {error.name}: pip install 'capsule-conversations[web]'", path=""
        ) from error


def _listen(
    host: str, port: int | None, hosts: tuple[str, ...], *, has_certificate: bool
) -> ListeningSocket:
    """Listen at an address. Without a port, take the usual one, or any that is free.

    Raises Refused: the port is taken, or other machines could read the traffic.
    """
    from capsule.errors import Refused
    from capsule.mcp_server.transport import process

    try:
        listener = process.listen(host, _PORT if port is None else port)
    except Refused:
        if port is not None:
            raise
        listener = process.listen(host, 0)
    has_name = listener.host not in ("0.0.0.0", "::")
    if listener.is_loopback or hosts or (has_certificate and has_name):
        return listener
    raise Refused(
        f"{host} is beyond this machine, and others could read the traffic: give --cert and "
        "--key, and the host name that browsers use (NAME:PORT), or the proxy's, with "
        "--allow-host",
        path=host,
    )
