"""The entry of this server in a program's settings: read, put in, taken out.

What must stay true: of a settings file only the entry called `capsule` is touched, and of that only what says how the
server is started; an entry of that name that starts something else is not ours, and is left alone unless it was said
to be replaced. A change is worked out whole before anything is written, so that it can be shown first.
"""

from __future__ import annotations

import difflib
import ntpath
import posixpath
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from capsule.errors import InvalidDocument, InvalidInput, Problem, Refused
from capsule.mcp_server.clients import files, jsonc, jsonc_edit
from capsule.mcp_server.clients.table import Client, Launch, Places, Scope

__all__ = ["NAME", "Change", "Entry", "apply", "entries", "install", "nothing", "uninstall"]

#: What the server is called in a program's settings.
NAME = "capsule"

# What one program or another replaces by the value of a variable or by a file: no path may look like that.
_REPLACED = re.compile(r"\$\{|\$[A-Za-z_]|\{(?:env|file):|%[A-Za-z_]+%")


@dataclass(frozen=True, slots=True)
class Entry:
    """Our entry in a settings file.

    Attributes:
        path: The file.
        value: What the entry says.
        launch: How it starts the server; None when it doesn't start a program, or not one that can be read.
        off: Whether it is switched off.
    """

    client: Client
    scope: Scope
    path: str
    value: dict[str, Any]
    launch: Launch | None
    off: bool

    @property
    def ours(self) -> bool:
        """Whether it starts a `capsule`."""
        if self.launch is None:
            return False
        words = (self.launch.command, *self.launch.args)
        names = {ntpath.basename(posixpath.basename(word)).lower().removesuffix(".exe") for word in words}
        return bool(names & {"capsule", "capsule_cli", "capsule_cli.app"}) and "mcp" in words


@dataclass(frozen=True, slots=True)
class Change:
    """What is to become of a settings file.

    Attributes:
        file: The file as it was read.
        after: Its bytes afterwards; those it has, when nothing is to be done.
    """

    client: Client
    scope: Scope
    file: files.File
    after: bytes

    @property
    def changes(self) -> bool:
        """Whether there is something to be done."""
        return self.after != (self.file.data or b"")

    def diff(self) -> str:
        """The change as a unified diff; empty when there is none."""
        before = self.file.text.splitlines(keepends=True)
        after = self.after.removeprefix(files.BOM).decode().splitlines(keepends=True)
        old = self.file.path if self.file.data is not None else "/dev/null"
        lines = difflib.unified_diff(before, after, old, self.file.path)
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def install(client: Client, scope: Scope, places: Places, launch: Launch, *, force: bool = False) -> Change:
    """Work out how a program comes to use the server.

    Args:
        launch: How the server is started.
        force: Whether an entry of our name that starts something else is replaced.

    Raises:
        InvalidInput: The program has no such scope, or would read a word of `launch` as something else.
        InvalidDocument: The file can't be read as what it should be; the message has line and column.
        Refused: There is an entry of our name that isn't ours.
    """
    for word in (launch.command, *launch.args):
        if _REPLACED.search(word):
            raise InvalidInput(f"{word!r} can't be passed on: programs read the $ or {{ in it as a variable")
    file = _file_for(client, scope, places)
    path = _path(client, file)
    entry = _entry(client, scope, file)
    if entry is not None and not entry.ours:
        if not force:
            raise Refused(
                f"{file.path}: {'.'.join(path)} is there, and starts something else; "
                "rename it, or replace it with: --force",
                path=file.path,
            )
        file_text = _edited(client, file, "remove", path)
    else:
        file_text = file.text
    text = _edited(client, file, "set", path, client.shape(launch), text=file_text)
    unchanged = file.data is not None and text == file.text
    after = file.data if unchanged and file.data is not None else file.with_text(text)
    return Change(client, scope, file, after)


def uninstall(
    client: Client, scope: Scope, places: Places, *, copies: str | None = None, force: bool = False
) -> list[Change]:
    """Work out how a program comes to forget the server: a change for every file of the scope that has our entry.

    Args:
        copies: The directory of the copies made before earlier changes. With the copy that was made before our entry
            came, all of it can be undone: the table that held nothing else goes too, and the file that was not there.
        force: Whether an entry of our name that starts something else is taken out too.

    Raises:
        InvalidInput: The program has no such scope.
        InvalidDocument: A file can't be read as what it should be.
        Refused: The entry of our name isn't ours.
    """
    changes = []
    for name in _files(client, scope, places):
        file = files.read(name)
        entry = _entry(client, scope, file)
        if entry is None:
            continue
        if not entry.ours and not force:
            raise Refused(
                f"{file.path}: the entry {NAME} starts something else, and is left alone; take it out with: --force",
                path=file.path,
            )
        before = _before_us(client, file, entry, files.backups(file, copies) if copies else [])
        after = before if before is not None else file.with_text(_edited(client, file, "remove", _path(client, file)))
        changes.append(Change(client, scope, file, after))
    return changes


