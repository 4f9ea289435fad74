"""A store as static pages in a real browser: from the disk and from a server, with a search and
without script.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from tests.processes import until
from tests.web.browser import Guard, check_axe, screenshot
from tests.web.hostile import HOSTILE
from tests.web.stores import PNG, Talk

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow
PHONE = {"viewport": {"width": 320, "height": 640}, "color_scheme": "dark"}


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@pytest.fixture(params=["disk", "server"])
def address(request: pytest.FixtureRequest, tmp_path: Path, guard: Guard) -> Iterator[str]:
    """The address of `tmp_path / "site"`, by which pages may load nothing else."""
    folder = tmp_path / "site"
    guard.expect(r"Connecting to '[^']*/style\.css' violates")  # So axe reads styles.
    if request.param == "disk":
        guard.bases.append(f"{folder.as_uri()}/")
        yield guard.bases[-1]
        return
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(_Quiet, directory=str(folder))) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        guard.expect("favicon")
        guard.bases.append(f"http://127.0.0.1:{server.server_port}/")
        yield guard.bases[-1]
        server.shutdown()
        thread.join()


def made(root: Path, tmp_path: Path) -> None:
    with Store.open(root) as store:
        store.export.site(
            [head.id for head in store.list().heads if not head.damaged], str(tmp_path / "site")
        )


def search(page: Page, words: str) -> list[str]:
    """The titles that a search finds."""
    page.get_by_label("Search in all messages").fill(words)
    until(lambda: page.locator("#status").text_content())
    return [title.strip() for title in page.locator("#found .title").all_text_contents()]


def test_a_site_is_read_and_searched_from_the_disk_and_from_a_server(
    root: Path, talk: Talk, tmp_path: Path, page: Page, address: str
) -> None:
    with Store.open(root) as store:
        store.create(
            title="Straße nach 東京",
            messages=[{"role": "user", "content": "Äpfel, 東京タワー und ÉTÉ"}],
        )
        titles = [head.title for head in store.list().heads if not head.damaged]
    made(root, tmp_path)
    page.goto(f"{address}index.html")
    assert page.locator("#all .title").count() == len(titles)
    assert page.locator("#all time").first.text_content() != ""
    screenshot(page, "site-list")

    for words in ("apfel", "ete", "東京", "タワ", "strasse nach", "STRAẞE"):
        found = search(page, words)
        assert found == ([] if words == "strasse nach" else ["Straße nach 東京"]), words
    assert search(page, "no-such-word") == []
    assert page.locator("#status").text_content() == "0 conversations"
    assert search(page, "magnes nitro") == ["Three answers"]
    if address.startswith("file:"):
        check_axe(page)
    screenshot(page, "site-search")
    search(page, "chloro")
    page.locator("#found .said a").first.click()
    page.wait_for_url("**/c/*.html#m-1")
    seen = (
        "[...document.querySelectorAll('article:not([hidden]) > .text')].map(it => "
        "it.textContent.trim())"
    )
    assert page.evaluate(seen) == ["Why is grass green?", "It has chlorophyll."]
    page.go_back()
    until(lambda: page.locator("#found .title").count() == 1)
    search(page, "chloro magnesium")
    page.locator("#found .title").click()
    page.wait_for_url("**/c/*.html")
    assert page.evaluate(seen)[1].startswith("Because of magnesium")


def test_what_is_folded_is_open_where_a_search_leads_and_images_are_shown(
    root: Path, talk: Talk, tmp_path: Path, page: Page, address: str
) -> None:
    made(root, tmp_path)
    page.goto(f"{address}index.html")
    assert "A plan for the meadow" in search(page, "has been updated mow.py")
    link = (
        page.locator("#found li", has_text="A plan for the meadow").first.locator(".said a").first
    )
    link.click()
    page.wait_for_url("**#m-3")
    assert page.locator("#m-3").is_visible()
    until(lambda: page.evaluate("document.querySelector('#m-0 img').naturalWidth") == 1)
    assert (tmp_path / "site").joinpath(
        *str(page.locator("#m-0 img").get_attribute("src")).split("/")[1:]
    ).read_bytes() == PNG
    screenshot(page, "site-page")
    page.get_by_role("link", name="All conversations").click()
    page.wait_for_url("**/index.html")


def test_hostile_texts_neither_run_nor_load_in_a_site(
    root: Path, tmp_path: Path, contexts: Callable[..., BrowserContext], address: str
) -> None:
    with Store.open(root, keep_locks=False) as store:
        for text in HOSTILE:
            text = text.encode("utf-8", "replace").decode()
            call = [{"id": "c", "name": text, "arguments": {"command": text}}]
            first = {"role": "user", "content": text}
            again = {"role": "assistant", "content": text, "toolCalls": call}
            title = "".join(sign for sign in text if sign.isprintable())[:200]
            store.create(title=title, tags=["hostile"], messages=[first, again])
    made(root, tmp_path)
    page = contexts(**PHONE).new_page()
    page.goto(f"{address}index.html")

    assert page.locator("#all > li").count() == len(HOSTILE)
    search(page, "canary")
    assert page.locator("#found > li").count() > 20
    assert page.evaluate("document.documentElement.scrollWidth") <= 320
    if address.startswith("file:"):
        check_axe(page)
    screenshot(page, "site-hostile-phone")
    for name in sorted(path.name for path in (tmp_path / "site" / "c").iterdir())[:20]:
        page.goto(f"{address}c/{name}")
        assert page.locator("article").count() == 2
        assert page.evaluate("document.documentElement.scrollWidth") <= 320
    if address.startswith("file:"):
        check_axe(page)


def test_without_script_a_site_is_read(
    root: Path, talk: Talk, tmp_path: Path, contexts: Callable[..., BrowserContext], address: str
) -> None:
    made(root, tmp_path)
    page = contexts(java_script_enabled=False, **PHONE).new_page()
    page.goto(f"{address}index.html")
    assert not page.get_by_label("Search in all messages").is_visible()
    page.get_by_role("link", name="Three answers").first.click()
    page.wait_for_url("**/c/*.html")
    assert page.locator("article").count() >= 4
    assert all(article.is_visible() for article in page.locator("article").all())
    screenshot(page, "site-phone")
