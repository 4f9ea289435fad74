"""What is special about ATIF: steps that hold several messages, subagents inside, and a strict
reader.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, changed_by_import, read, read_data, written

FILES = DATA / "atif"


def test_a_step_is_a_message_and_what_was_observed_and_a_subagent_is_a_conversation() -> None:
    (main, kid), _ = read(FILES / "trajectory.json")
    system, user, agent, first, second, third, last = main["history"]

    assert [entry["role"] for entry in (system, user, agent)] == ["system", "user", "assistant"]
    assert user["attachments"][0]["reference"] == "images/shot.png"
    assert (agent["model"], agent["reasoning"]) == ("gpt-5-mini", "tests first")
    assert agent["metadata"]["usage"] == {
        "inputTokens": 120,
        "outputTokens": 30,
        "cachedTokens": 100,
    }
    assert [entry.get("toolCallId") for entry in (first, second, third)] == [
        "call_1",
        "call_2",
        None,
    ]
    assert last["content"] == "Repaired."
    assert kid["metadata"]["sourceConversationId"] == main["id"]


def test_a_trajectory_that_nobody_changed_is_written_as_it_was_but_for_its_subagents() -> None:
    (main, _), _ = read(FILES / "trajectory.json")
    (data,) = written([main], formats()["atif"])

    given = json.loads((FILES / "trajectory.json").read_text())
    del given["subagent_trajectories"]
    assert json.loads(data) == given


def test_a_capsule_from_elsewhere_is_what_a_strict_reader_accepts() -> None:
    for path in sorted((DATA / "capsule").glob("[!d]*")) + sorted(
        (DATA / "open-webui").glob("[!d]*")
    ):
        for data in written(read(path)[0], formats()["atif"]):
            _check_strictly(json.loads(data))


def _check_strictly(made: dict[str, Any]) -> None:
    assert set(made) <= {"schema_version", "session_id", "trajectory_id", "agent", "steps", "extra"}
    assert [step["step_id"] for step in made["steps"]] == list(range(1, len(made["steps"]) + 1))
    for step in made["steps"]:
        calls = {call["tool_call_id"] for call in step.get("tool_calls", ())}
        results = step.get("observation", {"results": []})["results"]
        assert {one["source_call_id"] for one in results if "source_call_id" in one} <= calls
        assert step["source"] == "agent" or not set(step) & {
            "tool_calls",
            "model_name",
            "reasoning_content",
            "metrics",
        }
        assert set(step) <= {
            *("step_id", "timestamp", "source", "message", "model_name", "reasoning_content"),
            *("tool_calls", "metrics", "observation"),
        }


def test_the_file_that_continues_a_trajectory_is_a_conversation_of_its_own(tmp_path: Path) -> None:
    step = {"step_id": 1, "source": "user", "message": "go"}
    about = {
        "schema_version": "ATIF-v1.6",
        "session_id": "s",
        "agent": {"name": "a", "version": "1"},
    }
    more = {**about, "steps": [step, {"step_id": 2, "source": "agent", "message": "on"}]}
    (tmp_path / "trajectory.json").write_text(
        json.dumps({**about, "steps": [step], "continued_trajectory_ref": "trajectory.cont-1.json"})
    )
    (tmp_path / "trajectory.cont-1.json").write_text(json.dumps(more))

    documents, problems = read(tmp_path)

    assert [len(document["history"]) for document in documents] == [1, 2]
    assert documents[1]["metadata"]["forkedFrom"] == documents[0]["id"]
    assert not problems.first


def test_trajectories_may_stand_in_lines_and_an_image_beside_the_file_is_stored(
    tmp_path: Path,
) -> None:
    image = {"type": "image", "source": {"media_type": "image/png", "path": "images/a.png"}}
    about = {"schema_version": "ATIF-v1.7", "agent": {"name": "a", "version": "1"}}
    lines = [
        {
            **about,
            "trajectory_id": str(n),
            "steps": [{"step_id": 1, "source": "user", "message": [image]}],
        }
        for n in range(2)
    ]
    (tmp_path / "images").mkdir()
    (tmp_path / "images" / "a.png").write_bytes(b"\x89PNG")
    (tmp_path / "runs.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    documents, _ = read(tmp_path)

    assert [document["history"][0]["attachments"][0]["size"] for document in documents] == [4, 4]


@pytest.mark.parametrize(
    ("key", "value"), [("tool_calls", 5), ("step_id", None), ("source", [1]), ("observation", "x")]
)
def test_an_odd_value_costs_no_other_step(key: str, value: object) -> None:
    given = json.loads((FILES / "trajectory.json").read_text())
    given["steps"][2][key] = value
    documents, problems = read_data(json.dumps(given).encode())

    assert [document["history"][-1]["content"] for document in documents] == [
        "Repaired.",
        "It is short.",
    ]
    assert problems.first
    for document, data in zip(documents, written(documents, formats()["atif"]), strict=True):
        assert changed_by_import(document, data, formats()["atif"]) == []


def test_steps_that_were_added_here_are_numbered_and_come_back() -> None:
    (main, _), _ = read(FILES / "trajectory.json")
    id = "99932d0c-68d6-466b-8698-dc5d3fc42887"
    main["history"].append(
        {"id": id, "role": "user", "content": "more", "timestamp": "2026-05-01T12:00:05.000Z"}
    )

    (data,) = written([main], formats()["atif"])
    (again,), problems = read_data(data)

    assert [step["step_id"] for step in json.loads(data)["steps"]] == [1, 2, 3, 4, 5]
    assert [entry["content"] for entry in again["history"]] == [
        entry["content"] for entry in main["history"]
    ]
    assert not problems.first
