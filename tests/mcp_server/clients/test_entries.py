"""The entry in a program's settings: of the file it is in, nothing else changes."""

from __future__ import annotations

import json
import os
import stat
import tomllib
from pathlib import Path

import pytest

from capsule.errors import InvalidDocument, InvalidInput, Refused
from capsule.mcp_server.clients import entries, files
from capsule.mcp_server.clients.table import CLIENTS, Client, Launch, Places, Scope, client

LAUNCH = Launch("/opt/my bin/capsule", ("mcp", "--store", "/home/anna/störe"))


def named(name: str) -> Client:
    found = client(name)
    assert found is not None
    return found


def write(path: str, data: str | bytes) -> Path:
    file = Path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(data.encode() if isinstance(data, str) else data)
    return file


def put_in(one: Client, places: Places, copies: Path, scope: Scope = "user", launch: Launch = LAUNCH) -> entries.Change:
    change = entries.install(one, scope, places, launch)
    if change.changes:
        entries.apply(change, str(copies))
    return change


@pytest.mark.parametrize("scope", ["user", "project"])
@pytest.mark.parametrize("one", CLIENTS, ids=lambda one: one.name)
def test_an_entry_put_in_is_read_back_and_goes_again(one: Client, scope: Scope, places: Places, tmp_path: Path) -> None:
    if not one.files(scope, places):
        with pytest.raises(InvalidInput, match="no settings of a project"):
            entries.install(one, scope, places, LAUNCH)
        return
    change = put_in(one, places, tmp_path / "copies", scope)
    assert change.file.path == one.files(scope, places)[0]
    [entry] = entries.entries(one, scope, places)
    assert entry.launch == LAUNCH
    assert entry.ours and not entry.off
    assert not entries.install(one, scope, places, LAUNCH).changes
    [back] = entries.uninstall(one, scope, places)
    entries.apply(back, str(tmp_path / "copies"))
    assert list(entries.entries(one, scope, places)) == []
    assert entries.uninstall(one, scope, places) == []


def test_the_shapes_are_those_of_the_programs(places: Places, tmp_path: Path) -> None:
    said = {}
    for one in CLIENTS:
        data = Path(put_in(one, places, tmp_path / "copies").file.path).read_text(encoding="utf-8")
        said[one.name] = tomllib.loads(data) if one.dialect == "toml" else json.loads(data)
    args = list(LAUNCH.args)
    plain = {"command": LAUNCH.command, "args": args}
    typed = {"type": "stdio", **plain}
    assert said == {
        "claude-code": {"mcpServers": {"capsule": typed}},
        "claude-desktop": {"mcpServers": {"capsule": plain}},
        "codex": {"mcp_servers": {"capsule": plain}},
        "gemini": {"mcpServers": {"capsule": plain}},
        "cursor": {"mcpServers": {"capsule": typed}},
        "vscode": {"servers": {"capsule": typed}},
        "windsurf": {"mcpServers": {"capsule": plain}},
        "opencode": {"mcp": {"capsule": {"type": "local", "command": [LAUNCH.command, *args]}}},
        "zed": {"context_servers": {"capsule": plain}},
    }


@pytest.mark.parametrize(
    "data",
    [
        b'\xef\xbb\xbf{\r\n  // mine\r\n  "context_servers": {},\r\n}\r\n',
        b'{"theme":"x","context_servers":{"a":{"command":"b"}}}',
        b"{}",
        b"",
        b"// nothing yet",
        b'{\n  "theme": "x",\n}\n',
    ],
)
def test_uninstall_gives_back_every_byte_that_install_found(data: bytes, places: Places, tmp_path: Path) -> None:
    zed, copies = named("zed"), tmp_path / "copies"
    file = write(zed.files("user", places)[0], data)
    put_in(zed, places, copies)
    put_in(zed, places, copies, launch=Launch("/else/capsule", ("mcp",)))
    assert file.read_bytes().startswith(files.BOM) == data.startswith(files.BOM)
    [back] = entries.uninstall(zed, "user", places, copies=str(copies))
    entries.apply(back, str(copies))
    assert file.read_bytes() == data


