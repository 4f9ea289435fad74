"""An exported page in a real browser: nothing runs or loads but its own script, and its branches can be walked."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsule.transfer.interface import Draft
from capsule.transfer.registry import formats
from tests.web.hostile import HOSTILE

sync_api = pytest.importorskip("playwright.sync_api")
BROWSER = shutil.which("chromium-headless-shell")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(BROWSER is None, reason="chromium-headless-shell is not installed")]
CALL = {"id": "c", "name": "Bash", "arguments": {"command": "ls"}}


@pytest.fixture(scope="module", params=["light", "dark"])
def page(request: pytest.FixtureRequest) -> Iterator[Any]:
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER)
        yield browser.new_page(color_scheme=request.param)
        browser.close()


def opened(page: Any, folder: Path, title: str, *history: dict[str, Any]) -> list[str]:
    """Open a conversation as a page; what the browser asked for."""
    write = formats()["html"].write
    assert write is not None
    path = folder / "page.html"
    path.write_bytes(write(Draft({"title": title}, list(history))))
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    return [url for url in asked if url != path.as_uri()]


def test_hostile_texts_neither_run_nor_load_and_break_no_rule_of_access(page: Any, tmp_path: Path) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    history = [
        {"role": "assistant", "content": text, "from": text, "reasoning": text}
        | {"toolCalls": [{"name": text, "arguments": {"command": text, text: text}}]}
        | {"attachments": [{"name": text, "text": text}, {"name": text, "url": text}]}
        for text in HOSTILE
    ]
    asked = opened(page, tmp_path, HOSTILE[0], *history)
    page.evaluate("for (const fold of document.querySelectorAll('details')) fold.open = true")

    assert page.evaluate("document.querySelectorAll('article').length") == len(HOSTILE)
    assert page.evaluate("window.canary") is None
    assert asked == []
    assert page.title().strip() == HOSTILE[0]
    assert [found["id"] for found in axe.run(page).response["violations"]] == []


def test_the_branches_of_a_page_can_be_walked_with_results_under_their_calls(page: Any, tmp_path: Path) -> None:
    history = [
        {"id": "1", "role": "user", "content": "first"},
        {"id": "2", "role": "assistant", "content": "one way", "toolCalls": [CALL]},
        {"id": "3", "role": "tool", "content": "a result", "toolCallId": "c"},
        {"id": "4", "role": "assistant", "content": "its end"},
        {"id": "5", "role": "assistant", "content": "another way", "parent": "1"},
    ]
    opened(page, tmp_path, "A walk", *history)
    seen = "[...document.querySelectorAll('article:not([hidden]) > .text')].map(it => it.textContent.trim())"

    assert page.evaluate(seen) == ["first", "another way"]
    page.get_by_role("button", name="Previous branch").click()
    assert page.evaluate(seen) == ["first", "one way", "its end"]
    assert page.evaluate("document.querySelector('#m1 #m2 pre').textContent") == "a result"
    assert not page.evaluate("document.querySelector('#m2').hidden")
