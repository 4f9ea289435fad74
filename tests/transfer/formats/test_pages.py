"""Markdown and HTML: what people read."""

from __future__ import annotations

import re

import pytest

from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, read, read_data, written


def test_markdown_that_a_person_edited_is_read_as_edited() -> None:
    (document,), _ = read(DATA / "markdown" / "own.md")
    data = (DATA / "markdown" / "own.md").read_bytes().replace(b"Two hyphens -- and", b"Two **hyphens** and")
    (edited,), problems = read_data(data)

    assert not problems.first
    texts = [entry["content"] for entry in document["history"]]
    texts[1] = "Two **hyphens** and an end --> of it."
    assert [entry["content"] for entry in edited["history"]] == texts


def test_a_comment_that_is_broken_is_told_with_its_line() -> None:
    _, problems = read(DATA / "markdown" / "damaged.md")

    lines = (DATA / "markdown" / "damaged.md").read_text("utf-8").splitlines()
    assert "<!-- capsule:message" in [lines[problem.line - 1][:20] for problem in problems.first if problem.line]


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
    document["title"] = document["history"][0]["content"] = document["history"][2]["content"] = content
    document["history"][1] |= {"reasoning": content, "toolCalls": [{"name": content, "arguments": content}]}
    document["history"][1]["from"] = document["history"][1]["model"] = content
    page = written([document], formats()["html"])[0].decode()

    body = page[page.index("<body") : page.index("<script>")]
    allowed = ["body", "h1", "h2", "p", "a", "b", "article", "header", "nav", "time", "details", "summary", "pre"]
    assert set(re.findall(r"<(\w+)", body)) <= {*allowed, "code", "span"}
    assert len(re.findall("<script", page)) == 1
    assert not re.findall(r"<[^>]*\s(?:src|on\w+)=", body)
    assert all(link.startswith(("#m", "https:")) for link in re.findall(r'<a href="([^"]*)"', body))
    assert "default-src 'none'" in page


def test_every_message_of_every_branch_is_in_the_page_with_what_it_answers() -> None:
    (document, *_), _ = read(DATA / "chatgpt" / "conversations.json")
    page = written([document], formats()["html"])[0].decode()

    assert len(re.findall("<article", page)) == len(document["history"])
    assert re.search(r'class="assistant aside" id="m2" data-parent="m1"', page)
    assert re.search(r'class="assistant" id="m3" data-parent="m1"', page)
