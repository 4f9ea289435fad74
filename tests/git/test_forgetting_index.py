"""Every form that git writes its index in: its own programs judge what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.git.drivers import ATTRIBUTES
from capsule.git.forgetting import _FILTERED, forget, forgotten
from tests.git.repositories import Clone, new, run
from tests.git.turning import status

#: What a repository is made with, and what is done in it, so that its index has another form.
FORMS: dict[str, tuple[tuple[str, ...], tuple[tuple[str, ...], ...]]] = {
    "version 2": ((), (("update-index", "--index-version", "2"),)),
    "version 3": ((), (("update-index", "--skip-worktree", "a file"),)),
    "version 4": ((), (("update-index", "--index-version", "4"),)),
    "version 4 with flags": ((), (("update-index", "--index-version", "4", "--skip-worktree", "a file"),)),
    "sha256": (("--object-format=sha256",), ()),
    "sha256, version 4": (("--object-format=sha256",), (("update-index", "--index-version", "4"),)),
    "untracked cache": ((), (("update-index", "--untracked-cache"), ("status",))),
    "file system monitor": ((), (("config", "core.fsmonitor", "{monitor}"), ("status",))),
    "offsets for threads": ((), (("config", "index.threads", "2"), ("update-index", "--force-write-index"))),
}
MONITOR = """#!/bin/sh
printf 'token\\0'
exec git -c core.fsmonitor=false ls-files -z
"""


def talking(clone: Clone) -> str:
    with clone.store() as store:
        id = store.create(title="Plans", messages=[{"role": "user", "content": "Hello"}]).id
        for number in range(5):
            store.create(title=f"Others {number}")
    clone.commit()
    return id


def entries(clone: Clone) -> str:
    """All of the index but the stat data, which is what git tells itself for its own use."""
    return clone.run("ls-files", "-s", "-t", "-v").out + clone.run("diff", "--cached").out


def size(clone: Clone, id: str) -> int:
    told = clone.run("ls-files", "--debug", "--", clone.path(id)).out
    return int(told.partition("size: ")[2].split()[0])


@pytest.mark.parametrize("form", FORMS)
def test_git_reads_the_index_and_finds_the_locked_file_unchanged(tmp_path: Path, form: str) -> None:
    given_to_init, commands = FORMS[form]
    top, monitor = tmp_path / "repo", tmp_path / "monitor"
    monitor.write_text(MONITOR, encoding="utf-8")
    monitor.chmod(0o755)
    top.mkdir()
    run(top, "git", "init", "-q", "-b", "main", *given_to_init)
    (top / "a file").touch()
    clone = new(top)
    id = talking(clone)
    for command in commands:
        clone.run(*(word.format(monitor=monitor) for word in command))
    index = top / ".git" / "index"
    before, seen, mode = index.read_bytes(), entries(clone), index.stat().st_mode
    assert size(clone, id) == clone.file(id).stat().st_size
    with Store.open(top, lock_changed=forget) as store:
        store.lock(id)
        after = index.read_bytes()
        assert sum(one != other for one, other in zip(before, after, strict=True)) <= 4 + 4 + 32
        assert size(clone, id) == 0
        assert index.stat().st_mode == mode
        assert entries(clone) == seen
        assert status(clone) == []
        assert size(clone, id) == clone.file(id).stat().st_size
    assert status(clone) == []
    assert clone.run("fsck").code == 0
    assert entries(clone) == seen


def test_an_index_without_a_checksum_stays_without(repo: Clone) -> None:
    id = talking(repo)
    index = repo.top / ".git" / "index"
    index.write_bytes(index.read_bytes()[:-20] + bytes(20))  # `index.skipHash`
    forget([str(repo.file(id))])
    assert size(repo, id) == 0
    assert index.read_bytes().endswith(bytes(20))


@pytest.mark.parametrize("version", ["2", "4"])
def test_a_name_may_be_longer_than_git_can_write_its_length(repo: Clone, version: str) -> None:
    id = talking(repo)
    blob = repo.git("rev-parse", f":{repo.path(id)}")
    repo.run("update-index", "--index-version", version)
    repo.run("update-index", "--add", "--cacheinfo", f"100644,{blob},{'a/' * 2500}b")
    forget([str(repo.file(id))])
    assert size(repo, id) == 0


@pytest.mark.parametrize("told", ["--assume-unchanged", "--skip-worktree"])
def test_a_file_that_git_was_told_not_to_look_at_is_left_alone(repo: Clone, told: str) -> None:
    id = talking(repo)
    repo.run("update-index", told, repo.path(id))
    _is_left_alone(repo, id)


def test_a_file_that_is_new_to_git_or_only_announced_is_left_alone(repo: Clone) -> None:
    with repo.store() as store:
        id = store.create(title="Plans").id
    _is_left_alone(repo, id)
    repo.run("add", "--intent-to-add", repo.path(id))
    _is_left_alone(repo, id)


def test_a_file_that_waits_for_a_person_in_a_merge_is_left_alone(repo: Clone) -> None:
    id = talking(repo)
    blob = repo.git("rev-parse", f":{repo.path(id)}")
    stages = "".join(f"100644 {blob} {stage}\t{repo.path(id)}\n" for stage in (1, 2, 3))
    repo.run("update-index", "--index-info", input=f"0 {'0' * 40}\t{repo.path(id)}\n{stages}")
    assert status(repo) == [f"UU {repo.path(id)}"]
    _is_left_alone(repo, id)


def test_an_index_in_two_parts_is_left_alone_where_the_entry_is_in_the_shared_one(repo: Clone) -> None:
    id = talking(repo)
    repo.run("update-index", "--split-index")
    assert list((repo.top / ".git").glob("sharedindex.*"))
    _is_left_alone(repo, id)


def test_a_symlink_in_the_place_of_the_index_is_left_alone(repo: Clone) -> None:
    id = talking(repo)
    index = repo.top / ".git" / "index"
    index.rename(repo.top / ".git" / "elsewhere")
    index.symlink_to("elsewhere")
    _is_left_alone(repo, id)
    assert index.is_symlink()


def _is_left_alone(clone: Clone, id: str) -> None:
    index = clone.top / ".git" / "index"
    before = index.read_bytes()
    with Store.open(clone.root, lock_changed=forget) as store:
        store.lock(id)
    assert index.read_bytes() == before
    assert not (clone.top / ".git" / "index.lock").exists()


@pytest.mark.parametrize("data", [b"", b"gitdir", b"gitdir: \n", b"gitdir: nowhere\n", b"\0" * 40])
def test_a_repository_that_is_none_is_left_alone(tmp_path: Path, data: bytes) -> None:
    Store.init(tmp_path)
    (tmp_path / ".gitattributes").write_text(f"conversations/*.json {ATTRIBUTES}\n", encoding="utf-8")
    (tmp_path / ".git").write_bytes(data)
    with Store.open(tmp_path, lock_changed=forget) as store:
        store.lock(store.create(title="Plans").id)


def test_the_attributes_that_are_looked_for_are_those_that_are_set() -> None:
    assert _FILTERED.decode() in ATTRIBUTES.split()


@pytest.fixture(scope="module", params=["2", "4"])
def real(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    top: Path = tmp_path_factory.mktemp("real")
    run(top, "git", "init", "-q")
    for name in ("a", "conversations", "z"):
        (top / name).mkdir()
        (top / name / "x.json").write_text(name, encoding="utf-8")
    run(top, "git", "add", ".")
    run(top, "git", "update-index", "--index-version", str(request.param))
    return (top / ".git" / "index").read_bytes()


@given(st.data())
def test_no_index_is_too_broken_to_be_left_as_it_is(real: bytes, data: Any) -> None:
    broken = bytearray(real)
    for at in data.draw(st.lists(st.integers(0, len(real) - 1), max_size=6)):
        broken[at] = data.draw(st.integers(0, 255))
    if data.draw(st.booleans()):
        broken[-20:] = bytes(20)  # So that no checksum tells.
    cut = data.draw(st.integers(0, len(broken)))
    for index in (bytes(broken), bytes(broken[:cut]), bytes(broken[:cut]) + bytes(20)):
        after = forgotten(index, [b"conversations/x.json", b"z/x.json"])
        assert after is None or len(after) == len(index)
