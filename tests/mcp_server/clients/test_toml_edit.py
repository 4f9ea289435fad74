"""TOML with comments: a table is put in and taken out, and nothing else changes."""

from __future__ import annotations

import copy
import tomllib
from typing import Any

import pytest
import tomlkit
from hypothesis import given
from hypothesis import strategies as st

from capsule.mcp_server.clients import toml_edit
from capsule.mcp_server.clients.jsonc import Malformed

PATH = ("mcp_servers", "capsule")
MINE = {"command": "/opt/käse dir/capsule", "args": ["mcp", "--store", "/a b"]}

LINES = st.sampled_from(
    [
        "# a comment",
        "",
        'text = """\n[mcp_servers.capsule]\n"""',
        "literal = '''\n# no comment\n[x]'''",
        'list = [\n  "[x]", # one\n  [2],\n]',
        'quoted."a.b" = "#"',
        "when = 2026-01-01T10:00:00Z",
        "inline = { a = 1, b = [2] }",
    ]
)
TABLES = st.sampled_from(
    ["", "[features]", "[[profiles]]", '[mcp_servers."o.t"]', "[mcp_servers.other.env]", "[a.b] # hm"]
)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """A settings file with tables and comments in any order, as far as TOML has it."""
    text = ""
    for header in draw(st.lists(TABLES, max_size=4, unique=True)):
        lines = draw(st.lists(LINES, max_size=4, unique=True))
        text += "\n".join([*([header] if header else []), *lines]) + "\n" * draw(st.integers(1, 3))
    if draw(st.booleans()):
        text = text.rstrip("\n")
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        text = '# else\nmodel = "x"\n'
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@given(documents())
def test_a_table_put_in_is_there_and_the_text_before_it_is_what_it_was(text: str) -> None:
    after = toml_edit.set_table(text, PATH, MINE)
    wanted: dict[str, Any] = copy.deepcopy(tomllib.loads(text))
    wanted.setdefault("mcp_servers", {})["capsule"] = MINE
    assert tomllib.loads(after) == wanted
    assert after.startswith(text)
    assert toml_edit.set_table(after, PATH, MINE) == after


@given(documents())
def test_a_table_taken_out_again_gives_the_document_back(text: str) -> None:
    assert toml_edit.remove(toml_edit.set_table(text, PATH, MINE), PATH) == text


@given(documents())
def test_a_table_in_the_middle_is_taken_out_with_those_below_it_and_the_rest_stays(above: str) -> None:
    between = (
        '\n[mcp_servers.capsule] # ours\ncommand = "/x"\n[mcp_servers.capsule.env]\nA = "b"\n\n# of the next\n[z]\n'
    )
    text = above.replace("\r", "") + between
    after = toml_edit.remove(text, PATH)
    wanted = tomllib.loads(text)
    del wanted["mcp_servers"]["capsule"]
    said = tomllib.loads(after)
    said.setdefault("mcp_servers", {})
    assert said == wanted
    assert after.endswith("\n# of the next\n[z]\n")
    assert after.startswith(above.replace("\r", "").rstrip("\n"))


def test_what_a_person_added_stays_and_the_comments_too() -> None:
    text = (
        '[mcp_servers.capsule] # mine\ncommand = "/old" # why\nargs = ["mcp"]\nstartup_timeout_sec = 5\n\n'
        '[mcp_servers.capsule.env]\nA = "b"\n\n# the next one\n[mcp_servers.x]\ncommand = "y"\n'
    )
    after = toml_edit.set_table(text, PATH, {"command": "/new", "args": ["mcp"]})
    assert after == text.replace('"/old"', '"/new"')


@pytest.mark.parametrize(
    "text", ['mcp_servers = { x = { command = "y" } }\n', '[mcp_servers]\nx = { command = "y" }\n']
)
def test_servers_written_in_one_line_get_one_more(text: str) -> None:
    after = toml_edit.set_table(text, PATH, MINE)
    assert tomllib.loads(after)["mcp_servers"] == {"x": {"command": "y"}, "capsule": MINE}
    assert tomllib.loads(toml_edit.remove(after, PATH)) == tomllib.loads(text)


def test_the_entry_is_what_tomlkit_reads_too() -> None:
    after = toml_edit.set_table('# hm\nmodel = "x"\n', PATH, MINE)
    assert tomlkit.parse(after).unwrap()["mcp_servers"]["capsule"] == MINE


@pytest.mark.parametrize(
    ("text", "at"), [("a = ", 4), ("a = 1\n[x", 8), ("a = 1\nb = ]\n", 10), ("mcp_servers = 1", 0)]
)
def test_what_is_no_toml_or_has_no_place_for_the_table_is_refused(text: str, at: int) -> None:
    with pytest.raises(Malformed) as caught:
        toml_edit.set_table(text, PATH, MINE)
    assert caught.value.at == at
