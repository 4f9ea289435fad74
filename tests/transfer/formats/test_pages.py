"""Markdown and HTML: what people read."""

from __future__ import annotations

import re
import sys

import pytest

from capsule.errors import Refused
from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, Shelf, read, read_data, written


def test_markdown_that_a_person_edited_is_read_as_edited() -> None:
    (document,), _ = read(DATA / "markdown" / "own.md")
    data = (
        (DATA / "markdown" / "own.md")
        .read_bytes()
        .replace(b"Two hyphens -- and", b"Two **hyphens** and")
    )
    (edited,), problems = read_data(data)

    assert not problems.first
    texts = [entry["content"] for entry in document["history"]]
    texts[1] = "Two **hyphens** and an end --> of it."
    assert [entry["content"] for entry in edited["history"]] == texts


def test_a_comment_that_is_broken_is_told_with_its_line() -> None:
    _, problems = read(DATA / "markdown" / "damaged.md")

    lines = (DATA / "markdown" / "damaged.md").read_text("utf-8").splitlines()
    assert "<!-- capsule:message" in [
        lines[problem.line - 1][:20] for problem in problems.first if problem.line
    ]


@pytest.mark.parametrize(
    "content",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[x](javascript:alert(1))",
        "[x](data:text/html,<script>1</script>)",
        "![x](https://elsewhere.example/x.png)",
        '```x"onload="alert(1)\n</code></pre><script>1</script>\n```',
        "</article></body><iframe src=//elsewhere.example>",
    ],
)
def test_a_page_loads_nothing_and_what_a_message_says_is_text(content: str) -> None:
    (document,), _ = read(DATA / "markdown" / "own.md")
    document["title"] = document["history"][0]["content"] = document["history"][2]["content"] = (
        content
    )
    document["history"][1] |= {
        "reasoning": content,
        "toolCalls": [{"name": content, "arguments": content}],
    }
    document["history"][1]["from"] = document["history"][1]["model"] = content
    page = written([document], formats()["html"])[0].decode()

    # What a message may become is held by tests/web/test_rendering.py; here, what a page has
    # besides.
    body = page[page.index("<body") : page.index("<script>")]
    assert not re.findall(r"<(?:script|img|iframe|style|link|meta|base|form|object)", body)
    assert not re.findall(r"<[^>]*\s(?:src|style|on\w+)=", re.sub(r'"[^"]*"', '""', body))
    assert len(re.findall("<script", page)) == 1
    assert all(
        link.startswith(("#m", "https:")) for link in re.findall(r'<a [^>]*href="([^"]*)"', body)
    )
    assert "default-src 'none'" in page


def test_every_message_of_every_branch_is_in_the_page_with_what_it_answers() -> None:
    (document, *_), _ = read(DATA / "chatgpt" / "conversations.json")
    page = written([document], formats()["html"])[0].decode()

    assert len(re.findall("<article", page)) == len(document["history"])
    articles = {
        re.search(r'id="([\w-]+)"', tag)[1]: tag for tag in re.findall("<article[^>]*>", page)
    }  # type: ignore[index]
    assert 'data-parent="m-1"' in articles["m-2"] and "data-aside" in articles["m-2"]
    assert 'data-parent="m-1"' in articles["m-3"] and "data-aside" not in articles["m-3"]


def test_a_page_says_which_package_is_missing_that_draws_messages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (document,), _ = read(DATA / "markdown" / "own.md")
    monkeypatch.setitem(sys.modules, "nh3", None)
    for module in ("messages", "texts"):
        monkeypatch.delitem(sys.modules, f"capsule.transfer.rendering.{module}", raising=False)
    with pytest.raises(Refused, match=r"nh3.*capsule-conversations\[web\]"):
        written([document], formats()["html"])


def test_a_page_has_its_images_in_it_and_no_ids_of_the_store() -> None:
    shelf = Shelf()
    (document,), _ = read(DATA / "codex" / "rollback", shelf)
    page = written([document], formats()["html"], shelf)[0].decode()

    assert re.search(r'<img alt="image" src="data:image/png;base64,\w+', page)
    assert [message["id"] for message in document["history"] if message["id"] in page] == []
    assert document["id"] not in page


def test_a_result_stands_under_its_call_in_a_page() -> None:
    (document,), _ = read(DATA / "codex" / "shell")
    page = written([document], formats()["html"])[0].decode()

    results = [
        f"m-{place}"
        for place, message in enumerate(document["history"])
        if message["role"] == "tool"
    ]
    assert results and all(
        f'<div class="message result" id="{id}" data-parent=' in page for id in results
    )
