"""New capsules."""

from __future__ import annotations

from capsule.format import codec
from capsule.format.canonical import in_order
from capsule.format.migrations import current
from capsule.format.new import new_capsule
from capsule.format.validation import check

STAMP = "2025-01-12T10:00:00.000Z"


def test_a_new_capsule_is_complete_canonical_and_current() -> None:
    made = new_capsule("c", "T", STAMP)
    assert codec.encode(made) == (
        b'{\n  "id": "c",\n  "title": "T",\n  "version": "2.1",\n  "createdAt": "2025-01-12T10:00:00.000Z",\n'
        b'  "updatedAt": "2025-01-12T10:00:00.000Z",\n  "metadata": {\n    "mode": "api",\n    "tags": [],\n'
        b'    "isSummary": false,\n    "sourceConversationId": null,\n    "lock": {\n      "active": false,\n'
        b'      "instanceId": null,\n      "timestamp": null,\n      "user": null,\n      "host": null\n    },\n'
        b'    "titleSetBy": "auto"\n  },\n  "context": {\n    "fullContext": "",\n    "metadata": {\n'
        b'      "projectPath": null,\n      "filesIncluded": 0,\n      "estimatedTokens": 0,\n'
        b'      "contextHash": null\n    }\n  },\n  "history": []\n}\n'
    )
    check(made, codec.encode(made), "c.json")
    assert current(made) == (made, [])
    assert "type" not in made["metadata"]


def test_the_given_fields_are_there_in_canonical_order() -> None:
    lock = {"host": "h", "active": True, "instanceId": "i", "timestamp": STAMP, "user": "u", "pid": 1}
    made = new_capsule(
        "c",
        "T",
        STAMP,
        mode="toolbox",
        type="direct",
        tags=("a", "b"),
        title_set_by="user",
        lock=lock,
        messages=[{"role": "user", "content": "x"}],
        context={"fullContext": "# X"},
        is_summary=True,
        source_conversation_id="s",
        metadata={"participants": ["ann"], "createdBy": None, "own": 1},
    )
    assert codec.encode(made) == codec.encode(in_order(made))
    assert list(made["metadata"]["lock"]) == ["active", "instanceId", "timestamp", "user", "host", "pid"]
    assert made["metadata"]["tags"] == ["a", "b"]
    assert list(made["metadata"])[-4:] == ["type", "participants", "titleSetBy", "own"]
    assert made["history"] == [{"role": "user", "content": "x"}]


def test_two_new_capsules_share_nothing() -> None:
    one, other = new_capsule("a", "", STAMP), new_capsule("b", "", STAMP)
    one["metadata"]["lock"]["active"] = True
    one["context"]["metadata"]["filesIncluded"] = 3
    assert other["metadata"]["lock"]["active"] is False
    assert other["context"]["metadata"]["filesIncluded"] == 0
