"""`doctor`, `validate`, `migrate`, `schema`."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from capsule.disk.syscalls import Syscalls
from tests.core.storage.faults import cut_power

FOREIGN = "7d444840-9dc0-11d1-b245-5ffdce74fad2"
BROKEN = '{\n  "id": "broken-1",\n  "title": oops\n}'


def test_doctor_finds_what_is_wrong_and_says_so_in_its_exit_code(capsule: Any) -> None:
    capsule.file("broken-1").write_text(BROKEN, encoding="utf-8")
    answer = capsule("doctor", expect=5)
    assert (
        answer.stdout.startswith(f"{capsule.file('broken-1')}:3:12: ")
        and "1 finding" in answer.stdout
    )
    told = capsule.json("doctor", expect=5)
    assert (told["ok"], told["findings"][0]["line"], told["findings"][0]["repaired"]) == (
        False,
        3,
        None,
    )
    for words in ((), ("--repair",), ()):
        assert "--repair repairs what it can" not in capsule("doctor", *words, expect=5).stdout
    assert capsule.file("broken-1").read_text(encoding="utf-8") == BROKEN


def test_doctor_mends_what_can_be_mended_and_keeps_the_original(capsule: Any) -> None:
    id = capsule.new("A", "--message", "one")
    capsule("append", id, "two")
    path = capsule.file(id)
    torn = path.read_bytes()[:-20]
    path.write_bytes(torn)
    assert (
        "--repair repairs what it can" in capsule("doctor", expect=5).stdout
        and path.read_bytes() == torn
    )
    assert "1 repaired" in capsule("doctor", "--repair").stdout
    assert any(
        torn == kept.read_bytes()
        for kept in (capsule.root / ".capsule" / "quarantine").rglob("*")
        if kept.is_file()
    )
    capsule("doctor")


def test_doctor_says_how_many_documents_it_completed_after_a_power_cut(capsule: Any) -> None:
    ids = [capsule.new(title, "--message", "one") for title in "AB"]
    for words in ((), ("--flush",)):
        for id in ids:
            cut_power(capsule.root, id, "acknowledged")
        assert "2 documents" in capsule("doctor", *words).stdout
        assert "power" not in capsule("doctor", *words).stdout
        for id in ids:
            cut_power(capsule.root, id, "acknowledged")
        assert capsule.json("doctor", *words)["completed"] == 2
        assert capsule.json("doctor", *words)["completed"] == 0
    assert [len(capsule.history(id)) for id in ids] == [5, 5]


def test_doctor_only_flushes_when_asked_to_and_fails_if_it_cannot(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    capsule.file("broken-1").write_text(BROKEN, encoding="utf-8")
    assert "on the disk" in capsule("doctor", "--flush").stdout
    assert "--flush" in capsule("doctor", "--flush", "--repair", expect=2).stderr

    def fail(*args: object) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    id = capsule.new("A", "--message", "one")
    cut_power(capsule.root, id, "acknowledged")
    monkeypatch.setattr(Syscalls, "fsync", fail)
    error = json.loads(capsule("doctor", "--flush", "--json", expect=1).stderr)["error"]
    assert (error["kind"], id in error["path"]) == ("StorageFailed", True)
    answer = capsule("doctor", expect=5)
    assert id in answer.stderr and "broken-1" in answer.stdout


def test_validate_works_outside_a_store_and_names_each_problem(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, samples: Path
) -> None:
    monkeypatch.setenv("CAPSULE_STORE", "/nowhere")
    folder = tmp_path / "some where"
    (folder / "deep").mkdir(parents=True)
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "x.json").write_text("{", encoding="utf-8")
    (folder / "notes.txt").write_text("{", encoding="utf-8")
    (folder / "fine.json").write_bytes((samples / f"{FOREIGN}.json").read_bytes())
    answer = capsule("store", "validate", str(folder))
    assert (answer.stdout, answer.stderr) == ("", "capsule: 1 file checked: all valid\n")
    (folder / "deep" / "bad.json").write_text(BROKEN, encoding="utf-8")
    (folder / "wrong.json").write_text('{"id": 5, "history": {}}', encoding="utf-8")
    answer = capsule("store", "validate", str(folder), expect=5)
    assert f"{folder / 'deep' / 'bad.json'}:3:12: " in answer.stdout
    assert f"{folder / 'wrong.json'}:1:8: id: " in answer.stdout
    told = capsule.json(
        "store", "validate", str(folder / "deep" / "bad.json"), str(folder / "fine.json"), expect=5
    )
    assert (told["ok"], told["files"]) == (False, 2)
    assert set(told["problems"][0]) == {"path", "line", "column", "where", "what"}


def test_validate_names_what_is_no_file_and_reads_what_is_no_utf8(
    capsule: Any, tmp_path: Path
) -> None:
    capsule("store", "validate", str(tmp_path / "nothing.json"), expect=3)
    os.mkfifo(tmp_path / "pipe.json")
    (tmp_path / "latin.json").write_bytes(b'{"id": "caf\xe9"}')
    (tmp_path / "loop.json").symlink_to("loop.json")
    answer = capsule(
        "store", "validate", str(tmp_path / "pipe.json"), str(tmp_path / "latin.json"), expect=5
    )
    assert "pipe.json: is not a regular file" in answer.stdout
    assert "latin.json:1:12: byte 0xe9" in answer.stdout
    assert (
        "loop.json: " in capsule("store", "validate", str(tmp_path / "loop.json"), expect=5).stdout
    )


def test_bad_files_are_told_by_place_and_never_change(capsule: Any) -> None:
    for data in [b"", b"no json", b'{"id":"a","id":"b"}', b"\xff\xfe{\0}\0", b"[" * 100_000]:
        path = capsule.file("bad-1")
        path.write_bytes(data)
        assert f"{path}:" in capsule("store", "validate", str(path), expect=5).stdout
        for words in (("show", "bad-1"), ("append", "bad-1", "x"), ("store", "migrate", "bad-1")):
            assert str(path) in capsule(*words, expect=5).stderr
        assert path.read_bytes() == data


def test_the_registry_of_the_sessions_is_checked_as_one(capsule: Any) -> None:
    path = capsule.root / "sessions" / "registry.json"
    path.parent.mkdir()
    path.write_text('{"id": "registry", "agents": {}}', "utf-8")
    assert capsule.json("store", "validate", str(path))["files"] == 1
    files = capsule.json("store", "validate")["files"]
    path.write_text('{"id": "registry", "agents": 1}', "utf-8")
    for words in ([str(path)], []):
        assert (
            "registry.json:1:30: agents: " in capsule("store", "validate", *words, expect=5).stdout
        )
    path.unlink()
    assert capsule.json("store", "validate")["files"] == files - 1


def test_documents_without_a_history_are_checked_as_what_they_are(capsule: Any) -> None:
    folder = capsule.root / "agents"
    folder.mkdir(exist_ok=True)
    (folder / "anna.json").write_text('{"id": "anna", "mine": 1}', encoding="utf-8")
    assert capsule.json("store", "validate")["files"] == 1
    capsule("doctor")
    (folder / "bob.json").write_text(
        '{\n  "id": "bob",\n  "notifications": "on"\n}', encoding="utf-8"
    )
    (folder / "carl.json").write_text('{\n  "id": "dave"\n}', encoding="utf-8")
    (folder / "eve.json").symlink_to("anna.json")
    (folder / ".anna.tmp").write_bytes(b"half of i")
    (capsule.root / "projects").mkdir(exist_ok=True)
    (capsule.root / "projects" / "api-123456.json").write_text(
        '{"id": "api-123456", "links": 1}', encoding="utf-8"
    )
    wrong = f"{folder / 'bob.json'}:3:20: "
    assert (
        f"{wrong}notifications: must be true or false"
        in capsule("store", "validate", str(folder), expect=5).stdout
    )
    assert wrong in capsule("store", "validate", expect=5).stdout
    found = {
        (one["id"], one["kind"], one["line"])
        for one in capsule.json("doctor", expect=5)["findings"]
    }
    agents = {
        ("bob", "damaged", 3),
        ("carl", "name", 2),
        ("eve", "damaged", 0),
        ("anna", "leftover", 0),
    }
    assert found == {*agents, ("api-123456", "damaged", 1)}
    capsule("doctor", "--repair", expect=5)
    assert {path.name for path in folder.iterdir()} == {
        "anna.json",
        "bob.json",
        "carl.json",
        "eve.json",
    }
    assert (folder / "anna.json").read_text(encoding="utf-8") == '{"id": "anna", "mine": 1}'


def test_migrate_brings_a_foreign_capsule_up_to_date_and_check_only_says_so(
    capsule: Any, samples: Path
) -> None:
    data = (samples / f"{FOREIGN}.json").read_bytes()
    capsule.file(FOREIGN).write_bytes(data)
    current = capsule.new("A")
    answer = capsule("store", "migrate", "--check", expect=1)
    assert f"{FOREIGN}: " in answer.stdout
    assert f"{current}: " not in answer.stdout
    assert capsule.file(FOREIGN).read_bytes() == data
    told = {
        one["id"]: one["changes"] for one in capsule.json("store", "migrate", FOREIGN[:8], current)
    }
    assert told[FOREIGN]
    assert told[current] == []
    assert json.loads(capsule.file(FOREIGN).read_bytes())["version"] == "2.1"
    assert b"12345678901234567890123" in capsule.file(FOREIGN).read_bytes()
    assert capsule("store", "migrate", "--check").stdout == "2 conversations: 0 would change\n"


def test_migrate_takes_paths_in_a_store_and_outside_of_one(
    capsule: Any, samples: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "loose"
    folder.mkdir()
    loose, current = folder / "any name.json", capsule.new("Current", "--message", "hello")
    loose.write_bytes((samples / f"{FOREIGN}.json").read_bytes())
    loose.chmod(0o640)
    (folder / "broken.json").write_text("{", encoding="utf-8")
    inside = capsule.file(FOREIGN)
    inside.write_bytes(loose.read_bytes())
    told = capsule.json("store", "migrate", str(folder), str(inside), "--check", expect=5)
    assert [bool(one["changes"]) for one in told] == [True, False, True] and "error" in told[1]
    assert loose.read_bytes() == inside.read_bytes()
    capsule("store", "migrate", str(loose), str(inside), current)
    for path in (loose, inside):
        document = json.loads(path.read_bytes())
        assert document["version"] == "2.1" and all("id" in entry for entry in document["history"])
    assert loose.stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in folder.iterdir()) == ["any name.json", "broken.json"]
    capsule("store", "migrate", str(loose), "--check")
    capsule("store", "migrate", str(tmp_path / "nowhere.json"), expect=3)


def test_migrate_goes_on_after_a_damaged_file_and_fails_in_the_end(
    capsule: Any, samples: Path
) -> None:
    capsule.file(FOREIGN).write_bytes((samples / f"{FOREIGN}.json").read_bytes())
    capsule.file("0-broken").write_text(BROKEN, encoding="utf-8")
    answer = capsule("store", "migrate", expect=5)
    assert "0-broken.json:3:12" in answer.stderr and "1 failed" in answer.stdout
    assert json.loads(capsule.file(FOREIGN).read_bytes())["version"] == "2.1"


def test_schema_prints_what_the_repository_holds(capsule: Any, repository: Path) -> None:
    for words, name in (
        ((), "capsule-2.1"),
        (("capsule", "--format-version", "2.0", "--json"), "capsule-2.0"),
        (("agent",), "agent-2.1"),
        (("overrides",), "overrides-2.1"),
    ):
        assert capsule("store", "schema", *words).stdout == (
            repository / "schemas" / f"{name}.json"
        ).read_text(encoding="utf-8")
    assert (
        "capsule, agent, project, overrides" in capsule("store", "schema", "poem", expect=3).stderr
    )
    assert "2.1" in capsule("store", "schema", "--format-version", "9.9", expect=3).stderr


@pytest.mark.slow
@pytest.mark.files
def test_long_work_shows_its_progress_in_a_terminal_and_only_there(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsule_cli.shared.output._BAR_DELAY_S", -1)
    capsule.new("A")
    for name, what in (
        ("doctor", "examining"),
        ("migrate", "migrating"),
        ("validate", "validating"),
    ):
        assert what in capsule.terminal("store", name, has_bars=True)
        assert what not in capsule("store", name).stderr


def test_a_store_of_a_newer_format_is_refused_with_what_to_do(capsule: Any, tmp_path: Path) -> None:
    root = tmp_path / "newer"
    capsule("init", str(root))
    capsule("--store", str(root), "new", "--id", "plan")
    record = root / ".capsule" / "format.json"
    record.write_text(
        json.dumps({"format": json.loads(record.read_bytes())["format"] + 1, "version": "9.8.7"})
    )
    for command in (["list"], ["show", "plan"], ["append", "plan", "two"], ["doctor"]):
        message = capsule("--store", str(root), *command, expect=6).stderr
        assert (
            "run this with the newer one, and then delete those files: capsule doctor --flush"
            in message
        )
