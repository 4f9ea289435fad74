"""`doctor --report`: what a bug report needs, and nothing that a person or an agent wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsule.maintenance import doctor
from tests.core.cli.conftest import Program

#: In everything that a report must not tell.
SECRET = "zebra"


@pytest.fixture
def secretive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program on a store all of whose texts, titles, names and paths have the secret word in
    them.
    """
    home = tmp_path / f"{SECRET}-home"
    home.mkdir()
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, f"{SECRET}-user")
    monkeypatch.setenv("HOME", str(home))
    capsule = Program(home / f"{SECRET}-store")
    capsule("init", str(capsule.root))
    monkeypatch.setenv("CAPSULE_STORE", str(capsule.root))
    settings = (
        f"{SECRET} = 1\nrooms = []\n[storage]\nappend = "
        f'"replace"\n[agents.{SECRET}-agent]\nallow = ["{SECRET}"]\n'
    )
    settings += f"[channels.{SECRET}-channel]\n[links]\n{SECRET} = ['{SECRET}']\n"
    (capsule.root / "capsule.toml").write_text(settings, encoding="utf-8")
    return capsule


def test_a_report_has_no_text_title_name_or_path_of_a_store_in_trouble(secretive: Any) -> None:
    capsule = secretive
    id = capsule.new(
        f"{SECRET} title",
        "--tag",
        f"{SECRET}-tag",
        "--message",
        f"a {SECRET} text",
        "--id",
        f"{SECRET}-1",
    )
    capsule("append", id, f"another {SECRET}", "--from", f"{SECRET}-agent", "--role", "assistant")
    capsule("lock", "take", id, "--instance", f"{SECRET}-instance")
    capsule.file(f"{SECRET}-broken").write_text(f'{{"title": {SECRET}}}', encoding="utf-8")
    capsule.file(f"{SECRET}-torn").write_bytes(capsule.file(id).read_bytes()[:-20])
    capsule.file(f"{SECRET}-1 (conflicted copy of {SECRET})").write_bytes(
        capsule.file(id).read_bytes()
    )
    agents = capsule.root / "agents"
    agents.mkdir()
    (agents / f"{SECRET}-agent.json").write_text(f'{{"id": "{SECRET}"', encoding="utf-8")
    assert SECRET in capsule("doctor", expect=5).stdout
    text = capsule("doctor", "--report", expect=5).stdout
    facts = capsule.json("doctor", "--report", expect=5)
    for said in (text, json.dumps(facts)):
        assert SECRET not in said.lower() and str(capsule.root.parent) not in said
    assert facts["documents"]["conversations"] == 4 and facts["documents"]["agents"] == 1
    assert facts["named"] | {"agents": 1, "channels": 1, "links": 1, "unknown": 1} == facts["named"]
    assert facts["findings"]["damaged"] >= 2 and facts["exitCode"] == 5
    assert facts["locks"] == {"held": 1}


@pytest.mark.files
def test_a_report_of_a_sound_store_has_counts_sizes_and_settings(capsule: Any) -> None:
    ids = [capsule.new("A", "--message", "x" * size) for size in (1, 10_000, 100)]
    facts = capsule.json("doctor", "--report")
    sizes = sorted(capsule.file(id).stat().st_size for id in ids)
    assert facts["bytes"] == {"all": sum(sizes), "largest": sizes[2], "median": sizes[1]}
    assert facts["index"] == {"kept": True, "conversations": 3, "damaged": 0, "messages": 3}
    assert facts["settings"]["append"] == "splice" and facts["engine"] == "FilesEngine"
    assert facts["versions"] == capsule.json("--version")
    assert (facts["findings"], facts["locks"], facts["completed"], facts["exitCode"]) == (
        {},
        {},
        0,
        0,
    )
    lines = capsule("doctor", "--report").stdout.splitlines()
    assert "index.messages: 3" in lines and "findings: none" in lines and "instances: 0" in lines


def test_a_report_of_a_store_that_cannot_be_opened_says_by_which_error(secretive: Any) -> None:
    (secretive.root / "capsule.toml").write_text(f"{SECRET} = [", encoding="utf-8")
    answer = secretive("doctor", "--report", expect=5)
    assert "error: InvalidDocument" in answer.stdout and "versions.python" in answer.stdout
    assert SECRET not in answer.stdout


def test_a_report_is_no_repair(capsule: Any) -> None:
    for other in ("--repair", "--flush"):
        assert "--report" in capsule("doctor", "--report", other, expect=2).stderr


def test_a_report_says_whether_the_index_is_kept(capsule: Any) -> None:
    capsule.new("A")
    (capsule.root / ".capsule" / "index.sqlite3").unlink(missing_ok=True)
    (capsule.root / ".capsule" / "index.sqlite3").mkdir()
    facts = capsule.json("doctor", "--report")
    assert facts["index"]["kept"] is False and facts["index"]["conversations"] == 1


def test_an_unexpected_error_in_one_document_is_a_finding_and_its_places_in_the_code_are_in_the_report(
    secretive: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise KeyError(f"{SECRET}-key")

    monkeypatch.setattr(doctor, "collect_sources", fail)
    secretive.file(secretive.new("A", "--message", "one")).write_text("{", encoding="utf-8")
    (secretive.root / "agents").mkdir()
    (secretive.root / "agents" / "anna.json").write_text("{", encoding="utf-8")
    for words in ((), ("--repair",)):
        found = secretive.json("doctor", *words, expect=5)["findings"]
        assert {"failed", "damaged"} <= {one["kind"] for one in found}
    report = secretive.json("doctor", "--report", expect=5)
    (failure,) = report["failures"]
    assert (
        failure.startswith("KeyError < ")
        and "capsule.maintenance.doctor:" in failure
        and SECRET not in failure
    )
    assert report["findings"]["failed"] == 1
    assert "failures: KeyError < " in secretive("doctor", "--report", expect=5).stdout
