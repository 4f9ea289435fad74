"""`capsule import` and `capsule export`: what is said, what is written, and how it ends."""

from __future__ import annotations

import json
import re
import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from tests.core.cli.conftest import plain
from tests.transfer.exchange import DATA

TOKEN = "ghp_" + "a1B2" * 9


def line(*texts: str, id: str = "c1") -> str:
    people = ("human", "gpt")
    said = [{"from": people[place % 2], "value": text} for place, text in enumerate(texts)]
    return json.dumps({"id": id, "conversations": said}) + "\n"


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "my chät.txt"
    path.write_text(line("Hi", "Hello"))
    return path


def test_an_import_reports_what_became_of_each_conversation(capsule: Any, chat: Path) -> None:
    report = capsule.json("import", str(chat))

    (taken,) = report.pop("conversations")
    source = {"format": "sharegpt", "id": "c1", "path": str(chat)}
    assert taken == {
        "id": taken["id"],
        "title": "Hi",
        "messages": 2,
        "source": source,
        "state": "imported",
    }
    counts = {"imported": 1, "updated": 0, "unchanged": 0, "skipped": 0, "damaged": 0}
    assert report == {**counts, "problems": [], "unknown": []}
    assert (
        capsule("import", str(chat)).line
        == "0 imported, 0 updated, 1 unchanged, 0 skipped, 0 damaged"
    )
    assert [message["content"] for message in capsule.history(taken["id"])] == ["Hi", "Hello"]


@pytest.mark.parametrize(
    ("source", "folder", "model"),
    [
        ("claude-code", "/home/dev/site.v2", "claude-opus-4-5"),
        ("codex", "/home/dev", "gpt-5.2-codex"),
        ("opencode", "/home/dev/app", "claude-sonnet-4-5"),
        ("specstory", "/home/dev/app", "claude-sonnet-4-5"),
    ],
)
def test_sessions_of_a_program_are_found_by_their_folder(
    capsule: Any, source: str, folder: str, model: str
) -> None:
    capsule(
        "import", *(str(path) for path in (DATA / source).iterdir() if "damaged" not in path.name)
    )
    rows = capsule.json("list", "--project", folder, "--source", source)
    assert rows and all(row["imported"]["folder"].startswith(folder) for row in rows)
    assert model in {row.get("model") for row in rows}
    assert capsule.json("list", "--source", "here") == []


def test_a_message_without_a_time_shows_none(capsule: Any, chat: Path) -> None:
    capsule("import", str(chat))
    (id,) = (head["id"] for head in capsule.json("list"))
    ways = [
        ("show", id),
        ("show", id, "--markdown"),
        ("show", id, "--for-model"),
        ("search", "Hello", "--json"),
        ("store", "stats"),
    ]
    for words in [
        *ways,
        ("export", id, "--format", "html"),
        ("export", id, "--format", "markdown"),
    ]:
        told = re.sub("<!--.*-->", "", capsule(*words).stdout)  # What an import of it takes back.
        assert ("Hello" in told or words == ("store", "stats")) and "1970" not in told


def test_damage_is_told_by_line_and_ends_with_5(capsule: Any, chat: Path) -> None:
    chat.write_text(line("a", id="1") + '{"id": "2", "conv\n' + line("b", id="3"))
    report = capsule.json("import", str(chat), expect=5)

    assert (report["imported"], report["damaged"]) == (2, 1)
    assert [(problem["path"], problem["line"]) for problem in report["problems"]] == [
        (str(chat), 2)
    ]
    assert f"{chat}:2: " in capsule("import", str(chat), expect=5).stdout


def test_an_import_in_which_nothing_is_found_ends_with_3(capsule: Any, chat: Path) -> None:
    chat.write_text("Dear diary")

    answer = capsule("import", str(chat), expect=3)
    assert (answer.stdout + answer.stderr).count(str(chat)) == 1
    report = capsule.json("import", str(chat), expect=3)
    assert (report["conversations"], [problem["path"] for problem in report["problems"]]) == (
        [],
        [str(chat)],
    )
    assert capsule("import", str(chat.parent / "none"), expect=3).stderr
    capsule("import", expect=2)
    capsule("import", str(chat), "--format", "word", expect=2)


