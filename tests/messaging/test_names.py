"""Names in place of ids: of which channel or group a name is, and that it tells nobody of what is
hidden.
"""

from __future__ import annotations

import pytest

from capsule import InvalidInput, NotFound, Store
from tests.messaging.test_channels import API, WEB


@pytest.fixture
def store(each_store: Store) -> Store:
    for agent, folder in {"anna": API, "bob": API, "carl": WEB, "dora": None}.items():
        each_store.agents.register(agent, folder)
    return each_store


def test_a_name_means_the_channel_or_the_group_that_has_it(store: Store) -> None:
    channel, group = (
        store.channels.create("releases", agent="anna"),
        store.groups.create("Release day", agent="anna"),
    )
    for text in (
        "releases",
        "releases@api",
        f"releases@{channel.channel.scope}" if channel.channel else "",
    ):
        assert store.resolve(text) == store.beside(agent="bob").resolve(text) == channel.id
    assert (
        store.resolve("Release day")
        == store.beside(agent="anna").resolve("Release day")
        == group.id
    )
    for text in ("releases@web", "release", "Release", "", "dev@", "@api"):
        with pytest.raises((NotFound, InvalidInput)):
            store.resolve(text)


def test_an_id_and_a_beginning_of_one_win_over_a_name(store: Store) -> None:
    first, second = (
        store.channels.create("plan", agent="anna"),
        store.channels.create("retro", agent="anna"),
    )
    store.create(id="plan")
    store.create(id="retrospective")
    assert (store.resolve("plan"), store.resolve("retro")) == ("plan", "retrospective")
    assert (store.resolve("plan@api"), store.resolve("retro@api")) == (first.id, second.id)
    store.create(id="retroactive")
    assert store.resolve("retro") == second.id  # No longer the beginning of one id alone.


def test_a_name_that_several_have_is_an_error_with_their_ids(store: Store) -> None:
    here, there = (
        store.channels.create("releases", agent="anna"),
        store.channels.create("releases", agent="carl"),
    )
    with pytest.raises(InvalidInput, match=f"{here.id}, {there.id}"):
        store.resolve("releases")
    assert store.resolve("releases@web") == there.id
    everywhere = store.channels.create("releases", scope="global")
    mine = [store.beside(agent=agent).resolve("releases") for agent in ("anna", "carl", "dora")]
    assert mine == [
        here.id,
        there.id,
        everywhere.id,
    ]  # As `send --channel` takes it: that of the own project first.
    team = [store.groups.create("team", agent="anna").id for _ in range(2)]
    with pytest.raises(InvalidInput, match=", ".join(sorted(team))):
        store.resolve("team")


def test_what_an_agent_may_not_read_has_no_name_for_it(store: Store) -> None:
    store.groups.create("team", agent="anna", with_=["bob"])
    store.channels.create("secret", agent="anna", access="private")
    store.notes.write("mine", agent="anna")
    carl = store.beside(agent="carl")
    for text in ("team", "secret", "secret@api", "notes", "anna"):
        with pytest.raises(NotFound) as hidden:
            carl.resolve(text)
        with pytest.raises(NotFound) as absent:
            carl.resolve("x" + text)
        assert str(hidden.value) == str(absent.value).replace("x" + text, text)
    own = carl.groups.create("team")
    assert carl.resolve("team") == own.id  # No word of the other one.
