"""JSON with comments: read with every offset, and edited so that nothing else changes."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule.mcp_server.clients import jsonc, jsonc_edit
from tests.mcp_server.clients.documents import NAMES, documents, values

PATH = ("mcpServers", "capsule")
MINE = {"type": "stdio", "command": "/opt/käse dir/capsule", "args": ["mcp", "--store", "/a b"]}
settings_files = st.dictionaries(st.sampled_from(NAMES), values, max_size=4)


def comments(text: str) -> list[str]:
    return [text[start:end] for start, end in jsonc.read(text).comments]


def is_kept(small: str, big: str) -> bool:
    """Whether every character of one text stands in the other, in that order."""
    rest = iter(big)
    return all(mark in rest for mark in small)


def holds_servers(said: Any) -> bool:
    """Whether an entry can go into it: what is on the way is an object, or isn't there."""
    servers = said.get("mcpServers", {})
    return isinstance(servers, dict) and isinstance(servers.get("capsule", {}), dict)


@given(documents())
def test_a_document_says_what_was_written(document: tuple[str, Any]) -> None:
    text, said = document
    assert jsonc.read(text).value == said


@given(documents(plain=True))
def test_json_without_comments_is_read_as_the_standard_library_reads_it(document: tuple[str, Any]) -> None:
    text, _ = document
    assert jsonc.read(text, plain=True).value == json.loads(text)


@given(st.text(st.sampled_from('{}[]",:/*\\ \n0123456789-+eE.truefalsn"ä'), max_size=30))
def test_what_is_no_json_is_refused_where_the_standard_library_refuses_it(text: str) -> None:
    try:
        wanted = json.loads(text)
    except ValueError:
        if not text.strip():
            assert jsonc.read(text, plain=True).root is None
            return
        with pytest.raises(jsonc.Malformed):
            jsonc.read(text, plain=True)
    else:
        assert jsonc.read(text, plain=True).value == wanted


@given(documents(settings_files))
def test_after_an_entry_is_put_in_it_is_there_and_every_other_character_too(document: tuple[str, Any]) -> None:
    text, said = document
    if not holds_servers(said):
        with pytest.raises(jsonc_edit.CannotEdit):
            jsonc_edit.set_member(text, PATH, MINE)
        return
    after = jsonc_edit.set_member(text, PATH, MINE)
    wanted = copy.deepcopy(said)
    wanted.setdefault("mcpServers", {}).setdefault("capsule", {}).update(MINE)
    assert jsonc.read(after).value == wanted
    if "capsule" not in said.get("mcpServers", {}):
        assert is_kept(text, after)
        assert comments(after) == comments(text)


@given(documents(settings_files))
def test_putting_an_entry_in_again_changes_nothing(document: tuple[str, Any]) -> None:
    text, said = document
    if holds_servers(said):
        once = jsonc_edit.set_member(text, PATH, MINE)
        assert jsonc_edit.set_member(once, PATH, MINE) == once


@given(documents(settings_files))
def test_taking_an_entry_out_again_gives_the_document_back(document: tuple[str, Any]) -> None:
    text, said = document
    if not holds_servers(said) or "capsule" in said.get("mcpServers", {}):
        return
    back = jsonc_edit.remove(jsonc_edit.set_member(text, PATH, MINE), PATH)
    if said.get("mcpServers"):
        assert back == text
    else:  # an empty table may be left, and be written in another way
        assert jsonc.read(back).value == {**said, "mcpServers": {}}
        assert comments(back) == comments(text)


@given(
    documents(st.fixed_dictionaries({"mcpServers": st.dictionaries(st.sampled_from(["a", "capsule", "b"]), values)}))
)
def test_an_entry_somebody_else_wrote_is_taken_out_and_the_rest_stays(document: tuple[str, Any]) -> None:
    text, said = document
    after = jsonc_edit.remove(text, PATH)
    wanted = copy.deepcopy(said)
    wanted["mcpServers"].pop("capsule", None)
    assert jsonc.read(after).value == wanted
    assert is_kept(after, text)


def test_a_new_entry_has_the_layout_of_its_neighbours() -> None:
    text = '{\n\t// mine\n\t"mcpServers": {\n\t\t"x": {"command": "y"}, // after x\n\t\t// off\n\t},\n}\n'
    assert jsonc_edit.set_member(text, PATH, {"command": "/c", "args": ["mcp"]}) == (
        '{\n\t// mine\n\t"mcpServers": {\n\t\t"x": {"command": "y"}, // after x\n'
        '\t\t"capsule": {\n\t\t\t"command": "/c",\n\t\t\t"args": ["mcp"]\n\t\t},\n\t\t// off\n\t},\n}\n'
    )


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ('{"a":1}', '{"a":1,"mcpServers":{"capsule":{"command":"/c"}}}'),
        ('{"mcpServers": {"x": {}}}', '{"mcpServers": {"x": {}, "capsule": {"command": "/c"}}}'),
        ("", '{\n  "mcpServers": {\n    "capsule": {\n      "command": "/c"\n    }\n  }\n}\n'),
        (
            "{}\r\n",
            '{\n  "mcpServers": {\n    "capsule": {\n      "command": "/c"\n    }\n  }\n}\n'.replace("\n", "\r\n"),
        ),
        ('{"a": 1 // one\n}', '{"a": 1, // one\n  "mcpServers": {"capsule": {"command": "/c"}}\n}'),
    ],
)
def test_a_document_keeps_its_layout(text: str, after: str) -> None:
    assert jsonc_edit.set_member(text, PATH, {"command": "/c"}) == after


def test_what_a_person_added_to_the_entry_stays_and_what_starts_the_server_is_made_right() -> None:
    text = '{"mcpServers": {"capsule": {"command": "/old", /* why */ "env": {"A": "b"}, "disabled": true}}}'
    assert jsonc_edit.set_member(text, PATH, {"command": "/new", "args": ["mcp"]}) == (
        '{"mcpServers": {"capsule": {"command": "/new", /* why */ "env": {"A": "b"}, "disabled": true, '
        '"args": ["mcp"]}}}'
    )


def test_of_a_doubled_name_the_last_counts_and_both_entries_are_taken_out() -> None:
    text = '{"mcpServers": {"capsule": {"command": "/1"}, "capsule": {"command": "/2"}, "x": {}}}'
    assert jsonc_edit.get(jsonc.read(text), (*PATH, "command")).value == "/2"  # type: ignore[union-attr]
    assert jsonc_edit.remove(text, PATH) == '{"mcpServers": {"x": {}}}'


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ('{"a": 1,}', 7),
        ('{"a": 1} // x', 9),
        ("{a: 1}", 1),
        ('{"a" 1}', 5),
        ('{"a": 01}', 6),
        ("[1", 2),
        ('{"a": "x\n"}', 6),
        ('{"a": 1} {}', 9),
        ("/* x", 0),
        ("[" * 300, jsonc.DEPTH + 1),
    ],
)
def test_what_plain_json_does_not_have_is_refused_at_its_place(text: str, at: int) -> None:
    with pytest.raises(jsonc.Malformed) as caught:
        jsonc.read(text, plain=True)
    assert caught.value.at == at