def test_what_was_changed_in_between_stays_when_the_entry_is_taken_out(places: Places, tmp_path: Path) -> None:
    zed, copies = named("zed"), tmp_path / "copies"
    file = write(zed.files("user", places)[0], "{}\n")
    put_in(zed, places, copies)
    file.write_text(file.read_text().replace("{\n", '{\n  "theme": "x",\n', 1))
    [back] = entries.uninstall(zed, "user", places, copies=str(copies))
    entries.apply(back, str(copies))
    assert json.loads(file.read_text()) == {"theme": "x", "context_servers": {}}


def test_a_link_stays_a_link_and_the_file_behind_it_keeps_its_permissions(places: Places, tmp_path: Path) -> None:
    codex = named("codex")
    target = write(str(tmp_path / "dotfiles" / "codex.toml"), "# mine\n")
    target.chmod(0o640)
    link = Path(codex.files("user", places)[0])
    link.parent.mkdir(parents=True)
    link.symlink_to(os.path.relpath(target, link.parent))
    put_in(codex, places, tmp_path / "copies")
    assert link.is_symlink()
    assert target.read_text(encoding="utf-8").startswith("# mine\n\n[mcp_servers.capsule]\n")
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert [one.name for one in target.parent.iterdir()] == ["codex.toml"]


