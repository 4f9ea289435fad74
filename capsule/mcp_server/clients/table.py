"""Which programs there are, where each looks for MCP servers, and in which shape: facts, with their sources.

What must stay true: everything that is known of a program stands in its row, and a row's files are given from the one
that counts to the one that counts least. Nothing here looks at the machine; what it must know is passed in.

Looked up on 2026-11-21; the ones that `make clients` runs were seen to read what is written here.
"""

from __future__ import annotations

import json
import ntpath
import posixpath
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

__all__ = ["CLIENTS", "NAME", "PROGRAMS", "VARIABLES", "Client", "Launch", "Places", "Scope", "client"]

#: What the server is called in a program's settings.
NAME = "capsule"
#: The programs that have commands for their servers.
PROGRAMS = ("claude", "codex", "gemini", "code")

Scope = Literal["user", "project"]

#: What of the environment decides where the programs look; nothing else of it is asked for.
VARIABLES = (
    "APPDATA",
    "CLAUDE_CONFIG_DIR",
    "CODEX_HOME",
    "FLATPAK_XDG_CONFIG_HOME",
    "GEMINI_CLI_HOME",
    "OPENCODE_CONFIG_DIR",
    "XDG_CONFIG_HOME",
)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things are on this machine.

    Attributes:
        platform: As `sys.platform` says it: "linux", "darwin" or "win32".
        home: The user's home directory, absolute.
        project: The directory of the project, absolute.
        environment: The values of `VARIABLES` that are set.
        programs: The paths of those of `PROGRAMS` that are installed.
    """

    platform: str
    home: str
    project: str
    environment: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, str] = field(default_factory=dict)

    def join(self, *parts: str) -> str:
        """A path of this platform."""
        return ntpath.join(*parts) if self.platform == "win32" else posixpath.join(*parts)

    def variable(self, name: str) -> str:
        """The value of a variable, when it is set to an absolute path; empty otherwise."""
        value = self.environment.get(name, "")
        absolute = ntpath.isabs(value) if self.platform == "win32" else posixpath.isabs(value)
        return value if absolute else ""

    @property
    def roaming(self) -> str:
        """Where programs keep settings: %APPDATA%, ~/Library/Application Support, or $XDG_CONFIG_HOME."""
        if self.platform == "win32":
            return self.variable("APPDATA") or self.join(self.home, "AppData", "Roaming")
        if self.platform == "darwin":
            return self.join(self.home, "Library", "Application Support")
        return self.xdg

    @property
    def xdg(self) -> str:
        """$XDG_CONFIG_HOME, or ~/.config: for programs that use it on every platform."""
        return self.variable("XDG_CONFIG_HOME") or self.join(self.home, ".config")


@dataclass(frozen=True, slots=True)
class Launch:
    """How a program starts the server."""

    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None


def _plain(launch: Launch) -> dict[str, Any]:
    return {"command": launch.command, "args": list(launch.args)}


def _typed(launch: Launch) -> dict[str, Any]:
    return {"type": "stdio", **_plain(launch)}


def _in_one_list(launch: Launch) -> dict[str, Any]:
    return {"type": "local", "command": [launch.command, *launch.args]}


Files = Callable[[Places], tuple[str, ...]]
Added = Callable[[Scope, Launch], tuple[str, ...]]
Removed = Callable[[Scope], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Client:
    """A program that uses MCP servers.

    Attributes:
        name: What the command line calls it.
        title: What people call it.
        is_toml: Whether its files are TOML; else they are JSON, maybe with comments.
        servers: The names that lead to the table of servers.
        user: Its files in the user's settings.
        project: Its files in a project; None: it has none.
        shape: What an entry says.
        sources: Where this is written.
        then: What a person does after a change.
        program: Its command, when it has one for its servers.
        added: The arguments with which that adds a server; none: it can't, in that scope.
        removed: The arguments with which it takes ours out.
        switched_off: The entry's switch and the value that turns it off.
    """

    name: str
    title: str
    servers: tuple[str, ...]
    user: Files
    project: Files | None
    shape: Callable[[Launch], dict[str, Any]]
    sources: tuple[str, ...]
    then: str
    is_toml: bool = False
    program: str = ""
    added: Added | None = None
    removed: Removed | None = None
    switched_off: tuple[tuple[str, Any], ...] = (("disabled", True), ("enabled", False))

    def files(self, scope: Scope, places: Places) -> tuple[str, ...]:
        """The files of a scope, absolute, the one that counts first; none when it has no such scope."""
        of = self.user if scope == "user" else self.project
        return of(places) if of is not None else ()

    def adding(self, scope: Scope, places: Places, launch: Launch) -> tuple[tuple[str, ...], ...]:
        """The command that adds our entry, if there is one."""
        words = self.added(scope, launch) if self.added is not None else ()
        return ((places.programs[self.program], *words),) if words and self.program in places.programs else ()

    def removing(self, scope: Scope, places: Places) -> tuple[tuple[str, ...], ...]:
        """The command that takes our entry out, if there is one."""
        words = self.removed(scope) if self.removed is not None else ()
        return ((places.programs[self.program], *words),) if words and self.program in places.programs else ()


def _claude_adds(scope: Scope, launch: Launch) -> tuple[str, ...]:
    return ("mcp", "add", "--scope", scope, NAME, "--", launch.command, *launch.args)


def _codex_adds(scope: Scope, launch: Launch) -> tuple[str, ...]:
    return ("mcp", "add", NAME, "--", launch.command, *launch.args) if scope == "user" else ()


def _gemini_adds(scope: Scope, launch: Launch) -> tuple[str, ...]:
    return ("mcp", "add", "--scope", scope, NAME, launch.command, "--", *launch.args)


def _code_adds(scope: Scope, launch: Launch) -> tuple[str, ...]:
    return ("--add-mcp", json.dumps({"name": NAME, **_typed(launch)})) if scope == "user" else ()


def _scoped_removes(scope: Scope) -> tuple[str, ...]:
    return ("mcp", "remove", "--scope", scope, NAME)


def _codex_removes(scope: Scope) -> tuple[str, ...]:
    return ("mcp", "remove", NAME) if scope == "user" else ()


def _project(*names: str) -> Files:
    return lambda places: tuple(places.join(places.project, *name.split("/")) for name in names)


def _claude_code(places: Places) -> tuple[str, ...]:
    return (places.join(places.variable("CLAUDE_CONFIG_DIR") or places.home, ".claude.json"),)


def _claude_desktop(places: Places) -> tuple[str, ...]:
    return (places.join(places.roaming, "Claude", "claude_desktop_config.json"),)


def _codex(places: Places) -> tuple[str, ...]:
    return (places.join(places.variable("CODEX_HOME") or places.join(places.home, ".codex"), "config.toml"),)


def _gemini(places: Places) -> tuple[str, ...]:
    return (places.join(places.variable("GEMINI_CLI_HOME") or places.home, ".gemini", "settings.json"),)


def _cursor(places: Places) -> tuple[str, ...]:
    return (places.join(places.home, ".cursor", "mcp.json"),)


def _vscode(places: Places) -> tuple[str, ...]:
    return (places.join(places.roaming, "Code", "User", "mcp.json"),)


def _windsurf(places: Places) -> tuple[str, ...]:
    # Since June 2026 the program is called Devin Desktop; before, it read the second one.
    devin = places.roaming if places.platform == "win32" else places.join(places.home, ".config")
    return (
        places.join(devin, "devin", "mcp_config.json"),
        places.join(places.home, ".codeium", "windsurf", "mcp_config.json"),
    )


def _opencode(places: Places) -> tuple[str, ...]:
    folder = places.variable("OPENCODE_CONFIG_DIR") or places.join(places.xdg, "opencode")
    return (places.join(folder, "opencode.json"), places.join(folder, "opencode.jsonc"))


def _zed(places: Places) -> tuple[str, ...]:
    if places.platform == "win32":
        return (places.join(places.roaming, "Zed", "settings.json"),)
    if places.platform == "darwin":
        return (places.join(places.home, ".config", "zed", "settings.json"),)
    return (places.join(places.variable("FLATPAK_XDG_CONFIG_HOME") or places.xdg, "zed", "settings.json"),)


_RESTART = "restart {title}"

CLIENTS: tuple[Client, ...] = (
    Client(
        name="claude-code",
        title="Claude Code",
        program="claude",
        added=_claude_adds,
        removed=_scoped_removes,
        servers=("mcpServers",),
        user=_claude_code,
        project=_project(".mcp.json"),
        shape=_typed,
        sources=("https://code.claude.com/docs/en/mcp#mcp-installation-scopes",),
        then="a new session of Claude Code has it; it asks once before it trusts a project's .mcp.json",
    ),
    Client(
        name="claude-desktop",
        title="Claude Desktop",
        servers=("mcpServers",),
        user=_claude_desktop,
        project=None,
        shape=_plain,
        sources=(
            "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
            "https://github.com/aaddrick/claude-desktop-debian",  # where the Linux one keeps it
        ),
        then=_RESTART,
    ),
    Client(
        name="codex",
        title="Codex",
        is_toml=True,
        program="codex",
        added=_codex_adds,
        removed=_codex_removes,
        servers=("mcp_servers",),
        user=_codex,
        project=_project(".codex/config.toml"),
        shape=_plain,
        sources=("https://developers.openai.com/codex/mcp",),
        then="a new session of Codex has it; a project's own file counts once the project is trusted",
    ),
    Client(
        name="gemini",
        title="Gemini CLI",
        program="gemini",
        added=_gemini_adds,
        removed=_scoped_removes,
        servers=("mcpServers",),
        user=_gemini,
        project=_project(".gemini/settings.json"),
        shape=_plain,
        sources=(
            "https://geminicli.com/docs/tools/mcp-server/",
            "https://geminicli.com/docs/cli/configuration",
            "https://geminicli.com/docs/cli/trusted-folders",
        ),
        then="a new session of Gemini CLI has it, in folders that it trusts",
    ),
    Client(
        name="cursor",
        title="Cursor",
        servers=("mcpServers",),
        user=_cursor,
        project=_project(".cursor/mcp.json"),
        shape=_typed,
        sources=("https://cursor.com/docs/mcp",),
        then=_RESTART,
    ),
    Client(
        name="vscode",
        title="VS Code",
        program="code",
        added=_code_adds,
        servers=("servers",),
        user=_vscode,
        project=_project(".vscode/mcp.json"),
        shape=_typed,
        sources=("https://code.visualstudio.com/docs/agents/reference/mcp-configuration",),
        then="start it from the file's own button in VS Code, or with: MCP: List Servers",
    ),
    Client(
        name="windsurf",
        title="Windsurf (Devin Desktop)",
        servers=("mcpServers",),
        user=_windsurf,
        project=_project(".devin/mcp_config.json"),
        shape=_plain,
        sources=(
            "https://docs.devin.ai/cli/extensibility/mcp/configuration",
            "https://devin.ai/blog/windsurf-is-now-devin-desktop/",
            "https://docs.windsurf.com/windsurf/cascade/mcp",
        ),
        then=_RESTART,
    ),
    Client(
        name="opencode",
        title="OpenCode",
        servers=("mcp",),
        user=_opencode,
        project=_project("opencode.json", "opencode.jsonc"),
        shape=_in_one_list,
        sources=(
            "https://opencode.ai/v1/docs/config/",
            "https://opencode.ai/v2/docs/mcp-servers/",  # `mcp.servers`; what V1 has is read too
            "https://opencode.ai/docs/migrate-v1/",
        ),
        then="a new session of OpenCode has it",
    ),
    Client(
        name="zed",
        title="Zed",
        servers=("context_servers",),
        user=_zed,
        project=_project(".zed/settings.json"),
        shape=_plain,
        sources=(
            "https://zed.dev/docs/ai/mcp",
            "https://github.com/zed-industries/zed/blob/main/crates/paths/src/paths.rs",
        ),
        then="Zed has it at once; in a project, once the project is trusted",
    ),
)


def client(name: str) -> Client | None:
    """The program of that name."""
    return next((one for one in CLIENTS if one.name == name), None)
