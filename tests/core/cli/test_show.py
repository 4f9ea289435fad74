"""`show`: for a person and for a program."""

from __future__ import annotations

import json
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
from rich.cells import cell_len

from tests.core.cli.conftest import plain


def test_show_prints_plain_text_when_nobody_watches(capsule: Any) -> None:
    id = capsule.new("A plan", "--tag", "work", "--message", "What now?\n\nReally?")
    capsule("append", id, "# This", "--role", "assistant", "--from", "ada")
    lines = capsule("show", id).stdout.splitlines()
    assert lines[0] == "A plan"
    assert id in lines[1]
    assert "#work" in lines[1]
    assert lines[3].startswith("user  20")
    assert lines[3].endswith("Z  @0")
    assert lines[4:7] == ["What now?", "", "Really?"]
    assert lines[8].startswith("assistant (ada)  20")
    assert lines[9] == "# This"


def test_show_json_prints_the_capsule_with_every_digit_of_what_nobody_knows(
    capsule: Any, samples: Path
) -> None:
    id = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
    capsule.file(id).write_bytes((samples / f"{id}.json").read_bytes())
    text = capsule("show", id, "--json").stdout
    assert "12345678901234567890123" in text
    assert json.loads(text)["version"] == "2.1"
    assert list(json.loads(text)) == [
        "id", "title", "version", "createdAt", "updatedAt", "metadata", "context", "champInconnu", "history", "source",
    ]  # fmt: skip


def test_show_last_prints_the_end_alone(capsule: Any) -> None:
    id = capsule.new("A")
    lines = "".join(
        f'{{"content": "message {i}", "big": 12345678901234567890123}}\n' for i in range(10)
    )
    capsule("append", id, "--jsonl", input=lines)
    text = capsule("show", id, "--last", "2").stdout
    assert "message 7" not in text
    assert "@8\nmessage 8" in text
    assert "@9\nmessage 9" in text
    answer = capsule("show", id, "--last", "2", "--json").stdout
    assert [message["content"] for message in json.loads(answer)] == ["message 8", "message 9"]
    assert "12345678901234567890123" in answer
    assert len(capsule.json("show", id, "--last", "99")) == 10


def test_show_around_prints_a_message_and_those_on_either_side(capsule: Any) -> None:
    id = capsule.new("A")
    capsule(
        "append", id, "--jsonl", input="".join(f'{{"content": "message {n}"}}\n' for n in range(20))
    )
    for wanted, span, shown in (
        ("@5", (), range(2, 9)),
        ("@0", ("-C", "2"), range(3)),
        ("@last", ("-C", "0"), [19]),
    ):
        found = capsule.json("show", id, "--around", wanted, *span)
        assert [message["content"] for message in found] == [f"message {n}" for n in shown]
        text = capsule("show", id, "--around", wanted, *span).stdout
        assert re.findall(r"  @(\d+)$", text, re.MULTILINE) == [str(n) for n in shown]
    for words, code in ((("@20",), 3), (("@1", "--last", "1"), 2), (("@1", "--raw"), 2)):
        capsule("show", id, "--around", *words, expect=code)


def test_show_markdown_is_a_document(capsule: Any) -> None:
    id = capsule.new("A plan", "--message", "**What** now?")
    text = capsule("show", id, "--markdown").stdout
    assert text.startswith("# A plan\n\n*")
    assert "\n\n## user, 20" in text
    assert text.endswith("\n\n**What** now?\n")
    assert capsule("--json", "show", id, "--markdown", expect=2).stdout == ""


def test_ways_to_show_that_exclude_each_other_are_refused(capsule: Any) -> None:
    for words in [
        ("--raw", "--json"),
        ("--raw", "--markdown"),
        ("--raw", "--last", "2"),
        ("--last", "0"),
    ]:
        capsule("show", capsule.new("A"), *words, expect=2)


def test_what_stands_in_a_file_cannot_command_the_terminal(capsule: Any) -> None:
    evil = "a\x1b]0;owned\x07b\x9b31mc\u202ed\ttab\r\nnext"
    id = capsule.new("A", "--message", evil)
    for text in (
        capsule("show", id).stdout,
        capsule("show", id, "--last", "1").stdout,
        capsule("show", id, "--markdown").stdout,
        capsule.terminal("show", id),
        capsule.terminal("show", id, "--json"),
        capsule.terminal("show", id, "--raw"),
        capsule.terminal("show", f"{id}\u202e", "--json", expect=2),
    ):
        assert not set("\x1b\x07\x9b\u202e\r") & set(plain(text))
    assert "a\\x1b]0;owned\\x07b\\x9b31mc\\u202ed\ttab\nnext" in capsule("show", id).stdout
    assert json.loads(capsule.terminal("show", id, "--json"))["history"][0]["content"] == evil


