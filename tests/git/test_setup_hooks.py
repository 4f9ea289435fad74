"""The pre-commit hook of `capsule git setup`: beside others' hooks, and when Capsule is gone."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from capsule.git import clone_setup
from capsule.git.attributes import CHECK, CHECK_LINE, DRIVER
from capsule.git.clone_setup import SetupStep
from tests.git.repositories import PROGRAM, ROOT, Clone, new, run, worktree

LOCKED = """{
  "version": "2.0", "id": "%s", "title": "x", "createdAt": "2025-01-12T10:00:00.000Z",
  "updatedAt": "2025-01-12T10:00:00.000Z",
  "metadata": {"mode": "api", "lock": {"active": true, "user": "anna", "timestamp": "2025-01-12T10:00:00.000Z"}},
  "history": []
}
"""
ID = "550e8400-e29b-41d4-a716-446655440000"
THEIRS = "#!/bin/sh\necho theirs >>ran\nexit 0\n"


def setup(clone: Clone, **settings: bool) -> SetupStep:
    """Set it up. Returns: what came of the hook."""
    return clone.setup(**settings)[-1]


def teardown(clone: Clone, **settings: bool) -> list[SetupStep]:
    return [step for step in clone.teardown(**settings) if step.kind == "hook"]


def stage_locked(clone: Clone) -> None:
    """Put a document with a lock into the index, past the filter."""
    blob = clone.run("hash-object", "-w", "--stdin", "--no-filters", input=LOCKED % ID).out.strip()
    clone.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{clone.path(ID)}")


def stage_text(clone: Clone) -> None:
    (clone.top / "notes.txt").write_text("notes\n")
    clone.run("add", "notes.txt")


def refuses(clone: Clone) -> str:
    """What git says to a commit with a lock in it, which it must not make; the index is as before
    then.
    """
    stage_locked(clone)
    before = clone.git("rev-parse", "HEAD")
    ran = clone.run("commit", "-m", "locked", expect=1)
    assert clone.git("rev-parse", "HEAD") == before
    clone.run("rm", "-q", "-f", "--cached", clone.path(ID))
    return ran.err


def put(path: Path, text: str, mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


@pytest.fixture
def theirs(plain: Clone) -> Path:
    """Where somebody else's hook lies in it."""
    return plain.top / ".git" / "hooks" / "pre-commit"


def test_a_lock_that_got_past_the_filter_is_refused_and_other_commits_pass(plain: Clone) -> None:
    assert setup(plain).what == "is made"
    assert "is staged with the lock of anna" in refuses(plain)
    stage_text(plain)
    plain.run("commit", "-m", "notes")
    assert [step.what for step in teardown(plain)] == ["taken out"]
    stage_locked(plain)
    plain.run("commit", "-m", "no check any more")


def test_a_hook_that_is_there_goes_on_running_and_the_check_before_it(
    plain: Clone, theirs: Path
) -> None:
    for shell in ("#!/bin/sh", "#!/usr/bin/env bash", "#!/bin/sh -eu", "#! /bin/dash"):
        text = THEIRS.replace("#!/bin/sh", shell)
        put(theirs, text, 0o700)
        assert setup(plain).changed and not setup(plain).changed
        assert theirs.stat().st_mode & 0o777 == 0o700
        teardown(plain)
        assert theirs.read_text() == text
    setup(plain)
    assert "lock of anna" in refuses(plain)
    assert not (plain.top / "ran").exists()
    stage_text(plain)
    plain.run("commit", "-m", "notes")
    assert (plain.top / "ran").read_text() == "theirs\n"


def test_a_hook_that_is_no_shell_script_is_left_alone_with_advice(
    plain: Clone, theirs: Path
) -> None:
    for text, mode, todo in (
        ("#!/usr/bin/env python3\nprint('theirs')\n", 0o755, CHECK_LINE),
        ("\x7fELF", 0o755, CHECK_LINE),
        ("echo no shebang\n", 0o755, CHECK_LINE),
        ("", 0o755, CHECK_LINE),
        (THEIRS, 0o644, f"chmod +x {theirs}"),
    ):
        put(theirs, text, mode)
        step = setup(plain)
        assert todo in step.todo and not step.changed
        assert not teardown(plain)
        assert theirs.read_text() == text and theirs.stat().st_mode & 0o777 == mode
    plain.capsule("git", "setup", expect=1)


