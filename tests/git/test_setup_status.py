"""`capsule git status`: whether a clone is set up, how it stands, and what to do."""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store, git
from capsule.git.attributes import CHECK, CHECK_LINE
from capsule.git.clone_setup import RepositoryStatus
from tests.git.repositories import PROGRAM, Clone, cloned, new, published, script, worktree
from tests.git.talking import conversation, rename, say, sides

pytestmark = pytest.mark.slow


def state_of(clone: Clone) -> RepositoryStatus:
    with clone.store() as store:
        return git.open(store).status()


def kinds(state: RepositoryStatus) -> list[str]:
    """What is to be done, in the order in which it is told."""
    return [finding.kind for finding in state.findings if finding.is_trouble]


def words(state: RepositoryStatus) -> str:
    return "\n".join(f"{finding.what}: {finding.todo}" for finding in state.findings)


def configured(top: Path, folder: str = "") -> Clone:
    """A repository that is set up by the program, and has committed that."""
    clone = new(top, folder, drivers=False)
    clone.setup()
    clone.commit("set up")
    return clone


@pytest.fixture
def fine(tmp_path: Path) -> Clone:
    return configured(tmp_path / "répo")


@pytest.mark.sample
def test_a_clone_that_is_set_up_has_nothing_to_do(fine: Clone) -> None:
    conversation(fine, "Hello")
    fine.commit()
    state = state_of(fine)
    assert state.is_fine and state.findings == []
    assert (state.top, state.folder, state.branch, state.upstream) == (
        str(fine.top),
        "",
        "main",
        None,
    )
    assert state.git in fine.git("version")
    assert "this clone is set up" in fine.capsule("git", "status").out


def test_status_first_reports_attributes_that_the_clone_does_not_know(
    fine: Clone, tmp_path: Path
) -> None:
    fine.run("rm", "-q", "--cached", ".gitignore")
    fine.commit()
    other = cloned(published(fine, tmp_path / "remote"), tmp_path / "other", drivers=False)
    conversation(other, "Hello")
    state = state_of(other)
    assert kinds(state)[0] == "drivers"
    assert "this clone has no programs for them" in state.findings[0].what
    assert state.findings[0].todo == "run: capsule git setup"
    assert not state.is_fine
    other.setup()
    assert state_of(other).is_fine


def test_lines_of_others_that_overrule_ours_are_seen_and_so_is_that_ours_are_gone(
    fine: Clone,
) -> None:
    path = fine.root / ".gitattributes"
    ours = path.read_text()
    for line, told in (
        ("*.json text=auto eol=lf", "text is auto"), ("*.json -diff", "diff is unset"), (("** "
                                                                                         "!merge"), "merge is un"),
    ):  # fmt: skip
        path.write_text(f"{ours}{line}\n")
        assert told in words(state_of(fine))
    path.unlink()
    told: dict[str, Any] = json.loads(fine.capsule("git", "status", "--json", expect=1).out)
    assert told["fine"] is False and told["branch"] == "main" and told["top"] == str(fine.top)
    assert {finding["kind"] for finding in told["findings"]} == {"attributes"}
    assert all(
        finding["what"] and finding["todo"] and finding["isTrouble"] for finding in told["findings"]
    )


def test_files_that_are_not_committed_are_named_as_other_clones_lack_them(tmp_path: Path) -> None:
    clone = new(tmp_path / "mono", "pro [j]/tälk s", drivers=False)
    clone.setup()
    state = state_of(clone)
    assert kinds(state) == ["attributes"]
    assert "'pro [j]/tälk s/.gitattributes' 'pro [j]/tälk s/.gitignore'" in state.findings[0].what
    assert state.folder == "pro [j]/tälk s"
    clone.commit()
    assert state_of(clone).is_fine


def test_each_setting_that_is_missing_or_not_as_this_version_writes_it_is_named(
    fine: Clone,
) -> None:
    for name in ("merge.capsule.driver", "filter.capsule.process", "diff.capsule.textconv", CHECK):
        fine.run("config", "--unset", name)
        assert name in words(state_of(fine))
        fine.setup()
    for name in ("merge.capsule.driver", "filter.capsule.required", "filter.capsule.process"):
        fine.run("config", name, "false")
        assert name in words(state_of(fine)) and not state_of(fine).is_fine
        fine.setup()
    assert state_of(fine).is_fine


