"""Notes at the command line."""

from __future__ import annotations

from typing import Any


def test_the_scripts_of_notes(capsule: Any) -> None:
    for agent in ("anna", "bob"):
        capsule("agents", "register", "--as", agent)
    tags = ("--tag", "x", "--tag", "y")
    id = capsule("notes", "write", "The canary sings", *tags, "--session", "s", "--as", "anna").line
    capsule("notes", "write", "Other words", "--tag", "z", "--as", "anna")
    (note,) = capsule.json("notes", "search", "canary", *tags, "--session", "s", "--as", "anna")
    assert (note["id"], note["text"], note["tags"]) == (id, "The canary sings", ["x", "y"])
    assert [
        len(capsule.json("notes", "search", "--tag", "x", "--tag", "z", *any_, "--as", "anna"))
        for any_ in ((), ("--any",))
    ] == [0, 2]
    assert len(capsule.json("notes", "list", "--of", "anna")) == 2
    assert capsule.json("notes", "list", "--as", "bob") == []
    capsule("notes", "list", expect=2)
    for words in (("list",), ("search", "canary"), ("search", "nothing")):
        refused = capsule("notes", *words, "--of", "anna", "--as", "bob", expect=3)
        assert refused.stdout == "" and "canary" not in refused.stderr
    assert capsule.json("search", "canary", "--as", "bob")["hits"] == []
    capsule("notes", "allow", "bob", "--as", "anna")
    assert "The canary sings" in capsule("notes", "search", "canary", "--of", "anna", "--as", "bob").stdout
    capsule("notes", "end", "bob", "--as", "anna")
    capsule("notes", "search", "canary", "--of", "anna", "--as", "bob", expect=3)
