"""What is special about the sessions of Claude Code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.transfer.drafts.conversion import document_of, draft_of
from capsule.transfer.interface import Draft
from capsule.transfer.registry import formats
from tests.transfer.exchange import (
    DATA,
    STAMP,
    Shelf,
    changed_by_import,
    read,
    read_data,
    take,
    written,
)

FORMAT = formats()["claude-code"]
name_of = FORMAT.file_name or str
SITE = DATA / "claude-code" / "site"
SESSION = "89c9a691-b97b-5e87-b73c-beef665b430c"


def lines(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in data.splitlines()]


def record(uuid: str, parent: str | None, **rest: Any) -> dict[str, Any]:
    kind = rest.pop("type", "user")
    message = {"role": kind, "content": rest.pop("content", uuid)} | rest.pop("message", {})
    common = {"sessionId": SESSION, "timestamp": STAMP, "isSidechain": False}
    return {"type": kind, "uuid": uuid, "parentUuid": parent, "message": message} | common | rest


def document(*records: dict[str, Any]) -> dict[str, Any]:
    (found,), problems = read_data(b"\n".join(map(orjson.dumps, records)))
    assert not problems.first
    return found


def test_the_records_of_an_answer_are_one_message_and_its_results_follow_each_other() -> None:
    (session, _), _ = read(SITE)
    answer, first, second, last = session["history"][3:7]

    assert answer["reasoning"] == "two files"
    assert [call["id"] for call in answer["toolCalls"]] == ["toolu_1", "toolu_2"]
    assert answer["metadata"]["usage"]["outputTokens"] == 40
    assert answer["metadata"]["imported"]["id"] == "c6d56acf-293d-576f-b7ac-1009a4f3f03e"
    assert [entry["toolCallId"] for entry in (first, second)] == ["toolu_1", "toolu_2"]
    assert all("parent" not in entry for entry in (first, second, last))


def test_a_session_comes_back_record_for_record_but_for_progress() -> None:
    shelf = Shelf()
    documents, _ = read(SITE, shelf)
    path = next(SITE.glob("*/*.jsonl"))
    kept = [one for one in lines(path.read_bytes()) if one["type"] != "progress"]
    for one in kept:
        if one.get("parentUuid") == "6672ae75-78f9-5c14-8bd0-793279b7728d":
            one["parentUuid"] = "a2fb8696-090b-59ed-b62c-8e47db0cad44"

    assert lines(written(documents, FORMAT, shelf)[0]) == kept


def test_a_hook_that_reports_progress_and_output_between_messages_breaks_no_link() -> None:
    progress = {
        "type": "progress",
        "uuid": "p",
        "parentUuid": "a",
        "sessionId": SESSION,
        "data": {"hook": "Stop"},
    }
    output = {
        "type": "attachment",
        "uuid": "o",
        "parentUuid": "p",
        "sessionId": SESSION,
        "attachment": {"exitCode": 0},
    }
    found = document(
        record("a", None), progress, output, record("b", "o", type="assistant"), record("c", "b")
    )

    assert [entry["content"] for entry in found["history"]] == ["a", "b", "c"]
    assert all("parent" not in entry for entry in found["history"])
    assert [one["parentUuid"] for one in lines(written([found], FORMAT)[0])] == [
        None,
        "a",
        "o",
        "b",
    ]


def test_the_talk_of_a_subagent_is_a_conversation_of_its_own_and_has_its_own_file() -> None:
    (session, agent), _ = read(SITE)

    assert agent["title"] == "look"
    assert agent["metadata"]["sourceConversationId"] == session["id"]
    names = [name_of(draft_of(one, "claude-code")) for one in (session, agent)]
    assert names == [
        f"-home-dev-site-v2/{SESSION}.jsonl",
        f"-home-dev-site-v2/{SESSION}/subagents/agent-a9.jsonl",
    ]


def test_a_subagent_in_the_file_of_its_session_is_told_apart() -> None:
    records = [
        record("a", None),
        record("x", None, isSidechain=True),
        record("y", "x", isSidechain=True),
    ]
    (session, agent), _ = read_data(b"\n".join(map(orjson.dumps, [*records, record("b", "a")])))

    assert [entry["content"] for entry in session["history"]] == ["a", "b"]
    assert [entry["content"] for entry in agent["history"]] == ["x", "y"]
    assert agent["metadata"]["sourceConversationId"] == session["id"]


def test_what_was_said_after_a_compaction_follows_what_was_said_before() -> None:
    boundary: dict[str, Any] = {
        "type": "system",
        "subtype": "compact_boundary",
        "content": "compacted",
        "timestamp": STAMP,
    }
    boundary |= {"uuid": "c", "parentUuid": None, "logicalParentUuid": "a", "sessionId": SESSION}
    found = document(record("a", None), boundary, record("b", "c", isCompactSummary=True))

    assert [entry["role"] for entry in found["history"]] == ["user", "system", "user"]
    assert all("parent" not in entry for entry in found["history"])
    assert lines(written([found], FORMAT)[0])[1]["parentUuid"] is None


def test_an_answer_that_grows_keeps_its_id() -> None:
    answer: dict[str, Any] = {"type": "assistant", "message": {"id": "msg_1", "model": "m"}}
    texts = [[{"type": "text", "text": text}] for text in ("one", "two")]
    start = [record("a", None), record("b", "a", content=texts[0], **answer)]
    before, after = document(*start), document(*start, record("c", "b", content=texts[1], **answer))

    assert [entry["id"] for entry in before["history"]] == [
        entry["id"] for entry in after["history"]
    ]
    assert after["history"][1]["content"] == "one\n\ntwo"
    again = lines(written([after], FORMAT)[0])
    assert [one["message"]["content"] for one in again[1:]] == texts


def test_a_result_between_two_records_of_an_answer_is_written_between_them(store: Store) -> None:
    def call(id: str) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": "Bash", "input": {}}

    def result(id: str) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": id, "content": f"result of {id}"}

    answer: dict[str, Any] = {"type": "assistant", "message": {"id": "msg_1", "model": "m"}}
    records = [
        record("a", None),
        record("b", "a", content=[call("t1")], **answer),
        record("c", "b", content=[result("t1")]),
        record("d", "c", content=[call("t2")], **answer),
        record("e", "d", content=[result("t2")]),
        record("f", "e", content=[{"type": "text", "text": "done"}], **answer),
        record("g", "f", content="thanks"),
    ]
    (taken,) = take(store, b"\n".join(map(orjson.dumps, records))).conversations

    said = [
        (entry["role"], entry["content"], entry.get("parent"))
        for entry in store.document(taken.id)["history"]
    ]
    assert said == [
        ("user", "a", None),
        ("assistant", "done", None),
        ("tool", "result of t1", None),
        ("tool", "result of t2", None),
        ("user", "thanks", None),
    ]
    out = BytesIO()
    store.export([taken.id], out, format="claude-code")
    assert [one["uuid"] for one in lines(out.getvalue())] == [*"abcdefg"]
    (again,) = take(store, out.getvalue()).conversations
    assert (again.state, again.id) == ("unchanged", taken.id)


def test_a_record_with_results_and_a_text_is_several_messages() -> None:
    results = [{"type": "tool_result", "tool_use_id": id, "content": id} for id in ("t1", "t2")]
    found = document(
        record("a", None, content=[*results, {"type": "text", "text": "stop"}]), record("b", "a")
    )

    said = [(entry["role"], entry["content"]) for entry in found["history"]]
    assert said == [("tool", "t1"), ("tool", "t2"), ("user", "stop"), ("user", "b")]
    assert all("parent" not in entry for entry in found["history"])


def test_what_the_program_needs_to_resume_a_foreign_conversation() -> None:
    entries = [
        {"role": "user", "content": "q", "id": "q"},
        {"role": "assistant", "content": "a", "id": "a"},
    ]
    whole = read_data(
        orjson.dumps({"messages": [{k: one[k] for k in ("role", "content")} for one in entries]})
    )[0]
    marker, *records = lines(written(whole, FORMAT)[0])

    assert marker["capsule"]["id"] == whole[0]["id"] == records[0]["sessionId"]
    assert [one.get("parentUuid") for one in records[:2]] == [None, records[0]["uuid"]]
    assert records[1]["message"]["content"] == [{"type": "text", "text": "a"}]
    assert all(one["timestamp"] and one["cwd"] and one["version"] for one in records[:2])
    assert records[-1]["type"] == "custom-title"


@pytest.mark.parametrize(
    ("more", "title"),
    [
        ([{"content": "Fix it"}], "Fix it"),
        ([{"type": "assistant", "content": [{"type": "text", "text": "Done."}]}], "Done."),
        (
            [{"type": "summary", "summary": "[Request interrupted by user]", "leafUuid": "a"}],
            "claude-code 2026-01-02",
        ),
        ([], "claude-code 2026-01-02"),
    ],
)
def test_a_session_that_was_interrupted_at_once_has_another_title(
    more: list[dict[str, Any]], title: str
) -> None:
    stopped = [{"type": "text", "text": "[Request interrupted by user]"}]
    found = document(
        record("a", None, content=stopped), *(record("b", "a", **fields) for fields in more)
    )

    assert found["title"] == title


def foreign(*entries: dict[str, Any], **head: Any) -> dict[str, Any]:
    """A conversation that was made here."""
    history = [
        {"timestamp": STAMP, "id": f"m{place}", **entry} for place, entry in enumerate(entries)
    ]
    draft = Draft(
        {"id": "here", "title": "T", "createdAt": STAMP, "updatedAt": STAMP, **head},
        history,
        is_own=True,
    )
    return document_of(draft, "capsule", STAMP, lambda reason, id: None, Shelf().keep)


def test_a_call_without_a_result_gets_one_so_that_its_answer_is_resumed_and_no_import_takes_it() -> (
    None
):
    calls = [{"id": id, "name": "Bash", "arguments": {}} for id in ("t1", "t2")]
    made = foreign(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look.", "toolCalls": calls},
        {"role": "tool", "content": "one", "toolCallId": "t1"},
        {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "I look again.", "toolCalls": [calls[0] | {"id": "t3"}]},
    )
    (data,) = written([made], FORMAT)

    said = [
        (one["uuid"], one["parentUuid"], one["message"]["content"])
        for one in lines(data)
        if "message" in one
    ]
    fillers = [
        (uuid, parent, content[0])
        for uuid, parent, content in said
        if "not recorded" in str(content)
    ]
    assert [block["tool_use_id"] for _, _, block in fillers] == ["t2", "t3"]
    assert [parent for _, parent, _ in fillers] == [said[1][0], said[-2][0]]
    assert said[3][1] == fillers[0][0]
    assert [parent for _, parent, _ in said] == [None, *(uuid for uuid, _, _ in said[:-1])]
    assert changed_by_import(made, data, FORMAT) == []


def test_an_open_call_at_the_end_of_the_active_branch_is_resumed_too() -> None:
    call = {"id": "t1", "name": "Bash", "arguments": {}}
    made = foreign(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "I look.", "toolCalls": [call]},
        {"role": "user", "content": "other", "parent": "m0"},
        metadata={"currentNode": "m1"},
    )
    (data,) = written([made], FORMAT)

    *_, leaf = [one["leafUuid"] for one in lines(data) if one["type"] == "last-prompt"]
    (filler,) = [one for one in lines(data) if "not recorded" in str(one.get("message"))]
    assert filler["uuid"] == leaf
    assert changed_by_import(made, data, FORMAT) == []


def test_a_call_in_a_record_that_is_no_answer_is_written_back_and_gets_no_result() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "Bash", "input": {}}
    imported = document(record("a", None, content=[call]), record("b", "a", type="assistant"))
    (data,) = written([imported], FORMAT)

    messages = [(one["uuid"], one["message"]["content"]) for one in lines(data)]
    assert messages == [("a", [call]), ("b", "b")]


@pytest.mark.parametrize("format", ["claude-code", "codex"])
def test_calls_are_written_as_the_models_accept_them_and_no_import_takes_the_changes(
    format: str,
) -> None:
    calls = [
        {"id": "call:1|x", "name": "mcp.read file", "arguments": "no JSON"},
        {"name": "", "arguments": '{"a": 1}'},
        {"id": "é" * 70, "name": "n" * 99, "arguments": [1]},
        {"id": "toolu_1", "name": "Bash", "arguments": {"command": "ls"}},
    ]
    results = [
        {"role": "tool", "content": "r", "toolCallId": id}
        for id in ("call:1|x", "é" * 70, "toolu_1")
    ]
    made = foreign(
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "", "toolCalls": calls},
        *results,
    )
    (data,) = written([made], formats()[format])

    def objects(value: Any) -> Iterator[dict[str, Any]]:
        if isinstance(value, dict):
            yield value
        for inner in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            yield from objects(inner)

    records = [
        {key: value for key, value in one.items() if key != "capsule"} for one in lines(data)
    ]
    named = [one for one in objects(records) if one.get("type") in ("tool_use", "function_call")]
    ids = [one.get("call_id") or one["id"] for one in named]
    answered = [
        one.get("tool_use_id") or one.get("call_id") for one in objects(records) if one not in named
    ]
    arguments = [
        orjson.loads(one["arguments"]) if "arguments" in one else one["input"] for one in named
    ]
    assert all(
        re.fullmatch("[A-Za-z0-9_-]{1,64}", text)
        for text in [*ids, *(one["name"] for one in named)]
    )
    assert (ids[3], named[3]["name"]) == ("toolu_1", "Bash")
    assert {ids[0], *ids[2:]} <= {*answered}
    assert arguments == [{"input": "no JSON"}, {"a": 1}, {"input": [1]}, {"command": "ls"}]
    assert changed_by_import(made, data, formats()[format]) == []


def test_a_session_that_goes_to_another_program_keeps_the_folder_of_its_project() -> None:
    (ours, _), _ = read(SITE)
    (theirs,), _ = read(DATA / "codex" / "shell")
    folder, other = "/home/dev/site.v2", "/home/dev/api"

    (rollout,) = written([ours], formats()["codex"])
    assert lines(rollout)[0]["payload"]["cwd"] == folder
    (session,) = written([theirs], FORMAT)
    assert {one["cwd"] for one in lines(session) if "message" in one} == {other}
    assert name_of(draft_of(theirs, "claude-code")).startswith("-home-dev-api/")
    assert changed_by_import(theirs, session, FORMAT) == []


@pytest.mark.parametrize(
    ("folder", "key"),
    [
        ("/home/dev/site.v2", "-home-dev-site-v2"),
        ("/" + "x" * 199, "-" + "x" * 199),
        # Claude Code 2.1.197 gave these names.
        (
            "/tmp/cc/" + "x" * 120 + "/" + "yé😀" * 30,
            "-tmp-cc-" + "x" * 120 + "-" + "y---" * 17 + "y--" + "-jqa1k1",
        ),
    ],
)
def test_the_folder_of_a_project_has_the_name_that_the_program_gives_it(
    folder: str, key: str
) -> None:
    made = foreign({"role": "user", "content": "q"}, metadata={"source": {"cwd": folder}})
    assert name_of(draft_of(made, "claude-code")).partition("/")[0] == key


def test_what_is_odd_about_a_message_is_told_by_the_line_of_its_record() -> None:
    _, problems = read(DATA / "claude-code" / "damaged-many")

    lines = {
        problem.reason.split(" ")[0]: problem.line
        for problem in problems.first
        if "message" in problem.reason
    }
    assert lines == {"a": 7, "two": 8, "message": 4, "messages": 5}


@pytest.mark.parametrize("path", ["s1.jsonl", "s1/subagents/agent-a.jsonl"])
def test_a_result_that_was_moved_out_of_the_transcript_is_attached(
    tmp_path: Path, path: str
) -> None:
    said = (
        "<persisted-output>\nOutput too large. Full output saved to: "
        "C:\\s1\\tool-results\\{}.txt\n\nPreview:\nline 1"
    )
    blocks = [
        {"type": "tool_result", "tool_use_id": name, "content": said.format(name)} for name in "bc"
    ]
    results = [record(f"r{n}", None, content=[block]) for n, block in enumerate(blocks)]
    for file, data in (
        (path, b"\n".join(map(orjson.dumps, results))),
        ("s1/tool-results/b.txt", b"line 1\nline 2"),
    ):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(data)
    shelf = Shelf()
    (moved,), problems = read(tmp_path / path, shelf)

    (attached,) = moved["history"][0]["attachments"]
    assert shelf.files[attached["sha256"]] == b"line 1\nline 2"
    assert [(one.line, "c.txt is missing" in one.reason) for one in problems.first] == [(2, True)]
    (data,) = written([moved], FORMAT, shelf)
    assert changed_by_import(moved, data, FORMAT, shelf) == []
