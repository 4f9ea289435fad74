"""Notes at the command line."""

from __future__ import annotations

from typing import Any


def test_the_scripts_of_notes(capsule: Any) -> None:
    for agent in ("anna", "bob"):
        capsule("agent", "register", "--as", agent)
    tags = ("--tag", "x", "--tag", "y")
    id = capsule("note", "write", "The canary sings", *tags, "--session", "s", "--as", "anna").line
    capsule("note", "write", "Other words", "--tag", "z", "--as", "anna")
    (note,) = capsule.json("note", "search", "canary", *tags, "--session", "s", "--as", "anna")
    assert (note["id"], note["text"], note["tags"]) == (id, "The canary sings", ["x", "y"])
    assert [
        len(capsule.json("note", "search", "--tag", "x", "--tag", "z", *any_, "--as", "anna"))
        for any_ in ((), ("--any",))
    ] == [0, 2]
    assert len(capsule.json("note", "list", "--of", "anna")) == 2
    assert capsule.json("note", "list", "--as", "bob") == []
    capsule("note", "list", expect=2)
    for words in (("list",), ("search", "canary"), ("search", "nothing")):
        refused = capsule("note", *words, "--of", "anna", "--as", "bob", expect=3)
        assert refused.stdout == "" and "canary" not in refused.stderr
    assert capsule.json("search", "canary", "--as", "bob")["hits"] == []
    capsule("note", "share", "bob", "--as", "anna")
    assert (
        "The canary sings"
        in capsule("note", "search", "canary", "--of", "anna", "--as", "bob").stdout
    )
    capsule("note", "unshare", "bob", "--as", "anna")
    capsule("note", "search", "canary", "--of", "anna", "--as", "bob", expect=3)
