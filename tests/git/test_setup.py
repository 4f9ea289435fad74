"""`capsule git setup` and `teardown`: attributes, ignored files, and git's configuration."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.errors import InvalidDocument, NotFound, Refused
from capsule.format.validation import KINDS
from capsule.git import clone_setup
from capsule.git.attributes import attribute_lines, driver_config
from tests.git.repositories import (
    PROGRAM,
    Clone,
    cloned,
    environment,
    new,
    published,
    script,
    worktree,
)
from tests.git.talking import conversation, say

DOCUMENT = "00000000-0000-4000-8000-000000000000"


def setup(clone: Clone, **settings: bool) -> list[tuple[str, bool]]:
    return [(step.kind, step.changed) for step in clone.setup(**settings)]


def teardown(clone: Clone, **settings: bool) -> list[str]:
    return [f"{step.kind}: {step.what}" for step in clone.teardown(**settings)]


def in_force(clone: Clone, kind: str = "conversations") -> dict[str, str]:
    """What git has of the attributes for a document."""
    told = clone.git(
        "check-attr", "-z", "merge", "diff", "filter", "text", "--", clone.path(DOCUMENT, kind)
    )
    fields = told.split("\0")
    return dict(zip(fields[1::3], fields[2::3], strict=False))


ALL = {"merge": "capsule", "diff": "capsule", "filter": "capsule", "text": "unset"}


def configured(clone: Clone, scope: str = "--local") -> dict[str, str]:
    told = clone.run("config", scope, "-z", "--get-regexp", "capsule", expect=None).out
    return {
        name: value for name, _, value in (one.partition("\n") for one in told.split("\0")[:-1])
    }


@pytest.mark.parametrize("folder", ["", "pro [j]/tälk $s"])
def test_after_setup_git_knows_the_documents_of_the_store_and_no_others(
    tmp_path: Path, folder: str
) -> None:
    clone = new(tmp_path / "répo", folder, drivers=False)
    assert setup(clone) == [
        ("attributes", True),
        ("ignore", True),
        ("config", True),
        ("hook", True),
    ]
    for kind in KINDS:
        assert in_force(clone, kind) == ALL
        for other in ("package.json", f"deeper/{kind}/x.json", f"{kind}/deeper/x.json"):
            told = clone.git(
                "check-attr", "merge", "--", str((clone.root / other).relative_to(clone.top))
            )
            assert told.endswith("unspecified"), other
        assert clone.git(
            "check-ignore", str((clone.root / kind / f".{DOCUMENT}.tmp").relative_to(clone.top))
        )
    assert clone.git(
        "check-ignore", str((clone.root / "sessions" / "registry.json").relative_to(clone.top))
    )
    assert configured(clone).items() >= driver_config(PROGRAM).items()


def test_setting_up_twice_changes_nothing_and_teardown_leaves_what_was_there(plain: Clone) -> None:
    def files() -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in plain.top.rglob("*") if path.is_file()}

    before = files()
    setup(plain)
    after = files()
    assert setup(plain) == [
        ("attributes", False),
        ("ignore", False),
        ("config", False),
        ("hook", False),
    ]
    assert files() == after
    teardown(plain)
    assert files() == before and teardown(plain) == []


def test_setup_writes_each_setting_once_and_teardown_keeps_foreign_settings(plain: Clone) -> None:
    plain.run("config", "diff.capsule.cachetextconv", "true")
    for value in ("one", "two"):
        plain.run("config", "--add", "merge.capsule.driver", value)
    setup(plain)
    assert (
        plain.git("config", "--get-all", "merge.capsule.driver")
        == driver_config(PROGRAM)["merge.capsule.driver"]
    )
    assert any("diff.capsule.cachetextconv" in one for one in teardown(plain))
    assert configured(plain) == {"diff.capsule.cachetextconv": "true"}


def test_lines_of_others_are_kept_and_teardown_gives_the_file_back_byte_for_byte(
    plain: Clone,
) -> None:
    """That any file comes back, the property below says; here git reads what was made of some."""
    files = [plain.root / ".gitattributes", plain.root / ".gitignore"]
    for there in (
        b"",
        b"*.png binary\r\n*.txt text",
        b"\xef\xbb\xbf*.png binary\n",
        "*.pñg x\n".encode("latin-1"),
    ):
        for file in files:
            file.write_bytes(there)
            file.chmod(0o640)
        setup(plain)
        assert in_force(plain) == ALL
        if b"binary" in there:
            assert plain.git("check-attr", "binary", "--", "x.png").endswith("set")
        for file in files:
            data = file.read_bytes()
            assert data.startswith(there) and file.stat().st_mode & 0o777 == 0o640
            assert data.count(b"\r\n") in (0, data.count(b"\n")), (
                "its line ends are all of one kind"
            )
        teardown(plain)
        assert [file.read_bytes() for file in files] == [there, there]


PARTS = st.lists(
    st.sampled_from([b"a", b"\n", b"\r\n", b"\r", b" ", b"#!/bin/sh\n", b"\x00", b"\xff"])
).map(b"".join)


@given(PARTS, PARTS, st.booleans())
def test_a_block_comes_out_of_a_file_as_it_went_in(
    before: bytes, after: bytes, at_top: bool
) -> None:
    once = clone_setup.with_block(before, ["x", "y"], "file", at_top=at_top)
    assert clone_setup.with_block(once, ["x", "y"], "file", at_top=at_top) == once
    assert clone_setup.has_block(once) and not clone_setup.has_block(before)
    assert clone_setup.without_block(clone_setup.with_block(once, ["z"], "file"), "file") == before
    # What others add behind it stays, in lines of its own.
    more = b"more\n" + after
    left = clone_setup.without_block(once + more, "file")
    assert left == before + more or (
        not before.endswith(b"\n") and left in (before + b"\n" + more, before + b"\r\n" + more)
    )


def test_lines_that_a_person_put_in_are_enough_and_are_left_to_them(plain: Clone) -> None:
    by_hand = "".join(f"{line}\n" for line in attribute_lines())
    (plain.root / ".gitattributes").write_text(by_hand)
    assert ("attributes", False) in setup(plain)
    assert (plain.root / ".gitattributes").read_text() == by_hand
    assert "attributes: kept: the lines were added by hand" in teardown(plain)
    assert (plain.root / ".gitattributes").read_text() == by_hand


def test_lines_of_ours_that_were_cut_apart_are_an_error_with_their_line_and_nothing_is_changed(
    plain: Clone,
) -> None:
    setup(plain)
    path = plain.root / ".gitattributes"
    cut = b"*.png binary\n" + path.read_bytes().replace(b"# <<< capsule git setup <<<\n", b"")
    path.write_bytes(cut)
    for doing in (setup, teardown):
        with pytest.raises(InvalidDocument) as caught:
            doing(plain)
        assert caught.value.problems[0].line == 2
        assert path.read_bytes() == cut


def test_attributes_that_are_a_symlink_are_refused_as_git_reads_none(
    plain: Clone, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_text("*.png binary\n")
    (plain.root / ".gitattributes").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(Refused):
        setup(plain)
    assert (tmp_path / "elsewhere").read_text() == "*.png binary\n"


@pytest.mark.slow
def test_the_drivers_work_from_a_path_with_any_letter(plain: Clone, tmp_path: Path) -> None:
    log = tmp_path / "log"
    python = tmp_path / 'it\'s "my" $HOME %O' / "py thon;x"
    script(
        python, f'echo "$@" >>{shlex.quote(str(log))}', f'exec {shlex.quote(sys.executable)} "$@"'
    )
    assert plain.setup([str(python), *PROGRAM[1:]])[2].changed
    id = conversation(plain, title="one")
    plain.commit()
    plain.run("switch", "-q", "-c", "other")
    say(plain, id, "There")
    plain.commit()
    assert "user: There" in plain.git("log", "-p", "-1")
    plain.run("switch", "-q", "main")
    say(plain, id, "Here")
    plain.commit()
    plain.run("merge", "-q", "--no-edit", "other")
    with plain.store() as store:
        assert [message.content for message in store.load(id).history] == ["There", "Here"]
    called = [
        line.split(" capsule_cli.drivers ")[1].split()[0] for line in log.read_text().splitlines()
    ]
    assert {"filter", "textconv", "merge", "pre-commit"} <= set(called)
    merge = next(line for line in log.read_text().splitlines() if " merge " in line)
    assert merge.endswith(f" {plain.path(id)}") and "%" not in merge


def test_setup_with_global_serves_every_clone(plain: Clone, tmp_path: Path) -> None:
    home = Path(os.environ["HOME"])
    assert not (home / ".gitconfig").exists()
    setup(plain)
    setup(plain, everywhere=True)
    assert configured(plain) == {}, "or the repository's would stand before them for ever"
    assert configured(plain, "--global").items() >= driver_config(PROGRAM).items()
    plain.commit()
    other = cloned(published(plain, tmp_path / "remote"), tmp_path / "other", drivers=False)
    with other.store() as store:
        id = store.create(title="one").id
        store.locks.take(id)
        other.commit()
    assert b'"active": true' not in other.at("HEAD", id)
    told = teardown(plain)
    assert any(one.startswith("config: kept: it is for all your clones") for one in told)
    assert configured(plain, "--global")
    teardown(plain, everywhere=True)
    assert configured(plain, "--global") == {}


def test_global_needs_no_repository_and_the_rest_does(root: Path) -> None:
    for doing in (Clone(root).setup, Clone(root).teardown):
        with pytest.raises(NotFound, match="git init"):
            doing()
    assert [step.where for step in Clone(root).setup(everywhere=True)] == ["yours"]
    assert (Path(os.environ["HOME"]) / ".gitconfig").exists()
    assert sorted(path.name for path in root.iterdir()) == [
        ".capsule",
        "capsule.toml",
        "conversations",
    ]


def test_two_stores_share_the_settings_and_the_last_teardown_removes_them(tmp_path: Path) -> None:
    one = new(tmp_path / "repo", "one", drivers=False)
    two = Clone(one.top, "two")
    Store.init(two.root)
    setup(one)
    assert setup(two) == [
        ("attributes", True),
        ("ignore", True),
        ("config", False),
        ("hook", False),
    ]
    assert in_force(one) == in_force(two) == ALL
    told = teardown(one)
    assert f"config: kept, because other attributes still use it: {two.root}/.gitattributes" in told
    assert in_force(one)["merge"] == "unspecified" and in_force(two) == ALL
    assert configured(two) and (two.top / ".git/hooks/pre-commit").exists()
    teardown(two)
    assert not configured(two) and not (two.top / ".git/hooks/pre-commit").exists()


def test_a_linked_worktree_shares_the_settings_and_the_hook_with_the_others(tmp_path: Path) -> None:
    monorepo = new(tmp_path / "mono", "pro [j]/tälk s", drivers=False)
    setup(monorepo)
    monorepo.commit()
    linked = worktree(monorepo, tmp_path / "linked", "other")
    assert setup(linked) == [
        ("attributes", False),
        ("ignore", False),
        ("config", False),
        ("hook", False),
    ]
    with linked.store() as store:
        id = store.create(title="one").id
        store.locks.take(id)
        linked.commit()
    assert b'"active": true' not in linked.at("HEAD", id)
    assert any("kept, because other attributes still use it" in one for one in teardown(linked))
    assert configured(monorepo)
    assert not any("kept" in one for one in teardown(monorepo))
    assert not configured(monorepo)


def test_setup_with_autocrlf_finds_its_lines_in_a_clean_clone(plain: Clone, tmp_path: Path) -> None:
    setup(plain)
    id = conversation(plain, "Hello", title="one")
    plain.commit()
    remote = published(plain, tmp_path / "remote")
    home = Path(os.environ["HOME"])
    (home / ".gitconfig").write_text("[core]\n\tautocrlf = true\n\tsafecrlf = true\n")
    other = cloned(remote, tmp_path / "other")
    assert b"\r\n" in (other.root / ".gitattributes").read_bytes()
    assert other.file(id).read_bytes() == plain.file(id).read_bytes()
    assert setup(other) == [
        ("attributes", False),
        ("ignore", False),
        ("config", True),
        ("hook", True),
    ]
    assert in_force(other) == ALL
    say(other, id, "From there")
    other.commit()
    assert b"\r" not in other.at("HEAD", id)
    assert other.git("status", "--porcelain") == ""


def test_the_program_sets_up_its_own_python_and_prints_json(plain: Clone) -> None:
    steps = json.loads(plain.capsule("git", "setup", "--json").out)
    assert [step["kind"] for step in steps] == ["attributes", "ignore", "config", "hook"]
    assert all(step["changed"] and not step["todo"] for step in steps)
    assert shlex.split(configured(plain)["diff.capsule.textconv"]) == [*PROGRAM, "textconv"]
    assert "capsule git commit" in plain.capsule("git", "teardown").out
    assert plain.capsule("git", "teardown").out == "nothing of Capsule is set up here\n"


def test_git_names_the_way_out_when_the_filters_program_is_gone(
    plain: Clone, tmp_path: Path
) -> None:
    gone = str(tmp_path / "no such" / "python")
    plain.setup([gone, *PROGRAM[1:]])
    with plain.store() as store:
        store.create(title="one")
    ran = plain.run("add", "--all", expect=128)
    assert gone in ran.err and "git config --remove-section filter.capsule" in ran.err
    plain.run("config", "--remove-section", "filter.capsule")
    plain.run("add", "--all")


def test_setup_changes_nothing_when_the_directory_may_not_be_written(plain: Clone) -> None:
    plain.root.chmod(0o555)
    try:
        if os.access(plain.root, os.W_OK):
            pytest.skip("this user may write everywhere")
        with pytest.raises(Refused):
            setup(plain)
        assert not configured(plain)
    finally:
        plain.root.chmod(0o755)


def test_the_version_that_the_drivers_answer_is_this_one() -> None:
    from capsule import __version__

    done = subprocess.run(
        [*PROGRAM, "version"], env=environment(), capture_output=True, text=True, check=True
    )
    assert done.stdout == f"{__version__}\n"