def test_a_hook_that_is_a_symlink_is_left_alone(plain: Clone, theirs: Path) -> None:
    target = put(plain.top / "tools" / "hook", THEIRS)
    theirs.parent.mkdir(exist_ok=True)
    theirs.symlink_to(target)
    assert "symlink" in setup(plain).what
    assert theirs.is_symlink() and target.read_text() == THEIRS
    put(target, f"#!/bin/sh\n{CHECK_LINE}\n{THEIRS}")
    assert setup(plain).what == "runs the check"
    assert "lock of anna" in refuses(plain)


def test_a_hook_in_the_working_tree_is_left_alone_and_its_owner_can_add_a_portable_line(
    plain: Clone,
) -> None:
    mine = put(plain.top / ".githooks" / "pre-commit", THEIRS)
    plain.run("config", "core.hooksPath", ".githooks")
    step = setup(plain)
    assert "working tree" in step.what and CHECK_LINE in step.todo
    assert mine.read_text() == THEIRS
    added = THEIRS.replace("echo", f"{CHECK_LINE}\necho", 1)
    put(mine, added)
    assert setup(plain).what == "runs the check"
    assert "lock of anna" in refuses(plain)
    plain.run("config", "--unset", CHECK)
    stage_locked(plain)
    plain.run("commit", "-m", "a clone that nobody set up")
    left = teardown(plain)
    assert [step.where for step in left] == [str(mine)] and CHECK_LINE in left[0].todo
    assert mine.read_text() == added


def test_the_line_is_found_where_husky_has_it(plain: Clone) -> None:
    put(plain.top / ".husky" / "_" / "pre-commit", '#!/usr/bin/env sh\n. "$(dirname "$0")/h"\n')
    # As husky 9 writes it, but for what it does on errors.
    put(
        plain.top / ".husky" / "_" / "h",
        'sh -e "$(dirname "$(dirname "$0")")/$(basename "$0")" "$@"\n',
        0o644,
    )
    mine = put(plain.top / ".husky" / "pre-commit", "echo theirs >>ran\n", 0o644)
    plain.run("config", "core.hooksPath", ".husky/_")
    assert "working tree" in setup(plain).what
    mine.write_text(f"{CHECK_LINE}\necho theirs >>ran\n")
    assert setup(plain).where == str(mine)
    assert "lock of anna" in refuses(plain)
    stage_text(plain)
    plain.run("commit", "-m", "notes")
    assert (plain.top / "ran").read_text() == "theirs\n"


def test_hooks_outside_of_the_working_tree_are_used_when_they_are_this_repository_s_own(
    plain: Clone, tmp_path: Path
) -> None:
    plain.run("config", "core.hooksPath", str(tmp_path / "my hooks"))
    assert setup(plain).where == str(tmp_path / "my hooks" / "pre-commit")
    assert "lock of anna" in refuses(plain)
    teardown(plain)
    assert not (tmp_path / "my hooks" / "pre-commit").exists()


def test_hooks_of_all_repositories_are_changed_only_with_global_and_others_stay_as_they_were(
    plain: Clone, tmp_path: Path
) -> None:
    mine = put(tmp_path / "hooks" / "pre-commit", THEIRS)
    plain.run("config", "--global", "core.hooksPath", str(tmp_path / "hooks"))
    step = setup(plain)
    assert "all your repositories" in step.what and mine.read_text() == THEIRS
    assert setup(plain, everywhere=True).changed
    assert "lock of anna" in refuses(plain)
    other = new(tmp_path / "other", drivers=False)
    stage_text(other)
    other.run("commit", "-m", "no conversations here")
    assert next(step.what for step in teardown(plain)).startswith("left: all your repositories")
    assert CHECK in mine.read_text()
    teardown(plain, everywhere=True)
    assert mine.read_text() == THEIRS


def test_teardown_cleans_the_default_hook_beside_a_hooks_path(plain: Clone, theirs: Path) -> None:
    put(theirs, THEIRS)
    setup(plain)
    plain.run("config", "core.hooksPath", ".githooks")
    assert [step.where for step in teardown(plain)] == [str(theirs)]
    assert theirs.read_text() == THEIRS


def test_the_hook_of_all_worktrees_works_in_each_and_in_a_folder(tmp_path: Path) -> None:
    monorepo = new(tmp_path / "mono", "pro [j]/tälk s", drivers=False)
    setup(monorepo)
    linked = worktree(monorepo, tmp_path / "linked", "other")
    for clone in (monorepo, linked):
        assert "lock of anna" in refuses(clone)


