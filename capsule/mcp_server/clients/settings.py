"""The entry of this server in a program's settings: read, put in, taken out.

What must stay true: nothing but the entry called `capsule` changes in what settings say; an entry
of that name that starts something else is left alone unless it was said to be replaced; and a
change is worked out whole before anything is done, so that it can be shown first. It is made by the
program's own command where there is one, else in the file if that is plain JSON, or is not there
yet. A file of TOML, or one that would lose comments, is left alone: the person is told what to
paste.
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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from capsule.disk.whole_files import replace_file, translate_errors
from capsule.errors import InvalidDocument, InvalidInput, Problem, Refused
from capsule.mcp_server.clients.programs import NAME, LaunchCommand, MachinePaths, McpProgram, Scope

#: What one program or another replaces by the value of a variable or by a file: no path may look
#: like that.
_REPLACED = re.compile(r"\$\{|\$[A-Za-z_]|\{(?:env|file):|%[A-Za-z_]+%")
# A text, kept; or a comment. A text, kept; or a comma behind the last value.
_COMMENT = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_TRAILING = re.compile(r'("(?:\\.|[^"\\])*")|,(?=\s*[}\]])')
_COMMAND_S = 60


@dataclass(frozen=True, slots=True)
class ServerEntry:
    """Our entry in the settings file at `path`: what it says."""

    path: str
    value: dict[str, Any]

    @property
    def off(self) -> bool:
        """Whether it is switched off."""
        return self.value.get("disabled") is True or self.value.get("enabled") is False

    @property
    def launch(self) -> LaunchCommand | None:
        """How it starts the server, in any of the shapes; None: it starts no program, or none that
        can be read.
        """
        value = self.value
        command, args = value.get("command"), value.get("args", [])
        words = (
            command
            if isinstance(command, list)
            else [command, *args]
            if isinstance(args, list)
            else []
        )
        env = value.get("env", value.get("environment")) or {}
        if (
            not words
            or not all(isinstance(word, str) for word in words)
            or not isinstance(env, dict)
        ):
            return None
        cwd = value.get("cwd")
        variables = {str(name): str(text) for name, text in env.items()}
        return LaunchCommand(
            words[0], tuple(words[1:]), variables, cwd if isinstance(cwd, str) else None
        )

    @property
    def ours(self) -> bool:
        """Whether it starts a `capsule`."""
        if self.launch is None:
            return False
        words = (self.launch.command, *self.launch.args)
        names = {
            ntpath.basename(posixpath.basename(word)).lower().removesuffix(".exe") for word in words
        }
        return bool(names & {"capsule", "capsule_cli", "capsule_cli.app"}) and "mcp" in words


@dataclass(frozen=True, slots=True)
class SettingsChange:
    """A change to a program's settings file; without commands and without a new text there
    is none.
    """

    client: McpProgram
    scope: Scope
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
    def changes(self) -> bool:
        """Whether there is something that `apply` does."""
        return bool(self.commands) or self.after is not None

    def diff(self) -> str:
        """The change of the file, as a unified diff."""
        old = "/dev/null" if self.before is None else self.path
        before, after = (
            (text or "").splitlines(keepends=True) for text in (self.before, self.after)
        )
        lines = difflib.unified_diff(before, after, old, self.path)
        return "".join(
            line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
            for line in lines
        )


def install(
    client: McpProgram,
    scope: Scope,
    places: MachinePaths,
    launch: LaunchCommand,
    *,
    force: bool = False,
) -> SettingsChange:
    """Work out how a program comes to use the server.

    Args:
        launch: How the server is started. The options of an entry of ours that it does not give are
            kept.
        force: Whether an entry of our name that starts something else is replaced.

    Raises:
        InvalidInput: The program has no such scope, or would read a word of `launch` as something
            else.
        InvalidDocument: The file can't be read as what it should be; the message has line and
            column.
        Refused: There is an entry of our name that isn't ours.
    """
    ensure_literal((launch.command, *launch.args))
    file = _files(client, scope, places)[0]
    entry = file.entry()
    if entry is not None:
        file.ensure_ours(entry, force)
        if entry.ours and entry.launch is not None:
            launch = replace(
                launch, args=(*launch.args, *_preserved_options(entry.launch.args, launch.args))
            )
    wanted = client.entry(launch)
    value = {**entry.value, **wanted} if entry is not None and entry.ours else wanted
    if entry is not None and value == entry.value:
        return SettingsChange(client, scope, file.path, launch=launch)
    if commands := client.adding(scope, places, launch):
        if entry is not None:
            commands = (*client.removing(scope, places), *commands)
        return SettingsChange(client, scope, file.path, commands, launch=launch)
    return replace(file.plan(scope, value), launch=launch)


def ensure_literal(words: Iterable[str]) -> None:
    """Raise InvalidInput when a program would read one of the words that start the server as
    something else.
    """
    for word in words:
        if _REPLACED.search(word):
            raise InvalidInput(
                f"{word!r} can't be passed on: programs read the $ or {{ in it as a variable"
            )


def _preserved_options(old: tuple[str, ...], new: tuple[str, ...]) -> list[str]:
    """The options of the server that an entry has and a new one says nothing of."""
    groups: list[list[str]] = []
    for word in old[old.index("mcp") + 1 :] if "mcp" in old else ():
        if word.startswith("--"):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
    given = {word.partition("=")[0] for word in new}
    return [word for group in groups if group[0].partition("=")[0] not in given for word in group]


def uninstall(
    client: McpProgram, scope: Scope, places: MachinePaths, *, force: bool = False
) -> list[SettingsChange]:
    """Work out how a program comes to forget the server: a plan for every file of the scope that
    has our entry.

    Raises:
        InvalidInput: The program has no such scope.
        InvalidDocument: A file can't be read as what it should be; the message has line and column.
        Refused: There is an entry of our name that isn't ours, and no `force`.
    """
    plans, files = [], _files(client, scope, places)
    commands = client.removing(scope, places)
    for file in files:
        if entry := file.entry():
            file.ensure_ours(entry, force)
            plans.append(
                SettingsChange(client, scope, file.path, commands)
                if commands
                else file.plan(scope, None)
            )
    return plans or [SettingsChange(client, scope, files[0].path)]


def entries(client: McpProgram, scope: Scope, places: MachinePaths) -> Iterator[ServerEntry]:
    """Our entries in a program's settings. Raises InvalidDocument: a file can't be read as what it
    should be.
    """
    for path in client.files(scope, places):
        if entry := read_settings(client, path).entry():
            yield entry


def apply(plan: SettingsChange, places: MachinePaths, copies: str) -> str | None:
    """Do what a plan says.

    Args:
        copies: The directory for a copy of a file that is changed; made when it isn't there.

    Returns:
        The path of the copy; None: no file was changed, or it is a new one.

    Raises:
        Refused, StorageFailed: The program's own command failed, or the system did not let it.
        StoreBusy: Another program changed the file meanwhile.
    """
    for command in plan.commands:
        _run(command, places)
    return _replace(plan, copies) if plan.after is not None else None


def _run(command: tuple[str, ...], places: MachinePaths) -> None:
    try:
        done = subprocess.run(
            command,
            cwd=places.project,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_COMMAND_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Refused(f"{' '.join(command)}: {error}", path=command[0]) from error
    if done.returncode:
        said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()
        raise Refused(
            f"{' '.join(command)}: exit code {done.returncode}: {said[-1000:]}", path=command[0]
        )


def _replace(plan: SettingsChange, copies: str) -> str | None:
    """Put the new text in the place of the old, after having kept a copy; a symlink to the file
    stays one.
    """
    assert plan.after is not None
    target, copy_at, before = os.path.realpath(plan.path), None, None
    if plan.before is not None:
        before = plan.before.encode()
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")
        copy_at = os.path.join(copies, f"{os.path.basename(target).lstrip('.')}-{stamp}.bak")
        with translate_errors(copy_at, "write"):
            os.makedirs(copies, mode=0o700, exist_ok=True)
        replace_file(copy_at, None, before)
    # What is new may come to hold secrets of other servers: only its owner may read it.
    replace_file(target, before, plan.after.encode())
    return copy_at


def _text(path: str) -> str | None:
    """The text of a file; None: there is no file."""
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


def _files(client: McpProgram, scope: Scope, places: MachinePaths) -> list[SettingsFile]:
    """The files of a scope, the one for our entry first: it has the entry, or is there, or counts
    most.
    """
    files = [read_settings(client, path) for path in client.files(scope, places)]
    if not files:
        raise InvalidInput(f"{client.title} has no settings of a project; leave out --project")
    return sorted(files, key=lambda file: (file.entry() is None, file.text is None))


@dataclass(frozen=True, slots=True)
class SettingsFile:
    """A settings file as it was read: its text, None where there is no file, and what that says."""

    client: McpProgram
    path: str
    text: str | None
    value: dict[str, Any]

    @property
    def keys(self) -> tuple[str, ...]:
        """The names that lead to our entry. OpenCode 2 has `mcp.servers`, and reads `mcp` as
        OpenCode 1 does.
        """
        if self.client.name == "opencode" and isinstance(self.value.get("mcp"), dict):
            nested = self.value["mcp"].get("servers")
            if isinstance(nested, dict) and not {"type", "command", "url", "enabled"} & set(nested):
                return (*self.client.servers, "servers", NAME)
        return (*self.client.servers, NAME)

    def entry(self) -> ServerEntry | None:
        """Our entry."""
        held: Any = self.value
        for key in self.keys:
            held = held.get(key) if isinstance(held, dict) else None
        if held is None:
            return None
        return ServerEntry(self.path, held if isinstance(held, dict) else {})

    def ensure_ours(self, entry: ServerEntry, force: bool) -> None:
        """Raise Refused when the entry of our name starts something else, unless that is to go."""
        if not entry.ours and not force:
            reason = (
                f"{self.path}: {'.'.join(self.keys)} starts another program, and stays; to "
                "remove it, add --force"
            )
            raise Refused(reason, path=self.path)

    def plan(self, scope: Scope, value: dict[str, Any] | None) -> SettingsChange:
        """The plan that has the entry say `value`, or that takes it out when that is None."""
        is_toml = self.path.endswith(".toml")
        # A text or a list of texts is written in TOML as in JSON.
        lines = (
            f"{name} = {json.dumps(part, ensure_ascii=False)}"
            for name, part in (value or {}).items()
        )
        toml = "\n".join([f"[{'.'.join(self.keys)}]", *lines])
        is_empty = not (self.text or "").strip()
        after = (
            self._json(value)
            if not is_toml
            else f"{toml}\n"
            if is_empty and value is not None
            else None
        )
        if after is not None:
            return SettingsChange(self.client, scope, self.path, before=self.text, after=after)
        if value is None:
            paste = f"take {'.'.join(self.keys)} out of it"
        elif is_toml:
            paste = toml
        else:
            paste = SettingsFile(self.client, self.path, None, {})._json(value) or ""
        return SettingsChange(self.client, scope, self.path, paste=paste)

    def _json(self, value: dict[str, Any] | None) -> str | None:
        return self.saying(_set_nested(copy.deepcopy(self.value), self.keys, value))

    def saying(self, wanted: dict[str, Any]) -> str | None:
        """The text of the file when it says `wanted`, in its own layout; None: it would lose
        comments.
        """
        text = self.text or ""
        if text.strip() and not _is_exact(text):
            return None
        indent = re.search(r"\n([ \t]+)", text)
        after = json.dumps(wanted, indent=indent[1] if indent else 2, ensure_ascii=False)
        newline = "\r\n" if "\r\n" in text else "\n"
        return after.replace("\n", newline) + (newline if not text or text.endswith("\n") else "")


def _set_nested(document: Any, keys: tuple[str, ...], value: dict[str, Any] | None) -> Any:
    """`document`, with the value under these names; or without it, and without a table that held
    nothing else.
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
    """Whether `json` carries a document as it is: no comments, no name twice, no number that it
    writes otherwise.
    """

    def literally(text: str) -> Any:
        return json.loads(text, object_pairs_hook=tuple, parse_float=str, parse_int=str)

    try:
        return bool(literally(text) == literally(json.dumps(json.loads(text))))
    except ValueError:
        return False


def read_settings(client: McpProgram, path: str) -> SettingsFile:
    """Read a settings file, which need not be there. Raises InvalidDocument: it can't be read as
    what it should be.
    """
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
    """A document without comments and trailing commas, every other character in its place."""
    for pattern in (_COMMENT, _TRAILING):
        text = pattern.sub(lambda match: match[1] or re.sub(r"[^\n]", " ", match[0]), text)
    return text