def test_a_new_file_is_its_owners_and_so_is_the_copy_of_an_old_one(places: Places, tmp_path: Path) -> None:
    cursor, copies = named("cursor"), tmp_path / "copies"
    path = Path(put_in(cursor, places, copies).file.path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.chmod(0o644)
    before = path.read_bytes()
    kept = entries.apply(entries.install(cursor, "user", places, Launch("/else/capsule", ("mcp",))), str(copies))
    assert kept is not None
    assert Path(kept).read_bytes() == before
    assert stat.S_IMODE(os.stat(kept).st_mode) == 0o600
    assert stat.S_IMODE(copies.stat().st_mode) == 0o700


def test_a_file_that_somebody_else_changes_meanwhile_is_not_overwritten(places: Places, tmp_path: Path) -> None:
    gemini = named("gemini")
    file = write(gemini.files("user", places)[0], '{"theme": "x"}')
    change = entries.install(gemini, "user", places, LAUNCH)
    file.write_text('{"theme": "y"}')
    with pytest.raises(files.Changed, match="changed by another program"):
        entries.apply(change, str(tmp_path / "copies"))
    assert file.read_text() == '{"theme": "y"}'
    assert [one.name for one in file.parent.iterdir()] == [file.name]


@pytest.mark.parametrize(
    ("name", "data", "place"),
    [
        ("claude-code", b'{\n  "a": 1,\n}\n', "2:9: a comma after the last value"),
        ("claude-desktop", b"{\n  // hm\n}\n", "2:3: a comment"),
        ("vscode", b'{\n  "servers": [],\n}\n', "2:14: servers is no object"),
        ("zed", b'{\n  "\xc3\xa4": \xff\n}\n', "2:8: is no UTF-8 text"),
        ("codex", b"a = 1\nb = = 2\n", "2:5: Invalid value"),
        ("gemini", b"{'a': 1}", "1:2: a name in double quotes is missing here"),
    ],
)
def test_a_file_that_cannot_be_read_is_refused_at_its_place(name: str, data: bytes, place: str, places: Places) -> None:
    one = named(name)
    file = write(one.files("user", places)[0], data)
    with pytest.raises(InvalidDocument) as caught:
        entries.install(one, "user", places, LAUNCH)
    assert str(caught.value).startswith(f"{file}:{place}")
    if "is no object" not in place:
        with pytest.raises(InvalidDocument) as caught:
            entries.uninstall(one, "user", places)
        assert str(caught.value).startswith(f"{file}:{place}")
    assert file.read_bytes() == data


def test_something_that_is_no_file_is_refused(places: Places) -> None:
    cursor = named("cursor")
    Path(cursor.files("user", places)[0]).mkdir(parents=True)
    with pytest.raises(InvalidDocument, match="no regular file"):
        entries.install(cursor, "user", places, LAUNCH)


def test_an_entry_of_our_name_that_starts_something_else_is_left_alone_unless_forced(places: Places) -> None:
    cursor = named("cursor")
    text = '{"mcpServers": {"capsule": {"url": "https://example.org/mcp"}, "x": {}}}'
    write(cursor.files("user", places)[0], text)
    with pytest.raises(Refused, match="starts something else"):
        entries.install(cursor, "user", places, LAUNCH)
    with pytest.raises(Refused, match="starts something else"):
        entries.uninstall(cursor, "user", places)
    forced = json.loads(entries.install(cursor, "user", places, LAUNCH, force=True).after)
    assert forced == {"mcpServers": {"x": {}, "capsule": {"type": "stdio", **named("zed").shape(LAUNCH)}}}
    [gone] = entries.uninstall(cursor, "user", places, force=True)
    assert json.loads(gone.after) == {"mcpServers": {"x": {}}}


def test_the_file_that_is_there_is_used_and_the_one_with_our_entry_first(places: Places) -> None:
    windsurf = named("windsurf")
    new, old = windsurf.files("user", places)
    write(old, '{"mcpServers": {}}')
    assert entries.install(windsurf, "user", places, LAUNCH).file.path == old
    write(new, '{"mcpServers": {}}')
    assert entries.install(windsurf, "user", places, LAUNCH).file.path == new
    write(old, '{"mcpServers": {"capsule": {"command": "/old/capsule", "args": ["mcp"]}}}')
    assert entries.install(windsurf, "user", places, LAUNCH).file.path == old


def test_opencode_2_gets_the_entry_where_its_other_servers_are(places: Places) -> None:
    opencode = named("opencode")
    file = write(opencode.files("user", places)[1], '{"mcp": {"servers": {"x": {"type": "local", "command": ["y"]}}}}')
    change = entries.install(opencode, "user", places, LAUNCH)
    assert change.file.path == str(file)
    assert set(json.loads(change.after)["mcp"]["servers"]) == {"x", "capsule"}
    write(str(file), '{"mcp": {"servers": {"type": "local", "command": ["a server of that name"]}}}')
    assert set(json.loads(entries.install(opencode, "user", places, LAUNCH).after)["mcp"]) == {"servers", "capsule"}


@pytest.mark.parametrize("word", ["/a/$HOME/x", "/a/${b}", "/a/{env:B}", "{file:x}"])
def test_a_path_that_programs_would_read_as_a_variable_is_refused(word: str, places: Places) -> None:
    with pytest.raises(InvalidInput, match="as a variable"):
        entries.install(named("gemini"), "user", places, Launch("/opt/capsule", ("mcp", "--store", word)))


def test_a_change_is_shown_as_a_diff(places: Places) -> None:
    cursor = named("cursor")
    path = cursor.files("user", places)[0]
    write(path, '{\n  "mcpServers": {}\n}')
    assert entries.install(cursor, "user", places, Launch("/opt/capsule", ("mcp",))).diff() == (
        f'--- {path}\n+++ {path}\n@@ -1,3 +1,9 @@\n {{\n-  "mcpServers": {{}}\n+  "mcpServers": {{\n'
        '+    "capsule": {\n+      "type": "stdio",\n+      "command": "/opt/capsule",\n+      "args": ["mcp"]\n'
        "+    }\n+  }\n }\n\\ No newline at end of file\n"
    )


def test_a_large_settings_file_is_no_trouble(places: Places) -> None:
    code = named("claude-code")
    projects = {f"/p/{n}": {"history": ["x" * 500], "mcpServers": {}} for n in range(4000)}
    text = json.dumps({"projects": projects, "numStartups": 7}, indent=2)
    write(code.files("user", places)[0], text)
    after = entries.install(code, "user", places, LAUNCH).after.decode()
    assert json.loads(after)["projects"] == projects
    assert after.startswith(text[:-2])
