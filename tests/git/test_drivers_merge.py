"""The merge driver, started by real git: two clones that both went on talking, and what makes git
stop.
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from tests.git.repositories import PROGRAM, Clone, environment, new, run, worktree
from tests.git.talking import contents, conversation, document, rename, say, sides
from tests.git.test_drivers_filter import FOLDER

STAMP = "2025-01-12T10:00:00.000Z"


@pytest.mark.parametrize("folder", ["", FOLDER])
def test_two_branches_that_went_on_talking_merge_without_a_conflict(
    tmp_path: Path, folder: str
) -> None:
    clone = new(tmp_path / "r", folder)
    id = conversation(clone, "Hello")
    clone.commit()
    sides(clone, lambda: say(clone, id, "theirs"), lambda: say(clone, id, "ours"))
    ran = clone.run("merge", "--no-edit", "theirs")
    assert "CONFLICT" not in ran.out + ran.err
    assert sorted(contents(clone, id)) == ["Hello", "ours", "theirs"]
    assert clone.at("HEAD", id) == clone.file(id).read_bytes()
    assert clone.git("status", "--porcelain") == ""


@pytest.mark.slow
def test_a_rebase_and_a_linked_worktree_use_it_too(repo: Clone, tmp_path: Path) -> None:
    id = conversation(repo, "Hello")
    repo.commit()
    beside = worktree(repo, tmp_path / "be side", "topic")
    say(beside, id, "one")
    beside.commit()
    say(beside, id, "two")
    beside.commit()
    say(repo, id, "three")
    repo.commit()
    beside.run("rebase", "main")
    assert sorted(contents(beside, id)) == ["Hello", "one", "three", "two"]


def test_both_added_it(repo: Clone) -> None:
    made = new_capsule(
        "same", "Same", STAMP, type="group", messages=[{"role": "user", "content": "Hello"}]
    )

    def add(text: str) -> None:
        repo.file("same").parent.mkdir(exist_ok=True)
        repo.file("same").write_bytes(codec.encode(made))
        say(repo, "same", text)

    sides(repo, lambda: add("theirs"), lambda: add("ours"))
    repo.run("merge", "--no-edit", "theirs")
    assert sorted(contents(repo, "same")) == ["Hello", "ours", "theirs"]


@pytest.mark.parametrize(("kind", "id"), [("agent", "anna"), ("project", "api-123456")])
def test_the_merge_driver_reports_a_conflict_of_a_document_without_a_history(
    tmp_path: Path, kind: str, id: str
) -> None:
    versions = (codec.encode({"id": id, "name": name}) for name in ("Anna", "A", "B"))
    code, words, left = driven(tmp_path, *versions, f"{kind}s/{id}.json")
    assert code == 1
    assert words.splitlines() == [
        (
            f'capsule: {kind} {id}: both sides changed name, to "A" and "B"; '
            f'"{json.loads(left)["name"]}" is used for now'
        ),
        f"capsule: {kind}s/{id}.json: resolve it by hand, then: git add -- :/{kind}s/{id}.json",
    ]


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["", "pkg/my störe", "_[x] 'y'"])
def test_the_commands_that_settle_a_conflict_work_in_any_directory_of_the_repository(
    tmp_path: Path, folder: str
) -> None:
    clone = new(tmp_path / "r p", folder)
    id = conversation(clone, "Hello")
    clone.commit()
    sides(clone, lambda: rename(clone, id, "Their plan"), lambda: rename(clone, id, "Our plan"))
    elsewhere = clone.root / "else where"
    elsewhere.mkdir()
    # `git pull` starts the driver at the top, and tells it nothing of where it was started itself.
    ran = run(elsewhere, "git", "pull", "--no-rebase", "--no-edit", ".", "theirs", expect=1)
    told = next(line for line in ran.err.splitlines() if "resolve it with: " in line)
    settle, _, add = told.partition("resolve it with: ")[2].partition(", then: ")
    run(elsewhere, sys.executable, "-m", "capsule_cli", *shlex.split(settle)[1:], "--keep", "1")
    run(elsewhere, *shlex.split(add))
    assert clone.git("status", "--porcelain", "--untracked-files=no").startswith("M ")
    clone.run("commit", "--no-edit")


def test_a_true_conflict_stops_git_and_leaves_a_valid_capsule(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit()
    sides(repo, lambda: rename(repo, id, "Their plan"), lambda: rename(repo, id, "Our plan"))
    ran = repo.run("merge", "--no-edit", "theirs", expect=1)
    assert f"CONFLICT (content): Merge conflict in conversations/{id}.json" in ran.out
    assert f"capsule: conversation {id} " in ran.err
    assert "both sides changed title, to " in ran.err
    assert '"Our plan"' in ran.err and '"Their plan"' in ran.err
    assert (
        f"resolve it with: capsule git resolve {id}, then: git add -- :/conversations/{id}.json"
        in ran.err
    )
    found = document(repo, id)
    assert found["title"] in ("Our plan", "Their plan")
    assert [conflict["field"] for conflict in found["metadata"]["conflicts"]] == ["title"]
    repo.run("add", "--all")
    repo.run("commit", "-q", "--no-edit")


def test_a_side_that_does_not_parse_leaves_gits_own_conflict(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit()

    def spoil() -> None:
        data = repo.file(id).read_bytes()
        repo.file(id).write_bytes(data.replace(b'"title": "Plan"', b'"title": Plan'))

    sides(repo, spoil, lambda: rename(repo, id, "Our plan"))
    ran = repo.run("merge", "--no-edit", "theirs", expect=1)
    assert f"capsule: conversations/{id}.json:3:12: " in ran.err
    assert "(in theirs)" in ran.err and "Traceback" not in ran.err
    text = repo.file(id).read_text("utf-8")
    assert '<<<<<<< ours\n  "title": "Our plan",\n' in text
    assert '=======\n  "title": Plan,\n' in text
    assert ">>>>>>> theirs\n" in text
    shown = repo.capsule("show", id, expect=5).err
    assert f"{id}.json:3:1: " in shown and "git checkout --ours" in shown and "comma" not in shown
    repo.run("merge", "--abort")
    assert document(repo, id)["title"] == "Our plan"


def test_a_newer_version_is_not_merged_but_by_git(repo: Clone) -> None:
    id = conversation(repo, "Hello")
    repo.commit()
    data = repo.file(id).read_bytes()
    newer = data.replace(b'"version": "2.1"', b'"version": "3.0"')
    sides(repo, lambda: repo.file(id).write_bytes(newer), lambda: say(repo, id, "ours"))
    ran = repo.run("merge", "--no-edit", "theirs", expect=1)
    assert "upgrade Capsule (in theirs)" in ran.err


def test_a_conversation_that_git_takes_for_another_renamed_is_left_to_a_person(repo: Clone) -> None:
    id = conversation(repo, *[f"line {at}" for at in range(20)])
    repo.commit()

    def another() -> None:
        data = repo.file(id).read_bytes()
        repo.file("other").write_bytes(data.replace(f'"id": "{id}"'.encode(), b'"id": "other"'))
        repo.file(id).unlink()

    sides(repo, lambda: say(repo, id, "theirs"), another)
    ran = repo.run("merge", "--no-edit", "theirs", expect=1)
    assert "git merge -X find-renames=100%" in ran.err
    repo.run("merge", "--abort")
    ran = repo.run("merge", "--no-edit", "-X", "find-renames=100%", "theirs", expect=1)
    assert "CONFLICT (modify/delete)" in ran.out
    assert document(repo, "other")["id"] == "other"


def driven(
    directory: Path, base: bytes, ours: bytes, theirs: bytes, *more: str
) -> tuple[int, str, bytes]:
    """The driver as git calls it: exit code, words, and what is left in the file of ours."""
    for name, data in (("o", base), ("a", ours), ("b", theirs)):
        (directory / name).write_bytes(data)
    done = subprocess.run(
        [*PROGRAM, "merge", "o", "a", "b", *more],
        cwd=directory,
        capture_output=True,
        env=environment(),
        timeout=60,
    )
    assert done.stdout == b""
    return done.returncode, done.stderr.decode(), (directory / "a").read_bytes()


def test_gits_markers_have_the_length_it_asks_for(tmp_path: Path) -> None:
    code, words, left = driven(
        tmp_path, b"", b"{ours\n}\n", b"{theirs\n}\n", "11", "x y/conversations/c.json"
    )
    assert code == 1
    assert words.startswith("capsule: x y/conversations/c.json:1:2: ")
    assert "(in ours)" in words
    assert left == b"<<<<<<<<<<< ours\n{ours\n===========\n{theirs\n>>>>>>>>>>> theirs\n}\n"


def test_a_side_that_is_no_text_leaves_ours_as_it_was(tmp_path: Path) -> None:
    ours = codec.encode({"id": "c", "history": []})
    for theirs in (b"", b"{\0", b"\xff\xfe\0", b"[]"):
        code, words, left = driven(tmp_path, ours, ours, theirs, "conversations/c.json")
        assert code == 1
        assert "conversations/c.json" in words and "Traceback" not in words
        assert left == (
            theirs if theirs in (b"", b"[]") else ours
        )  # Git's own merge of what only one side changed.


def test_the_merge_driver_shows_both_values_in_a_line(tmp_path: Path, repo: Clone) -> None:
    id = conversation(repo, "Hello")
    data = repo.file(id).read_bytes()

    def version(later: str, note: str) -> bytes:
        return data.replace(
            b'"context": {', f'"later": {later}, "note": {note}, "context": {{'.encode()
        )

    versions = (
        version("[1]", '"x"'),
        version("[2, 3.50]", '"a\\u001b[1m"'),
        version('{"a": 1}', f'"{"b" * 99}"'),
    )
    code, words, left = driven(tmp_path, *versions, f"conversations/{id}.json")
    assert code == 1
    assert sorted(
        line.partition("both sides changed ")[2].partition("; ")[0]
        for line in words.splitlines()[:2]
    ) == [
        'later, to [2,3.50] and {"a":1}',
        f'note, to "a\\x1b[1m" and "{"b" * 57}..."',
    ]
    assert clean(left, "", "conversations") == left
