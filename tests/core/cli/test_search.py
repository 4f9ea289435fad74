"""`search`, `stats`, `reindex`."""

from __future__ import annotations

import re
from typing import Any

from capsule import Store
from tests.core.cli.conftest import plain


def fill(capsule: Any) -> tuple[str, list[str]]:
    """A conversation about a plan; its id, and those of its messages."""
    id = capsule.new("The garden", "--tag", "home", "--message", "What is\tthe plan?\n\nThe plan!")
    capsule("append", id, "No plan yet", "--role", "assistant", "--from", "ada")
    capsule("append", id, "我们讨论全文检索")
    capsule.new("Elsewhere", "--mode", "toolbox", "--message", "nothing of the kind")
    return id, [message["id"] for message in capsule.history(id)]


def test_search_prints_a_row_a_hit(capsule: Any) -> None:
    id, messages = fill(capsule)
    times = [message["timestamp"] for message in capsule.history(id)]
    assert (
        capsule("search", "检索").stdout
        == f"{id}\t{messages[2]}\t{times[2]}\tuser\tThe garden\t我们讨论全文检索\n"
    )
    rows = sorted(capsule("search", "plan").stdout.splitlines())
    assert rows == [
        f"{id}\t{messages[0]}\t{times[0]}\tuser\tThe garden\tWhat is the plan? The plan!",
        f"{id}\t{messages[1]}\t{times[1]}\tassistant\tThe garden\tNo plan yet",
    ]
    updated = capsule.json("list", "--tag", "home")[0]["updatedAt"]
    assert capsule("search", "garden").stdout == f"{id}\t\t{updated}\t\tThe garden\tThe garden\n"
    assert capsule("search", "absent").stdout == ""


def test_search_json_has_everything_there_is_to_know(capsule: Any) -> None:
    id, messages = fill(capsule)
    found = capsule.json("search", "plan", "--from", "ada")
    (hit,) = found["hits"]
    assert found == {"hits": [hit], "cursor": None, "total": 1}
    assert isinstance(hit.pop("score"), float)
    where = {
        "id": id,
        "title": "The garden",
        "message": messages[1],
        "at": 1,
        "role": "assistant",
        "from": "ada",
    }
    where |= {"time": capsule.history(id)[1]["timestamp"], "where": "content", "active": True}
    text = {"snippet": {"text": "No plan yet", "marks": [[3, 7]]}}
    assert hit == where | text | {"open": f"capsule show {id} --around {messages[1]}"}
    program, *words = hit["open"].split()
    assert program == "capsule" and "@1\nNo plan yet" in capsule(*words).stdout


def test_search_is_narrowed_by_its_options(capsule: Any) -> None:
    id, _ = fill(capsule)
    for words, found in (
        ("", {"@0", "@1"}),
        ("--role assistant", {"@1"}),
        ("--role assistant --role user", {"@0", "@1"}),
        ("--from ada", {"@1"}),
        ("--tag none", set()),
        ("--mode toolbox", set()),
        ("--in @last", set()),
        (
            f"--in {id[:8]} --tag home --branch all --in-tools --profile exact --since 1h",
            {"@0", "@1"},
        ),
        ("--until 1h", set()),
        ("--title-only", set()),
        ("NOT yet", {"@0"}),
    ):
        assert {
            f"@{hit['at']}" for hit in capsule.json("search", "plan", *words.split())["hits"]
        } == found
    capsule("search", "plan", "--in", "ffffffff", expect=3)


def test_options_that_can_not_be_are_a_usage_error(capsule: Any) -> None:
    for words in (
        "--role boss",
        "--branch left",
        "--profile best",
        "--limit 0",
        "--since once",
        "--after x",
    ):
        capsule("search", "a", *words.split(), expect=2)


def test_search_goes_on_where_it_ended(capsule: Any) -> None:
    fill(capsule)
    first = capsule.json("search", "plan", "--limit", "1")
    second = capsule.json("search", "plan", "--limit", "1", "--after", first["cursor"])
    assert second["cursor"] is None
    assert {page["hits"][0]["at"] for page in (first, second)} == {0, 1}


