"""The page of one conversation, as a browser shows it and as it stands without one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from capsule.engines.files.engine import FilesEngine
from capsule.format.tree.tree import Tree
from capsule.ids import keyed_message_id
from capsule.mcp_server.access import Tokens
from capsule.web.pages.history import runs_of
from tests.processes import Child, until
from tests.web import stores
from tests.web.browser import Guard
from tests.web.serving import Served
from tests.web.stores import Talk

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, Page
    from starlette.testclient import TestClient

_APPENDING = """
with Store.open(sys.argv[1]) as store:
    for text in sys.argv[3:]:
        say(store.append(sys.argv[2], role="user", content=text).id)
"""
_ALL = """() => [...document.querySelectorAll("#messages article")]
    .map(each => each.querySelector(".text")?.textContent.trim())"""
#: A message, or the one at the middle of the screen, and where it stands, as soon as it stands
#: still.
_READ = """async (id) => {
    const at = (y) => document.elementFromPoint(600, y).closest("article");
    const each = document.getElementById(id) ?? at(400) ?? at(420);  // Between two there is a gap.
    for (let before, still = 0; still < 5; before = each.getBoundingClientRect().top) {
        await new Promise(requestAnimationFrame);
        still = each.getBoundingClientRect().top === before ? still + 1 : 0;
    }
    return [each.id, each.getBoundingClientRect().top];
}"""
#: Whether the end of the last message is drawn, and above the form to write in.
_IS_AT_END = """() => {
    const last = [...document.querySelectorAll("article")].at(-1).getBoundingClientRect();
    return last.bottom > 0 && last.bottom <= document.getElementById("compose").getBoundingClientRect().top;
}"""


def append(root: Path, id: str, *texts: str) -> list[str]:
    """Append in another process. Returns: the ids of the messages."""
    with closing(Child(_APPENDING, str(root), id, *texts)) as child:
        return [child.hear() for _ in texts]


def ids_of(store: Store, id: str) -> list[str]:
    return [message["id"] for message in store.document(id)["history"]]


def texts(page: Page) -> list[str]:
    return page.evaluate(_ALL)  # type: ignore[no-any-return]


def read(page: Page, id: str = "") -> tuple[str, float]:
    return page.evaluate(_READ, id)  # type: ignore[no-any-return]


@pytest.fixture
def served(root: Path, talk: Talk, serve: Callable[..., Served]) -> Served:
    return serve(root)


# -- Without a browser -----------------------------------------------------------------------------


def test_a_window_of_a_large_conversation_does_not_read_the_file(
    client: TestClient, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = stores.large(root, 3_000)
    assert client.get(f"/c/{id}").status_code == 200

    def document(*arguments: Any) -> Any:
        raise AssertionError("it reads the whole file")

    monkeypatch.setattr(FilesEngine, "document", document)
    page = client.get(f"/c/{id}").text
    assert page.count("<article") == 100
    assert "3,000 messages" in page


def test_a_message_has_an_address_by_its_id_and_by_the_key_that_it_was_sent_with(
    client: TestClient, store: Store, talk: Talk
) -> None:
    message, _ = store.append_once(talk.long, "my-key", content="By a key")
    assert message.id == keyed_message_id(talk.long, "my-key")
    first = ids_of(store, talk.long)[3]
    for name, id in (("my-key", message.id), (message.id, message.id), (first, first)):
        page = client.get(f"/c/{talk.long}/m/{name}").text
        assert f'id="m-{id}"' in page
        assert page.split(f'id="m-{id}"')[1].partition(">")[0].count("data-chosen") == 1
    assert client.get(f"/c/{talk.long}/m/unknown").status_code == 404


def test_a_part_of_the_page_is_one_window(client: TestClient, talk: Talk) -> None:
    part = client.get(f"/c/{talk.long}?part=messages").text
    assert part.strip().startswith("<section")
    assert part.count("<article") == 100
    assert "<h1" not in part


def test_the_first_unread_message_of_an_agent_is_found_and_reading_the_page_marks_nothing(
    client: TestClient, store: Store, talk: Talk
) -> None:
    client.cookies.set(f"{next(iter(client.cookies))}-as", "anna")
    store.messages.ack(
        agent="anna", conversation=talk.direct, message=ids_of(store, talk.direct)[0]
    )
    for _ in range(2):
        page = client.get(f"/c/{talk.direct}").text
        line, _, behind = page.partition('id="left-off"')[2].partition("<article")
        assert "Unread from here" in line
        assert "Then I wait." in behind.partition("</article>")[0]
    store.messages.ack(agent="anna", conversation=talk.direct)
    assert 'id="left-off"' not in client.get(f"/c/{talk.direct}").text
    assert store.messages.first_unread(talk.direct, agent="anna") is None
    assert store.messages.first_unread(talk.plan, agent="anna") is None


def test_an_attachment_is_given_to_who_reads_a_message_that_has_it(
    client: TestClient, talk: Talk
) -> None:
    page = client.get(f"/c/{talk.plan}").text
    path = page.partition(f'src="/c/{talk.plan}/files/')[2].partition('"')[0]
    answer = client.get(f"/c/{talk.plan}/files/{path}")
    assert (answer.headers["content-type"], answer.content) == ("image/png", stores.PNG)
    assert client.get(f"/c/{talk.long}/files/{path}").status_code == 404


def test_a_damaged_file_is_shown_with_the_line_and_what_to_do(
    client: TestClient, root: Path, talk: Talk
) -> None:
    path = root / "conversations" / f"{talk.plan}.json"
    path.write_text(path.read_text("utf-8").replace('"title":', '"title" ', 1), "utf-8")
    answer = client.get(f"/c/{talk.plan}")
    assert answer.status_code == 422
    assert "<td>3</td>" in answer.text
    assert str(path) in answer.text
    assert "capsule doctor --repair" in answer.text


def test_the_head_says_where_a_conversation_comes_from(
    client: TestClient, store: Store, talk: Talk
) -> None:
    assert f'href="/c/{talk.plan}">A plan for the meadow</a>' in client.get(f"/c/{talk.fork}").text
    summary = client.get(f"/c/{talk.summary}").text
    last = ids_of(store, talk.long)[-2]
    assert (
        f'href="/c/{talk.long}">A long conversation</a> up to <a '
        f'href="/c/{talk.long}/m/{last}#m-{last}">' in summary
    )
    assert "its message 450</a>: its source has changed since: 1 new message" in summary
    assert "Imported from claude-code, in <code>" in client.get(f"/c/{talk.imported[0]}").text
    with store.locks.take(talk.plan):
        assert "<b>Locked</b> by" in client.get(f"/c/{talk.plan}").text
    assert "<b>Locked</b> by" not in client.get(f"/c/{talk.plan}").text


def test_the_context_is_compared_with_its_project_on_demand_and_for_the_owner_only(
    client: TestClient, store: Store, talk: Talk, tmp_path: Path
) -> None:
    from starlette.testclient import TestClient

    page = client.get(f"/c/{talk.context}/context").text
    assert "src/mow.py" in page
    assert "drifted" not in page
    page = client.get(f"/c/{talk.context}/context?drift=1").text
    assert "changed: <code>src/mow.py</code>" in page
    assert "new: <code>src/new.py</code>" in page
    store.agents.register("ben")
    token = Tokens(tmp_path / "config", store.root).add("ben")
    with TestClient(client.app, headers={"origin": "http://testserver"}) as other:
        other.post("/enter", data={"token": token})
        assert other.get(f"/c/{talk.context}/context").status_code == 200
        assert other.get(f"/c/{talk.context}/context?drift=1").status_code == 403
        assert "only a person" in other.get(f"/c/{talk.context}/versions").text
    page = client.get(f"/c/{talk.plan}/context").text
    assert "It has no context" in page
    assert f'href="/c/{talk.fork}"' in page
    assert f'href="/c/{talk.summary}"' in client.get(f"/c/{talk.long}/context").text


@pytest.mark.files
def test_two_versions_in_git_are_compared_and_no_repository_is_no_error(
    client: TestClient, root: Path, talk: Talk
) -> None:
    page = client.get(f"/c/{talk.plan}/versions")
    assert page.status_code == 200
    assert 'name="before"' not in page.text
    stores.versions(root, talk.plan)
    page = client.get(f"/c/{talk.plan}/versions").text
    hashes = [part.partition('"')[0] for part in page.split('name="before" value="')[1:]]
    assert len(hashes) == 3
    diff = client.get(f"/c/{talk.plan}/versions?before={hashes[2]}&after={hashes[0]}").text
    assert "<ins>+title: Another title" in diff or "Another title</ins>" in diff
    assert "A later message</ins>" in diff
    assert (
        "Nothing differs" in client.get(f"/c/{talk.plan}/versions?before={hashes[0]}&after=").text
    )
    assert "is neither a revision" not in diff
    assert client.get(f"/c/{talk.plan}/versions?before=nonsense").status_code == 400


@pytest.mark.parametrize(
    ("parents", "current", "runs"),
    [
        ([], None, []),
        ([None, "0", "1"], None, [([0, 1, 2], 0, -1, True)]),
        (
            [None, "0", "0", "1"],
            "2",
            [([0], 0, -1, True), ([1, 3], 1, 0, False), ([2], 0, 0, True)],
        ),
        ([None, "0", None], None, [([0, 1], 0, -1, False), ([2], 0, -1, True)]),
        (["1", "0"], None, [([0, 1], 0, -1, True)]),  # A circle.
    ],
)
def test_messages_without_a_branch_are_one_run_of_the_tree(
    parents: list[str | None], current: str | None, runs: list[tuple[Any, ...]]
) -> None:
    tree = Tree([{"id": str(at), "parent": parent} for at, parent in enumerate(parents)])
    assert [tuple(run) for run in runs_of(tree, current)] == runs


def test_the_tree_of_a_deep_conversation_is_drawn() -> None:
    forks = [
        {"id": str(at), "parent": str(at // 2 * 2 - 2) if at > 1 else None} for at in range(20_000)
    ]
    runs = runs_of(Tree(forks), None)
    assert sum(len(run.places) for run in runs) == 20_000
    assert max(run.column for run in runs) < 20


# -- In a browser ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_earlier_messages_come_in_place_and_far_ones_leave_the_page(
    served: Served, talk: Talk, page: Page
) -> None:
    served.open(page, f"/c/{talk.long}")
    until(lambda: page.evaluate(_IS_AT_END))
    assert len(texts(page)) == 100
    while "Line 0 of the conversation." not in texts(page):
        first = texts(page)[0]
        page.evaluate("() => document.querySelectorAll('article')[9].scrollIntoView()")
        before = read(page)
        page.evaluate("() => document.querySelector('.earlier a')?.click()")
        until(lambda first=first: texts(page)[0] != first)
        id, top = read(page, before[0])
        assert abs(top - before[1]) <= 2, id
        assert len(texts(page)) <= 300
    assert texts(page)[0] == "Line 0 of the conversation."
    while "And one more." not in texts(page):
        shown = texts(page)[-1]
        page.evaluate("() => document.querySelector('.window:last-child > .later a').click()")
        until(
            lambda: "And one more." in (there := texts(page)) or there[-1] != shown
        )  # It may come by itself.
        assert len(texts(page)) <= 300
    listed = texts(page)
    assert listed == [
        f"Line {number} of the conversation." for number in range(451 - len(listed), 450)
    ] + ["And one more."]


@pytest.mark.slow
def test_scrolling_up_loads_what_is_earlier(served: Served, talk: Talk, page: Page) -> None:
    served.open(page, f"/c/{talk.long}")
    until(lambda: page.evaluate(_IS_AT_END))
    page.mouse.move(600, 400)

    def scroll() -> bool:
        page.mouse.wheel(0, -700)
        return "Line 200 of the conversation." in texts(page)

    until(scroll)


@pytest.mark.slow
def test_a_message_is_shown_in_its_place_and_marked_also_without_script(
    served: Served, talk: Talk, contexts: Callable[..., BrowserContext]
) -> None:
    with Store.open(served.root) as store:
        message = ids_of(store, talk.long)[100]
    for is_on in (True, False):
        page = served.open(contexts(java_script_enabled=is_on), f"/c/{talk.long}/m/{message}")
        chosen = page.locator("[data-chosen]")
        assert "Line 100 of the conversation." in str(chosen.text_content())
        until(
            lambda page=page: (
                0 < (page.locator("[data-chosen]").bounding_box() or {"y": -1})["y"] < 800
            )
        )


@pytest.mark.slow
def test_the_address_of_a_result_opens_the_call_that_it_is_under(
    served: Served, talk: Talk, page: Page
) -> None:
    served.open(page, f"/c/{talk.plan}/m/@2")
    result = page.locator(".result[data-chosen]")
    until(lambda: 0 < (result.bounding_box() or {"y": -1})["y"] < 800)
    assert "meadow.toml" in str(result.text_content())


@pytest.mark.slow
def test_what_one_sends_is_shown_in_its_place_without_another_page(
    served: Served, talk: Talk, page: Page
) -> None:
    from playwright.sync_api import expect

    served.open(page, f"/c/{talk.long}")
    page.evaluate("() => window.stays = true")
    page.evaluate("() => scrollBy(0, -900)")
    page.locator("#content").fill("I say something")
    page.get_by_role("button", name="Send").click()
    expect(page.locator("article").last).to_contain_text("I say something")
    until(lambda: page.evaluate(_IS_AT_END))
    assert page.evaluate("() => window.stays")


@pytest.mark.slow
def test_all_that_is_reading_works_without_script(
    served: Served, talk: Talk, contexts: Callable[..., BrowserContext]
) -> None:
    page = served.open(contexts(java_script_enabled=False), f"/c/{talk.long}")
    assert page.locator("article").count() == 100
    page.get_by_role("link", name="Earlier messages").click()
    assert "Line 251 of the conversation." in str(page.locator("article").first.text_content())
    page.get_by_role("link", name="Later messages").click()
    page.get_by_label("Find in this conversation").fill('"line 7 of"')
    page.get_by_role("button", name="Find").click()
    page.locator(".hits a").first.click()
    assert "Line 7 of the conversation." in str(page.locator("[data-chosen]").text_content())
    page.get_by_role("link", name="Tree").click()
    assert page.locator(".tree li").count() == 1
    page.get_by_role("link", name="Context and summaries").click()
    page.get_by_role("link", name="Versions").click()


@pytest.mark.slow
def test_one_steps_from_answer_to_answer_where_a_conversation_branches(
    served: Served, talk: Talk, page: Page
) -> None:
    served.open(page, f"/c/{talk.branched}")
    assert "Because of magnesium" in str(page.locator("#messages").text_content())
    page.get_by_role("link", name="Branch 2 of 3").click()
    assert "It absorbs red and blue light." in str(page.locator("[data-chosen]").text_content())
    assert page.get_by_text("This is not the active branch").count() == 1
    page.get_by_role("link", name="Branch 1 of 3").click()
    assert "It has chlorophyll." in str(page.locator("[data-chosen]").text_content())
    page.get_by_role("link", name="Tree").click()
    assert page.locator(".tree li").count() == 5
    active = page.locator(".tree li.active").all_text_contents()
    assert ["active" in text for text in active] == [True, True]
    page.get_by_role("link", name="Branch 2 of 3").click()
    assert "It absorbs red and blue light." in str(page.locator("[data-chosen]").text_content())


@pytest.mark.slow
def test_finding_opens_what_is_folded_and_marks_the_words(
    served: Served, talk: Talk, page: Page
) -> None:
    served.open(page, f"/c/{talk.plan}")
    assert page.locator("details[open]").count() == 0
    page.get_by_label("Find in this conversation").fill("weather")
    page.get_by_role("button", name="Find").click()
    assert "weather" in page.locator(".hits mark").all_text_contents()
    page.locator(".hits a").first.click()
    page.wait_for_url("**/m/**")
    assert page.locator("details.reasoning[open]").count() == 1
    assert page.locator("details.call[open]").count() == 0
    marked = "() => [...CSS.highlights.get('find')].map(range => range.toString())"
    assert set(page.evaluate(marked)) == {"weather"}


@pytest.mark.slow
def test_only_prompts_and_answers_are_shown_on_demand(
    served: Served, talk: Talk, page: Page
) -> None:
    served.open(page, f"/c/{talk.plan}")
    assert page.locator(".call").count() == 2
    page.get_by_role("link", name="Only prompts and answers").click()
    page.wait_for_url("**only=talk")
    assert page.locator(".call, .reasoning, .result").count() == 0
    assert page.locator("article").count() == 3
    page.get_by_role("link", name="Show everything").click()
    page.wait_for_url(f"**/c/{talk.plan}")
    assert page.locator(".call").count() == 2


@pytest.mark.slow
def test_one_goes_from_prompt_to_prompt_also_beyond_what_is_loaded(
    served: Served, talk: Talk, page: Page
) -> None:
    served.open(page, f"/c/{talk.long}")
    focused = "() => document.activeElement.querySelector('.text')?.textContent.trim()"
    page.evaluate("() => document.querySelector('article [data-step=previous]').click()")
    until(lambda: page.evaluate(focused) == "Line 350 of the conversation.")
    page.keyboard.press("Alt+ArrowDown")
    until(lambda: page.evaluate(focused) == "Line 352 of the conversation.")
    page.keyboard.press("Alt+ArrowUp")
    until(lambda: page.evaluate(focused) == "Line 350 of the conversation.")


@pytest.mark.slow
def test_new_messages_are_followed_only_by_who_is_at_the_end(
    served: Served, talk: Talk, page: Page
) -> None:
    from playwright.sync_api import expect

    served.open(page, f"/c/{talk.long}")
    until(lambda: page.evaluate(_IS_AT_END))
    append(served.root, talk.long, "First news")
    expect(page.locator("article").last).to_contain_text("First news")
    until(lambda: page.evaluate(_IS_AT_END))
    assert page.locator("#said").text_content() == "1 new message"
    page.evaluate("() => document.querySelectorAll('article')[20].scrollIntoView()")
    before = read(page)
    append(served.root, talk.long, "Second news", "Third news")
    expect(page.locator("#news")).to_have_text("2 new messages")
    assert read(page, before[0])[1] == pytest.approx(
        before[1], abs=1
    )  # Browsers scroll by whole pixels.
    page.locator("#news").click()
    expect(page.locator("article").last).to_contain_text("Third news")
    expect(page.locator("#news")).to_be_hidden()
    assert texts(page)[-4:] == ["And one more.", "First news", "Second news", "Third news"]
    assert len(texts(page)) == len(set(texts(page)))


@pytest.mark.slow
def test_results_that_come_later_are_drawn_under_their_call(
    served: Served, talk: Talk, page: Page
) -> None:
    from playwright.sync_api import expect

    with Store.open(served.root) as store:
        id = store.create(title="Calls").id
        calls = [
            {"id": f"call_{nth}", "name": "Bash", "arguments": {"command": "ls"}} for nth in (1, 2)
        ]
        store.append(id, role="assistant", content="I look.", toolCalls=calls)
        store.append(id, role="tool", toolCallId="call_1", content="a\nb")
        served.open(page, f"/c/{id}")
        expect(page.locator("article")).to_have_count(1)
        store.append(id, role="tool", toolCallId="call_2", content="c")
        expect(page.locator("details.call .result")).to_have_count(2)
        expect(page.locator("article")).to_have_count(1)


@pytest.mark.slow
def test_what_others_change_is_drawn_anew(served: Served, talk: Talk, page: Page) -> None:
    from playwright.sync_api import expect

    served.open(page, f"/c/{talk.removed}")
    with Store.open(served.root) as store:
        first, last = ids_of(store, talk.removed)
        store.edits.message(talk.removed, first, "Edited in place")
        expect(page.locator("article").first).to_contain_text("Edited in place")
        store.rename(talk.removed, "Its new title")
        expect(page.locator("h1")).to_have_text("Its new title")
        store.branches.remove(talk.removed, last)
        expect(page.locator("article")).to_have_count(1)


@pytest.mark.slow
def test_whoever_reads_is_told_of_another_branch_and_of_the_end(
    served: Served, talk: Talk, page: Page, guard: Guard
) -> None:
    from playwright.sync_api import expect

    guard.expect("404")  # A part that is asked for while it is being deleted.
    served.open(page, f"/c/{talk.branched}")
    with Store.open(served.root) as store:
        store.branches.switch(talk.branched, talk.answers[0])
        expect(page.locator("#news")).to_have_text("Another branch is active now")
        page.locator("#news").click()
        expect(page.locator("article").last).to_contain_text("It has chlorophyll.")
        store.branches.regenerate(talk.branched, "A fourth answer")
        expect(page.locator("#news")).to_have_text("It goes on in another branch")
        store.delete(talk.branched)
        expect(page.locator("#news")).to_have_text("This conversation is deleted now")


@pytest.mark.slow
def test_a_line_shows_where_one_left_off(
    served: Served, talk: Talk, context: BrowserContext
) -> None:
    page = served.open(context, f"/c/{talk.plan}")
    assert page.locator(".left-off").count() == 0
    until(lambda: page.evaluate(_IS_AT_END))
    page.goto(f"{served.base}/")
    append(served.root, talk.plan, "News while away")
    served.open(page, f"/c/{talk.plan}")
    line = page.locator(".left-off")
    assert line.text_content() == "New since you were here"
    assert "News while away" in str(page.locator(".left-off + article").text_content())
    page.goto(f"{served.base}/")
    append(served.root, talk.plan, *(f"Line {number}" for number in range(150)))
    served.open(page, f"/c/{talk.plan}")
    page.get_by_role("link", name="Go on where you left off").click()
    assert "News while away" in str(page.locator("[data-chosen]").text_content())
