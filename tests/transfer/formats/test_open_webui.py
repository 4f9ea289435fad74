"""What is special about Open WebUI's exports: what an agent did stands in one message,
in two ways.
"""

from __future__ import annotations

import json

import pytest

from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, read, read_data, written

FILES = DATA / "open-webui"
CALL = (
    '<details type="tool_calls" done="true" id="{0}" name="f" '
    'arguments="&quot;{{\\&quot;a\\&quot;: 1}}&quot;" '
    'result="&quot;result of {0}&quot;" files="">\n<summary>Tool Executed</summary>\n</details>\n'
)
THOUGHT = (
    '<details type="reasoning" done="{}" duration="3">\n<summary>Thought</summary>\n&gt; a '
    "&amp; b\n&gt; c"
)


def chat(**fields: object) -> bytes:
    message = {
        "id": "m",
        "parentId": None,
        "childrenIds": [],
        "role": "assistant",
        "timestamp": 1760000000,
        **fields,
    }
    return json.dumps(
        [{"id": "i", "chat": {"history": {"currentId": "m", "messages": {"m": message}}}}]
    ).encode()


def test_an_answer_with_marks_is_several_messages_and_what_answers_it_follows_the_last() -> None:
    (document,), _ = read(FILES / "branches.json")
    question, thought, result, answer, other, second, asked, back, last = document["history"]

    assert [file["type"] for file in question["attachments"]] == ["image/png", "text/plain"]
    assert question["attachments"][1]["text"] == "apple"
    assert (thought["reasoning"], thought["content"]) == ("look at it", "")
    assert thought["toolCalls"] == [
        {"id": "call_1", "name": "read", "arguments": {"name": "a.txt"}}
    ]
    assert (result["role"], result["toolCallId"], result["content"]) == ("tool", "call_1", "apple")
    assert answer["content"] == "An apple."
    assert other["parent"] == question["id"]
    assert second["parent"] == answer["id"]
    assert (asked["reasoning"], asked["toolCalls"][0]["arguments"]) == (
        "ask the tool",
        {"city": "Paris"},
    )
    assert (back["content"], last["content"]) == ("18C", "18 °C.")
    assert document["metadata"]["archived"] is True
    assert document["metadata"]["tags"] == ["fruit"]
    assert document["context"]["fullContext"] == "Be kind."


@pytest.mark.parametrize(
    ("content", "roles"),
    [
        (f"{THOUGHT.format('true')}\n</details>\nyes", ["assistant"]),
        (THOUGHT.format("false"), ["assistant"]),
        (
            f"I ask.\n{CALL.format('x')}{CALL.format('y')}\nDone.",
            ["assistant", "tool", "tool", "assistant"],
        ),
        (f"{CALL.format('x')}then\n{CALL.format('y')}", ["assistant", "tool", "assistant", "tool"]),
        (CALL.format("x")[:90], ["assistant"]),
        (
            (
                '<details type="code_interpreter" done="true" '
                'output="2">\n```python\n1+1\n```\n</details>\nTwo.'
            ),
            ["assistant", "tool", "assistant"],
        ),
        ("<think>hm</think>yes", ["assistant"]),
    ],
)
def test_a_text_with_marks_is_written_as_it_was_and_no_text_is_kept_twice(
    content: str, roles: list[str]
) -> None:
    documents, problems = read_data(chat(content=content, custom=7))
    (data,) = written(documents, formats()["open-webui"])

    (message,) = json.loads(data)["chat"]["history"]["messages"].values()
    assert (message["content"], message["custom"]) == (content, 7)
    assert [entry["role"] for entry in documents[0]["history"]] == roles
    assert not problems.first
    kept = json.dumps([document | {"title": ""} for document in documents])
    assert all(
        kept.count(word) <= 1
        for word in ("result of x", "result of y", "1+1", "I ask.", "Done.", "hm")
    )


def test_items_of_an_output_are_the_truth_and_those_that_say_nothing_to_us_come_back() -> None:
    said = [{"type": "output_text", "text": "The answer"}]
    output = [
        {"type": "other", "a": 1},
        {"type": "message", "id": "x", "content": said},
        {"type": "last"},
    ]
    documents, _ = read_data(chat(content="The answer", output=output))
    (data,) = written(documents, formats()["open-webui"])

    (message,) = json.loads(data)["chat"]["history"]["messages"].values()
    assert message["output"] == output
    assert [entry["content"] for entry in documents[0]["history"]] == ["The answer"]
    assert json.dumps(documents[0]["history"]).count("The answer") == 1
    documents, _ = read_data(chat(content="No list", output=True))
    assert read_data(written(documents, formats()["open-webui"])[0])[0] == documents


def test_a_turn_from_elsewhere_is_one_message_that_shows_its_calls() -> None:
    lines = DATA / "jsonl" / "chat.jsonl"
    documents, _ = read(lines)
    document = next(
        one for one in documents if any("toolCalls" in entry for entry in one["history"])
    )
    (data,) = written([document], formats()["open-webui"])

    messages = json.loads(data)["chat"]["history"]["messages"].values()
    assert {message["role"] for message in messages} <= {"user", "assistant", "system"}
    assert any('<details type="tool_calls"' in message["content"] for message in messages)


def test_a_chat_without_a_tree_is_a_line_and_an_object_of_chats_has_them_all() -> None:
    messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    row = {"id": "i", "title": "T", "chat": {"history": None, "messages": messages}}

    (document,), problems = read_data(json.dumps({"chats": [row]}).encode())
    again, _ = read_data(written([document], formats()["open-webui"])[0])

    assert [entry["content"] for entry in document["history"]] == ["hi", "hello"]
    assert again == [document]
    assert not problems.first
