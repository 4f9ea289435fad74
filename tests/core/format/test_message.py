"""Checking a message for writing."""

from __future__ import annotations

import enum
from types import MappingProxyType
from typing import Any

import pytest

from capsule.errors import InvalidInput
from capsule.format.documents.message import check_message
from capsule.format.models import Message


class Role(enum.StrEnum):
    USER = "user"


def test_the_result_is_in_canonical_order_with_the_names_of_the_file() -> None:
    given = {
        "own": 1,
        "metadata": {"a": [1]},
        "attachments": [{}],
        "reasoning": "r",
        "tool_call_id": "t",
        "tool_calls": [{"x": 1}],
        "model": "m",
        "edited_at": "2025-01-12T12:00:00+01:00",
        "reply_to": "r",
        "from_": "ann",
        "parent": None,
        "id": "i",
        "timestamp": "2025-01-12 10:00:00.123456",
        "content": "c",
        "role": "user",
    }
    checked = check_message(given)
    assert " ".join(checked) == (
        "role content timestamp id parent from replyTo editedAt model toolCalls toolCallId "
        "reasoning attachments "
        "metadata own"
    )
    assert checked["timestamp"] == "2025-01-12T10:00:00.123Z"
    assert checked["editedAt"] == "2025-01-12T11:00:00.000Z"
    assert checked["parent"] is None
    assert "own" in given


def test_fields_that_are_none_are_left_out_except_the_parent_of_a_root() -> None:
    given = dict.fromkeys(("timestamp", "id", "from_", "model", "toolCalls", "metadata", "parent"))
    assert check_message({"role": "user", "content": "", **given}) == {
        "role": "user",
        "content": "",
        "parent": None,
    }


def test_a_model_is_checked_as_the_mapping_it_stands_for() -> None:
    message = Message(role="user", content="x", from_="ann", tool_calls=[{"name": "f"}])
    assert check_message(message) == {
        "role": "user",
        "content": "x",
        "from": "ann",
        "toolCalls": [{"name": "f"}],
    }
    assert check_message(MappingProxyType({"role": "user", "content": "x"})) == {
        "role": "user",
        "content": "x",
    }


def test_a_member_of_an_enum_becomes_plain_text() -> None:
    assert type(check_message({"role": Role.USER, "content": "x"})["role"]) is str


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"role": "bard"}, "message.role: must be one of user, assistant, system, tool, is 'bard'"),
        ({"content": b"x"}, "message.content: must be a text, is a bytes"),
        ({"timestamp": "yesterday"}, "message.timestamp: must be a time like"),
        ({"id": ""}, "message.id: is empty"),
        ({"parent": ""}, "message.parent: is empty"),
        ({"from": "../x"}, "message.from: '../x' is not an agent id"),
        (
            {"tool_calls": [{}, "x"]},
            "message.toolCalls: must be a list of objects, is a list whose item 1 is a text",
        ),
        ({"from": "a", "from_": "b"}, "message.from: given twice"),
        ({1: 2}, "the field name 1 is not a plain str"),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(fields: dict[Any, Any], says: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_message({"role": "user", "content": "x", **fields})
    assert says in caught.value.message


def test_an_invalid_message_is_refused() -> None:
    for given in (None, "text", 3, ["role", "user"], {}, {"role": "user"}, {"content": "x"}):
        with pytest.raises(InvalidInput):
            check_message(given)
