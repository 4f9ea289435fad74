"""Where each program looks for its MCP servers."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from capsule.mcp_server.clients.table import CLIENTS, VARIABLES, Launch, Places, client
from capsule_cli import mcp_clients

LINUX = Places("linux", "/home/anna", "/projects/x")
MACOS = Places("darwin", "/Users/anna", "/projects/x")
WINDOWS = Places("win32", r"C:\Users\anna", r"C:\work\x", {"APPDATA": r"D:\Roaming"})


@pytest.mark.parametrize(
    ("name", "linux", "macos", "windows"),
    [
        ("claude-code", "/home/anna/.claude.json", "/Users/anna/.claude.json", r"C:\Users\anna\.claude.json"),
        (
            "claude-desktop",
            "/home/anna/.config/Claude/claude_desktop_config.json",
            "/Users/anna/Library/Application Support/Claude/claude_desktop_config.json",
            r"D:\Roaming\Claude\claude_desktop_config.json",
        ),
        (
            "codex",
            "/home/anna/.codex/config.toml",
            "/Users/anna/.codex/config.toml",
            r"C:\Users\anna\.codex\config.toml",
        ),
        (
            "gemini",
            "/home/anna/.gemini/settings.json",
            "/Users/anna/.gemini/settings.json",
            r"C:\Users\anna\.gemini\settings.json",
        ),
        ("cursor", "/home/anna/.cursor/mcp.json", "/Users/anna/.cursor/mcp.json", r"C:\Users\anna\.cursor\mcp.json"),
        (
            "vscode",
            "/home/anna/.config/Code/User/mcp.json",
            "/Users/anna/Library/Application Support/Code/User/mcp.json",
            r"D:\Roaming\Code\User\mcp.json",
        ),
        (
            "windsurf",
            "/home/anna/.config/devin/mcp_config.json",
            "/Users/anna/.config/devin/mcp_config.json",
            r"D:\Roaming\devin\mcp_config.json",
        ),
        (
            "opencode",
            "/home/anna/.config/opencode/opencode.json",
            "/Users/anna/.config/opencode/opencode.json",
            r"C:\Users\anna\.config\opencode\opencode.json",
        ),
        (
            "zed",
            "/home/anna/.config/zed/settings.json",
            "/Users/anna/.config/zed/settings.json",
            r"D:\Roaming\Zed\settings.json",
        ),
    ],
)
def test_a_program_has_its_settings_where_it_looks_for_them(name: str, linux: str, macos: str, windows: str) -> None:
    found = client(name)
    assert found is not None
    assert [found.files("user", places)[0] for places in (LINUX, MACOS, WINDOWS)] == [linux, macos, windows]


@pytest.mark.parametrize(
    ("name", "variable", "path"),
    [
        ("claude-code", "CLAUDE_CONFIG_DIR", "/else/.claude.json"),
        ("codex", "CODEX_HOME", "/else/config.toml"),
        ("gemini", "GEMINI_CLI_HOME", "/else/.gemini/settings.json"),
        ("opencode", "OPENCODE_CONFIG_DIR", "/else/opencode.json"),
        ("opencode", "XDG_CONFIG_HOME", "/else/opencode/opencode.json"),
        ("vscode", "XDG_CONFIG_HOME", "/else/Code/User/mcp.json"),
        ("zed", "XDG_CONFIG_HOME", "/else/zed/settings.json"),
        ("zed", "FLATPAK_XDG_CONFIG_HOME", "/else/zed/settings.json"),
    ],
)
def test_a_variable_moves_the_settings_unless_it_is_no_absolute_path(name: str, variable: str, path: str) -> None:
    found = client(name)
    assert found is not None
    assert variable in VARIABLES
    assert found.files("user", Places("linux", "/home/anna", "/x", {variable: "/else"}))[0] == path
    for nothing in ("", "else"):
        relative = Places("linux", "/home/anna", "/x", {variable: nothing})
        assert found.files("user", relative) == found.files("user", LINUX)


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


@pytest.mark.parametrize("one", CLIENTS, ids=lambda one: one.name)
def test_every_fact_has_a_source_and_every_entry_starts_the_server(one: object) -> None:
    assert hasattr(one, "sources") and hasattr(one, "shape")
    assert one.sources and all(re.match(r"https://\S+$", source) for source in one.sources)
    words = str(one.shape(Launch("/opt/capsule", ("mcp", "--store", "/s"))))
    assert "/opt/capsule" in words and "'mcp', '--store', '/s'" in words


def test_the_help_names_every_program() -> None:
    text = Path(mcp_clients.__file__).read_text(encoding="utf-8")
    named = re.search(r"The programs: ([a-z, -]+)\.", text)
    assert named is not None
    assert named[1].split(", ") == [one.name for one in CLIENTS]
