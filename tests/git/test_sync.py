"""`capsule git sync`: from clone to clone, with nobody's words lost and nobody's work touched."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import socket

import pytest

from capsule import Store
from capsule.errors import GitFailed, InvalidDocument, Refused
from capsule.format import codec
from capsule.git.drivers import driver_config
from capsule.git.syncing import sync
from capsule.git.turns import a_turn
from tests.git.repositories import PROGRAM, Clone, bare, cloned, environment, new, published, run, worktree
from tests.git.turning import status, sync_of, synced
from tests.processes import Child

Two = tuple[Clone, Clone]


def contents(clone: Clone, id: str) -> list[str]:
    return [entry["content"] for entry in codec.decode(clone.file(id).read_bytes(), "")["history"]]


def conversation(clone: Clone, *said: str, title: str = "Plan", type: str = "group") -> str:
    with Store.open(clone.root, keep_locks=False) as store:
        id = store.create(title=title, type=type).id
        for text in said:
            store.append(id, content=text)
    return id


def say(clone: Clone, id: str, *said: str) -> None:
    with Store.open(clone.root, keep_locks=False) as store:
        for text in said:
            store.append(id, content=text)


def shared(clones: Two, *said: str, type: str = "group") -> str:
    """A conversation that both clones have."""
    id = conversation(clones[0], *said, type=type)
    for clone in clones:
        sync_of(clone)
    return id


def head(clone: Clone) -> str:
    return clone.git("rev-parse", "HEAD")


def assert_at_rest(clone: Clone) -> None:
    """Assert that nothing waits for a person: no merge, no difference, nothing staged."""
    assert status(clone) == []
    assert not (Path(clone.repository.directory) / "MERGE_HEAD").exists()


def test_what_one_clone_writes_comes_to_the_other(clones: Two) -> None:
    anna, ben = clones
    id = conversation(anna, "hello", "again")
    done = sync_of(anna)
    assert (done.remote, done.pushed, done.received, done.tries) == ("origin/main", 1, 0, 1)
    done = sync_of(ben)
    assert (done.received, done.merged, done.pushed) == (1, "", 0)
    assert ben.file(id).read_bytes() == anna.file(id).read_bytes()
    assert head(anna) == head(ben)
    for clone in clones:
        assert_at_rest(clone)


def test_two_that_both_went_on_have_the_same_words_in_the_end(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    sync_of(anna)
    done = sync_of(ben)
    assert done.merged == head(ben)
    sync_of(anna)
    assert sorted(contents(anna, id)) == ["from anna", "from ben", "one"]
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    for clone in clones:
        assert_at_rest(clone)


def test_the_program_tells_what_it_did(clones: Two) -> None:
    anna, ben = clones
    id = conversation(anna, "hello")
    ran = anna.capsule("git", "sync")
    assert ran.lines[0].endswith("'Plan' created with a message")
    assert ran.lines[1:] == ["pushed 1 commit to origin/main"]
    say(anna, id, "more")
    anna.capsule("git", "sync", "-m", "My words")
    assert ben.capsule("git", "sync").lines == ["received 2 commits from origin/main: 1 document"]
    assert ben.capsule("git", "sync").lines == ["up to date"]
    told = json.loads(ben.capsule("git", "sync", "--json").out)
    assert told["remote"] == "origin/main" and told["committed"]["commit"] is None
    assert (told["received"], told["pushed"], told["merged"], told["conflicts"]) == (0, 0, None, [])
    assert ben.git("log", "-1", "--format=%s") == "My words"


def test_the_first_sync_gives_an_empty_remote_all_and_follows_it(repo: Clone, tmp_path: Path) -> None:
    repo.run("remote", "add", "somewhere", str(bare(tmp_path / "remote.git")))
    id = conversation(repo, "hello")
    done = sync_of(repo)
    assert (done.remote, done.pushed) == ("somewhere/main", 2)
    assert repo.git("rev-parse", "--abbrev-ref", "main@{upstream}") == "somewhere/main"
    assert cloned(tmp_path / "remote.git", tmp_path / "other").file(id).read_bytes() == repo.file(id).read_bytes()


def test_a_repository_without_a_commit_takes_what_the_remote_has(clones: Two, tmp_path: Path) -> None:
    id = shared(clones, "hello")
    late = new(tmp_path / "late", commit=False)
    late.run("remote", "add", "origin", clones[0].git("remote", "get-url", "origin"))
    (late.top / ".git" / "info" / "exclude").write_text("*\n")
    with late.store() as store:
        for name in ("capsule.toml", ".gitattributes"):
            (late.root / name).unlink()
        assert synced(store).received == 2
    assert contents(late, id) == ["hello"]
    assert head(late) == head(clones[0])
    assert_at_rest(late)


def test_histories_that_have_nothing_in_common_are_merged_when_asked(tmp_path: Path) -> None:
    anna, ben = new(tmp_path / "anna"), new(tmp_path / "ben", commit=False)
    ben.commit("begun apart")
    published(anna, tmp_path / "remote.git")
    ben.run("remote", "add", "origin", str(tmp_path / "remote.git"))
    mine, theirs = conversation(anna, "anna's"), conversation(ben, "ben's")
    sync_of(anna)
    before = ben.file(theirs).read_bytes()
    ran = ben.capsule("git", "sync", expect=9)
    assert "capsule git sync --allow-unrelated-histories" in ran.err
    assert ben.file(theirs).read_bytes() == before and not ben.file(mine).exists()
    ben.capsule("git", "sync", "--allow-unrelated-histories")
    sync_of(anna)
    assert contents(ben, mine) == ["anna's"] and contents(anna, theirs) == ["ben's"]


def closed_port() -> int:
    with socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.mark.parametrize("url", ["{0}/gone.git", "file://{0}/gone", "git://127.0.0.1:{1}/x", "http://127.0.0.1:{1}/x"])
def test_a_remote_that_can_not_be_reached_is_no_error(repo: Clone, tmp_path: Path, url: str) -> None:
    repo.run("remote", "add", "origin", url.format(tmp_path, closed_port()))
    id = conversation(repo, "hello")
    ran = repo.capsule("git", "sync")
    assert "origin/main can't be reached" in ran.err
    assert ran.lines[0].startswith("committed ")
    assert repo.at("HEAD", id) == repo.file(id).read_bytes()
    assert json.loads(repo.capsule("git", "sync", "--json").out)["offline"]


def test_a_remote_that_comes_back_gets_what_was_written_meanwhile(clones: Two, tmp_path: Path) -> None:
    anna, ben = clones
    away = tmp_path / "unmounted.git"
    (tmp_path / "remote.git").rename(away)
    id = conversation(anna, "written in the train")
    assert sync_of(anna).offline
    away.rename(tmp_path / "remote.git")
    assert sync_of(anna).pushed == 1
    sync_of(ben)
    assert contents(ben, id) == ["written in the train"]


class _Refusing(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(401)
        self.send_header("WWW-Authenticate", 'Basic realm="closed"')
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def refusing() -> Iterator[str]:
    """A server that knows nobody."""
    with HTTPServer(("127.0.0.1", 0), _Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/x.git"
        server.shutdown()
        thread.join()


def test_a_remote_that_does_not_know_us_is_an_error(repo: Clone, refusing: str) -> None:
    repo.run("remote", "add", "origin", refusing)
    id = conversation(repo, "hello")
    ran = repo.capsule("git", "sync", expect=9, GIT_TERMINAL_PROMPT="0")
    assert "could not read Username" in ran.err
    assert repo.at("HEAD", id) == repo.file(id).read_bytes()


def test_a_remote_whose_hook_turns_a_push_down_is_an_error_and_not_asked_again(clones: Two, tmp_path: Path) -> None:
    hook = tmp_path / "remote.git" / "hooks" / "pre-receive"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\necho asked >> '{tmp_path}/asked'\necho closed on sundays >&2\nexit 1\n")
    hook.chmod(0o755)
    conversation(clones[0], "hello")
    with pytest.raises(GitFailed, match="closed on sundays") as refused:
        sync_of(clones[0])
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert "remote rejected" in refused.value.words
    # `git push --porcelain` ends with that, whatever came of it.
    assert "Done" not in refused.value.words.splitlines()


def test_who_is_overtaken_merges_and_pushes_again(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    steps: list[str] = []

    def overtake(step: str, done: int, total: int) -> None:
        if step == "push" and "push" not in steps:
            sync_of(ben)
        steps.append(step)

    done = sync_of(anna, overtake)
    assert (done.tries, steps.count("push")) == (2, 2)
    sync_of(ben)
    assert sorted(contents(anna, id)) == ["from anna", "from ben", "one"]
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()


def test_who_is_overtaken_again_and_again_is_told(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")

    def overtake(step: str, done: int, total: int) -> None:
        if step == "push":
            say(ben, id, "first!")
            sync_of(ben)

    with pytest.raises(GitFailed, match=r"others kept pushing .* sync again"):
        sync_of(anna, overtake)
    sync_of(anna)
    assert contents(anna, id).count("first!") == 10


def test_without_a_branch_it_is_refused(clones: Two) -> None:
    clones[0].run("checkout", "-q", "--detach")
    with pytest.raises(GitFailed, match="git switch BRANCH"):
        sync_of(clones[0])


def test_with_several_remotes_and_none_followed_it_asks_which(repo: Clone) -> None:
    for name in ("one", "two"):
        repo.run("remote", "add", name, f"/{name}")
    with pytest.raises(Refused, match=r"one, two.*git push -u REMOTE main"):
        sync_of(repo)


def test_without_a_remote_it_commits_and_says_so(repo: Clone) -> None:
    id = conversation(repo, "hello")
    ran = repo.capsule("git", "sync")
    assert "git remote add" in ran.err
    assert repo.at("HEAD", id)


def test_a_branch_of_another_name_there_is_followed(clones: Two) -> None:
    anna, ben = clones
    ben.run("checkout", "-q", "-b", "here", "--track", "origin/main")
    ben.run("branch", "-q", "-D", "main")
    id = conversation(ben, "from the branch here")
    assert sync_of(ben).remote == "origin/main"
    sync_of(anna)
    assert contents(anna, id) == ["from the branch here"]


# -- Who writes meanwhile ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("at", ["fetch", "merge", "check", "rehearse", "write", "index", "files", "head", "push"])
def test_what_is_written_at_any_moment_of_a_sync_is_kept(clones: Two, at: str) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")
    sync_of(anna)
    say(ben, id, "from ben")
    written: list[str] = []

    def write(step: str, done: int, total: int) -> None:
        if step == at and not written:
            written.append(at)
            say(ben, id, "meanwhile")

    sync_of(ben, write)
    assert written
    assert sorted(contents(ben, id)) == ["from anna", "from ben", "meanwhile", "one"]
    sync_of(ben)
    sync_of(anna)
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    for clone in clones:
        assert_at_rest(clone)


HOLDER = """
    store = Store.open(sys.argv[1])
    store.append(sys.argv[2], content="locked now")
    say(store.head(sys.argv[2]).lock["instanceId"])
    while (text := hear()) is not None:
        message = store.append(sys.argv[2], content=text)
        say([entry.content for entry in store.load(sys.argv[2]).history])
    store.close()
    say("closed")
