"""Overrides of MCP servers, of a conversation and for the next one."""

from __future__ import annotations

import errno
import logging
import random
import threading
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import InvalidDocument, InvalidInput, Store
from capsule.format.validation import CONVERSATION
from capsule.maintenance.doctor import examine
from capsule.store.creation import write_new
from tests.core.storage.faults import Faulty, store_on
from tests.core.store.files import by_hand, file_of
from tests.torture.filesystem import Disk, Rebooted, Recorder, materialise


def servers(store: Store, id: str) -> Any:
    return store.document(id)["metadata"].get("mcpServers")


def test_the_file_has_only_servers_that_were_switched(store: Store) -> None:
    id = store.create(title="Plan").id
    assert servers(store, id) is None
    assert store.servers.set(id, {"git": False, "web": True}) == {"git": False, "web": True}
    assert servers(store, id) == {"git": {"enabled": False}, "web": {"enabled": True}}
    assert store.servers.toggle(id, "git") == {"git": True, "web": True}
    assert store.servers.toggle(id, "mail") == {"git": True, "web": True, "mail": False}
    assert store.servers.set(id, {"git": None, "nobody": None}) == {"web": True, "mail": False}
    assert store.servers.get(id) == {"web": True, "mail": False}
    store.servers.set(id, {"web": None, "mail": None})
    assert servers(store, id) is None
    assert store.load(id).metadata.mcp_servers is None


def test_heads_from_the_file_and_from_the_index_have_the_overrides(
    root: Path, store: Store
) -> None:
    id = store.create(title="Plan").id
    assert next(iter(store.heads())).mcp_servers == {}
    cursor = store.changes().cursor
    head = store.update(id, mcp_servers={"git": False, "web": True})
    assert head.mcp_servers == {"git": False, "web": True}
    assert head.as_json()["mcpServers"] == {"git": {"enabled": False}, "web": {"enabled": True}}
    assert (
        store.head(id) == next(iter(store.heads()))
        and store.head(id).mcp_servers == head.mcp_servers
    )
    assert [change.fields for change in store.changes(cursor).changes if change.kind == "head"] == [
        ("mcp_servers",)
    ]
    by_hand(root, id, lambda document: document["metadata"].update(mcpServers=["git"]))
    assert store.head(id).mcp_servers == next(iter(store.heads())).mcp_servers == {"git": True}
    by_hand(root, id, lambda document: document["metadata"].update(mcpServers={"git": 1}))
    with pytest.raises(InvalidDocument):
        store.head(id)
    assert "mcpServers" in next(iter(store.heads())).damaged


def test_other_fields_of_an_override_survive(root: Path, store: Store) -> None:
    id = store.create(title="Plan").id
    by_hand(
        root,
        id,
        lambda document: document["metadata"].update(
            mcpServers={"git": {"why": "mine", "enabled": True}}
        ),
    )
    store.servers.toggle(id, "git")
    assert servers(store, id) == {"git": {"why": "mine", "enabled": False}}


def test_a_list_of_names_is_accepted_and_reported_until_it_is_changed(
    root: Path, store: Store
) -> None:
    id = store.create(title="Plan").id
    by_hand(root, id, lambda document: document["metadata"].update(mcpServers=["git", "web"]))
    assert store.servers.get(id) == {"git": True, "web": True}
    assert [
        problem.where for problem in CONVERSATION.problems_of(file_of(root, id).read_bytes(), "x")
    ] == ["metadata.mcpServers"]
    store.rename(id, "Other")
    assert servers(store, id) == ["git", "web"]
    assert store.load(id).metadata.mcp_servers == ["git", "web"]
    store.servers.toggle(id, "web")
    assert servers(store, id) == {"git": {"enabled": True}, "web": {"enabled": False}}
    assert CONVERSATION.problems_of(file_of(root, id).read_bytes(), "x") == []


def test_overrides_of_another_shape_make_a_file_invalid(root: Path, store: Store) -> None:
    for wrong in [{"git": True}, {"git": {}}, {"git": {"enabled": 1}}, [1], "git"]:
        id = store.create(title="Plan").id
        by_hand(root, id, lambda document: document["metadata"].update(mcpServers=wrong))
        with pytest.raises(
            InvalidDocument,
            match=r'metadata.mcpServers: must be an object of names, each with \{"enabled"',
        ):
            store.servers.get(id)


def test_an_invalid_server_name_is_refused_and_changes_nothing(store: Store) -> None:
    for name in ["", " ", "a\nb", "x" * 201]:
        id = store.create(title="Plan").id
        before = store.read(id)
        for call in (
            lambda: store.servers.set(id, {name: True}),
            lambda: store.servers.toggle(id, name),
            lambda: store.servers.set(None, {name: True}),
            lambda: store.update(id, mcp_servers={name: True}),
        ):
            with pytest.raises(InvalidInput, match="not a name of an MCP server"):
                call()
        with pytest.raises(InvalidInput, match=r"mcpServers.git: must be true, false or null"):
            store.update(id, mcp_servers={"git": "yes"})
        assert store.read(id) == before


def test_the_next_conversation_alone_gets_the_pending_overrides(store: Store) -> None:
    assert store.servers.get(None) == {}
    store.servers.set(None, {"git": False})
    assert store.servers.toggle(None, "web") == {"git": False, "web": False}
    store.summaries.add(store.create(title="Next").id, "A summary is none that somebody begins.")
    first = next(head for head in store.heads() if head.title == "Next")
    assert store.servers.get(first.id) == {"git": False, "web": False}
    assert store.servers.get(None) == {}
    assert servers(store, store.create(title="After").id) is None


