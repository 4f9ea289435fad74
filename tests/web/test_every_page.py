"""Every page, by the list of routes: without script, on a phone, for WCAG in light and dark, and on paper."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from capsule.web.server import ROUTES
from tests.web.browser import Guard, check_axe
from tests.web.serving import Served
from tests.web.stores import Talk

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

#: By their routes: an address of each page, with the ids of `Talk`, and what it says.
PAGES = {
    "/": ("/", "A plan for the meadow"),
    "/new": ("/new", "Title"),
    "/c/{id}": ("/c/{plan}", "I look at the files first."),
    "/c/{id}/m/{message:path}": ("/c/{long}/m/@225", "Line 225 of the conversation."),
    "/c/{id}/m/{message:path}/edit": ("/c/{plan}/m/@0/edit", "Can we mow on Friday?"),
    "/c/{id}/tree": ("/c/{branched}/tree", "It absorbs red and blue light."),
    "/c/{id}/context": ("/c/{context}/context", "files of"),
    "/c/{id}/versions": ("/c/{plan}/versions", "A plan for the meadow"),
    "/c/{id}/export": ("/c/{plan}/export", "Without secrets"),
    "/search": ("/search?q=meadow", "A plan for the meadow"),
    "/inbox": ("/inbox", "Then I wait."),
    "/import": ("/import", "Import"),
    "/people": ("/people", "Writes code"),
    "/people/{agent}": ("/people/bob", "on the north slope"),
    "/projects/{project}": ("/projects/{projects[0]}", "north"),
    "/channels/{channel}": ("/channels/general", "weather"),
    "/workers": ("/workers", "worker"),
    "/workers/{session}": ("/workers/{session}", "Please mow."),
    "/repairs": ("/repairs", "Anna's title"),
    "/overview": ("/overview?health=1", "Messages by agent"),
    "/trash/{token}": ("/trash/{token}", "In the trash"),
    "/{path:path}": ("/no/such/page", "there is no page"),
}
#: What is no page: files, and the stream.
NO_PAGES = {"/static/{path:path}", "/events", "/c/{id}/files/{digest}"}
#: Scrolls to the top, where nothing is below the bar, until the page does not scroll to its end any more.
_TO_TOP = """async () => {
    for (let still = 0; still < 10; still = scrollY ? 0 : still + 1) {
        scrollTo(0, 0);
        await new Promise(requestAnimationFrame);
    }
}"""
#: What has only a form, of which nothing is on paper.
FORMS = {"/new", "/import", "/c/{id}/export", "/c/{id}/m/{message:path}/edit"}


def test_every_page_of_the_routes_is_in_the_list() -> None:
    assert {route.path for route in ROUTES if "GET" in (route.methods or ())} == PAGES.keys() | NO_PAGES


@pytest.mark.slow
def test_every_page_is_for_everybody(
    root: Path, talk: Talk, serve: Callable[..., Served], contexts: Callable[..., BrowserContext], guard: Guard
) -> None:
    guard.expect("404.*/no/such/page")
    with Store.open(root) as store:
        known = {name: getattr(talk, name) for name in Talk.__slots__}
        known |= {"session": store.sessions.list()[0].id, "token": store.trash.list()[0].token}
    served = serve(root)
    served.client.post("/as", data={"agent": "anna"}, headers={"origin": served.base})
    looks: list[dict[str, Any]] = [
        {"color_scheme": "light"},
        {"color_scheme": "dark", "viewport": {"width": 320, "height": 700}},
        {"java_script_enabled": False, "viewport": {"width": 320, "height": 700}},
    ]
    for options in looks:
        page = contexts(**options).new_page()
        page.context.add_cookies(served.cookies())  # type: ignore[arg-type]
        for route, (address, text) in PAGES.items():
            path = address.format(**known)
            answer = page.goto(f"{served.base}{path}")
            assert answer is not None and answer.status == (404 if path == "/no/such/page" else 200), path
            assert text in str(page.locator("main").text_content()), path
            if "java_script_enabled" not in options:
                page.evaluate(_TO_TOP)
                check_axe(page)
                page.emulate_media(media="print")
                assert route in FORMS or text in page.locator("main").inner_text(), f"{path} on paper"
                page.emulate_media(media="screen")
            page.evaluate("() => document.querySelectorAll('details').forEach(each => each.open = true)")
            wide = page.evaluate("() => [document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1], f"{path} is {wide[0]} wide"