"""


def test_others_words_come_into_a_locked_chat_and_its_holder_keeps_the_lock(
    clones: Two, child: Callable[..., Child]
) -> None:
    anna, ben = clones
    id = shared(clones, "one", type="chat")
    holder = child(HOLDER, ben.root, id)
    instance = holder.hear()
    say(anna, id, "from anna")
    sync_of(anna)
    sync_of(ben)
    lock = codec.decode(ben.file(id).read_bytes(), "")["metadata"]["lock"]
    assert (lock["active"], lock["instanceId"]) == (True, instance)
    holder.say("after the sync")
    said = holder.hear()
    assert sorted(said) == ["after the sync", "from anna", "locked now", "one"]
    assert status(ben) == [f" M {ben.path(id)}"]
    holder.say(None)
    assert holder.hear() == "closed"
    sync_of(ben)
    sync_of(anna)
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()


def test_an_open_store_elsewhere_goes_on_after_a_sync(clones: Two, child: Callable[..., Child]) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    with Store.open(ben.root, keep_locks=False) as open_before:
        assert len(open_before.tail(id, 5)) == 1
        open_before.append(id, content="before")
        say(anna, id, "from anna")
        sync_of(anna)
        sync_of(ben)
        assert sorted(message.content for message in open_before.tail(id, 5)) == ["before", "from anna", "one"]
        open_before.append(id, content="after")
        assert open_before.search("anna").hits
    assert contents(ben, id)[-1] == "after"


def test_who_watches_is_told_of_what_a_sync_brought_as_of_any_change(clones: Two) -> None:
    anna, ben = clones
    id, gone = shared(clones, "one"), shared(clones, "to go")
    with Store.open(ben.root) as watching:
        since = watching.changes().cursor
        say(anna, id, "from anna")
        new_one = conversation(anna, "new")
        with anna.store() as store:
            store.rename(id, "Named")
            store.delete(gone)
        sync_of(anna)
        sync_of(ben)
        heard = watching.wait_for_changes(since, timeout_s=30).changes
        told = {(change.kind, change.id) for change in heard}
        assert {("appended", id), ("head", id), ("created", new_one), ("deleted", gone)} <= told
        assert not any(change.own for change in heard)


def test_a_stale_save_after_a_sync_loses_nothing_of_what_came(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    opened = codec.decode(ben.file(id).read_bytes(), "")
    say(anna, id, "from anna")
    sync_of(anna)
    sync_of(ben)
    opened["history"][0]["content"] = "one, edited in an editor that was open all the time"
    ben.file(id).write_bytes(codec.encode(opened))
    with ben.store() as store:
        assert [entry.content for entry in store.load(id).history] == [opened["history"][0]["content"], "from anna"]


# -- Deleting ----------------------------------------------------------------------------------------------------------


def delete(clone: Clone, id: str) -> None:
    with Store.open(clone.root, keep_locks=False) as store:
        store.delete(id)


def test_what_was_deleted_there_goes_to_the_trash_here(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    delete(anna, id)
    sync_of(anna)
    sync_of(ben)
    with ben.store() as store:
        assert not ben.file(id).exists()
        assert [trashed.id for trashed in store.trash()] == [id]
    assert_at_rest(ben)


def test_what_was_deleted_there_and_written_to_here_is_kept_and_comes_back_there(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    delete(anna, id)
    sync_of(anna)
    say(ben, id, "still needed")
    ran = ben.capsule("git", "sync")
    assert f"kept {ben.path(id)}, which one side deleted and the other changed" in ran.lines
    sync_of(anna)
    assert contents(anna, id) == ["one", "still needed"]


def test_what_was_deleted_there_and_is_written_to_this_moment_is_kept(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    delete(anna, id)
    sync_of(anna)

    def write(step: str, done: int, total: int) -> None:
        if step == "write":
            say(ben, id, "still needed")

    done = sync_of(ben, write)
    assert done.applied[0].documents[ben.path(id)].what == "kept"
    sync_of(ben)
    sync_of(anna)
    assert contents(anna, id) == ["one", "still needed"]


def test_what_was_deleted_there_and_is_locked_here_is_kept(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one", type="chat")
    delete(anna, id)
    sync_of(anna)
    with ben.store() as holder, holder.lock(id):
        ran = ben.capsule("git", "sync")
        assert "it is locked by tester" in ran.out
        holder.append(id, content="mine")
    sync_of(ben)
    sync_of(anna)
    assert contents(anna, id) == ["one", "mine"]


# -- Conflicts ---------------------------------------------------------------------------------------------------------


def rename(clone: Clone, id: str, title: str) -> None:
    with Store.open(clone.root, keep_locks=False) as store:
        store.rename(id, title)


def test_where_both_named_it_one_title_stands_and_the_other_awaits_a_person(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    rename(anna, id, "Anna's")
    rename(ben, id, "Ben's")
    sync_of(anna)
    ran = ben.capsule("git", "sync", expect=1)
    assert f"conversation {id}" in ran.err and ": title" in ran.err and "capsule resolve" in ran.err
    assert "pushed 2 commits to origin/main" in ran.lines
    assert_at_rest(ben)
    sync_of(anna)
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    document = codec.decode(anna.file(id).read_bytes(), "")
    assert document["title"] in ("Anna's", "Ben's")
    told = json.loads(anna.capsule("git", "sync", "--json", expect=1).out)
    assert [(one["id"], one["field"]) for one in told["conflicts"]] == [(id, "title")]
    anna.capsule("resolve", id, "title", "--keep", "1")
    anna.capsule("git", "sync")
    ben.capsule("git", "sync")
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()


def code(clone: Clone, text: str, name: str = "README.md", *, commit: bool = True) -> None:
    (clone.top / name).write_text(text)
    if commit:
        clone.run("add", name)
        clone.run("commit", "-qm", f"{name} changed")


@pytest.fixture
def monorepos(monorepo: Clone, tmp_path: Path) -> Two:
    """Two clones of a repository with a store in a folder of it."""
    remote = published(monorepo, tmp_path / "remote.git")
    return monorepo, cloned(remote, tmp_path / "other clone", monorepo.folder)


def test_in_a_monorepo_code_is_merged_along_and_a_persons_own_changes_stay(monorepos: Two) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    code(anna, "by anna\n", "anna.py")
    code(ben, "by ben\n", "ben.py")
    code(ben, "staged\n", "staged.py", commit=False)
    ben.run("add", "staged.py")
    code(ben, "not staged\n", commit=False)
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    sync_of(anna)
    sync_of(ben)
    assert (ben.top / "anna.py").read_text() == "by anna\n"
    assert sorted(status(ben)) == [" M README.md", "A  staged.py"]
    assert (ben.top / "README.md").read_text() == "not staged\n"
    sync_of(anna)
    assert sorted(contents(anna, id)) == ["from anna", "from ben", "one"]
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    assert_at_rest(anna)


def test_code_that_only_a_person_can_merge_changes_nothing_and_the_way_out_works(monorepos: Two) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    code(anna, "by anna\n")
    say(anna, id, "from anna")
    sync_of(anna)
    code(ben, "by ben\n")
    say(ben, id, "from ben")
    ran = ben.capsule("git", "sync", expect=9)
    assert "README.md" in ran.err
    assert contents(ben, id) == ["one", "from ben"]
    assert (ben.top / "README.md").read_text() == "by ben\n"
    assert_at_rest(ben)
    way_out = ran.err.rstrip().rpartition(": ")[2]
    assert way_out == f"git -C {ben.top} pull --no-rebase origin main"
    ben.run("pull", "-q", "--no-rebase", "origin", "main", expect=1)
    code(ben, "by both\n", commit=False)
    ben.run("commit", "-qam", "merged by hand")
    sync_of(ben)
    sync_of(anna)
    assert sorted(contents(anna, id)) == ["from anna", "from ben", "one"]
    assert (anna.top / "README.md").read_text() == "by both\n"


@pytest.mark.parametrize("tracked", [True, False])
def test_a_file_that_a_person_is_changing_is_not_overwritten(monorepos: Two, tracked: bool) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    name = "README.md" if tracked else "new.py"
    code(anna, "by anna\n", name)
    say(anna, id, "from anna")
    sync_of(anna)
    say(ben, id, "from ben")
    code(ben, "not committed\n", name, commit=False)
    with pytest.raises(GitFailed, match=rf"{name}") as caught:
        sync_of(ben)
    assert "git stash" in str(caught.value)
    assert (ben.top / name).read_text() == "not committed\n"
    assert contents(ben, id) == ["one", "from ben"]
    (ben.top / name).unlink()
    if tracked:
        ben.run("checkout", "-q", "--", name)
    sync_of(ben)
    assert sorted(contents(ben, id)) == ["from anna", "from ben", "one"]


def test_a_damaged_file_that_nobody_else_changed_holds_up_nothing(clones: Two) -> None:
    anna, ben = clones
    id, other = shared(clones, "one"), shared(clones, "two")
    say(anna, id, "from anna")
    sync_of(anna)
    ben.file(other).write_bytes(b'{"id": ')
    ran = ben.capsule("git", "sync", expect=5)
    assert f"{ben.file(other)}:1:8" in ran.err
    assert contents(ben, id) == ["one", "from anna"]
    assert ben.file(other).read_bytes() == b'{"id": '


def test_a_damaged_file_that_was_changed_there_too_is_named_and_nothing_is_changed(clones: Two) -> None:
    anna, ben = clones
    id, other = shared(clones, "one"), shared(clones, "two")
    say(anna, id, "from anna")
    say(anna, other, "from anna")
    sync_of(anna)
    whole = ben.file(other).read_bytes()
    ben.file(other).write_bytes(b'{"id": ')
    with pytest.raises(InvalidDocument, match=r"mend it, then sync again"):
        sync_of(ben)
    assert contents(ben, id) == ["one"]
    assert ben.file(other).read_bytes() == b'{"id": '
    ben.file(other).write_bytes(whole)
    sync_of(ben)
    assert contents(ben, id) == ["one", "from anna"]
    assert contents(ben, other) == ["two", "from anna"]


def pushed_past_us(clone: Clone, id: str, data: bytes | None) -> None:
    """Commit and push what only a git without our drivers would: damaged bytes, or a symlink."""
    if data is None:
        clone.file(id).unlink()
        clone.file(id).symlink_to("/etc/hostname")
    else:
        clone.file(id).write_bytes(data)
    plain = ("-c", "filter.capsule.process=", "-c", "filter.capsule.required=false", "-c", "core.hooksPath=/dev/null")
    clone.run(*plain, "commit", "-qam", "past us")
    clone.run("push", "-q")


@pytest.mark.parametrize("data", [b'{"id": ', None])
@pytest.mark.parametrize("diverged", [True, False])
def test_what_no_conversation_is_does_not_come_in(clones: Two, data: bytes | None, diverged: bool) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    pushed_past_us(anna, id, data)
    if diverged:
        conversation(ben, "elsewhere")
    with pytest.raises((GitFailed, InvalidDocument), match=rf"{id}\.json"):
        sync_of(ben)
    assert contents(ben, id) == ["one"]
    assert not ben.file(id).is_symlink()
    assert_at_rest(ben)


def test_a_capsule_of_a_newer_major_version_comes_as_it_is(clones: Two) -> None:
    anna, ben = clones
    first, second = (b'{"id": "later", "version": "3.0", "talk": [%d]}' % n for n in (1, 2))
    for data in (first, second):
        anna.file("later").write_bytes(data)
        sync_of(anna)
        sync_of(ben)
        assert ben.file("later").read_bytes() == data
    assert_at_rest(ben)


# -- Places ------------------------------------------------------------------------------------------------------------


def test_in_a_linked_worktree_it_syncs_that_branch(monorepos: Two, tmp_path: Path) -> None:
    anna, ben = monorepos
    side = worktree(ben, tmp_path / "side by side", "side")
    id = conversation(side, "from the side")
    sync_of(side)
    anna.run("fetch", "-q")
    anna.run("checkout", "-q", "side")
    say(anna, id, "from anna")
    sync_of(anna)
    say(side, id, "again")
    sync_of(side)
    sync_of(anna)
    assert sorted(contents(anna, id)) == ["again", "from anna", "from the side"]
    assert anna.file(id).read_bytes() == side.file(id).read_bytes()
    assert ben.git("rev-parse", "--abbrev-ref", "HEAD") == "main" and status(ben) == []


def test_with_autocrlf_both_have_the_same_bytes(clones: Two) -> None:
    anna, ben = clones
    ben.configure(core_autocrlf="true")
    id = shared(clones, "one", "a\r\nb")
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    for clone in (anna, ben, anna):
        sync_of(clone)
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    assert b"\r\n" not in ben.file(id).read_bytes()
    for clone in clones:
        assert_at_rest(clone)


def test_another_store_in_the_repository_keeps_what_is_not_committed_there(monorepos: Two) -> None:
    anna, ben = monorepos
    others = tuple(Clone(clone.top, "other störe") for clone in monorepos)
    Store.init(others[0].root)
    (others[0].root / ".gitattributes").write_bytes((anna.root / ".gitattributes").read_bytes())
    id = shared((others[0], anna), "one")  # The second sync is the other store's: it pushes nothing new.
    sync_of(ben)
    say(others[0], id, "from anna")
    sync_of(others[0])
    say(others[1], id, "from ben, not committed")
    sync_of(ben)
    assert sorted(contents(others[1], id)) == ["from anna", "from ben, not committed", "one"]
    assert status(ben) == [f" M {others[1].path(id)}"]
    sync_of(others[1])
    sync_of(anna)
    assert others[0].file(id).read_bytes() == others[1].file(id).read_bytes()


def test_what_comes_does_not_leave_the_repository_through_a_symlink(monorepos: Two, tmp_path: Path) -> None:
    anna, ben = monorepos
    shared(monorepos, "one")
    outside = Clone(tmp_path / "outside")
    outside.top.mkdir()
    Store.init(outside.root)
    kept = conversation(outside, "private")
    (anna.top / "link" / "conversations").mkdir(parents=True)
    forged = codec.decode(outside.file(kept).read_bytes(), "")
    forged["history"][0]["content"] = "forged"
    (anna.top / "link" / "conversations" / f"{kept}.json").write_bytes(codec.encode(forged))
    anna.commit("a trap")
    anna.run("push", "-q")
    (ben.top / "link").symlink_to(outside.top)
    before = outside.file(kept).read_bytes()
    with pytest.raises(GitFailed):
        sync_of(ben)
    assert outside.file(kept).read_bytes() == before


def test_settings_come_along_as_files_do(clones: Two) -> None:
    anna, ben = clones
    with (anna.root / "capsule.toml").open("a") as file:
        file.write("\n# a remark\n")
    sync_of(anna)
    sync_of(ben)
    assert (ben.root / "capsule.toml").read_bytes() == (anna.root / "capsule.toml").read_bytes()


def test_agents_are_merged_and_come_along(clones: Two) -> None:
    anna, ben = clones
    (anna.root / "agents").mkdir()
    anna.file("helper", "agents").write_bytes(codec.encode({"name": "Helper", "cursors": {}}))
    sync_of(anna)
    sync_of(ben)
    for clone, key in ((anna, "a"), (ben, "b")):
        document = codec.decode(clone.file("helper", "agents").read_bytes(), "")
        clone.file("helper", "agents").write_bytes(codec.encode({**document, key: 1}))
    for clone in (anna, ben, anna):
        sync_of(clone)
    data = anna.file("helper", "agents").read_bytes()
    assert data == ben.file("helper", "agents").read_bytes()
    assert {"a", "b"} <= codec.decode(data, "").keys()
    anna.file("helper", "agents").unlink()
    sync_of(anna)
    sync_of(ben)
    assert not ben.file("helper", "agents").exists()


def test_a_merge_is_signed_where_commits_are(clones: Two, tmp_path: Path) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    sync_of(anna)
    key = tmp_path / "key"
    if not shutil.which("ssh-keygen"):
        pytest.skip("there is no ssh-keygen here")
    run(tmp_path, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    ben.configure(gpg_format="ssh", user_signingkey=str(key), commit_gpgsign="true")
    done = sync_of(ben)
    for commit in (done.merged, done.committed.commit):
        assert "-----BEGIN SSH SIGNATURE-----" in ben.git("cat-file", "commit", str(commit))


def test_many_come_at_once(clones: Two) -> None:
    anna, ben = clones
    with Store.open(anna.root, keep_locks=False) as store:
        made = {store.create(title=f"Number {n}", type="group", messages=[{"role": "user", "content": "x"}]).id
                for n in range(300)}  # fmt: skip
    sync_of(anna)
    seen: list[tuple[str, int, int]] = []
    sync_of(ben, lambda *told: seen.append(told))
    assert {path.stem for path in (ben.root / "conversations").glob("*.json")} == made
    assert [done for step, done, total in seen if step == "write" and total == 300] == list(range(300))
    assert anna.git("log", "-1", "--format=%s").endswith("and 298 more")
    assert_at_rest(ben)


def test_a_sync_and_a_reader_of_the_store_share_no_mutex_for_long(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    with Store.open(ben.root) as reading:

        def read(step: str, done: int, total: int) -> None:
            reading.append(id, content=step)

        say(anna, id, "from anna")
        sync_of(anna)
        with Store.open(ben.root, keep_locks=False) as store:
            synced(store, read)
    assert {"fetch", "write", "files", "head"} <= set(contents(ben, id))


@pytest.mark.parametrize("driver", ["exit 1", "exit 0", "/nowhere/python"])
def test_a_driver_that_can_not_be_run_costs_nobody_their_words(clones: Two, driver: str) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    sync_of(anna)
    drivers = driver_config(PROGRAM) | {"merge.capsule.driver": driver}
    with ben.store() as store, a_turn(store, environment(), drivers) as turn:
        sync(turn)
    assert sorted(contents(ben, id)) == ["from anna", "from ben", "one"]


def test_two_conversations_that_are_alike_are_not_taken_for_one_that_was_renamed(clones: Two) -> None:
    anna, ben = clones
    text = [f"the same long text, line {n}" for n in range(30)]
    id, gone = shared(clones, *text), shared(clones, *text)
    delete(anna, id)
    delete(anna, gone)
    alike = conversation(anna, *text)
    sync_of(anna)
    say(ben, id, "still needed")
    delete(ben, gone)
    mine = conversation(ben, *text)
    sync_of(ben)
    sync_of(anna)
    for clone in clones:
        assert contents(clone, id) == [*text, "still needed"]
        assert contents(clone, alike) == contents(clone, mine) == text
        assert not clone.file(gone).exists()
        assert_at_rest(clone)


def test_what_was_deleted_stays_so_when_the_branches_have_crossed(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    for clone, words, name in ((anna, "from anna", "a"), (ben, "from ben", "b")):
        say(clone, id, words)
        clone.capsule("git", "commit")
        clone.run("push", "-q", "origin", f"HEAD:refs/heads/{name}")
    for clone, other in ((anna, "b"), (ben, "a")):
        clone.run("fetch", "-q")
        clone.run("merge", "-q", "--no-edit", f"origin/{other}")
    with Store.open(anna.root, keep_locks=False) as store:
        gone = next(message.id for message in store.load(id).history if message.content == "from anna")
        assert gone is not None
        store.delete_message(id, gone, keep_children=True)
    say(ben, id, "still here")
    sync_of(anna)
    sync_of(ben)
    sync_of(anna)
    for clone in clones:
        assert contents(clone, id) == ["one", "from ben", "still here"]


def test_what_merging_decided_is_told(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one", type="chat")
    for clone, words in ((anna, "by anna"), (ben, "by ben")):
        with Store.open(clone.root, keep_locks=False) as store:
            store.edit_message(id, store.load(id).history[0].id or "", words)
    sync_of(anna)
    ran = ben.capsule("git", "sync")
    assert "edited on both sides" in ran.out
    assert sorted(contents(ben, id)) == ["by anna", "by ben"]


def test_without_the_attributes_nothing_is_merged_line_by_line(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    (anna.root / ".gitattributes").unlink()
    anna.commit("without the attributes")
    anna.run("push", "-q")
    sync_of(ben)
    rename(anna, id, "Anna's")
    anna.commit("past us")
    anna.run("push", "-q")
    conversation(ben, "elsewhere")
    ben.run("-c", "filter.capsule.process=", "add", "--all")
    ben.run("commit", "-qm", "past us")
    with pytest.raises(Refused, match="capsule git setup"):
        sync_of(ben)
    assert contents(ben, id) == ["one"]


def test_a_git_that_is_too_old_to_merge_is_said_with_the_way_out(monorepos: Two, tmp_path: Path) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    code(anna, "by anna\n", "anna.py")
    code(ben, "by ben\n", "ben.py")
    say(anna, id, "from anna")
    say(ben, id, "from ben")
    sync_of(anna)
    old = tmp_path / "bin" / "git"
    old.parent.mkdir()
    old.write_text(
        '#!/bin/sh\ncase " $* " in\n*" merge-tree "*) echo "usage: git merge-tree <base-tree> ..." >&2; exit 129;;\n'
        f'*" version "*) echo "git version 2.30.1"; exit 0;;\nesac\nexec {shutil.which("git")} "$@"\n'
    )
    old.chmod(0o755)
    path = f"{old.parent}:{environment()['PATH']}"
    ran = ben.capsule("git", "sync", expect=9, PATH=path)
    assert "needs git 2.38, and this is git version 2.30.1" in ran.err and "pull --no-rebase" in ran.err
    assert contents(ben, id) == ["one", "from ben"]
    anna.capsule("git", "sync", PATH=path)
