"""`capsule git commit`: what belongs to the store, whole, and nothing else."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store, git
from capsule.errors import GitFailed, InvalidDocument, Refused, Remedy, StoreBusy
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.git import commit
from capsule.git.attributes import driver_config
from capsule.git.commit import DocumentChange, commit_message
from tests.core.storage.faults import cut_power
from tests.git.repositories import PROGRAM, Clone, new
from tests.git.talking import committed, conversation, staged, status
from tests.processes import Child


def subject(clone: Clone) -> str:
    return clone.git("log", "-1", "--format=%s")


def test_a_commit_holds_the_changes_and_its_message_lists_them(repo: Clone) -> None:
    with repo.store() as store:
        plan, ideas = (
            store.create(title="Plan", type="group").id,
            store.create(title="Ideas", type="group").id,
        )
        committed(store)
        for n in range(3):
            store.append(plan, content=f"message {n}")
        store.rename(ideas, "Better ideas")
        done = committed(store)
        assert repo.at("HEAD", plan) == store.read(plan)
    assert sorted(subject(repo).split(", ")) == [
        "'Ideas': renamed to 'Better ideas'",
        "3 messages in 'Plan'",
    ]
    assert set(repo.git("log", "-1", "--format=%b").splitlines()) == {
        f"conversation {plan} 'Plan': 3 messages added",
        f"conversation {ideas} 'Ideas': renamed to 'Better ideas'",
    }
    assert (done.commit, done.count) == (repo.git("rev-parse", "HEAD"), 2)
    assert status(repo) == []


@pytest.mark.parametrize("act", ["commit", "sync", "status", "setup"])
def test_what_a_power_cut_left_incomplete_is_completed_before_git_reads_it(
    repo: Clone, act: str
) -> None:
    id = conversation(repo)
    cut_power(repo.root, id, "acknowledged")
    with repo.store() as store:
        getattr(git.open(store), act)()
    assert b"acknowledged" in (repo.root / "conversations" / f"{id}.json").read_bytes()


def test_the_program_commits_with_a_given_subject_and_prints_json(repo: Clone) -> None:
    id = conversation(repo)
    told = json.loads(repo.capsule("git", "commit", "-m", "My words", "--json").out)
    assert told["subject"] == subject(repo) == "My words"
    assert told["commit"] == repo.git("rev-parse", "HEAD")
    assert told["documents"] == [
        {"kind": "conversations", "id": id, "title": "Plan", "words": ["created"]}
    ]
    assert f"conversation {id} 'Plan': created" in repo.git("log", "-1", "--format=%b")
    assert repo.capsule("git", "commit", "-m", " ", expect=2).err


def test_what_a_person_has_staged_of_other_files_stays_staged_and_is_not_committed(
    monorepo: Clone,
) -> None:
    (monorepo.top / "new.py").write_text("new\n")
    (monorepo.top / "README.md").write_text("staged\n")
    monorepo.run("add", "new.py", "README.md")
    (monorepo.top / "README.md").write_text("and changed again\n")
    (monorepo.top / "untracked.py").write_text("x\n")
    with monorepo.store() as store:
        id = store.create(title="Plan", type="group").id
        committed(store)
    changed = monorepo.run("show", "--name-only", "--format=", "-z", "HEAD").out.split("\0")
    assert [path for path in changed if path] == [monorepo.path(id)]
    assert staged(monorepo) == ["README.md", "new.py"]
    assert monorepo.git("show", ":README.md") == "staged"
    assert (monorepo.top / "README.md").read_text() == "and changed again\n"
    assert sorted(status(monorepo)) == ["?? untracked.py", "A  new.py", "MM README.md"]


def test_a_staged_deletion_and_a_staged_rename_of_a_person_stay_theirs(monorepo: Clone) -> None:
    for name in ("one.py", "two.py"):
        (monorepo.top / name).write_text(f"the words of {name}\n" * 9)
    monorepo.commit()
    monorepo.run("rm", "-q", "one.py")
    monorepo.run("mv", "two.py", "drei ß.py")
    with monorepo.store() as store:
        store.create(title="Plan", type="group")
        committed(store)
    assert "one.py" in monorepo.git("ls-tree", "--name-only", "HEAD").splitlines()
    assert staged(monorepo) == ["drei ß.py", "one.py", "two.py"]
    assert (monorepo.top / "drei ß.py").exists()


def test_a_damaged_file_is_named_and_the_rest_is_committed(repo: Clone) -> None:
    with repo.store() as store:
        good, bad = (
            store.create(title="Good", type="group").id,
            store.create(title="Bad", type="group").id,
        )
        committed(store)
        store.append(good, content="more")
    whole = repo.file(bad).read_bytes()
    repo.file(bad).write_bytes(b'{\n  "id": nope\n')
    ran = repo.capsule("git", "commit", expect=5)
    assert f"{repo.file(bad)}:2:9:" in ran.err
    assert subject(repo) == "a message in 'Good'"
    assert repo.at("HEAD", bad) == whole
    assert repo.file(bad).read_bytes() == b'{\n  "id": nope\n'
    repo.file(bad).write_bytes(whole)
    assert status(repo) == []


def test_a_damaged_file_is_not_committed_as_it_was_staged_before(repo: Clone) -> None:
    with repo.store() as store:
        id = store.create(title="Plan", type="group").id
        committed(store)
        store.append(id, content="staged")
        repo.run("add", repo.path(id))
        repo.file(id).write_bytes(b"{")
        other = store.create(title="Other", type="group").id
        done = committed(store)
        assert [error.path for error in done.invalid] == [str(repo.file(id))]
    assert subject(repo) == "'Other' created"
    assert repo.at("HEAD", other)
    assert staged(repo) == [repo.path(id)]


def test_a_locked_conversation_is_committed_unlocked_and_leaves_the_tree_clean(repo: Clone) -> None:
    with repo.store() as store:
        id = store.create(title="Chat").id
        store.append(id, content="mine")
        assert store.head(id).lock
        committed(store)
        assert codec.decode(repo.at("HEAD", id), "")["metadata"]["lock"]["active"] is False
        assert repo.at("HEAD", id) == clean(store.read(id), id, "conversations")
        assert status(repo) == []
        store.locks.release(id)
        with store.locks.take(id):
            assert committed(store).commit is None
        assert committed(store).commit is None and status(repo) == []


def test_in_the_midst_of_a_persons_merge_it_is_refused_with_the_way_out(monorepo: Clone) -> None:
    monorepo.run("checkout", "-q", "-b", "other")
    (monorepo.top / "README.md").write_text("there\n")
    monorepo.commit()
    monorepo.run("checkout", "-q", "main")
    (monorepo.top / "README.md").write_text("here\n")
    monorepo.commit()
    with monorepo.store() as store:
        store.create(title="Plan", type="group")
        for begin in ("merge", "rebase", "cherry-pick"):
            monorepo.run(begin, "other", expect=1)
            with pytest.raises(GitFailed, match=f"git {begin} --abort"):
                committed(store)
            monorepo.run(begin, "--abort")


def test_conflicts_without_a_merge_are_refused_too(monorepo: Clone) -> None:
    (monorepo.top / "README.md").write_text("aside\n")
    monorepo.run("stash", "-q")
    (monorepo.top / "README.md").write_text("here\n")
    monorepo.commit()
    monorepo.run("stash", "pop", expect=1)
    with (
        monorepo.store() as store,
        pytest.raises(GitFailed, match=r"unresolved conflicts, for example in README\.md"),
    ):
        committed(store)


def test_without_the_attributes_it_is_refused_with_the_way_out(tmp_path: Path) -> None:
    clone = new(tmp_path / "plain", drivers=False)
    with clone.store() as store:
        store.create(title="Plan", type="group")
        with pytest.raises(Refused) as refused:
            committed(store)
    assert refused.value.remedy == Remedy("set up git")
    assert staged(clone) == []


def test_with_the_attributes_and_no_configuration_it_works(tmp_path: Path) -> None:
    clone = new(tmp_path / "fresh clone")
    for section in ("merge.capsule", "diff.capsule", "filter.capsule"):
        clone.run("config", "--remove-section", section)
    with clone.store() as store:
        id = store.create(title="Chat").id
        store.append(id, content="locked")
        committed(store)
        assert clone.at("HEAD", id) == clean(store.read(id), id, "conversations")


def test_a_hook_sees_just_what_is_committed_and_may_refuse_it(
    monorepo: Clone, tmp_path: Path
) -> None:
    (monorepo.top / "mine.py").write_text("x\n")
    monorepo.run("add", "mine.py")
    monorepo.hook(
        "pre-commit",
        f"git diff --cached --name-only -z > '{tmp_path}/seen'",
        "echo not today >&2",
        "exit 1",
    )
    before = monorepo.git("rev-parse", "HEAD")
    with monorepo.store() as store:
        id = store.create(title="Plan", type="group").id
        with pytest.raises(GitFailed, match="not today"):
            committed(store)
        assert (tmp_path / "seen").read_text() == f"{monorepo.path(id)}\0"
        assert monorepo.git("rev-parse", "HEAD") == before
        assert sorted(staged(monorepo)) == sorted(["mine.py", monorepo.path(id)])
        monorepo.hook("pre-commit", "exit 0")
        monorepo.hook("commit-msg", 'echo "by a hook" >> "$1"')
        committed(store)
    assert staged(monorepo) == ["mine.py"]
    assert monorepo.git("log", "-1", "--format=%B").endswith("by a hook")


def test_deleting_a_conversation_is_committed(repo: Clone) -> None:
    with repo.store() as store:
        id = store.create(title="Plan", type="group").id
        committed(store)
        store.delete(id)
        committed(store)
    assert subject(repo) == "'Plan' deleted"
    assert repo.git("ls-files", "conversations") == ""


def test_of_two_stores_in_one_repository_each_commits_its_own(monorepo: Clone) -> None:
    other = Clone(monorepo.top, "other")
    Store.init(other.root)
    (other.root / ".gitattributes").write_bytes((monorepo.root / ".gitattributes").read_bytes())
    with monorepo.store() as one, other.store() as two:
        mine, theirs = (
            one.create(title="Mine", type="group").id,
            two.create(title="Theirs", type="group").id,
        )
        committed(one)
        assert other.path(theirs) not in monorepo.git("ls-files", "-z").split("\0")
        committed(two)
        assert monorepo.at("HEAD", mine) and other.at("HEAD", theirs)
        assert subject(monorepo).startswith("'Theirs' created")
    assert status(monorepo) == []


def test_an_ignored_conversation_is_not_committed(repo: Clone) -> None:
    with repo.store() as store:
        private, public = (
            store.create(title=title, type="group").id for title in ("Private", "Public")
        )
        (repo.top / ".gitignore").write_text(f"conversations/{private}.json\n")
        committed(store)
    assert repo.git("ls-files", "conversations") == repo.path(public)
    assert ".gitignore changed" in repo.git("log", "-1", "--format=%b")


def test_files_that_are_no_documents_stay_out_and_every_kind_of_document_goes_in(
    repo: Clone,
) -> None:
    (repo.root / "conversations" / "no id at all!.json").write_text("{}")
    (repo.root / "conversations" / "notes.txt").write_text("x")
    (repo.root / "notes.txt").write_text("x")
    with repo.store() as store:
        store.servers.set(None, {"git": False})
        assert committed(store).commit is None
        (repo.root / "agents").mkdir()
        repo.file("anna", "agents").write_text('{"id": "anna", "cursors": {}}')
        later = b'{"id": "later", "version": "3.0", "talk": []}'
        repo.file("later").write_bytes(later)
        assert committed(store).count == 2
        assert repo.at("HEAD", "anna", "agents") == b'{\n  "id": "anna",\n  "cursors": {}\n}\n'
        assert repo.at("HEAD", "later") == later
        repo.file("anna", "agents").write_text("{,")
        assert [error.path for error in committed(store).invalid] == [
            str(repo.file("anna", "agents"))
        ]
    assert os.listdir(repo.top / ".git" / "capsule") == ["turn"]


def test_the_first_commit_of_a_repository_can_be_made_by_it(tmp_path: Path) -> None:
    clone = new(tmp_path / "empty", commit=False)
    with clone.store() as store:
        store.create(title="Plan", type="group")
        done = committed(store)
    assert sorted(done.files) == [".gitattributes", "capsule.toml"]
    assert clone.git("rev-list", "--count", "HEAD") == "1"


@pytest.mark.slow
def test_every_committed_version_is_whole_while_others_append(
    repo: Clone, child: Callable[..., Child]
) -> None:
    with repo.store() as store:
        id = store.create(title="Busy", type="group").id
        committed(store)
    writer = child(
        """
        import select
        with Store.open(sys.argv[1], keep_locks=False) as store:
            said = [store.append(sys.argv[2], content="x" * 500).id]
            say("ready")
            while not select.select([sys.stdin], [], [], 0)[0]:
                said.append(store.append(sys.argv[2], content="x" * 500).id)
            say(said)
        """,
        repo.root,
        id,
    )
    writer.hear()
    with repo.store() as store:
        made = [committed(store).commit for _ in range(15)]
        writer.say()
        acknowledged = writer.hear()
        committed(store)
    assert any(made)
    for revision in filter(None, made):
        data = repo.at(revision, id)
        assert clean(data, id, "conversations") == data
    assert {entry["id"] for entry in codec.decode(repo.at("HEAD", id), "")["history"]} >= set(
        acknowledged
    )


@pytest.mark.parametrize("is_staged", [False, True])
def test_an_index_that_another_git_holds_is_waited_for(
    repo: Clone, monkeypatch: pytest.MonkeyPatch, is_staged: bool
) -> None:
    conversation(repo)
    # As a commit leaves it that a hook turned down. There is nothing to be put into the index then.
    if is_staged:
        repo.run("add", "--all")
    lock = Path(repo.repository.directory) / "index.lock"
    lock.touch()
    waited = []

    def sleep(seconds: float) -> None:
        waited.append(seconds)
        if len(waited) == 3:
            lock.unlink()

    monkeypatch.setattr(commit.time, "sleep", sleep)
    with repo.store() as store:
        assert committed(store).commit
    assert len(waited) == 3


def test_an_index_that_stays_held_is_named(repo: Clone, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(commit, "_LOCK_WAIT_S", 0.0)
    (Path(repo.repository.directory) / "index.lock").touch()
    with repo.store() as store:
        store.create(title="Plan", type="group")
        with pytest.raises(GitFailed, match=r"index\.lock"):
            committed(store)


def test_a_second_operation_in_a_worktree_waits_for_the_first(repo: Clone) -> None:
    drivers = driver_config(PROGRAM)
    with repo.store() as store, commit.operation(store, drivers):
        second = commit.operation(store, drivers, timeout_s=0.01)
        with pytest.raises(StoreBusy, match=f"process {os.getpid()}"), second:
            pass


def test_inside_a_hook_of_another_repository_it_works_on_its_own(
    repo: Clone, monorepo: Clone
) -> None:
    conversation(repo)
    inside = {
        "GIT_DIR": str(monorepo.top / ".git"),
        "GIT_INDEX_FILE": str(monorepo.top / ".git" / "index"),
    }
    before = monorepo.git("rev-parse", "HEAD")
    repo.capsule("git", "commit", **inside)
    assert subject(repo) == "'Plan' created"
    assert monorepo.git("rev-parse", "HEAD") == before


def test_a_subject_takes_one_line_and_counts_the_rest_and_no_title_forges_a_line() -> None:
    many = [
        DocumentChange("conversations", f"id{n}", f"Title number {n}", ("3 messages added",))
        for n in range(100)
    ]
    lines = commit_message(many, 900, ["capsule.toml"]).splitlines()
    assert lines[0] == "3 messages in 'Title number 0', 3 messages in 'Title number 1' and 999 more"
    assert lines[1] == "" and len(lines) == 2 + 100 + 2
    assert lines[-2:] == ["and 900 more", "capsule.toml changed"]
    long = DocumentChange("conversations", "id", "T" * 300, ("a message edited",))
    assert commit_message([long], 0, []).splitlines()[0] == f"'{'T' * 39}…': a message edited"
    odd = DocumentChange("conversations", "id", "x\nSigned-off-by: somebody", ("created",))
    assert len(commit_message([odd], 0, []).splitlines()) == 3


def test_a_commit_names_a_file_that_can_not_be_read(repo: Clone) -> None:
    (repo.root / "conversations" / "link.json").symlink_to("elsewhere.json")
    with repo.store() as store:
        done = committed(store)
        assert "symlink" in str(done.invalid[0])
        assert isinstance(done.invalid[0], InvalidDocument)
    assert repo.git("ls-files", "conversations") == ""