def test_search_in_a_terminal_marks_what_was_found(capsule: Any) -> None:
    id, _ = fill(capsule)
    screen = capsule.terminal("search", "plan", "--limit", "1")
    assert re.search("\x1b\\[[0-9;]*7[0-9;]*mplan\x1b", screen)
    text = plain(screen)
    assert "ID" in text
    assert id[:8] in text
    assert re.search(rf"open one: capsule show {id[:8]} --around @[01]", text)
    assert re.search(r"^more: --after [\w-]+$", text, re.MULTILINE)
    assert "nothing was found" in capsule.terminal("search", "absent")


def test_what_was_found_cannot_command_the_terminal(capsule: Any) -> None:
    capsule.new(
        "A [red]",
        "--message",
        "before \x1b]0;owned\x07 needle \x9b31m \u202e [/bold] after\r\nnext",
    )
    for text in (capsule("search", "needle").stdout, capsule.plain("search", "needle")):
        assert not set("\x1b\x07\x9b\u202e\r") & set(text)
        assert "\\x1b]0;owned\\x07 needle" in re.sub(r"\s+", " ", text)
    assert "[red]" in capsule.plain("search", "needle")


def test_stats_prints_a_row_a_count(capsule: Any) -> None:
    id, _ = fill(capsule)
    other = capsule.json("list", "--mode", "toolbox")[0]
    size = len(capsule.file(id).read_bytes())
    month = capsule.history(id)[0]["timestamp"][:7]
    told = capsule.json("store", "stats")
    assert capsule("store", "stats").stdout.splitlines() == [
        "conversations\t2",
        "damaged\t0",
        "archived\t0",
        "messages\t4",
        "words\t21",
        f"tokens\t{told['tokens']}",
        f"bytes\t{size + other['bytes']}",
        "role\tuser\t3\t18",
        "role\tassistant\t1\t3",
        f"month\t{month}\t4\t21",
        "program\there\t4\t21",
        "agent\tada\t1\t3",
        f"largest\t{id}\t3\t17\t{size}\tThe garden",
        f"largest\t{other['id']}\t1\t4\t{other['bytes']}\tElsewhere",
    ]
    tokens = told["bySender"]["ada"]["tokens"]
    assert (told["messages"], told["byRole"]["assistant"]) == (
        4,
        {"messages": 1, "words": 3, "tokens": tokens},
    )
    assert sum(day["messages"] for day in told["byDay"].values()) == 4


def test_stats_in_a_terminal_are_tables(capsule: Any) -> None:
    fill(capsule)
    capsule("store", "reindex")
    lines = [line.split() for line in capsule.plain("store", "stats").splitlines()]
    assert lines[0][:2] == ["2", "conversations"]
    assert ["3", "18", "user"] in lines and ["1", "3", "assistant"] in lines


def test_reindex_builds_the_index_anew(capsule: Any) -> None:
    fill(capsule)
    assert capsule("store", "reindex").stdout == "indexed 2 conversations, 4 messages, 21 words\n"
    index = capsule.root / ".capsule" / "index.sqlite3"
    index.write_bytes(b"rubbish" * 1000)
    assert capsule.json("store", "reindex") == {
        "conversations": 2,
        "damaged": 0,
        "messages": 4,
        "words": 21,
    }
    assert len(capsule.json("search", "plan")["hits"]) == 2


def test_filters_topics_and_threads_narrow_together(capsule: Any) -> None:
    id = capsule.new("Plan")
    with Store.open(capsule.root, keep_locks=False) as store:
        said = [
            {"topic": "api", "thread": "t1"},
            {"topic": "api", "thread": "t2"},
            {"topic": "web", "thread": "t1"},
        ]
        store.append_entries(
            id, [{"role": "user", "content": "word", **each, "metadata": {"n": 1}} for each in said]
        )
    words = ("--topic", "api", "--thread", "t1", "--where", '{"n": {"$gte": 1}}')
    assert [hit["at"] for hit in capsule.json("search", "word", *words)["hits"]] == [0]
    for wrong in ("{", "5", '{"n": {"$like": 1}}'):
        capsule("search", "--where", wrong, expect=2)


def test_a_search_since_a_day_goes_on_where_the_one_before_ended(capsule: Any) -> None:
    with Store.open(capsule.root, keep_locks=False) as store:
        store.append_entries(
            capsule.new("Plan"), [{"role": "user", "content": "garden"} for _ in range(3)]
        )
    words = ("search", "garden", "--since", "2020-01-01", "--limit", "2")
    first = capsule.json(*words)
    rest = capsule.json(*words, "--after", first["cursor"])
    assert len({hit["message"] for hit in first["hits"] + rest["hits"]}) == 3
