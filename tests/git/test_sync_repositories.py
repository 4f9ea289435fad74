"""`capsule git sync` in all kinds of repositories: code beside, damaged files, other settings,
crossed branches.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from capsule import Store, git
from capsule.errors import GitFailed, InvalidDocument, Refused, Remedy
from capsule.format.json import codec
from capsule.git.attributes import driver_config
from capsule.git.commit import operation
from capsule.git.sync import sync
from tests.git.repositories import Clone, environment, run, script, worktree
from tests.git.talking import (
    Two,
    assert_at_rest,
    assert_same,
    code,
    contents,
    conversation,
    delete,
    diverged,
    rename,
    say,
    shared,
    status,
    sync_all,
    sync_of,
)

pytestmark = pytest.mark.slow


def test_in_a_monorepo_code_is_merged_along_and_a_persons_own_changes_stay(monorepos: Two) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    for clone, name in ((anna, "anna"), (ben, "ben")):
        code(clone, f"by {name}\n", f"{name}.py")
        say(clone, id, f"from {name}")
    code(ben, "staged\n", "staged.py", commit=False)
    ben.run("add", "staged.py")
    code(ben, "not staged\n", commit=False)
    sync_all(anna, ben)
    assert (ben.top / "anna.py").read_text() == "by anna\n"
    assert sorted(status(ben)) == [" M README.md", "A  staged.py"]
    assert (ben.top / "README.md").read_text() == "not staged\n"
    sync_of(anna)
    assert sorted(contents(anna, id)) == ["from anna", "from ben", "one"]
    assert anna.file(id).read_bytes() == ben.file(id).read_bytes()
    assert_at_rest(anna)


def test_code_that_only_a_person_can_merge_changes_nothing_and_the_way_out_works(
    monorepos: Two,
) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    for clone, name in ((anna, "anna"), (ben, "ben")):
        code(clone, f"by {name}\n")
        say(clone, id, f"from {name}")
    sync_of(anna)
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
    sync_all(ben, anna)
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


def test_a_damaged_file_stops_a_sync_only_if_it_was_changed_there_too(clones: Two) -> None:
    anna, ben = clones
    id, other = shared(clones, "one"), shared(clones, "two")
    whole = ben.file(other).read_bytes()
    ben.file(other).write_bytes(b'{"id": ')
    say(anna, id, "from anna")
    sync_of(anna)
    assert f"{ben.file(other)}:1:8" in ben.capsule("git", "sync", expect=5).err
    assert contents(ben, id) == ["one", "from anna"]
    say(anna, id, "again")
    say(anna, other, "from anna")
    sync_of(anna)
    with pytest.raises(InvalidDocument, match=r"repair it, then sync again"):
        sync_of(ben)
    assert contents(ben, id) == ["one", "from anna"]
    assert ben.file(other).read_bytes() == b'{"id": '
    ben.file(other).write_bytes(whole)
    sync_of(ben)
    assert contents(ben, id) == ["one", "from anna", "again"]
    assert contents(ben, other) == ["two", "from anna"]


def pushed_past_us(clone: Clone, id: str, data: bytes | None) -> None:
    """Commit and push what only a git without our drivers would: damaged bytes, or a symlink whose
    blob is valid.
    """
    if data is None:
        target = clone.file(id).read_text(encoding="utf-8")
        clone.file(id).unlink()
        clone.file(id).symlink_to(target)
    else:
        clone.file(id).write_bytes(data)
    plain = (
        "-c",
        "filter.capsule.process=",
        "-c",
        "filter.capsule.required=false",
        "-c",
        "core.hooksPath=/dev/null",
    )
    clone.run(*plain, "commit", "-qam", "past us")
    clone.run("push", "-q")


@pytest.mark.parametrize("data", [b'{"id": ', None])
@pytest.mark.parametrize("diverged", [True, False])
def test_a_fetched_file_that_is_no_conversation_is_refused(
    clones: Two, data: bytes | None, diverged: bool
) -> None:
    anna, ben = clones
    id = shared(clones, "one")
    pushed_past_us(anna, id, data)
    if diverged:
        conversation(ben, "elsewhere")
    with pytest.raises(GitFailed if data is None else InvalidDocument, match=rf"{id}\.json"):
        sync_of(ben)
    assert contents(ben, id) == ["one"]
    assert not ben.file(id).is_symlink()
    assert_at_rest(ben)


# -- Places ----------------------------------------------------------------------------------------


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
    sync_all(side, anna)
    assert sorted(contents(anna, id)) == ["again", "from anna", "from the side"]
    assert anna.file(id).read_bytes() == side.file(id).read_bytes()
    assert ben.git("rev-parse", "--abbrev-ref", "HEAD") == "main" and status(ben) == []


def test_another_store_in_the_repository_keeps_what_is_not_committed_there(monorepos: Two) -> None:
    anna, ben = monorepos
    others = tuple(Clone(clone.top, "other störe") for clone in monorepos)
    Store.init(others[0].root)
    (others[0].root / ".gitattributes").write_bytes((anna.root / ".gitattributes").read_bytes())
    id = shared(
        (others[0], anna), "one"
    )  # The second sync is the other store's: it pushes nothing new.
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


def test_a_sync_does_not_write_through_a_symlink_out_of_the_repository(
    monorepos: Two, tmp_path: Path
) -> None:
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


@pytest.mark.parametrize(("kind", "id"), [("agents", "helper"), ("projects", "api-123456")])
def test_sync_merges_documents_without_a_history(clones: Two, kind: str, id: str) -> None:
    anna, ben = clones
    (anna.root / kind).mkdir()
    anna.file(id, kind).write_bytes(codec.encode({"id": id}))
    sync_all(anna, ben)
    for clone, key in ((anna, "a"), (ben, "b")):
        document = codec.decode(clone.file(id, kind).read_bytes(), "")
        clone.file(id, kind).write_bytes(codec.encode({**document, key: 1}))
    sync_all(anna, ben, anna)
    data = anna.file(id, kind).read_bytes()
    assert data == ben.file(id, kind).read_bytes()
    assert {"a", "b"} <= codec.decode(data, "").keys()
    anna.file(id, kind).unlink()
    sync_all(anna, ben)
    assert not ben.file(id, kind).exists()


def test_a_channel_that_both_clones_made_is_one_with_the_members_and_messages_of_both(
    clones: Two,
) -> None:
    for clone, agent in zip(clones, ("anna", "bob"), strict=True):
        with Store.open(clone.root) as store:
            store.agents.register(agent)
            id = store.channels.create(
                "news", agent=agent, scope="global", description=f"of {agent}"
            ).id
            store.beside(agent=agent).append(id, content=f"from {agent}")
    sync_all(*clones, clones[0])
    assert_same(id, clones)
    for clone in clones:
        with Store.open(clone.root) as store:
            assert {member.id: member.is_in for member in store.head(id).participants} == {
                "anna": True,
                "bob": True,
            }
            assert {entry["content"] for entry in store.document(id)["history"]} == {
                "from anna",
                "from bob",
            }
            assert [each.id for each in store.channels.list(agent="bob")] == [id]


def test_a_merge_is_signed_where_commits_are(clones: Two, tmp_path: Path) -> None:
    _, ben, _ = diverged(clones)
    key = tmp_path / "key"
    if not shutil.which("ssh-keygen"):
        pytest.skip("there is no ssh-keygen here")
    run(tmp_path, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    ben.configure(gpg_format="ssh", user_signingkey=str(key), commit_gpgsign="true")
    done = sync_of(ben)
    for commit in (done.merged, done.committed.commit):
        assert "-----BEGIN SSH SIGNATURE-----" in ben.git("cat-file", "commit", str(commit))


def test_a_sync_brings_hundreds_of_conversations(clones: Two) -> None:
    anna, ben = clones
    with Store.open(anna.root, keep_locks=False) as store:
        made = {store.create(title=f"Number {n}", type="group", messages=[{"role": "user", "content": "x"}]).id
                for n in range(300)}  # fmt: skip
    sync_of(anna)
    seen: list[tuple[str, int, int]] = []
    sync_of(ben, lambda *told: seen.append(told))
    assert {path.stem for path in (ben.root / "conversations").glob("*.json")} == made
    assert [done for step, done, total in seen if step == "write" and total == 300] == list(
        range(300)
    )
    assert anna.git("log", "-1", "--format=%s").endswith("and 298 more")
    assert_at_rest(ben)


@pytest.mark.parametrize("driver", ["exit 1", "/nowhere/python"])
def test_a_sync_loses_nothing_when_the_merge_driver_does_not_run(clones: Two, driver: str) -> None:
    _, ben, id = diverged(clones)
    with ben.store() as store:
        drivers = driver_config(git.open(store).program) | {"merge.capsule.driver": driver}
        with operation(store, drivers) as running:
            sync(running)
    assert sorted(contents(ben, id)) == ["from anna", "from ben", "one"]


def test_two_conversations_that_are_alike_are_not_taken_for_one_that_was_renamed(
    clones: Two,
) -> None:
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
    sync_all(ben, anna)
    for clone in clones:
        assert contents(clone, id) == [*text, "still needed"]
        assert contents(clone, alike) == contents(clone, mine) == text
        assert not clone.file(gone).exists()
        assert_at_rest(clone)


def test_a_deleted_message_stays_deleted_when_the_branches_have_crossed(clones: Two) -> None:
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
        gone = next(
            message.id for message in store.load(id).history if message.content == "from anna"
        )
        assert gone is not None
        store.branches.remove(id, gone, keep_children=True)
    say(ben, id, "still here")
    sync_all(anna, ben, anna)
    for clone in clones:
        assert contents(clone, id) == ["one", "from ben", "still here"]


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
    with pytest.raises(Refused) as refused:
        sync_of(ben)
    assert refused.value.remedy == Remedy("set up git")
    assert contents(ben, id) == ["one"]


def test_an_old_git_that_can_not_merge_is_named_with_the_way_out(
    monorepos: Two, tmp_path: Path
) -> None:
    anna, ben = monorepos
    id = shared(monorepos, "one")
    for clone, name in ((anna, "anna"), (ben, "ben")):
        code(clone, f"by {name}\n", f"{name}.py")
        say(clone, id, f"from {name}")
    sync_of(anna)
    old = script(
        tmp_path / "bin" / "git",
        'case " $* " in *" merge-tree "*) echo "usage: git merge-tree <base-tree> ..." >&2; exit '
        "129;;",
        '*" version "*) echo "git version 2.30.1"; exit 0;; esac',
        f'exec {shutil.which("git")} "$@"',
    )
    path = f"{old.parent}:{environment()['PATH']}"
    ran = ben.capsule("git", "sync", expect=9, PATH=path)
    assert (
        "needs git 2.38, and this is git version 2.30.1" in ran.err
        and "pull --no-rebase" in ran.err
    )
    assert contents(ben, id) == ["one", "from ben"]
    anna.capsule("git", "sync", PATH=path)
