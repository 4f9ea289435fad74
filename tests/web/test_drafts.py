"""What is typed in any form of the page stays in the browser until the store has it, and each tab
has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from capsule.sessions.worker.toolkit import Toolkit
from capsule.sessions.worker.worker import CommandResult, Prompt
from tests.processes import until
from tests.sessions.hosting import group, hosting, said
from tests.web.browser import Guard, check_axe, screenshot
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page

pytestmark = pytest.mark.slow


@pytest.fixture
def store(root: Path) -> Iterator[Store]:
    with Store.open(root, keep_locks=False) as store:
        yield store


def kept(page: Page) -> list[str]:
    """The names of the drafts that the browser keeps."""
    return page.evaluate(
        "() => Object.keys(localStorage).filter((name) => name.includes(' draft '))"
    )


def check_value(page: Page, label: str, value: str) -> None:
    """Wait until a field has a value."""
    from playwright.sync_api import expect

    expect(page.get_by_label(label, exact=label == "Text")).to_have_value(value)


def test_two_tabs_keep_a_draft_each(
    store: Store, serve: Callable[..., Served], context: BrowserContext
) -> None:
    from playwright.sync_api import expect

    id = store.create(title="Plan").id
    served, label = serve(Path(store.root)), "Write as the owner"
    first, second = served.open(context, f"/c/{id}"), served.open(context, f"/c/{id}")
    first.get_by_label(label).fill("of the first")
    second.get_by_label(label).fill("of the second")
    until(lambda: len(kept(first)) == 2)
    for _ in range(3):
        first.reload()
        check_value(first, label, "of the first")
        second.reload()
        check_value(second, label, "of the second")
    first.close()
    third = served.open(context, f"/c/{id}")
    check_value(third, label, "of the first")  # Which no tab shows any more.
    third.get_by_role("button", name="Send").click()
    expect(third.locator("#messages").get_by_text("of the first", exact=True)).to_be_visible()
    check_value(second, label, "of the second")
    second.get_by_label(label).fill("")
    until(lambda: kept(second) == [])
    assert [message.content for message in store.tail(id, 5)] == ["of the first"]


def test_an_answer_to_a_message_is_not_offered_elsewhere(
    store: Store, serve: Callable[..., Served], page: Page
) -> None:
    id = store.create(title="Plan").id
    first = store.append(id, content="first").id
    served = serve(Path(store.root))
    served.open(page, f"/c/{id}?answer={first}")
    page.get_by_label("Answer as the owner").fill("to the first")
    served.open(page, f"/c/{id}")
    check_value(page, "Write as the owner", "")
    served.open(page, f"/c/{id}?answer={first}")
    check_value(page, "Answer as the owner", "to the first")


def test_a_new_conversation_and_an_edit_are_kept_while_the_server_is_away_and_are_made_once(
    store: Store, serve: Callable[..., Served], page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("ERR_|Failed to load")
    id = store.create(title="Plan", messages=[{"role": "user", "content": "first"}]).id
    served = serve(Path(store.root))
    served.open(page, "/new")
    page.get_by_label("Title, made").fill("Kept")
    page.get_by_label("Tags").fill("one, two")
    page.get_by_label("Text", exact=True).fill("a long text")
    page.reload()
    for label, value in (("Title, made", "Kept"), ("Tags", "one, two"), ("Text", "a long text")):
        check_value(page, label, value)
    check_axe(page)
    screenshot(page, "draft-new")
    served.kill()
    page.get_by_role("button", name="Make").click()
    expect(page.locator(".said")).to_contain_text("Not sent yet")
    served.restart()
    page.wait_for_url("**/c/*")
    expect(page.locator("#messages").get_by_text("a long text", exact=True)).to_be_visible()
    assert sum(head.title == "Kept" for head in store.heads()) == 1
    served.open(page, f"/c/{id}/m/@0/edit")
    page.get_by_role("textbox", name="Text").fill("better")
    served.open(page, f"/c/{id}/m/@0/edit")
    check_value(page, "Text", "better")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/m/*")
    assert [message.content for message in store.branches.path(id)] == ["better"]
    until(lambda: kept(page) == [])
    served.open(page, "/new")
    check_value(page, "Text", "")


def test_a_text_that_is_refused_stays_with_the_reason(
    store: Store, serve: Callable[..., Served], page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("400")
    served = serve(Path(store.root))
    served.open(page, "/new")
    page.get_by_label("Title, made").fill("x" * 5000)
    page.get_by_label("Text", exact=True).fill("typed")
    page.get_by_role("button", name="Make").click()
    expect(page.locator(".said")).to_contain_text("Not sent: ")
    check_value(page, "Text", "typed")
    page.get_by_label("Title, made").fill("short")
    page.get_by_role("button", name="Make").click()
    page.wait_for_url("**/c/*")
    assert [head.title for head in store.heads()] == ["short"]


def test_an_answer_in_the_inbox_is_kept_and_is_sent_once(
    store: Store, serve: Callable[..., Served], page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("ERR_|Failed to load")
    store.agents.register("anna")
    group(store, "worker")

    def ask(prompt: Prompt) -> CommandResult:
        with store.beside() as beside:
            # Tools of workers give options to each question; programs of others need not.
            question = {"kind": "question", "content": "Which slope?", "options": [], "to": None}
            Toolkit(beside, prompt.session, prompt.batch)._send(
                **question, expires_at="2999-01-01T00:00:00.000Z"
            )
        return CommandResult(0, "")

    with hosting(store, ask):
        asked = store.messages.send("Please mow.", agent="anna", to="worker").conversation
        until(lambda: said(store, asked, "worker"))
    store.messages.ack(agent="anna", conversation=asked)
    served = serve(Path(store.root))
    served.client.post("/as", data={"agent": "anna"}, headers={"origin": served.base})
    served.open(page, "/inbox")
    page.get_by_label("Answer to worker").fill("the north one")
    store.messages.send("Something else.", agent="worker", to="anna")
    page.get_by_role("button", name="1 changed").click()  # The list is drawn anew, with the form.
    check_value(page, "Answer to worker", "the north one")
    page.reload()
    check_value(page, "Answer to worker", "the north one")
    screenshot(page, "draft-inbox")
    served.kill()
    page.get_by_label("Answer to worker").press("Enter")
    expect(page.locator(".said")).to_contain_text("Not sent yet")
    served.restart()
    check_value(page, "Answer to worker", "")  # The question stays until a host takes the answer.
    texts = [message.content for message in store.tail(asked, 10)]
    assert texts.count("the north one") == 1
    until(lambda: kept(page) == [])
