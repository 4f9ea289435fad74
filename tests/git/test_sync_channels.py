"""Channels in two clones: a name that both gave at once, and members that both changed."""

from __future__ import annotations

from capsule import Store
from tests.git.repositories import Clone
from tests.git.talking import assert_same, sync_of

Two = tuple[Clone, Clone]


def members(clone: Clone, channel: str) -> dict[str, bool]:
    with Store.open(clone.root) as store:
        return {member.id: member.is_in for member in store.head(channel).participants}


def both(clones: Two) -> None:
    for clone in (*clones, clones[0]):
        sync_of(clone)


def test_a_channel_that_both_clones_made_is_one_with_the_members_and_messages_of_both(clones: Two) -> None:
    for clone, agent in zip(clones, ("anna", "bob"), strict=True):
        with Store.open(clone.root) as store:
            store.agents.register(agent)
            id = store.channels.create("news", agent=agent, scope="global", description=f"of {agent}").id
            store.beside(agent=agent).append(id, content=f"from {agent}")
    both(clones)
    assert_same(id, clones)
    for clone in clones:
        assert members(clone, id) == {"anna": True, "bob": True}
        with Store.open(clone.root) as store:
            assert {entry["content"] for entry in store.document(id)["history"]} == {"from anna", "from bob"}
            assert [each.id for each in store.channels.list(agent="bob")] == [id]


def test_members_that_both_clones_changed_end_alike_and_an_opt_out_stays(clones: Two) -> None:
    with Store.open(clones[0].root) as store:
        for agent in ("anna", "bob", "carl", "dora"):
            store.agents.register(agent)
        id = store.channels.create("crew", agent="anna", scope="global", access="members").id
        store.channels.invite(id, ["bob", "carl"], agent="anna")
    both(clones)
    with Store.open(clones[0].root) as store:
        store.channels.leave(id, agent="bob")
        store.channels.invite(id, ["dora"], agent="anna")
    with Store.open(clones[1].root) as store:
        store.channels.remove(id, "carl", agent="anna")
        store.channels.update(id, description="of the other clone", agent="anna")
    both(clones)
    assert_same(id, clones)
    assert members(clones[1], id) == {"anna": True, "bob": False, "carl": False, "dora": True}
    with Store.open(clones[1].root) as store:
        left = next(member for member in store.head(id).participants if member.id == "bob")
        assert left.opted_out_at
        assert store.channels.get(id).description == "of the other clone"
