"""What is special about ChatGPT's export."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, read, read_data, written

EXPORT = DATA / "chatgpt"


def test_branches_hidden_messages_and_the_active_one_are_those_of_the_export() -> None:
    (document, *_), _ = read(EXPORT / "conversations.json")
    system, question, first, second, *_ = document["history"]

    assert system["metadata"]["hidden"] is True
    assert "parent" not in first
    assert second["parent"] == question["id"]
    assert [first["model"], second["model"]] == ["gpt-4o", "o1"]


def test_a_file_of_the_export_becomes_an_attachment_with_its_digest() -> None:
    documents, _ = read(EXPORT / "modern")
    attached = [
        one
        for document in documents
        for entry in document["history"]
        for one in entry.get("attachments", ())
    ]

    assert [one["size"] for one in attached if "sha256" in one] == [
        (EXPORT / "modern" / "file-00bb-notes.txt").stat().st_size
    ]


def test_a_message_that_is_not_understood_is_told_and_its_answers_stay() -> None:
    (record, *_) = orjson.loads((EXPORT / "conversations.json").read_bytes())
    messages = [node["message"] for node in record["mapping"].values() if node["message"]]
    next(message for message in messages if message["author"]["role"] == "user")["author"] = (
        "nobody"
    )
    (document,), problems = read_data(orjson.dumps([record]))

    assert [problem.line for problem in problems.first] == [1]
    assert len(document["history"]) == len(messages) - 1


def test_a_message_stays_whose_file_has_no_id() -> None:
    about = {"attachments": [{"id": "", "name": "notes.txt"}]}
    message = {
        "author": {"role": "user"},
        "create_time": 1,
        "content": {"content_type": "text", "parts": ["x"]},
    }
    node = {"id": "a", "parent": None, "message": message | {"metadata": about}}
    (document,), problems = read_data(orjson.dumps([{"id": "1", "mapping": {"a": node}}]))

    assert not problems.first
    assert document["history"][0]["content"] == "x"
    assert document["history"][0]["attachments"][0]["name"] == "notes.txt"


@pytest.mark.parametrize(
    ("content", "text", "is_told"),
    [
        ({"parts": ["x", "y"]}, "x\n\ny", False),
        ({"text": "x"}, "x", False),
        ({"content_type": "new", "parts": ["x"]}, "x", False),
        ("x", "x", False),
        (["x", {"content_type": "audio_transcription", "text": "y"}], "x\n\ny", False),
        ({"parts": [{"audio": {"asset_pointer": "sediment://file_1"}}, None, "x"]}, "x", False),
        ({"parts": ["x", {"shape": [1]}]}, 'x\n\n```json\n{"shape":[1]}\n```', True),
        ({"content_type": "new", "title": "x", "rows": [1]}, "json", True),
        ({"content_type": "new", "title": "x", "rows": None}, "x", False),
        (7, "```json\n7\n```", True),
    ],
)
def test_what_has_parts_or_text_has_text_and_what_is_not_understood_is_shown_and_told(
    content: Any, text: str, is_told: bool
) -> None:
    node = {
        "id": "a",
        "parent": None,
        "message": {"author": {"role": "user"}, "create_time": 1, "content": content},
    }
    data = orjson.dumps([{"id": "1", "mapping": {"a": node}}])
    (document,), problems = read_data(data)

    said = document["history"][0]["content"]
    assert said == text or (text == "json" and orjson.loads(said.split("\n")[1]) == content)
    assert [problem.line for problem in problems.first] == [1] * is_told
    (data,) = written([document], formats()["chatgpt"])
    assert orjson.loads(data)["mapping"]["a"]["message"]["content"] == content


@pytest.mark.parametrize(
    ("role", "time", "is_damage"),
    [
        ("user", None, True),
        ("assistant", None, True),
        ("system", None, False),
        ("system", "yesterday", True),
    ],
)
def test_a_time_that_is_missing_is_told_where_there_always_is_one(
    role: str, time: Any, is_damage: bool
) -> None:
    message = {
        "author": {"role": role},
        "create_time": time,
        "content": {"content_type": "text", "parts": ["x"]},
    }
    data = orjson.dumps(
        [{"id": "1", "mapping": {"a": {"id": "a", "parent": None, "message": message}}}]
    )

    assert bool(read_data(data)[1].first) == is_damage
