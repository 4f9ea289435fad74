"""What is special about Gemini CLI's chats."""

from __future__ import annotations

from tests.transfer.exchange import DATA, read, read_data

CHATS = DATA / "gemini"
HEAD = (
    b'{"sessionId": "s", "projectHash": "p", "startTime": "2026-06-01T08:00:00Z", "kind": "main"}\n'
)


def test_a_repeated_record_replaces_the_former_and_its_results_are_messages_of_their_own() -> None:
    (_, document), _ = read(CHATS / "rewind")
    question, call, result, wrong, thanks = document["history"]

    assert document["title"] == "README question"
    assert (call["content"], call["reasoning"]) == ("A short intro.", "Reading: open the file")
    assert call["toolCalls"] == [
        {"id": "tc1", "name": "read_file", "arguments": {"path": "README.md"}}
    ]
    assert call["metadata"]["usage"]["reasoningTokens"] == 2
    assert (result["role"], result["toolCallId"], result["content"]) == ("tool", "tc1", "# App")
    assert (question["content"], wrong["content"]) == ("What is in README?", "wrong question")
    assert thanks["parent"] == result["id"]  # The wrong question stays, as a branch.


def test_a_checkpoint_begins_the_talk_anew_and_what_it_drops_stays_as_a_branch() -> None:
    (document, subagent), _ = read(CHATS / "checkpoint")
    said = {entry["content"]: entry for entry in document["history"]}

    look, dot, summary = said["Look at @logo.png"], said["A dot."], said["Summary so far: a dot."]
    assert look["attachments"][0]["size"]
    assert summary["parent"] == look["id"]
    assert dot.get("parent", look["id"]) == look["id"]
    assert said["Rate limit"]["role"] == "system"
    assert said["Rate limit"]["metadata"]["hidden"] is True
    assert subagent["metadata"]["sourceConversationId"] == document["id"]


def test_a_message_without_an_id_keeps_its_place() -> None:
    lines = [b'{"type": "user", "content": "a", "timestamp": "2026-06-01T08:00:01Z"}']
    lines += [b'{"id": "b", "type": "gemini", "content": "b", "timestamp": "2026-06-01T08:00:02Z"}']
    (document,), problems = read_data(HEAD + b"\n".join(lines))

    assert [entry["content"] for entry in document["history"]] == ["a", "b"]
    assert all("parent" not in entry for entry in document["history"])
    assert [problem.line for problem in problems.first] == [2]
