"""New capsules, and migrations: pure, idempotent, the same in every clone."""

from __future__ import annotations

from typing import Any

import pytest

from capsule.errors import InvalidDocument
from capsule.format.documents.creation import empty_context, new_capsule, new_metadata
from capsule.format.json import codec
from capsule.format.json.canonical import in_order
from capsule.format.migrations import upgrade
from capsule.format.validation import check
from capsule.ids import message_id_for

STAMP = "2025-01-12T10:00:00.000Z"


def document(**fields: Any) -> dict[str, Any]:
    return {
        "id": "c",
        "title": "t",
        "version": "2.1",
        "createdAt": STAMP,
        "updatedAt": STAMP,
        "metadata": new_metadata(),
        "context": empty_context(),
        "history": [{"role": "user", "content": "a", "timestamp": STAMP, "id": "m"}],
        **fields,
    }


def test_a_message_without_an_id_gets_the_one_that_every_clone_gives_it() -> None:
    history = [{"role": "user", "content": "a", "timestamp": "2025-01-12T11:00:00+01:00"}]
    made, changes = upgrade(document(version="2.0", history=history))
    assert made["history"][0]["id"] == message_id_for("c", 0, "user", STAMP, "a")
    assert list(made["history"][0]) == ["role", "content", "timestamp", "id"]
    assert changes == [
        "version 2.0 -> 2.1",
        "1 message got an id",
        "1 time was put in canonical form",
    ]


def test_a_message_typed_by_hand_gets_the_time_of_the_one_before_it() -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "user", "content": "b", "timestamp": "2025-01-12T12:00:00Z", "id": "x"},
        {"content": "c", "role": "user", "id": None, "timestamp": None, "own": 1},
    ]
    made, changes = upgrade(document(history=history))
    assert [entry["timestamp"] for entry in made["history"]] == [
        STAMP,
        *["2025-01-12T12:00:00.000Z"] * 2,
    ]
    assert list(made["history"][2]) == ["role", "content", "timestamp", "id", "own"]
    assert changes == [
        "2 messages got an id",
        "2 messages got a time",
        "1 time was put in canonical form",
    ]
    assert history[0] == {"role": "user", "content": "a"}


def test_all_known_times_get_their_canonical_form() -> None:
    odd = "2025-01-12T11:00:00.0009+0100"
    lock = {"active": True, "timestamp": odd}
    history = [
        {"role": "user", "content": "", "timestamp": odd, "editedAt": odd, "id": "x", "at": odd}
    ]
    made, changes = upgrade(
        document(createdAt=odd, updatedAt=odd, metadata={"lock": lock}, history=history)
    )
    assert made["createdAt"] == made["updatedAt"] == made["metadata"]["lock"]["timestamp"] == STAMP
    assert made["history"][0] == history[0] | {"timestamp": STAMP, "editedAt": STAMP}
    assert changes == ["5 times were put in canonical form"]


def test_an_old_document_gets_the_fields_of_2_0() -> None:
    for version in [None, "0.3", "1", "1.0", "1.9.4"]:
        old: dict[str, Any] = {
            "history": [
                {"role": "assistant", "content": "Welcome"},
                {
                    "role": "user",
                    "content": "# Fix the *parser*\n\nplease",
                    "timestamp": "2024-05-01T08:00:00Z",
                },
            ],
            "id": "old",
            "colour": "red",
            "metadata": {"tags": ["a"], "x": 1},
        }
        if version:
            old["version"] = version
        made, changes = upgrade(old)
        assert changes[0] == f"version {version or 'missing'} -> 2.1"
        assert (
            " ".join(made) == "id title version createdAt updatedAt metadata context colour history"
        )
        assert made["title"] == "Fix the *parser*"
        assert made["createdAt"] == made["updatedAt"] == "2024-05-01T08:00:00.000Z"
        assert made["metadata"]["tags"] == ["a"]
        assert made["metadata"]["x"] == 1
        assert made["metadata"]["lock"]["active"] is False
        assert made["context"]["metadata"]["filesIncluded"] == 0
        check(made, codec.encode(made), "c.json")
        assert upgrade(made) == (made, [])


