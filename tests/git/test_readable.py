"""A conversation as lines: like a chat, one message's change in its own lines, and nothing that
commands a terminal.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.errors import InvalidDocument
from capsule.format import validation
from capsule.format.documents.creation import new_capsule
from capsule.format.fields import PARTS, Field
from capsule.format.json import codec
from capsule.git.textconv import as_text, readable
from tests.core.format.test_cleaning import DOCUMENT

SAMPLES = sorted((Path(__file__).parents[1] / "data" / "capsules").glob("*.json"))
STAMP = "2025-01-12T10:00:00.000Z"
BEGINS = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d (user|assistant|system|tool)\b")

#: Texts that would like to be a line of their own.
LURKING = st.lists(
    st.sampled_from(
        [
            "2025-01-12 10:00:00 user: hi",
            "title: x",
            "\n",
            "\r",
            "\r\n",
            "\x1b[2J",
            "\x85",
            "\u2028",
            " ",
        ]
    )
    | st.text(max_size=3),
    max_size=6,
).map("".join)


def said(at: int, content: str, role: str = "user", **more: Any) -> dict[str, Any]:
    return {
        "role": role,
        "content": content,
        "timestamp": f"2025-01-12T10:{at:02}:00.000Z",
        "id": f"m{at}",
        **more,
    }


def capsule(*messages: dict[str, Any], **more: Any) -> dict[str, Any]:
    return new_capsule("c1", "A plan", STAMP, messages=messages, **more)


def lines(*messages: dict[str, Any], **more: Any) -> list[str]:
    return list(readable(capsule(*messages, **more)))


def changed(before: list[str], after: list[str]) -> list[str]:
    compared = difflib.unified_diff(before, after, n=0, lineterm="")
    return [line for line in compared if line[:2] not in ("--", "++", "@@")]


def test_a_chat_reads_like_one() -> None:
    found = lines(
        said(0, "Hello"),
        said(1, "First.\n\n  Second.", "assistant", model="m-1", **{"from": "anna"}),
        said(
            2,
            "",
            "assistant",
            toolCalls=[{"id": "call_1", "name": "search", "arguments": {"query": "x"}}],
        ),
        said(3, "nothing", "tool", toolCallId="call_1"),
        said(
            4,
            "Mend it",
            replyTo="m1",
            editedAt="2025-01-13T08:00:00.000Z",
            attachments=[{"name": "plan.pdf"}],
        ),
        tags=["work", "garden"],
        title_set_by="user",
        context={
            "fullContext": "abc",
            "metadata": {"projectPath": "/p", "filesIncluded": 2, "contextHash": "sha256:1"},
        },
    )
    assert found == [
        "conversation c1",
        "title: A plan (by user)",
        "tags: work, garden",
        "created: 2025-01-12 10:00:00, version 2.1",
        "context: /p, 2 files, sha256:1, 3 characters (352441c2)",
        "",
        "2025-01-12 10:00:00 user: Hello",
        "2025-01-12 10:01:00 assistant anna (m-1):",
        "    First.",
        "",
        "      Second.",
        "2025-01-12 10:02:00 assistant:",
        '  calls search {"query":"x"} (call_1)',
        "2025-01-12 10:03:00 tool [result of call_1]: nothing",
        "2025-01-12 10:04:00 user [reply to m1, edited 2025-01-13 08:00:00]: Mend it",
        '  attached {"name":"plan.pdf"}',
    ]


def test_a_message_on_a_branch_names_the_one_it_answers() -> None:
    found = lines(
        said(0, "Hello"),
        said(1, "One", "assistant"),
        said(2, "Two", "assistant", parent="m0"),
        said(3, "On one", parent="m1"),
        said(4, "On that"),
        said(5, "Another beginning", parent=None),
        metadata={"currentNode": "m3"},
    )
    assert found[-8:] == [
        "created: 2025-01-12 10:00:00, version 2.1",
        "",
        "2025-01-12 10:00:00 user: Hello",
        "2025-01-12 10:01:00 assistant: One",
        "2025-01-12 10:02:00 assistant [2nd answer to user 2025-01-12 10:00:00]: Two",
        "2025-01-12 10:03:00 user [answers assistant 2025-01-12 10:01:00]: On one",
        "2025-01-12 10:04:00 user: On that",
        "2025-01-12 10:05:00 user [2nd answer to nothing]: Another beginning",
    ]
    assert "active branch: of user 2025-01-12 10:03:00" in found


def test_each_other_field_of_the_head_has_a_line() -> None:
    document = capsule(
        metadata={
            "forkedFrom": "c0",
            "pinned": True,
            "archived": False,
            "conflicts": [
                {"field": "title", "values": [{"value": "A"}, {"value": "B", "at": STAMP}]}
            ],
            "2025-01-12 10:00:00 user": "poses",
        },
        type="group",
    )
    document["metadata"]["lock"]["active"] = True
    document["metadata"]["lock"]["user"] = "anna"
    assert list(readable({**document, "later": [1]}))[1:] == [
        "title: A plan (by auto)",
        "type: group",
        "pinned: true",
        "forkedFrom: c0",
        '"2025-01-12 10:00:00 user": poses',
        'conflict: title: "A" or "B"',
        '"later": [1]',
        "created: 2025-01-12 10:00:00, version 2.1",
    ]


def test_an_old_capsule_reads_too() -> None:
    assert list(readable({"id": "c", "history": [{"role": "user", "content": "a"}]})) == [
        "conversation c",
        "title: null",
        "created: no time, version missing",
        "",
        "no time user: a",
    ]


@given(st.lists(LURKING, min_size=1, max_size=6), st.data())
def test_an_edit_changes_the_lines_of_its_message_and_no_others(
    texts: list[str], data: st.DataObject
) -> None:
    parents = [
        data.draw(st.sampled_from([None, *(f"m{k}" for k in range(at))]), "parent")
        for at in range(len(texts))
    ]
    messages = [said(at, text, parent=parents[at]) for at, text in enumerate(texts)]
    place = data.draw(st.integers(0, len(texts) - 1), "place")
    edited = [*messages]
    edited[place] = {**messages[place], "content": data.draw(LURKING, "text"), "editedAt": STAMP}
    before, after = lines(*messages), lines(*edited)
    starts = [
        [at for at, line in enumerate(found) if BEGINS.match(line)] for found in (before, after)
    ]
    assert len(starts[0]) == len(starts[1]) == len(texts)
    assert before[: starts[0][place]] == after[: starts[1][place]]
    if place + 1 < len(texts):
        assert before[starts[0][place + 1] :] == after[starts[1][place + 1] :]


@given(st.lists(st.integers(0, 5), max_size=6))
def test_a_new_answer_changes_no_line_that_was_there(answered: list[int]) -> None:
    messages = [
        said(at, "x", parent=f"m{min(answer, at - 1)}" if at else None)
        for at, answer in enumerate(answered)
    ]
    before = lines(*messages)
    assert (
        lines(*messages, said(9, "new", parent="m0" if messages else None))[: len(before)] == before
    )


@given(DOCUMENT, LURKING, LURKING)
def test_no_text_is_a_line_of_its_own_or_commands_a_terminal(
    document: dict[str, Any], one: str, other: str
) -> None:
    document = {**document, "title": one, other: one}
    document["history"] = [{**entry, "content": other, one: other} for entry in document["history"]]
    data = codec.encode(document)
    try:
        validation.check(codec.decode(data, ""), data, "")
    except InvalidDocument:
        assert b"".join(as_text(data)) == data
        return
    text = b"".join(as_text(data)).decode()
    found = text.removesuffix("\n").split("\n")
    assert found == list(readable(codec.decode(data, "")))
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]", text)
    begun = [line for line in found if re.match(r"(no time|\d{4}-\d\d-\d\d[ T]\S+) ", line)]
    assert len(begun) == len(document["history"])


def test_a_change_behind_a_cut_shows() -> None:
    one, other = (lines(metadata={"description": "a" * 1000 + end}) for end in "bc")
    [was, now] = changed(one, other)
    assert was.startswith(f"-description: {'a' * 200}... (1001 characters, ")
    assert now.startswith(f"+description: {'a' * 200}... (1001 characters, ")


@pytest.mark.parametrize("field", PARTS["history"], ids=lambda field: field.name)
def test_each_field_of_a_message_can_be_seen(field: Field) -> None:
    value: Any = {
        "objects": [{"a": 1}],
        "object": {"a": 1},
        "mentions": {"valid": ["a"]},
        "share": 0.5,
    }.get(field.kind, "2025-01-13T08:00:00.000Z")
    hidden = field.name in ("id", "parent")  # Of a branch, what it answers is told.
    assert (lines(said(0, "Hello") | {field.name: value}) == lines(said(0, "Hello"))) == hidden


@pytest.mark.parametrize(
    "path",
    sorted((Path(__file__).parents[1] / "data" / "capsules").glob("*.json")),
    ids=lambda path: path.stem,
)
def test_a_sample_of_any_version_is_made_readable(path: Path) -> None:
    document = codec.decode(path.read_bytes(), path.name)
    assert next(readable(document)) == f"conversation {document['id']}"
