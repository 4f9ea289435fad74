"""A format claims content: a file whose texts it does not find only looks like it."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from capsule import Store
from tests.transfer.exchange import STAMP, read_data, take

SESSION = "89c9a691-b97b-5e87-b73c-beef665b430c"


def deepseek() -> bytes:
    """A conversation as DeepSeek exports it: the tree of ChatGPT, with other messages in it."""

    def node(id: str, parent: str | None, kind: str = "", text: str = "") -> dict[str, Any]:
        message = {"files": [], "model": "deepseek-chat", "inserted_at": STAMP}
        message |= {"fragments": [{"type": kind, "content": text}]}
        return {"id": id, "parent": parent, "children": [], "message": message if kind else None}

    nodes = [
        node("root", None),
        node("1", "root", "REQUEST", "How do I cook rice?"),
        node("2", "1", "RESPONSE", "Wash it first."),
    ]
    return orjson.dumps(
        [{"id": "d", "title": "Rice", "mapping": {one["id"]: one for one in nodes}}]
    )


def qwen() -> bytes:
    """A session of Qwen Code: the envelope of Claude Code, with the parts of Gemini in it."""
    texts = {"user": "How do I cook rice?", "assistant": "Wash it first."}
    records = [
        {
            "uuid": kind,
            "parentUuid": "user" if kind == "assistant" else None,
            "sessionId": SESSION,
            "timestamp": STAMP,
            "type": kind,
            "message": {"role": kind, "parts": [{"text": text}]},
        }
        for kind, text in texts.items()
    ]
    return b"\n".join(map(orjson.dumps, records))


def like_grok() -> bytes:
    responses = [{"sender": "human", "text": "How do I cook rice?"}]
    return orjson.dumps(
        {"conversations": [{"conversation": {"id": "g", "title": "Rice"}, "responses": responses}]}
    )


@pytest.mark.parametrize(
    ("data", "title"),
    [(deepseek(), "ChatGPT export"), (qwen(), "Claude Code")],
    ids=["deepseek", "qwen"],
)
def test_a_file_that_only_looks_known_is_told_and_makes_no_empty_conversation(
    store: Store, data: bytes, title: str
) -> None:
    report = take(store, data)

    assert store.ids() == report.conversations == []
    assert [
        reason
        for reason in reasons(report.problems.first)
        if reason.startswith(f"looks like {title}, but is not und")
    ]


def test_an_export_of_grok_with_other_responses_is_told(store: Store) -> None:
    report = take(store, like_grok())

    assert reasons(report.problems.first) == ["a response that is not an object"]


def reasons(problems: list[Any]) -> list[str]:
    return [problem.reason for problem in problems]


CLAUDE = {"uuid": "u", "parentUuid": None, "sessionId": SESSION, "timestamp": STAMP, "type": "user"}
CODEX = {"timestamp": STAMP, "type": "response_item"}
META = {"timestamp": STAMP, "type": "session_meta", "payload": {"id": SESSION, "timestamp": STAMP}}
TEXT = [{"type": "input_text", "text": "b"}]
GEMINI = {"id": "g", "timestamp": STAMP, "type": "user"}


def claude(text: str) -> dict[str, Any]:
    return CLAUDE | {"uuid": text, "message": {"role": "user", "content": text}}


def codex(text: str) -> dict[str, Any]:
    return CODEX | {
        "payload": {
            "type": "message",
            "role": "user",
            "content": [{"type": "input_text", "text": text}],
        }
    }


def chatgpt(id: str, message: dict[str, Any], key: str = "message") -> dict[str, Any]:
    return {
        "id": id,
        "parent": None,
        "children": [],
        key: {"id": id, "author": {"role": "user"}, **message},
    }


SOUND = {"create_time": 1760000000, "content": {"content_type": "text", "parts": ["a"]}}
#: Each with a key in which one bit is another one.
FLIPPED: dict[str, list[dict[str, Any]]] = {
    "claude-code content": [
        claude("a"),
        claude("c"),
        CLAUDE | {"message": {"role": "user", "conuent": "b"}},
    ],
    "claude-code type": [
        claude("a"),
        {("typd" if k == "type" else k): v for k, v in claude("b").items()},
    ],
    "claude-code block": [
        claude("a"),
        CLAUDE | {"message": {"role": "user", "content": [{"tyqe": "text"}]}},
    ],
    "codex payload": [
        META,
        codex("a"),
        CODEX | {"qayload": {"type": "message", "role": "user", "content": TEXT}},
    ],
    "codex type": [
        META,
        codex("a"),
        CODEX | {"payload": {"typd": "message", "role": "user", "content": TEXT}},
    ],
    "claude-code text": [
        claude("a"),
        CLAUDE | {"message": {"role": "user", "content": [{"type": "text", "texu": "b"}]}},
    ],
    "claude-code call": [
        claude("a"),
        CLAUDE | {"message": {"role": "user", "content": [{"type": "tool_use"}]}},
    ],
    "codex content": [
        META,
        codex("a"),
        CODEX | {"payload": {"type": "message", "role": "user", "conuent": TEXT}},
    ],
    "codex output": [
        META,
        codex("a"),
        CODEX | {"payload": {"type": "function_call_output", "call_id": "c"}},
    ],
    "gemini content": [{"sessionId": SESSION, "projectHash": "x"}, GEMINI | {"conuent": "b"}],
    "jsonl content": [
        {"messages": [{"role": "user", "content": "a"}, {"role": "user", "conuent": "b"}]}
    ],
    "sharegpt value": [
        {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "valud": "b"}]}
    ],
    "chatgpt message": [
        {"mapping": {"1": chatgpt("1", SOUND), "2": chatgpt("2", SOUND, key="messagd")}}
    ],
    "chatgpt content": [
        {"mapping": {"1": chatgpt("1", SOUND), "2": chatgpt("2", {"conuent": SOUND["content"]})}}
    ],
}


@pytest.mark.parametrize("records", FLIPPED.values(), ids=FLIPPED)
def test_a_flipped_bit_in_a_key_that_loses_a_message_is_told(records: list[dict[str, Any]]) -> None:
    _, problems = read_data(b"\n".join(map(orjson.dumps, records)))

    assert problems.count


STRAY = "two lost words"


def librechat(*content: Any, **fields: Any) -> dict[str, Any]:
    record = {"messageId": "m", "parentMessageId": None, "isCreatedByUser": False}
    message = record | {"createdAt": STAMP, "text": "", "content": [*content], **fields}
    return {"conversationId": "c", "title": "T", "messagesTree": [message]}


def opencode(part: dict[str, Any]) -> dict[str, Any]:
    info = {"id": "msg_1", "sessionID": "s", "role": "user", "time": {"created": 1760000000000}}
    parts = [{"id": "prt_1", "type": "text", "text": "sound"}, {"id": "prt_2", **part}]
    session = {"id": "s", "projectID": "p", "directory": "/d", "version": "1", "title": "T"}
    return {"info": session, "messages": [{"info": info, "parts": parts}]}


def open_webui(*output: Any) -> dict[str, Any]:
    message = {"id": "m", "role": "assistant", "content": "", "output": [*output]}
    history = {"currentId": "m", "messages": {"m": message | {"timestamp": 1760000000}}}
    return {"id": "c", "title": "T", "chat": {"title": "T", "history": history}}


def claude_ai(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "sound"}, part]
    message = {"uuid": "m", "sender": "assistant", "created_at": STAMP, "content": content}
    return {"uuid": "c", "name": "T", "created_at": STAMP, "chat_messages": [message]}


def specstory(part: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": "sound"}, part]
    message = {"id": "m", "role": "agent", "timestamp": STAMP, "content": content}
    exchanges = [{"exchangeId": "0", "messages": [message]}]
    record = {"schemaVersion": "1.0", "provider": {"id": "x"}, "sessionId": SESSION}
    return record | {"createdAt": STAMP, "exchanges": exchanges}


def gemini(*result: Any) -> list[dict[str, Any]]:
    call = {"id": "c", "name": "f", "args": {}, "status": "success", "result": [*result]}
    record = GEMINI | {"type": "gemini", "content": "sound", "toolCalls": [call]}
    return [{"sessionId": "s", "projectHash": "x"}, record]


REPLY = {"messageId": "n", "parentMessageId": "m", "isCreatedByUser": True, "text": STRAY}
OUTPUT = {"type": "message", "content": [{"type": "output_text", "text": "sound"}]}
LOST_OUTPUT = {"type": "messagd", "content": [{"type": "output_text", "text": STRAY}]}
RESPONSE = {"id": "c", "name": "f", "response": {"output": STRAY}}
SOUND_PART = {"type": "text", "text": "sound"}
#: Each with a key or a kind of a part in which one bit is another one.
LOST_PARTS: dict[str, list[dict[str, Any]]] = {
    "librechat children": [librechat(SOUND_PART, childrdn=[REPLY])],
    "librechat kind": [librechat(SOUND_PART, {"type": "texu", "text": STRAY})],
    "librechat text": [librechat(SOUND_PART, {"type": "text", "texu": STRAY})],
    "opencode kind": [opencode({"type": "texu", "text": STRAY})],
    "opencode text": [opencode({"type": "text", "texu": STRAY})],
    "opencode type": [opencode({"typd": "text", "text": STRAY})],
    "open-webui kind": [open_webui(OUTPUT, LOST_OUTPUT)],
    "claude-ai kind": [claude_ai({"type": "texu", "text": STRAY})],
    "claude-ai text": [claude_ai({"type": "text", "texu": STRAY})],
    "claude-ai type": [claude_ai({"typd": "text", "text": STRAY})],
    "specstory kind": [specstory({"type": "texu", "text": STRAY})],
    "specstory text": [specstory({"type": "text", "texu": STRAY})],
    "gemini result": gemini({"functionRespqnse": RESPONSE}),
    "gemini text": gemini({"texu": STRAY}),
}


@pytest.mark.parametrize("records", LOST_PARTS.values(), ids=LOST_PARTS)
def test_a_flipped_bit_that_loses_a_part_of_a_message_is_reported(
    records: list[dict[str, Any]],
) -> None:
    documents, problems = read_data(b"\n".join(map(orjson.dumps, records)))

    assert documents
    assert len(problems.first) == 1


def test_a_sound_part_of_an_unknown_type_without_a_text_is_no_damage() -> None:
    call = {"type": "tool_use", "id": "t", "name": "f", "input": {}, "message": "Fetching a page"}
    records = [
        claude_ai(call),
        opencode({"type": "subtask", "prompt": "look for it", "description": "a task"}),
        opencode({"type": "text", "text": "read this", "synthetic": True}),
        librechat(SOUND_PART, {"type": "agent_update", "agent_update": {"agentId": "an agent"}}),
    ]

    for record in records:
        documents, problems = read_data(orjson.dumps(record))
        assert (len(documents), problems.first) == (1, [])


def test_a_sound_message_without_a_text_is_no_damage() -> None:
    context = {
        "content_type": "model_editable_context",
        "model_set_context": "",
        "repository": None,
    }
    silent = {"author": {"role": "assistant"}, "create_time": 1760000001, "content": context}
    silent["metadata"] = {"finished_text": "Thought for a while"}
    nodes = {"1": chatgpt("1", SOUND), "2": chatgpt("2", silent) | {"parent": "1"}}
    (document,), problems = read_data(orjson.dumps([{"id": "x", "title": "T", "mapping": nodes}]))

    assert problems.first == []
    assert [entry["content"] for entry in document["history"]] == ["a", ""]


def test_a_capsule_with_empty_messages_comes_back_whole() -> None:
    kept = {"source": {"note": "some words", "$absent": ["content"], "conuent": "b"}}
    entry = {"id": "m", "role": "user", "content": "", "timestamp": STAMP, "metadata": kept}
    head = {"id": "x", "title": "T", "version": "2.1", "createdAt": STAMP, "updatedAt": STAMP}
    documents, problems = read_data(
        orjson.dumps(head | {"metadata": {}, "context": {}, "history": [entry]})
    )

    assert len(documents) == 1
    assert problems.first == []
