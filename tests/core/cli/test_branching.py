"""Branches on the command line: `switch`, `regenerate`, `prune`, `fork`; what other commands show
and do of them.
"""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from capsule import Store


def talk(capsule: Any) -> str:
    """question - one - more, and beside one: two, which is active."""
    id = capsule.new("A plan", "--message", "question")
    capsule("append", id, "one", "--role", "assistant")
    capsule("append", id, "more")
    capsule("branch", "regenerate", id, "two", "--which", "@1")
    return str(id)


def shown(capsule: Any, id: str, *words: str) -> list[tuple[str, str]]:
    """The first line of each message, from its place on, and its text."""
    text = capsule("show", id, *words).stdout
    return re.findall(r"  (@\d+.*)\n(.*)", text)


def test_show_shows_the_active_branch_and_which_of_how_many_each_message_is(capsule: Any) -> None:
    id = talk(capsule)
    assert shown(capsule, id) == [("@0", "question"), ("@3  2/2", "two")]
    assert shown(capsule, id, "--last", "1") == [("@3  2/2", "two")]
    assert shown(capsule, id, "--around", "@2", "-C", "1") == [("@1  1/2", "one"), ("@2", "more")]
    assert [message["content"] for message in capsule.json("show", id, "--last", "9")] == [
        "question",
        "two",
    ]
    assert len(capsule.json("show", id)["history"]) == 4
    assert "Z, 2/2\n\ntwo" in capsule("show", id, "--markdown").stdout
    assert "@3  2/2" in capsule.plain("show", id)


def test_show_all_prints_every_branch_and_branch_list_draws_them(capsule: Any) -> None:
    id = talk(capsule)
    assert shown(capsule, id, "--all") == [
        ("@0", "question"), ("@1  1/2", "one"), ("@2", "more"), ("@3  2/2, answers @0", "two"),
    ]  # fmt: skip
    assert capsule("branch", "list", id).stdout.splitlines() == [
        "* @0 user: question", "  +- @1 assistant 1/2: one", "  |  @2 user: more", ("* +- @3 "
                                                                                   "assistant "
                                                                                   "2/2: two"),
    ]  # fmt: skip
    tree = capsule.json("branch", "list", id)
    assert [(one["at"], one["number"], one["count"], one["active"], one["leaf"]) for one in tree] == [
        (0, 1, 1, True, False), (1, 1, 2, False, False), (2, 1, 1, False, True), (3, 2, 2, True, True),
    ]  # fmt: skip
    assert tree[3]["parent"] == tree[0]["id"] and tree[0]["parent"] is None


def test_messages_that_answer_each_other_in_a_circle_are_drawn(capsule: Any) -> None:
    id = talk(capsule)
    document = json.loads(capsule.file(id).read_text("utf-8"))
    document["history"][0]["parent"] = document["history"][3]["id"]
    capsule.file(id).write_text(json.dumps(document), "utf-8")
    assert (
        len(capsule("branch", "list", id).stdout.splitlines()) == 4 and len(shown(capsule, id)) == 2
    )


def test_switch_goes_to_a_message_or_to_the_next_and_the_previous_one(capsule: Any) -> None:
    id = talk(capsule)
    assert "1 of 2" in capsule("branch", "switch", id, "--previous").stdout
    assert [text for _, text in shown(capsule, id)] == ["question", "one", "more"]
    told = capsule.json("branch", "switch", id, "--next")
    assert (told["number"], told["count"], told["changed"]) == (2, 2, True)
    assert told["message"] == told["leaf"] == capsule.history(id)[3]["id"]
    assert capsule.json("branch", "switch", id, "@3")["changed"] is False
    assert "it is 2 of 2" in capsule("branch", "switch", id, "@3", "--next", expect=2).stderr
    for wrong in ((), ("--next", "--previous"), ("@1", "--next", "--previous")):
        capsule("branch", "switch", id, *wrong, expect=2)
    capsule("branch", "switch", id, "@9", expect=3)


def test_an_append_goes_on_where_it_is_told(capsule: Any) -> None:
    id = talk(capsule)
    for parent in (capsule.history(id)[2]["id"], "@2"):
        capsule("append", id, "instead", "--parent", parent)
        assert capsule.history(id)[-1]["parent"] == capsule.history(id)[2]["id"]
    capsule("append", id, "anew", "--parent", "none")
    assert capsule.history(id)[-1]["parent"] is None
    assert (
        "is not the id of a message"
        in capsule("append", id, "x", "--parent", "0" * 36, expect=2).stderr
    )
    capsule("append", id, "x", "--parent", "nobody", expect=3)
    capsule("append", id, "--jsonl", "--parent", "@1", expect=2)


