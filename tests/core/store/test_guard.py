"""Where the room is missing that judges agents, the store fails closed for them, and stays open for
its owner.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from capsule import Store, errors, rooms
from capsule.format.documents.creation import new_capsule
from capsule.store.creation import write_new

DIRECT = "direct_anna_bob"


def test_without_its_guard_an_agent_is_refused_what_it_would_judge_and_the_owner_is_not(
    store: Store, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Any:
        raise errors.Refused("messaging is not installed here", path="")

    monkeypatch.setattr(rooms, "guard_class", missing)
    chat = store.create().id
    store.locks.release(chat)
    about = {"participants": ["anna", "bob"], "createdBy": "anna"}
    write_new(
        store.inner,
        new_capsule(DIRECT, "anna, bob", "2026-01-01T00:00:00.000Z", type="direct", metadata=about),
    )
    with (
        Store.open(root, agent="anna", keep_locks=False) as anna,
        Store.open(root, keep_locks=False) as owner,
    ):
        assert anna.append(chat, content="hi").from_ == "anna"
        with pytest.raises(errors.Refused):
            anna.head(DIRECT)
        with pytest.raises(errors.Refused):
            anna.append(DIRECT, content="hi")
        assert [head.id for head in anna.list().heads] == anna.ids() == [chat]
        assert owner.append(DIRECT, content="hi").at == 0
