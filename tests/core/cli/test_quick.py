"""The quick way into a command, which reads the words without typer."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from typer.testing import CliRunner

from capsule.rooms import Room
from capsule_cli import fast_path
from capsule_cli.app import app, installed_parts
from capsule_cli.shared.output import global_options
from tests.core.cli.test_program import command_of

COMMANDS = sorted(
    {name for room in installed_parts() for name in room.command_names()} | {"cat", "ls", "nothing"}
)
FLAGS = {
    name: sorted(
        {
            flag
            for param in command_of(name).params
            for flag in (*param.opts, *param.secondary_opts)
            if flag[:1] == "-"
        }
    )
    for room in installed_parts()
    for name in room.command_names()
}
SHARED = ["--json", "--store", "--as", "--instance", "--no-pager", "--help", "--version"]
WORDS = [
    "a",
    "5",
    "0",
    "-1",
    "user",
    "@last",
    "x y",
    "two\nlines",
    "",
    "-",
    "--",
    "a=b",
    "١",
    "1.5",
    "all",
    "\udc80",
]


def calls_of(words: list[str], patch: pytest.MonkeyPatch) -> list[Any]:
    """What typer calls for these words, and with what."""
    calls: list[Any] = []
    command = Room.command

    def recorded(room: Room, name: str) -> Callable[..., Any]:
        function = command(room, name)

        @wraps(function)
        def record(**values: Any) -> None:
            calls.append((function, values, {**vars(global_options)}))

        return record

    patch.setattr(Room, "command", recorded)
    assert CliRunner().invoke(app, words).exit_code == 0, words
    return calls


@st.composite
def _lines(draw: Any) -> list[str]:
    command = draw(st.sampled_from(COMMANDS))
    flags = [*SHARED, *FLAGS.get(command, ())]
    word = st.sampled_from(WORDS)
    flag = st.sampled_from(flags)
    with_value = st.tuples(flag, word).map(list)
    joined = st.tuples(flag, word).map(lambda pair: ["=".join(pair)])
    more = st.lists(
        with_value | joined | flag.map(lambda it: [it]) | word.map(lambda it: [it]), max_size=4
    )
    before = draw(st.lists(with_value | flag.map(lambda it: [it]), max_size=1))
    return [each for group in [*before, command.split(), *draw(more)] for each in group]


def ensure_same(words: list[str]) -> bool:
    """Whether the words are read without typer; then typer must read the same in them."""
    try:
        call = fast_path.read(words)
    except (LookupError, ValueError):
        return False
    with pytest.MonkeyPatch.context() as patch:
        [(function, values, everywhere)] = calls_of(words, patch)
    assert (function, values) == (call[0], call[2]), words
    assert call[1] == {name: everywhere[name] for name in call[1]}, words
    return True


@given(_lines())
def test_what_is_read_quickly_typer_reads_in_the_same_way(words: list[str]) -> None:
    event(f"read: {ensure_same(words)}")


def test_every_option_is_read_as_typer_reads_it() -> None:
    read = 0
    for command in COMMANDS:
        for arguments in ([], ["a"], ["a", "b"]):
            read += ensure_same([*command.split(), *arguments])
            for flag in FLAGS.get(command, ()):
                read += sum(
                    ensure_same([*command.split(), *arguments, flag, *value])
                    for value in ([], ["5"], ["user"])
                )
    assert read > 500


@pytest.mark.parametrize(
    "line",
    [
        "append @last hello --role assistant --json",
        "--store somewhere append --from bob @last -",
        "append @last --jsonl",
        "show @last -n 5",
        "cat @last --around @3 --span 2",
        "new title",
        "list --limit 3",
    ],
)
def test_a_plain_command_is_read_without_typer(line: str) -> None:
    assert fast_path.read(line.split())


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (["append", "@last", " "], 2),
        (["append", "nothing", "hello", "--json"], 3),
        (["show", "@last", "--raw", "--markdown", "--json"], 2),
        (["show", "@last", "--around", "@99"], 3),
        (["lock", "take", "@last"], 2),
    ],
)
def test_an_error_is_told_as_typers_program_tells_it(
    capsule: Any, line: list[str], code: int
) -> None:
    capsule.new("A")
    assert fast_path.read(line)
    assert capsule.process(*line, expect=code) == capsule(*line, expect=code)
