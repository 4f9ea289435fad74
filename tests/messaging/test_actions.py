"""What a write consists of: each difference is an action that the rule decides about."""

from __future__ import annotations

from typing import Any

import pytest

from capsule.rules.write_actions import actions_of_write

JOINED, LEFT = "2025-01-02T00:00:00.000Z", "2025-01-03T00:00:00.000Z"


def document(
    *participants: Any, title: str = "Team", said: Any = None, **metadata: Any
) -> dict[str, Any]:
    about = {"type": "group", "participants": list(participants), "lock": {}, **metadata}
    return {"id": "team", "title": title, "metadata": about} | (
        {} if said is None else {"history": said}
    )


BEFORE = document("anna", "bob")
SAID = [{"content": "one", "from": "anna", "id": "1"}, {"content": "two", "from": "bob", "id": "2"}]


@pytest.mark.parametrize(
    ("after", "actions"),
    [
        (document("anna", "bob"), set()),
        (document("anna", "bob", lock={"active": True}), set()),
        (document("anna", "bob", title="Crew", titleSetBy="user"), {"rename"}),
        (document("anna", "bob", tags=["red"], pinned=True), {"change"}),
        (document("anna", "bob", archived=True), {"archive"}),
        (document("anna", "bob", {"id": "carl", "joinedAt": JOINED}), {"add"}),
        (document({"id": "anna", "leftAt": LEFT}, "bob"), {"leave"}),
        (document("anna", {"id": "bob", "leftAt": LEFT}), {"remove"}),
        (document("anna"), {"remove"}),
        (document("anna", {"id": "bob", "joinedAt": JOINED}), {"rewrite"}),
        (document("anna", "bob", history="all"), {"rewrite"}),
        (document("anna", "bob", type="chat"), {"rewrite"}),
        (document("anna", "bob", currentNode="m1"), {"rewrite"}),
        (document("anna", "bob", createdBy="anna"), {"rewrite"}),
    ],
)
def test_the_changed_fields_of_a_head_say_which_actions_a_write_is(
    after: dict[str, Any], actions: set[str]
) -> None:
    assert actions_of_write("anna", BEFORE, after) == actions


def test_the_last_one_who_leaves_archives_a_group_and_the_first_one_added_brings_it_back() -> None:
    one, none = document("anna"), document({"id": "anna", "leftAt": LEFT}, archived=True)
    assert actions_of_write("anna", one, none) == {"leave"}
    assert actions_of_write(None, none, document("anna")) == {"add"}


@pytest.mark.parametrize(
    ("history", "actions"),
    [
        (SAID, set()),
        ([SAID[0] | {"content": "One"}, SAID[1]], {"edit"}),
        ([SAID[1], SAID[0]], {"rewrite"}),
        ([SAID[1]], {"edit"}),
        ([SAID[0]], {"moderate"}),
        ([SAID[0], SAID[1] | {"content": "Two"}], {"moderate"}),
        ([SAID[0], SAID[1] | {"from": "carl"}], {"rewrite"}),
        ([*SAID, {"content": "three", "from": "bob", "id": "3"}], {"rewrite"}),
        ([SAID[0] | {"from": "bob"}, SAID[1]], {"rewrite"}),
    ],
)
def test_only_ones_own_messages_are_edited(
    history: list[dict[str, Any]], actions: set[str]
) -> None:
    before = document("anna", "bob", said=SAID)
    assert actions_of_write("anna", before, document("anna", "bob", said=history)) == actions


def test_the_title_that_an_edit_makes_by_rule_is_no_renaming() -> None:
    before, history = (
        document("anna", said=SAID[:1], titleSetBy="auto"),
        [{"content": "One", "from": "anna"}],
    )
    assert actions_of_write(
        "anna", before, document("anna", title="One", titleSetBy="auto", said=history)
    ) == {"edit"}
    assert actions_of_write("anna", before, document("anna", title="One", titleSetBy="auto")) == {
        "rename"
    }
