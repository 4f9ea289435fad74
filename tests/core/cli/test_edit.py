"""`edit`, as visudo does it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def plan(capsule: Any) -> str:
    id: str = capsule.new("A plan", "--message", "first")
    capsule("append", id, "second")
    return id


def test_what_the_person_saves_is_written(
    capsule: Any, plan: str, editor: Any, tmp_path: Path
) -> None:
    editor(f'ls -l "$1" > "{tmp_path}/seen"; sed -i.bak \'s/"A plan"/"B plan"/\' "$1"; rm "$1.bak"')
    assert capsule("edit", plan).stdout == f"{plan}: saved\n"
    assert capsule.json("list")[0]["title"] == "B plan"
    seen = (tmp_path / "seen").read_text(encoding="utf-8")
    assert seen.startswith("-rw-------")
    assert seen.strip().endswith(f"-{plan}.json")
    assert capsule.json("lock", "list") == []
    assert not Path(seen[seen.index("/") :].strip()).exists()


def test_visual_goes_before_editor_and_both_may_have_arguments(
    capsule: Any, plan: str, editor: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = editor('shift 2; echo "$#" > "$HOME/count"')
    monkeypatch.setenv("VISUAL", f"'{script}' -f -w")
    monkeypatch.setenv("EDITOR", "false")
    capsule("edit", plan)
    assert (Path.home() / "count").read_text(encoding="utf-8") == "1\n"


def test_an_editor_that_fails_changes_nothing(capsule: Any, plan: str, editor: Any) -> None:
    before = capsule.file(plan).read_bytes()
    editor('echo typed > "$1"; exit 3')
    answer = capsule("edit", plan, expect=1)
    assert "exit code 3; nothing was changed" in answer.stderr
    assert _kept(answer.stderr).read_text(encoding="utf-8") == "typed\n"
    _kept(answer.stderr).unlink()
    assert _but_times(capsule.file(plan).read_bytes()) == _but_times(before)
    assert capsule.json("lock", "list") == []


def test_saving_nothing_is_said_and_changes_nothing(capsule: Any, plan: str, editor: Any) -> None:
    before = capsule.file(plan).read_bytes()
    editor("true")
    assert capsule("edit", plan).stdout == f"{plan}: nothing changed\n"
    assert capsule.json("edit", plan)["changed"] is False
    assert _but_times(capsule.file(plan).read_bytes()) == _but_times(before)


def _kept(told: str) -> Path:
    """The copy that stayed with what was typed."""
    return Path(re.search(r"is kept in (/\S+)", told)[1])


def _but_times(data: bytes) -> Any:
    document = json.loads(data)
    document["metadata"].pop("lock")
    return document


def test_what_does_not_parse_is_shown_with_its_place_and_kept(
    capsule: Any, plan: str, editor: Any
) -> None:
    before = capsule.file(plan).read_bytes()
    editor('printf \'{\\n  "id": oops\\n}\' > "$1"')
    answer = capsule("edit", plan, expect=5)
    kept = _kept(answer.stderr)
    assert f"{kept}:2:9: " in answer.stderr
    assert kept.read_bytes().endswith(b"oops\n}") and kept.stat().st_mode & 0o777 == 0o600
    kept.unlink()
    assert _but_times(capsule.file(plan).read_bytes()) == _but_times(before)


def test_what_is_no_capsule_is_refused_by_its_field(capsule: Any, plan: str, editor: Any) -> None:
    editor('sed -i.bak \'s/"role": "user"/"role": 5/\' "$1"; rm "$1.bak"')
    assert "history[0].role" in capsule("edit", plan, expect=5).stderr
    assert [message["content"] for message in capsule.history(plan)] == ["first", "second"]


def test_at_a_terminal_the_person_edits_again_until_it_is_valid(
    capsule: Any, plan: str, editor: Any
) -> None:
    editor(
        'if grep -q \'"A plan"\' "$1"; then sed -i.bak \'s/"A plan"/oops/\' "$1"; '
        'else sed -i.bak \'s/oops/"C plan"/\' "$1"; fi; rm "$1.bak"'
    )
    screen = capsule.terminal("edit", plan, typed="e\n")
    assert ":3:12: " in screen
    assert "saved" in screen
    assert capsule.json("list")[0]["title"] == "C plan"


def test_a_message_that_is_not_accepted_is_edited_again_or_kept(
    capsule: Any, plan: str, editor: Any
) -> None:
    editor('if grep -q first "$1"; then echo > "$1"; else echo better > "$1"; fi')
    assert "empty" in capsule.terminal("edit", plan, "--which", "@0", typed="e\n")
    assert capsule.history(plan)[0]["content"] == "better"
    editor('printf "\\377" > "$1"')
    kept = _kept(capsule.terminal("edit", plan, "--which", "@0", typed="q\n", expect=2))
    assert kept.read_bytes() == b"\xff"
    kept.unlink()


def test_at_a_terminal_the_person_may_quit_and_keeps_the_copy(
    capsule: Any, plan: str, editor: Any
) -> None:
    editor('echo typed > "$1"')
    kept = _kept(capsule.terminal("edit", plan, typed="q\n", expect=5))
    assert kept.read_text(encoding="utf-8") == "typed\n"
    kept.unlink()
    assert capsule.json("list")[0]["title"] == "A plan" and capsule.json("lock", "list") == []


@pytest.mark.files
def test_nobody_writes_while_the_editor_is_open_and_a_locked_one_is_not_opened(
    capsule: Any, plan: str, editor: Any, tmp_path: Path
) -> None:
    editor(f'cp "$CAPSULE_STORE/conversations/{plan}.json" "{tmp_path}/during"')
    capsule("edit", plan)
    assert json.loads((tmp_path / "during").read_bytes())["metadata"]["lock"]["active"] is True
    editor(f'touch "{tmp_path}/opened"')
    capsule("lock", "take", plan, "--instance", "other")
    capsule("edit", plan, expect=4)
    assert not (tmp_path / "opened").exists()


def test_a_named_holder_keeps_its_lock_after_editing(capsule: Any, plan: str, editor: Any) -> None:
    capsule("lock", "take", plan, "--instance", "me")
    editor('sed -i.bak \'s/"A plan"/"B plan"/\' "$1"; rm "$1.bak"')
    capsule("edit", plan, "--instance", "me")
    assert [lock["name"] for lock in capsule.json("lock", "list")] == ["me"]


def test_one_message_is_edited_by_its_id_or_place(capsule: Any, plan: str) -> None:
    id = capsule.history(plan)[1]["id"]
    beginning = id[:20] if id[:20] not in capsule.history(plan)[0]["id"] else id
    for named in ("@1", "@last", id, beginning):
        capsule("edit", plan, "--which", named, f"changed by {named}")
        assert (
            "nothing changed"
            in capsule("edit", plan, "--which", named, f"changed by {named}").stdout
        )
        first, second = capsule.history(plan)
        assert second["content"] == f"changed by {named}"
        assert "editedAt" in second and "editedAt" not in first
    assert ", edited  @1" in capsule("show", plan).stdout


def test_a_messages_text_comes_from_standard_input_or_the_editor(
    capsule: Any, plan: str, editor: Any
) -> None:
    told = json.loads(capsule("edit", plan, "--which", "@0", "--json", input="from stdin\n").stdout)
    assert told == {"changed": True, "id": capsule.history(plan)[0]["id"], "at": 0}
    assert capsule.history(plan)[0]["content"] == "from stdin"
    editor('cat "$1" > "$HOME/seen"; echo "from the editor" > "$1"')
    capsule.terminal("edit", plan, "--which", "@0")
    assert (Path.home() / "seen").read_text(encoding="utf-8") == "from stdin\n"
    assert capsule.history(plan)[0]["content"] == "from the editor"
    editor("true")
    assert "nothing changed" in capsule.terminal("edit", plan, "--which", "@0")


def test_what_can_not_be_edited_is_an_error(capsule: Any, plan: str) -> None:
    for words, code in (
        ((plan, "--which", "@9", "x"), 3),
        (("nobody",), 3),
        ((plan, "a text without --which"), 2),
        ((plan, "--which", "@0", ""), 2),
        ((plan, "--beside"), 2),
    ):
        capsule("edit", *words, expect=code)
