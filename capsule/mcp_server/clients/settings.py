"""The programs that use MCP servers, and the entry of this server in their settings.

`CLIENTS` has one row for each program, found in its documentation on 2026-11-21: the places of its
settings, the form of an entry, and the commands that change it. `make clients` runs some of the
programs, and checks that they read what is written here.

A change of settings is planned first, as a `SettingsChange`, and then applied. The program's own
command makes it, if there is one. Otherwise the file is changed if it is plain JSON or does not
exist yet. A file of TOML, or one that would lose comments, is not changed: a person gets the text to
paste. A file of TOML that has only what `install` wrote is emptied.

What must stay true:
- Everything that is particular to a program is in its row. The files of a row are ordered: the first
  is the one that counts most. A row does not look at the machine: it gets paths and variables as
  `MachinePaths`.
- Only the entry `capsule` changes. An entry of that name that starts another program stays, unless
  it is to be replaced. A plan is complete before anything is done.
"""

from __future__ import annotations

import copy
import difflib
import json
import ntpath
import os
import posixpath
import re
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Literal

from capsule.disk.whole_files import replace_file, translate_errors
from capsule.errors import InvalidDocument, InvalidInput, Problem, Refused

# -- The programs ----------------------------------------------------------------------------------

#: The name of the entry in a program's settings.
NAME = "capsule"
SettingsScope = Literal["user", "project"]

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

    def files(self, scope: SettingsScope, places: MachinePaths) -> tuple[str, ...]:
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
        self, scope: SettingsScope, places: MachinePaths, launch: LaunchCommand
    ) -> tuple[tuple[str, ...], ...]:
        """Return the command that adds our entry. Empty: the program has none."""
        return self._command(self.adds, scope, places, launch)

    def remove_commands(
        self, scope: SettingsScope, places: MachinePaths
    ) -> tuple[tuple[str, ...], ...]:
        """Return the command that removes our entry. Empty: the program has none."""
        return self._command(self.removes, scope, places, LaunchCommand(""))

    def _command(
        self, words: str, scope: SettingsScope, places: MachinePaths, launch: LaunchCommand
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


# -- Their settings --------------------------------------------------------------------------------

#: Texts that some program replaces by the value of a variable or by a file.
_REPLACED = re.compile(r"\$\{|\$[A-Za-z_]|\{(?:env|file):|%[A-Za-z_]+%")
# A string, which stays, or a comment. A string, which stays, or a comma after the last value.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')
_COMMAND_S = 60


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """The entry of this server in the settings file at `path`, with its value."""

    path: str
    value: dict[str, Any]

    @property
    def is_disabled(self) -> bool:
        """Return whether the entry is switched off."""
        return self.value.get("disabled") is True or self.value.get("enabled") is False

    @property
    def launch(self) -> LaunchCommand | None:
        """Return how the entry starts the server, in any form. None: it starts no program, or can't
        be read.
        """
        command = self.value.get("command")
        args = self.value.get("args", [])
        words = []
        if isinstance(command, list):
            words = command
        elif isinstance(args, list):
            words = [command, *args]
        if not words or not all(isinstance(word, str) for word in words):
            return None
        variables = self.value.get("env", self.value.get("environment")) or {}
        if not isinstance(variables, dict):
            return None
        cwd = self.value.get("cwd")
        return LaunchCommand(
            command=words[0],
            args=tuple(words[1:]),
            env={str(name): str(text) for name, text in variables.items()},
            cwd=cwd if isinstance(cwd, str) else None,
        )

    @property
    def starts_capsule(self) -> bool:
        """Return whether the entry starts a `capsule`."""
        if self.launch is None:
            return False
        words = (self.launch.command, *self.launch.args)
        names = {
            ntpath.basename(posixpath.basename(word)).lower().removesuffix(".exe") for word in words
        }
        return bool(names & {"capsule", "capsule_cli", "capsule_cli.app"}) and "mcp" in words


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """A planned change of a program's settings. Without commands and without a new text, nothing
    changes.
    """

    client: McpProgram
    scope: SettingsScope
    path: str
    #: The program's own commands that do it.
    commands: tuple[tuple[str, ...], ...] = ()
    #: The text of the file now, None where there is none, and the text that it is to have.
    before: str | None = None
    after: str | None = None
    #: What a person is to put into it, or take out of it.
    paste: str = ""
    #: How the entry starts the server afterwards; None: there is none then.
    launch: LaunchCommand | None = None

    @property
    def has_effect(self) -> bool:
        """Return whether `apply` changes something."""
        return bool(self.commands) or self.after is not None

    def diff(self) -> str:
        """Return the change of the file as a unified diff."""
        old = "/dev/null" if self.before is None else self.path
        old_data, after = (
            (text or "").splitlines(keepends=True) for text in (self.before, self.after)
        )
        lines = difflib.unified_diff(old_data, after, old, self.path)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


def install(
    client: McpProgram,
    scope: SettingsScope,
    places: MachinePaths,
    launch: LaunchCommand,
    *,
    force: bool = False,
) -> SettingsChange:
    """Plan how a program gets the entry.

    Args:
        client: The program.
        scope: The scope of the settings.
        places: The paths of this machine.
        launch: How the server is started. Options of the present entry that it does not name are
            kept.
        force: Whether to replace an entry of our name that starts another program.

    Raises:
        InvalidInput: The program has no such scope, or would replace a part of `launch`.
        InvalidDocument: The file can't be read. The message has line and column.
        Refused: An entry of our name starts another program.
    """
    ensure_literal((launch.command, *launch.args))
    file = _files(client, scope, places)[0]
    entry = file.entry()
    new_launch = launch
    old_value: dict[str, Any] = {}
    if entry is not None:
        file.ensure_starts_capsule(entry, force)
        if entry.starts_capsule:
            old_value = entry.value
            if entry.launch is not None:
                preserved = _preserved_options(entry.launch.args, launch.args)
                new_launch = replace(launch, args=(*launch.args, *preserved))
    value = {**old_value, **client.entry(new_launch)}
    if entry is not None and value == entry.value:
        return SettingsChange(client, scope, file.path, launch=new_launch)
    commands = client.add_commands(scope, places, new_launch)
    if not commands:
        return replace(file.plan(scope, value), launch=new_launch)
    if entry is not None:
        commands = (*client.remove_commands(scope, places), *commands)
    return SettingsChange(client, scope, file.path, commands, launch=new_launch)


def ensure_literal(words: Iterable[str]) -> None:
    """Raise InvalidInput if a program would replace a part of the words that start the server."""
    for word in words:
        if _REPLACED.search(word):
            raise InvalidInput(
                f"{word!r} can't be passed on: programs read the $ or {{ in it as a variable"
            )


def _preserved_options(old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    """Return the options of the server in the old arguments that the new ones do not name."""
    groups: list[list[str]] = []
    for word in old[old.index("mcp") + 1 :] if "mcp" in old else ():
        if word.startswith("--"):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
    new_options = {word.partition("=")[0] for word in new}
    return [
        word for group in groups if group[0].partition("=")[0] not in new_options for word in group
    ]


def uninstall(
    client: McpProgram, scope: SettingsScope, places: MachinePaths, *, force: bool = False
) -> list[SettingsChange]:
    """Plan how a program loses the entry. Return a plan for every file of the scope that has it.

    Raises:
        InvalidInput: The program has no such scope.
        InvalidDocument: A file can't be read. The message has line and column.
        Refused: An entry of our name starts another program, and `force` is not set.
    """
    plans, files = [], _files(client, scope, places)
    commands = client.remove_commands(scope, places)
    for file in files:
        if entry := file.entry():
            file.ensure_starts_capsule(entry, force)
            plans.append(
                SettingsChange(client, scope, file.path, commands)
                if commands
                else file.plan(scope, None)
            )
    return plans or [SettingsChange(client, scope, files[0].path)]


def entries(
    client: McpProgram, scope: SettingsScope, places: MachinePaths
) -> Iterator[ServerEntry]:
    """Yield the entries of this server in a program's settings. Raises InvalidDocument: a file
    can't be read.
    """
    for path in client.files(scope, places):
        if entry := read_settings(client, path).entry():
            yield entry


def apply(plan: SettingsChange, places: MachinePaths, backup_folder: str) -> str | None:
    """Apply a plan. Return the path of the backup of a changed file. None: no file was changed, or
    it is new.

    Args:
        plan: The plan.
        places: The paths of this machine.
        backup_folder: The folder for the backup, which is made if it does not exist.

    Raises:
        Refused, StorageFailed: The program's own command failed, or the system refused.
        StoreBusy: Another program changed the file in the meantime.
    """
    for command in plan.commands:
        _run(command, places)
    return _replace(plan, backup_folder) if plan.after is not None else None


def _run(command: tuple[str, ...], places: MachinePaths) -> None:
    try:
        completed = subprocess.run(
            command,
            cwd=places.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{' '.join(command)}: {error}", path=command[0]) from error
    if completed.returncode:
        error_output = (completed.stderr or completed.stdout).decode("utf-8", "replace").strip()
        raise Refused(
            f"{' '.join(command)}: exit code {completed.returncode}: {error_output[-1000:]}",
            path=command[0],
        )


def _replace(plan: SettingsChange, backup_folder: str) -> str | None:
    """Replace the text of the file, after a backup was written. A symlink to the file stays a
    symlink.
    """
    assert plan.after is not None
    target = os.path.realpath(plan.path)
    backup = None
    old_data = None
    if plan.before is not None:
        old_data = plan.before.encode()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        backup = os.path.join(backup_folder, f"{os.path.basename(target).lstrip('.')}-{stamp}.bak")
        with translate_errors(backup, "write"):
            os.makedirs(backup_folder, mode=0o700, exist_ok=True)
        replace_file(backup, None, old_data)
    # A new file may get secrets of other servers later, so only its owner may read it.
    replace_file(target, old_data, plan.after.encode())
    return backup


def _text(path: str) -> str | None:
    """Return the text of a file. None: it does not exist."""
    with translate_errors(path, "read"):
        try:
            with open(path, "rb") as file:
                return file.read().decode()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError as error:
            raise InvalidDocument.of(
                [Problem(path, 0, 0, "", "is not valid UTF-8 text")]
            ) from error


def _files(client: McpProgram, scope: SettingsScope, places: MachinePaths) -> list[SettingsFile]:
    """Return the files of a scope. The first is the one for our entry: the one that has it, else
    one that exists, else the one that counts most.
    """
    files = [read_settings(client, path) for path in client.files(scope, places)]
    if not files:
        raise InvalidInput(f"{client.title} has no settings of a project; leave out --project")
    return sorted(files, key=lambda file: (file.entry() is None, file.text is None))


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file as it was read.

    Attributes:
        client: The program.
        path: The path of the file.
        text: Its text. None: it does not exist.
        value: Its parsed content.
    """

    client: McpProgram
    path: str
    text: str | None
    value: dict[str, Any]

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the names that lead to our entry. OpenCode 2 uses `mcp.servers`, and also reads
        `mcp` like OpenCode 1.
        """
        if self.client.name == "opencode" and isinstance(self.value.get("mcp"), dict):
            nested = self.value["mcp"].get("servers")
            if isinstance(nested, dict) and not {"type", "command", "url", "enabled"} & set(nested):
                return (*self.client.servers, "servers", NAME)
        return (*self.client.servers, NAME)

    def entry(self) -> ServerEntry | None:
        """Return our entry, or None."""
        value: Any = self.value
        for key in self.keys:
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return None
        return ServerEntry(self.path, value if isinstance(value, dict) else {})

    def ensure_starts_capsule(self, entry: ServerEntry, force: bool) -> None:
        """Raise Refused if the entry of our name starts another program, unless `force` is set."""
        if not entry.starts_capsule and not force:
            reason = (
                f"{self.path}: {'.'.join(self.keys)} starts another program, and stays; to "
                "remove it, add --force"
            )
            raise Refused(reason, path=self.path)

    def plan(self, scope: SettingsScope, value: dict[str, Any] | None) -> SettingsChange:
        """Return the plan that sets our entry to `value`. None removes the entry."""
        name = ".".join(self.keys)
        is_toml = self.path.endswith(".toml")
        present = self.entry()
        old_text = (self.text or "").strip()
        new_text = None
        if not is_toml:
            new_text = self._json(value)
        elif not old_text and value is not None:
            new_text = f"{_toml_table(name, value)}\n"
        elif value is None and present and old_text == _toml_table(name, present.value):
            new_text = ""  # The file has only what `install` wrote.
        if new_text is not None:
            return SettingsChange(self.client, scope, self.path, before=self.text, after=new_text)
        if value is None:
            paste = f"take {name} out of it"
        elif is_toml:
            paste = _toml_table(name, value)
        else:
            paste = SettingsFile(self.client, self.path, None, {})._json(value) or ""
        return SettingsChange(self.client, scope, self.path, paste=paste)

    def _json(self, value: dict[str, Any] | None) -> str | None:
        """Return the text of the file in JSON with our entry set to `value`. None: comments would
        be lost.
        """
        return self.text_with(_set_nested(copy.deepcopy(self.value), self.keys, value))

    def text_with(self, new_value: dict[str, Any]) -> str | None:
        """Return the text of the file with a new content, in its own layout. None: comments would
        be lost.
        """
        text = self.text or ""
        if text.strip() and not _is_exact(text):
            return None
        indent = re.search(r"\n([ \t]+)", text)
        after = json.dumps(new_value, indent=indent[1] if indent else 2, ensure_ascii=False)
        newline = "\r\n" if "\r\n" in text else "\n"
        return after.replace("\n", newline) + (newline if not text or text.endswith("\n") else "")


def _toml_table(name: str, value: Mapping[str, Any]) -> str:
    """Return a TOML table of texts and lists of texts, which have the same form as in JSON."""
    lines = [f"[{name}]"]
    for key, part in value.items():
        lines.append(f"{key} = {json.dumps(part, ensure_ascii=False)}")
    return "\n".join(lines)


def _set_nested(document: Any, keys: tuple[str, ...], value: dict[str, Any] | None) -> Any:
    """Set the value under these names, and return the document. None removes it, and each table
    that is empty then.
    """
    table = document
    if value is not None:
        for key in keys[:-1]:
            table = table.setdefault(key, {})
        table[keys[-1]] = value
    elif len(keys) == 1 or not _set_nested(table[keys[0]], keys[1:], None):
        del table[keys[0]]
    return document


def _is_exact(text: str) -> bool:
    """Return whether `json` reads and writes a document without a loss: no comments, no name twice,
    no number that it writes differently.
    """

    def literally(text: str) -> Any:
        return json.loads(text, object_pairs_hook=tuple, parse_float=str, parse_int=str)

    try:
        return bool(literally(text) == literally(json.dumps(json.loads(text))))
    except ValueError:
        return False


def read_settings(client: McpProgram, path: str) -> SettingsFile:
    """Read a settings file, which may be missing. Raises InvalidDocument: it can't be parsed."""
    text = _text(path)
    try:
        if path.endswith(".toml"):
            value = tomllib.loads(text or "")
        else:
            plain = _without_comments((text or "").removeprefix("\ufeff"))
            value = json.loads(plain) if plain.strip() else {}
    except (ValueError, RecursionError) as error:
        line, column = getattr(error, "lineno", 0), getattr(error, "colno", 0)
        problem = f"{getattr(error, 'msg', error)}; nothing was changed: correct it first"
        raise InvalidDocument.of([Problem(path, line, column, "", problem)]) from error
    table: Any = value
    for name in (*client.servers, ""):
        if not isinstance(table, dict):
            problem = (
                f"the value of {name or 'the servers'} is not a table of names; correct it first"
            )
            raise InvalidDocument.of([Problem(path, 0, 0, "", problem)])
        table = table.get(name, {})
    return SettingsFile(client, path, text, value)


def _without_comments(text: str) -> str:
    """Return a document without comments and trailing commas. All other characters keep their
    places.
    """
    for pattern in (_COMMENT, _TRAILING):
        text = pattern.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    return text