def test_an_old_document_without_any_time_gets_the_same_one_everywhere() -> None:
    made, _ = upgrade({"id": "x", "history": []})
    assert made["createdAt"] == made["updatedAt"] == "1970-01-01T00:00:00.000Z"
    assert made["title"] == ""


def test_an_old_document_needs_an_id_and_a_history() -> None:
    for missing in ["id", "history"]:
        old = {"id": "x", "history": []}
        del old[missing]
        with pytest.raises(InvalidDocument, match=f"c.json: {missing}: is missing"):
            upgrade(old, "c.json")


def test_a_newer_minor_keeps_its_version_and_is_tidied_all_the_same() -> None:
    made, changes = upgrade(
        document(version="2.7", news={"a": 1}, history=[{"role": "narrator", "content": ""}])
    )
    assert made["version"] == "2.7"
    assert made["news"] == {"a": 1}
    assert made["history"][0]["id"]
    assert changes == ["1 message got an id", "1 message got a time"]


def test_a_newer_major_is_refused_by_name() -> None:
    for version in ["3.0", "3", "12.1"]:
        with pytest.raises(
            InvalidDocument, match=f"version {version} was written by a newer version of Capsule"
        ) as caught:
            upgrade({"version": version}, "c.json")
        assert caught.value.path == "c.json"


def test_a_missing_metadata_or_context_is_added_so_that_the_layout_has_its_lines() -> None:
    bare = document()
    del bare["metadata"], bare["context"]
    assert upgrade(bare) == (document(), ["metadata added", "context added"])


def test_a_new_capsule_is_complete_canonical_and_current() -> None:
    made = new_capsule("c", "T", STAMP)
    assert codec.encode(made) == (
        b'{\n  "id": "c",\n  "title": "T",\n  "version": "2.1",\n  "createdAt": '
        b'"2025-01-12T10:00:00.000Z",\n'
        b'  "updatedAt": "2025-01-12T10:00:00.000Z",\n  "metadata": {\n    "mode": "api",\n    '
        b'"tags": [],\n'
        b'    "isSummary": false,\n    "sourceConversationId": null,\n    "lock": {\n      '
        b'"active": false,\n'
        b'      "instanceId": null,\n      "timestamp": null,\n      "user": null,\n      "host": '
        b"null\n    },\n"
        b'    "titleSetBy": "auto"\n  },\n  "context": {\n    "fullContext": "",\n    "metadata": '
        b"{\n"
        b'      "projectPath": null,\n      "filesIncluded": 0,\n      "estimatedTokens": 0,\n'
        b'      "contextHash": null\n    }\n  },\n  "history": []\n}\n'
    )
    check(made, codec.encode(made), "c.json")
    assert upgrade(made) == (made, [])
    assert "type" not in made["metadata"]


def test_the_given_fields_of_a_new_capsule_are_there_in_canonical_order() -> None:
    lock = {
        "host": "h",
        "active": True,
        "instanceId": "i",
        "timestamp": STAMP,
        "user": "u",
        "pid": 1,
    }
    about = {"participants": ["ann"], "createdBy": None, "own": 1}
    made = new_capsule(
        "c",
        "T",
        STAMP,
        type="direct",
        tags=("a", "b"),
        lock=lock,
        messages=[{"x": 1}],
        metadata=about,
    )
    assert codec.encode(made) == codec.encode(in_order(made))
    assert list(made["metadata"]["lock"]) == [
        "active",
        "instanceId",
        "timestamp",
        "user",
        "host",
        "pid",
    ]
    assert list(made["metadata"])[-4:] == ["type", "participants", "titleSetBy", "own"]
    assert (made["metadata"]["tags"], made["history"]) == (["a", "b"], [{"x": 1}])
