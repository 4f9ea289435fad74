"""`overrides`: MCP servers on and off for one conversation, or for the next one."""

from __future__ import annotations

from typing import Any

import pytest


def test_servers_are_switched_toggled_removed_and_listed(capsule: Any) -> None:
    id = capsule.new("Plan")
    assert capsule("mcp", "servers", "list", id).stdout == ""
    assert capsule("mcp", "servers", "set", id[:8], "git", "off").stdout == f"{id}: git off\n"
    capsule("mcp", "servers", "set", id, "web", "on")
    assert capsule("mcp", "servers", "toggle", id, "git").stdout == f"{id}: git on, web on\n"
    assert capsule("mcp", "servers", "list", id).stdout == "git\ton\nweb\ton\n"
    assert capsule.json("mcp", "servers", "list", id) == {
        "id": id,
        "mcpServers": {"git": {"enabled": True}, "web": {"enabled": True}},
    }
    assert "git" in capsule.terminal("mcp", "servers", "list", id)
    assert (
        capsule("mcp", "servers", "remove", id, "git", "web", "nobody").stdout
        == f"{id}: all as by default\n"
    )


def test_what_waits_for_the_next_conversation_is_named_next(capsule: Any) -> None:
    capsule("mcp", "servers", "set", "@next", "git", "off")
    assert (
        capsule("mcp", "servers", "toggle", "@next", "web").stdout
        == "the next conversation: git off, web off\n"
    )
    assert capsule.json("mcp", "servers", "remove", "@next", "web") == {
        "id": None,
        "mcpServers": {"git": {"enabled": False}},
    }
    id = capsule.new("Plan")
    assert capsule("mcp", "servers", "list", id).stdout == "git\toff\n"
    assert capsule("mcp", "servers", "list", "@next").stdout == ""
    assert capsule("mcp", "servers", "list", capsule.new("After")).stdout == ""


def test_what_cant_be_is_a_usage_error(capsule: Any) -> None:
    id = capsule.new("Plan")
    capsule("mcp", "servers", "set", id, "git", "maybe", expect=2)
    capsule("mcp", "servers", "set", id, "", "on", expect=2)
    capsule("mcp", "servers", "list", "nobody", expect=3)
    capsule("mcp", "servers", "list", "@nobody", expect=2)


def test_a_name_from_a_file_commands_no_terminal(capsule: Any) -> None:
    id = capsule.new("Plan")
    data = capsule.file(id).read_bytes()
    capsule.file(id).write_bytes(
        data.replace(
            b'"titleSetBy"', b'"mcpServers": {"a\\u001b[2J": {"enabled": true}}, "titleSetBy"'
        )
    )
    assert (
        "\x1b"
        not in capsule("mcp", "servers", "list", id).stdout
        + capsule("mcp", "servers", "toggle", id, "x").stdout
    )


def test_the_overrides_that_wait_are_checked_as_what_they_are(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    capsule("mcp", "servers", "set", "@next", "git", "off")
    path = capsule.root / "overrides" / "next.json"
    assert capsule.json("store", "validate", str(path)) == {"ok": True, "files": 1, "problems": []}
    assert capsule.json("store", "validate")["files"] == 1
    path.write_text('{\n  "mcpServers": {"git": "off"}\n}')
    for words in (("store", "validate"), ("store", "validate", str(path))):
        assert (
            f"{path}:2:17: mcpServers: must be an object of names"
            in capsule(*words, expect=5).stdout
        )
    monkeypatch.chdir(path.parent)
    assert (
        "next.json:2:17: mcpServers" in capsule("store", "validate", "next.json", expect=5).stdout
    )
