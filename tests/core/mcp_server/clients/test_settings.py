"""The entry in a program's settings: put in, read back, taken out, and nothing else touched."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from capsule.errors import InvalidDocument, InvalidInput, Refused, StoreBusy
from capsule.mcp_server.clients.settings import (
    CLIENTS,
    LaunchCommand,
    MachinePaths,
    McpProgram,
    apply,
    entries,
    install,
    uninstall,
)

LAUNCH = LaunchCommand("/opt/my tools/capsule", ("mcp", "--store", "/störe"))


def named(name: str) -> McpProgram:
    return next(client for client in CLIENTS if client.name == name)


def put_in(places: MachinePaths, name: str = "cursor", **options: Any) -> str | None:
    return apply(
        install(named(name), "user", places, LAUNCH, **options), places, f"{places.home}/copies"
    )


def take_out(places: MachinePaths, name: str = "cursor") -> None:
    for plan in uninstall(named(name), "user", places):
        apply(plan, places, f"{places.home}/copies")


def settings(places: MachinePaths, text: str = "", name: str = "cursor") -> Path:
    path = Path(named(name).files("user", places)[0])
    path.parent.mkdir(parents=True, exist_ok=True)
    if text:
        path.write_bytes(text.encode())
    return path


def test_an_entry_put_in_is_read_back_and_goes_again_in_every_program_and_scope(
    places: MachinePaths,
) -> None:
    for one in CLIENTS:
        for scope in (
            () if one.name == "codex" else ("user", "project") if one.project else ("user",)
        ):
            plan = install(one, scope, places, LAUNCH)
            assert plan.has_effect and plan.before is None
            apply(plan, places, f"{places.home}/copies")
            [entry] = entries(one, scope, places)
            assert entry.launch == LAUNCH
            assert entry.starts_capsule and not entry.is_disabled
            assert not install(one, scope, places, LAUNCH).has_effect
            [plan] = uninstall(one, scope, places)
            apply(plan, places, f"{places.home}/copies")
            assert list(entries(one, scope, places)) == []
            assert not uninstall(one, scope, places)[0].has_effect


def test_only_the_entry_changes_and_the_layout_stays(places: MachinePaths) -> None:
    for text in (
        '{\n    "ä": [1, 2.5],\n    "mcpServers": {\n        "other": {}\n    }\n}\n',
        '{\r\n\t"theme": "dark",\r\n\t"mcpServers": {\r\n\t\t"other": {}\r\n\t}\r\n}',
        "{}\n",
    ):
        path = settings(places, text.replace("[1, 2.5]", "2.5"))
        before = path.read_bytes()
        assert put_in(places) is not None
        held = json.loads(path.read_bytes())
        assert held["mcpServers"].pop("capsule")["args"] == list(LAUNCH.args)
        assert held.get("theme", "dark") == "dark"
        take_out(places)
        assert path.read_bytes() == before


def test_a_file_of_toml_is_read_and_gets_something_to_paste(places: MachinePaths) -> None:
    path = settings(places, 'model = "x" # which\n', "codex")
    plan = install(named("codex"), "user", places, LAUNCH)
    assert not plan.has_effect
    path.write_text(path.read_text() + plan.paste)
    assert [entry.launch for entry in entries(named("codex"), "user", places)] == [LAUNCH]
    [plan] = uninstall(named("codex"), "user", places)
    assert not plan.has_effect and "mcp_servers.capsule" in plan.paste


def test_a_file_that_json_would_change_gets_text_to_paste(places: MachinePaths) -> None:
    for text in (
        '{\n  // mine\n  "mcpServers": {},\n}\n',
        '{"mcpServers": {/* none */}}',
        '{"a": 1, "a": 2}',
        '{"a": 1.10}',
        '{"a": 1e400, "url": "http://x"}',
        '\ufeff{"a": 1}',
    ):
        path = settings(places, text)
        plan = install(named("cursor"), "user", places, LAUNCH)
        assert not plan.has_effect
        assert json.loads(plan.paste)["mcpServers"]["capsule"]["command"] == LAUNCH.command
        assert path.read_text() == text
    entry = json.dumps(named("cursor").entry(LAUNCH))
    settings(
        places, f'{{"mcpServers": {{"capsule": {entry}, /* "x": "//", */ }}, "url": "http://x//"}}'
    )
    assert [one.launch for one in entries(named("cursor"), "user", places)] == [LAUNCH]
    [plan] = uninstall(named("cursor"), "user", places)
    assert "mcpServers.capsule" in plan.paste and not plan.has_effect


def test_a_file_that_can_not_be_read_is_refused_with_line_and_column(places: MachinePaths) -> None:
    path = settings(places, '{\n  // mine\n  "a": x\n}\n')
    with pytest.raises(InvalidDocument) as refused:
        install(named("cursor"), "user", places, LAUNCH)
    assert f"{path}:3:8" in refused.value.message
    for name, text in (
        ("cursor", '{"mcpServers": []}'),
        ("cursor", "[]"),
        ("codex", "a = "),
        ("cursor", "[" * 9999),
    ):
        settings(places, text, name)
        with pytest.raises(InvalidDocument):
            install(named(name), "user", places, LAUNCH)
    settings(places).write_bytes(b"\xff")
    with pytest.raises(InvalidDocument):
        install(named("cursor"), "user", places, LAUNCH)


def test_an_entry_of_our_name_that_starts_something_else_is_left_alone_unless_forced(
    places: MachinePaths,
) -> None:
    settings(
        places, '{"mcpServers": {"capsule": {"command": "touch", "args": ["here"], "mine": 1}}}'
    )
    with pytest.raises(Refused):
        install(named("cursor"), "user", places, LAUNCH)
    with pytest.raises(Refused):
        uninstall(named("cursor"), "user", places)
    put_in(places, force=True)
    [entry] = entries(named("cursor"), "user", places)
    assert entry.starts_capsule and "mine" not in entry.value
    # Of an entry of ours, what a person added stays.
    path = settings(places)
    path.write_text(path.read_text().replace('"type"', '"timeout": 9, "type"'))
    apply(
        install(named("cursor"), "user", places, replace(LAUNCH, args=("mcp", "--store", "/x"))),
        places,
        f"{places.home}/copies",
    )
    [entry] = entries(named("cursor"), "user", places)
    assert (entry.value["timeout"], entry.value["args"]) == (9, ["mcp", "--store", "/x"])


def test_a_link_stays_a_link_and_a_file_keeps_its_permissions(places: MachinePaths) -> None:
    target = Path(places.home, "dotfiles.json")
    target.write_text("{}")
    target.chmod(0o644)
    settings(places).symlink_to(target)
    copy = put_in(places)
    assert settings(places).is_symlink() and "capsule" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert copy is not None
    assert (Path(copy).read_text(), stat.S_IMODE(Path(copy).stat().st_mode)) == ("{}", 0o600)
    put_in(places, "zed")
    assert stat.S_IMODE(settings(places, name="zed").stat().st_mode) == 0o600


def test_a_file_that_somebody_else_changes_meanwhile_is_not_overwritten(
    places: MachinePaths,
) -> None:
    path = settings(places, "{}")
    plan = install(named("cursor"), "user", places, LAUNCH)
    path.write_text('{"theirs": 1}')
    with pytest.raises(StoreBusy):
        apply(plan, places, f"{places.home}/copies")
    assert path.read_text() == '{"theirs": 1}'
    assert [one.name for one in path.parent.iterdir()] == [path.name]


def test_the_file_that_is_there_is_used_and_the_one_with_our_entry_first(
    places: MachinePaths,
) -> None:
    json_, jsonc = (Path(path) for path in named("opencode").files("user", places))
    settings(places, name="opencode")
    jsonc.write_text("{}")
    assert install(named("opencode"), "user", places, LAUNCH).path == str(jsonc)
    put_in(places, "opencode")
    json_.write_text('{"mcp": {"servers": {"other": {}}}}')
    assert install(
        named("opencode"), "user", places, replace(LAUNCH, args=("mcp", "--store", "/x"))
    ).path == str(jsonc)
    jsonc.unlink()
    put_in(places, "opencode")
    assert set(json.loads(json_.read_text())["mcp"]["servers"]) == {"other", "capsule"}


def test_a_path_that_programs_would_read_as_a_variable_is_refused(places: MachinePaths) -> None:
    for word in ("/opt/$HOME/capsule", "${x}", "{env:X}", "%APPDATA%"):
        with pytest.raises(InvalidInput):
            install(named("cursor"), "user", places, LaunchCommand(word))


def test_a_programs_own_command_is_run_where_it_has_one(places: MachinePaths) -> None:
    """What the real programs make of it, `make clients` shows."""
    log, programs = Path(places.home, "log"), {}
    for name in ("claude", "codex", "gemini", "code"):
        path = Path(places.home, name)
        path.write_text(f'#!/bin/sh\nprintf "%s|" {name} "$@" >> "{log}"\n[ "$1" != fail ]\n')
        path.chmod(0o755)
        programs[name] = str(path)
    there = replace(places, programs=programs)
    said: Callable[[], str] = lambda: log.read_text() if log.exists() else ""  # noqa: E731
    store = "/opt/my tools/capsule|mcp|--store|/störe|"
    for name, scope, added in (
        ("claude-code", "project", f"claude|mcp|add|--scope|project|capsule|--|{store}"),
        ("codex", "user", f"codex|mcp|add|capsule|--|{store}"),
        (
            "gemini",
            "user",
            "gemini|mcp|add|--scope|user|capsule|/opt/my tools/capsule|--|mcp|--store|/störe|",
        ),
        ("vscode", "user", "code|--add-mcp|"),
    ):
        plan = install(named(name), scope, there, LAUNCH)  # type: ignore[arg-type]
        assert plan.after is None and said() == ""
        assert apply(plan, there, f"{places.home}/copies") is None
        assert said().startswith(added)
        log.unlink()
    # Where it has none, in that scope or at all, the file is written.
    assert install(named("gemini"), "project", there, LAUNCH).commands
    assert install(named("cursor"), "project", there, LAUNCH).after is not None
    settings(
        places,
        '{"mcpServers": {"capsule": {"command": "capsule", "args": ["mcp"]}}}',
        "claude-code",
    )
    [plan] = uninstall(named("claude-code"), "user", there)
    apply(plan, there, f"{places.home}/copies")
    assert said() == "claude|mcp|remove|--scope|user|capsule|"
    other = install(named("claude-code"), "user", there, LAUNCH)
    assert [command[2] for command in other.commands] == ["remove", "add"]
    failing = replace(plan, commands=((programs["claude"], "fail"),))
    with pytest.raises(Refused):
        apply(failing, there, f"{places.home}/copies")
