"""What waits for a person's decision: conflicts, damaged files and the trash."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.mcp_server.access import Tokens
from tests.web.drawn import buttons, press, text
from tests.web.test_admission import Door


@pytest.fixture
def tokens(store: Store, tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "config", store.root)


@pytest.fixture
def as_(store: Store, tokens: Tokens) -> Callable[..., Door]:
    """The page, opened by the owner (None) or with a token of an agent."""

    def open(agent: str | None, **given: Any) -> Door:
        door = Door(store, tokens)
        if agent is None:
            door.enter(door.site.admission.token())
        else:
            door.enter_token(tokens.add(agent, **given))
        return door

    return open


def dispute(store: Store, **candidates: list[Any]) -> str:
    """A conversation with conflicts: its fields, with the values that two versions gave them."""
    id = store.create(title="Plan").id
    store.flush()
    path = Path(store.root) / "conversations" / f"{id}.json"
    document = json.loads(path.read_bytes())
    document["metadata"]["conflicts"] = [
        {"field": field.replace("__", "."), "values": [{"value": value} for value in values]}
        for field, values in candidates.items()
    ]
    path.write_text(json.dumps(document, indent=2), "utf-8")
    return id


@pytest.mark.files
def test_both_sides_of_a_conflict_stand_there_and_a_button_keeps_one(
    store: Store, as_: Callable[..., Door]
) -> None:
    values = ["<b>Anna's</b>", "Plan"]
    id = dispute(store, title=values, metadata__owner=[{"team": "north"}, None, ["a", 1.5]])
    owner = as_(None)
    shown = text(owner.ask("/repairs"))
    assert "Plan: title" in shown and "<b>Anna's</b>" in shown and "Plan it stands now" in shown
    assert '{"team":"north"}' in shown and "nothing" in shown
    press(owner, "/repairs", 'Keep this title: "<b>Anna\'s</b>"')
    assert store.head(id).title == "<b>Anna's</b>"
    press(owner, "/repairs", 'Keep this metadata.owner: ["a",1.5]')
    assert store.document(id)["metadata"]["owner"] == ["a", 1.5]
    assert store.conflicts.list() == []
    assert "Nothing is to be settled" in text(owner.ask("/repairs"))


@pytest.mark.files
def test_damaged_files_say_what_is_wrong(store: Store, as_: Callable[..., Door]) -> None:
    (Path(store.root) / "conversations" / "torn.json").write_text('{"id": "torn", ')
    shown = text(as_(None).ask("/repairs"))
    assert "torn.json:1:" in shown and "capsule store doctor --repair" in shown
    assert "torn.json" in text(as_(None).ask("/overview?health=1"))


def test_what_is_in_the_trash_comes_back(store: Store, as_: Callable[..., Door]) -> None:
    messages = [{"role": "user", "content": content} for content in ("one", "two", "three")]
    kept = store.create(title="With a gap", messages=messages).id
    gone = store.create(title="Deleted whole").id
    store.branches.remove(kept, "@1", keep_children=True)
    store.delete(gone)
    owner = as_(None)
    shown = text(owner.ask("/repairs"))
    assert (
        "1 message deleted in With a gap" in shown and "two" in shown and "Deleted whole" in shown
    )
    press(owner, "/repairs", "Bring back With a gap")
    press(owner, "/repairs", "Bring back Deleted whole")
    assert [message.content for message in store.load(kept).history] == ["one", "two", "three"]
    assert store.head(gone).title == "Deleted whole"
    assert "The trash is empty" in text(owner.ask("/repairs"))


def test_the_trash_is_in_pages_and_nothing_of_it_is_missing(
    store: Store, as_: Callable[..., Door]
) -> None:
    titles = {f"Number {number:02}." for number in range(57)}
    for title in sorted(titles):
        store.delete(store.create(title=title).id)
    owner, path, seen = as_(None), "/repairs", list[str]()
    while path:
        answer = owner.ask(path)
        shown = text(answer)
        seen += [title for title in titles if title in shown]
        path = answer.text.partition('rel="next" href="')[2].partition("#")[0].replace("&amp;", "&")
    assert sorted(seen) == sorted({*seen}) and {*seen} == titles


def test_an_agent_sees_the_conflicts_and_the_trash_of_its_conversations_only(
    store: Store, as_: Callable[..., Door]
) -> None:
    for agent in ("anna", "bob", "eve"):
        store.agents.register(agent)
    theirs = store.messages.send("canary of eve", agent="bob", to="eve").conversation
    mine = store.messages.send("mine", agent="anna", to="bob")
    with store.beside(agent="bob") as bob, store.beside(agent="anna") as anna:
        (message,) = [entry.id for entry in bob.load(theirs).history]
        bob.branches.remove(theirs, str(message))
        anna.branches.remove(mine.conversation, mine.message)
    shown = text(as_("anna").ask("/repairs"))
    assert "canary" not in shown and "by bob" not in shown
    assert "1 message deleted" in shown and "by anna" in shown
    assert "mine" not in shown  # Nor what it removed itself: that may have been words of a person.
    assert "canary of eve" in text(as_(None).ask("/repairs"))
    assert buttons(as_("eve", scope="read").ask("/repairs")) == []
