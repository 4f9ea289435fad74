"""`append`: one message, and streams of them."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from capsule.store.store import CoreStore


def test_append_takes_its_text_from_the_argument_a_file_or_standard_input(
    capsule: Any, tmp_path: Path
) -> None:
    id = capsule.new("A")
    file = tmp_path / "my täxt.md"
    file.write_bytes("\ufefffrom a file\n\n".encode())
    assert capsule.json("append", id, "from the argument") == {
        "id": capsule.history(id)[0]["id"],
        "at": 0,
    }
    capsule("append", id, "--file", str(file), "--role", "assistant", "--from", "ada")
    assert capsule("append", id, input="from stdin\n").line == capsule.history(id)[2]["id"]
    capsule("append", id, "-", input="stdin by name, ünd wide")
    capsule("append", id, "--", "--json")
    contents = [
        "from the argument",
        "from a file\n",
        "from stdin",
        "stdin by name, ünd wide",
        "--json",
    ]
    assert [message["content"] for message in capsule.history(id)] == contents
    assert (capsule.history(id)[1]["role"], capsule.history(id)[1]["from"]) == ("assistant", "ada")


def test_what_is_no_message_is_refused_and_appends_nothing(capsule: Any, tmp_path: Path) -> None:
    id, latin = capsule.new("A"), tmp_path / "latin.txt"
    latin.write_bytes(b"caf\xe9")
    os.mkfifo(tmp_path / "pipe")
    for words, input, code, said in (
        (("",), None, 2, "empty"),
        (("  \n",), None, 2, "empty"),
        ((), "\n", 2, "empty"),
        (("a", "--file", "b"), None, 2, "not both"),
        (("text", "--jsonl"), None, 2, "--jsonl"),
        (("x", "--from", "../ada"), None, 2, "../ada"),
        (("--file", str(latin)), None, 2, f"{latin}: byte 3 (0xe9)"),
        ((), b"\xff", 2, "standard input: byte 0"),
        (("--file", "nothing.md"), None, 3, "nothing.md"),
        (("--file", str(tmp_path)), None, 2, str(tmp_path)),
        (("--file", str(tmp_path / "pipe")), None, 2, "not a regular file"),
    ):
        assert said in capsule("append", id, *words, input=input, expect=code).stderr
    assert capsule.history(id) == []


def test_a_person_at_a_terminal_is_told_how_to_end_the_message(capsule: Any) -> None:
    id = capsule.new("A")
    screen = capsule.terminal("append", id, typed="first line\nsecond line\n\x04")
    assert "Ctrl-D" in screen
    assert capsule.history(id)[0]["content"] == "first line\nsecond line"


def test_a_stream_acknowledges_every_line_when_it_is_durable(capsule: Any) -> None:
    id = capsule.new("A", "--type", "group")
    process = capsule.start("append", id, "--jsonl", "--from", "ada")
    for at, message in enumerate(
        ({"content": "one"}, {"role": "assistant", "content": "two", "from": "bob"})
    ):
        process.stdin.write(json.dumps(message).encode() + b"\n")
        process.stdin.flush()
        told = json.loads(process.stdout.readline())
        assert told == {"id": capsule.history(id)[at]["id"], "at": at}
    process.stdin.close()
    assert process.wait(60) == 0
    stored = [
        (message["role"], message["content"], message["from"]) for message in capsule.history(id)
    ]
    assert stored == [("user", "one", "ada"), ("assistant", "two", "bob")]


def test_without_waiting_for_the_disk_every_message_is_acknowledged_as_soon_as_it_is_readable(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[bool] = []
    real = CoreStore.append_entries

    def append_entries(store: CoreStore, id: str, messages: Any, *, wait: bool = True) -> Any:
        waited.append(wait)
        return real(store, id, messages, wait=wait)

    monkeypatch.setattr(CoreStore, "append_entries", append_entries)
    id = capsule.new("A")
    answer = capsule("append", id, "--jsonl", "--no-wait", input='{"content": "one"}\n')
    assert json.loads(answer.stdout) == {"id": capsule.history(id)[0]["id"], "at": 0}
    assert capsule("append", id, "two", "--no-wait").line == capsule.history(id)[1]["id"]
    assert waited == [False, False]
    capsule("append", id, "three")
    assert waited == [False, False, True]
    error = json.loads(capsule("append", "nothing", "x", "--no-wait", "--json", expect=3).stderr)[
        "error"
    ]
    assert error["kind"] == "NotFound"


def test_a_stream_passes_every_field_exactly(capsule: Any) -> None:
    id = capsule.new("A")
    line = (
        '{"role":"assistant","content":"","id":"m-1","timestamp":"2025-01-01T10:00:00+01:00","model":"m",'
        '"toolCalls":[{"name":"f","arguments":{"n":12345678901234567890123,"f":2.50}}],"new":{"z":1,"a":-0}}'
    )
    capsule("append", id, "--jsonl", input=line + "\n\n")
    text = capsule.file(id).read_text(encoding="utf-8")
    assert capsule.history(id)[0]["timestamp"] == "2025-01-01T09:00:00.000Z"
    assert all(
        token in text for token in ("12345678901234567890123", "2.50", '"id": "m-1"', '"a": -0')
    )


def test_a_bad_line_is_named_and_what_was_acknowledged_before_it_stays(capsule: Any) -> None:
    (capsule.root / "capsule.toml").write_text("[limits]\nmessage_bytes = 1000\n", encoding="utf-8")
    for bad, what in [
        ("{", "line 4, column 2"),
        ("[]", "line 4"),
        ('{"content": 5}', "message.content"),
        ('{"content": "x", "content": "y"}', "line 4"),
        ('{"content": "' + "x" * 2000 + '"}', "1,000"),
    ]:
        id = capsule.new("A")
        lines = ['{"content": "one"}', "", '{"content": "two"}', bad, '{"content": "never"}']
        answer = capsule("append", id, "--jsonl", input="\n".join(lines), expect=2)
        assert [json.loads(line)["at"] for line in answer.stdout.splitlines()] == [0, 1]
        assert "line 4" in answer.stderr and what in answer.stderr
        assert [message["content"] for message in capsule.history(id)] == ["one", "two"]


def test_a_long_stream_is_taken_whole(capsule: Any) -> None:
    id = capsule.new("A")
    lines = "".join(json.dumps({"content": f"{i} " + "x" * (i % 700)}) + "\n" for i in range(2000))
    answer = capsule.process("append", id, "--jsonl", input=lines.encode())
    told = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [one["at"] for one in told] == list(range(2000))
    assert [one["id"] for one in told] == [message["id"] for message in capsule.history(id)]


def test_an_open_stream_holds_a_chat_and_leaves_it_when_it_ends(capsule: Any) -> None:
    id = capsule.new("A")
    process = capsule.stream(id)
    error = json.loads(capsule("append", id, "me too", "--json", expect=4).stderr)["error"]
    assert (error["kind"], error["id"], error["holder"]["pid"]) == ("Locked", id, process.pid)
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 143
    assert capsule.json("lock", "list") == []
    assert capsule("append", id, "me too").stderr == ""


def test_a_stream_whose_lock_is_taken_finds_out_at_its_next_message(capsule: Any) -> None:
    id = capsule.new("A")
    process = capsule.stream(id, "--json")
    capsule("lock", "release", id, "--force")
    capsule("append", id, "theirs")
    stdout, stderr = process.communicate(b'{"content":"lost"}\n', timeout=60)
    assert (process.returncode, stdout) == (7, b"")
    assert json.loads(stderr)["error"]["kind"] == "LockLost"
    assert [message["content"] for message in capsule.history(id)] == ["mine", "theirs"]
