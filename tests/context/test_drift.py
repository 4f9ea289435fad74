"""Drift: whether files have changed since the capture, by content and under the same selection, for
every context.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from capsule.context import drift
from capsule.context.drift import Drift
from tests.context.projects import captured, context_of, lay_out

FILES = {
    "a.py": b"one\ntwo\n",
    "b.py": b"x\n",
    "sub/c.md": b"# C\n",
    ".env": b"A=1\n",
    "d.bin": b"\0",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    lay_out(tmp_path / "project", FILES)
    return tmp_path / "project"


def check(context: dict[str, Any], project: Path | None = None) -> Drift:
    return drift.check(context, None if project is None else str(project))


def test_changed_missing_and_new_files_are_listed(project: Path) -> None:
    context = context_of(captured(project))
    os.utime(project / "a.py", (1, 1))
    assert check(context) == Drift(str(project)) and check(context).is_current
    (project / "a.py").write_bytes(b"one\n2\n")
    (project / "b.py").unlink()
    (project / "new.txt").write_bytes(b"new")
    found = check(context)
    assert (found.changed, found.gone, found.new) == (("a.py",), ("b.py",), ("new.txt",))
    assert found.has_drifted and not found.is_current and not found.edited


def test_a_file_outside_the_selection_is_not_new(project: Path) -> None:
    context = context_of(
        captured(project, include=("*.py", "*.txt"), exclude=("*.log.txt",), file_bytes=100)
    )
    for name, data in {
        "x.md": b"x",
        "a.log.txt": b"x",
        "big.txt": b"x" * 101,
        "e.bin.txt": b"\0",
        "p.env": b"x",
    }.items():
        (project / name).write_bytes(data)
    assert check(context).is_current
    (project / "y.txt").write_bytes(b"x")
    assert check(context).new == ("y.txt",)


def test_a_file_left_out_by_the_budget_is_not_new(project: Path) -> None:
    (project / "large.py").write_bytes(b"value = call(argument)\n" * 400)
    context = context_of(captured(project, budget=300))
    assert context["metadata"]["selection"]["leftOut"] == ["large.py"]
    assert check(context).is_current


def test_a_file_that_became_a_symlink_or_fifo_is_gone(project: Path, tmp_path: Path) -> None:
    context = context_of(captured(project))
    (project / "a.py").unlink()
    (project / "a.py").symlink_to(tmp_path / "elsewhere")
    (project / "b.py").unlink()
    os.mkfifo(project / "b.py")
    assert check(context).gone == ("a.py", "b.py")


def test_a_moved_project_is_checked_at_the_given_path(project: Path, tmp_path: Path) -> None:
    context = context_of(captured(project))
    project.rename(tmp_path / "moved")
    assert "--project" in check(context).problem and not check(context).is_current
    assert check(context, tmp_path / "moved").is_current


def test_an_edited_text_and_a_shortened_digest_are_reported(project: Path) -> None:
    context = context_of(captured(project))
    digest = context["metadata"]["contextHash"]
    for known in (digest, digest[:20], digest[:20] + "...", None, "", "md5:x"):
        context["metadata"]["contextHash"] = known
        assert check(context).is_current
    context["metadata"]["contextHash"] = digest
    context["fullContext"] += "by hand\n"
    assert (
        check(context).edited and not check(context).is_current and not check(context).has_drifted
    )


def test_a_context_without_usable_files_has_a_problem_and_no_drift() -> None:
    for metadata in [
        {},
        {
            "projectPath": "C:\\Users\\username\\project",
            "filesIncluded": 37,
            "contextHash": "sha256:abcdef123456...",
        },
        {"files": []},
        {"files": [{}], "projectPath": "/"},
        {"files": [{"path": "../../etc/passwd", "sha256": "0"}], "projectPath": "/usr"},
        {
            "files": [{"path": "/etc/passwd", "sha256": "0"}, {"path": "a\0b", "sha256": "0"}],
            "projectPath": "/usr",
        },
        {"files": [{"path": "a"}], "projectPath": None},
        {"files": [{"path": "a", "sha256": "x"}], "projectPath": "/nowhere"},
        {"files": [{"path": "a", "sha256": "x"}]},
    ]:
        found = check({"fullContext": "# Project context\n\n...", "metadata": metadata})
        assert found.problem and not found.is_current and not found.has_drifted
        assert list(drift.diff({"fullContext": "..."}, found)) == []


def test_a_hand_edited_selection_does_not_crash(project: Path) -> None:
    context = context_of(captured(project))
    for selection in (
        None,
        {"include": ["[", 1], "leftOut": [1, None]},
        {"include": ["../x"]},
        {"budget": True},
    ):
        context["metadata"]["selection"] = selection
        found = check(context)
        assert found.is_current or found.problem or found.new


def test_a_path_that_leads_out_of_the_project_is_not_read(project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (project / "link").symlink_to(tmp_path)
    context = context_of(captured(project))
    context["metadata"]["files"] += [
        {"path": "link/secret", "sha256": "0"},
        {"path": "../secret", "sha256": "0"},
    ]
    found = check(context)
    assert found.gone == ("link/secret",) and "1 entries" in found.problem
    assert "secret\n" not in "\n".join(drift.diff(context, found)).replace("link/secret", "")


def test_git_applies_the_diff(project: Path, tmp_path: Path) -> None:
    import subprocess

    context = context_of(captured(project))
    (project / "a.py").write_bytes(b"one\n2\nthree")
    (project / "b.py").unlink()
    (project / "new.txt").write_bytes(b"new\r\nlines\n\n")
    text = "".join(f"{line}\n" for line in drift.diff(context, check(context)))
    assert text.startswith(
        "--- a/a.py\n+++ b/a.py\n@@ -1,2 +1,3 @@\n one\n-two\n+2\n+three\n\\ No newline at end of "
        "file\n"
    )
    before = tmp_path / "before"
    for name in ("a.py", "b.py"):
        before.mkdir(exist_ok=True)
        (before / name).write_bytes(FILES[name])
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn"], input=text.encode(), cwd=before, check=True
    )
    assert (before / "a.py").read_bytes() == b"one\n2\nthree"
    assert (before / "new.txt").read_bytes() == b"new\r\nlines\n\n"
    assert not (before / "b.py").exists()


@pytest.mark.parametrize(("old", "new"), [(b"x\n-- a", b"x\n"), (b"x\n", b"x\n++ a")])
def test_a_last_line_that_looks_like_a_header_keeps_its_missing_newline(
    tmp_path: Path, old: bytes, new: bytes
) -> None:
    lay_out(tmp_path, {"a.txt": old})
    context = context_of(captured(tmp_path))
    (tmp_path / "a.txt").write_bytes(new)
    assert list(drift.diff(context, check(context)))[-1] == "\\ No newline at end of file"


def test_a_file_that_cannot_be_compared_by_lines_is_named(project: Path) -> None:
    context = context_of(captured(project))
    (project / "a.py").write_bytes(b"line\n" * 30_000)
    assert "too many to compare" in "\n".join(drift.diff(context, check(context)))
    context["fullContext"] = "by hand"
    assert list(drift.diff(context, check(context))) == [
        "a.py: differs; the context's text has no separate part for it"
    ]
