"""The files of agents: what is read from them, and how a wrong one is told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from capsule import Problem
from capsule.messaging.agent_files import AgentFile, agents_in

BOMB = "".join(
    f"k{n}: &k{n} [{', '.join([f'*k{n - 1}'] * 9 if n else 'x' * 9)}]\n" for n in range(9)
)


def write(folder: Path, text: str | bytes, name: str = "one.md") -> Path:
    path = folder / ".claude" / "agents" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("---\nname: bob\ntools: Read, Grep\nmodel: opus\n---\nBe brief.", {"name": "bob"}),
        (
            "\ufeff---\r\nname: bob\r\ndm_policy: closed\r\n---\r\n",
            {"name": "bob", "dm_policy": "closed"},
        ),
        (
            "---\nname: bob\nchannels:\nnever_default: true\n---",
            {"name": "bob", "never_default": True},
        ),
        (
            (
                "---\nname: bob\nchannels:\n  global: [news]\n  exclude:\n  - chat\ndm_whitelist: "
                "[anna]\n---"
            ),
            {
                "name": "bob",
                "channels.global": ("news",),
                "channels.exclude": ("chat",),
                "dm_whitelist": ("anna",),
            },
        ),
    ],
)
def test_the_fields_of_an_agent_are_read(tmp_path: Path, text: str, fields: dict[str, Any]) -> None:
    path = write(tmp_path, text)
    assert [*agents_in(str(tmp_path), "/p")] == [AgentFile(str(path), "/p", fields)]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("---\nname: bob\ndescription: Use when: always\n---", (3, 22, "")),
        ("---\nname: bob\ndm_policy: opne\n---", (3, 1, "dm_policy")),
        ("---\nname: bob\ndm_polcy: open\n---", (3, 1, "dm_polcy")),
        ("---\nname: bob\nchannels:\n  globl: [a]\n---", (4, 1, "channels.globl")),
        ("---\nname: bob\nchannels: [a]\n---", (3, 1, "channels")),
        ("---\nname: bob@api\n---", (2, 1, "name")),
        ("---\nname: ''\n---", (2, 1, "name")),
        ("---\nname: bob\nborn: 2024-99-99\n---", (0, 0, "")),
        (b"---\nname: \xff\n---", (0, 0, "")),
        (f"---\nname: bob\n{BOMB}dm_whitelist: [*k8]\n---", (12, 1, "dm_whitelist")),
        ("x" * 1_000_001, (0, 0, "")),
    ],
)
def test_a_wrong_file_is_left_out_and_told_with_its_line(
    tmp_path: Path, text: str | bytes, place: tuple[int, int, str]
) -> None:
    path = write(tmp_path, text)
    write(tmp_path, "---\nname: anna\n---", "two.md")
    problem, other = agents_in(str(tmp_path), None)
    assert isinstance(problem, Problem) and isinstance(other, AgentFile)
    assert (problem.path, problem.line, problem.column, problem.where) == (str(path), *place)
    assert len(problem.what) < 1000


def test_what_is_no_file_of_an_agent_is_passed_over_and_a_fifo_does_not_block(
    tmp_path: Path,
) -> None:
    for name, text in (
        ("readme.md", "# Agents"),
        ("empty.md", ""),
        ("bob.txt", "---\nname: bob\n---"),
    ):
        write(tmp_path, text, name)
    assert [*agents_in(str(tmp_path), None), *agents_in(str(tmp_path / "nowhere"), None)] == []
    os.mkfifo(tmp_path / ".claude" / "agents" / "fifo.md")
    assert [type(each) for each in agents_in(str(tmp_path), None)] == [Problem]
