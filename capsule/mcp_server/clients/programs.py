"""The programs that use MCP servers: the places of their settings, the form of an entry, and the
commands that change it.

`CLIENTS` has one row for each program, found in its documentation on 2026-11-21. `make clients`
runs some of the programs, and checks that they read what is written here.

What must stay true: everything that is particular to a program is in its row. The files of a row
are ordered: the first is the one that counts most. This module does not look at the machine: it
gets paths and variables as `MachinePaths`.
"""

from __future__ import annotations

import json
import ntpath
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: The name of the entry in a program's settings.
NAME = "capsule"
Scope = Literal["user", "project"]

#: The environment variables that decide where the programs look. No other is read.
VARIABLES = (
    *("APPDATA", "CLAUDE_CONFIG_DIR", "CODEX_HOME", "FLATPAK_XDG_CONFIG_HOME", "GEMINI_CLI_HOME"),
    *("OPENCODE_CONFIG_DIR", "XDG_CONFIG_HOME"),
)


#: Directories by templates of `MachinePaths.path`.
_DIRECTORIES = {
    "XDG": "XDG_CONFIG_HOME|HOME/.config",
    "FLATPAK": "FLATPAK_XDG_CONFIG_HOME|XDG",
    "SETTINGS": "WINDOWS|MACOS/Library/Application Support|XDG",
}


@dataclass(frozen=True, slots=True)
class MachinePaths:
    """The paths of this machine that decide where settings are.

    Attributes:
        platform: A value of `sys.platform`.
        home: The home folder, absolute.
        project: The current folder, absolute.
        environment: The values of those of `VARIABLES` that are set.
        programs: The paths of those of `PROGRAMS` that are installed, by name.
    """

    platform: str
    home: str
    project: str

    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)

    def path(self, templates: str) -> str:
        """Return the path of the first template whose directory is known. Templates are separated
        by `|`.
        """
        is_windows = self.platform == "win32"
        for template in templates.split("|"):
            name, *rest = template.split("/")
            directory = self._directory(name, is_windows)
            if directory:
                join = ntpath.join if is_windows else posixpath.join
                return join(directory, *rest)
        raise AssertionError(templates)

    def _directory(self, name: str, windows: bool) -> str:
        """Return the directory that a template begins with. Empty: it is unknown on this machine."""
        if name in _DIRECTORIES:
            return self.path(_DIRECTORIES[name])
        if name == "PROJECT":
            return self.project
        if name == "HOME":
            return self.home
        if name == "MACOS":
            return self.home if self.platform == "darwin" else ""
        if name == "WINDOWS":
            return self.path("APPDATA|HOME/AppData/Roaming") if windows else ""
        value = self.environment.get(name, "")
        is_absolute = ntpath.isabs if windows else posixpath.isabs
        return value if is_absolute(value) else ""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How a program starts the server."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    @property
    def store(self) -> str | None:
        """Return the store that the arguments name, the last one if there are several. None: there
        is none.
        """
        stores = []
        for position, word in enumerate(self.args):
            if position and self.args[position - 1] == "--store":
                stores.append(word)
        for word in self.args:
            if word.startswith("--store="):
                stores.append(word.removeprefix("--store="))
        return stores[-1] if stores else None


Shape = Literal["plain", "typed", "one list"]


@dataclass(frozen=True, slots=True)
class McpProgram:
    """A program that uses MCP servers.

    Attributes:
        name: Its name on the command line.
        title: Its name for people.
        user: The files of the user's settings, as templates of `MachinePaths.path`.
        project: The files of a project's settings. Empty: it has none. A file that ends in .toml is
            TOML, others are JSON.
        servers: The names that lead to the table of servers.
        shape: The form of an entry.
        then: What a person does after a change.
        program: The command that manages its servers. Empty: it has none.
        adds: The arguments with which this command adds a server. Without {scope}, it changes only
            the
            user's settings.
        removes: The arguments with which it removes our server.
    """

    name: str
    title: str
    user: tuple[str, ...]
    project: tuple[str, ...] = ()
    servers: tuple[str, ...] = ("mcpServers",)
    shape: Shape = "plain"
    then: str = "restart {title}"
    program: str = ""
    adds: str = ""
    removes: str = ""

    def files(self, scope: Scope, places: MachinePaths) -> tuple[str, ...]:
        """Return the files of a scope, absolute, the one that counts most first. Empty: it has no
        such scope.
        """
        return tuple(map(places.path, self.user if scope == "user" else self.project))

    def entry(self, launch: LaunchCommand) -> dict[str, Any]:
        """Return the content of an entry."""
        if self.shape == "one list":
            return {"type": "local", "command": [launch.command, *launch.args]}
        kind = {"type": "stdio"} if self.shape == "typed" else {}
        return {**kind, "command": launch.command, "args": list(launch.args)}

    def add_commands(
        self, scope: Scope, places: MachinePaths, launch: LaunchCommand
    ) -> tuple[tuple[str, ...], ...]:
        """Return the command that adds our entry. Empty: the program has none."""
        return self._command(self.adds, scope, places, launch)

    def remove_commands(self, scope: Scope, places: MachinePaths) -> tuple[tuple[str, ...], ...]:
        """Return the command that removes our entry. Empty: the program has none."""
        return self._command(self.removes, scope, places, LaunchCommand(""))

    def _command(
        self, words: str, scope: Scope, places: MachinePaths, launch: LaunchCommand
    ) -> tuple[tuple[str, ...], ...]:
        if (
            not words
            or self.program not in places.programs
            or (scope == "project" and "{scope}" not in words)
        ):
            return ()
        values = {
            "{scope}": (scope,),
            "{name}": (NAME,),
            "{command}": (launch.command,),
            "{args}": launch.args,
            "{json}": (json.dumps({"name": NAME, **self.entry(launch)}),),
        }
        return (
            (
                places.programs[self.program],
                *(part for word in words.split() for part in values.get(word, (word,))),
            ),
        )


