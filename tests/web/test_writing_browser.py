"""What the page changes, in a browser: a text that was typed is neither lost nor sent twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from capsule import Store
from tests.processes import until
from tests.web.browser import Guard, check_axe, screenshot
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page, Route

pytestmark = pytest.mark.slow


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store", keep_locks=False) as store:
        yield store


@pytest.fixture
def served(serve: Callable[..., Served], store: Store) -> Served:
    return serve(Path(store.root))


def check_shown(page: Page, text: str) -> None:
    """Wait until a text stands in the conversation, and is not to be written any more."""
    from playwright.sync_api import expect

    expect(page.locator("#messages").get_by_text(text, exact=True)).to_be_visible()
    expect(page.locator("#content")).to_have_value("")


def texts(store: Store, id: str) -> list[str]:
    return [message.content for message in store.load(id).history]


def test_a_text_is_kept_while_the_server_is_killed_and_is_sent_once(
    served: Served, store: Store, page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("ERR_CONNECTION_REFUSED|ERR_|Failed to load")
    id = store.create(title="Plan").id
    served.open(page, f"/c/{id}")
    page.get_by_label("Write as the owner").fill("kept")
    page.reload()
    expect(page.get_by_label("Write as the owner")).to_have_value("kept")
    expect(page.locator(".said")).to_have_text("Kept from before: not sent yet")
    served.kill()
    page.get_by_label("Write as the owner").fill("kept and sent")
    page.get_by_label("Write as the owner").press("Control+Enter")
    expect(page.locator(".said")).to_contain_text("Not sent yet")
    assert texts(store, id) == []
    served.restart()
    check_shown(page, "kept and sent")
    assert texts(store, id) == ["kept and sent"]
    page.get_by_label("Write as the owner").fill("and one more")
    page.get_by_role("button", name="Send").click()
    check_shown(page, "and one more")
    assert texts(store, id) == ["kept and sent", "and one more"]


def test_a_text_whose_answer_was_lost_is_sent_once_also_by_the_next_tab(
    serve: Callable[..., Served], store: Store, context: BrowserContext, guard: Guard
) -> None:
    from playwright.sync_api import expect

    served = serve(Path(store.root), "--json")  # `route.fetch` resolves names by the system.
    guard.expect("ERR_FAILED|Failed to load")
    id = store.create(title="Plan").id
    page = served.open(context, f"/c/{id}")

    def lost(route: Route) -> None:
        route.fetch(max_redirects=0)
        route.abort()

    page.route("**/messages", lost)
    page.get_by_label("Write as the owner").fill("once")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".said")).to_contain_text("Not sent yet")
    assert texts(store, id) == ["once"]
    page.close()
    other = served.open(context, f"/c/{id}")
    check_shown(other, "once")
    assert texts(store, id) == ["once"]


def test_a_text_is_sent_once_however_often_one_clicks(
    served: Served, store: Store, page: Page
) -> None:
    id = store.create(title="Plan").id
    served.open(page, f"/c/{id}")
    page.get_by_label("Write as the owner").fill("once")
    page.get_by_role("button", name="Send").dblclick()
    check_shown(page, "once")
    assert texts(store, id) == ["once"]
    served.open(page, "/new")
    page.get_by_label("Title, made").fill("Made once")
    page.evaluate(
        "() => { for (const button of document.querySelectorAll('main button')) button.click(), "
        "button.click() }"
    )
    page.wait_for_url("**/c/*")
    assert sum(head.title == "Made once" for head in store.heads()) == 1


def test_the_page_says_at_once_that_somebody_wrote_meanwhile(
    served: Served, store: Store, page: Page
) -> None:
    from playwright.sync_api import expect

    id = store.create(title="Plan").id
    store.append(id, content="first")
    served.open(page, f"/c/{id}")
    page.get_by_label("Write as the owner").fill("mine")
    store.append(id, role="assistant", content="meanwhile")
    expect(page.locator(".said")).to_have_text("1 message came while you wrote")
    page.get_by_role("button", name="Send anyway").click()
    check_shown(page, "mine")
    assert texts(store, id) == ["first", "meanwhile", "mine"]


def test_the_server_says_that_somebody_wrote_meanwhile(
    served: Served, store: Store, page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("409|/events")
    id = store.create(title="Plan").id
    store.append(id, content="first")
    page.route("**/events*", lambda route: route.abort())
    served.open(page, f"/c/{id}")
    page.get_by_label("Write as the owner").fill("mine")
    store.append(id, role="assistant", content="meanwhile")
    page.get_by_role("button", name="Send").click()
    expect(page.locator(".said")).to_contain_text(
        "Not sent: 1 message came after the last one that was seen"
    )
    assert texts(store, id) == ["first", "meanwhile"]
    expect(page.get_by_label("Write as the owner")).to_have_value("mine")
    screenshot(page, "write-meanwhile")
    page.get_by_role("button", name="Send anyway").click()
    check_shown(page, "mine")
    assert texts(store, id) == ["first", "meanwhile", "mine"]


def test_what_the_page_showed_by_scrolling_is_not_said_to_have_come_meanwhile(
    served: Served, store: Store, page: Page
) -> None:
    id = store.create(title="Plan").id
    messages = store.append_many(
        id, [{"role": "user", "content": f"message {number}"} for number in range(250)]
    )
    served.open(page, f"/c/{id}/m/{messages[20].id}")
    assert page.locator("input[name=seen]").get_attribute("value") != messages[-1].id
    page.get_by_label("Write as the owner").fill("mine")
    until(lambda: page.mouse.wheel(0, 5000) or page.get_by_text("message 249", exact=True).count())
    page.get_by_role("button", name="Send").click()
    check_shown(page, "mine")
    assert store.tail(id, 1)[0].content == "mine"


def test_an_edit_with_answers_becomes_a_branch(served: Served, store: Store, page: Page) -> None:
    id = store.create(title="Plan").id
    store.append(id, content="first")
    store.append(id, role="assistant", content="answer")
    served.open(page, f"/c/{id}")
    page.get_by_role("link", name="Change").first.click()
    screenshot(page, "write-edit")
    page.get_by_role("textbox", name="Text").fill("better")
    page.get_by_role("button", name="Save").click()
    page.wait_for_url("**/m/*")
    assert [message.content for message in store.branches.path(id)] == ["better"]
    assert texts(store, id) == ["first", "answer", "better"]


def test_a_conversation_is_managed(served: Served, store: Store, page: Page, guard: Guard) -> None:
    from playwright.sync_api import expect

    guard.expect("409")
    id = store.create(title="Plan").id
    served.open(page, f"/c/{id}")
    page.get_by_text("Manage").click()
    screenshot(page, "write-manage")
    page.get_by_label("Title").fill("Other")
    page.get_by_role("button", name="Rename").click()
    expect(page.get_by_role("alert")).to_contain_text("A person gave")
    check_axe(page)
    assert store.head(id).title == "Plan"
    page.get_by_role("button", name="Rename").click()
    page.wait_for_url(f"**/c/{id}")
    assert store.head(id).title == "Other"
    page.get_by_text("Manage").click()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_role("heading", name="Deleted")).to_be_visible()
    check_axe(page)
    page.get_by_role("button", name="Undo").click()
    page.wait_for_url(f"**/c/{id}")
    assert store.head(id).title == "Other"


def test_a_file_that_is_dropped_is_imported(served: Served, store: Store, page: Page) -> None:
    from playwright.sync_api import expect

    old = store.create(title="Old", messages=[{"role": "user", "content": "hello"}]).id
    text = store.read(old).decode().replace(old, "came")
    served.open(page, "/")
    files = page.evaluate_handle(
        "(text) => { const data = new DataTransfer(); data.items.add(new File([text], 'a.json')); "
        "return data; }",
        text,
    )
    page.dispatch_event("main", "dragover", {"dataTransfer": files})
    expect(page.locator("body")).to_have_class("dropping")
    page.dispatch_event("main", "drop", {"dataTransfer": files})
    expect(page.get_by_role("heading", name="Imported")).to_be_visible()
    check_axe(page)
    assert store.head("came").title == "Old"


def test_everything_is_written_without_script(
    served: Served, store: Store, contexts: Callable[..., BrowserContext], guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("409")
    id = store.create(title="Plan").id
    store.append(id, content="first")
    page = served.open(contexts(java_script_enabled=False), f"/c/{id}")
    page.get_by_label("Write as the owner").fill("two\nlines")
    store.append(id, content="meanwhile")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_label("Text")).to_have_value("two\nlines")
    page.get_by_role("button", name="Send anyway").click()
    page.wait_for_url("**/m/*")
    assert texts(store, id) == ["first", "meanwhile", "two\nlines"]
