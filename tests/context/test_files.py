"""Which files are taken: those that git would track, also where there is no git."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.context.files import FileSelection, ProjectFiles, candidates, drop_largest
from capsule.errors import InvalidInput, NotFound

NAMES = st.sampled_from(
    ["a", "b", "ab", "foo", "foo.py", "bar.txt", "build", "x y", ".hid", "#c", "!d"]
)
PATTERNS = st.sampled_from(
    [
        "*", "a", "/a", "a/", "*.py", "!*.py", "foo", "!foo", "foo/", "!foo/", "foo/*", "!foo/bar.txt", "build/",
        "**/a", "a/**/b", "# comment", "", "\\#c", "\\!d", "x y", "[ab]", "[!a]", "?", "*.txt",
        "b*", "/*", "!/a", "!a/", ".hid", ".*", "!.gitignore", "a/b", "foo.py\r", "a/*/b", "a*", "[a-c]*",
    ]
)  # fmt: skip
PATHS = st.lists(st.lists(NAMES, min_size=1, max_size=4).map("/".join), min_size=1, max_size=25)
IGNORES = st.dictionaries(
    st.one_of(st.just(""), st.lists(NAMES, min_size=1, max_size=3).map("/".join)),
    st.lists(PATTERNS, min_size=1, max_size=5),
    max_size=4,
)


def lay_out(root: Path, paths: Iterable[str], ignores: dict[str, list[str]]) -> None:
    """Make files of these paths, unless another file is in the way, and ignore files in these
    directories.
    """
    wanted = [*paths, *(f"{directory}/.gitignore" for directory in ignores)]
    for path in wanted:
        place = root / path.lstrip("/")
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            lines = (
                ignores[path.removesuffix("/.gitignore")]
                if path.endswith("/.gitignore")
                else ["text"]
            )
            place.write_bytes("\n".join(lines).encode())
        except OSError:
            continue


def git(root: Path, *words: str) -> bytes:
    return subprocess.run(["git", "-C", root, *words], check=True, capture_output=True).stdout


def as_git_says(root: Path) -> set[str]:
    listed = git(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return {os.fsdecode(path) for path in listed.split(b"\0") if path and not path.endswith(b"/")}


def taken(root: Path, selection: FileSelection | None = None) -> list[str]:
    return [
        path for path, _ in candidates(ProjectFiles(str(root)), selection or FileSelection()).files
    ]


@given(PATHS, IGNORES)
def test_the_same_files_are_taken_inside_a_repository_and_outside(
    paths: list[str], ignores: dict[str, list[str]]
) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        lay_out(root, paths, ignores)
        outside = taken(root)
        git(root, "init", "-q")
        assert outside == taken(root) == sorted(as_git_says(root))


def test_a_tracked_file_is_taken_although_it_is_ignored(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    lay_out(tmp_path, ["kept.log", "other.log", "a.py"], {"": ["*.log"]})
    git(tmp_path, "add", "-f", "kept.log")
    assert taken(tmp_path) == [".gitignore", "a.py", "kept.log"]


def test_nested_repositories_and_files_of_version_control_are_left_out(tmp_path: Path) -> None:
    lay_out(tmp_path, ["a", "sub/b", ".hg/c", ".svn/d", ".jj/e"], {})
    git(tmp_path, "init", "-q")
    git(tmp_path / "sub", "init", "-q")
    git(tmp_path / "sub", "commit", "-q", "--allow-empty", "-m", "x")
    assert "sub/b" not in taken(tmp_path)
    shutil.rmtree(tmp_path / ".git")
    assert taken(tmp_path) == ["a"]


def test_the_users_ignore_rules_hold_outside_git(tmp_path: Path) -> None:
    project, rules = tmp_path / "project", tmp_path / "rules"
    rules.write_text("*.log\n")
    subprocess.run(["git", "config", "--global", "core.excludesFile", str(rules)], check=True)
    lay_out(project, ["a.py", "a.log", "keep/a.log"], {"keep": ["!*.log"]})
    assert taken(project) == ["a.py", "keep/.gitignore", "keep/a.log"]


def test_include_and_exclude_take_the_patterns_of_gitignore(tmp_path: Path) -> None:
    lay_out(tmp_path, ["a.py", "b.md", "src/c.py", "src/d.txt", "tests/e.py"], {})
    assert taken(tmp_path, FileSelection(include=("*.py",))) == ["a.py", "src/c.py", "tests/e.py"]
    assert taken(tmp_path, FileSelection(include=("/src",), exclude=("*.txt",))) == ["src/c.py"]
    assert taken(tmp_path, FileSelection(exclude=("/tests/", "*.md"))) == [
        "a.py",
        "src/c.py",
        "src/d.txt",
    ]


def test_an_included_file_is_taken_although_it_is_ignored(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    lay_out(tmp_path, ["a.py", "out/result.txt", "out/more.txt"], {"": ["out/"]})
    assert taken(tmp_path, FileSelection(include=("out/result.txt", "*.py"))) == [
        "a.py",
        "out/result.txt",
    ]


@pytest.mark.parametrize("name", ["../secret", "a/../../secret", ".."])
def test_a_name_that_leads_out_of_the_project_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="outside the project"):
        taken(tmp_path, FileSelection(include=(name,)))


@pytest.mark.parametrize("in_git", [True, False])
def test_no_symlink_is_followed(tmp_path: Path, in_git: bool) -> None:
    root = tmp_path / "project"
    lay_out(root, ["a"], {})
    lay_out(tmp_path, ["outside/secret"], {})
    (root / "link").symlink_to(tmp_path / "outside" / "secret")
    (root / "directory").symlink_to(tmp_path / "outside")
    (root / "loop").symlink_to(".")
    if in_git:
        git(root, "init", "-q")
    named = FileSelection(include=("a", "link", "directory/secret", "loop/a"))
    assert taken(root) == taken(root, named) == ["a"]


def test_a_tracked_file_whose_directory_became_a_symlink_is_not_read_through_it(
    tmp_path: Path,
) -> None:
    root = tmp_path / "project"
    lay_out(root, ["sub/secret", "a"], {})
    git(root, "init", "-q")
    git(root, "add", ".")
    lay_out(tmp_path, ["outside/secret"], {})
    shutil.rmtree(root / "sub")
    (root / "sub").symlink_to(tmp_path / "outside")
    assert "sub/secret" in as_git_says(root)
    assert taken(root) == ["a"]


def test_fifos_and_ignore_files_that_are_directories_are_skipped(tmp_path: Path) -> None:
    lay_out(tmp_path, ["a", "sub/b"], {})
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "sub" / ".gitignore").mkdir()
    assert taken(tmp_path) == ["a", "sub/b"]


def test_a_file_whose_name_is_not_utf_8_is_left_out_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("x")
    try:
        (tmp_path / os.fsdecode(b"caf\xe9.txt")).write_text("x")
    except OSError:
        pytest.skip("this file system takes no such name")
    found = candidates(ProjectFiles(str(tmp_path)), FileSelection())
    assert [path for path, _ in found.files] == ["a"]
    assert [one.reason for one in found.left_out] == ["its name is not valid UTF-8"]


def test_the_directories_of_a_store_are_left_out(tmp_path: Path) -> None:
    stored = ["conversations/x.json", "agents/a.json", ".capsule/y"]
    for root in (tmp_path / "one", tmp_path / "two" / "store"):
        lay_out(root, ["capsule.toml", "src/a.py", "src/agents/b.py", *stored], {})
    assert taken(tmp_path / "one") == ["capsule.toml", "src/a.py", "src/agents/b.py"]
    assert taken(tmp_path / "one", FileSelection(include=("conversations/x.json", "*a.py"))) == [
        "src/a.py"
    ]
    assert taken(tmp_path / "two") == [
        "store/capsule.toml",
        "store/src/a.py",
        "store/src/agents/b.py",
    ]


def test_large_files_are_left_out_and_above_the_total_limit_the_largest_first(
    tmp_path: Path,
) -> None:
    for name, size in {"a": 10, "b": 50, "c": 200, "d": 40}.items():
        (tmp_path / name).write_bytes(b"x" * size)
    found = candidates(ProjectFiles(str(tmp_path)), FileSelection(file_bytes=100))
    assert found.files == [("a", 10), ("b", 50), ("d", 40)]
    assert [one.path for one in found.left_out] == ["c"]
    kept, too_much = drop_largest(found.files, 60)
    assert kept == [("a", 10), ("d", 40)] and [one.path for one in too_much] == ["b"]


def test_a_missing_directory_and_an_invalid_pattern_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no such directory"):
        taken(tmp_path / "nowhere")
    with pytest.raises(InvalidInput, match="pattern"):
        taken(tmp_path, FileSelection(include=("!",)))
