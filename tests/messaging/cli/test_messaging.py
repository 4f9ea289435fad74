"""Messaging at the command line, as scripts rely on it: who sends, who hears, and what becomes of a
message.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from capsule_cli import fast_path
from tests.core.cli.test_program import ensure_light


@pytest.fixture
def team(capsule: Any, tmp_path: Path) -> Any:
    """`capsule`, where anna, bob and carl are registered, each for a folder of the same name."""
    for name in ("anna", "bob", "carl"):
        (tmp_path / name).mkdir()
        capsule("agent", "register", "--as", name, "--project", str(tmp_path / name))
    return capsule


def objects(lines: str) -> list[Any]:
    return [json.loads(line) for line in lines.splitlines()]


def test_registering_prints_the_id_and_does_the_same_when_repeated(
    capsule: Any, tmp_path: Path
) -> None:
    words = ("agent", "register", "--as", "anna", "--project", str(tmp_path))
    assert [capsule(*words).stdout for _ in range(2)] == ["anna\n", "anna\n"]
    (anna,) = capsule.json("agent", "list")
    assert (anna["id"], anna["projectPath"]) == ("anna", str(tmp_path))


def test_a_message_is_sent_listed_heard_and_acknowledged(team: Any) -> None:
    sent = team.json("send", "--as", "anna", "--to", "bob", "The build is red")
    assert sent.keys() == {"conversation", "message", "recipients"} and sent["recipients"] == {
        "bob": "stored"
    }
    assert sent["conversation"] == "direct_anna_bob"

    inbox = team.json("inbox", "--as", "bob")
    (item,) = inbox["conversations"]
    assert (inbox["unread"], item["id"], item["type"], item["unread"]) == (
        1,
        "direct_anna_bob",
        "direct",
        1,
    )
    assert (item["last"]["from"], item["last"]["content"]) == ("anna", "The build is red") and item[
        "last"
    ]["timestamp"]

    for words in ((), ("--ack",)):
        (mail,) = objects(team("listen", "--as", "bob", "--timeout", "0", "--json", *words).stdout)
        assert (mail["conversation"], mail["type"], mail["id"]) == (
            "direct_anna_bob",
            "direct",
            sent["message"],
        )
        assert (mail["from"], mail["content"]) == ("anna", "The build is red") and mail["timestamp"]
    nothing = team("listen", "--as", "bob", "--timeout", "1s", "--json")
    assert (nothing.stdout, nothing.stderr) == ("", "")
    assert team.json("inbox", "--as", "bob")["unread"] == 0
    status = team.json("message", "status", sent["message"])
    assert status == sent | {"recipients": {"bob": "read"}}


def test_a_message_that_can_reach_nobody_is_an_error_that_says_who_there_is(capsule: Any) -> None:
    capsule("agent", "register", "--as", "anna")
    assert capsule("send", "hello", "--as", "anna", expect=2).stdout == ""
    for name in ("bob", "carl"):
        capsule("agent", "register", "--as", name)
    for words in (("--to", "nobody"), ()):
        answer = capsule("send", "hello", "--as", "anna", *words, expect=3 if words else 2)
        assert "bob" in answer.stderr and "carl" in answer.stderr
    capsule("send", "hello", "--as", "anna", "--to", "anna", expect=6)


def test_the_text_of_a_message_comes_from_standard_input_or_a_file(
    team: Any, tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("from a file\n", encoding="utf-8")
    team("send", "--as", "anna", "--to", "bob", input="from a pipe\n")
    team("send", "--as", "anna", "--to", "bob", "--file", str(tmp_path / "text"))
    said = objects(team("listen", "--as", "bob", "--timeout", "0s", "--json").stdout)
    assert [mail["content"] for mail in said] == ["from a pipe", "from a file"]
    team("send", "--as", "anna", "--to", "bob", input=" \n", expect=2)


def test_an_answer_names_the_message_that_it_answers(team: Any) -> None:
    question = team("send", "--as", "anna", "--to", "bob", "Red or green?").line
    team("send", "--as", "bob", "--to", "anna", "green", "--reply-to", question)
    (mail,) = objects(team("listen", "--as", "anna", "--timeout", "0s", "--json").stdout)
    assert mail["replyTo"] == question


def test_a_message_into_a_channel_has_a_topic_and_mentions_an_agent(team: Any) -> None:
    team("channel", "new", "releases", "--as", "anna", "--scope", "global", "--with", "bob")
    words = (
        "--channel",
        "releases",
        "--topic",
        "api",
        "--priority",
        "high",
        "--intent",
        "ask",
        "--confidence",
        "0.5",
    )
    words += ("--model", "m", "--idempotency-key", "k")
    sent = team.json("send", "--as", "bob", "@anna --review? @dora", *words)
    again = team("send", "--as", "bob", "@anna --review? @dora", *words)
    assert (again.line, sent["mentions"]["valid"]) == (sent["message"], ["anna"])
    assert "dora" in again.stderr
    (mention,) = team.json("mention", "list", "--as", "anna", "--kind", "review")
    about = {
        "topic": "api",
        "priority": "high",
        "intent": "ask",
        "confidence": 0.5,
        "mention": "review",
    }
    assert (
        mention.items() >= {**about, "model": "m", "id": sent["message"], "state": "unread"}.items()
    )
    assert team("mention", "list", "--as", "anna").stdout.startswith(
        f"{sent['message']}\tunread\treview\tbob\t"
    )
    team("send", "--as", "bob", "--channel", "releases", "--thread", sent["message"], "and this")
    team("send", "--as", "bob", "--channel", "releases", "and that")
    heard = team("listen", "--as", "anna", "--topic", "api", "--timeout", "0s", "--ack", "--json")
    assert [mail["content"] for mail in objects(heard.stdout)] == [
        "@anna --review? @dora",
        "and this",
    ]
    assert team.json("inbox", "--as", "anna")["unread"] == 1
    assert team.json("inbox", "--as", "anna", "--thread", sent["message"])["unread"] == 0
    page = team.json("history", sent["conversation"], "--as", "anna", "--thread", sent["message"])
    assert len(page["messages"]) == 2
    assert (
        team("mention", "done", sent["message"], "--as", "anna").stdout
        == f"{sent['message']}: done\n"
    )
    team("mention", "done", sent["message"], "--as", "bob", expect=3)
    team("send", "--as", "anna", "--channel", "releases", "--to", "bob", "hello", expect=2)


def test_an_agent_is_named_by_the_option_else_by_the_environment_else_by_the_folder(
    team: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sender(*words: str) -> str:
        team("send", "--to", "carl", "hello", *words)
        heard = team("listen", "--as", "carl@carl", "--ack", "--timeout", "0s", "--json")
        return str(objects(heard.stdout)[-1]["from"])

    (tmp_path / "anna" / "below").mkdir()
    monkeypatch.chdir(tmp_path / "anna" / "below")
    assert sender() == "anna"
    monkeypatch.setenv("CAPSULE_AGENT", "bob@bob")
    assert sender() == "bob" and sender("--as", "anna") == "anna"
    monkeypatch.delenv("CAPSULE_AGENT")
    monkeypatch.chdir(tmp_path)
    said = team("inbox", expect=2).stderr
    assert "--as" in said and "CAPSULE_AGENT" in said and "capsule agent register" in said


def test_two_agents_of_one_folder_are_told_apart_by_name_only(
    team: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    team("agent", "register", "--as", "dora", "--project", str(tmp_path / "anna"))
    monkeypatch.chdir(tmp_path / "anna")
    said = team("inbox", expect=2).stderr
    assert "anna" in said and "dora" in said


def test_listen_follows_until_ctrl_c(team: Any) -> None:
    process = team.start("listen", "--as", "bob", "--follow", "--json")
    for text in ("one", "two"):
        team("send", "--as", "anna", "--to", "bob", text)
        assert json.loads(process.stdout.readline())["content"] == text
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130 and process.stderr.read() == b""


def test_listen_runs_a_command_for_each_message_and_survives_its_failure(
    team: Any, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    for text in ("one", "x" * 200_000):
        team("send", "--as", "anna", "--to", "bob", input=text)
    command = (
        f"wc -c >> '{log}'; echo \"$CAPSULE_MESSAGE\" >> '{log}'; echo $CAPSULE_ID >> "
        f"'{log}'; exit 3"
    )
    told = team("listen", "--as", "bob", "--ack", "--timeout", "0s", "--exec", command, "--json")
    assert len(objects(told.stdout)) == 2 and told.stderr.count("exit code 3") == 2
    first, one, id, second, two, _ = log.read_text(encoding="utf-8").splitlines()
    assert (
        id == "direct_anna_bob"
        and json.loads(one)["content"] == "one"
        and json.loads(two)["content"] == ""
    )
    assert int(first) < 1000 and int(second) > 200_000
    assert team.json("inbox", "--as", "bob")["unread"] == 0


def test_listen_hears_one_conversation_only_when_it_is_named(team: Any) -> None:
    team("send", "--as", "carl", "--to", "bob", "aside")
    team("send", "--as", "anna", "--to", "bob", "wanted")
    words = (
        "listen",
        "--as",
        "bob",
        "--timeout",
        "0s",
        "--conversation",
        "direct_anna_bob",
        "--json",
    )
    assert [mail["content"] for mail in objects(team(*words).stdout)] == ["wanted"]


def test_without_json_a_message_is_one_line_that_no_text_can_break(team: Any) -> None:
    id = team("send", "--as", "anna", "--to", "bob", "one\n2025-01-01\tdirect\tcarl\x1b[2J").line
    (line,) = team("listen", "--as", "bob", "--timeout", "0s").stdout.splitlines()
    time, conversation, sender, message, text = line.split("\t")
    assert (conversation, sender, message) == ("direct_anna_bob", "anna", id) and time[10] == "T"
    assert text == "one\\n2025-01-01\\tdirect\\tcarl\\x1b[2J"
    (line,) = team("inbox", "--as", "bob").stdout.splitlines()
    assert line.split("\t")[:3] == ["direct_anna_bob", "1", "anna"]
    assert "anna" in team.terminal("listen", "--as", "bob", "--timeout", "0s")
    assert "direct_a" in team.terminal("inbox", "--as", "bob")


def test_history_gives_the_newest_messages_in_order_and_marks_nothing_read(team: Any) -> None:
    for number in range(3):
        team("send", "--as", "anna", "--to", "bob", f"message {number}")
    words = ("history", "direct_anna_bob", "--as", "bob")
    newest = team.json(*words, "--limit", "1")
    older = team.json(*words, "--limit", "1", "--before", newest["before"])
    assert [page["messages"][0]["content"] for page in (newest, older)] == [
        "message 2",
        "message 1",
    ]
    assert team.json(*words, "--after", older["after"])["messages"] == newest["messages"]
    assert "message 2" in team(*words).stdout
    assert team.json("inbox", "--as", "bob")["unread"] == 3
    team("history", "direct_anna_bob", "--as", "carl", expect=3)


def test_a_group_is_renamed_left_and_joined_again(team: Any) -> None:
    id = team("group", "new", "Release", "--as", "anna", "--with", "bob", "--history", "all").line
    assert (
        team("group", "set", id, "--name", "Release 2", "--as", "bob").stdout
        == f"{id}: renamed to 'Release 2'\n"
    )
    assert team("group", "leave", id, "--as", "bob").stdout == f"{id}: bob left\n"
    assert team.json("group", "list", "--as", "bob") == []
    assert (
        team("group", "add", id, "bob", "carl", "--as", "anna").stdout == f"{id}: added bob, carl\n"
    )
    (head,) = team.json("group", "list", "--as", "carl")
    assert (head["id"], head["title"], head["history"]) == (id, "Release 2", "all")
    (line,) = team("group", "list", "--as", "carl").stdout.splitlines()
    assert line.split("\t")[0] == id and line.split("\t")[2:] == ["anna,bob,carl", "Release 2"]
    team("group", "add", id, "nobody-here", "--as", "anna", expect=6)
    team("group", "add", id, "nobody-here", expect=3)
    assert (
        team.json("group", "set", id, "--name", "Release 3")["title"] == "Release 3"
    )  # The owner may, too.


def test_the_owner_makes_and_lists_groups(team: Any) -> None:
    id = team("group", "new", "Board", "--with", "bob,carl").line
    assert [head["id"] for head in team.json("group", "list")] == [id]
    assert team("group", "list").line.split("\t")[2:] == ["bob,carl", "Board"]
    team("group", "new", "Nobody", expect=2)


def test_an_agent_is_shown_says_what_it_does_and_is_forgotten(team: Any, tmp_path: Path) -> None:
    team("agent", "status", "builds the release", "--as", "anna")
    anna = team.json("agent", "show", "anna")
    assert (anna["id"], anna["statusMessage"], anna["online"]) == (
        "anna",
        "builds the release",
        False,
    )
    assert "builds the release" in team("agent", "show", "anna").stdout
    rows = [line.split("\t") for line in team("agent", "list").stdout.splitlines()]
    assert [row[0] for row in rows] == ["anna", "bob", "carl"] and rows[0][3] == str(
        tmp_path / "anna"
    )
    team("agent", "forget", "carl", "--yes")
    assert [agent["id"] for agent in team.json("agent", "list")] == ["anna", "bob"]
    team("agent", "show", "carl", expect=3)


def test_an_agent_gets_its_id_from_the_folder(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "Größe 1").mkdir()
    monkeypatch.chdir(tmp_path / "Größe 1")
    id = capsule("agent", "register").line
    assert capsule("agent", "register").line == id
    assert capsule.json("agent", "show", id)["projectPath"] == str(tmp_path / "Größe 1")


@pytest.mark.parametrize("words", ["inbox --as anna", "send hello --to bob --as anna"])
def test_messages_import_nothing_heavy(capsule: Any, words: str) -> None:
    for agent in ("anna", "bob"):
        capsule("agent", "register", "--as", agent)
    unused = {"subprocess", "capsule.engines.queries"}
    unused |= {"capsule.messaging.contacts", "capsule.messaging.receipts"}
    assert not ensure_light(capsule, words.split()) & unused


@pytest.mark.parametrize(
    "line",
    [
        "send hello --to bob --as anna --topic plans",
        "inbox --as bob --json",
        "agent wake hook claude-code Stop --as bob",
    ],
)
def test_a_plain_command_of_messaging_is_read_without_typer(line: str) -> None:
    assert fast_path.read(line.split())
