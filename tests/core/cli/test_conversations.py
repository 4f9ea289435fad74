"""`init`, `new`, `list`, and what changes a head."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len


def test_init_makes_a_store_once_and_overwrites_nothing(capsule: Any) -> None:
    settings = capsule.root / "capsule.toml"
    settings.write_text("# mine\n", encoding="utf-8")
    assert "already" in capsule("init", str(capsule.root)).stdout
    assert settings.read_text(encoding="utf-8") == "# mine\n"
    assert (capsule.root / "conversations").is_dir()
    assert (capsule.root / ".capsule" / ".gitignore").is_file()


def test_init_without_a_directory_takes_the_one_that_is_named_or_this_one(
    capsule: Any, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert capsule.json("init", "--store", str(tmp_path / "a"))["root"] == str(tmp_path / "a")
    (tmp_path / "b").mkdir()
    monkeypatch.chdir(tmp_path / "b")
    monkeypatch.setenv("CAPSULE_STORE", str(tmp_path / "c"))
    assert capsule.json("init")["root"] == str(tmp_path / "c")
    assert (tmp_path / "c" / "capsule.toml").is_file() and not list((tmp_path / "b").iterdir())
    monkeypatch.delenv("CAPSULE_STORE")
    made = capsule.json("init")
    assert str(tmp_path / "b" / "capsule.toml") in made["made"]


@pytest.mark.parametrize(
    "address",
    [
        " mysql://anna:{}@h/db",
        "Postgres:/anna:{}@h/db",
        "postgresql:/db?password={}",
        "postgresql+psycopg://anna:{}@h:x/db",
        "POSTGRESQL://anna:{}@h/db?schema=No",
    ],
)
def test_what_looks_like_an_address_is_no_folder_and_its_password_is_not_shown(
    capsule: Any, address: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.iterdir())
    url = address.format("s3cret-pass")
    for words in (("init", url), ("list", "--store", url)):
        answer = capsule(*words, expect=2)
        assert "s3cret-pass" not in answer.stdout + answer.stderr
    monkeypatch.setenv("CAPSULE_STORE", url)
    assert "s3cret-pass" not in capsule("init", expect=2).stderr
    assert sorted(tmp_path.iterdir()) == before


def test_new_prints_the_id_alone_and_in_a_terminal_last(capsule: Any) -> None:
    answer = capsule(
        "new", "A plan", "--mode", "toolbox", "--tag", "work", "--tag", "now", "--type", "group"
    )
    id = answer.stdout.strip()
    assert answer.stdout == f"{id}\n"
    written = json.loads(capsule.file(id).read_bytes())
    facts = {name: written["metadata"][name] for name in ("mode", "type", "tags", "titleSetBy")}
    assert written["title"] == "A plan"
    assert facts == {
        "mode": "toolbox",
        "type": "group",
        "tags": ["work", "now"],
        "titleSetBy": "user",
    }
    screen = capsule.terminal("new", "A plan")
    assert "A plan" in screen and capsule.file(screen.splitlines()[-1]).is_file()


def test_without_a_title_it_is_made_from_the_first_user_message(capsule: Any) -> None:
    capsule.new("--message", "\n\nHow do I sort a list?\nThanks")
    assert capsule.json("list")[0]["title"] == "How do I sort a list?"


def test_new_refuses_what_it_cannot_keep_and_makes_nothing(capsule: Any) -> None:
    for words in [
        ("--message", "  "),
        ("--id", "a/b"),
        ("--tag", ""),
        ("--mode", "x"),
        ("--type", "x"),
    ]:
        capsule("new", "A", *words, expect=2)
        assert list((capsule.root / "conversations").iterdir()) == []


def test_ids_are_taken_by_a_unique_beginning_or_as_the_last(capsule: Any) -> None:
    for id in ("abcd-1", "abcd-2", "efgh-1"):
        capsule.new(id, "--id", id)
    assert capsule("show", "efgh").stdout == capsule("show", "@last").stdout
    assert capsule("set", "--pin", "efgh").stdout.startswith("efgh-1: ")
    assert "abcd-1, abcd-2" in capsule("show", "abcd", expect=2).stderr


def test_list_shows_the_latest_first_and_pinned_above_and_hides_the_archived(capsule: Any) -> None:
    for id in ("one1", "two2", "three3", "four4"):
        capsule.new(id.title(), "--id", id)
    capsule("append", "one1", "again")
    capsule("set", "--pin", "two2")
    capsule("set", "--archive", "three3")
    for words, ids in (
        ((), ["two2", "one1", "four4"]),
        (("--archived",), ["two2", "three3", "one1", "four4"]),
        (("--sort", "title"), ["two2", "four4", "one1"]),
        (("--limit", "1"), ["two2"]),
    ):
        assert [head["id"] for head in capsule.json("list", *words)] == ids


def test_list_narrows_by_tags_mode_lock_and_time(capsule: Any) -> None:
    capsule.new("A", "--id", "aaaa", "--tag", "x", "--tag", "y")
    capsule.new("B", "--id", "bbbb", "--tag", "x", "--mode", "toolbox")
    capsule("lock", "take", "bbbb", "--instance", "me")
    listed = lambda *words: [head["id"] for head in capsule.json("list", *words)]  # noqa: E731
    assert sorted(listed("--tag", "x")) == ["aaaa", "bbbb"]
    assert listed("--tag", "x", "--tag", "y") == ["aaaa"]
    assert listed("--mode", "toolbox") == listed("--locked") == ["bbbb"]
    assert (
        sorted(listed("--since", "1h"))
        == sorted(listed("--since", "2020-01-01"))
        == ["aaaa", "bbbb"]
    )
    assert listed("--since", "2999-01-01T10:00:00+02:00") == []
    assert "--since" in capsule("list", "--since", "once", expect=2).stderr


def test_list_narrows_by_agent_project_and_program(capsule: Any, tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    (tmp_path / "link").symlink_to(work)
    for id, about in (
        ("aaaa", {"imported": {"format": "claude-code"}, "source": {"cwd": str(work / "web")}}),
        ("bbbb", {"participants": ["anna"]}),
    ):
        capsule.new(id, "--id", id, "--type", "group")
        document = json.loads(capsule.file(id).read_bytes())
        capsule.file(id).write_text(
            json.dumps(document | {"metadata": document["metadata"] | about})
        )

    def listed(*words: str) -> list[str]:
        return [row["id"] for row in capsule.json("list", *words)]

    assert (listed("--source", "claude-code"), listed("--source", "here")) == (["aaaa"], ["bbbb"])
    assert listed("--project", str(work)) == listed("--project", str(tmp_path / "link")) == ["aaaa"]
    assert (listed("--project", str(tmp_path / "none")), listed("--agent", "anna")) == (
        [],
        ["bbbb"],
    )
    (row,) = capsule.json("list", "--source", "claude-code")
    assert row["imported"] == {"format": "claude-code", "folder": str(work / "web")}
    assert "claude-code" in capsule.terminal("list") and "claude-code" not in capsule("list").stdout


def test_a_damaged_file_is_listed_as_damaged_and_hides_no_other(capsule: Any) -> None:
    good = capsule.new("A")
    capsule.file("broken-1").write_text('{\n  "id": oops\n}', encoding="utf-8")
    heads = capsule.json("list")
    assert [head["id"] for head in heads] == [good, "broken-1"]
    assert heads[1]["damaged"].startswith(f"{capsule.file('broken-1')}:2:9: ")
    assert "damaged" in capsule("list").stdout.splitlines()[1]
    assert [head["id"] for head in capsule.json("list", "--mode", "api")] == [good]
    assert "damaged" in capsule.terminal("list")


def test_nothing_in_a_title_commands_the_terminal(capsule: Any) -> None:
    id = capsule.new("A plan [bold]x[/bold]")
    path = capsule.file(id)
    path.write_text(
        path.read_text(encoding="utf-8").replace("A plan", "A \\u001b[31mplan"), encoding="utf-8"
    )
    screen = capsule.terminal("list")
    assert "[bold]x[/bold]" in screen and "\\x1b[31mplan" in screen
    assert "\x1b[31m" not in screen + capsule("list").stdout


def test_a_row_is_one_line_of_80_columns_with_an_id_to_type_and_the_title_last(
    capsule: Any,
) -> None:
    names = {
        capsule.new(f"漢字 title {n} " + "word " * 30, *tags): n
        for n, tags in enumerate(
            [(), ("--mode", "toolbox"), *[("--tag", f"a-rather-long-tag-{i}") for i in range(3)]]
        )
    }
    twins = [capsule.new("Twin", "--id", f"abcdefghij-{n}") for n in (1, 2)]
    capsule("set", "--pin", next(iter(names)))
    capsule("append", next(iter(names)), "hello")
    lines = capsule.plain("list", COLUMNS="80").splitlines()
    assert len(lines) == 8
    assert all(cell_len(line) <= 80 for line in lines)
    assert lines[0].split() == ["ID", "UPDATED", "N", "STATE", "TAGS", "TITLE"]
    assert (lines[1].split()[3:5], lines[1][-1]) == (["1", "pinned"], "…")
    assert sum("toolbox" in line for line in lines) == 1
    for line in lines[1:]:
        assert "title" in capsule("show", line.split()[0]).stdout or line.split()[0] in twins
        assert len(line.split()[0]) == 8 or line.split()[0] in twins


@pytest.mark.slow
def test_an_empty_list_says_so_on_a_terminal_and_is_empty_elsewhere(capsule: Any) -> None:
    for words in (
        ("list",),
        ("lock", "list"),
        ("trash", "list"),
        ("mcp", "servers", "list", "@next"),
        ("git", "resolve", "--list"),
    ):
        assert capsule.terminal(*words).startswith("capsule: ")
        assert capsule(*words).stdout == ""
    capsule.new("A")
    assert "no conversation fits" in capsule.terminal("list", "--tag", "x")


def test_a_head_is_changed_and_printed(capsule: Any) -> None:
    capsule.new("A", "--id", "aaaa", "--tag", "x", "--tag", "y", "--message", "hello")
    before = capsule.history("aaaa")
    for words, field, value in (
        (("set", "aaaa", "--title", "New title"), "title", "New title"),
        (("set", "aaaa", "--add-tag", "x", "--add-tag", "z"), "tags", ["x", "y", "z"]),
        (
            ("set", "aaaa", "--remove-tag", "x", "--remove-tag", "nope", "--add-tag", "w"),
            "tags",
            ["y", "z", "w"],
        ),
        (("set", "aaaa", "--pin"), "pinned", True),
        (("set", "aaaa", "--no-pin"), "pinned", False),
        (("set", "aaaa", "--archive"), "archived", True),
        (("set", "aaaa", "--no-archive", "--title", "B"), "archived", False),
    ):
        head = capsule.json(*words)
        assert head[field] == value
        size = capsule.file("aaaa").stat().st_size
        assert capsule.json("list", "--archived")[0] == head | {"bytes": size, "messages": 1}
        assert capsule(*words).stdout.startswith("aaaa: ")
    assert capsule.history("aaaa") == before


def test_a_suggested_title_replaces_that_of_a_person_only_when_they_agree(capsule: Any) -> None:
    id = capsule.new("--message", "How do I sort a list?")
    assert "'Sorting'" in capsule("set", id, "--suggest", "--title", "Sorting").stdout
    assert capsule.json("set", id, "--suggest")["title"] == "How do I sort a list?"
    capsule("set", id, "--title", "Mine")
    before = capsule.file(id).read_bytes()
    assert (
        "'Mine' was given by a person"
        in capsule("set", id, "--title", "Better", "--suggest", expect=6).stderr
    )
    screen = capsule.terminal("set", id, "--title", "Better", "--suggest", typed="n\n", expect=1)
    assert "Replace 'Mine' by 'Better'?" in screen and "nothing was changed" in screen
    capsule("set", id, "--title", "Mine", "--suggest")
    assert capsule.file(id).read_bytes() == before
    capsule.terminal("set", id, "--title", "Better", "--suggest", typed="y\n")
    assert capsule.json("set", id, "--title", "Best", "--suggest", "--yes")["title"] == "Best"
    empty = capsule.new("Empty")
    assert "no user message" in capsule("set", empty, "--suggest", expect=2).stderr
    assert "nothing to change" in capsule("set", empty, expect=2).stderr