WRITTEN = (
    "Vec<String>  <think>hm</think>\none line\nand `another`, __init__ <!-- seen -->\n- a "
    "list\n\tof *two*"
)


def test_a_terminal_shows_what_stands_in_the_file_folded_to_its_width(capsule: Any) -> None:
    id = capsule.new("A [plan]", "--message", WRITTEN)
    long = "word " * 40 + "x" * 200 + " 漢字" * 60 + " end"
    capsule("append", id, long)
    for words in (("show", id), ("show", id, "--last", "10")):
        plain = capsule.plain(*words, COLUMNS="60")
        assert textwrap.indent(WRITTEN.expandtabs(8), "  ") in plain
        folded = plain[plain.index("  word") :]
        assert "".join(folded.split()) == "".join(long.split())
        assert all(cell_len(line) <= 60 for line in folded.splitlines())


def test_markdown_is_drawn_when_asked_and_html_is_text(capsule: Any) -> None:
    id = capsule.new(
        "A [plan]",
        "--message",
        f"**strong** [/red]\n\n{WRITTEN}\n\n<div>\nblock\n</div> <http://a.b>",
    )
    plain = capsule.plain("show", id, "--rendered")
    assert "• a list" in plain
    assert "strong [/red]" in plain
    for text in (
        "Vec<String>",
        "<think>hm</think>",
        "<!-- seen -->",
        "<div> block </div>",
        "<http://a.b>",
    ):
        assert text in plain
    assert "• a list" in capsule("show", id, "--rendered").stdout


def test_times_are_in_the_readers_zone_on_a_terminal_and_utc_elsewhere(capsule: Any) -> None:
    line = '{"content": "x", "timestamp": "2025-07-01T23:30:00.000Z"}'
    id = capsule.new("A")
    capsule("append", id, "--jsonl", input=line)
    assert "2025-07-02 05:15:00+05:45" in capsule.terminal("show", id, TZ="Asia/Kathmandu")
    assert "2025-07-01 23:30:00Z" in capsule("show", id).stdout
    assert re.search(r"\+05:45 ", capsule.terminal("list", TZ="Asia/Kathmandu"))


def test_show_says_that_it_shows_one_branch_of_several(capsule: Any) -> None:
    id = capsule.new("A", "--message", "one")
    assert "branches" not in capsule("show", id).stdout
    capsule("append", id, "other", "--parent", "none")
    for words in ((), ("--last", "1"), ("--markdown",)):
        assert "one of 2 branches" in capsule("show", id, *words).stdout
    assert "branches" not in capsule("show", id, "--all").stdout


@pytest.mark.slow
def test_long_output_goes_through_the_pager_and_no_more_is_made_than_is_read(
    capsule: Any, tmp_path: Path
) -> None:
    id = capsule.new("A", "--type", "group")
    capsule("append", id, "--jsonl", input='{"content": "message"}\n' * 3000)
    seen = tmp_path / "seen"
    assert capsule.terminal("show", id, PAGER=f"cat > '{seen}'") == ""
    assert plain(seen.read_text(encoding="utf-8")).count("  message\n") == 3000
    assert capsule.terminal("show", id, PAGER=f"head -n 4 > '{seen}'") == ""
    assert len(seen.read_text(encoding="utf-8").splitlines()) == 4
    assert "  message" in capsule.terminal("show", id, "--no-pager", PAGER=f"cat > '{seen}'")
    assert capsule("show", id).stdout.count("message\n") == 3000  # To a program, nothing is paged.
    capsule.terminal("list", PAGER=f"cat > '{seen}'")
    assert "TITLE" in seen.read_text(encoding="utf-8")
    assert "--no-pager" in capsule.terminal("list", PAGER="/no/such/pager", expect=1)


def test_a_message_that_only_calls_tools_says_so(capsule: Any) -> None:
    id = capsule.new("A")
    line = '{"role":"assistant","content":"","toolCalls":[{"function":{"name":"search"}},{"name":"read"},{}]}'
    capsule("append", id, "--jsonl", input=line)
    assert "[calls search]\n\n[calls read]\n\n[calls a tool]" in capsule("show", id).stdout