def nothing(client: Client, scope: Scope, places: Places) -> Change:
    """The change that changes nothing: of the file that our entry would go into."""
    file = files.read(_files(client, scope, places)[0])
    return Change(client, scope, file, file.data if file.data is not None else b"")


def entries(client: Client, scope: Scope, places: Places) -> Iterator[Entry]:
    """Our entries in a program's settings.

    Raises:
        InvalidDocument: A file can't be read as what it should be.
    """
    for name in client.files(scope, places):
        entry = _entry(client, scope, files.read(name))
        if entry is not None:
            yield entry


def apply(change: Change, backup_folder: str) -> str | None:
    """Write a change. Returns: the path of the copy of what the file held, None when there was nothing.

    Raises:
        Refused, StorageFailed: The system did not let it, or another program changed the file meanwhile.
    """
    return files.replace(change.file, change.after, backup_folder)


def _files(client: Client, scope: Scope, places: Places) -> tuple[str, ...]:
    found = client.files(scope, places)
    if not found:
        raise InvalidInput(f"{client.title} has no settings of a project; leave --project away")
    return found


def _file_for(client: Client, scope: Scope, places: Places) -> files.File:
    """The file to put our entry into: the one that has it, else one that is there, else the one that counts most."""
    found = [files.read(name) for name in _files(client, scope, places)]
    for file in found:
        if file.data is not None and _entry(client, scope, file) is not None:
            return file
    there = [file for file in found if file.data is not None]
    return there[0] if there else found[0]


def _path(client: Client, file: files.File) -> tuple[str, ...]:
    """The names that lead to our entry. OpenCode 2 has `mcp.servers`, and reads `mcp` as OpenCode 1 does."""
    value = _value(client, file)
    if client.name == "opencode" and isinstance(value, dict) and isinstance(value.get("mcp"), dict):
        nested = value["mcp"].get("servers")
        if isinstance(nested, dict) and not {"type", "command", "url", "enabled"} & set(nested):
            return (*client.servers, "servers", NAME)
    return (*client.servers, NAME)


def _value(client: Client, file: files.File) -> Any:
    """What a settings file says.

    Raises:
        InvalidDocument: It can't be read.
    """
    with _placed(file):
        if client.dialect == "toml":
            from capsule.mcp_server.clients import toml_edit

            return toml_edit.read(file.text)
        return jsonc.read(file.text, plain=client.dialect == "json").value


def _entry(client: Client, scope: Scope, file: files.File) -> Entry | None:
    held = _value(client, file)
    for key in _path(client, file):
        held = held.get(key) if isinstance(held, dict) else None
    if held is None:
        return None
    value = held if isinstance(held, dict) else {}
    off = any(value.get(name) == wanted and name in value for name, wanted in client.switched_off)
    return Entry(client, scope, file.path, value, _launch(value), off)


def _launch(value: dict[str, Any]) -> Launch | None:
    """How an entry starts its program, in any of the shapes."""
    command, args = value.get("command"), value.get("args", [])
    words = command if isinstance(command, list) else [command, *args] if isinstance(args, list) else []
    env = value.get("env", value.get("environment")) or {}
    if not words or not all(isinstance(word, str) for word in words) or not isinstance(env, dict):
        return None
    cwd = value.get("cwd")
    said = {str(name): str(one) for name, one in env.items()}
    return Launch(words[0], tuple(words[1:]), said, cwd if isinstance(cwd, str) else None)


def _edited(
    client: Client,
    file: files.File,
    doing: str,
    path: tuple[str, ...],
    value: dict[str, Any] | None = None,
    *,
    text: str | None = None,
) -> str:
    text = file.text if text is None else text
    with _placed(file):
        if client.dialect == "toml":
            from capsule.mcp_server.clients import toml_edit

            return toml_edit.remove(text, path) if value is None else toml_edit.set_table(text, path, value)
        plain = client.dialect == "json"
        if value is None:
            return jsonc_edit.remove(text, path, plain=plain)
        return jsonc_edit.set_member(text, path, value, plain=plain)


def _before_us(client: Client, file: files.File, entry: Entry, copies: Sequence[bytes]) -> bytes | None:
    """What the file held before our entry came, if putting the entry into that gives just what it holds now."""
    for copy in copies:
        held = files.File(file.path, file.target, copy)
        try:
            if _entry(client, entry.scope, held) is None:
                again = _edited(client, held, "set", _path(client, held), entry.value)
                if held.with_text(again) == file.data:
                    return copy
        except InvalidDocument:
            continue
    return None


@contextmanager
def _placed(file: files.File) -> Iterator[None]:
    """Turn what is wrong with a document into the error that names the file, the line and the column."""
    try:
        yield
    except jsonc.Malformed as error:
        before = file.text[: error.at]
        line, column = before.count("\n") + 1, error.at - before.rfind("\n")
        what = f"{error.what}; nothing was changed: correct it first"
        raise InvalidDocument.of([Problem(file.path, line, column, "", what)]) from error