def test_status_reports_a_missing_driver_beside_changed_conversations(
    fine: Clone, tmp_path: Path
) -> None:
    id = conversation(fine, "Hello")
    fine.commit()
    say(fine, id, "more")
    with open(fine.root / ".gitignore", "a") as file:
        file.write("mine\n")
    fine.setup([str(tmp_path / "no such" / "python"), *PROGRAM[1:]])
    state = state_of(fine)
    assert kinds(state) == ["drivers", "attributes"] and state.changed == [f"conversations/{id}"]
    assert (
        "no such" in state.findings[0].what and state.findings[0].todo == "run: capsule git setup"
    )
    assert ".gitignore" in state.findings[1].what


def test_another_python_with_this_version_is_fine(fine: Clone, tmp_path: Path) -> None:
    launcher = script(tmp_path / "launcher %", f'exec {shlex.quote(PROGRAM[0])} "$@"')
    fine.setup([str(launcher), *PROGRAM[1:]])
    assert state_of(fine).is_fine


def test_status_reports_a_hook_that_is_gone_or_is_no_shell_script(fine: Clone) -> None:
    hook = fine.top / ".git" / "hooks" / "pre-commit"
    assert state_of(fine).hook == str(hook)
    hook.unlink()
    assert kinds(state_of(fine)) == ["hook"]
    hook.write_text("#!/usr/bin/env python3\n")
    hook.chmod(0o755)
    assert CHECK_LINE in words(state_of(fine))


def test_status_reports_documents_that_git_ignores(fine: Clone) -> None:
    with open(fine.root / ".gitignore", "a") as file:
        file.write("/conversations/\n")
    fine.commit()
    assert "git ignores the files in conversations" in words(state_of(fine))


def test_status_reports_derived_and_half_written_files_in_git(fine: Clone) -> None:
    id = conversation(fine, "Hello")
    (fine.root / "conversations" / f".{id}.tmp").write_text("{")
    fine.run("add", "-f", f"conversations/.{id}.tmp", ".capsule/.gitignore")
    state = state_of(fine)
    assert kinds(state) == ["ignore"]
    assert (
        "2 files in git that are derived or half written: .capsule/.gitignore "
        f"conversations/.{id}.tmp" in (state.findings[0].what)
    )
    fine.run(*shlex.split(state.findings[0].todo.partition("git ")[2]))
    assert kinds(state_of(fine)) == []


def test_status_reports_changes_and_commits_to_exchange_without_trouble(
    fine: Clone, tmp_path: Path
) -> None:
    id = conversation(fine, "Hello")
    remote = published(fine, tmp_path / "remote")
    other = cloned(remote, tmp_path / "other")
    (other.top / "notes").write_text("notes\n")
    other.commit()
    other.run("push", "-q")
    fine.commit("a conversation")
    say(fine, id, "More")
    new_one = conversation(fine, "Hello")
    fine.run("fetch", "-q")
    state = state_of(fine)
    assert state.is_fine
    assert (state.upstream, state.ahead, state.behind) == ("origin/main", 1, 1)
    assert sorted(state.changed) == sorted([f"conversations/{id}", f"conversations/{new_one}"])
    assert "2 documents changed since the last commit: run: capsule git commit" in words(state)
    assert (
        "1 commit to push and 1 commit to merge (main and origin/main): run: capsule git sync"
        in words(state)
    )


def test_a_lock_changes_nothing(fine: Clone) -> None:
    id = conversation(fine, "Hello")
    fine.commit()
    with fine.store() as store:
        store.locks.take(id)
        assert state_of(fine).changed == []


def merging(clone: Clone, id: str) -> None:
    """Begin a merge that is left to a person."""
    sides(clone, lambda: say(clone, id, "There"), lambda: say(clone, id, "Here"))
    clone.run("-c", "merge.capsule.driver=false", "merge", "theirs", expect=1)


def rebasing(clone: Clone, id: str) -> None:
    merging(clone, id)
    clone.run("merge", "--abort")
    clone.run("-c", "merge.capsule.driver=false", "rebase", "theirs", expect=1)


@pytest.mark.parametrize(
    ("begin", "abort"), [(merging, "git merge --abort"), (rebasing, "git rebase --abort")]
)
def test_status_reports_a_merge_or_rebase_with_its_documents_and_how_to_end_it(
    fine: Clone, begin: Callable[[Clone, str], None], abort: str
) -> None:
    id = conversation(fine, "Hello")
    fine.commit()
    begin(fine, id)
    state = state_of(fine)
    assert kinds(state) == ["merging"]
    assert (
        state.unmerged == [f"conversations/{id}"]
        and f"conversations/{id}" in state.findings[0].what
    )
    assert abort in words(state)
    fine.run(*abort.split()[1:])
    assert state_of(fine).is_fine


