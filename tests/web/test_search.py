"""The search: as one types and without script, narrowed as on the command line, one click from the
message.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.processes import until
from tests.web.serving import Served
from tests.web.stores import Talk
from tests.web.test_list import Serve

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow


@pytest.fixture
def served(root: Path, talk: Talk, serve: Serve) -> Served:
    return serve(root)


def test_a_search_without_script_leads_to_the_message_in_its_place(
    served: Served, contexts: Callable[..., BrowserContext], talk: Talk
) -> None:
    page = served.open(contexts(java_script_enabled=False))
    page.fill("#q", "mow friday")
    page.press("#q", "Enter")
    page.locator("mark").first.wait_for()
    assert page.locator("mark").all_text_contents()[:2] == ["mow", "Friday"]
    hit = page.locator(f"#list a[href^='/c/{talk.plan}/m/']").first
    assert (hit.get_attribute("href") or "").endswith("?find=mow+friday")
    hit.click()
    assert "/m/" in page.url and "Can we mow on Friday?" in (page.text_content("main") or "")


def test_hits_are_shown_as_one_types_and_the_address_is_kept(served: Served, page: Page) -> None:
    served.open(page, "/search")
    page.type("#q", "meadow")
    until(lambda: page.locator("#list > li").count() > 1)
    assert page.url.endswith("/search?q=meadow")
    until(lambda: page.text_content("#said") == page.text_content("#found .about").strip())  # type: ignore[union-attr]
    page.type("#q", " xyzzy")
    until(lambda: "1 of them" in (page.text_content("#found") or ""))
    page.fill("#q", "")
    until(lambda: "all words must be there" in (page.text_content("#found") or ""))
    served.open(page, "/search?q=meadow")
    assert page.locator("#list > li").count() > 1 and page.input_value("#q") == "meadow"


def test_an_old_answer_never_replaces_a_newer_one(served: Served, page: Page) -> None:
    served.open(page, "/search")
    held = []
    page.route("**/search?q=meadow&*", lambda route: held.append(route))
    page.fill("#q", "meadow")
    until(lambda: page.evaluate("() => 1") and held)
    page.fill("#q", "xyzzy")
    until(lambda: "Nothing was found" in (page.text_content("#found") or ""))
    held[0].abort()
    assert page.url.endswith("q=xyzzy") and "Nothing was found" in (
        page.text_content("#found") or ""
    )


def test_a_search_is_narrowed_as_on_the_command_line(served: Served, talk: Talk) -> None:
    for asked, there in (
        ("q=mow&role=system", False),
        ("q=mow&role=user", True),
        ("q=mow&since=2999-01-01", False),
        ("q=mow&until=2999-01-01&branch=active&profile=exact", True),
        ("q=mow&from=bob", False),
        ("q=meadow&tag=meadow&title_only=yes", True),
        ("q=mow&in={plan}&in_tools=yes", True),
        ("q=mow&where=%7B%22role%22%3A%22system%22%7D", False),
        ("role=user&tag=meadow", True),
    ):
        text = served.client.get(f"/search?{asked.format(plan=talk.plan)}&part=found").text
        assert (f'href="/c/{talk.plan}' in text) == there, asked


def test_a_search_that_can_not_be_understood_says_so(served: Served) -> None:
    for asked in (
        "where={",
        "since=soon",
        "in=nowhere",
        "cursor=x",
        "branch=oak",
        'where={"$x":1}',
    ):
        answer = served.client.get("/search", params={"q": "a"} | dict([asked.split("=", 1)]))
        assert answer.status_code == 200 and 'class="error"' in answer.text, asked


def test_the_panel_narrows_what_is_shown_and_the_next_hits_come(served: Served, page: Page) -> None:
    served.open(page, "/search?q=line+conversation")
    until(
        lambda: (
            page.evaluate("() => void scrollTo(0, 1e6)") or page.locator("#list > li").count() > 60
        )
    )
    page.evaluate("() => void scrollTo(0, 0)")
    page.click("summary")
    page.check("[name=title_only]")
    until(lambda: 0 < page.locator("#list > li").count() < 20)
    assert page.url.endswith("?q=line+conversation&title_only=yes")
