"""The registry of the sessions: what a change keeps, what is refused, and which commands
may run.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule import Store
from capsule.engines.interface import edit_document
from capsule.engines.memory.engine import MemoryEngine
from capsule.errors import InvalidInput, NotFound
from capsule.format import schema
from capsule.sessions.registry import (
    AgentSetup,
    ChannelPlace,
    Question,
    Registry,
    RegistryItem,
    RegistryState,
    SessionRecord,
    Wiring,
)

NOW = "2026-11-22T13:30:00.000Z"
OPS = {"ops": {"channel": "c", "place": "o"}}
ANNA = AgentSetup("anna", "/home/anna", ("claude", "-p"), "claude", {"idleS": 60}, OPS)
ITEMS: list[RegistryItem] = [
    ANNA,
    ChannelPlace("webhook", "/in/a", "Alarms", is_group=True, admin="bob"),
    Wiring("webhook", "/in/a", "anna", "pattern", "^!", "known", "accumulate", "per-thread"),
    SessionRecord("s_1", "anna", "webhook", "/in/a", "t", "claude", "paused", "idle", NOW),
    Question(
        "q",
        "s_1",
        "m",
        {"channel": "webhook", "place": "/in/a"},
        ({"label": "Yes", "value": "y"},),
        NOW,
    ),
]


def test_what_is_put_is_read_back_and_fits_the_schema() -> None:
    engine = MemoryEngine()
    Registry(engine).edit(lambda state: state.put(*ITEMS))
    assert Registry(engine).read() == RegistryState().put(*ITEMS)
    jsonschema.validate(engine.document("sessions", "registry"), schema.schema("registry"))


def test_a_change_keeps_what_it_does_not_name_and_one_that_changes_nothing_writes_nothing() -> None:
    engine = MemoryEngine()
    registry = Registry(engine)
    registry.edit(lambda state: state.put(*ITEMS))
    edit_document(
        engine,
        "sessions",
        "registry",
        lambda data: (data or b"").replace(b'"folder"', b'"colour": "red", "folder"'),
    )
    registry.edit(lambda state: state.put(replace(ANNA, provider="codex")).without(ITEMS[-1]))
    found = engine.document("sessions", "registry")
    assert found["agents"]["anna"]["colour"] == "red" and found["questions"] == {}
    assert registry.read().agents["anna"].provider == "codex" and registry.read().wirings
    version = engine.version("sessions", "registry")
    registry.edit(lambda state: state.put(replace(ANNA, provider="codex")))
    assert engine.version("sessions", "registry", version) == version


@pytest.mark.parametrize(
    "item",
    [
        Wiring("c", "p", "anna", "pattern", "("),
        Wiring("c", "p", "anna", "sometimes"),  # type: ignore[arg-type]
        Wiring("c/d", "p", "anna"),
        AgentSetup("no agent"),
        AgentSetup("anna", settings={"timeZone": "Mars/Base"}),
        SessionRecord("../s", "anna"),
    ],
)
def test_what_breaks_a_rule_is_refused_when_it_is_written(item: RegistryItem) -> None:
    registry = Registry(MemoryEngine())
    with pytest.raises(InvalidInput):
        registry.edit(lambda state: state.put(item))
    assert registry.read() == RegistryState()


def test_a_place_has_one_session_until_it_is_closed() -> None:
    registry = Registry(MemoryEngine())
    with pytest.raises(NotFound):
        registry.ensure_session(("anna", "c", "p", ""), NOW)
    registry.edit(lambda state: state.put(ANNA))
    first = registry.ensure_session(("anna", "c", "p", ""), NOW)
    assert (
        registry.ensure_session(("anna", "c", "p", ""), NOW) == first and first.provider == "claude"
    )
    assert registry.ensure_session(("anna", "c", "p", "t"), NOW) != first
    registry.edit(lambda state: state.put(replace(first, status="closed")))
    assert registry.ensure_session(("anna", "c", "p", ""), NOW).id != first.id


def test_a_command_counts_only_with_the_words_and_the_folder_that_were_approved_on_this_machine(
    tmp_path: Path,
) -> None:
    Store.init(tmp_path / "store")
    with Store.open(tmp_path / "store") as store:
        registry = Registry(store.engine)
        assert not registry.is_approved(ANNA)
        registry.approve(ANNA)
        assert registry.is_approved(ANNA)
        assert not registry.is_approved(replace(ANNA, command=("sh", "-c", "x")))
        assert not registry.is_approved(replace(ANNA, folder="/tmp"))
    approved = tmp_path / "store" / ".capsule" / "commands" / "anna.json"
    data = approved.read_bytes()
    approved.unlink()
    approved.write_bytes(data)  # As a clone or an archive would bring it.
    assert json.loads(data)["command"] == ["claude", "-p"]
    with Store.open(tmp_path / "store") as store:
        assert not Registry(store.engine).is_approved(ANNA)