def test_files_that_no_format_takes_are_counted_and_named_with_a_guess(
    capsule: Any, tmp_path: Path
) -> None:
    project = tmp_path / "project"
    sessions = project / "workspaceStorage" / "1f" / "chatSessions"
    sessions.mkdir(parents=True)
    (project / "chat.jsonl").write_text(line("Hi"))
    for number in range(12):
        (sessions / f"{number}.json").write_text(
            '{"version": 3, "responderUsername": "GitHub Copilot", "requests": []}'
        )
    (project / ".aider.chat.history.md").write_text(
        "# aider chat started at 2026-01-02 10:00:00\n\n#### Hi\n"
    )
    (project / "talk.json").write_text('{"messages_of_us": [{"who": "me", "what": "Hi"}]}')
    (project / "main.py").write_text("print()")

    report = capsule.json("import", str(project))
    assert (report["imported"], report["problems"]) == (1, [])
    found = {
        unknown["guess"]: (unknown["files"], len(unknown["paths"])) for unknown in report["unknown"]
    }
    assert found == {
        "VS Code Copilot": (12, 12),
        "aider": (1, 1),
        "an unknown program": (1, 1),
        "": (1, 1),
    }
    assert report["unknown"][-1]["paths"] == [str(project / "main.py")]
    said = capsule("import", str(project)).stdout.splitlines()
    assert {
        "12 files of VS Code Copilot: not supported yet",
        "1 file of aider: not supported yet",
        "1 file of an unknown program: not supported yet",
        f"1 file in no known format: {project / 'main.py'}",
    } <= {*said}


def test_a_file_that_another_one_reads_is_no_unknown_one(capsule: Any) -> None:
    assert capsule.json("import", str(DATA / "claude-ai" / "export"))["unknown"] == []


def test_standard_input_and_a_dry_run(capsule: Any) -> None:
    assert capsule("import", "-", "--dry-run", input=line("a")).line.startswith(
        "would be 1 imported"
    )
    assert capsule("import", "-", input=line("a")).line.startswith("1 imported")


def test_an_export_goes_to_standard_output_or_to_a_new_file(
    capsule: Any, chat: Path, tmp_path: Path
) -> None:
    id = capsule.json("import", str(chat))["conversations"][0]["id"]
    said = capsule("export", id, "--format", "sharegpt").stdout
    out = tmp_path / "out.jsonl"

    assert json.loads(said) == json.loads(chat.read_text())
    assert capsule.json("export", id, "--format", "sharegpt", "-o", str(out)) == {
        "path": str(out),
        "conversations": 1,
    }
    assert out.read_text() == said
    out.write_text("mine")
    capsule("export", id, "--format", "sharegpt", "-o", str(out), expect=6)
    assert out.read_text() == "mine"
    capsule("export", id, "--format", "sharegpt", "-o", str(out), "--force")
    assert out.read_text() == said
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_everything_is_exported_into_one_zip(capsule: Any, chat: Path, tmp_path: Path) -> None:
    chat.write_text(line("a", id="1") + line("b", id="2"))
    capsule("import", str(chat))
    out = tmp_path / "all.zip"
    capsule("export", "--all", "--format", "sharegpt", "-o", str(out))

    with zipfile.ZipFile(BytesIO(out.read_bytes())) as archive:
        assert archive.namelist() == ["conversations.jsonl"]
    assert capsule.json("import", str(out))["unchanged"] == 2


def test_an_export_by_tag_and_what_it_refuses(capsule: Any) -> None:
    one = capsule.new("One", "--tag", "x")
    capsule.new("Two")

    assert one in capsule("export", "--tag", "x", "--format", "jsonl").stdout
    capsule("export", "--tag", "y", "--format", "jsonl", expect=3)
    capsule("export", one, "--all", "--format", "jsonl", expect=2)
    capsule("export", one, "--format", "word", expect=2)
    capsule("export", one, expect=2)


def test_an_export_for_people_is_plain_unless_it_shall_be_whole(capsule: Any, chat: Path) -> None:
    id = capsule.json("import", str(chat))["conversations"][0]["id"]
    forms = {
        way: capsule("export", id, "--format", "markdown", *way).stdout
        for way in ((), ("--plain",), ("--whole",))
    }

    assert forms[()] == forms[("--plain",)] and "<!--" not in forms[()]
    assert capsule("import", "-", input=forms[("--whole",)]).line.startswith(
        "0 imported, 0 updated, 1 unchanged"
    )
    assert set(json.loads(capsule("export", id, "--format", "sharegpt", "--plain").stdout)) == {
        "conversations"
    }
    capsule("append", id, f"Use {TOKEN}.")
    assert (
        TOKEN not in (safe := capsule("export", id, "--format", "jsonl", "--redact").stdout)
        and "[redacted]" in safe
    )
    capsule("export", id, "--format", "markdown", "--plain", "--whole", expect=2)
    capsule("export", id, "--format", "chatgpt", "--plain", expect=2)


def test_discovery_shows_what_is_there_and_imports_what_is_named(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from capsule.transfer import registry

    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "chats").mkdir()
    (tmp_path / "chats" / "a.jsonl").write_text(line("a"))
    found = {"sharegpt": replace(registry.formats()["sharegpt"], places=("~/chats/*.jsonl",))}
    monkeypatch.setattr(registry, "formats", lambda: found)

    (place,) = capsule.json("import", "--discover")["found"]
    assert (place["format"], place["files"]) == ("sharegpt", 1)
    assert capsule("import", "--discover", "--format", "sharegpt").line.startswith("1 imported")
    monkeypatch.setattr(registry, "formats", dict)
    capsule("import", "--discover", expect=3)


