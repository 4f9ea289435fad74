"""What is special about the web UI of llama.cpp: four shapes, and texts with marks."""

from __future__ import annotations

import io
import json
import zipfile

import pytest

from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, Shelf, read, read_data, written

FILES = DATA / "llama-webui"
CALL = "<<<AGENTIC_TOOL_CALL_START>>>\n<<<TOOL_NAME:f>>>\n<<<TOOL_ARGS_START>>>{{}}<<<TOOL_ARGS_END>>>{}"


def test_a_zip_has_a_file_for_each_conversation_and_others_beside() -> None:
    data = (FILES / "2026-07-09_conv.jsonl").read_bytes()
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("2026-07-09_conv.jsonl", data)
        archive.writestr("notes.txt", "ignore me")

    documents, problems = read_data(file.getvalue())

    assert documents == read_data(data)[0]
    assert not problems.first


def test_a_text_with_marks_is_several_messages_and_what_answers_it_follows_the_last() -> None:
    (document,), _ = read(FILES / "conversation_marks.json")
    _, question, call, result, answer = document["history"]

    assert (call["reasoning"], call["content"]) == ("need the weather", "Let me look.")
    assert call["toolCalls"] == [{"name": "weather", "arguments": {"city": "Brest"}}]
    assert (result["role"], result["content"]) == ("tool", "12 °C, rain")
    assert answer["content"] == "Take a coat."
    assert answer["metadata"]["usage"] == {
        "inputTokens": 50,
        "cachedTokens": 10,
        "outputTokens": 30,
    }
    assert [file["name"] for file in question["attachments"]] == [
        "coat.png",
        "list.txt",
        "a.pdf",
        "context",
    ]


@pytest.mark.parametrize(
    "content",
    [
        "<think>\nhm\n</think>\n\nyes",
        "<think>cut",
        f"a\n{CALL.format('one')}<<<AGENTIC_TOOL_CALL_END>>>\n{CALL.format('two, cut')}",
        f"{CALL.format('one')}\n<<<AGENTIC_TOOL_CALL_END>>>",
        "<<<reasoning_content_start>>>hm<<<reasoning_content_end>>>a <<<TOOL_NAME:x>>>",
    ],
)
def test_a_text_with_marks_is_written_as_it_was_and_no_text_is_kept_twice(content: str) -> None:
    message = {
        "id": "a",
        "convId": "c",
        "role": "assistant",
        "timestamp": 1767000000000,
        "content": content,
    }
    record = {
        "conv": {"id": "c", "lastModified": 1, "currNode": "a"},
        "messages": [message | {"parent": None}],
    }
    documents, problems = read_data(json.dumps(record).encode())
    (data,) = written(documents, formats()["llama-webui"])

    assert json.loads(data)["messages"][-1]["content"] == content
    assert not problems.first
    kept = json.dumps([document | {"title": ""} for document in documents])
    assert all(kept.count(f'"{word}"') <= 1 for word in ("hm", "yes", "one", "two, cut"))


def test_the_shapes_of_a_conversation_are_the_same_conversation() -> None:
    conv = {"id": "c", "name": "N", "lastModified": 1767000000000, "currNode": "a"}
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    message = {
        "id": "a",
        "convId": "c",
        "role": "assistant",
        "content": "x",
        "parent": None,
        "type": "text",
    }
    message |= {"timestamp": 1767000000000, "children": []}
    one = {"conv": conv, "messages": [message | {"toolCalls": json.dumps([call]), "thinking": ""}]}
    tables = {"conversations": [conv], "messages": one["messages"]}
    lines = [{"type": "session", "harness": "llama.app", **conv}]
    lines += [{"type": "message", "message": message | {"toolCalls": [call]}}]
    files = [
        json.dumps(one),
        json.dumps([one]),
        json.dumps(tables),
        "\n".join(map(json.dumps, lines)),
    ]

    documents = [read_data(file.encode())[0] for file in files]

    assert documents[0][0]["history"][0]["toolCalls"] == [{"id": "t", "name": "f", "arguments": {}}]
    assert all(other == documents[0] for other in documents)


def test_a_dump_of_the_browsers_storage_has_its_conversations() -> None:
    one = json.loads((FILES / "localstorage.json").read_bytes())
    dump = {"theme": "dark", one["id"]: json.dumps(one)}

    documents, problems = read_data(json.dumps(dump).encode())

    assert documents == read(FILES / "localstorage.json")[0]
    assert documents[0]["history"][1]["reasoning"] == "greet"
    assert not problems.first


def test_a_message_of_a_turn_that_was_edited_or_removed_here_leaves_the_rest_as_it_is() -> None:
    shelf = Shelf()
    (document,), _ = read(FILES / "conversation_marks.json", shelf)
    *_, result, answer = document["history"]
    answer["content"] = "Take a hat."
    (again,), problems = read_data(written([document], formats()["llama-webui"], shelf)[0], shelf)
    assert [entry["content"] for entry in again["history"][2:]] == [
        "Let me look.",
        "12 °C, rain",
        "Take a hat.",
    ]

    document["history"].remove(result)
    (again,), problems = read_data(written([document], formats()["llama-webui"], shelf)[0], shelf)

    assert [entry["content"] for entry in again["history"]] == [
        "Be brief.",
        "What shall I wear?",
        "Let me look.",
        "",  # In this format each call has a result.
        "Take a hat.",
    ]
    assert not problems.first
