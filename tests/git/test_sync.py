"""`capsule git sync`: from clone to clone, with nobody's words lost and nobody's work touched."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from socket import socket

import pytest

from capsule.errors import GitFailed, Refused
from tests.git.repositories import Clone, bare, cloned, new, published, script
from tests.git.talking import (
    Two,
    assert_at_rest,
    contents,
    conversation,
    head,
    say,
    shared,
    sync_of,
    synced,
)


def test_a_sync_brings_what_the_other_clone_wrote(clones: Two) -> None:
    anna, ben = clones
    id = conversation(anna, "hello", "again")
    done = sync_of(anna)
    assert (done.remote, done.pushed, done.received, done.tries) == ("origin/main", 1, 0, 1)
    done = sync_of(ben)
    assert (done.received, done.merged, done.pushed) == (1, "", 0)
    assert ben.file(id).read_bytes() == anna.file(id).read_bytes()
    assert head(anna) == head(ben)
    assert_at_rest(*clones)


@pytest.mark.slow
def test_the_program_prints_what_a_sync_did(clones: Two) -> None:
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


def test_the_first_sync_gives_an_empty_remote_all_and_follows_it(
    repo: Clone, tmp_path: Path
) -> None:
    repo.run("remote", "add", "somewhere", str(bare(tmp_path / "remote.git")))
    id = conversation(repo, "hello")
    done = sync_of(repo)
    assert (done.remote, done.pushed) == ("somewhere/main", 2)
    assert repo.git("rev-parse", "--abbrev-ref", "main@{upstream}") == "somewhere/main"
    assert (
        cloned(tmp_path / "remote.git", tmp_path / "other").file(id).read_bytes()
        == repo.file(id).read_bytes()
    )


def test_a_repository_without_a_commit_takes_what_the_remote_has(
    clones: Two, tmp_path: Path
) -> None:
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_remote_that_can_not_be_reached_is_no_error_and_gets_all_of_it_later(
    clones: Two, tmp_path: Path
) -> None:
    anna, ben = clones
    remote, away, port = tmp_path / "remote.git", tmp_path / "unmounted.git", closed_port()
    remote.rename(away)
    id = conversation(anna, "written in the train")
    for url in (
        str(remote),
        f"file://{remote}",
        f"git://127.0.0.1:{port}/x",
        f"http://127.0.0.1:{port}/x",
    ):
        anna.run("remote", "set-url", "origin", url)
        ran = anna.capsule("git", "sync", "--json")
        assert json.loads(ran.out)["offline"], url
    assert anna.at("HEAD", id) == anna.file(id).read_bytes()
    anna.run("remote", "set-url", "origin", str(remote))
    away.rename(remote)
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


def test_a_remote_whose_hook_turns_a_push_down_is_an_error_and_not_asked_again(
    clones: Two, tmp_path: Path
) -> None:
    hook = tmp_path / "remote.git" / "hooks" / "pre-receive"
    script(hook, f"echo asked >> '{tmp_path}/asked'", "echo closed on sundays >&2", "exit 1")
    conversation(clones[0], "hello")
    with pytest.raises(GitFailed, match="closed on sundays") as refused:
        sync_of(clones[0])
    assert (tmp_path / "asked").read_text() == "asked\n"
    assert "remote rejected" in refused.value.words
    # `git push --porcelain` ends with that, whatever came of it.
    assert "Done" not in refused.value.words.splitlines()


def test_a_sync_merges_and_pushes_again_after_a_push_by_others(clones: Two) -> None:
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
    assert (done.tries, steps.count("push"), done.merged) == (2, 2, head(anna))
    sync_of(ben)
    assert sorted(contents(anna, id)) == ["from anna", "from ben", "one"]
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()


@pytest.mark.slow
def test_a_sync_gives_up_after_ten_pushes_by_others(clones: Two) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    say(anna, id, "from anna")

    def overtake(step: str, done: int, total: int) -> None:
        if step == "push":
            say(ben, id, "first!")
            sync_of(ben)

    with pytest.raises(GitFailed, match=r"others pushed to .* 10 times in a row; .* sync again"):
        sync_of(anna, overtake)
    sync_of(anna)
    assert contents(anna, id).count("first!") == 10


def test_without_a_branch_it_is_refused(clones: Two) -> None:
    clones[0].run("checkout", "-q", "--detach")
    with pytest.raises(GitFailed, match="git switch BRANCH"):
        sync_of(clones[0])


def test_without_a_remote_it_commits_and_with_several_it_asks_which(repo: Clone) -> None:
    id = conversation(repo, "hello")
    assert "git remote add" in repo.capsule("git", "sync").err
    assert repo.at("HEAD", id)
    for name in ("one", "two"):
        repo.run("remote", "add", name, f"/{name}")
    with pytest.raises(Refused, match=r"one, two.*git push -u REMOTE main"):
        sync_of(repo)


def test_a_branch_of_another_name_there_is_followed(clones: Two) -> None:
    anna, ben = clones
    ben.run("checkout", "-q", "-b", "here", "--track", "origin/main")
    ben.run("branch", "-q", "-D", "main")
    id = conversation(ben, "from the branch here")
    assert sync_of(ben).remote == "origin/main"
    sync_of(anna)
    assert contents(anna, id) == ["from the branch here"]
