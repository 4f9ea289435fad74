"""The table of kinds: each is checked, ordered, cleaned, and known to git, the doctor and the check
before a commit.
"""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule.errors import InvalidDocument, InvalidInput
from capsule.format import schema
from capsule.format.documents.channels import Channel
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.message import check_message
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.format.validation import AGENT, CONVERSATION, KINDS, PROJECT, DocumentKind

STAMP = "2026-01-01T00:00:00.000Z"
RECORD = {"name": "anna", "version": "2.1", "createdAt": STAMP, "updatedAt": STAMP}
LINK = {"direction": "out", "enabled": True, "createdBy": None, "createdAt": STAMP}
MESSAGE = {
    "role": "user",
    "content": "@anna review?",
    "timestamp": STAMP,
    "id": "m",
    "thread": "m",
    "topic": "api",
    "mentions": {
        "valid": ["anna", "@all"],
        "invalid": ["bob"],
        "unknown": ["zed"],
        "kinds": {"anna": "review"},
    },
    "intent": "ask",
    "priority": "high",
    "confidence": 0.5,
}


def _channel(channel: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
    member = {
        "id": "anna",
        "joinedAt": STAMP,
        "invitedBy": "self",
        "source": "default",
        "canSend": False,
    }
    about = {
        "participants": [member, "bob"],
        "channel": channel,
        "createdBy": "bob",
        "description": "d",
    }
    return new_capsule(
        "channel_global_a", "a", STAMP, type="channel", metadata=about, messages=[message]
    )


WHOLE = {
    "conversations": _channel(Channel("a", topic_required=True).as_json(), MESSAGE),
    "agents": RECORD
    | {
        "id": "anna",
        "projectPath": "/p",
        "lastSeen": STAMP,
        "statusMessage": None,
        "notifications": True,
        "cursors": {},
    }
    | {
        "dm": {"bob": {"permission": "block", "reason": "noise", "at": STAMP}},
        "dmPolicy": "restricted",
        "busy": True,
    }
    | {
        "requests": {"bob": {"at": STAMP}},
        "reading": {"c": {"muted": True}},
        "concerns": {"m": {"kind": "mention"}},
    },
    "projects": RECORD
    | {"id": "api-123456", "path": "/home/anna/api", "lastActive": STAMP, "metadata": {}}
    | {"links": {"web-123456": LINK}, "mine": {"b": 1, "a": 2}},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_document_of_each_kind_is_valid_by_the_schema_too_and_stays_as_it_is(kind: str) -> None:
    row, document = KINDS[kind], KINDS[kind].ordered(WHOLE[kind])
    data = codec.encode(document)
    assert row.problems_of(data, "x") == [] and row.is_id(document["id"]) and not row.is_id("../x")
    assert codec.encode(row.read(data, "x")) == clean(data, "x", kind) == data
    jsonschema.validate(
        document, schema.schema(row.part or "capsule"), cls=jsonschema.Draft202012Validator
    )


@pytest.mark.parametrize(
    ("kind", "document", "where"),
    [
        (AGENT, {}, "id"),
        (AGENT, {"id": "Anna"}, "id"),
        (AGENT, {"id": "a", "version": "3.0"}, "version"),
        (AGENT, {"id": "a", "lastSeen": 5}, "lastSeen"),
        (AGENT, {"id": "a", "dmPolicy": "secret"}, "dmPolicy"),
        (AGENT, {"id": "a", "dm": {"b": "allow"}}, "dm"),
        (AGENT, {"id": "a", "dm": {"b": {"reason": "noise"}}}, "dm.b.permission"),
        (AGENT, {"id": "a", "reading": {"c": True}}, "reading"),
        (PROJECT, {}, "id"),
        (PROJECT, {"id": "global"}, "id"),
        (PROJECT, {"id": "a-123456", "links": {"b": {"direction": "up"}}}, "links.b.direction"),
        (
            PROJECT,
            {"id": "a-123456", "links": {"b": {"direction": "in", "enabled": "no"}}},
            "links.b.enabled",
        ),
        (PROJECT, {"id": "a-123456", "links": [1]}, "links"),
    ],
)
def test_what_is_wrong_has_its_place_and_the_schema_agrees(
    kind: DocumentKind, document: dict[str, Any], where: str
) -> None:
    with pytest.raises(InvalidDocument) as raised:
        kind.check(document, "x.json")
    assert [(one.path, one.where) for one in raised.value.problems] == [("x.json", where)]
    assert raised.value.problems[0].line >= 1
    assert not jsonschema.Draft202012Validator(schema.schema(kind.part)).is_valid(document)


def test_a_file_of_a_person_needs_an_id_only_and_keeps_its_own_fields() -> None:
    data = b'{"mine": {"b": 1}, "name": null, "id": "anna", "lastSeen": "2026-01-01 10:00"}'
    assert AGENT.problems_of(data, "x") == []
    assert list(AGENT.read(data, "x")) == ["id", "name", "lastSeen", "mine"]
    assert list(AGENT.read(b'{"id": "anna", "cursors": {"b": {}, "a": {}}}', "x")["cursors"]) == [
        "a",
        "b",
    ]
    (problem,) = AGENT.problems_of(b'{\n  "id": "anna",\n  "cursors": 1\n}\n', "x")
    assert (problem.line, problem.where) == (3, "cursors")
    (problem,) = AGENT.problems_of(b'{"id":', "x")
    assert problem.line == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mentions", {"valid": "anna"}),
        ("confidence", 1.5),
        ("topic", 1),
    ],
)
def test_a_wrong_field_of_a_message_has_its_place_and_is_refused_by_an_append(
    field: str, value: Any
) -> None:
    message = MESSAGE | {field: value}
    with pytest.raises(InvalidInput, match=rf"message\.{field}"):
        check_message(message)
    (problem,) = CONVERSATION.problems_of(
        codec.encode(_channel(Channel("a").as_json(), message)), "x"
    )
    assert problem.where == f"history[0].{field}"


@pytest.mark.parametrize("channel", [{"access": "secret"}, {"isDefault": "yes"}, {"scope": 1}])
def test_a_wrong_field_of_a_channel_has_its_place(channel: dict[str, Any]) -> None:
    (problem,) = CONVERSATION.problems_of(codec.encode(_channel(channel, MESSAGE)), "x")
    assert problem.where == f"metadata.channel.{next(iter(channel))}"


def test_a_number_of_any_digits_is_a_confidence_and_is_kept() -> None:
    data = codec.encode(WHOLE["conversations"]).replace(b'"confidence": 0.5', b'"confidence": 0.50')
    assert CONVERSATION.problems_of(data, "x") == []
    assert CONVERSATION.problems_of(data.replace(b"0.50", b"1e999"), "x")
    assert b"0.50" in codec.encode(CONVERSATION.read(data, "x"))
