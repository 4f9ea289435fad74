"""`delete`, `trash`, `restore`, `purge`."""

from __future__ import annotations

import re
from typing import Any


def test_what_is_deleted_comes_back_as_it_was(capsule: Any) -> None:
    id = capsule.new("A plan", "--message", "hello")
    before = capsule.file(id).read_bytes()
    answer = capsule("delete", id[:6])
    assert f"capsule restore {id}" in answer.stdout
    assert not capsule.file(id).exists()
    capsule("show", id, expect=3)
    assert [(item["id"], item["title"]) for item in capsule.json("trash", "list")] == [
        (id, "A plan")
    ]
    assert capsule("trash", "list").stdout.split("\t")[0] == id
    assert "A plan" in capsule.terminal("trash", "list")
    assert capsule.json("restore", id[:6])["id"] == id
    assert capsule.file(id).read_bytes() == before
    assert capsule.json("trash", "list") == []


def test_several_go_at_once_and_a_mistyped_one_lets_all_stay(capsule: Any) -> None:
    ids = [capsule.new(name) for name in "ABC"]
    capsule("delete", ids[0], "nobody-here", expect=3)
    assert len(capsule.json("list")) == 3
    told = capsule.json("delete", ids[0], ids[1], "@last", ids[0])
    assert [one["id"] for one in told] == ids
    assert told[0]["undo"] == f"capsule restore {ids[0]}"
    assert capsule.json("list") == []


def test_at_a_terminal_the_person_is_asked_unless_yes(capsule: Any) -> None:
    id = capsule.new("A plan")
    screen = capsule.terminal("delete", id, typed="n\n", expect=1)
    assert "A plan" in screen and "nothing was changed" in screen and capsule.file(id).exists()
    capsule.terminal("delete", id, typed="y\n")
    assert not capsule.file(id).exists()
    assert "Remove 1" in capsule.terminal("trash", "purge", typed="n\n", expect=1)
    capsule("restore", id)
    capsule.terminal("delete", id, "--yes")
    capsule.terminal("trash", "purge", "-y")
    assert capsule.json("trash", "list") == []


def test_restore_takes_what_was_deleted_last_and_names_what_is_not_there(capsule: Any) -> None:
    for id in ("abcd-1", "abcd-2"):
        capsule.new("T", "--id", id)
        capsule("delete", id)
    assert "abcd-1, abcd-2" in capsule("restore", "abcd", expect=2).stderr
    assert "capsule trash list" in capsule("restore", "nobody", expect=3).stderr
    assert capsule.json("restore", "@last")["id"] == "abcd-2"


def test_purge_removes_what_is_old_enough_and_says_how_many(capsule: Any) -> None:
    capsule("delete", capsule.new("A"), capsule.new("B"))
    for age in ["30", "x", "-1d", "1.5d", "99999999999w"]:
        assert "--older-than" in capsule("trash", "purge", "--older-than", age, expect=2).stderr
    assert (
        capsule("trash", "purge", "--older-than", "30d", "--yes").stdout
        == "0 removed permanently\n"
    )
    assert capsule("trash", "purge", "--yes").stdout == "2 removed permanently\n"
    assert capsule.json("trash", "list") == [] and capsule.json("trash", "purge", "--yes") == {
        "purged": []
    }


def test_what_one_command_does_not_bring_back_wants_yes_where_nobody_can_be_asked(
    capsule: Any,
) -> None:
    id = capsule.new("A plan", "--message", "hello")
    capsule("append", id, "another")
    capsule("delete", capsule.new("B"))
    before = capsule.file(id).read_bytes()
    for words in (
        ("trash", "purge"),
        ("delete", "--all"),
        ("delete", id, "--which", "@0"),
        ("trash", "purge", "--older-than", "0s"),
    ):
        assert "--yes" in capsule(*words, expect=2).stderr
    said = capsule("delete", id, "--which", "@0", expect=2).stderr
    assert "2 messages" in said and "all of them" in said
    assert capsule.file(id).read_bytes() == before and len(capsule.json("trash", "list")) == 1


