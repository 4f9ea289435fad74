"""`watch` and `show --follow`, as processes of their own: what they tell, and how they end."""

from __future__ import annotations

import json
import select
import signal
import subprocess
from pathlib import Path
from typing import Any


def cursor_of(capsule: Any) -> str:
    return str(capsule("watch", "--print-cursor").line)


def follow(capsule: Any, *words: str) -> subprocess.Popen[bytes]:
    """Start a program that follows the store from now on, wherever it is in starting."""
    return capsule.start("watch", "--after", cursor_of(capsule), *words)  # type: ignore[no-any-return]


def lines(process: subprocess.Popen[bytes], count: int) -> list[str]:
    assert process.stdout is not None
    return [process.stdout.readline().decode().rstrip("\n") for _ in range(count)]


def kinds(process: subprocess.Popen[bytes], *wanted: str) -> list[dict[str, Any]]:
    """The changes told as JSON, up to one of the last of the wanted kinds, which come in this
    order.
    """
    found = []
    for kind in wanted:
        while not found or found[-1]["kind"] != kind:
            found.append(json.loads(lines(process, 1)[0]))
    return found


def save(path: Path, data: bytes) -> None:
    """What an editor does that renames its copy over the file: what is written in place may be met
    half written.
    """
    copy = path.with_name("copy~")
    copy.write_bytes(data)
    copy.rename(path)


def replace(path: Path, old: bytes, new: bytes) -> None:
    data = path.read_bytes()
    assert old in data
    save(path, data.replace(old, new))


def test_watch_tells_a_line_a_change(capsule: Any) -> None:
    process = follow(capsule)
    id = capsule.new("Plan", "--type", "group")
    rows = [lines(process, 1)[0].split("\t")]
    for words in (("append", id, "hello"), ("set", id, "--title", "Another")):
        capsule(*words)
        rows.append(lines(process, 1)[0].split("\t"))
    assert [(row[1], row[2]) for row in rows] == [("created", id), ("appended", id), ("head", id)]
    assert rows[1][3] == "1 message" and "title" in rows[2][3]


def test_watch_tells_json_lines_with_cursors_to_go_on_from(capsule: Any) -> None:
    capsule.new("Plan", "--type", "group", "--id", "plan-1")
    process = follow(capsule, "--json", "plan")  # And of this one only.
    capsule.new("Another")
    message = capsule("append", "plan", "hello").line
    (appended,) = kinds(process, "appended")
    assert appended["messages"] == [message]
    assert (appended["source"], appended["own"], appended["count"]) == ("store", False, 1)
    again = capsule.start("watch", "--json", "--after", appended["cursor"], "plan")
    capsule("set", "plan", "--title", "Other")
    assert json.loads(lines(again, 1)[0])["kind"] == "head"


def test_watch_tells_what_is_wrong_with_a_damaged_file_and_shows_no_control_character(
    capsule: Any,
) -> None:
    id = capsule.new("Plan")
    process = follow(capsule)
    path = capsule.file(id)
    sound = path.read_bytes()
    replace(path, b'"Plan",', b'"Pl\x1b[31man",')
    (line,) = lines(process, 1)
    assert "\tdamaged\t" in line and f"{id}.json:" in line and "\x1b" not in line
    save(path, sound)
    assert "\trepaired\t" in lines(process, 1)[0]


