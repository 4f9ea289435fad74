"""What became of a conversation, commit by commit; and a conversation as it was."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsule import Store, git
from capsule.errors import InvalidInput, NotFound
from capsule.git.history import PastVersion, TimelineStep, commit_at
from capsule.git.plumbing import BlobReader
from tests.git.repositories import Clone, Ran, new, published, run
from tests.git.talking import conversation, delete, rename, say, sides

pytestmark = pytest.mark.slow

ID = "plan-1"


def made(clone: Clone, *messages: str, id: str = ID, message: str = "a plan") -> str:
    """A conversation, committed. Returns: the commit."""
    with clone.store() as store:
        store.create(
            title="Plan",
            id=id,
            messages=[{"role": "user", "content": content} for content in messages],
        )
    return clone.commit(message)


def said(clone: Clone, content: str, *, at: str = "", author: str = "", id: str = ID) -> str:
    """Append, and commit. Returns: the commit."""
    say(clone, id, content)
    clone.run("add", "--all")
    words = ("commit", "-qm", "more", *((f"--author={author}",) if author else ()))
    clone.run(*words, **({"GIT_AUTHOR_DATE": at, "GIT_COMMITTER_DATE": at} if at else {}))
    return clone.git("rev-parse", "HEAD")


def steps(clone: Clone, id: str = ID, limit: int | None = None) -> list[TimelineStep]:
    with clone.store() as store:
        return list(git.open(store).log(id, limit=limit))


def version(clone: Clone, id: str, at: str) -> PastVersion:
    with clone.store() as store:
        return git.open(store).version(id, at)


def words(clone: Clone, id: str = ID, limit: int | None = None) -> list[str]:
    return ["; ".join(step.words) for step in steps(clone, id, limit)]


# -- The list --------------------------------------------------------------------------------------


@pytest.mark.sample
def test_each_commit_says_what_it_did_and_the_latest_comes_first(repo: Clone) -> None:
    made(repo, "one")
    said(repo, "two", author="Ben <ben@example.org>", at="2026-03-01T10:00:00+05:30")
    with repo.store() as store:
        store.edits.message(ID, "@0", content="one, said better")
        store.rename(ID, "A plan for it")
    repo.commit("better")
    delete(repo, ID)
    repo.commit("away")
    found = steps(repo)
    assert [step.words for step in found] == [
        ("deleted",),
        ("a message edited", "renamed to 'A plan for it'"),
        ("a message added",),
        ("created with a message",),
    ]
    ben = found[2].commit
    who = ("Ben", "ben@example.org", "2026-03-01T10:00:00+05:30", "more")
    assert ben and (ben.author, ben.email, ben.at, ben.subject) == who
    assert [step.as_json()["commit"] for step in found] == repo.git(
        "log", "--format=%H", "-4"
    ).split("\n")
    assert words(repo, limit=2) == words(repo)[:2]


def test_the_log_begins_with_uncommitted_changes_but_no_lock(repo: Clone) -> None:
    made(repo, "one")
    with pytest.raises(NotFound):
        steps(repo, "nobody")
    with repo.store() as store, store.locks.take(ID):
        assert [step.words for step in git.open(store).log(ID)] == [("created with a message",)]
    with repo.store() as store:
        store.append(ID, content="two")
        found = list(git.open(store).log(ID, limit=1))
    assert [(step.commit, step.words) for step in found] == [(None, ("a message added",))]
    delete(repo, ID)
    assert words(repo) == ["deleted", "created with a message"]


def test_a_conversation_that_was_never_committed(repo: Clone, tmp_path: Path) -> None:
    with repo.store() as store:
        store.create(id=ID)
    assert words(repo) == ["created"]
    unborn = new(tmp_path / "unborn", commit=False)
    with unborn.store() as store:
        store.create(id=ID)
    assert words(unborn) == ["created"]


def test_a_version_that_does_not_parse_is_listed_as_damaged_and_hides_no_other(
    plain: Clone,
) -> None:
    repo = plain
    made(repo, "one")
    whole = repo.file(ID).read_bytes()
    repo.file(ID).write_bytes(whole[:40])
    repo.commit("cut")
    damaged = steps(repo)
    assert [step.words for step in damaged] == [("damaged",), ("created with a message",)]
    assert damaged[0].damaged.startswith(f"{ID}.json:")
    repo.file(ID).write_bytes(whole)
    assert words(repo)[0] == "readable again, with 1 message"
    repo.commit("mended")
    assert words(repo) == ["readable again, with 1 message", "damaged", "created with a message"]
    repo.file(ID).write_bytes(b"{")
    assert words(repo)[0] == "damaged" and steps(repo)[0].commit is None


def test_a_version_that_differs_in_its_layout_only_says_so(plain: Clone) -> None:
    repo = plain
    made(repo, "one")
    repo.file(ID).write_text(json.dumps(json.loads(repo.file(ID).read_bytes())), encoding="utf-8")
    repo.commit("laid out")
    assert words(repo)[0] == "nothing but its layout or its lock"


def test_the_log_shows_what_a_merge_itself_changed(repo: Clone) -> None:
    made(repo, "one")
    sides(repo, lambda: say(repo, ID, "from the side"), lambda: say(repo, ID, "from here"))
    repo.run("merge", "-q", "--no-edit", "theirs")
    assert words(repo)[0] == "merged"
    assert sorted(words(repo)[1:]) == [
        "a message added",
        "a message added",
        "created with a message",
    ]
    repo.run("branch", "-q", "-D", "theirs")
    sides(
        repo, lambda: say(repo, ID, "more from the side"), lambda: say(repo, ID, "more from here")
    )
    repo.run("merge", "-q", "--no-edit", "--no-commit", "theirs")
    rename(repo, ID, "Merged")
    repo.commit("merged, and renamed")
    assert words(repo)[0] == "merged; renamed to 'Merged'"


def test_the_history_goes_on_where_the_store_lay_before(monorepo: Clone) -> None:
    made(monorepo, "one")
    said(monorepo, "two")
    monorepo.run("mv", monorepo.folder, "talks")
    monorepo.commit("moved")
    moved = Clone(monorepo.top, "talks")
    said(moved, "three")
    assert words(moved) == [
        "a message added",
        f"moved from {monorepo.folder}",
        "a message added",
        "created with a message",
    ]
    assert len(words(moved, limit=3)) == 3
    first = steps(moved)[-1].commit
    assert first and version(moved, ID, first.hash).store.head(ID).title == "Plan"


def test_a_file_of_the_same_name_in_another_store_is_another_conversation(monorepo: Clone) -> None:
    other = Clone(monorepo.top, "other")
    Store.init(other.root)
    made(other, "theirs")
    made(monorepo, "ours", "ours too")
    assert words(monorepo) == ["created with 2 messages"] and words(other) == [
        "created with a message"
    ]


def test_the_log_of_a_shallow_clone_ends_where_the_clone_does(repo: Clone, tmp_path: Path) -> None:
    made(repo, "one")
    said(repo, "two")
    published(repo, tmp_path / "remote.git")
    repo.run(
        "clone", "-q", "--depth=1", f"file://{tmp_path / 'remote.git'}", str(tmp_path / "shallow")
    )
    assert words(Clone(tmp_path / "shallow")) == ["created with 2 messages"]


def test_a_repository_with_longer_hashes(tmp_path: Path) -> None:
    (tmp_path / "long").mkdir()
    run(tmp_path / "long", "git", "init", "-q", "-b", "main", "--object-format=sha256")
    repo = new(tmp_path / "long")
    first = made(repo, "one")
    said(repo, "two")
    assert words(repo) == ["a message added", "created with a message"] and len(first) == 64
    assert version(repo, ID, first[:12]).commit.hash == first


def test_line_ends_that_git_changes_are_no_difference(repo: Clone) -> None:
    repo.configure(core_autocrlf="true")
    made(repo, "one\ntwo")
    first = said(repo, "three")
    repo.file(ID).unlink()
    repo.run("checkout", "-q", "--", repo.path(ID))
    assert words(repo) == ["a message added", "created with a message"]
    assert repo.capsule("git", "diff", ID, first).out == ""


def test_the_log_reads_only_the_versions_that_it_shows(
    repo: Clone, monkeypatch: pytest.MonkeyPatch
) -> None:
    made(repo, "one")
    for number in range(6):
        said(repo, f"message {number}")
    read: list[str] = []
    plain = BlobReader.read
    monkeypatch.setattr(
        BlobReader, "read", lambda self, name: read.append(name) or plain(self, name)
    )  # type: ignore[func-returns-value]
    assert words(repo, limit=2) == ["a message added"] * 2
    assert len(read) <= 4
    read.clear()
    assert len(words(repo)) == 7 and len(read) <= 8


def test_settings_of_the_person_change_nothing(repo: Clone) -> None:
    made(repo, "one")
    said(repo, "two")
    plain = steps(repo)
    repo.configure(
        log_showRoot="false",
        log_follow="true",
        log_date="relative",
        diff_renames="copies",
        color_ui="always",
    )
    repo.configure(log_showSignature="true", i18n_logOutputEncoding="latin1", log_diffMerges="off")
    assert steps(repo) == plain


# -- Which commit is meant -------------------------------------------------------------------------


@pytest.fixture
def dated(repo: Clone) -> tuple[Clone, list[str]]:
    """Three commits with a version each, at noon of three days, and their hashes."""
    made(repo, "zero")
    days = ("2026-01-10", "2026-01-11", "2026-01-12")
    return repo, [said(repo, day, at=f"{day}T12:00:00Z") for day in days]


def test_a_revision_or_a_time_names_a_commit_and_nothing_else_does(
    dated: tuple[Clone, list[str]],
) -> None:
    clone, hashes = dated
    # The first ones were made when the test began, whatever the clock said: only their order
    # counts.
    for text, which in (
        ("2026-01-10", 0), ("20260111", 1), ("2026-01-11T11:59:59Z", 0), ("2026-01-11T12:00:00Z", 1),
        ("2026-01-11T12:00", 1), ("2026-01-11 14:00:00+02:00", 1), ("2026-01-11T13:59:59+02:00", 0), ("2030-01-01", 2),
        ("HEAD", 2), ("HEAD~1", 1), ("main", 2), (hashes[1][:10], 1),
    ):  # fmt: skip
        assert commit_at(clone.repository, text).hash == hashes[which]
    for text in (
        *(
            "yesterday",
            "garbage",
            "",
            "2 days ago",
            "-x",
            "^main",
            "main..HEAD",
            "--all",
            "2026-13-01",
        ),
        *("HEAD@{yesterday}", "main@{1 day ago}"),
    ):
        with pytest.raises(InvalidInput):
            commit_at(clone.repository, text)
    for text in ("2001-01-01", "1850-01-01"):
        with pytest.raises(NotFound, match="it begins at"):
            commit_at(clone.repository, text)


def test_a_time_names_the_commit_that_this_branch_had_then(repo: Clone) -> None:
    made(repo, "zero")
    repo.run("checkout", "-qb", "side")
    said(repo, "side", at="2026-01-11T12:00:00Z")
    repo.run("checkout", "-q", "main")
    mine = said(repo, "main", at="2026-01-10T12:00:00Z")
    repo.run("merge", "-q", "--no-edit", "side")
    assert commit_at(repo.repository, "2026-01-12").hash == mine


# -- A version as it was ---------------------------------------------------------------------------


def test_a_past_version_is_read_as_the_store_reads_its_own(dated: tuple[Clone, list[str]]) -> None:
    clone, hashes = dated
    past = version(clone, ID, hashes[1])
    assert [message["content"] for message in past.document["history"]] == [
        "zero",
        "2026-01-10",
        "2026-01-11",
    ]
    assert past.store.head(ID).title == "Plan" and past.store.read(ID) == clone.at(hashes[1], ID)
    assert past.store.page(ID, 1).entries[0][0] == 2


def test_a_commit_without_it_names_the_first_that_has_it(repo: Clone) -> None:
    before = repo.git("rev-parse", "HEAD")
    first = made(repo, "one")
    with pytest.raises(NotFound, match=f"first that has it is {first[:7]}"):
        version(repo, ID, before)
    with pytest.raises(NotFound, match="nor was it ever committed"):
        version(repo, "plan-9", "HEAD")


def test_a_deleted_conversation_is_found_by_the_beginning_of_its_id(repo: Clone) -> None:
    made(repo, "one")
    for is_committed in (False, True):
        with repo.store() as store:
            repo.file(ID).unlink(missing_ok=True)
            if is_committed:
                repo.commit("away")
            assert git.open(store).resolve("plan") == ID
            with pytest.raises(NotFound):
                git.open(store).resolve("nobody")


def test_without_a_repository_no_command_begins(tmp_path: Path) -> None:
    Store.init(tmp_path / "store")
    clone = Clone(tmp_path / "store")
    conversation(clone)
    for words in (
        *(
            "git log plan",
            "show plan --at HEAD",
            "git diff plan HEAD",
            "git restore plan --at HEAD",
        ),
        *("git commit --follow", "git commit", "git sync", "git status", "git setup"),
    ):
        ran = clone.capsule(*words.split(), expect=3)
        assert "is not in a git repository; make one with: git init" in ran.err, words


# -- The commands ----------------------------------------------------------------------------------


def parsed(ran: Ran) -> Any:
    return json.loads(ran.out)


def test_the_log_is_a_line_a_commit(dated: tuple[Clone, list[str]]) -> None:
    clone, hashes = dated
    lines = clone.capsule("git", "log", ID[:4], "-n", "2").lines
    assert [line.split("\t")[1:] for line in lines] == [
        ["2026-01-12T12:00:00+00:00", clone.git("log", "-1", "--format=%an"), "a message added"],
        ["2026-01-11T12:00:00+00:00", clone.git("log", "-1", "--format=%an"), "a message added"],
    ]
    assert all(
        hash.startswith(line.split("\t")[0])
        for hash, line in zip(reversed(hashes), lines, strict=False)
    )
    told = parsed(clone.capsule("git", "log", ID, "--json"))
    assert [step["commit"] for step in told][:3] == list(reversed(hashes))
    assert [len(step["changes"]["added"]) for step in told] == [1, 1, 1, 1]


def test_every_form_of_show_works_on_a_past_version(dated: tuple[Clone, list[str]]) -> None:
    clone, hashes = dated
    at = ("--at", hashes[0])
    ran = clone.capsule("show", ID, *at)
    assert "2026-01-10" in ran.out and "2026-01-11" not in ran.out
    assert f"as of commit {hashes[0][:7]}" in ran.err
    assert len(clone.capsule("branch", "list", ID, *at).lines) == 2
    assert clone.capsule("show", ID, *at, "--raw").out.encode() == clone.at(hashes[0], ID)
    assert len(parsed(clone.capsule("show", ID, *at, "--json"))["history"]) == 2
    assert [
        m["content"] for m in parsed(clone.capsule("show", ID, *at, "--last", "1", "--json"))
    ] == ["2026-01-10"]
    assert [
        m["content"]
        for m in parsed(clone.capsule("show", ID, *at, "--around", "@0", "-C", "0", "--json"))
    ] == ["zero"]
    assert "# Plan" in clone.capsule("show", ID, "--at", "2026-01-10", "--markdown", "--all").out
    assert clone.capsule("show", ID, "--at", "rubbish", expect=2).err.count("\n") == 1


def test_a_difference_reads_like_a_chat(dated: tuple[Clone, list[str]]) -> None:
    clone, hashes = dated
    ran = clone.capsule("git", "diff", ID, hashes[0], hashes[1])
    added = [line for line in ran.lines if line.startswith("+") and not line.startswith("+++")]
    assert any("2026-01-11" in line for line in added) and "\x1b" not in ran.out
    assert not any(line.startswith("-") and "zero" in line for line in ran.lines)
    assert f"--- {hashes[0][:7]}/{ID}.txt" in ran.lines[2]
    say(clone, ID, "not committed \x1b[2J")
    now = clone.capsule("git", "diff", ID, "HEAD")
    assert "not committed \\x1b[2J" in now.out and "+++ now/" in now.out
    assert clone.capsule("git", "diff", ID, "HEAD", "HEAD").out == ""
    told = parsed(clone.capsule("git", "diff", ID, hashes[0], "--json"))
    assert [message["content"] for message in told["added"]][:1] == ["2026-01-11"]
    assert (told["from"], told["to"]) == (hashes[0], None)


@pytest.mark.slow
@pytest.mark.sample
def test_a_version_comes_back_as_a_new_write_and_the_one_before_is_kept(
    dated: tuple[Clone, list[str]],
) -> None:
    clone, hashes = dated
    with clone.store() as store:
        store.append(ID, content="not committed")
        store.rename(ID, "Another")
        before = store.document(ID)
    here = clone.file(ID).read_bytes()
    tried = parsed(clone.capsule("git", "restore", ID, "--at", hashes[0], "--dry-run", "--json"))
    assert clone.file(ID).read_bytes() == here
    assert tried["changes"] == ["3 messages removed", "renamed to 'Plan'"] and tried["kept"] is None
    told = parsed(clone.capsule("git", "restore", ID, "--at", hashes[0], "--json"))
    assert told["changes"] == tried["changes"] and Path(told["kept"]).read_bytes() == here
    with clone.store() as store:
        after = store.document(ID)
        assert [message["id"] for message in after["history"]] == [
            message["id"] for message in before["history"]
        ][:2]
        assert after["title"] == "Plan" and after["updatedAt"] > before["updatedAt"]
        assert after["metadata"]["lock"]["active"] is False
        store.append(ID, content="and on")
    assert clone.git("rev-parse", "HEAD") == hashes[2]
    assert (
        "nothing was changed" in clone.capsule("git", "restore", ID, "--at", commit_of(clone)).out
    )


def commit_of(clone: Clone) -> str:
    return clone.commit("as it is")


def test_a_deleted_conversation_comes_back_from_its_history(repo: Clone) -> None:
    first = made(repo, "one")
    with repo.store() as store:
        store.delete(ID)
        repo.commit("away")
        watching = store.changes().cursor
        said = repo.capsule("git", "restore", ID, "--at", first).out
        assert "created with a message" in said
        assert [change.kind for change in store.changes(watching).changes] == ["restored"]
        assert [message["content"] for message in store.document(ID)["history"]] == ["one"]
    assert repo.capsule("doctor").out.endswith("all is well\n")


def test_the_trash_is_restored_from_as_before(repo: Clone) -> None:
    made(repo, "one")
    repo.capsule("delete", ID, "--yes")
    assert "is back" in repo.capsule("restore", ID).out
    repo.capsule("restore", ID, "--dry-run", expect=2)