def test_a_failed_creation_leaves_the_pending_overrides(store: Store) -> None:
    store.create(id="mine")
    store.servers.set(None, {"git": False})
    with pytest.raises(InvalidInput):
        store.create(id="mine")
    with pytest.raises(InvalidInput):
        store.create(title="x" * 300)
    assert store.servers.get(None) == {"git": False}


def test_one_of_many_conversations_made_at_once_gets_the_pending_overrides(store: Store) -> None:
    store.servers.set(None, {"git": False})
    together = threading.Barrier(8)
    made: list[str] = []

    def make() -> None:
        together.wait()
        made.append(store.create(title="One of many").id)

    threads = [threading.Thread(target=make) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(str(servers(store, id)) for id in made) == ["None"] * 7 + [
        "{'git': {'enabled': False}}"
    ]


@pytest.mark.slow
def test_a_power_cut_at_any_step_of_a_creation_loses_no_pending_override(
    root: Path, store: Store, tmp_path: Path, rng: random.Random
) -> None:
    store.servers.set(None, {"git": False})
    store.close()
    disk, recorder, place, twice = Disk(root), Recorder(root), tmp_path / "after", 0
    with store_on(root, recorder) as recorded:
        recorded.create(id="made", title="Next", type="group")
    for number in range(len(recorder.events) + 1):
        if number:
            disk.play(recorder.events[number - 1])
        for tree in disk.trees(rng, long=False):
            materialise(tree, place)
            with store_on(place, Rebooted()) as again:
                made = "made" in again.ids()
                assert made or number < len(recorder.events)
                waits, got = again.servers.get(None), again.servers.get("made") if made else {}
            assert waits in ({}, {"git": False})
            assert got == {"git": False} or not made
            assert waits or got
            twice += bool(waits and got)
    assert twice  # After a power cut between the two writes they apply once more, as documented.


def test_a_damaged_file_of_pending_overrides_is_named_and_stops_creation(
    store: Store, root: Path
) -> None:
    path = root / "overrides" / "next.json"
    store.servers.set(None, {"git": False})
    for wrong, line in ((b'{\n  "mcpServers": {"git": true}\n}\n', 2), (b"{", 1)):
        path.write_bytes(wrong)
        for call in (
            lambda: store.create(title="x"),
            lambda: store.servers.get(None),
            lambda: store.servers.toggle(None, "git"),
        ):
            with pytest.raises(
                InvalidDocument, match=rf"next.json:{line}:.*correct the file or remove it"
            ):
                call()
        found = list(examine(store, repair=True))
        assert [(finding.path, finding.line, finding.kind) for finding in found] == [
            (str(path), line, "damaged")
        ]
        assert path.read_bytes() == wrong
    assert store.ids() == []
    path.unlink()
    assert servers(store, store.create(title="x").id) is None
    assert list(examine(store)) == []


def test_a_hand_written_file_of_pending_overrides_is_used_and_keeps_its_other_fields(
    store: Store, root: Path
) -> None:
    (root / "overrides").mkdir()
    path = root / "overrides" / "next.json"
    path.write_text('{"note": "mine", "mcpServers": {"git": {"enabled": false}}}')
    assert store.servers.get(store.create(title="x").id) == {"git": False}
    assert orjson.loads(path.read_bytes()) == {"note": "mine", "mcpServers": {}}


def test_the_file_of_pending_overrides_has_a_version_and_an_unknown_one_is_refused(
    store: Store, root: Path
) -> None:
    store.servers.set(None, {"git": False})
    path = root / "overrides" / "next.json"
    assert orjson.loads(path.read_bytes()) == {
        "version": "2.1",
        "mcpServers": {"git": {"enabled": False}},
    }
    for version, expected in (
        ('"3.0"', "3.0"),
        ('"1.0"', "must be 2.1"),
        ("2", "must be a text"),
        ('"2.9"', ""),
    ):
        path.write_text(f'{{"version": {version}, "mcpServers": {{"git": {{"enabled": true}}}}}}')
        before = path.read_bytes()
        if expected:
            with pytest.raises(
                InvalidDocument, match=rf"next.json:1:13: version: .*{expected}.*correct the file"
            ):
                store.servers.set(None, {"web": True})
            assert path.read_bytes() == before
        else:
            assert store.servers.set(None, {"web": True}) == {"git": True, "web": True}
            assert orjson.loads(path.read_bytes())["version"] == "2.9"


@pytest.mark.parametrize("kind", ["symlink", "directory"])
def test_the_doctor_reports_a_symlink_or_directory_in_place_of_pending_overrides(
    store: Store, root: Path, kind: str
) -> None:
    (root / "overrides").mkdir()
    path = root / "overrides" / "next.json"
    if kind == "symlink":
        path.symlink_to(root / "capsule.toml")
    else:
        path.mkdir()
    (finding,) = examine(store)
    assert (finding.path, finding.kind) == (str(path), "damaged")
    assert f"is a {kind}" in finding.what


@pytest.mark.files
def test_a_failure_to_clear_pending_overrides_is_logged_and_the_conversation_exists(
    store: Store, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.servers.set(None, {"git": False})
    system = Faulty()
    with store_on(root, system, keep_locks=False) as failing:

        def write_then_fill_the_disk(*args: Any) -> Any:
            head = write_new(*args)
            system.arm(1, errno.ENOSPC, lasting=True)
            return head

        monkeypatch.setattr("capsule.store.creation.write_new", write_then_fill_the_disk)
        with caplog.at_level(logging.WARNING, "capsule"):
            head = failing.create(title="x")
        system.disarm()
    assert store.servers.get(head.id) == {"git": False}
    assert store.servers.get(None) == {"git": False}
    assert "could not be cleared, so the next one gets them too" in caplog.text
