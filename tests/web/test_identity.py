"""Whose browser it is: no other server gets the cookie, and no link makes a browser somebody else
unasked.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from capsule.mcp_server.access import Tokens
from tests.processes import until
from tests.web.browser import Guard, check_axe, screenshot
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow
Serve = Callable[..., Served]


@contextmanager
def another_server() -> Iterator[tuple[int, list[str]]]:
    """A server on a port of 127.0.0.1: the port, and the cookies that it gets, one entry for each
    request.
    """
    cookies: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            cookies.append(self.headers.get("cookie", ""))
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href=data:,><title>another</title>")

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_port, cookies
    finally:
        server.shutdown()
        server.server_close()


def test_no_other_server_of_this_machine_gets_the_cookie(
    root: Path, serve: Serve, page: Page, guard: Guard
) -> None:
    served = serve(root)
    page.goto(served.address)
    assert page.url == f"{served.base}/"
    assert len(page.context.cookies()) == 1
    with another_server() as (port, cookies):
        hosts = ["127.0.0.1", "localhost", "capsule.localhost", "capsule-000000000000.localhost"]
        for host in hosts:
            guard.bases.append(f"http://{host}:{port}/")
            page.goto(f"http://{host}:{port}/")
        assert cookies == [""] * len(hosts)
        # The name is what keeps the cookie: whoever knows it gets it, so it is told to nobody.
        guard.bases.append(f"{served.base.rpartition(':')[0]}:{port}/")
        page.goto(guard.bases[-1])
        assert cookies[-1].startswith("capsule-")


def test_an_address_of_an_agents_server_asks_before_it_takes_the_owners_browser(
    store: Store, serve: Serve, page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("409")
    store.agents.register("anna")
    owners, annas = serve(Path(store.root)), serve(Path(store.root), "--as", "anna")
    page.goto(owners.address)
    expect(page.locator(".me")).to_have_text("as the owner")
    page.goto(annas.address)
    expect(page.get_by_role("heading", name="Open this page as anna?")).to_be_visible()
    check_axe(page)
    screenshot(page, "identity-question")
    page.goto(owners.base)
    expect(page.locator(".me")).to_have_text("as the owner")
    page.goto(annas.address)
    page.get_by_role("button", name="Open it as anna").click()
    expect(page.locator(".me")).to_have_text("as anna")
    assert page.url == f"{annas.base}/"


def test_a_token_of_an_agent_is_entered_and_stays_in_no_address(
    store: Store, serve: Serve, page: Page, guard: Guard, tmp_path: Path
) -> None:
    from playwright.sync_api import expect

    guard.expect("401")
    home = tmp_path / "settings"
    token = Tokens(home / "capsule", store.root).add("anna", scope="read")
    served = serve(Path(store.root), env={"XDG_CONFIG_HOME": str(home)})
    page.goto(f"{served.base}/people")
    check_axe(page)
    page.get_by_label("token of an agent").fill("capsule_wrong")
    page.get_by_role("button", name="Open").click()
    expect(page.get_by_role("alert")).to_contain_text("not known here")
    screenshot(page, "identity-entrance")
    page.goto(f"{served.base}/people?after=a")
    page.get_by_label("token of an agent").fill(token)
    page.get_by_role("button", name="Open").click()
    expect(page.locator(".me")).to_have_text("as anna")
    assert page.url == f"{served.base}/people?after=a"
    page.goto(f"{served.base}/people?token={token}")  # By habit, or a link in a message.
    assert page.url == f"{served.base}/people"
    screenshot(page, "identity-people")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="This page is closed")).to_be_visible()
    assert not page.context.cookies()


def test_who_signs_out_in_every_browser_ends_the_pages_that_are_open(
    store: Store, serve: Serve, contexts: Callable[..., BrowserContext], guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("401|ERR_|Failed to load")
    id = store.create(title="Plan").id
    served = serve(Path(store.root))
    first, second = served.open(contexts(), "/people"), served.open(contexts(), f"/c/{id}")
    screenshot(first, "identity-people-owner")
    first.get_by_role("button", name="Sign out in every browser").click()
    expect(first.get_by_role("heading", name="This page is closed")).to_be_visible()
    store.append(id, content="not for those who signed out")
    until(lambda: "This page is closed" in (second.text_content("#lost") or ""))
    assert "not for those who signed out" not in (second.text_content("body") or "")
    second.reload()
    expect(second.get_by_role("heading", name="This page is closed")).to_be_visible()


@pytest.mark.parametrize("by_name", [True, False])
def test_a_text_for_one_store_is_not_sent_to_another_that_takes_its_port(
    tmp_path: Path, serve: Serve, context: BrowserContext, guard: Guard, by_name: bool
) -> None:
    from playwright.sync_api import expect

    guard.expect("ERR_|Failed to load|40[13]")
    roots = [tmp_path / "a", tmp_path / "b"]
    for root in roots:
        Store.init(root)
        with Store.open(root) as store:
            store.channels.create("general", scope="global", description="Everything", default=True)
    # At 127.0.0.1 all stores are one host for the browser, as on a system that does not resolve
    # their names.
    words = () if by_name else ("--json",)
    first = serve(roots[0], *words)
    path = "/c/channel_global_general"
    page = first.open(context, path)
    first.kill()
    page.get_by_label("Write as the owner").fill("for a")
    page.get_by_label("Write as the owner").press("Control+Enter")
    expect(page.locator(".said")).to_contain_text("Not sent yet")
    second = serve(roots[1], *words, "--port", str(first.port))
    other = second.open(context, path)
    expect(other.locator("#content")).to_have_value("")
    expect(page.locator(".said")).to_contain_text("Not sent: this" if not by_name else "Not sent:")
    expect(page.locator("#content")).to_have_value("for a")
    with Store.open(roots[1]) as store:
        assert store.tail("channel_global_general", 5) == []
    second.kill()
    first.restart()
    page.get_by_role("button", name="Send").click()
    expect(page.locator("#messages").get_by_text("for a", exact=True)).to_be_visible()
    with Store.open(roots[0]) as store:
        assert [message.content for message in store.tail("channel_global_general", 5)] == ["for a"]
