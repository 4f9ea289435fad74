"""What is special about the exports of Grok and the prompts of Google AI Studio."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transfer.exchange import DATA, Shelf, read, read_data


def test_the_responses_of_grok_are_a_tree_with_the_files_beside_the_export() -> None:
    shelf = Shelf()
    (document,), _ = read(DATA / "grok/export", shelf)
    asked, noon, exact = document["history"]

    assert [asked["role"], noon["role"], exact["role"]] == ["user", "assistant", "assistant"]
    assert exact["parent"] == asked["id"]
    assert exact["reasoning"] == "The file says so."
    assert list(shelf.files.values()) == [b"tide,height\n14:05,6.2\n"]


@pytest.mark.parametrize("id", ["**x", "y" * 300, "a/../../x"])
def test_a_file_of_grok_whose_id_is_no_name_of_a_file_takes_no_conversation_away(
    tmp_path: Path, id: str
) -> None:
    data = (DATA / "grok/export/prod-grok-backend.json").read_text("utf-8")
    (tmp_path / "export.json").write_text(data.replace('"gone"', f'"{id}"'), "utf-8")

    (document,), problems = read(tmp_path / "export.json")
    assert document["history"][0]["attachments"][1]["reference"] == id
    assert not problems.first


def test_a_thought_in_ai_studio_belongs_to_the_answer_after_it() -> None:
    (document,), _ = read(DATA / "ai-studio/Name a boat")

    said = [
        (entry["role"], entry["content"], entry.get("reasoning"))
        for entry in document["history"][3:]
    ]
    assert said[0] == ("assistant", "Blue Whale", "It is **blue**.")
    assert said[1:] == [("assistant", "", "Only a thought."), ("user", "And another?", None)]
    assert (document["title"], document["context"]["fullContext"]) == ("Name a boat", "Be short.")


def test_a_chat_of_ai_studio_that_goes_on_is_the_same_conversation_and_a_branch_of_it_another() -> (
    None
):
    data = (DATA / "ai-studio/Name a boat").read_bytes()
    more = data.replace(b'"And another?"', b'"And one more?"')
    branch = more.replace(
        b'"isThought": true}', b'"isThought": true, "branchParent": {"promptId": "prompts/1"}}'
    )

    ids = [read_data(one)[0][0]["id"] for one in (data, more, branch)]
    assert (ids[0] == ids[1], ids[1] == ids[2]) == (True, False)
