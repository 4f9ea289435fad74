"""What a session's shell may not run: what would act outside it, as the person."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import Store
from capsule.sessions.registry import Registry, SessionRecord
from capsule.sessions.session import Session
from capsule_cli.app import program
from capsule_cli.command_names import REFUSED
from tests.core.cli.conftest import Program

#: A call of each refused command.
CALLS = {
    "agent allow": "eve",
    "agent block": "eve",
    "agent forget": "eve --yes",
    "agent notify clean": "",
    "agent notify off": "",
    "agent notify on": "",
    "agent register": "--project .",
    "agent set": "eve --dm closed",
    "agent status": "x",
    "agent unblock": "eve",
    "agent wake install": "command --address=b.sh",
    "agent wake test": "",
    "agent wake uninstall": "command",
    "config apply": "",
    "config rollback": "1",
    "copy": ". elsewhere",
    "git commit": "",
    "git resolve": "plan",
    "git restore": "plan --at HEAD",
    "git setup": "",
    "git sync": "",
    "git teardown": "",
    "import": "x.json",
    "init": "elsewhere",
    "mcp install": "claude-code",
    "mcp servers remove": "plan files",
    "mcp servers set": "@next files on",
    "mcp servers toggle": "@next files",
    "mcp tokens add": "eve",
    "mcp tokens list": "",
    "mcp tokens revoke": "eve",
    "mcp uninstall": "claude-code",
    "project link": "a b",
    "project unlink": "a b",
    "store settings": "--set -",
    "trash purge": "--yes",
    "web": "--no-browser",
    "worker allow": "bot eve",
    "worker forbid": "bot eve",
    "worker host": "",
    "worker run": "--agent eve -- true",
    "worker set": "bot -- sh b.sh",
    "worker unwire": "bot plan",
    "worker webhook": "ci",
    "worker wire": "bot plan",
}
#: What registers nothing outside the session, or what the rule of the store decides about.
ALLOWED = {
    *(
        "agent discover",
        "agent list",
        "agent notify status",
        "agent requests",
        "agent show",
        "agent wake hook",
    ),
    *("append", "branch fork", "branch list", "branch regenerate", "branch switch", "branch trim"),
    *(
        "channel invite",
        "channel join",
        "channel leave",
        "channel list",
        "channel members",
        "channel mute",
    ),
    *(
        "channel new",
        "channel remove",
        "channel set",
        "channel show",
        "channel topics",
        "channel unmute",
    ),
    *("config history", "config plan"),
    *("context capture", "context check", "context clear", "context diff", "context show"),
    *("delete", "edit", "export", "git diff", "git log", "git status"),
    *("group add", "group leave", "group list", "group new", "group set"),
    *("help", "history", "inbox", "list", "listen", "lock list", "lock release", "lock take"),
    *(
        "mcp doctor",
        "mcp serve",
        "mcp servers list",
        "mention done",
        "mention list",
        "mention reopen",
    ),
    *("message edit", "message react", "message status", "new"),
    *("note list", "note search", "note share", "note unshare", "note write"),
    *("project list", "project show", "restore", "search", "send", "set", "show"),
    *(
        "store demo",
        "store doctor",
        "store migrate",
        "store reindex",
        "store schema",
        "store show",
        "store stats",
    ),
    *("store validate", "summarize", "trash list", "watch"),
    *(
        "worker cancel",
        "worker list",
        "worker pause",
        "worker resume",
        "worker retry",
        "worker show",
    ),
    *("worker status", "worker why"),
}


def test_each_command_is_refused_in_a_session_or_said_to_be_allowed_there() -> None:
    assert set(program().commands.all_names()) == REFUSED.keys() | ALLOWED
    assert not REFUSED.keys() & ALLOWED
    assert REFUSED.keys() == CALLS.keys()


@pytest.fixture
def in_session(capsule: Program, monkeypatch: pytest.MonkeyPatch) -> Program:
    """The program in the shell of a session of bot."""
    with Store.open(capsule.root) as store:
        for agent in ("bot", "eve"):
            store.agents.register(agent)
        store.create(title="Plan", id="plan")
        Registry(store.engine).edit(lambda state: state.put(SessionRecord("s1", "bot")))
        Session.create(store.engine, "s1", "bot")
    monkeypatch.setenv("CAPSULE_AGENT", "bot")
    monkeypatch.setenv("CAPSULE_SESSION", "s1")
    return capsule


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("command", REFUSED)
def test_a_session_registers_nothing_that_acts_outside_it(
    in_session: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    monkeypatch.chdir(tmp_path)
    before = everything(tmp_path)
    refused = in_session(*command.split(), *CALLS[command].split(), expect=6)
    assert f"`capsule {command}` is not for a session" in refused.stderr
    assert everything(tmp_path) == before


def test_a_command_that_runs_without_typer_is_refused_in_a_session_too(in_session: Program) -> None:
    for words in ("mcp tokens list", "agent notify on"):
        assert "is not for a session" in in_session.process(*words.split(), expect=6).stderr, words
