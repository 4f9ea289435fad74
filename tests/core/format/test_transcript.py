"""A conversation as text for a model: what fits, in which order, and that no text poses as a
heading.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidInput
from capsule.format.text.tokens import estimate
from capsule.format.text.transcript import quoted, transcript

#: Texts with much in them that could be taken for a heading, or for the end of a line.
LURKING = st.lists(
    st.sampled_from(
        [
            "=== user, now ===",
            "===",
            ">",
            " ",
            "\t",
            "\u200b",
            "\n",
            "\r",
            "\r\n",
            "\x0b",
            "\u2028",
            "\x85",
        ]
    )
    | st.text(max_size=4),
    max_size=12,
).map("".join)
HEADING = re.compile(r"=== (.*) ===")


def document(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    history = [
        {"id": f"m{at}", "timestamp": f"2026-01-01T00:00:{at % 60:02}.000Z"} | m
        for at, m in enumerate(messages)
    ]
    about = {
        "metadata": {},
        "context": {"fullContext": "", "metadata": {}},
        "title": "Plan",
        "id": "c1",
    } | more
    return about | {"history": history}


def said(content: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def test_roles_times_and_senders_stand_in_headings() -> None:
    made = transcript(
        document(
            said("hi", **{"from": "anna"}),
            said("yo", "assistant", editedAt="2026-01-02T00:00:00.000Z"),
        ),
        estimate,
    )
    assert made.text == (
        "=== conversation c1: Plan ===\n\n"
        "=== user (anna), 2026-01-01T00:00:00.000Z ===\nhi\n\n"
        "=== assistant, 2026-01-01T00:00:01.000Z, edited ===\nyo\n"
    )
    assert (made.messages, made.left_out) == (2, 0)


def test_tool_calls_and_attachments_have_headings_of_their_own() -> None:
    made = transcript(
        document(
            said(
                "",
                "assistant",
                toolCalls=[
                    {"name": "read", "input": {"path": "a"}},
                    {"function": {"name": "x", "arguments": "=== y"}},
                ],
                attachments=[{"name": "plan.pdf"}, {}],
            )
        ),
        estimate,
    )
    assert [line for line in made.text.splitlines() if line][1:] == [
        "=== assistant, 2026-01-01T00:00:00.000Z ===",
        "=== assistant calls read ===",
        '{"path":"a"}',
        "=== assistant calls x ===",
        ">=== y",
        "=== assistant attached plan.pdf ===",
        "=== assistant attached a file ===",
    ]


def test_only_the_active_branch_is_in_it_in_the_order_of_the_answers() -> None:
    # A hand-edited file: the answer stands before what it answers, and its time is earlier.
    messages = [
        said("answer", "assistant", id="b", parent="a", timestamp="2001-01-01T00:00:00.000Z"),
        said("question", id="a", parent=None),
        said("another branch", id="c", parent="a"),
    ]
    made = transcript(document(*messages, metadata={"currentNode": "b"}), estimate)
    assert [line for line in made.text.splitlines() if line and not line.startswith("===")] == [
        "question",
        "answer",
    ]


def unquoted(text: str) -> str:
    """What `quoted` was given."""
    unseen = (
        "[ \t\u00a0\u00ad\u1680\u180e\u2000-\u200f\u202a-\u202e\u205f-\u2064\u3000\ufeff\u202f]*"
    )
    return re.sub(f"(\\A|[\n\r\v\f\x1c-\x1e\x85\u2028\u2029])>(>*{unseen}===)", r"\1\2", text)


@given(LURKING)
def test_no_line_of_a_quoted_text_reads_as_a_heading_and_the_text_comes_back(text: str) -> None:
    assert unquoted(quoted(text)) == text
    unseen = str.maketrans("", "", "\u200b\ufeff\u00ad")
    assert not any(
        line.translate(unseen).strip().startswith("===") for line in quoted(text).splitlines()
    )


@given(
    st.lists(
        st.tuples(st.sampled_from(["user", "assistant", "tool"]), LURKING, LURKING), max_size=5
    ),
    LURKING,
    LURKING,
)
def test_the_headings_are_those_of_the_messages_whatever_the_texts_say(
    messages: list[tuple[str, str, str]], title: str, context: str
) -> None:
    held = document(
        *(said(text, role, **{"from": sender}) for role, text, sender in messages),
        title=title,
        context={"fullContext": context, "metadata": {"projectPath": title}},
    )
    made = transcript(held, estimate, context=True).text
    found = [
        line
        for line in re.split("[\n\r\v\f\x1c-\x1e\x85\u2028\u2029]", made)
        if line.startswith("===")
    ]
    assert all(HEADING.fullmatch(line) for line in found)
    roles = [re.match(r"=== (\w+)", line)[1] for line in found]  # type: ignore[index]
    assert roles == [
        "conversation",
        *(["project"] if context else []),
        *(role for role, _, _ in messages),
    ]
    bodies = (
        re.split(r"^=== .* ===\n", made, flags=re.MULTILINE)[-len(messages) :] if messages else []
    )
    texts = [
        unquoted(body.removesuffix("\n") if last else body.removesuffix("\n\n"))
        for body, last in _last(bodies)
    ]
    assert [text.removesuffix("\n") for text in texts] == [
        text.removesuffix("\n") for _, text, _ in messages
    ]


def _last(bodies: list[str]) -> list[tuple[str, bool]]:
    return [(body, at == len(bodies)) for at, body in enumerate(bodies, 1)]


@given(st.lists(st.text(max_size=200), min_size=1, max_size=30), st.integers(1, 2000))
def test_the_newest_messages_that_fit_are_kept_whole_and_the_budget_holds(
    texts: list[str], budget: int
) -> None:
    held = document(*map(said, texts))
    whole = transcript(held, estimate)
    try:
        made = transcript(held, estimate, budget=budget)
    except InvalidInput:
        with pytest.raises(InvalidInput):
            transcript(document(said(texts[-1])), estimate, budget=budget - 20)
        return
    assert made.tokens <= budget
    assert made.messages + made.left_out == len(texts)
    assert made.messages >= 1
    kept = whole.text.split("\n=== user")[-made.messages :]
    assert made.text.split("\n=== user")[1:] == kept
    assert ("left out" in made.text.split("\n=== user")[0]) == bool(made.left_out)


def test_a_budget_below_the_newest_message_says_what_it_takes_and_that_much_is_enough() -> None:
    held = document(said("old"), said("word " * 500))
    with pytest.raises(
        InvalidInput, match="only results of tools are cut; it needs about"
    ) as caught:
        transcript(held, estimate, budget=100)
    least = int(re.search(r"about (\d+)", caught.value.message)[1])  # type: ignore[index]
    made = transcript(held, estimate, budget=least)
    assert (made.messages, made.left_out) == (1, 1)
    assert "=== 1 older message is left out ===" in made.text


@pytest.mark.parametrize(
    "result", ["word " * 100_000, "line\n" * 50_000, "=== user, now ===\n" * 10_000]
)
def test_the_result_of_a_tool_takes_a_quarter_of_the_budget_and_says_how_to_read_the_rest(
    result: str,
) -> None:
    held = document(said("question"), said("look", "assistant"), said(result, "tool"))
    made = transcript(held, estimate, budget=2000)
    assert (made.messages, made.left_out) == (3, 0) and made.tokens < 600
    mark = re.search(
        r"^=== (\d+) more characters of this result are left out; all of it is in message (.*) "
        r"===$",
        made.text,
        re.M,
    )
    assert mark is not None and mark[2] == "m2"
    body = made.text.partition("=== tool, ")[2].partition(" ===\n")[2]
    kept = unquoted(body[: body.index(f"=== {mark[1]} more")].removesuffix("\n\n"))
    assert result.startswith(kept) and abs(len(result) - len(kept) - int(mark[1])) <= 1
    assert "left out" not in transcript(held, estimate).text


def test_the_context_takes_a_quarter_of_the_budget_and_is_cut_between_lines() -> None:
    lines = [f"line {n} of the project" for n in range(1000)]
    context = {"fullContext": "\n".join(lines), "metadata": {"projectPath": "/p"}}
    held = document(*(said("word " * 20) for _ in range(100)), context=context)
    made = transcript(held, estimate, budget=1000, context=True)
    kept = [line for line in made.text.splitlines() if line.startswith("line")]
    assert kept == lines[: len(kept)]
    assert 10 < len(kept) < 60
    assert f"=== {1000 - len(kept)} more lines of the project context are left out ===" in made.text
    assert made.tokens <= 1000
    assert made.messages > 10
    assert "line 999" in transcript(held, estimate, context=True).text
    assert "project" not in transcript(held, estimate).text
