"""`capsule mcp install`, `uninstall` and `doctor`, as they are typed."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tomllib
from pathlib import Path

import pytest

from capsule.mcp_server.clients.settings import CLIENTS, MachinePaths
from tests.core.cli.conftest import Program

EXECUTABLE = str(Path(sys.executable).with_name("capsule"))


def test_install_writes_the_absolute_path_of_this_capsule_and_of_the_store(
    capsule: Program, places: MachinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(capsule.root.parent)
    said = capsule(
        "mcp", "install", "claude-desktop", "--store", capsule.root.name, "--instance", "anna"
    ).stdout
    path = Path(places.home, ".config", "Claude", "claude_desktop_config.json")
    first, second = said.splitlines()
    assert first == f"Claude Desktop: {path} now has the entry; restart Claude Desktop"
    assert second == f"  store: {capsule.root} (named with --store)"
    args = ["mcp", "--store", str(capsule.root), "--instance", "anna"]
    assert json.loads(path.read_text()) == {
        "mcpServers": {"capsule": {"command": EXECUTABLE, "args": args}}
    }


def test_install_says_which_store_the_server_will_serve_and_why(
    capsule: Program, places: MachinePaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, above = Path(places.home, ".local", "share", "capsule"), Path(places.project)
    steps: tuple[tuple[str, Path, tuple[str, ...]], ...] = (
        ("your own store", own, ()),
        ("the nearest directory upwards", above, ()),
        ("named by CAPSULE_STORE", capsule.root, ()),
        ("named with --store", above, ("--store", str(above))),
        ("named with --store", above, ()),  # The entry keeps it.
    )
    for reason, store, words in steps:
        if reason.startswith("the nearest"):
            (above / "capsule.toml").touch()
        if "CAPSULE_STORE" in reason:
            monkeypatch.setenv("CAPSULE_STORE", str(capsule.root))
        [told] = capsule.json("mcp", "install", "cursor", *words)
        assert told["store"] == str(store) and told["storeReason"].startswith(reason)
        is_open = "--store" not in reason
        assert ("add --store" in capsule("mcp", "install", "cursor", *words).stdout) == is_open
    assert not own.exists()
    (above / "capsule.toml").unlink()
    assert "is not a Capsule store" in capsule("mcp", "install", "cursor").stdout


def test_install_on_an_empty_home_says_where_it_looked_and_what_a_person_can_do(
    capsule: Program, places: MachinePaths
) -> None:
    for words in ((), ("--all",)):
        said = capsule("mcp", "install", *words, expect=6).stderr
        for client in CLIENTS:
            assert client.name in said and client.files("user", places)[0] in said
        assert "capsule mcp install claude-code" in said
        error = json.loads(capsule("mcp", "install", *words, "--json", expect=6).stderr)["error"]
        assert error["looked"]["cursor"] == [f"{places.home}/.cursor/mcp.json"]
        assert json.loads(error["paste"])["mcpServers"]["capsule"]["command"] == EXECUTABLE
    said = capsule("mcp", "install", "--settings", "project", expect=6).stderr
    assert f"{places.project}/.mcp.json" in said and "claude-desktop" not in said
    assert list(Path(places.home).iterdir()) == list(Path(places.project).iterdir()) == []


def test_install_enters_the_set_of_tools_that_was_chosen(
    capsule: Program, places: MachinePaths
) -> None:
    for words, args in (
        ((), ["mcp"]),
        (("--tools", "all", "--as", "anna"), ["mcp", "--as", "anna", "--tools", "all"]),
        ((), ["mcp", "--as", "anna", "--tools", "all"]),
        (("--as", "bob"), ["mcp", "--as", "bob", "--tools", "all"]),
        (("--tools", "conversations"), ["mcp", "--tools", "conversations", "--as", "bob"]),
    ):
        capsule("mcp", "install", "cursor", *words)
        held = json.loads(Path(places.home, ".cursor", "mcp.json").read_text())
        assert held["mcpServers"]["capsule"]["args"] == args
    capsule("mcp", "install", "cursor", "--tools", "some", expect=2)
    capsule("mcp", "--tools", "messaging", "install", "cursor", expect=2)


def test_a_change_keeps_what_the_file_held_and_says_so(
    capsule: Program, places: MachinePaths
) -> None:
    path = Path(places.home, ".claude.json")
    path.write_text('{"numStartups": 7}')
    [told] = capsule.json("mcp", "install", "claude-code")
    assert (told["client"], told["scope"], told["path"], told["changed"]) == (
        "claude-code",
        "user",
        str(path),
        True,
    )
    assert Path(told["backup"]).read_text() == '{"numStartups": 7}'
    again = capsule("mcp", "install", "claude-code").stdout
    assert again.startswith(f"Claude Code: {path} has the entry already; nothing to change\n")
    assert len(list(Path(told["backup"]).parent.iterdir())) == 1
    said = capsule("mcp", "uninstall", "claude-code").stdout
    # It says what it did, and not what one does after an install.
    assert "no longer has the entry" in said and "a new session of Claude Code has it" not in said
    assert json.loads(path.read_text()) == {"numStartups": 7}
    assert "nothing to change" in capsule("mcp", "uninstall", "claude-code").stdout


def test_what_to_paste_is_said_and_the_other_files_are_changed(
    capsule: Program, places: MachinePaths
) -> None:
    path = Path(places.home, ".config", "zed", "settings.json")
    path.parent.mkdir(parents=True)
    path.write_text('{\n  // mine\n  "theme": "One"\n}\n')
    answer = capsule("mcp", "install", "zed", "codex", expect=1)
    assert '"context_servers"' in answer.stdout
    assert "// mine" in path.read_text() and "capsule" not in path.read_text()
    codex = Path(places.home, ".codex", "config.toml")
    assert tomllib.loads(codex.read_text()) == {
        "mcp_servers": {"capsule": {"command": EXECUTABLE, "args": ["mcp"]}}
    }


def test_a_toml_file_that_only_install_wrote_is_emptied_and_any_other_stays(
    capsule: Program, places: MachinePaths
) -> None:
    path = Path(places.project, ".codex", "config.toml")
    capsule("mcp", "install", "codex", "--settings", "project")
    written = path.read_text()
    capsule("mcp", "uninstall", "codex", "--settings", "project")
    assert path.read_text() == ""
    path.write_text(f"# mine\n{written}")
    answer = capsule("mcp", "uninstall", "codex", "--settings", "project", expect=1)
    assert "take mcp_servers.capsule out of it" in answer.stdout
    assert path.read_text() == f"# mine\n{written}"


def test_a_dry_run_shows_the_change_and_makes_none(capsule: Program, places: MachinePaths) -> None:
    said = capsule("mcp", "install", "zed", "cursor", "--settings", "project", "--dry-run").stdout
    assert "+++ " + os.path.join(places.project, ".cursor", "mcp.json") in said
    assert '+  "context_servers": {' in said
    assert list(Path(places.project).iterdir()) == []
    [told] = capsule.json("mcp", "install", "zed", "--dry-run")
    assert told["changed"] is False and "context_servers" in told["diff"]


def test_a_file_that_cannot_be_read_changes_nothing_in_any_other(
    capsule: Program, places: MachinePaths
) -> None:
    Path(places.home, ".cursor").mkdir()
    Path(places.home, ".cursor", "mcp.json").write_text('{\n  "mcpServers": {"a" 1}\n}\n')
    answer = capsule("mcp", "install", "claude-code", "cursor", "zed", expect=5)
    assert "mcp.json:2:22: " in answer.stderr and "nothing was changed" in answer.stderr
    assert [path.name for path in Path(places.home).iterdir()] == [".cursor"]


def test_all_are_the_programs_whose_settings_are_here(
    capsule: Program, places: MachinePaths
) -> None:
    assert (
        "no settings of a program were found"
        in capsule("mcp", "uninstall", "--all", expect=1).stderr
    )
    Path(places.home, ".codeium", "windsurf").mkdir(parents=True)
    Path(places.home, ".gemini").mkdir()
    Path(places.home, ".claude.json").write_text("{}")
    assert [told["client"] for told in capsule.json("mcp", "install", "--all")] == [
        "claude-code",
        "gemini",
        "windsurf",
    ]
    assert [told["changed"] for told in capsule.json("mcp", "uninstall", "--all")] == [
        True,
        True,
        True,
    ]


def test_contradictory_options_are_a_usage_error(capsule: Program, places: MachinePaths) -> None:
    for words, message in (
        (("emacs",), "'emacs' is not one of claude-code, "),
        (("zed", "--all"), "means all programs"),
        (("zed", "--settings", "both"), "not one of"),
        (
            ("claude-desktop", "--settings", "project"),
            "Claude Desktop has no settings of a project",
        ),
    ):
        assert message in " ".join(capsule("mcp", "install", *words, expect=2).stderr.split())
    assert (
        "is not a Capsule store"
        in capsule("mcp", "install", "zed", "--store", "/nowhere", expect=3).stderr
    )
    assert list(Path(places.home).iterdir()) == []
    Path(places.home, ".cursor").mkdir()
    assert (
        "name programs, or give --all: claude-code, " in capsule("mcp", "install", expect=2).stderr
    )


@pytest.mark.slow
def test_doctor_says_what_each_program_would_see(capsule: Program, places: MachinePaths) -> None:
    assert "no program has the entry" in capsule("mcp", "doctor", expect=1).stderr
    capsule("mcp", "install", "cursor", "--store", str(capsule.root))
    capsule("mcp", "install", "opencode", "--settings", "project", "--store", str(capsule.root))
    lines = capsule("mcp", "doctor").stdout.splitlines()
    assert lines[0] == f"Cursor (user): {places.home}/.cursor/mcp.json"
    assert lines[1].startswith("  capsule ") and ", protocol 2025-11-25, ready after " in lines[1]
    assert "tools, whose list costs about " in lines[2]
    assert lines[3] == f"  store: {capsule.root} (named with --store)"
    assert lines[4] == f"OpenCode (project): {places.project}/opencode.json"
    [told] = capsule.json("mcp", "doctor", "cursor")
    assert told["command"] == [EXECUTABLE, "mcp", "--store", str(capsule.root)]
    assert told["ok"] is True and told["tools"] > 5
    assert (told["store"], told["storeReason"]) == (str(capsule.root), "named with --store")


def test_doctor_tells_what_is_wrong_and_exits_otherwise(
    capsule: Program, places: MachinePaths
) -> None:
    capsule("mcp", "install", "cursor", "gemini", "--store", str(capsule.root))
    Path(places.home, ".claude.json").write_text("{")
    gemini = Path(places.home, ".gemini", "settings.json")
    gemini.write_text(gemini.read_text().replace('"args"', '"disabled": true, "args"'))
    shutil.rmtree(capsule.root)
    zed = Path(places.project, ".zed", "settings.json")
    zed.parent.mkdir()
    zed.write_text('{"context_servers": {"capsule": {"command": "touch", "args": ["here"]}}}')
    told = {one["client"]: one for one in capsule.json("mcp", "doctor", expect=1)}
    assert set(told) == {"claude-code", "cursor", "gemini", "zed"}
    assert "the entry starts another program" in told["zed"]["problems"][0]
    assert [path.name for path in Path(places.project).iterdir()] == [".zed"]
    assert "is not a Capsule store" in told["cursor"]["problems"][0]
    assert "/.claude.json:1:2: " in told["claude-code"]["problems"][0]
    assert told["gemini"]["switchedOff"] is True
    assert (
        "  wrong: it has no entry; add it with: capsule mcp install vscode"
        in capsule("mcp", "doctor", "vscode", expect=1).stdout.splitlines()
    )


def test_the_shell_completes_the_names_of_programs() -> None:
    from capsule_cli.commands.mcp import _complete_program

    assert _complete_program("claude") == [
        ("claude-code", "Claude Code"),
        ("claude-desktop", "Claude Desktop"),
    ]
    assert len(_complete_program("")) == len(CLIENTS)
