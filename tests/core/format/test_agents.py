"""The document of an agent: its id, its fields, and what is wrong with one."""

from __future__ import annotations

from typing import Any

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule.errors import InvalidDocument, InvalidInput
from capsule.format import schema
from capsule.format.agents import MAX_AGENT_ID, check_agent_id, is_agent_id
from capsule.format.kinds import AGENT
from capsule.ids import is_id

STAMP = "2026-01-01T00:00:00.000Z"


def test_an_agent_id_is_a_slug_and_two_of_them_name_one_direct_conversation() -> None:
    for id in ("a", "7", "anna", "build-bot-2", "a--b", "x" * MAX_AGENT_ID):
        assert is_agent_id(id)
        assert check_agent_id(id) == id
        assert is_id(f"direct_{id}_{id}")
    for id in ("", "-a", "a-", "a_b", "Anna", "a.b", "a b", "é", "a\n", "x" * (MAX_AGENT_ID + 1)):
        assert not is_agent_id(id)
        with pytest.raises(InvalidInput):
            check_agent_id(id)
    assert not is_id(f"direct_{'x' * (MAX_AGENT_ID + 1)}_{'x' * MAX_AGENT_ID}")


@pytest.mark.parametrize(
    ("document", "where"),
    [
        ({}, "id"),
        ({"id": 1}, "id"),
        ({"id": "Anna"}, "id"),
        ({"id": "a", "version": "3.0"}, "version"),
        ({"id": "a", "version": None}, "version"),
        ({"id": "a", "lastSeen": 5}, "lastSeen"),
        ({"id": "a", "notifications": "on"}, "notifications"),
        ({"id": "a", "notifications": None}, "notifications"),
        ({"id": "a", "cursors": []}, "cursors"),
        ({"id": "a", "name": 1}, "name"),
        ({"id": "a", "dmPolicy": "secret"}, "dmPolicy"),
        ({"id": "a", "discoverable": None}, "discoverable"),
        ({"id": "a", "dm": {"b": "allow"}}, "dm"),
        ({"id": "a", "dm": {"b": {"reason": "noise"}}}, "dm.b.permission"),
        ({"id": "a", "dm": {"b": {"permission": "maybe"}}}, "dm.b.permission"),
        ({"id": "a", "reading": {"c": True}}, "reading"),
    ],
)
def test_what_is_wrong_has_its_place_and_the_schema_agrees(document: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidDocument) as raised:
        AGENT.check(document, "agents/a.json")
    assert [(one.path, one.where) for one in raised.value.problems] == [("agents/a.json", where)]
    assert raised.value.problems[0].line >= 1
    assert not jsonschema.Draft202012Validator(schema.schema("agent")).is_valid(document)


def test_a_file_of_a_person_needs_an_id_only_and_keeps_its_own_fields() -> None:
    data = b'{"mine": {"b": 1}, "name": null, "id": "anna", "lastSeen": "2026-01-01 10:00"}'
    assert AGENT.problems_of(data, "x") == []
    assert list(AGENT.read(data, "x")) == ["id", "name", "lastSeen", "mine"]
    assert list(AGENT.read(b'{"id": "anna", "cursors": {"b": {}, "a": {}}}', "x")["cursors"]) == ["a", "b"]
    (problem,) = AGENT.problems_of(b'{\n  "id": "anna",\n  "cursors": 1\n}\n', "x")
    assert (problem.line, problem.where) == (3, "cursors")
    (problem,) = AGENT.problems_of(b'{"id":', "x")
    assert problem.line == 1
