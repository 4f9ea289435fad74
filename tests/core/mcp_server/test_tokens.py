"""Tokens: made once, kept as hashes, beside no store, and of no use once revoked."""

from __future__ import annotations

import json
import stat
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from capsule import Store
from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused
from capsule.mcp_server.access import Tokens
from capsule_cli.app import app


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def tokens(tmp_path: Path, root: Path) -> Tokens:
    return Tokens(tmp_path / "config", str(root))


def run(root: Path, *words: str, expect: int = 0) -> Any:
    result = CliRunner().invoke(app, ["--store", str(root), *words])
    assert result.exit_code == expect, result.output
    return result


def holder(tokens: Tokens, token: str) -> str | None:
    found = tokens.holder_of(token)
    return found and found.name


def test_a_token_opens_for_its_holder_until_it_is_revoked(tokens: Tokens) -> None:
    anna, bert = tokens.add("anna"), tokens.add("bert")
    assert anna != bert
    assert [holder(tokens, token) for token in (anna, bert)] == ["anna", "bert"]
    assert [holder(tokens, token) for token in (anna[:-1], "", "ü\udcff")] == [None] * 3
    tokens.revoke("anna")
    assert [holder(tokens, token) for token in (anna, bert)] == [None, "bert"]
    assert holder(tokens, tokens.add("anna")) == "anna"
    assert holder(tokens, anna) is None


def test_a_token_has_a_scope_and_may_expire(tokens: Tokens) -> None:
    tokens.add("anna", scope="read", expires_in_s=3600)
    old = tokens.add("bert", expires_in_s=-2)
    assert [(one.name, one.scope, one.has_expired(time.time())) for one in tokens.all()] == [
        ("anna", "read", False),
        ("bert", "write", True),
    ]
    assert holder(tokens, old) is None
    # A new one takes its place.
    assert holder(tokens, tokens.add("bert", scope="admin")) == "bert"
    with pytest.raises(InvalidInput, match="revoke anna"):
        tokens.add("anna")
    for name in ("", "a b", "../x", "a" * 200, "a\n"):
        with pytest.raises(InvalidInput, match="not a name of a holder"):
            tokens.add(name)
    with pytest.raises(NotFound, match="capsule mcp tokens list"):
        tokens.revoke("carl")


def test_what_is_stored_is_a_hash_that_only_its_owner_may_read_and_not_in_the_store(
    tokens: Tokens, root: Path
) -> None:
    token = tokens.add("anna")
    assert len(token) >= 43
    assert token.encode() not in tokens.path.read_bytes()
    assert stat.S_IMODE(tokens.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(tokens.path.parent.stat().st_mode) == 0o700
    assert not tokens.path.is_relative_to(root)
    assert [path.name for path in tokens.path.parent.iterdir() if "tmp" in path.name] == []


def test_a_token_is_of_use_to_one_store_only(tmp_path: Path, tokens: Tokens, root: Path) -> None:
    token = tokens.add("anna")
    assert Tokens(tmp_path / "config", str(tmp_path / "other")).holder_of(token) is None
    link = tmp_path / "link"
    link.symlink_to(root)
    assert holder(Tokens(tmp_path / "config", str(link)), token) == "anna"


def test_tokens_added_at_once_are_all_kept(tokens: Tokens) -> None:
    names = [f"agent-{n}" for n in range(40)]
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(tokens.add, names))
    assert [holder(tokens, token) for token in made] == names


def test_a_file_of_another_form_or_that_others_may_write_admits_nobody(tokens: Tokens) -> None:
    token = tokens.add("anna")
    tokens.path.chmod(0o620)
    with pytest.raises(Refused, match="chmod 600"):
        tokens.holder_of(token)
    tokens.path.chmod(0o600)
    for data in (
        b"",
        b"{",
        b"[]",
        b'{"version": 2, "tokens": []}',
        b'{"version": 1, "tokens": [{}]}',
    ):
        tokens.path.write_bytes(data)
        for ask in (lambda: tokens.holder_of(token), lambda: tokens.add("bert")):
            with pytest.raises(InvalidDocument):
                ask()
        assert tokens.path.read_bytes() == data


def test_the_command_line_shows_a_token_once_and_only_names_after_that(root: Path) -> None:
    made = run(root, "mcp", "tokens", "add", "anna")
    token = made.stdout.strip()
    assert token.startswith("capsule_")
    assert token not in made.stderr
    assert json.loads(run(root, "mcp", "tokens", "add", "bert", "--json").stdout)["name"] == "bert"
    listed = run(root, "mcp", "tokens", "list")
    assert [line.split("\t")[0] for line in listed.stdout.splitlines()] == ["anna", "bert"]
    assert [
        one["name"] for one in json.loads(run(root, "--json", "mcp", "tokens", "list").stdout)
    ] == ["anna", "bert"]
    assert token not in listed.stdout
    assert "anna" in run(root, "mcp", "tokens", "revoke", "anna").stdout
    assert json.loads(run(root, "mcp", "tokens", "revoke", "bert", "--json").stdout) == {
        "name": "bert",
        "revoked": True,
    }
    assert run(root, "mcp", "tokens", "list").stdout == ""
    assert (
        json.loads(run(root, "mcp", "tokens", "revoke", "bert", "--json", expect=3).stderr)[
            "error"
        ]["kind"]
        == "NotFound"
    )
    run(root, "mcp", "tokens", "add", "anna")
    assert "anna already has a token" in run(root, "mcp", "tokens", "add", "anna", expect=2).stderr
