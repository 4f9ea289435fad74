"""What is special about the rollouts of Codex."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capsule.transfer.drafts.conversion import draft_of
from capsule.transfer.registry import formats
from tests.transfer.exchange import (
    DATA,
    EXAMPLES,
    STAMP,
    Shelf,
    changed_by_import,
    read,
    read_data,
    written,
)

FORMAT = formats()["codex"]
name_of = FORMAT.file_name or str
ROLLBACK = DATA / "codex" / "rollback"
SESSION = "019a4ad6-de05-7181-a69c-f3fbb763a5a4"


def line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": STAMP, "type": kind, "payload": payload}


def said(role: str, text: str) -> dict[str, Any]:
    return line(
        "response_item", type="message", role=role, content=[{"type": "input_text", "text": text}]
    )


def event(kind: str, text: str) -> dict[str, Any]:
    return line("event_msg", type=kind, message=text)


def lines(data: bytes) -> list[dict[str, Any]]:
    return [orjson.loads(one) for one in data.splitlines()]


META = line(
    "session_meta",
    id=SESSION,
    timestamp=STAMP,
    cwd="/",
    originator="codex_exec",
    cli_version="0.95.0",
)


def history(*rest: dict[str, Any]) -> list[dict[str, Any]]:
    (found,), problems = read_data(b"\n".join(map(orjson.dumps, (META, *rest))))
    assert not problems.first
    entries: list[dict[str, Any]] = found["history"]
    return entries


@pytest.mark.parametrize(
    "path", [path for name, path in EXAMPLES if name == "codex"], ids=lambda path: path.name
)
def test_a_rollout_comes_back_line_for_line(path: Any) -> None:
    shelf = Shelf()
    documents, _ = read(path, shelf)
    (file,) = path.rglob("*.jsonl")

    assert lines(written(documents, FORMAT, shelf)[0]) == lines(file.read_bytes())


def test_what_was_undone_is_a_branch() -> None:
    (document,), _ = read(ROLLBACK)
    entries = {entry["content"]: entry for entry in document["history"]}

    assert entries["Right question"]["parent"] == entries["Renamed."]["id"]
    assert "parent" not in entries["Wrong question"]


@pytest.mark.parametrize("is_first", [True, False])
def test_what_both_streams_say_is_one_message(is_first: bool) -> None:
    question = [said("user", "q"), event("user_message", "q")]
    answer = [said("assistant", "a"), event("agent_message", "a")]
    turn = [*(question if is_first else question[::-1]), *(answer if is_first else answer[::-1])]

    entries = history(*turn, event("agent_message", "only on the screen"), *turn)
    assert [entry["content"] for entry in entries] == ["q", "a", "only on the screen", "q", "a"]


def test_the_items_of_an_answer_are_one_message_and_what_the_program_said_is_hidden() -> None:
    (document,), _ = read(ROLLBACK)
    made, _, answer, result = document["history"][:4]

    assert (made["role"], made["metadata"]["hidden"]) == ("system", True)
    assert answer["reasoning"] == "**Reading**"
    assert answer["toolCalls"][0] == {
        "id": "call_p",
        "name": "apply_patch",
        "arguments": "*** Begin Patch\n*** End Patch\n",
    }
    assert (result["toolCallId"], result["content"]) == ("call_p", "Success")
    assert document["history"][4]["metadata"]["usage"]["inputTokens"] == 500


def test_a_message_that_has_a_long_text_is_kept_once() -> None:
    text = "a text that is long enough " * 9
    (entry,) = history(said("user", text), event("user_message", text))

    assert orjson.dumps(entry).count(text.encode()) == 1


def test_the_oldest_rollouts_have_no_envelope() -> None:
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "q"}]}
    about = {"id": SESSION, "timestamp": STAMP, "instructions": None}

    (bare,), _ = read_data(b"\n".join(map(orjson.dumps, (about, {"record_type": "state"}, item))))
    (whole,), _ = read_data(orjson.dumps({"session": about, "items": [item]}))
    assert bare["id"] == whole["id"] and bare["history"] == whole["history"] != []


def test_what_the_program_needs_to_list_a_foreign_conversation() -> None:
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
    (document,), _ = read_data(orjson.dumps({"messages": messages}))
    meta, *rest = lines(written([document], FORMAT)[0])

    assert meta["payload"].keys() >= {
        "id",
        "timestamp",
        "cwd",
        "originator",
        "cli_version",
        "source",
    }
    kinds = [(one["type"], one["payload"]["type"]) for one in rest]
    items = [("response_item", "message")] * 2
    assert kinds == [
        items[0],
        ("event_msg", "user_message"),
        items[1],
        ("event_msg", "agent_message"),
    ]
    times = [one["timestamp"] for one in rest]
    assert times == sorted(set(times))
    name = name_of(draft_of(document, "codex"))
    assert name.endswith(f"{meta['payload']['id']}.jsonl")
    assert name.startswith(f"sessions/{document['createdAt'][:10].replace('-', '/')}/rollout-")


def test_a_foreign_conversation_with_branches_goes_on_in_the_program() -> None:
    (document, *_), _ = read(DATA / "chatgpt" / "modern")
    (rollout,) = written([document], FORMAT)
    assert changed_by_import(document, rollout, FORMAT) == []

    (new,) = changed_by_import(document, rollout + orjson.dumps(said("user", "go on")), FORMAT)
    assert new["content"] == "go on"