def test_regenerate_gives_the_message_to_answer_or_puts_the_answer_beside(capsule: Any) -> None:
    id = talk(capsule)
    before = capsule.file(id).read_bytes()
    parent = capsule("branch", "regenerate", id).stdout.strip()
    assert parent == capsule.history(id)[0]["id"] and capsule.file(id).read_bytes() == before
    assert capsule.json("branch", "regenerate", id) == {
        "message": capsule.history(id)[3]["id"],
        "parent": parent,
    }
    capsule("branch", "regenerate", id, "-", "--model", "m-3", "--from", "ada", input="three\n")
    last = capsule.history(id)[-1]
    assert (last["content"], last["parent"], last["model"], last["from"]) == (
        "three",
        parent,
        "m-3",
        "ada",
    )
    capsule("branch", "regenerate", capsule.new("A"), expect=3)


def test_edit_beside_leaves_a_message_and_puts_the_new_text_beside_it(
    capsule: Any, editor: Any
) -> None:
    id = talk(capsule)
    told = capsule.json("edit", id, "--which", "@0", "--beside", "other question")
    assert told["changed"] and told["at"] == 4
    editor('printf "third" > "$1"')
    assert "added" in capsule.terminal("edit", id, "--which", "@0", "--beside")
    assert (
        capsule.history(id)[0]["content"] == "question" and "editedAt" not in capsule.history(id)[0]
    )


def test_a_message_goes_with_what_answers_it_after_that_was_said(capsule: Any) -> None:
    id = talk(capsule)
    before, said = capsule.file(id).read_bytes(), "2 messages (1 assistant, 1 user)"
    assert f"{said} would be removed" in capsule("delete", id, "--which", "@1", "--dry-run").stdout
    assert capsule.json("delete", id, "--which", "@1", "--dry-run")["dryRun"] is True
    assert said in capsule.terminal("delete", id, "--which", "@1", typed="n\n", expect=1)
    assert capsule.file(id).read_bytes() == before
    assert capsule.json("delete", id, "--which", "@1", "--keep-children", "--yes")["roles"] == {
        "assistant": 1
    }
    assert [message["content"] for message in capsule.history(id)] == ["question", "more", "two"]
    one = ("--which", "@0")
    for wrong in (
        (id, id, *one),
        (id, "--keep-children"),
        ("--all", *one),
        (id, *one, "--with-forks"),
    ):
        capsule("delete", *wrong, expect=2)


@pytest.mark.parametrize("words", [("delete", "ID", "--which", "@1"), ("branch", "trim", "ID")])
def test_a_message_that_came_while_a_person_was_asked_stays_and_so_do_the_others(
    capsule: Any, words: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = talk(capsule)
    for message in ("@1", "@3"):
        capsule("branch", "switch", id, message)
    parent = capsule.history(id)[1]["id"]

    def agrees(question: str, **settings: Any) -> bool:
        with Store.open(capsule.root) as store:
            store.append(id, content="wait", parent=parent)
        return True

    monkeypatch.setattr("typer.confirm", agrees)
    screen = capsule.terminal(*(id if word == "ID" else word for word in words), expect=2)
    assert "was changed meanwhile: 3 messages" in screen
    assert [message["content"] for message in capsule.history(id)] == [
        "question",
        "one",
        "more",
        "two",
        "wait",
    ]


def test_trim_drops_every_branch_but_the_active_one(capsule: Any) -> None:
    id = talk(capsule)
    assert (
        "2 messages (1 assistant, 1 user) would be removed"
        in capsule("branch", "trim", id, "--dry-run").stdout
    )
    assert "nothing was changed" in capsule.terminal("branch", "trim", id, typed="n\n", expect=1)
    assert "--yes" in capsule("branch", "trim", id, expect=2).stderr
    assert capsule.json("branch", "trim", id, "--yes")["roles"] == {"assistant": 1, "user": 1}
    assert shown(capsule, id) == [("@0", "question"), ("@1", "two")]
    assert "0 messages removed" in capsule.terminal("branch", "trim", id)


def test_fork_makes_a_conversation_of_a_branch(capsule: Any) -> None:
    id = talk(capsule)
    fork = capsule("branch", "fork", id[:8]).stdout.strip()
    assert [text for _, text in shown(capsule, fork)] == ["question", "two"]
    told = capsule.json(
        "branch", "fork", id, "--up-to", "@1", "--title", "Mine", "--without-attachments"
    )
    assert (told["title"], told["forkedFrom"]) == ("Mine", id)
    assert [message["content"] for message in capsule.history(told["id"])] == ["question", "one"]
    assert {head["id"] for head in capsule.json("list") if head["forkedFrom"] == id} == {
        fork,
        told["id"],
    }


def test_delete_takes_forks_along_only_when_asked(capsule: Any) -> None:
    id = talk(capsule)
    fork = capsule.json("branch", "fork", id)["id"]
    planned = capsule("delete", id, "--with-forks", "--dry-run").stdout
    assert planned.count("would go to the trash") == 2 and capsule.file(id).exists()
    assert [one["id"] for one in capsule.json("delete", id, fork, "--with-forks")] == [fork, id]
    capsule("delete", capsule.new("A"), "--all", "--with-forks", expect=2)
