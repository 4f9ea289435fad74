"""Agents, channels and projects: their ids, and what is read out of metadata that says less, or
nonsense.
"""

from __future__ import annotations

from typing import Any

import pytest

from capsule import Store
from capsule.errors import InvalidInput
from capsule.format.documents.agents import (
    GLOBAL,
    MAX_AGENT_ID,
    MAX_PROJECT_ID,
    check_agent_id,
    check_project_id,
    is_agent_id,
    project_id,
    project_of,
)
from capsule.format.documents.channels import (
    MAX_CHANNEL_NAME,
    Channel,
    channel_id,
    channel_in,
    check_channel_name,
    notes_id,
)
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.head import Head, ParsedHead
from capsule.ids import is_id

STAMP = "2026-01-01T00:00:00.000Z"


@pytest.mark.parametrize(
    "path", ["/home/anna/api", "/", "/x/Ünïcode Ω 工", "/x/___", f"/x/{'long-' * 30}", "/a\udcff"]
)
def test_a_folder_gives_one_project_id_and_a_channel_of_any_name_there_has_an_id(path: str) -> None:
    id = project_id(path)
    assert check_project_id(id) == id == project_id(path) != project_id(f"{path}2")
    assert len(id) <= MAX_PROJECT_ID
    assert is_id(channel_id(id, check_channel_name("x" * MAX_CHANNEL_NAME)))
    assert project_of({"id": "anna", "projectPath": path}) == id


def test_no_project_is_global_and_an_agent_without_one_is() -> None:
    assert project_of({"id": "anna"}) == project_of({"id": "anna", "project": None}) == GLOBAL
    assert project_of({"id": "anna", "project": GLOBAL, "projectPath": "/p"}) == GLOBAL
    for text in (
        GLOBAL,
        "",
        "api-12345g",
        "Api-123456",
        "a_b-123456",
        "-123456",
        f"{'x' * 30}-123456",
        "a-123456\n",
    ):
        with pytest.raises(InvalidInput):
            check_project_id(text)


def test_an_agent_id_is_a_slug_and_two_of_them_name_one_direct_conversation() -> None:
    for id in ("a", "7", "anna", "build-bot-2", "a--b", "x" * MAX_AGENT_ID):
        assert is_agent_id(id)
        assert check_agent_id(id) == id
        assert is_id(f"direct_{id}_{id}")
    for id in ("", "-a", "a-", "a_b", "Anna", "a.b", "a b", "é", "a\n", "x" * (MAX_AGENT_ID + 1)):
        assert not is_agent_id(id)
        with pytest.raises(InvalidInput):
            check_agent_id(id)
    assert not is_id(f"direct_{'x' * (MAX_AGENT_ID + 1)}_{'x' * MAX_AGENT_ID}")


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "Releases", "a_b", "a b", "a\n", "é", "x" * (MAX_CHANNEL_NAME + 1)]
)
def test_a_name_that_would_make_two_ids_alike_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput):
        check_channel_name(name)


@pytest.mark.parametrize(
    ("metadata", "channel"),
    [
        ({}, None),
        ({"type": "channel"}, None),
        ({"type": "channel", "channel": None}, None),
        ({"type": "channel", "channel": "general"}, Channel("", "", "private")),
        ({"type": "chanel", "channel": {"name": "a", "access": "open"}}, Channel("a", "", "open")),
        ({"type": "chat", "channel": {"name": "a", "access": "open"}}, None),
        ({"type": "channel", "channel": {}}, Channel("", "", "private")),
        (
            {"type": "channel", "channel": {"name": "a", "access": "oepn", "scope": 5}},
            Channel("a", "", "private"),
        ),
        (
            {"type": "channel", "channel": {"name": "a", "access": None, "isDefault": 1}},
            Channel("a", "", "private"),
        ),
        (
            {"type": "channel", "channel": {"name": "a", "scope": GLOBAL, "access": "open"}},
            Channel("a"),
        ),
    ],
)
def test_what_can_not_be_understood_grants_nothing(
    metadata: dict[str, Any], channel: Channel | None
) -> None:
    assert channel_in(metadata) == channel


def test_a_channel_is_read_as_it_was_written_and_names_its_conversation() -> None:
    for channel in (
        Channel("releases", "api-123456", "members", True, True, "misc"),
        Channel("notes", access="private", owner="x" * MAX_AGENT_ID),
    ):
        assert channel_in({"type": "channel", "channel": channel.as_json()}) == channel
    assert Channel("releases", "api-123456").id == "channel_api-123456_releases"
    assert channel.id == notes_id("x" * MAX_AGENT_ID) and is_id(channel.id)


def test_the_index_and_the_head_of_a_file_say_the_same_of_a_channel() -> None:
    channel = Channel("releases", "api-123456", "members", default_topic="misc")
    store = Store.in_memory()
    metadata = {"channel": channel.as_json(), "description": "What goes out", "createdBy": "anna"}
    members = [{"id": "anna", "joinedAt": STAMP, "invitedBy": "bob", "canInvite": False}, "bob"]
    document = new_capsule(
        channel.id, "releases", STAMP, type="channel", metadata=metadata | {"participants": members}
    )
    store.engine.create("conversations", document)
    (head,) = store.list().heads
    assert head == Head.of(document, head.path, head.bytes)
    assert (head.channel, head.description, head.created_by) == (channel, "What goes out", "anna")
    shown = head.as_json()
    assert (shown["channel"], shown["participants"]) == (channel.as_json(), members)
    assert ParsedHead("", document).channel == channel
    assert store.queries.participations("anna")[0].participants == head.participants