CLIENTS: tuple[McpProgram, ...] = (
    # https://code.claude.com/docs/en/mcp#mcp-installation-scopes
    McpProgram(
        name="claude-code",
        title="Claude Code",
        user=("CLAUDE_CONFIG_DIR/.claude.json|HOME/.claude.json",),
        project=("PROJECT/.mcp.json",),
        shape="typed",
        then="a new session of Claude Code has it; it asks once before it trusts a project's "
        ".mcp.json",
        program="claude",
        adds="mcp add --scope {scope} {name} -- {command} {args}",
        removes="mcp remove --scope {scope} {name}",
    ),
    # https://modelcontextprotocol.io/docs/develop/connect-local-servers
    # https://github.com/aaddrick/claude-desktop-debian, where the Linux one keeps it
    McpProgram(
        name="claude-desktop",
        title="Claude Desktop",
        user=("SETTINGS/Claude/claude_desktop_config.json",),
    ),
    # https://developers.openai.com/codex/mcp
    McpProgram(
        name="codex",
        title="Codex",
        user=("CODEX_HOME/config.toml|HOME/.codex/config.toml",),
        project=("PROJECT/.codex/config.toml",),
        servers=("mcp_servers",),
        then="a new session of Codex has it; a project's own file counts once the project is "
        "trusted",
        program="codex",
        adds="mcp add {name} -- {command} {args}",
        removes="mcp remove {name}",
    ),
    # https://geminicli.com/docs/tools/mcp-server/, docs/cli/configuration and
    # docs/cli/trusted-folders
    McpProgram(
        name="gemini",
        title="Gemini CLI",
        user=("GEMINI_CLI_HOME/.gemini/settings.json|HOME/.gemini/settings.json",),
        project=("PROJECT/.gemini/settings.json",),
        then="a new session of Gemini CLI has it, in folders that it trusts",
        program="gemini",
        adds="mcp add --scope {scope} {name} {command} -- {args}",
        removes="mcp remove --scope {scope} {name}",
    ),
    # https://cursor.com/docs/mcp
    McpProgram(
        name="cursor",
        title="Cursor",
        user=("HOME/.cursor/mcp.json",),
        project=("PROJECT/.cursor/mcp.json",),
        shape="typed",
    ),
    # https://code.visualstudio.com/docs/agents/reference/mcp-configuration
    McpProgram(
        name="vscode",
        title="VS Code",
        user=("SETTINGS/Code/User/mcp.json",),
        project=("PROJECT/.vscode/mcp.json",),
        servers=("servers",),
        shape="typed",
        then="start it from the file's own button in VS Code, or with: MCP: List Servers",
        program="code",
        adds="--add-mcp {json}",
    ),
    # https://docs.devin.ai/cli/extensibility/mcp/configuration,
    # https://docs.windsurf.com/windsurf/cascade/mcp Since June 2026 it is called Devin Desktop
    # (https://devin.ai/blog/windsurf-is-now-devin-desktop/); before, it read the second file.
    McpProgram(
        name="windsurf",
        title="Windsurf (Devin Desktop)",
        user=(
            "WINDOWS/devin/mcp_config.json|HOME/.config/devin/mcp_config.json",
            "HOME/.codeium/windsurf/mcp_config.json",
        ),
        project=("PROJECT/.devin/mcp_config.json",),
    ),
    # https://opencode.ai/v1/docs/config/; https://opencode.ai/v2/docs/mcp-servers/ has
    # `mcp.servers`, and reads both
    McpProgram(
        name="opencode",
        title="OpenCode",
        user=(
            "OPENCODE_CONFIG_DIR/opencode.json|XDG/opencode/opencode.json",
            "OPENCODE_CONFIG_DIR/opencode.jsonc|XDG/opencode/opencode.jsonc",
        ),
        project=("PROJECT/opencode.json", "PROJECT/opencode.jsonc"),
        servers=("mcp",),
        shape="one list",
        then="a new session of OpenCode has it",
    ),
    # https://zed.dev/docs/ai/mcp,
    # https://github.com/zed-industries/zed/blob/main/crates/paths/src/paths.rs
    McpProgram(
        name="zed",
        title="Zed",
        user=(
            "WINDOWS/Zed/settings.json|MACOS/.config/zed/settings.json|FLATPAK/zed/settings.json",
        ),
        project=("PROJECT/.zed/settings.json",),
        servers=("context_servers",),
        then="Zed has it at once; in a project, once the project is trusted",
    ),
)
#: The programs that have commands for their servers.
PROGRAMS = tuple(client.program for client in CLIENTS if client.program)
