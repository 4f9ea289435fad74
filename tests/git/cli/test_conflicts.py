"""`conflicts`, `resolve`."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

VALUES = [
    {"value": "Anna's", "at": "2026-01-01T00:00:00.000Z"},
    {"value": "Ben's", "at": "2026-01-02T00:00:00.000Z"},
]


@pytest.fixture
def disputed(capsule: Any) -> str:
    id: str = capsule.new("Ben's", "--message", "hello")
    document = json.loads(capsule.file(id).read_text())
    document["metadata"]["pinned"] = True
    document["metadata"]["conflicts"] = [
        {"field": "metadata.pinned", "values": [{"value": None}, {"value": True}]},
        {"field": "title", "values": VALUES},
    ]
    capsule.file(id).write_text(json.dumps(document))
    return id


def test_conflicts_lists_what_awaits_a_decision(capsule: Any, disputed: str) -> None:
    capsule.new("Another")
    found = capsule.json("git", "resolve", "--list")
    assert found == capsule.json("git", "resolve", "--list", disputed[:8])
    assert found[1] == {
        "id": disputed,
        "title": "Ben's",
        "field": "title",
        "kept": "Ben's",
        "values": VALUES,
    }
    rows = [line.split("\t") for line in capsule("git", "resolve", "--list").stdout.splitlines()]
    assert [row[2:5] for row in rows] == [
        ["metadata.pinned", "1", "null"],
        ["metadata.pinned", "2", "true"],
        ["title", "1", "Anna's"],
        ["title", "2", "Ben's"],
    ]
    assert [row[6] for row in rows] == ["", "stands", "", "stands"]


def test_conflicts_in_a_terminal_of_any_width_keeps_the_number_of_each_value(
    capsule: Any, disputed: str
) -> None:
    for columns in ("80", "200"):
        screen = capsule.terminal("git", "resolve", "--list", COLUMNS=columns)
        rows = re.findall(rf"^{disputed[:8]}  (\S+) +(\d) .*?(\S+)$", screen, re.MULTILINE)
        assert [row[1:] for row in rows] == [
            ("1", "null"),
            ("2", "true"),
            ("1", "Anna's"),
            ("2", "Ben's"),
        ]
        assert rows[2][0] == "title"


def test_resolve_keeps_a_value_by_its_number_or_takes_another(capsule: Any, disputed: str) -> None:
    told = capsule.json("git", "resolve", disputed, "title", "--keep", "1")
    assert told["settled"] == [{"field": "title", "value": "Anna's"}]
    assert [one["field"] for one in told["left"]] == ["metadata.pinned"]
    assert (
        capsule("git", "resolve", disputed, "--value", "false").stdout
        == f"{disputed}: metadata.pinned is false\n"
    )
    assert capsule.json("git", "resolve", "--list") == []
    head = next(one for one in capsule.json("list") if one["id"] == disputed)
    assert (head["title"], head["pinned"]) == ("Anna's", False)
    assert "conflicts" not in json.loads(capsule.file(disputed).read_text())["metadata"]


def test_leaving_a_later_conflict_names_the_fields_that_were_resolved(
    capsule: Any, disputed: str
) -> None:
    screen = capsule.terminal("git", "resolve", disputed, typed="1\nq\n", expect=1)
    assert "title was left; resolved before it: metadata.pinned" in screen
    assert "nothing was changed" not in screen
    [left] = capsule.json("git", "resolve", "--list")
    assert left["field"] == "title"


def test_resolve_takes_a_text_as_it_is(capsule: Any, disputed: str) -> None:
    assert (
        capsule.json("git", "resolve", disputed, "title", "--value", "17")["settled"][0]["value"]
        == "17"
    )


def test_at_a_terminal_it_asks_for_each(capsule: Any, disputed: str) -> None:
    screen = capsule.terminal("git", "resolve", disputed, typed="1\n2\n")
    assert "Which value?" in screen and "Anna's" in screen
    assert capsule.json("git", "resolve", "--list") == []
    head = capsule.json("list")[0]
    assert (head["title"], head["pinned"]) == ("Ben's", False)


def test_resolve_changes_nothing_without_a_valid_choice(capsule: Any, disputed: str) -> None:
    before = capsule.file(disputed).read_bytes()
    assert "nothing was changed" in capsule.terminal(
        "git", "resolve", disputed, "title", typed="q\n", expect=1
    )
    capsule.terminal("git", "resolve", disputed, "title", typed="0\n", expect=2)
    for arguments in (
        ("title", "--keep", "3"),
        ("title",),
        ("metadata.mode", "--keep", "1"),
        ("--keep", "1"),
        ("--value", ""),
        ("metadata.pinned", "--value", "no JSON"),
        ("metadata.pinned", "--value", '"yes"'),
        ("title", "--keep", "1", "--value", "x"),
    ):
        assert capsule("git", "resolve", disputed, *arguments, expect=2).stderr
    assert capsule.file(disputed).read_bytes() == before
    other = capsule.new("Another")
    assert "nothing to resolve" in capsule("git", "resolve", other, expect=2).stderr
