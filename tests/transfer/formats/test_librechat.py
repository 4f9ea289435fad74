"""What is special about LibreChat's exports: three shapes, and parts of a content that are
messages.
"""

from __future__ import annotations

import json
from typing import Any

import pytest

from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, read, read_data, written

FILES = DATA / "librechat"
CALL = {
    "type": "tool_call",
    "tool_call": {"id": "c", "name": "f", "args": '{"a":1}', "output": "out", "progress": 1},
}
CODE = {"input": "1+1", "outputs": [{"type": "logs", "logs": "two"}]}
RUN = {"type": "tool_call", "tool_call": {"type": "code_interpreter", "code_interpreter": CODE}}
SAID, MORE = {"type": "text", "text": "said"}, {"type": "text", "text": "more", "x": 1}


def message(**fields: Any) -> dict[str, Any]:
    return {
        "messageId": "m",
        "isCreatedByUser": False,
        "createdAt": "2025-04-01T10:00:01.000Z",
        **fields,
    }


def export(messages: Any, key: str = "messages") -> bytes:
    return json.dumps({"conversationId": "c", "title": "T", key: messages}).encode()


def test_the_three_shapes_are_the_same_conversation() -> None:
    (flat,), _ = read(FILES / "flat.json")
    (tree,), _ = read(FILES / "tree.json")
    (older,), _ = read(FILES / "tree_in_messages.json")

    assert flat == tree == older
    question, first, other, asked, call, result, answer = flat["history"]
    assert (first["reasoning"], first["content"]) == ("big ones", "Loire, Rhône")
    assert other["parent"] == question["id"]
    assert (call["reasoning"], call["toolCalls"][0]["arguments"]) == (
        "look it up",
        {"river": "Seine"},
    )
    assert (result["role"], result["toolCallId"], result["content"]) == ("tool", "call_r", "777 km")
    assert (answer["content"], asked["role"]) == ("777 km.", "user")
    assert flat["context"]["fullContext"] == "Answer in one line."


@pytest.mark.parametrize(
    ("parts", "roles"),
    [
        ([SAID], ["assistant"]),
        ([{"type": "text", "text": {"value": "said", "annotations": []}}, None], ["assistant"]),
        ([SAID, {"type": "agent_update"}, MORE], ["assistant"]),
        (
            [{"type": "text", "text": "", "tool_call_ids": ["c"]}, CALL, CALL],
            ["assistant", "tool", "tool"],
        ),
        ([CALL, {"type": "text", "text": ""}, CALL], ["assistant", "tool", "assistant", "tool"]),
        ([RUN], ["assistant", "tool"]),
        ([SAID, {"type": "think", "think": "then"}], ["assistant", "assistant"]),
    ],
)
def test_parts_are_messages_and_come_back_as_they_were(parts: list[Any], roles: list[str]) -> None:
    documents, problems = read_data(export([message(content=parts, text="", custom={"a": 1})]))
    (data,) = written(documents, formats()["librechat"])

    (record,) = json.loads(data)["messages"]
    assert (record["content"], record["text"], record["custom"]) == (parts, "", {"a": 1})
    assert [entry["role"] for entry in documents[0]["history"]] == roles
    assert not problems.first
    kept = json.dumps(documents[0]["history"])
    assert all(kept.count(f'"{word}"') <= 1 for word in ("said", "more", "then", "two"))


def test_a_tree_of_any_depth_is_a_line() -> None:
    deep = (
        "".join(
            json.dumps(message(messageId=f"m{n}", text=f"{n}"))[:-1] + ', "children": ['
            for n in range(3_000)
        )
        + "]}" * 3_000
    )
    data = b'{"conversationId": "c", "messagesTree": [' + deep.encode() + b"]}"

    (document,), problems = read_data(data)

    assert [entry["content"] for entry in document["history"]] == [str(n) for n in range(3_000)]
    assert all("parent" not in entry for entry in document["history"])
    assert not problems.first


def test_messages_that_were_not_stored_when_the_tree_was_exported_have_no_time_and_are_intact() -> (
    None
):
    answer = {
        "messageId": "b",
        "parentMessageId": "a",
        "isCreatedByUser": False,
        "text": "two",
        "children": [],
    }
    tree = [{**message(messageId="a", isCreatedByUser=True, text="one"), "children": [answer]}]
    (document,), problems = read_data(export(tree, "messagesTree"))

    assert [entry["content"] for entry in document["history"]] == ["one", "two"]
    assert not problems.first
    assert "not a time" in read_data(export([message(createdAt="soon")]))[1].first[0].reason


def test_times_are_also_seconds_and_one_message_needs_no_list() -> None:
    (document,), problems = read_data(
        export(message(text="x", createdAt=1743501603, parentMessageId="elsewhere"))
    )

    assert document["history"][0]["timestamp"] == "2025-04-01T10:00:03.000Z"
    assert not problems.first
