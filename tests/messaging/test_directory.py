"""The directory: what decisions depend on, as the documents say it now."""

from __future__ import annotations

from typing import Any

import pytest

from capsule import Store
from capsule.format import codec
from capsule.messaging.policy import Object, Profile, State


def write(store: Store, kind: str, id: str, **fields: Any) -> None:
    """Write a document as a person does who edits the file."""
    store.engine.edit(kind, id, lambda data: codec.encode({"id": id, **fields}))


def test_a_profile_is_what_the_document_says_now(each_store: Store) -> None:
    directory = each_store._directory
    assert directory.profile("bob") == Profile("bob")
    write(each_store, "agents", "bob", name="Bob", dmPolicy="restricted", dm={"carl": {"permission": "block"}})
    assert directory.profile("bob") == Profile("bob", "Bob", "global", "restricted", entries={"carl": "block"})
    assert directory.profile("bob") is directory.profile("bob")
    for policy in ("closed", "opened", "restricted") * 10:
        write(each_store, "agents", "bob", dmPolicy=policy)
        assert directory.profile("bob").dm == {"opened": "closed"}.get(policy, policy)


def test_an_agent_whose_document_is_damaged_is_closed_and_hidden(each_store: Store) -> None:
    write(each_store, "agents", "bob", cursors=3)
    assert each_store._directory.profile("bob") == Profile("bob", dm="closed", discoverable="private")


@pytest.mark.parametrize(
    ("there", "back", "api_sees", "web_sees"),
    [
        ("out", "in", True, False),
        ("in", "out", False, True),
        ("both", "both", True, True),
        ("out", "out", False, False),
        ("both", "in", True, False),
        ("out", None, False, False),
        (None, "in", False, False),
    ],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_a_link_counts_while_both_projects_have_it(
    each_store: Store, there: str | None, back: str | None, api_sees: bool, web_sees: bool, enabled: bool
) -> None:
    directory = each_store._directory
    assert directory.sight("api") == {"api"}
    write(each_store, "projects", "api", links={"web": {"direction": there}} if there else {})
    write(each_store, "projects", "web", links={"api": {"direction": back, "enabled": enabled}} if back else {})
    assert directory.sight("api") == {"api"} | ({"web"} if api_sees and enabled else set())
    assert directory.sight("web") == {"web"} | ({"api"} if web_sees and enabled else set())


def test_the_state_holds_only_what_the_question_depends_on(each_store: Store) -> None:
    directory = each_store._directory
    write(each_store, "agents", "bob", project="api", discoverable="private")
    assert directory.state(None, Object("x")) == directory.state("anna", Object("x", "group")) == State()
    direct = directory.state("anna", Object("direct_anna_bob", "direct"))
    assert (set(direct.profiles), direct.sight) == ({"anna", "bob"}, set())
    assert directory.state("bob", Object("c", "channel")).sight == {"api"}
    assert not directory.state("anna", None, ["bob"]).met
    each_store.agents.register("anna")
    each_store.messages.send("hi", agent="anna", to="bob")
    assert directory.state("anna", None, ["bob"]).met == {"bob"}
