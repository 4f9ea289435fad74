"""The programs that use MCP servers: where each looks for them, in which shape, and by which
command it changes them.

What must stay true: everything that is known of a program stands in its row; a row's files are
given from the one that counts most. Nothing here looks at the machine; what it must know is passed
in.

Looked up on 2026-11-21; `make clients` runs some of them and sees that they read what is written
here.
"""

from __future__ import annotations

import json
import ntpath
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

#: What the server is called in a program's settings.
NAME = "capsule"
Scope = Literal["user", "project"]

#: What of the environment decides where the programs look; nothing else of it is asked for.
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
    """Where things are on this machine: a `sys.platform`, and absolute paths."""

    platform: str
    home: str
    project: str
    #: The values of `VARIABLES` that are set, and the paths of those of `PROGRAMS` that are
    #: installed.
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)

    def path(self, templates: str) -> str:
        """The path of the first template whose directory is known; `|` stands between them."""
        windows = self.platform == "win32"
        for template in templates.split("|"):
            directory, *names = template.split("/")
            if root := self._directory(directory, windows):
                return ntpath.join(root, *names) if windows else posixpath.join(root, *names)
        raise AssertionError(templates)

    def _directory(self, name: str, windows: bool) -> str:
        if name in _DIRECTORIES:
            return self.path(_DIRECTORIES[name])
        own = {
            "PROJECT": self.project,
            "HOME": self.home,
            "MACOS": self.home if self.platform == "darwin" else "",
        }
        if name in own:
            return own[name]
        if name == "WINDOWS":
            return self.path("APPDATA|HOME/AppData/Roaming") if windows else ""
        value = self.environment.get(name, "")
        return value if (ntpath if windows else posixpath).isabs(value) else ""


@dataclass(frozen=True, slots=True)
class LaunchCommand:
    """How a program starts the server."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None

    @property
    def store(self) -> str | None:
        """The store that the arguments name, the last one; None: they name none."""
        named = [word for at, word in enumerate(self.args) if at and self.args[at - 1] == "--store"]
        named += [
            word.removeprefix("--store=") for word in self.args if word.startswith("--store=")
        ]
        return named[-1] if named else None


Shape = Literal["plain", "typed", "one list"]


@dataclass(frozen=True, slots=True)
class McpProgram:
    """A program that uses MCP servers.

    Attributes:
        name: What the command line calls it.
        title: What people call it.
        user: Its files in the user's settings, as templates of `MachinePaths.path`.
        project: Its files in a project; none: it has none there. A file that ends in .toml is TOML,
            others are JSON.
        servers: The names that lead to the table of servers.
        shape: How an entry names the command.
        then: What a person does after a change.
        program: Its command, when it has one for its servers.
        adds: The arguments with which that adds a server; without {scope}, in the user's settings
            alone.
        removes: The arguments with which it takes ours out.
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
        """The files of a scope, absolute, the one that counts first; none when it has no such
        scope.
        """
        return tuple(map(places.path, self.user if scope == "user" else self.project))

    def entry(self, launch: LaunchCommand) -> dict[str, Any]:
        """What an entry says."""
        if self.shape == "one list":
            return {"type": "local", "command": [launch.command, *launch.args]}
        kind = {"type": "stdio"} if self.shape == "typed" else {}
        return {**kind, "command": launch.command, "args": list(launch.args)}

    def adding(
        self, scope: Scope, places: MachinePaths, launch: LaunchCommand
    ) -> tuple[tuple[str, ...], ...]:
        """The command that adds our entry, if there is one."""
        return self._command(self.adds, scope, places, launch)

    def removing(self, scope: Scope, places: MachinePaths) -> tuple[tuple[str, ...], ...]:
        """The command that takes our entry out, if there is one."""
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
        filled = {
            "{scope}": (scope,),
            "{name}": (NAME,),
            "{command}": (launch.command,),
            "{args}": launch.args,
            "{json}": (json.dumps({"name": NAME, **self.entry(launch)}),),
        }
        return (
            (
                places.programs[self.program],
                *(part for word in words.split() for part in filled.get(word, (word,))),
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
