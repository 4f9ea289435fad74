"""Our hooks in the settings of programs: put in, taken out, everything else kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsule.errors import InvalidDocument, InvalidInput
from capsule.mcp_server.clients import settings
from capsule.mcp_server.clients.settings import MachinePaths
from capsule.messaging.doorbells import HOOK_EVENTS
from capsule.messaging.tools import hook_settings
from capsule.messaging.tools.hook_settings import HOOKED

CLAUDE, CODEX, GEMINI = HOOKED
PROGRAM = ["/opt/my tools/capsule"]


def path_of(places: MachinePaths) -> Path:
    path = Path(places.home, ".claude", "settings.json")
    path.parent.mkdir(exist_ok=True)
    return path


def install(places: MachinePaths, *options: str) -> dict[str, Any]:
    plan = hook_settings.install(CLAUDE, "user", places, PROGRAM, options)
    settings.apply(plan, places, f"{places.home}/copies")
    held: dict[str, Any] = json.loads(path_of(places).read_text())
    return held


def uninstall(places: MachinePaths) -> str:
    settings.apply(hook_settings.uninstall(CLAUDE, "user", places), places, f"{places.home}/copies")
    return path_of(places).read_text()


@pytest.mark.parametrize("client", HOOKED, ids=lambda client: client.name)
def test_each_event_of_a_client_gets_one_command(client: Any, places: MachinePaths) -> None:
    plan = hook_settings.install(client, "user", places, PROGRAM, ["--as", "bob"])
    assert plan.before is None
    held = json.loads(plan.after or "")["hooks"]
    assert held.keys() == HOOK_EVENTS[client.name].keys()
    for event, [group] in held.items():
        [handler] = group["hooks"]
        command = f"'/opt/my tools/capsule' agent wake hook {client.name} {event} --as bob"
        assert handler == {"type": "command", "command": command, **HOOK_EVENTS[client.name][event]}


def test_claude_code_is_woken_by_its_stop_hook_alone(places: MachinePaths) -> None:
    held = install(places)["hooks"]
    waits = {
        event: handlers[0]["hooks"][0]
        for event, handlers in held.items()
        if "asyncRewake" in str(handlers)
    }
    assert waits.keys() == {"Stop"}
    assert (waits["Stop"]["asyncRewake"], waits["Stop"]["timeout"]) == (True, 28800)


@pytest.mark.parametrize(
    "before",
    [
        "{}\n",
        (
            '{"model": "opus", "hooks": {"Stop": [{"hooks": [{"type": "command", "command": '
            '"mine"}]}]}}'
        ),
        (
            '{\n\t"hooks": {\n\t\t"PreToolUse": [{"matcher": "Bash", "hooks": []}]\n\t},\n\t"a": '
            "1\n}\n"
        ),
        (
            '{"hooks": {"disabled": ["x"], "Stop": [{"hooks": [{"type": "prompt", "prompt": "capsule '
            'agent wake"}]}]}}'
        ),
    ],
)
def test_what_is_taken_out_again_leaves_what_was_there(places: MachinePaths, before: str) -> None:
    path_of(places).write_text(before)
    held = install(places)
    assert {name: held[name] for name in json.loads(before) if name != "hooks"} == {
        name: value for name, value in json.loads(before).items() if name != "hooks"
    }
    for event, groups in json.loads(before).get("hooks", {}).items():
        assert held["hooks"][event][: len(groups)] == groups
    assert json.loads(uninstall(places)) == json.loads(before)


def test_a_second_install_changes_nothing_and_another_one_replaces_ours(
    places: MachinePaths,
) -> None:
    install(places, "--as", "bob")
    assert not hook_settings.install(CLAUDE, "user", places, PROGRAM, ["--as", "bob"]).has_effect
    held = install(places, "--as", "carl")
    assert [len(groups) for groups in held["hooks"].values()] == [1, 1, 1, 1]
    assert "--as bob" not in json.dumps(held)


def test_our_hook_in_a_group_with_others_is_taken_out_of_it(places: MachinePaths) -> None:
    held = install(places)
    held["hooks"]["Stop"][0]["hooks"].append({"type": "command", "command": "mine"})
    path_of(places).write_text(json.dumps(held))
    after = {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": "mine"}]}]}}
    assert json.loads(uninstall(places)) == after


def test_settings_with_comments_are_left_and_what_to_paste_is_said(places: MachinePaths) -> None:
    path_of(places).write_text('{\n  // mine\n  "model": "opus"\n}\n')
    plan = hook_settings.install(CLAUDE, "user", places, PROGRAM, [])
    assert not plan.has_effect
    assert json.loads(plan.paste)["hooks"].keys() == HOOK_EVENTS["claude-code"].keys()
    path_of(places).write_text("// mine\n" + plan.paste)
    plan = hook_settings.uninstall(CLAUDE, "user", places)
    assert not plan.has_effect
    assert "agent wake hook" in plan.paste


def test_a_project_gets_its_hooks_where_nobody_commits_them(places: MachinePaths) -> None:
    plan = hook_settings.install(CLAUDE, "project", places, PROGRAM, [])
    assert plan.path == f"{places.project}/.claude/settings.local.json"


@pytest.mark.parametrize(
    "text", ['{"hooks": []}', '{"hooks": {"Stop": {"hooks": []}}}', '{"hooks": {"Stop": [1]}}']
)
def test_hooks_that_are_something_else_are_an_error_and_stay(
    places: MachinePaths, text: str
) -> None:
    path_of(places).write_text(text)
    for change in (
        lambda: hook_settings.install(CLAUDE, "user", places, PROGRAM, []),
        lambda: uninstall(places),
    ):
        with pytest.raises(InvalidDocument):
            change()
    assert path_of(places).read_text() == text


def test_a_word_that_a_program_would_read_as_a_variable_is_refused(places: MachinePaths) -> None:
    with pytest.raises(InvalidInput):
        hook_settings.install(GEMINI, "user", places, PROGRAM, ["--store", "/home/$USER"])


def test_codex_has_its_hooks_in_a_file_of_their_own(places: MachinePaths) -> None:
    assert (
        hook_settings.install(CODEX, "user", places, PROGRAM, []).path
        == f"{places.home}/.codex/hooks.json"
    )