def test_discovery_looks_where_the_environment_moved_the_folders_of_programs(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, moved = tmp_path / "home", tmp_path / "a [1]"
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_CONFIG_HOME", "XDG_DATA_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME"):
        monkeypatch.delenv(name, raising=False)

    def found() -> set[str]:
        return {
            place["path"].replace("[[]", "[")
            for place in capsule.json("import", "--discover")["found"]
        }

    session = next((DATA / "codex" / "shell").glob("*/*/*/*.jsonl"))
    folders = (home / ".claude", home / ".config/claude", moved / "claude", moved / "claude2")
    for file in (
        *(folder / "projects/p/a.jsonl" for folder in folders),
        moved / "codex/sessions/2026/01/02/a.jsonl",
    ):
        file.parent.mkdir(parents=True)
        file.write_bytes(session.read_bytes())
    usual = {"~/.claude/projects/*/*.jsonl", "~/.config/claude/projects/*/*.jsonl"}
    assert found() == usual
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(home / ".claude"))
    assert found() == usual
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(moved / "claude2"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(moved))
    monkeypatch.setenv("CODEX_HOME", str(moved / "codex"))
    ours = {f"{moved}/{name}/projects/*/*.jsonl" for name in ("claude", "claude2")}
    assert found() == usual | ours | {f"{moved}/codex/sessions/*/*/*/*.jsonl"}
    assert capsule("import", "--discover", "--format", "codex").line.startswith("1 imported")


def test_only_a_trusted_import_brings_back_what_agents_said(capsule: Any, tmp_path: Path) -> None:
    for name in ("anna", "bob"):
        capsule("agent", "register", "--as", name)
    room = capsule.json("send", "Hi", "--to", "bob", "--as", "anna")["conversation"]
    capsule("export", room, "--format", "capsule", "-o", str(out := tmp_path / "out.json"))
    report = capsule.json("import", str(out))
    assert [(note["path"], room in note["what"]) for note in report["problems"]] == [
        (str(out), True)
    ]
    capsule("import", str(out), "--trusted", expect=2)
    assert capsule.json("import", str(out), "--trusted", "--yes")["conversations"][0]["id"] == room


@pytest.mark.slow
def test_following_takes_what_is_written_and_ends_at_a_signal(capsule: Any, tmp_path: Path) -> None:
    folder = tmp_path / "live"
    folder.mkdir()
    process = capsule.start("import", "--follow", str(folder), "--json")
    told = []
    for id in ("c1", "c2"):
        with (folder / "a.jsonl").open("a") as file:
            file.write(line("a", id=id))
        told.append(json.loads(process.stdout.readline()))
    process.terminate()

    assert [taken["source"]["id"] for taken in told] == ["c1", "c2"]
    assert process.communicate(timeout=60)[1] == b""


def test_formats_are_completed() -> None:
    from capsule_cli.commands.transfer.transfer import complete_format

    assert [name for name, _ in complete_format("shareg")] == ["sharegpt"]


def test_what_stands_in_a_file_cannot_command_the_terminal(capsule: Any) -> None:
    evil = "a\x1b]0;owned\x07b\x9b31mc\u202ed"
    id = capsule.new("A", "--message", evil)
    assert not set("\x1b\x07\x9b\u202e\r") & set(
        plain(capsule.terminal("export", id, "--format", "markdown"))
    )
    assert evil in capsule("export", id, "--format", "markdown").stdout


def test_a_store_is_exported_as_pages_or_what_was_named_of_it(capsule: Any, tmp_path: Path) -> None:
    one, two = capsule.new("One", "--tag", "x"), capsule.new("Two")
    site = tmp_path / "site"
    said = capsule.json("export", "--site", str(site))
    assert (said["path"], said["conversations"], said["removed"], said["left"]) == (
        str(site),
        2,
        0,
        0,
    )
    assert {path.stem for path in (site / "c").iterdir()} == {one, two}
    assert "2 conversations" in capsule("export", "--site", str(site), "--all").line
    assert capsule.json("export", "--site", str(site), "--tag", "x", "--redact")["removed"] == 1
    assert {path.stem for path in (site / "c").iterdir()} == {one}
    assert capsule.json("export", two, "--site", str(site))["conversations"] == 1
    capsule("export", "--site", str(tmp_path), expect=6)
    for words in (("--format", "html"), ("-o", "x"), ("--plain",), ("--force",)):
        capsule("export", "--site", str(site), *words, expect=2)
    assert "writing" in plain(
        capsule.terminal("export", "--site", str(tmp_path / "new"), has_bars=True)
    )
