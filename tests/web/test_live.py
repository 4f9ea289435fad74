"""What happens in the store reaches every tab once, whoever leads, and whatever becomes of the
server.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from tests.processes import Child, until
from tests.web.browser import Guard
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow

_LISTEN = """
window.heard = [];
document.addEventListener("capsule:change", (event) => window.heard.push(...(event.detail.messages || [])));
"""
_APPENDING = """
with Store.open(sys.argv[1]) as store:
    for number in range(int(sys.argv[3])):
        if number and number % 20 == 0:
            hear()
        say(store.append(sys.argv[2], role="user", content=f"Message {number}").id)
"""


@pytest.fixture
def id(tmp_path: Path) -> str:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        return store.create(title="Plan").id


@pytest.fixture
def served(tmp_path: Path, id: str, serve: Callable[..., Served]) -> Served:
    return serve(tmp_path / "store")


def tab(served: Served, context: BrowserContext, path: str = "/") -> Page:
    page = context.new_page()
    page.add_init_script(_LISTEN)
    return served.open(page, path)


def append(served: Served, id: str, count: int = 1) -> list[str]:
    """Append in another process. Returns: the ids of the messages."""
    with closing(Child(_APPENDING, str(served.root), id, str(count))) as child:
        return [child.hear() for _ in range(count)]


def heard(page: Page) -> list[str]:
    return page.evaluate("() => window.heard")


def streams(context: BrowserContext) -> list[str]:
    """Notes the addresses of the streams that its tabs open."""
    opened: list[str] = []
    context.on(
        "request",
        lambda request: opened.append(request.url) if request.url.endswith("/events") else None,
    )
    return opened


def test_every_tab_hears_of_a_change_and_one_of_them_reads_the_stream(
    served: Served, context: BrowserContext, contexts: Callable[..., BrowserContext], id: str
) -> None:
    opened = streams(context)
    tabs = [tab(served, context), tab(served, context, f"/c/{id}"), tab(served, contexts())]
    written = append(served, id, 3)
    for page in tabs:
        until(lambda page=page: heard(page) == written)  # type: ignore[misc]
    assert len(opened) == 1


def test_another_tab_goes_on_when_the_one_that_leads_is_closed(
    served: Served, context: BrowserContext, id: str
) -> None:
    opened = streams(context)
    first, second = tab(served, context), tab(served, context)
    written = append(served, id)
    until(lambda: heard(second) == written)
    first.close()
    written += append(served, id, 3)
    until(lambda: heard(second) == written)
    written += append(served, id)
    until(lambda: heard(second) == written and len(opened) == 2)


def test_a_server_that_is_killed_while_another_process_writes_loses_and_doubles_nothing(
    served: Served, context: BrowserContext, id: str, guard: Guard
) -> None:
    guard.expect("ERR_|Failed to load|net::")
    pages = [tab(served, context), tab(served, context)]
    for page in pages:
        until(lambda page=page: page.evaluate("() => document.readyState") == "complete")  # type: ignore[misc]
    with closing(Child(_APPENDING, str(served.root), id, "60")) as child:
        written = [child.hear() for _ in range(20)]
        served.kill()
        for page in pages:
            until(lambda page=page: "Not connected" in (page.text_content("#lost") or ""))  # type: ignore[misc]
        child.say()
        written += [child.hear() for _ in range(20)]
        served.restart()
        child.say()
        written += [child.hear() for _ in range(20)]
    for page in pages:
        until(lambda page=page: len(heard(page)) >= len(written))  # type: ignore[misc]
        assert sorted(heard(page)) == sorted(written)
        until(lambda page=page: page.text_content("#lost") == "")  # type: ignore[misc]


def test_what_happens_while_a_page_is_loaded_is_heard_of(
    served: Served, page: Page, id: str
) -> None:
    written: list[str] = []

    def late(route: object) -> None:
        written.extend(append(served, id))
        route.continue_()  # type: ignore[attr-defined]

    page.add_init_script(_LISTEN)
    page.route("**/live.js", late)
    served.open(page)
    until(lambda: written and heard(page) == written)


def test_a_hidden_tab_does_nothing_and_reads_what_it_missed_when_it_is_shown(
    served: Served, context: BrowserContext, id: str
) -> None:
    shown, hidden = tab(served, context), tab(served, context)
    turn = "(is) => { Object.defineProperty(document, 'hidden', {value: is, configurable: true});"
    turn += "document.dispatchEvent(new Event('visibilitychange')) }"
    hidden.evaluate(turn, True)
    written = append(served, id, 2)
    until(lambda: heard(shown) == written)
    assert heard(hidden) == []
    hidden.evaluate(turn, False)
    until(lambda: heard(hidden) == written)


def test_a_browser_without_locks_asks_from_time_to_time(
    served: Served, context: BrowserContext, id: str
) -> None:
    context.add_init_script(
        "Object.defineProperty(Navigator.prototype, 'locks', { value: undefined })"
    )
    opened = streams(context)
    page = tab(served, context)
    written = append(served, id)
    until(lambda: heard(page) == written)
    written += append(served, id)
    until(lambda: heard(page) == written)
    assert opened == []


def test_a_page_whose_cookie_is_gone_says_that_it_needs_an_address(
    served: Served, context: BrowserContext, guard: Guard
) -> None:
    guard.expect("401|ERR_|Failed to load")
    page = tab(served, context)
    until(lambda: page.evaluate("() => document.readyState") == "complete")
    context.clear_cookies()
    served.kill()
    served.restart()
    until(lambda: "capsule web" in (page.text_content("#lost") or ""))


def test_the_stream_does_not_hold_up_the_end_of_the_server(
    served: Served, page: Page, guard: Guard
) -> None:
    guard.expect("ERR_INCOMPLETE_CHUNKED_ENCODING|ERR_CONNECTION")
    with page.expect_request("**/events"):
        served.open(page)
    assert served.stop() == 0