def test_watch_runs_a_command_for_each_change_and_survives_its_failure(
    capsule: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    command = (
        f"""echo "$CAPSULE_KIND $CAPSULE_ID" >> '{log}'; cat >> '{log}'; """
        f"""echo "$CAPSULE_CHANGE" >> '{log}'; exit 7"""
    )
    process = follow(capsule, "--exec", command)
    id = capsule.new("Plan", "--type", "group")
    lines(process, 1)
    capsule("append", id, "hello")
    lines(process, 1)
    assert process.stderr is not None
    said = [process.stderr.readline().decode() for _ in range(2)]
    assert (
        all("exit code 7" in line for line in said)
        and "created" in said[0]
        and "appended" in said[1]
    )
    told = log.read_text(encoding="utf-8").splitlines()
    assert told[0] == f"created {id}" and told[3] == f"appended {id}"
    assert told[4] == told[5] and json.loads(told[4])["count"] == 1


def test_a_signal_ends_it_without_a_word(capsule: Any) -> None:
    id = capsule.new("Plan", "--message", "hello", "--type", "group")
    ends = ((signal.SIGINT, 130), (signal.SIGTERM, 143))
    watch = ("watch", "--after", cursor_of(capsule))
    running = [
        (capsule.start(*words), end) for words, end in zip((watch, watch), ends, strict=True)
    ]
    running += [(capsule.start("show", id, "--follow"), end) for end in ends]
    capsule("append", id, "more")
    for process, (number, code) in running:
        lines(process, 1)  # It is running.
        process.send_signal(number)
        assert process.wait(60) == code
        assert process.stderr is not None and process.stderr.read() == b""


def test_what_is_no_cursor_is_refused(capsule: Any) -> None:
    assert "is not a cursor" in capsule("watch", "--after", "yesterday", expect=2).stderr
    capsule("watch", "--print-cursor", "--exec", "true", expect=2)
    assert (
        capsule.json("watch", "--print-cursor")["cursor"].split(".")[0]
        == cursor_of(capsule).split(".")[0]
    )
    capsule("watch", "no-such-conversation", expect=3)


# -- events ----------------------------------------------------------------------------------------


def test_events_that_are_followed_come_as_they_happen(capsule: Any) -> None:
    process = capsule.start(
        "watch", "--events", "--after", capsule("watch", "--events").line, "-f", "--json"
    )
    id = capsule.new("Plan")
    assert kinds(process, "created")[0]["id"] == id


def test_show_follow_begins_with_as_many_messages_as_last_says(capsule: Any) -> None:
    id = capsule.new("Plan", "--type", "group")
    capsule(
        "append", id, "--jsonl", input="".join(f'{{"content": "message {n}"}}\n' for n in range(12))
    )
    for words, first in (((), 2), (("--last", "3"), 9), (("-n", "1"), 11)):
        told = [
            json.loads(line)
            for line in lines(capsule.start("show", id, "-f", "--json", *words), 12 - first)
        ]
        history = list(enumerate(capsule.history(id)))
        assert told == [
            {"kind": "message", "at": at, "message": message} for at, message in history[first:]
        ]
    process = capsule.start("show", id, "-f", "--json", "-n", "0")
    while not select.select([process.stdout], [], [], 0)[0]:
        capsule("append", id, "more")
    assert json.loads(lines(process, 1)[0])["kind"] == "appended"
    assert "--follow" in capsule("show", id, "-n", "0", expect=2).stderr


def test_show_follow_prints_what_others_append_and_edit(capsule: Any) -> None:
    id = capsule.new("Plan", "--type", "group")
    capsule("append", id, "first")
    process = capsule.start("show", id, "--follow")
    assert lines(process, 2)[1] == "first"
    capsule("append", id, "second")
    assert lines(process, 3)[2] == "second"
    replace(capsule.file(id), b'"first"', b'"FIRST"')
    empty, header, content = lines(process, 3)
    assert empty == "" and "@0" in header and "edited" in header and content == "FIRST"
    # The file was renamed over; what comes after it is heard as well.
    capsule("append", id, "third")
    assert lines(process, 3)[2] == "third"


def test_show_follow_prints_json_lines(capsule: Any) -> None:
    id = capsule.new("Plan", "--type", "group")
    capsule("append", id, "first")
    process = capsule.start("show", id, "--follow", "--json")
    kinds(process, "message")
    capsule("append", id, "second")
    (appended,) = kinds(process, "appended")
    assert (appended["at"], appended["message"]) == (1, capsule.history(id)[1])
    replace(capsule.file(id), b'"second"', b'"SECOND"')
    (edited,) = kinds(process, "edited")
    assert (edited["at"], edited["message"]["content"]) == (1, "SECOND")
    document = json.loads(capsule.file(id).read_bytes())
    gone = document["history"].pop()
    save(capsule.file(id), json.dumps(document).encode())
    (removed,) = kinds(process, "removed")
    assert removed["ids"] == [gone["id"]]
    capsule("delete", id, "--yes")
    assert kinds(process, "deleted") == [{"kind": "deleted"}]
    assert process.wait(60) == 0


def test_show_follow_says_that_a_file_is_damaged_and_goes_on_when_it_is_repaired(
    capsule: Any,
) -> None:
    id = capsule.new("Plan", "--type", "group", "--message", "hello")
    process = capsule.start("show", id, "--follow")
    lines(process, 2)
    path = capsule.file(id)
    sound = path.read_bytes()
    replace(path, b'"history": [', b'"history": [,')
    assert process.stderr is not None
    assert "can't be read" in process.stderr.readline().decode()
    assert f"{id}.json:" in process.stderr.readline().decode()
    save(path, sound.replace(b'"hello"', b'"hallo"'))
    assert "is repaired" in process.stderr.readline().decode()
    assert lines(process, 3)[2] == "hallo"
    capsule("append", id, "more")
    assert lines(process, 3)[2] == "more"


def test_the_last_messages_are_drawn_in_a_terminal(capsule: Any) -> None:
    id = capsule.new("Plan", "--message", "some **bold** words \x1b[31m")
    screen = capsule.terminal("show", id, "--last", "10")
    assert "**bold**" in screen and "\x1b[31m" not in screen
