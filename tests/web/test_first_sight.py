"""What one sees of a store that is empty or large, of a table that is wide, and on paper."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from capsule.web.preparing import Preparation
from tests.web.browser import check_axe, screenshot
from tests.web.drawn import text
from tests.web.serving import Served
from tests.web.test_admission import Door, tokens  # noqa: F401

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

    from capsule.mcp_server.access import Tokens

MB = 1 << 20


def table(columns: int) -> str:
    """A table in Markdown with so many columns, of one row."""
    rows = [[f"{word}-{number}" for number in range(columns)] for word in ("column", "value")]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (rows[0], ["---"] * columns, rows[1]))


@pytest.fixture
def door(store: Store, tokens: Tokens) -> Door:  # noqa: F811
    door = Door(store, tokens)
    door.enter(door.site.admission.token())
    return door


def test_an_empty_store_says_so_and_what_to_do(door: Door) -> None:
    empty = text(door.ask("/"))
    assert (
        "There is no conversation yet. Write the first one under New, or run capsule import"
        in empty
    )
    assert "There is no conversation yet." in text(door.ask("/?part=found"))
    assert "There is no such conversation." in text(door.ask("/?tag=none"))


def test_until_the_index_is_there_a_visitor_sees_how_far_it_is(door: Door) -> None:
    let_go, asked = threading.Event(), list[int]()

    def build(report: Callable[[int, int], None]) -> None:
        asked.append(1)
        report(30 * MB, 100 * MB)
        let_go.wait()

    door.site.preparation = Preparation(build)
    first = door.ask("/people", accept="text/html")
    assert (first.status, first.headers["retry-after"]) == (503, "1")
    assert "31.5 MB of 104.9 MB" in text(first) and 'http-equiv="refresh"' in first.text
    let_go.set()
    while (answer := door.ask("/people", accept="text/html")).status == 503:
        pass
    assert "Agents" in text(answer)
    assert asked == [1]


def test_a_small_store_never_shows_that_it_is_read(door: Door) -> None:
    let_go = threading.Event()

    def build(report: Callable[[int, int], None]) -> None:
        report(0, MB)
        let_go.wait()

    door.site.preparation = Preparation(build)
    assert door.ask("/", accept="text/html").status == 200
    let_go.set()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 320])
def test_a_wide_table_is_scrolled_in_its_place(
    store: Store, serve: Callable[..., Served], contexts: Callable[..., BrowserContext], width: int
) -> None:
    id = store.create(
        title="Plan",
        messages=[{"role": "assistant", "content": f"Wide:\n\n{table(30)}\n\nThe end."}],
    ).id
    page = serve(Path(store.root)).open(
        contexts(viewport={"width": width, "height": 700}), f"/c/{id}"
    )
    drawn, last = page.locator(".message table"), page.get_by_text("value-29", exact=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    drawn.evaluate("(table) => table.scrollTo(table.scrollWidth, 0)")
    box = last.bounding_box()
    assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= width
    assert box["height"] < 60  # It is not broken into a column of letters.
    screenshot(page, f"wide-table-{width}")
    check_axe(page)


@pytest.mark.slow
def test_on_paper_there_are_texts_and_no_links_to_do_something(
    store: Store, serve: Callable[..., Served], page: Page
) -> None:
    id = store.create(title="Plan").id
    store.append_many(
        id, [{"role": "user", "content": f"Message {number}\n\n{table(12)}"} for number in range(3)]
    )
    serve(Path(store.root)).open(page, f"/c/{id}")
    page.emulate_media(media="print")
    shown = page.locator("main").inner_text()
    assert [word for word in ("Answer", "Change", "Manage", "Find", "Send") if word in shown] == []
    assert all(f"Message {number}" in shown for number in range(3))
    page.set_viewport_size({"width": 794, "height": 1123})  # A4.
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 794
    screenshot(page, "on-paper", full_page=True)