def test_messages_in_the_trash_are_listed_and_come_back_the_latest_first(capsule: Any) -> None:
    id = capsule.new("A plan", "--message", "hello")
    capsule("edit", id, "--which", "@0", "hello there")
    told = capsule.json("delete", id, "--which", "@0", "--yes")
    assert told["undo"] == f"capsule restore {id}"
    listed = capsule.json("trash", "list")
    assert [(one["reason"], len(one["messages"])) for one in listed] == [
        ("deleted", 1),
        ("edited", 1),
    ]
    assert "1 message deleted in 'A plan'" in capsule("trash", "list").stdout
    assert capsule.json("restore", id[:6])["restored"] == told["removed"]
    assert capsule("restore", id).stdout == f"{id}: 1 message restored in 'A plan'\n"
    capsule("restore", id, "--deleted", listed[0]["deletedAt"], expect=3)


def test_all_go_to_the_trash_when_a_script_says_yes(capsule: Any) -> None:
    ids = [capsule.new("A"), capsule.new("B", "--message", "hello")]
    capsule("set", "--archive", ids[0])
    capsule.file("broken-1").write_text("oops", encoding="utf-8")
    assert "add --yes" in capsule("delete", "--all", expect=2).stderr
    capsule("delete", "--all", "--yes", ids[0], expect=2)
    capsule("delete", expect=2)
    answer = capsule("delete", "--all", "--yes")
    assert answer.stdout == "3 conversations are in the trash; undo one: capsule restore ID\n"
    capsule("restore", ids[1])
    told = capsule.json("delete", "--all", "--yes")
    assert [(one["id"], one["undo"]) for one in told] == [(ids[1], f"capsule restore {ids[1]}")]
    assert capsule("delete", "--all").stdout == "0 conversations are in the trash\n"


def test_a_locked_one_stays_is_named_and_holds_up_no_other(capsule: Any) -> None:
    held, other = capsule.new("Held"), capsule.new("Other")
    capsule("lock", "take", held, "--instance", "desk")
    answer = capsule("delete", "--all", "--yes", expect=4)
    assert (
        answer.stdout == "1 conversation is in the trash; undo one: capsule restore ID; 1 stayed\n"
    )
    assert held in answer.stderr
    assert [item["id"] for item in capsule.json("trash", "list")] == [other]
    (told,) = capsule.json("delete", "--all", "--yes", expect=4)
    assert told["id"] == held and "is locked by" in told["error"]
    capsule("delete", "--all", "--yes", "--instance", "desk")
    assert capsule.json("list") == []


def test_a_file_whose_name_is_no_id_stays_and_the_way_out_is_said(capsule: Any) -> None:
    capsule.new("A")
    capsule.file("no id").write_text("{}", encoding="utf-8")
    answer = capsule("delete", "--all", "--yes", expect=2)
    assert (
        answer.stdout == "1 conversation is in the trash; undo one: capsule restore ID; 1 stayed\n"
    )
    assert f"{capsule.file('no id')}: 'no id' is not an id" in answer.stderr
    assert "rename the file, or move it out of the way" in answer.stderr


def test_at_a_terminal_all_go_only_when_the_person_says_yes_twice(capsule: Any) -> None:
    capsule.new("A"), capsule.new("B")
    for typed in ("n\n", "y\nn\n"):
        assert "nothing was changed" in capsule.terminal("delete", "--all", typed=typed, expect=1)
        assert len(capsule.json("list")) == 2
    screen = capsule.terminal("delete", "--all", typed="y\ny\n")
    assert "2 of them" in screen and "Really all 2?" in screen and capsule.json("list") == []


def test_a_time_is_taken_as_the_trash_shows_it_on_a_terminal(capsule: Any) -> None:
    id = capsule.new("A")
    capsule("delete", id)
    shown = re.search(
        r"\d{4}-\d\d-\d\d \d\d:\d\d\+05:45", capsule.terminal("trash", "list", TZ="Asia/Kathmandu")
    )
    capsule("restore", id, "--deleted", "2020-01-01 10:00+05:45", expect=3)
    capsule("restore", id, "--deleted", shown[0])
    assert capsule.file(id).is_file()