def test_in_the_midst_of_a_merge_nothing_is_advised_that_is_refused_then(
    fine: Clone, tmp_path: Path
) -> None:
    id, other = conversation(fine, "Hello"), conversation(fine, "Hello")
    fine.commit()
    published(fine, tmp_path / "remote")
    merging(fine, id)
    say(fine, other, "more")
    state = state_of(fine)
    assert state.ahead and f"conversations/{other}" in state.changed
    assert [finding.kind for finding in state.findings] == ["merging"]
    fine.capsule("git", "commit", expect=9)
    fine.capsule("git", "sync", expect=9)
    fine.run("merge", "--abort")
    assert {finding.kind for finding in state_of(fine).findings} == {"changed", "upstream"}


def test_status_reports_a_conflict_until_it_is_settled(fine: Clone) -> None:
    id = conversation(fine, "Hello")
    fine.commit()
    sides(fine, lambda: rename(fine, id, "There"), lambda: rename(fine, id, "Here"))
    fine.run("merge", "theirs", expect=1)
    told = json.loads(fine.capsule("git", "status", "--json", expect=1).out)
    assert [finding["kind"] for finding in told["findings"]] == ["merging", "conflicts"]
    assert told["findings"][1]["todo"] == f"run: capsule git resolve {id}"
    assert id in told["findings"][1]["what"] and told["findings"][1]["what"].endswith(
        "awaits a decision on: title"
    )
    fine.capsule("git", "resolve", id, "--value", "Everywhere")
    fine.run("add", "--all")
    fine.run("commit", "--no-edit")
    assert fine.capsule("git", "status").out.startswith("this clone is set up")


def test_status_in_a_linked_worktree_ignores_the_merge_of_another_worktree(tmp_path: Path) -> None:
    monorepo = configured(tmp_path / "mono", "pro [j]/tälk s")
    id = conversation(monorepo, "Hello")
    monorepo.commit()
    linked = worktree(monorepo, tmp_path / "linked", "linked")
    merging(monorepo, id)
    assert kinds(state_of(monorepo)) == ["merging"]
    assert state_of(linked).is_fine and state_of(linked).branch == "linked"


def test_a_repository_without_a_commit_or_a_branch_has_a_status(tmp_path: Path) -> None:
    clone = new(tmp_path / "plain", drivers=False, commit=False)
    assert kinds(state_of(clone)) == ["drivers", "ignore", "hook"]
    assert {finding.todo for finding in state_of(clone).findings} == {"run: capsule git setup"}
    id = conversation(clone, "Hello")
    clone.setup()
    assert state_of(clone).changed == [f"conversations/{id}"]
    clone.commit()
    clone.run("switch", "-q", "--detach")
    assert state_of(clone).branch is None


def test_status_says_what_an_older_git_lacks(
    fine: Clone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    telling = 'for word; do [ "$word" != version ] || { echo git version 2.30.2; exit; }; done'
    old = script(tmp_path / "bin" / "git", telling, f'exec {shutil.which("git")} "$@"')
    monkeypatch.setenv("PATH", f"{old.parent}:{os.environ['PATH']}")
    state = state_of(fine)
    assert state.git == "2.30.2" and state.is_fine
    what = "capsule git sync, if it merges other files than conversations"
    assert f"is too old for this: {what}: install git 2.38 or newer" in words(state)


def test_status_of_two_stores_in_one_repository_is_separate(tmp_path: Path) -> None:
    one = configured(tmp_path / "repo", "one")
    two = Clone(one.top, "one and more")
    Store.init(two.root)
    assert kinds(state_of(two))[0] == "attributes"
    two.setup()
    two.commit()
    id = conversation(two, "Hello")
    assert state_of(two).changed == [f"conversations/{id}"]
    assert state_of(one).changed == [] and state_of(one).is_fine


def test_looking_changes_nothing(fine: Clone) -> None:
    def files() -> dict[Path, bytes]:
        """All but the indexes of git and of the store, which are made from the others."""
        found = (
            path
            for path in fine.top.rglob("*")
            if path.is_file() and not path.name.startswith("index")
        )
        return {path: path.read_bytes() for path in found}

    conversation(fine, "Hello")
    before = files()
    state_of(fine)
    assert files() == before
