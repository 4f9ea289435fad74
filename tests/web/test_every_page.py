"""Every page, by the list of routes: without script, on a phone, for WCAG in light and dark, and on
paper.

What must stay true: that a page is for everybody is told here, and elsewhere only of what a click
or an event shows, as axe takes about half a second of a processor.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from capsule.web.server import ROUTES
from tests.web import stores
from tests.web.browser import Guard, check_axe, screenshot
from tests.web.serving import Served
from tests.web.stores import Talk

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

#: By their routes: an address of each page, with the ids of `Talk`, and what it says.
PAGES = {
    "/": ("/", "A plan for the meadow"),
    "/enter": ("/enter", "An address is good once"),
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
    "/people/{agent}": ("/people/bob?action=message&other=eve", "on the north slope"),
    "/projects/{project}": ("/projects/{projects[0]}", "north"),
    "/channels/{channel}": ("/channels/general", "weather"),
    "/workers": ("/workers", "worker"),
    "/workers/{session}": ("/workers/{session}", "Please mow."),
    "/repairs": ("/repairs", "Anna's title"),
    "/overview": ("/overview?health=1", "Messages by agent"),
    "/trash/{token}": ("/trash/{token}", "In the trash"),
    "/{path:path}": ("/no/such/page", "there is no page"),
}
#: Other addresses of these pages, which show more of what there is: on a phone, in the dark.
MORE = {
    "/?tag=work": "A long conversation",
    "/c/{plan}?find=meadow": "I look at the files first.",
    "/c/{branched}": "Because of magnesium",
    "/c/{summary}": "They counted to 450",
    "/c/{direct}": "Is the mower back?",
    "/c/{imported[0]}": "",
    "/c/{context}/context?drift=1": "mow.py",
    "/c/{plan}/versions?before=HEAD~2&after=HEAD": "A later message",
    "/c/{wide}?answer={answered}": "a-tag-that-is-long",
    "/c/{wide}/export": "Without secrets",
    "/people/zoe": "Is choosy",
    "/search?q=meadow&role=user": "Nothing was found",
}
#: What is no page: files, and the stream.
NO_PAGES = {"/static/{path:path}", "/events", "/c/{id}/files/{digest}"}
#: Scrolls to the top, where nothing is below the bar, until the page does not scroll to its end any
#: more.
_TO_TOP = """async () => {
    for (let still = 0; still < 10; still = scrollY ? 0 : still + 1) {
        scrollTo(0, 0);
        await new Promise(requestAnimationFrame);
    }
}"""
#: What has only a form, of which nothing is on paper.
FORMS = {
    PAGES[route][0]
    for route in ("/new", "/import", "/c/{id}/export", "/c/{id}/m/{message:path}/edit")
}


def test_every_page_of_the_routes_is_in_the_list() -> None:
    assert {
        route.path for route in ROUTES if "GET" in (route.methods or ())
    } == PAGES.keys() | NO_PAGES


@pytest.mark.slow
def test_every_page_is_for_everybody(
    root: Path,
    talk: Talk,
    serve: Callable[..., Served],
    contexts: Callable[..., BrowserContext],
    guard: Guard,
) -> None:
    guard.expect("404.*/no/such/page")
    with Store.open(root) as store:
        known = {name: getattr(talk, name) for name in Talk.__slots__}
        known |= {"session": store.sessions.list()[0].id, "token": store.trash.list()[0].token}
        wide = store.create(title="Plan " * 20, tags=["a-tag-that-is-long" * 3]).id
        known |= {"wide": wide, "answered": store.append(wide, content="first").id}
        store.servers.set(wide, {"git": False})
    stores.versions(root, talk.plan, "A plan for the meadow in May")
    (root / "conversations" / "broken.json").write_text("{")
    served = serve(root)
    served.client.post("/as", data={"agent": "anna"}, headers={"origin": served.base})
    phone, pages = {"viewport": {"width": 320, "height": 700}}, [*PAGES.values()]
    looks: list[tuple[dict[str, Any], list[tuple[str, str]]]] = [
        ({"color_scheme": "light"}, pages),
        ({"color_scheme": "dark"} | phone, [*pages, *MORE.items()]),
        ({"java_script_enabled": False} | phone, pages),
    ]
    for number, (options, shown) in enumerate(looks):
        page = contexts(**options).new_page()
        page.context.add_cookies(served.cookies())  # type: ignore[arg-type]
        for address, text in shown:
            path = address.format(**known)
            answer = page.goto(f"{served.base}{path}")
            assert answer is not None and answer.status == (
                404 if path == "/no/such/page" else 200
            ), path
            assert text in str(page.locator("main").text_content()), path
            if "viewport" in options:
                page.evaluate(
                    "() => document.querySelectorAll('details').forEach(each => each.open = true)"
                )
                width = page.evaluate("() => document.documentElement.scrollWidth")
                assert width <= 320, f"{path} is {width} wide"
            if "color_scheme" in options:
                page.evaluate(_TO_TOP)
                check_axe(page)
            if "viewport" not in options:
                page.emulate_media(media="print")
                assert address in FORMS or text in page.locator("main").inner_text(), (
                    f"{path} on paper"
                )
                page.emulate_media(media="screen")
            screenshot(page, f"page-{number}-{shown.index((address, text))}", full_page=True)
