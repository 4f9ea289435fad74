"""What is special about Claude.ai's export."""

from __future__ import annotations

from tests.transfer.exchange import DATA, read

EXPORT = DATA / "claude-ai"


def test_an_answer_with_a_call_and_a_result_is_several_messages_and_its_answers_follow_the_last() -> (
    None
):
    documents, _ = read(EXPORT / "export")
    document = next(document for document in documents if document["history"])
    question, thought, result, answer, other, thanks = document["history"]

    assert question["attachments"][0]["text"] == "budget 100 €"
    assert (thought["reasoning"], thought["content"]) == (
        "museum, lunch",
        "Morning: Musée des Confluences.",
    )
    assert thought["toolCalls"] == [
        {"id": "toolu_1", "name": "web_search", "arguments": {"query": "bouchon lyon"}}
    ]
    assert (result["role"], result["toolCallId"], result["content"]) == (
        "tool",
        "toolu_1",
        "Chez Hugon",
    )
    assert answer["content"] == "Lunch: a bouchon."
    assert other["parent"] == question["id"]
    assert "parent" not in thanks


def test_a_project_is_a_context() -> None:
    documents, _ = read(EXPORT / "export")

    (project,) = [document for document in documents if not document["history"]]
    assert project["title"] == "Travel"
    assert project["context"]["fullContext"] == "Be brief.\n\n--- prefs.md ---\nvegetarian"


def test_a_result_without_ids_belongs_to_the_call_before_it_of_that_name() -> None:
    (document, *_), problems = read(EXPORT / "damaged.json")

    call, result = [
        entry for entry in document["history"] if "toolCalls" in entry or entry["role"] == "tool"
    ]
    assert call["toolCalls"][0]["name"] == "repl"
    assert result["content"] == "2"
    assert {problem.line for problem in problems.first} >= {2}
