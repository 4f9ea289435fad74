"""`summarize`, `transcript`, `list --summaries-of`, and what `show` and `doctor` say of
a summary.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def plan(capsule: Any) -> str:
    id: str = capsule.new("Holidays", "--tag", "home", "--message", "To the sea?")
    capsule("append", id, "--role", "assistant", "Yes.")
    return id


def python(body: str) -> str:
    """A command line that runs a Python program."""
    return f'"{sys.executable}" -c "{body}"'


def test_a_summary_is_made_of_a_text_a_file_or_standard_input(
    capsule: Any, plan: str, tmp_path: Path
) -> None:
    text, file = "They go to the sea.", tmp_path / "summary.md"
    file.write_text(f"{text}\n", encoding="utf-8")
    for words, input in (
        ((text,), None),
        (("--file", str(file)), None),
        (("-",), text),
        (("--file", "-"), text),
    ):
        assert (
            capsule.history(capsule("summarize", plan, *words, input=input).line)[0]["content"]
            == text
        )
    head = capsule.json("summarize", plan, "Short.", "--title", "In short")
    facts = [head[name] for name in ("title", "isSummary", "sourceConversationId", "tags")]
    assert facts == ["In short", True, plan, ["home"]]


def test_without_a_text_it_is_an_error_that_says_where_one_comes_from(
    capsule: Any, plan: str
) -> None:
    said = capsule("summarize", plan, expect=2).stderr
    assert "Capsule writes none itself" in said and "--command" in said
    for words in (
        ("text", "--file", "x"),
        ("text", "--command", "cat"),
        ("--command", "cat", "--up-to", "@0"),
        ("text", "--budget", "9"),
        ("--command", " "),
    ):
        capsule("summarize", plan, *words, expect=2)
    capsule("summarize", plan, "-", input=" \n", expect=2)
    assert len(capsule.json("list")) == 1


def test_a_program_gets_the_transcript_and_gives_the_summary(capsule: Any, plan: str) -> None:
    copy = capsule.history(capsule("summarize", plan, "--command", "cat").line)[0]["content"]
    assert copy + "\n" == capsule("show", "--for-model", plan).stdout
    capsule("append", plan, "word " * 300)
    assert (
        "oldest messages"
        not in capsule("summarize", plan, "--command", "cat", "--budget", "600").stderr
    )
    capsule("append", plan, "word " * 300)
    answer = capsule("summarize", plan, "--command", "cat", "--budget", "600")
    assert "the 3 oldest messages don't fit" in answer.stderr
    capsule("append", plan, "x" * 2_000_000)  # More than a pipe takes, and it is not read.
    assert (
        capsule.history(capsule("summarize", plan, "--command", "echo Short.").line)[0]["content"]
        == "Short."
    )


def test_a_program_that_fails_makes_nothing_and_says_why(capsule: Any, plan: str) -> None:
    (capsule.root / "capsule.toml").write_text("[limits]\nmessage_bytes = 1000\n", encoding="utf-8")
    for command, code, said in [
        (
            "echo half; exit 3",
            1,
            "--command failed with exit code 3; nothing was made. It was: echo half; exit 3",
        ),
        ("kill -9 $$", 1, "failed with signal 9"),
        ("true", 2, "it wrote nothing"),
        ("printf 'a\\377'", 2, "byte 1 (0xff) is not valid UTF-8"),
        ("printf '\\357\\273\\277ab\\377'", 2, "byte 5 (0xff) is not valid UTF-8"),
        ("yes", 2, "wrote more than 1,000 bytes"),
    ]:
        assert said in capsule("summarize", plan, "--command", command, expect=code).stderr
        assert len(capsule.json("list")) == 1


@pytest.mark.skipif(os.name != "posix", reason="groups of processes are those of POSIX")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_ctrl_c_ends_the_program_and_nothing_is_made(
    capsule: Any, plan: str, tmp_path: Path, number: int, code: int
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    # It says its number, and then waits for ever; the pipe ends when it has ended.
    script = (
        "import os, signal; print(os.getpid(), flush=True, file=open(3, chr(119))); signal.pause()"
    )
    command = f"exec {python(script)}"
    process = capsule.start(
        "summarize", plan, "--command", f"{command} 3> '{pipe}'", start_new_session=True, stdin=None
    )
    with open(pipe, encoding="utf-8") as told:
        pid = int(told.readline())
        assert pid > 0
        if number == signal.SIGINT:
            os.killpg(process.pid, number)  # As a terminal does it.
        else:
            process.send_signal(number)
        assert process.wait(60) == code
        assert told.read() == ""
    assert len(capsule.json("list")) == 1


def test_the_summaries_are_listed_and_say_whether_the_source_has_moved_on(
    capsule: Any, plan: str
) -> None:
    first = capsule("summarize", plan, "They go.").line
    capsule("append", plan, "When?")
    second = capsule("summarize", plan, "They go, some time.").line
    told = {
        head["id"]: head["source"]["state"] for head in capsule.json("list", "--summaries-of", plan)
    }
    rows = dict(
        line.split("\t")[::5]
        for line in capsule("list", "--summaries-of", plan[:8]).stdout.splitlines()
    )
    assert told == rows == {first: "behind", second: "current"}
    assert capsule.json("list", "--summaries-of", first) == []
    capsule("list", "--summaries-of", "nobody", expect=3)
    capsule("delete", plan)
    assert {head["source"]["state"] for head in capsule.json("list", "--summaries-of", plan)} == {
        "gone"
    }


def test_what_arrived_while_the_program_ran_counts_as_new(capsule: Any, plan: str) -> None:
    command = f'"{sys.executable}" -m capsule_cli append {plan} "Wait!" > /dev/null && echo Short.'
    made = capsule.process("summarize", plan, "--command", command).line
    (head,) = capsule.json("list", "--summaries-of", plan)
    assert (head["id"], head["source"]) == (made, {"state": "behind", "added": 1, "edited": 0})


@pytest.mark.files
def test_show_says_that_the_source_has_moved_on(capsule: Any, plan: str) -> None:
    made = capsule("summarize", plan, "They go.").line
    assert f"a summary of {plan}; its source is unchanged" in capsule("show", made).stderr
    capsule("append", plan, "When?")
    assert "its source has changed since: 1 new message" in capsule("show", made).stderr
    answer = capsule("show", made, "--json")
    assert answer.stderr == ""
    assert json.loads(answer.stdout)["source"] == {"state": "behind", "added": 1, "edited": 0}
    assert "source" not in capsule.json("show", plan) and capsule("show", plan).stderr == ""
    assert "behind: a summary of" in capsule("doctor").stdout


def test_a_transcript_is_printed_within_its_budget(capsule: Any, plan: str) -> None:
    text = capsule("show", "--for-model", plan).stdout
    assert [line for line in text.splitlines() if line and not line.startswith("===")] == [
        "To the sea?",
        "Yes.",
    ]
    capsule("append", plan, "word " * 200)
    budget = capsule.json("show", "--for-model", plan)["tokens"] - 1
    made = capsule.json("show", "--for-model", plan, "--budget", str(budget))
    assert made["tokens"] <= budget
    assert (made["messages"], made["leftOut"]) == (2, 1)
    assert "=== 1 older message is left out ===" in made["text"]
    assert (
        "it needs about" in capsule("show", "--for-model", plan, "--budget", "50", expect=2).stderr
    )
    capsule("show", "--for-model", plan, "--budget", "0", expect=2)
    document = json.loads(capsule.file(plan).read_bytes())
    document["context"]["fullContext"] = "# Project\n=== user ===\n"
    capsule.file(plan).write_text(json.dumps(document), encoding="utf-8")
    text = capsule("show", "--for-model", plan, "--context").stdout
    assert "=== project context ===\n# Project\n>=== user ===\n" in text
    assert "Project" not in capsule("show", "--for-model", plan).stdout


def test_a_cut_result_of_a_tool_names_the_command_that_prints_all_of_it(
    capsule: Any, plan: str
) -> None:
    result = "word " * 5_000
    capsule("append", plan, "--role", "tool", "-", input=result)
    text = capsule("show", "--for-model", plan, "--budget", "1000").stdout
    found = re.search(r"left out; all of it: capsule (.*) ===$", text, re.MULTILINE)
    assert found is not None and result not in text
    assert result.strip() in capsule(*found[1].split()).stdout
