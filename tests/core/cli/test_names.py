"""Short names of commands, and the suggestions for a mistyped one."""

from __future__ import annotations

import json
from typing import Any

import pytest

from capsule_cli import fast_path
from capsule_cli.command_names import SHORT, expand, suggestions
from tests.core.cli.conftest import completed
from tests.core.cli.test_program import COMMANDS, TOP


@pytest.mark.parametrize(
    ("line", "expanded"),
    [
        ("mcp", "mcp serve"),
        ("mcp --http 0", "mcp serve --http 0"),
        ("--json mcp --store s", "--json mcp serve --store s"),
        ("mcp instal zed", "mcp instal zed"),
        ("mcp --json tokens list", "mcp --json tokens list"),
        ("mcp --help", "mcp --help"),
        ("store", "store show"),
        ("doctor --flush", "store doctor --flush"),
        ("ls -n 3", "list -n 3"),
        ("append plan -- ls", "append plan -- ls"),
        ("append ls", "append ls"),
    ],
)
def test_a_short_name_stands_for_the_full_one(line: str, expanded: str) -> None:
    assert " ".join(expand(line.split())) == expanded
    assert expand(expanded.split()) == expanded.split()


def test_every_short_name_is_read_quickly_like_the_full_one() -> None:
    for short_name, name in SHORT.items():
        assert _read(short_name) == _read(name)


def _read(line: str) -> Any:
    try:
        return fast_path.read(line.split())
    except (LookupError, ValueError):
        return "left to typer"


def test_short_names_are_completed_like_full_ones(capsule: Any) -> None:
    capsule("new", "--id", "alpha-1")
    assert sorted(completed("capsule ", 1)) == TOP
    for line, words in (
        ("cat al", ["alpha-1"]),
        ("doctor --fl", ["--flush"]),
        ("mcp unin", ["uninstall"]),
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
        ("relase", "lock release"),
    ],
)
def test_a_mistyped_command_is_answered_with_the_nearest_of_all_groups(
    capsule: Any, line: str, first: str
) -> None:
    message = capsule(*line.split(), expect=2).stderr
    assert f"No such command {line.split()[-1]!r}. Did you mean: {first}" in message
    assert json.loads(capsule(*line.split(), "--json", expect=2).stderr)["error"]["kind"] == "Usage"


def test_the_opposite_is_never_suggested() -> None:
    assert suggestions("", "unpinn", COMMANDS)
    assert suggestions("", "instal", COMMANDS)
    for name in ("unpinn", "instal", "uninstal", "unmut", "mut", "unshar"):
        for path in suggestions("", name, COMMANDS):
            assert any(
                word.startswith(("un", "--no-")) for word in path.split()
            ) == name.startswith("un")


def test_help_knows_short_names(capsule: Any) -> None:
    for short_name, name in (("doctor", "store doctor"), ("ls", "list"), ("mcp", "mcp")):
        assert capsule("help", short_name).stdout == capsule(*name.split(), "--help").stdout
