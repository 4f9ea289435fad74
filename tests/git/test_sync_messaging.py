"""Agents, projects and channels that two clones changed, or a person edited."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from capsule import Refused, Store
from capsule.messaging.people.people import People
from tests.git.repositories import Clone
from tests.git.talking import Two, assert_same, sync_all


@pytest.fixture
def there(clones: Two) -> Two:
    with Store.open(clones[0].root) as store:
        for agent, project in (("anna", "/api"), ("bob", "/api"), ("carl", "/web"), ("dora", "/docs")):
            store.agents.register(agent, project)
        store.projects.link("api", "web")
    sync_all(*clones, clones[0])
    return clones


def test_what_both_clones_said_of_others_holds_in_both(there: Two) -> None:
    with Store.open(there[0].root) as store:
        store.agents.block(agent="bob", other="anna", reason="noise")
        store.projects.link("api", "docs", direction="out")
    with Store.open(there[1].root) as store:
        store.agents.policy("bob", dm="restricted", discoverable="project")
        store.agents.allow(agent="bob", other="carl")
        store.projects.unlink("api", "web")
    sync_all(*there, there[0])
    assert len({clone.file("bob", "agents").read_bytes() for clone in there}) == 1
    for clone in there:
        with Store.open(clone.root) as store:
            bob, api = store.agents.get("bob"), store.projects.get("api")
            said = {other: entry["permission"] for other, entry in (bob.dm or {}).items()}
            assert (said, bob.dm_policy, bob.discoverable) == (
                {"anna": "block", "carl": "allow"},
                "restricted",
                "project",
            )
            assert {store.projects.get(other).name for other in api.links} == {"docs"}
            directory = store.inner.part(People).directory
            names = {store.projects.get(id).name for id in directory.sight(api.id)}
            assert names == {"api", "docs"}
            store.messages.send("hi", agent="carl", to="bob")
            with pytest.raises(Refused):
                store.messages.send("hi", agent="anna", to="bob")


def test_a_link_that_one_clone_ended_and_the_other_changed_does_not_count(there: Two) -> None:
    with Store.open(there[0].root) as store:
        store.projects.unlink("web", "api")
    with Store.open(there[1].root) as store:
        store.projects.link("web", "api", direction="out")
    sync_all(*there, there[0])
    for clone in there:
        with Store.open(clone.root) as store:
            ids = [store.projects.get(name).id for name in ("api", "web")]
            directory = store.inner.part(People).directory
            assert [directory.sight(id) == {id} for id in ids] == [True, True]


def edit(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | fields, indent=2))


def test_what_a_person_writes_into_the_files_counts_at_once(store: Store) -> None:
    root = Path(store.root)
    for agent, project in (("anna", "/api"), ("carl", "/web")):
        store.agents.register(agent, project)
    store.agents.policy("carl", discoverable="project")
    store.projects.link("api", "web")
    web = root / "projects" / f"{store.projects.get('web').id}.json"
    anna, carl = (store.beside(agent=agent) for agent in ("anna", "carl"))
    anna.messages.send("hi", to="carl")
    assert "carl" in anna.agents.names()

    edit(root / "agents" / "carl.json", dm={"anna": {"permission": "block"}})
    for refused in (
        lambda: anna.messages.send("hi", to="carl"),
        lambda: anna.append("direct_anna_carl", content="hi"),
    ):
        with pytest.raises(Refused):
            refused()
    edit(root / "agents" / "carl.json", dm={})
    anna.messages.send("hi", to="carl")

    links = json.loads(web.read_text())["links"]
    edit(web, links={id: link | {"enabled": False} for id, link in links.items()})
    assert "carl" not in anna.agents.names()
    edit(web, links=links)
    assert "carl" in anna.agents.names()

    for wrong in ({"dmPolicy": "none"}, {"dm": {"anna": {"permission": "maybe"}}}, {"dm": 3}):
        edit(root / "agents" / "carl.json", **wrong)
        with pytest.raises(Refused):
            anna.messages.send("hi", to="carl")
    assert carl.messages.history("direct_anna_carl").messages
    (root / "agents" / "carl.json").write_text("{")
    with pytest.raises(Refused):
        anna.append("direct_anna_carl", content="hi")


# -- Channels ----------------------------------------------------------------------------------------------------------


def members(clone: Clone, channel: str) -> dict[str, bool]:
    with Store.open(clone.root) as store:
        return {member.id: member.is_in for member in store.head(channel).participants}


def test_a_channel_that_both_clones_made_is_one_with_the_members_and_messages_of_both(clones: Two) -> None:
    for clone, agent in zip(clones, ("anna", "bob"), strict=True):
        with Store.open(clone.root) as store:
            store.agents.register(agent)
            id = store.channels.create("news", agent=agent, scope="global", description=f"of {agent}").id
            store.beside(agent=agent).append(id, content=f"from {agent}")
    sync_all(*clones, clones[0])
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
    sync_all(*clones, clones[0])
    with Store.open(clones[0].root) as store:
        store.channels.leave(id, agent="bob")
        store.channels.invite(id, ["dora"], agent="anna")
    with Store.open(clones[1].root) as store:
        store.channels.remove(id, "carl", agent="anna")
        store.channels.update(id, description="of the other clone", agent="anna")
    sync_all(*clones, clones[0])
    assert_same(id, clones)
    assert members(clones[1], id) == {"anna": True, "bob": False, "carl": False, "dora": True}
    with Store.open(clones[1].root) as store:
        left = next(member for member in store.head(id).participants if member.id == "bob")
        assert left.opted_out_at
        assert store.channels.get(id).description == "of the other clone"
