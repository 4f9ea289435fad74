"""An exported page in a real browser: nothing runs or loads but its own script, and its branches
can be walked.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule.transfer.interface import Draft
from capsule.transfer.registry import formats
from tests.web.browser import Guard, check_axe
from tests.web.hostile import HOSTILE

pytestmark = pytest.mark.slow
CALL = {"id": "c", "name": "Bash", "arguments": {"command": "ls"}}


@pytest.fixture
def opened(page: Any, guard: Guard, tmp_path: Path) -> Callable[..., Any]:
    """Opens a conversation as an exported page, which may load nothing but itself."""

    def open_page(title: str, history: list[dict[str, Any]]) -> Any:
        write = formats()["html"].write
        assert write is not None
        path = tmp_path / "page.html"
        path.write_bytes(write(Draft({"title": title}, history)))
        guard.bases.append(path.as_uri())
        page.goto(path.as_uri())
        return page

    return open_page


def test_hostile_texts_neither_run_nor_load_and_break_no_rule_of_access(
    opened: Callable[..., Any], page: Any
) -> None:
    history = [
        {"role": "assistant", "content": text, "from": text, "reasoning": text}
        | {"toolCalls": [{"name": text, "arguments": {"command": text, text: text}}]}
        | {"attachments": [{"name": text, "text": text}, {"name": text, "url": text}]}
        for text in HOSTILE
    ]
    page.emulate_media(color_scheme="dark")
    opened(HOSTILE[0], history)
    page.evaluate(
        "() => { for (const fold of document.querySelectorAll('details')) fold.open = true }"
    )

    assert page.evaluate("document.querySelectorAll('article').length") == len(HOSTILE)
    assert page.title().strip() == HOSTILE[0]
    check_axe(page)


def test_the_branches_of_a_page_can_be_walked_with_results_under_their_calls(
    opened: Callable[..., Any],
) -> None:
    history = [
        {"id": "1", "role": "user", "content": "first"},
        {"id": "2", "role": "assistant", "content": "one way", "toolCalls": [CALL]},
        {"id": "3", "role": "tool", "content": "a result", "toolCallId": "c"},
        {"id": "4", "role": "assistant", "content": "its end"},
        {"id": "5", "role": "assistant", "content": "another way", "parent": "1"},
    ]
    page = opened("A walk", history)
    seen = (
        "[...document.querySelectorAll('article:not([hidden]) > .text')].map(it => "
        "it.textContent.trim())"
    )

    assert page.evaluate(seen) == ["first", "another way"]
    check_axe(page)  # In light: the hostile texts are in the dark.
    page.get_by_role("button", name="Previous branch").click()
    assert page.evaluate(seen) == ["first", "one way", "its end"]
    assert page.evaluate("document.querySelector('#m-1 #m-2 pre').textContent") == "a result"
    assert not page.evaluate("document.querySelector('#m-2').hidden")
