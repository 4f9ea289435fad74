"""Other names of commands: the short ones, those of the release before, and what a mistyped one may have meant."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from capsule.errors import Refused
from capsule_cli import quick
from capsule_cli.app import overview
from capsule_cli.core import room_of
from capsule_cli.names import FORMER, SHORT, current, meant
from tests.core.cli.conftest import completed
from tests.core.cli.test_program import MODULES, TOP, command_of


def is_installed(command: str) -> bool:
    """Whether the room of a command is there; these tests run without the rooms, too."""
    try:
        return room_of(command) is not None
    except Refused:
        return False


def parted(words: list[str]) -> tuple[str, list[str]]:
    """The command of some words, and the names of its options; the words in capitals stand for arguments."""
    names = [word for word in words if word.islower() and not word.startswith("-")]
    return " ".join(names), [word.partition("=")[0] for word in words if word.startswith("-")]


@pytest.mark.parametrize("old", [*SHORT, *FORMER])
def test_every_other_name_leads_to_a_command_and_an_option_of_today(old: str) -> None:
    words, notes = current(old.split())
    command, options = parted(words)
    assert command == parted(current(command.split())[0])[0], "a name leads to no other name"
    try:
        known = command_of(command).params
    except Refused:
        pytest.skip("its room is not installed")
    options += parted((SHORT | FORMER)[old].split())[1] if command in (SHORT | FORMER)[old] else []
    assert set(options) <= {name for param in known for name in (*param.opts, *param.secondary_opts)}
    assert [old for note in notes[:1] if f"{old} is now" in note] == ([old] if old in FORMER else [])


@pytest.mark.parametrize(
    ("line", "today"),
    [
        ("mcp", "mcp serve"),
        ("mcp --http 0", "mcp serve --http 0"),
        ("--json mcp --store s", "--json mcp serve --store s"),
        ("mcp instal zed", "mcp instal zed"),
        ("mcp install zed --user", "mcp install zed --settings=user"),
        ("mcp --json tokens list", "mcp --json tokens list"),
        ("mcp --help", "mcp --help"),
        ("store", "store show"),
        ("doctor --flush", "store doctor --flush"),
        ("lock ID", "lock take ID"),
        ("lock --instance me ID", "lock take --instance me ID"),
        ("lock list", "lock list"),
        ("trash", "trash list"),
        ("trash --help", "trash --help"),
        ("rename ID T", "set ID --title=T"),
        ("--json rename --as a ID --suggest T", "--json set --as a ID --suggest --title=T"),
        ("rename ID --suggest", "set ID --suggest"),
        ("tag ID a --as me b", "set ID --add-tag=a --as me --add-tag=b"),
        ("set ID --tag a --untag=b --tag c", "set ID --add-tag a --remove-tag=b --add-tag c"),
        ("show ID --tree", "branch list ID"),
        ("tail ID -n 3", "show --last=10 ID -n 3"),
        ("events --since C -f", "watch --events --after C -f"),
        ("agents wake hook", "agent wake hook"),
        ("agents wake test", "agent wake test"),
        ("group rename ID N", "group set ID --name=N"),
        ("mute --undo ID", "channel unmute ID"),
        ("mute ID", "channel mute ID"),
        ("worker --agent X -- worker --limit 5 mute", "worker run --agent X -- worker --limit 5 mute"),
        ("worker lst", "worker lst"),
        ("worker -- cmd", "worker run -- cmd"),
        ("worker list --limit 5", "worker list --limit 5"),
        ("session agent X --limit 5m", "worker set X --for 5m"),
    ],
)
def test_words_of_before_are_written_as_today(line: str, today: str) -> None:
    if not is_installed(next(word for word in today.split() if not word.startswith("-"))):
        pytest.skip("its room is not installed")
    assert " ".join(current(line.split())[0]) == today
    assert current(today.split()) == (today.split(), [])


@pytest.mark.parametrize(
    "line", ["mcp", "mcp --http 0", "agents wake hook", "ls", "cat ID", "rm ID", "doctor", "store"]
)
def test_a_short_name_is_understood_without_a_word(line: str) -> None:
    assert current(line.split())[1] == []


def test_a_short_name_is_read_quickly_like_the_long_one() -> None:
    for short, name in SHORT.items():
        if is_installed(name):
            assert _read(short) == _read(name)


def _read(line: str) -> Any:
    try:
        return quick.read(line.split())
    except (LookupError, ValueError):
        return "left to typer"


@pytest.mark.parametrize(
    ("old", "new", "parts"),
    [
        ("tail {id}", "show {id} --last 10", 1),
        ("transcript {id}", "show {id} --for-model", 1),
        ("show {id} --tree", "branch list {id}", 1),
        ("trash", "trash list", 1),
        ("locks", "lock list", 1),
        ("stats", "store stats", 1),
        ("schema --version 2.0 agent", "store schema --format-version 2.0 agent", 1),
        ("schema --version 2.0", "store schema --format-version 2.0", 1),
        ("rename {id} Plan", "set {id} --title Plan", 1),
        ("tag {id} a b", "set {id} --add-tag a --add-tag b", 1),
        ("set {id} --tag a --untag b --untag c", "set {id} --add-tag a --remove-tag b --remove-tag c", 2),
        ("pin {id}", "set {id} --pin", 1),
        ("mcp install zed --user --dry-run", "mcp install zed --settings user --dry-run", 1),
    ],
)
def test_a_former_name_prints_what_the_new_one_prints_and_a_line_for_each_part(
    capsule: Any, old: str, new: str, parts: int
) -> None:
    id = capsule.new("Plan", "--message", "hello")
    code = 3 if "agent" in old.split() else 0
    for json_ in ([], ["--json"]):
        today = capsule(*new.format(id=id).split(), *json_, expect=code)
        former = capsule(*old.format(id=id).split(), *json_, expect=code)
        lines = former.stderr.splitlines()
        assert _but_times(former.stdout) == _but_times(today.stdout)
        assert lines[parts:] == today.stderr.splitlines()
        said = [json.loads(line)["warning"] if json_ else line.removeprefix("capsule: ") for line in lines[:parts]]
        assert len(set(said)) == parts and all(" is now: capsule " in line for line in said)
    process = capsule.process(*old.format(id=id).split(), expect=code)
    assert _but_times(process.stdout) == _but_times(capsule(*old.format(id=id).split(), expect=code).stdout)
    assert len(process.stderr.splitlines()) == len(lines)


def _but_times(text: str) -> str:
    return re.sub(r"\d{4}-\d\d-\d\dT[\d:.]+Z", "TIME", text)


def test_former_names_are_not_in_the_help_and_not_completed() -> None:
    former = {old for old in FORMER if " " not in old} - set(TOP)
    assert "tail" in former
    assert sorted(completed("capsule ", 1)) == TOP
    assert not former & {
        word for lines in overview().values() for names, _ in lines for word in re.findall(r"\w+", names)
    }


def test_other_names_are_completed_like_those_of_today(capsule: Any) -> None:
    capsule("new", "--id", "alpha-1")
    for line, words in (
        ("cat al", ["alpha-1"]),
        ("tail al", ["alpha-1"]),
        ("doctor --fl", ["--flush"]),
        ("mcp unin", ["uninstall"]),
        ("lock re", ["release"]),
        ("store rei", ["reindex"]),
    ):
        assert completed(f"capsule {line}", len(line.split())) == words


@pytest.mark.parametrize(
    ("line", "first"),
    [
        ("lisst", "list"),
        ("mcp tokens lisst", "mcp tokens list"),
        ("purg", "trash purge"),
        ("store purge", "trash purge"),
        ("revoke", "mcp tokens revoke"),
        ("branch forkk", "branch fork"),
        ("unpin", "set --no-pin"),
        ("unarchive", "set --no-archive"),
        ("untag", "set --remove-tag"),
        ("unlok", "lock release"),
        ("tails", "show --last=10"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest_of_all_groups(capsule: Any, line: str, first: str) -> None:
    said = capsule(*line.split(), expect=2).stderr
    assert f"No such command {line.split()[-1]!r}. Did you mean: {first}" in said
    assert json.loads(capsule(*line.split(), "--json", expect=2).stderr)["error"]["kind"] == "Usage"


def test_the_opposite_is_never_proposed() -> None:
    for name in ("unlok", "unlocked", "unpinn", "instal", "uninstal", "unmut", "mut", "unshar"):
        for path in meant("", name, MODULES):
            assert any(word.startswith(("un", "release", "--no-")) for word in path.split()) == name.startswith("un")


def test_help_knows_other_names(capsule: Any) -> None:
    for other, name in (("doctor", "store doctor"), ("ls", "list"), ("tail", "show"), ("mcp", "mcp")):
        assert capsule("help", other).stdout == capsule(*name.split(), "--help").stdout
