"""Where each program looks for its MCP servers."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

from capsule.mcp_server.clients.table import CLIENTS, VARIABLES, Launch, Places
from capsule_cli.commands.mcp import clients as mcp_clients

LINUX = Places("linux", "/home/anna", "/projects/x")
MACOS = Places("darwin", "/Users/anna", "/projects/x")
WINDOWS = Places("win32", r"C:\Users\anna", r"C:\work\x", {"APPDATA": r"D:\Roaming"})


def files(name: str, places: Places) -> list[str]:
    return next(list(client.files("user", places)) for client in CLIENTS if client.name == name)


def test_a_program_has_its_settings_where_it_looks_for_them() -> None:
    apart = {  # On Linux, on macOS, on Windows.
        "claude-desktop": (".config/Claude", "Library/Application Support/Claude", "Claude"),
        "vscode": (".config/Code/User", "Library/Application Support/Code/User", "Code/User"),
        "windsurf": (".config/devin", ".config/devin", "devin"),
        "zed": (".config/zed", ".config/zed", "Zed"),
    }
    alike = {"claude-code": "", "codex": ".codex", "gemini": ".gemini", "cursor": ".cursor"}
    alike["opencode"] = ".config/opencode"
    names = {"claude-code": ".claude.json", "claude-desktop": "claude_desktop_config.json", "codex": "config.toml"}
    names |= {"gemini": "settings.json", "cursor": "mcp.json", "vscode": "mcp.json", "windsurf": "mcp_config.json"}
    names |= {"opencode": "opencode.json", "zed": "settings.json"}
    assert names.keys() == {one.name for one in CLIENTS}
    for name, file in names.items():
        windows = WINDOWS.environment["APPDATA"] if name in apart else WINDOWS.home
        linux, macos, under = apart.get(name) or (alike[name],) * 3
        for places, path in ((LINUX, f"{LINUX.home}/{linux}"), (MACOS, f"{MACOS.home}/{macos}")):
            assert files(name, places)[0] == f"{path.rstrip('/')}/{file}"
        assert files(name, WINDOWS)[0] == "\\".join(filter(None, (windows, under.replace("/", "\\"), file)))


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
            assert files(name, replace(LINUX, environment={variable: nothing})) == files(name, LINUX)


def test_in_a_project_a_program_has_its_settings_where_it_looks_for_them() -> None:
    found = {one.name: [path.removeprefix("/projects/x/") for path in one.files("project", LINUX)] for one in CLIENTS}
    assert found == {
        "claude-code": [".mcp.json"],
        "claude-desktop": [],
        "codex": [".codex/config.toml"],
        "gemini": [".gemini/settings.json"],
        "cursor": [".cursor/mcp.json"],
        "vscode": [".vscode/mcp.json"],
        "windsurf": [".devin/mcp_config.json"],
        "opencode": ["opencode.json", "opencode.jsonc"],
        "zed": [".zed/settings.json"],
    }


def test_every_entry_starts_the_server() -> None:
    for one in CLIENTS:
        words = str(one.entry(Launch("/opt/capsule", ("mcp", "--store", "/s"))))
        assert "/opt/capsule" in words and "'mcp', '--store', '/s'" in words


def test_the_help_names_every_program() -> None:
    text = Path(mcp_clients.__file__).read_text(encoding="utf-8")
    named = re.search(r"The programs: ([a-z, -]+)\.", text)
    assert named is not None
    assert named[1].split(", ") == [one.name for one in CLIENTS]
