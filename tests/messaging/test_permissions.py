"""What agents say of who may write to them and who finds them; a stricter word counts once it is
acknowledged.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from capsule import InvalidInput, NotFound, Refused, Store
from capsule.messaging.directory import StoreAgents
from tests.core.store.making import set_fields

AGENTS = {"anna": "/api", "bob": "/api", "carl": "/web", "dora": None}


def as_(store: Store, agent: str) -> Store:
    return store.beside(agent=agent)


def entries(store: Store, agent: str) -> dict[str, Any]:
    return {
        other: entry["permission"] for other, entry in (store.agents.get(agent).dm or {}).items()
    }


def test_what_an_agent_says_changes_one_field_and_keeps_the_others(store: Store) -> None:
    bob = as_(store, "bob").agents
    assert (bob.get("bob").dm_policy, bob.get("bob").discoverable) == ("open", "public")
    bob.set_status(None, "here", busy=True)
    assert bob.policy(dm="restricted").discoverable == "public"
    bob.allow(other="anna", reason="a colleague")
    bob.block(other="carl")
    assert bob.policy(discoverable="project").dm_policy == "restricted"
    store.agents.register("bob", "/api", description="reviews")
    assert entries(store, "bob") == {"anna": "allow", "carl": "block"}
    assert (store.agents.get("bob").dm or {})["anna"]["reason"] == "a colleague"
    bob.forget(other="carl")
    bob.block(other="anna")
    assert entries(store, "bob") == {"anna": "block"}
    assert (bob.get("bob").status_message, bob.get("bob").status) == ("here", "offline")
    bob.serve()
    assert bob.get("bob").status == "busy"


def test_an_agent_speaks_for_itself_only_and_only_it_learns_what_it_says(store: Store) -> None:
    anna = as_(store, "anna").agents
    store.agents.block(agent="bob", other="anna", reason="noise")
    for change in (
        lambda: anna.policy("bob", dm="open"),
        lambda: anna.allow(agent="bob", other="anna"),
        lambda: anna.block(agent="bob", other="carl"),
        lambda: anna.forget(agent="bob", other="anna"),
        lambda: anna.requests("bob"),
        lambda: anna.discover("bob"),
        lambda: anna.register("anna", "/web"),
    ):
        with pytest.raises(Refused):
            change()
    assert entries(store, "bob") == {"anna": "block"}
    assert "dm" not in anna.get("bob").as_json() and "dm" in anna.get("anna").as_json()
    assert "noise" not in repr(anna.list()) + repr(anna.discover())


@pytest.mark.parametrize("change", [{"dm": "none"}, {"discoverable": "team"}])
def test_a_policy_that_there_is_not_is_an_error(store: Store, change: dict[str, str]) -> None:
    with pytest.raises(InvalidInput):
        store.agents.policy("bob", **change)
    for wrong, error in (("nobody", NotFound), ("bob", InvalidInput)):
        with pytest.raises(error):
            store.agents.block(agent="bob", other=wrong)


@pytest.mark.parametrize(
    ("discoverable", "agents_found_by"),
    [("public", {"anna", "carl", "dora"}), ("project", {"anna", "dora"}), ("private", set())],
)
def test_an_agent_is_told_of_the_agents_that_it_finds_and_of_no_others(
    store: Store, discoverable: str, agents_found_by: set[str]
) -> None:
    store.agents.policy("bob", discoverable=discoverable)
    for me in ("anna", "carl", "dora"):
        agents = as_(store, me).agents
        assert (me in agents_found_by) == ("bob" in [one.agent.id for one in agents.discover()])
        assert (
            (me in agents_found_by)
            == ("bob" in [one.id for one in agents.list()])
            == ("bob" in agents.names())
        )
        assert me in agents.names() and me not in [one.agent.id for one in agents.discover()]
        with pytest.raises(NotFound) as missing:
            agents.get("nobody")
        assert (me in agents_found_by) == ("bob" in missing.value.message)
        if me not in agents_found_by:
            with pytest.raises(NotFound) as hidden:
                agents.get("bob")
            assert hidden.value.message == missing.value.message.replace("nobody", "bob")
    assert "bob" in store.agents.names()


def test_who_has_written_with_a_private_agent_finds_it(store: Store) -> None:
    store.messages.send("hi", agent="carl", to="bob")
    store.agents.policy("bob", discoverable="private")
    found = {
        me: [one.agent.id for one in as_(store, me).agents.discover()] for me in ("anna", "carl")
    }
    assert "bob" in found["carl"] and "bob" not in found["anna"]


def test_a_link_lets_agents_of_one_project_find_those_of_the_other(store: Store) -> None:
    for agent in ("bob", "carl"):
        store.agents.policy(agent, discoverable="project")
    finds = lambda me, other: other in as_(store, me).agents.names()  # noqa: E731
    assert not finds("bob", "carl") and not finds("carl", "bob")
    store.projects.link("api", "web", direction="out")
    assert finds("bob", "carl") and not finds("carl", "bob")
    assert [one.name for one in as_(store, "bob").projects.list()] == ["api", "web"]
    assert [one.name for one in as_(store, "carl").projects.list()] == ["web"]
    assert not as_(store, "carl").projects.get("web").links
    store.projects.link("web", "api", direction="out")
    assert not finds("bob", "carl") and finds("carl", "bob")
    store.projects.unlink("api", "web")
    assert not finds("carl", "bob")
    for act in (store.beside(agent="bob").projects.link, store.beside(agent="bob").projects.unlink):
        with pytest.raises(Refused):
            act("api", "web")


@pytest.mark.parametrize(
    ("dm", "entry", "availability"),
    [
        ("open", None, "available"),
        ("restricted", None, "requires permission"),
        ("restricted", "allow", "available"),
        ("open", "block", "blocked"),
        ("closed", "allow", "unavailable"),
    ],
)
def test_the_availability_of_two_agents_is_shown_to_both(
    store: Store, dm: str, entry: str | None, availability: str
) -> None:
    store.agents.policy("bob", dm=dm)
    if entry is not None:
        getattr(store.agents, entry)(agent="bob", other="anna")
    for me, other in (("anna", "bob"), ("bob", "anna")):
        shown = {found.agent.id: found.availability for found in as_(store, me).agents.discover()}
        assert shown[other] == availability


def test_who_was_not_allowed_is_listed_until_the_restricted_agent_decides(store: Store) -> None:
    store.agents.policy("bob", dm="restricted")
    bob = as_(store, "bob").agents
    for me in ("anna", "carl", "dora", "anna"):
        with pytest.raises(Refused):
            as_(store, me).messages.send("let me in", to="bob")
    assert [one.agent.id for one in bob.requests()] == ["anna", "carl", "dora"]
    assert "let me in" not in repr(bob.requests())
    bob.allow(other="carl")
    bob.block(other="dora")
    assert [one.agent.id for one in bob.requests()] == ["anna"]
    as_(store, "carl").messages.send("hi", to="bob")
    bob.policy(dm="open")
    assert not bob.requests()


def test_what_an_agent_says_of_a_forgotten_one_is_taken_back(store: Store) -> None:
    bob = as_(store, "bob").agents
    bob.block(other="anna")
    store.agents.forget("anna")
    with pytest.raises(NotFound):
        bob.allow(other="anna")
    bob.forget(other="anna")
    assert entries(store, "bob") == {}
    with pytest.raises(InvalidInput):
        bob.forget()


def test_a_stricter_word_is_acknowledged_after_the_writes_that_the_old_one_let_through(
    each_store: Store,
) -> None:
    """A write is held where it is written already: the block waits for it, and nothing comes after
    the block.
    """
    for id in ("anna", "bob"):
        each_store.agents.register(id)
    direct = each_store.messages.send("first", agent="anna", to="bob").conversation
    is_written, go_on, is_blocked = threading.Event(), threading.Event(), threading.Event()

    def act(inside: Any) -> None:
        inside.ensure_permitted("append")
        inside.transaction.set_head(
            inside.head.document | {"updatedAt": "2030-01-01T00:00:00.000Z"}
        )
        is_written.set()
        go_on.wait()

    def block() -> None:
        is_written.wait()
        as_(each_store, "bob").agents.block(other="anna")
        is_blocked.set()

    threads = [threading.Thread(target=lambda: as_(each_store, "anna").inner.change(direct, act))]
    threads.append(threading.Thread(target=block))
    for thread in threads:
        thread.start()
    is_written.wait()
    while "anna" not in each_store.inner.object_of(StoreAgents).directory.profile("bob").dm_entries:
        pass  # The word is written, and not yet acknowledged.
    assert not is_blocked.wait(0.05)
    go_on.set()
    for thread in threads:
        thread.join()
    with pytest.raises(Refused):
        as_(each_store, "anna").messages.send("second", conversation=direct)


def before_the_next_write(
    store: Store, monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]
) -> None:
    """Have a change made where the engine is about to write a conversation, whatever was decided of
    it.
    """
    id, waiting = store.create(id="any", type="group").id, [change]
    with store.engine.transaction("conversations", id) as transaction:
        places = [
            (type(store.engine), "create"),
            *((type(transaction), name) for name in ("append", "set_head")),
        ]

    def changing(real: Callable[..., Any]) -> Callable[..., Any]:
        def act(*args: Any, **kwargs: Any) -> Any:
            while waiting:
                waiting.pop()()
            return real(*args, **kwargs)

        return act

    for owner, name in places:
        monkeypatch.setattr(owner, name, changing(getattr(owner, name)))


@pytest.mark.parametrize(
    ("write", "change"),
    [
        (
            lambda anna, at: anna.append(at["direct"], content="x"),
            {"bob": {"dm": {"anna": {"permission": "block"}}}},
        ),
        (lambda anna, at: anna.append(at["direct"], content="x"), {"anna": {"dmPolicy": "closed"}}),
        (lambda anna, at: anna.rename(at["own"], "x"), {"anna": {"project": "elsewhere"}}),
        (lambda anna, at: anna.append(at["own"], content="x"), {"anna": {"project": "elsewhere"}}),
        (lambda anna, at: anna.messages.send("x", to="carl"), {"carl": {"dmPolicy": "restricted"}}),
        (lambda anna, at: anna.channels.join(at["far"]), None),
    ],
)
def test_no_write_is_done_under_a_word_that_was_taken_back_before_it(
    each_store: Store,
    monkeypatch: pytest.MonkeyPatch,
    write: Callable[[Store, dict[str, str]], object],
    change: Any,
) -> None:
    for id, project in (("anna", "/api"), ("bob", "/api"), ("carl", "/web")):
        each_store.agents.register(id, project)
    each_store.projects.link("api", "web")
    at = {"direct": each_store.messages.send("first", agent="anna", to="bob").conversation}
    at |= {"own": each_store.channels.create("own", agent="anna").id}
    at |= {"far": each_store.channels.create("far", agent="carl").id}
    before = [(head.id, head.updated_at) for head in each_store.heads()]

    def take_back() -> None:
        for id, fields in (change or {}).items():
            set_fields(each_store, id, **fields)
        if change is None:
            projects = each_store.inner.object_of(StoreAgents).directory.projects
            for project in each_store.projects.list():
                projects.edit(project.id, lambda document: document.update(links={}))

    before_the_next_write(each_store, monkeypatch, take_back)
    with pytest.raises((Refused, NotFound)):
        write(as_(each_store, "anna"), at)
    assert [(head.id, head.updated_at) for head in each_store.heads() if head.id != "any"] == before


def test_the_rule_says_what_an_agent_may_do_and_why_not(store: Store) -> None:
    members = store.channels.create("plans", agent="anna", access="members").id
    hidden = store.channels.create("hidden", agent="carl", access="private").id
    made = store.groups.create("Talk", agent="anna", with_=["carl"]).id

    def may(agent: str, action: str, **about: str) -> tuple[bool, str]:
        said = store.agents.may(action, agent=agent, **about)
        assert said.allowed == (not said.reason)
        return said.allowed, said.reason + said.hint

    assert may("anna", "append", conversation="plans") == (True, "")
    assert not may("bob", "append", conversation=members)[0]
    assert "anna" in may("bob", "read", conversation=members)[1]
    assert "can't see" in may("bob", "find", conversation=hidden)[1]
    assert may("anna", "add", conversation=made, other="bob")[0]
    store.agents.block(agent="bob", other="anna")
    assert "blocked" in may("anna", "add", conversation=made, other="bob")[1]
    assert "blocked" in may("anna", "message", other="bob")[1]
    assert may("carl", "message", other="bob")[0]
    assert not may("anna", "manage", other="bob")[0] and may("anna", "find", other="bob")[0]
    assert not may("carl", "rewrite", conversation=made)[0]


def test_an_agent_asks_about_itself_and_learns_of_nothing_that_it_does_not_find(
    store: Store,
) -> None:
    members = store.channels.create("plans", agent="anna", access="members").id
    hidden = store.channels.create("hidden", agent="carl", access="private").id
    store.agents.policy("carl", discoverable="private")
    bob = as_(store, "bob").agents
    assert not bob.may("read", conversation=members).allowed
    for about in (
        {"conversation": hidden},
        {"conversation": "channel_global_none"},
        {"other": "carl"},
    ):
        with pytest.raises(NotFound):
            bob.may("append", **about)
    with pytest.raises(Refused):
        bob.may("read", agent="anna", conversation=members)
    for wrong in ({"action": "fly", "other": "anna"}, {"action": "read"}):
        with pytest.raises(InvalidInput):
            bob.may(**wrong)
