"""Where each program looks for its MCP servers."""

from __future__ import annotations

import re
from dataclasses import replace

from capsule.mcp_server.clients.settings import CLIENTS, VARIABLES, LaunchCommand, MachinePaths
from capsule_cli.commands import mcp as mcp_clients

LINUX = MachinePaths("linux", "/home/anna", "/projects/x")
MACOS = MachinePaths("darwin", "/Users/anna", "/projects/x")
WINDOWS = MachinePaths("win32", r"C:\Users\anna", r"C:\work\x", {"APPDATA": r"D:\Roaming"})


def files(name: str, places: MachinePaths) -> list[str]:
    return next(list(client.files("user", places)) for client in CLIENTS if client.name == name)


def test_a_program_has_its_settings_where_it_looks_for_them() -> None:
    for name, linux, macos, windows in (
        (
            "claude-desktop",
            ".config/Claude",
            "Library/Application Support/Claude",
            r"D:\Roaming\Claude",
        ),
        (
            "vscode",
            ".config/Code/User",
            "Library/Application Support/Code/User",
            r"D:\Roaming\Code\User",
        ),
        ("windsurf", ".config/devin", ".config/devin", r"D:\Roaming\devin"),
        ("zed", ".config/zed", ".config/zed", r"D:\Roaming\Zed"),
        ("codex", ".codex", ".codex", r"C:\Users\anna\.codex"),
    ):
        for places, folder, separator in (
            (LINUX, f"{LINUX.home}/{linux}", "/"),
            (MACOS, f"{MACOS.home}/{macos}", "/"),
            (WINDOWS, windows, "\\"),
        ):
            assert files(name, places)[0].rpartition(separator)[0] == folder


def test_a_variable_moves_the_settings_unless_it_is_no_absolute_path() -> None:
    for name, variable, path in (
        ("claude-code", "CLAUDE_CONFIG_DIR", "/else/.claude.json"),
        ("codex", "CODEX_HOME", "/else/config.toml"),
        ("gemini", "GEMINI_CLI_HOME", "/else/.gemini/settings.json"),
        ("opencode", "OPENCODE_CONFIG_DIR", "/else/opencode.json"),
        ("opencode", "XDG_CONFIG_HOME", "/else/opencode/opencode.json"),
        ("vscode", "XDG_CONFIG_HOME", "/else/Code/User/mcp.json"),
        ("zed", "XDG_CONFIG_HOME", "/else/zed/settings.json"),
        ("zed", "FLATPAK_XDG_CONFIG_HOME", "/else/zed/settings.json"),
    ):
        assert variable in VARIABLES
        assert files(name, replace(LINUX, environment={variable: "/else"}))[0] == path
        for nothing in ("", "else"):
            assert files(name, replace(LINUX, environment={variable: nothing})) == files(
                name, LINUX
            )


def test_every_entry_starts_the_server() -> None:
    for one in CLIENTS:
        words = str(one.entry(LaunchCommand("/opt/capsule", ("mcp", "--store", "/s"))))
        assert "/opt/capsule" in words and "'mcp', '--store', '/s'" in words


def test_the_help_names_every_program() -> None:
    named = re.search(r"The programs: ([a-z, -]+)\.", mcp_clients._NAMES)
    assert named is not None
    assert named[1].split(", ") == [one.name for one in CLIENTS]
