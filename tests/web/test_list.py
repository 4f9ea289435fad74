"""The list of conversations: narrowed, endless and live, with script and without."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from tests.processes import until
from tests.web.serving import Served
from tests.web.stores import Talk, many

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow
Serve = Callable[..., Served]
PHONE = {"viewport": {"width": 320, "height": 640}, "has_touch": True}


def titles(page: Page) -> list[str]:
    return page.locator("#list .title").all_text_contents()


def test_the_list_narrows_without_script(
    root: Path, talk: Talk, serve: Serve, contexts: Callable[..., BrowserContext]
) -> None:
    served = serve(root)
    page = served.open(contexts(java_script_enabled=False))
    assert "A plan for the meadow" in titles(page) and "bob" in (page.text_content("#list") or "")
    page.click("summary")
    page.select_option("[name=tag]", "meadow")
    page.click("text=Show")
    assert titles(page) == ["A plan for the meadow", "Fork of A plan for the meadow"]
    for asked, there in (
        ("source=codex", talk.imported[-1]),
        ("type=group", talk.group),
        ("pinned=yes", talk.plan),
    ):
        served.open(page, f"/?{asked}")
        assert (
            page.locator(f"#c-{there}").count() == 1
            and page.locator(f"#c-{talk.long}").count() == 0
        )
    served.open(page, "/?archived=yes")
    assert page.locator("#list > li").count() == 1
    served.open(page, "/?agent=eve&title=MEAD")
    assert page.locator("#list > li").count() == 1 and page.locator(f"#c-{talk.group}").count() == 1
    served.open(page, "/?tag=nothing")
    assert "no such conversation" in (page.text_content("#list") or "")


def test_a_menu_says_how_many_there_are_and_the_address_keeps_what_was_chosen(
    root: Path, talk: Talk, serve: Serve, page: Page
) -> None:
    serve(root).open(page)
    page.click("summary")
    assert "meadow (2)" in page.locator("[name=tag] option").all_text_contents()
    page.select_option("[name=tag]", "meadow")
    until(lambda: len(titles(page)) == 2)
    assert page.url.endswith("/?tag=meadow")
    until(lambda: page.locator("#facets [type=checkbox][name=tag]").count() == 1)
    page.fill("#title", "fork")
    until(lambda: titles(page) == ["Fork of A plan for the meadow"])
    page.reload()
    assert (
        titles(page) == ["Fork of A plan for the meadow"] and page.input_value("#title") == "fork"
    )


def test_the_next_page_comes_when_one_scrolls_and_is_a_link_without_script(
    root: Path, serve: Serve, contexts: Callable[..., BrowserContext]
) -> None:
    many(root, 130)
    served = serve(root)
    page = served.open(contexts())
    until(
        lambda: (
            page.evaluate("() => void scrollTo(0, 1e6)")
            or page.locator("#list > li").count() == 130
        )
    )
    assert (
        len({*page.locator("#list > li").evaluate_all("(all) => all.map((each) => each.id)")})
        == 130
    )
    assert page.locator("a[rel=next]").count() == 0
    plain, seen = served.open(contexts(java_script_enabled=False)), list[str]()
    while True:
        seen += titles(plain)
        if not plain.locator("a[rel=next]").count():
            break
        plain.click("a[rel=next]")
    assert len(seen) == 130 == len({*seen})


def test_what_changes_moves_up_where_the_top_is_shown_and_is_counted_where_it_is_not(
    root: Path, serve: Serve, contexts: Callable[..., BrowserContext]
) -> None:
    many(root, 60)
    served = serve(root)
    top, below = served.open(contexts()), served.open(contexts())
    for page in (top, below):
        until(lambda page=page: page.locator("#keys-button:visible").count())  # type: ignore[misc]
    until(lambda: below.evaluate("() => { scrollTo(0, 1e6); return scrollY }") > 200)
    until(lambda: len(titles(below)) == 60)  # A page that is loaded later has what is new by then.
    with Store.open(root) as store:
        last = store.list(limit=60).heads[-1]
        store.append(last.id, content="Hello")
        new = store.create(title="A new one").id
    until(lambda: titles(top)[:2] == ["A new one", last.title])
    until(lambda: below.text_content("#news") == "2 changed")
    assert below.locator(f"#c-{new}").count() == 0
    below.click("#news button")
    until(lambda: titles(below)[:2] == ["A new one", last.title])
    assert below.text_content("#news") == "" and below.evaluate("() => scrollY") == 0


def test_only_what_is_unread_is_listed_for_the_agent(
    root: Path, talk: Talk, serve: Serve, page: Page
) -> None:
    served = serve(root, env={"CAPSULE_AGENT": "anna"})
    served.open(page, "/?unseen=yes")
    there = page.locator("#list > li").evaluate_all("(all) => all.map((each) => each.id)")
    assert {f"c-{talk.direct}", f"c-{talk.group}"} <= {*there} and f"c-{talk.plan}" not in there
    assert "1 unread" in (page.text_content(f"#c-{talk.group}") or "")
