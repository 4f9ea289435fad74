"""The inbox: what waits for an agent, and the buttons that settle it; and the keyboard."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from capsule.web.view import AS
from tests.processes import until
from tests.web.browser import check_axe
from tests.web.serving import Served
from tests.web.stores import Talk
from tests.web.test_list import PHONE, Serve, titles

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow


@pytest.fixture
def served(root: Path, talk: Talk, serve: Serve) -> Served:
    return serve(root)


def chosen(served: Served, agent: str) -> dict[str, str]:
    """The cookie that says for which agent the owner writes."""
    return {"name": served.cookies()[0]["name"] + AS, "value": agent, "url": served.base}


def open_as(served: Served, agent: str, context: BrowserContext, path: str = "/inbox") -> Page:
    context.add_cookies([chosen(served, agent)])  # type: ignore[list-item]
    return served.open(context, path)


def test_what_waits_is_settled_without_script(
    served: Served, contexts: Callable[..., BrowserContext], root: Path, talk: Talk
) -> None:
    page = open_as(served, "anna", contexts(java_script_enabled=False))
    with Store.open(root, agent="anna") as anna, Store.open(root) as owner:
        page.click(f"#c-{talk.direct} button")
        assert talk.direct not in {item.id for item in anna.messages.inbox().conversations}
        page.click("text=Done with what eve asked")
        assert not anna.messages.mentions()
        page.click("summary")
        page.click("text=Not done yet")
        assert len(anna.messages.mentions()) == 1
        (question,) = owner.sessions.questions()
        assert (question.agent, question.text, question.conversation) == (
            "worker",
            "Delete it?",
            talk.asked,
        )
        page.click("text=Yes, all")
        last = anna.tail(talk.asked, 1)[0]
        assert (last.content, last.reply_to) == ("yes", question.message)


def test_whoever_asks_for_consent_is_allowed_or_blocked(
    served: Served, contexts: Callable[..., BrowserContext], root: Path
) -> None:
    page = open_as(served, "zoe", contexts(color_scheme="dark", **PHONE))
    check_axe(page)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 320
    assert "eve" in (page.text_content("#found") or "")
    page.click("text=Allow")
    page.wait_for_load_state()
    with Store.open(root, agent="zoe") as zoe:
        assert not zoe.agents.requests()
        assert (zoe.agents.get("zoe").dm or {})["eve"]["permission"] == "allow"


def test_a_question_is_withdrawn(served: Served, context: BrowserContext, root: Path) -> None:
    page = open_as(served, "anna", context)
    page.click("text=Withdraw")
    page.wait_for_load_state()
    until(lambda: "Questions" not in (page.text_content("#found") or ""))
    with Store.open(root) as store:
        assert not store.sessions.questions()


def test_the_owner_is_told_how_to_choose_an_agent(served: Served, page: Page) -> None:
    served.open(page, "/inbox")
    assert page.locator("main a[href='/people']").count() == 1
    assert page.locator("tr", has_text="anna").locator("td").last.text_content() == "8"


def test_an_agents_own_page_shows_no_questions_of_others(
    root: Path, talk: Talk, serve: Serve, page: Page
) -> None:
    serve(root, env={"CAPSULE_AGENT": "bob"}).open(page, "/inbox")
    assert "Delete it?" not in (page.text_content("main") or "")


def test_a_refusal_is_shown_and_an_unknown_word_too(served: Served) -> None:
    served.client.cookies.set(chosen(served, "anna")["name"], "anna")
    for form, status in (
        ({"do": "done", "id": "nothing"}, 404),
        ({"do": "dance"}, 400),
        ({"do": "allow", "id": "x"}, 404),
    ):
        assert served.client.post("/inbox", data=form).status_code == status, form
    served.client.cookies.set(chosen(served, "anna")["name"], "nobody")
    assert served.client.get("/inbox").status_code == 404


def test_the_number_of_unread_messages_follows_on_every_page(
    served: Served, context: BrowserContext, root: Path
) -> None:
    first, second = open_as(served, "anna", context, "/search"), open_as(served, "anna", context)
    until(lambda: second.locator("#keys-button:visible").count())
    assert (first.text_content("#unread") or "").split() == ["8", "unread"]
    with Store.open(root) as store:
        store.messages.send("And another", agent="bob", to="anna")
    for page in (first, second):
        until(lambda page=page: (page.text_content("#unread") or "").split() == ["9", "unread"])  # type: ignore[misc]
    until(lambda: "And another" in (second.text_content("#found") or ""))


def test_keys_lead_through_lists_conversations_and_pages(
    served: Served, page: Page, talk: Talk
) -> None:
    served.open(page)
    until(lambda: page.locator("#keys-button:visible").count())
    for key, at in (("j", 0), ("j", 1), ("j", 2), ("k", 1)):
        page.keyboard.press(key)
        assert page.evaluate("() => document.activeElement.textContent") == titles(page)[at]
    page.keyboard.press("Enter")
    page.wait_for_url("**/c/*")
    for keys, where in (("gh", "/"), ("gi", "/inbox"), ("gh", "/"), ("i", "/inbox")):
        until(lambda: page.locator("#keys-button:visible").count())
        page.keyboard.type(keys)
        page.wait_for_url(f"{served.base}{where}")
    until(lambda: page.locator("#keys-button:visible").count())
    page.keyboard.press("/")
    page.keyboard.type("jig")
    assert page.input_value("#q") == "jig" and page.url.endswith("/inbox")


def test_keys_are_shown_and_can_be_switched_off_for_good(served: Served, page: Page) -> None:
    served.open(page)
    until(lambda: page.locator("#keys-button:visible").count())
    page.keyboard.press("Control+i")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 1 and "Next and previous" in (
        page.text_content("dialog") or ""
    )
    check_axe(page)
    page.uncheck("#keys-on")
    page.keyboard.press("Escape")
    page.reload()
    until(lambda: page.locator("#keys-button:visible").count())
    page.keyboard.press("i")
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 0 and page.url == f"{served.base}/"
    page.click("#keys-button")
    page.check("#keys-on")
    page.click("dialog button")
    page.keyboard.press("i")
    page.wait_for_url("**/inbox")


def test_keys_choose_messages_and_act_on_the_chosen_one(
    served: Served, page: Page, talk: Talk
) -> None:
    served.open(page, f"/c/{talk.plan}")
    until(lambda: page.locator("#keys-button:visible").count())
    there = page.locator("#messages article").evaluate_all("(all) => all.map((each) => each.id)")
    page.keyboard.type("j" + len(there) * "k")
    assert page.evaluate("() => document.activeElement.id") == there[0]
    page.keyboard.press("j")
    assert page.evaluate("() => document.activeElement.id") == there[1]
    page.keyboard.press("e")
    page.wait_for_url("**/edit")