def test_when_capsule_is_gone_only_commits_of_conversations_are_refused(
    plain: Clone, tmp_path: Path
) -> None:
    gone = str(tmp_path / "no such" / "python")
    plain.setup([gone, *PROGRAM[1:]])
    plain.run("config", "--remove-section", "filter.capsule")
    stage_text(plain)
    assert gone in plain.run("commit", "-m", "notes").err
    said = refuses(plain)
    assert gone in said and "capsule git setup" in said and f"git config --unset {CHECK}" in said
    stage_locked(plain)
    plain.run("config", "--unset", CHECK)
    plain.run("commit", "-m", "without Capsule")
    # Back again, it is taken out of the way, even so.
    plain.setup([gone, *PROGRAM[1:]])
    plain.run("config", "--remove-section", "filter.capsule")
    plain.run("rm", "-q", "--cached", plain.path(ID))
    plain.run("commit", "-m", "what is deleted needs no check")


def test_a_python_without_capsule_counts_as_gone(plain: Clone, tmp_path: Path) -> None:
    setup(plain)
    (tmp_path / "empty").mkdir()
    nowhere = plain.git("config", CHECK).replace("capsule_cli.drivers", "capsule_cli.no_such")
    plain.run("config", CHECK, nowhere)
    plain.run("config", "--remove-section", "filter.capsule")
    stage_text(plain)
    assert "does not work" in plain.run("commit", "-m", "notes").err
    assert "does not work" in refuses(plain)


#: What the framework's own hook does first with what it found in its place.
FRAMEWORK = """#!/usr/bin/env bash
# File generated by pre-commit: https://pre-commit.com
[ ! -x "$0.legacy" ] || "$0.legacy" "$@" || exit 1
echo theirs >>ran
"""


def test_the_check_survives_a_new_installation_of_the_framework(plain: Clone, theirs: Path) -> None:
    put(theirs, FRAMEWORK)
    step = setup(plain)
    assert step.where == f"{theirs}.legacy" and step.what == "is made"
    assert theirs.read_text() == FRAMEWORK
    assert "lock of anna" in refuses(plain)
    stage_text(plain)
    plain.run("commit", "-m", "notes")
    assert (plain.top / "ran").read_text() == "theirs\n"
    teardown(plain)
    assert theirs.read_text() == FRAMEWORK and not Path(f"{theirs}.legacy").exists()


def test_setup_adds_no_line_when_the_framework_runs_the_check(plain: Clone, theirs: Path) -> None:
    put(theirs, FRAMEWORK)
    config = plain.top / ".pre-commit-config.yaml"
    config.write_text(
        "repos:\n- repo: https://example.org/capsule\n  rev: v1\n  hooks:\n  - id: capsule\n"
    )
    step = setup(plain)
    assert (step.where, step.what) == (str(config), "runs the check")
    assert not Path(f"{theirs}.legacy").exists()
    config.write_text("repos:\n- repo: local\n  hooks:\n  - id: capsules-of-another-kind\n")
    assert clone_setup.find_hook(plain.repository).runs == ""


def test_the_frameworks_manifest_names_the_check_and_its_files() -> None:
    lines = (ROOT / ".pre-commit-hooks.yaml").read_text().splitlines()
    told = dict(line.lstrip("- ").split(": ", 1) for line in lines if not line.startswith("#"))
    assert told["id"] == DRIVER
    assert told["entry"].split()[1:] == [*PROGRAM[1:], "pre-commit"]
    for path in (
        "conversations/x.json",
        "a b/agents/x.json",
        "conversations/.x.tmp",
        ".capsule/index.sqlite3",
    ):
        assert re.search(told["files"], path), path
    for path in (
        "conversations.json",
        "my-conversations/x.json",
        "conversations/deeper/x.json",
        "src/x.json",
    ):
        assert not re.search(told["files"], path), path


@pytest.mark.skipif(
    shutil.which("pre-commit") is None, reason="the framework pre-commit is not installed"
)
def test_the_real_framework_keeps_the_check_whoever_is_installed_first(
    plain: Clone, theirs: Path
) -> None:
    hook = "{id: say, name: say, language: system, entry: echo hi, always_run: true}"
    (plain.top / ".pre-commit-config.yaml").write_text(
        f"repos: [{{repo: local, hooks: [{hook}]}}]\n"
    )
    plain.commit("told of the framework")
    for first, second in (("framework", "capsule"), ("capsule", "framework")):
        for one in (first, second, second):
            if one == "capsule":
                setup(plain)
            else:
                run(plain.top, "pre-commit", "install")
        assert "lock of anna" in refuses(plain)
        stage_text(plain)
        assert "say" in plain.run("commit", "--allow-empty", "-m", "notes").err
        run(plain.top, "pre-commit", "uninstall")
        assert "lock of anna" in refuses(plain)
        teardown(plain)
        assert not theirs.exists()
