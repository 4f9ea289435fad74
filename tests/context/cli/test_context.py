"""`capsule context`: what is said, what is asked, and how it ends."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

TOKEN = "ghp_" + "a1B2" * 9


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "my pröject"
    (root / "src").mkdir(parents=True)
    (root / "README.md").write_text("# Shop\n")
    (root / "src" / "app.py").write_text("print('hello')\n")
    (root / ".env").write_text("A=1\n")
    return root


def test_capture_says_what_was_taken_and_left_out(capsule: Any, project: Path) -> None:
    id = capsule.new("Plan")
    answer = capsule("context", "capture", id, str(project))
    assert answer.stdout.startswith(f"{id}: captured {project}: 2 files, about ")
    assert "left out: .env: may contain secrets; to include it: --include .env" in answer.stderr
    assert (
        capsule("context", "show", id).stdout == capsule.json("context", "show", id)["fullContext"]
    )
    files = [file["path"] for file in capsule.json("context", "show", id, "--files")["files"]]
    assert files == ["README.md", "src/app.py"]
    assert capsule("context", "show", id, "--files").stdout.splitlines()[1].endswith("\tsrc/app.py")


def test_a_dry_run_writes_nothing_and_lists_the_files(capsule: Any, project: Path) -> None:
    id = capsule.new("Plan")
    (project / "t.py").write_text(f"T = '{TOKEN}'\n")
    before = capsule.file(id).read_bytes()
    answer = capsule("context", "capture", id, str(project), "--dry-run")
    assert "\tsrc/app.py\n" in answer.stdout and answer.line.startswith(f"{id}: would capture")
    assert "possible secret: t.py:1: GitHub Token" in answer.stderr
    assert capsule.json("context", "capture", id, str(project), "--dry-run")["written"] is False
    assert capsule.file(id).read_bytes() == before


def test_a_token_is_an_error_that_says_where_and_the_way_out(capsule: Any, project: Path) -> None:
    id = capsule.new("Plan")
    (project / "t.py").write_text(f"\n\nT = '{TOKEN}'\n")
    before = capsule.file(id).read_bytes()
    answer = capsule("context", "capture", id, str(project), expect=6)
    assert "t.py:3: GitHub Token" in answer.stderr and "--allow-secrets" in answer.stderr
    assert TOKEN not in answer.stderr and capsule.file(id).read_bytes() == before
    failed = json.loads(capsule("context", "capture", id, str(project), "--json", expect=6).stderr)
    assert failed["error"]["kind"] == "Refused"
    capsule("context", "capture", id, str(project), "--exclude", "t.py")
    told = capsule.json("context", "capture", id, str(project), "--allow-secrets")
    assert told["secrets"] == [{"path": "t.py", "line": 3, "kind": "GitHub Token"}]


@pytest.mark.slow
def test_in_a_terminal_a_token_is_asked_about(capsule: Any, project: Path) -> None:
    for typed, code in [("y\n", 0), ("n\n", 6)]:
        id = capsule.new("Plan")
        (project / "t.py").write_text(f"T = '{TOKEN}'\n")
        screen = capsule.terminal("context", "capture", id, str(project), typed=typed, expect=code)
        assert (
            "t.py:1: GitHub Token" in screen
            and "Capture these files nevertheless?" in screen
            and TOKEN not in screen
        )
        assert (TOKEN in capsule.file(id).read_text()) is (code == 0)


def test_check_exits_1_when_the_project_has_drifted(capsule: Any, project: Path) -> None:
    id = capsule.new("Plan")
    capsule("context", "capture", id, str(project))
    assert capsule("context", "check", id).stdout == (
        f"{id}: {project} has not changed since the capture\n"
    )
    (project / "README.md").write_text("# Shop 2\n")
    (project / "src" / "app.py").unlink()
    (project / "new.py").write_text("")
    assert capsule("context", "check", id, expect=1).stdout == (
        f"changed\tREADME.md\ngone\tsrc/app.py\nnew\tnew.py\n{id}: {project} has drifted: 1 "
        "changed, 1 gone, 1 new\n"
    )
    files = {"changed": ["README.md"], "gone": ["src/app.py"], "new": ["new.py"]}
    facts = {"id": id, "projectPath": str(project), "drifted": True, "edited": False}
    assert capsule.json("context", "check", id, expect=1) == facts | files
    capsule("context", "capture", id, str(project))
    assert capsule.json("context", "check", id)["drifted"] is False


def test_check_all_looks_at_every_conversation_that_has_a_context(
    capsule: Any, project: Path
) -> None:
    first, second = capsule.new("One"), capsule.new("Two")
    capsule.new("Without")
    assert capsule.json("context", "check", "--all") == []
    for id in (first, second):
        capsule("context", "capture", id, str(project))
    assert {told["id"] for told in capsule.json("context", "check", "--all")} == {first, second}
    (project / "README.md").write_text("other")
    assert capsule("context", "check", "--all", expect=1).stdout.count("has drifted") == 2
    capsule.file(second).write_text("{")
    os.utime(capsule.file(second), (1, 1))
    answer = capsule("context", "check", "--all", expect=5)
    assert answer.stdout.count("has drifted") == 1 and second in answer.stderr


def test_check_wants_a_conversation_or_all(capsule: Any) -> None:
    for words in [(), ("@last", "--all"), ("--all", "--project", ".")]:
        capsule.new("Plan")
        capsule("context", "check", *words, expect=2)


def test_a_conversation_without_a_context_is_an_error_with_the_way_out(capsule: Any) -> None:
    id = capsule.new("Plan")
    for command in ("check", "show", "diff"):
        assert f"capsule context capture {id}" in capsule("context", command, id, expect=3).stderr
    assert "no context" in capsule("context", "clear", id).stdout
    assert capsule.json("context", "clear", id) == {"id": id, "cleared": False}


def test_diff_shows_what_changed_and_follows_a_project_that_moved(
    capsule: Any, project: Path, tmp_path: Path
) -> None:
    id = capsule.new("Plan")
    capsule("context", "capture", id, str(project))
    project.rename(tmp_path / "moved")
    for command in ("check", "diff"):
        assert "--project" in capsule("context", command, id, expect=1).stderr
    (tmp_path / "moved" / "README.md").write_text("# Shop \x1b[31m\n")
    shown = capsule("context", "diff", id, "--project", str(tmp_path / "moved")).stdout
    assert shown == "--- a/README.md\n+++ b/README.md\n@@ -1 +1 @@\n-# Shop\n+# Shop \\x1b[31m\n"
    told = capsule.json("context", "diff", id, "--project", str(tmp_path / "moved"))
    assert told["changed"] == ["README.md"] and "+# Shop \x1b[31m\n" in told["diff"]


def test_options_of_a_capture_reach_it(
    capsule: Any, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = capsule.new("Plan")
    monkeypatch.chdir(project)
    (project / "long.py").write_text("value = call(argument)\n" * 300)
    told = capsule.json("context", "capture", id, "--budget", "200")
    assert (
        told["projectPath"] == str(project)
        and told["estimatedTokens"] <= 200
        and told["written"] is True
    )
    assert [one["path"] for one in told["leftOut"]] == [".env", "long.py"]
    told = capsule.json(
        "context", "capture", id, str(project), "--max-file-bytes", "1000", "--max-bytes", "10"
    )
    assert [file["path"] for file in told["files"]] == ["README.md"]
    assert "cleared" in capsule("context", "clear", id).stdout
    for words, code in (
        (("--budget", "0"), 2),
        (("--include", "../x"), 2),
        ((str(project / "nowhere"),), 3),
    ):
        capsule("context", "capture", id, *words, expect=code)


@pytest.mark.slow
def test_a_capture_shows_a_bar_in_a_terminal(capsule: Any, project: Path) -> None:
    id = capsule.new("Plan")
    assert "capturing" in capsule.terminal("context", "capture", id, str(project), has_bars=True)


def test_a_project_that_was_deleted_is_an_error_in_words(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = capsule.new("Plan")
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert "working directory" in capsule("context", "capture", id, expect=3).stderr
