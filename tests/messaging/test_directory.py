"""The directory: what decisions depend on, as the documents say it now."""

from __future__ import annotations

from typing import Any

import pytest

from capsule import InvalidInput, NotFound, Store
from capsule.engines.interface import edit_document
from capsule.format.json import codec
from capsule.messaging.directory import StoreAgents, acting_agent
from capsule.rules.consent import AgentProfile, PolicyInputs
from capsule.rules.policy import PolicyTarget

API, WEB = "api-00000a", "web-00000b"


def write(store: Store, kind: str, id: str, **fields: Any) -> None:
    """Write a document as a person does who edits the file."""
    edit_document(store.engine, kind, id, lambda data: codec.encode({"id": id, **fields}))


def test_a_profile_is_what_the_document_says_now(each_store: Store) -> None:
    directory = each_store.inner.object_of(StoreAgents).directory
    assert directory.profile("bob") == AgentProfile("bob")
    write(
        each_store,
        "agents",
        "bob",
        name="Bob",
        dmPolicy="restricted",
        dm={"carl": {"permission": "block"}},
    )
    assert directory.profile("bob") == AgentProfile(
        "bob", "Bob", "global", "restricted", dm_entries={"carl": "block"}
    )
    assert directory.profile("bob") == directory.profile("bob") == directory.profiles()["bob"]
    for policy in ("closed", "opened", "restricted") * 10:
        write(each_store, "agents", "bob", dmPolicy=policy)
        assert directory.profiles()["bob"].dm == {"opened": "closed"}.get(policy, policy)
        assert directory.profile("bob") == directory.profiles()["bob"]


def test_an_agent_whose_document_is_damaged_is_closed_and_hidden(each_store: Store) -> None:
    write(each_store, "agents", "bob", cursors=3)
    assert each_store.inner.object_of(StoreAgents).directory.profile("bob") == AgentProfile(
        "bob", dm="closed", discoverable="private"
    )


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
    each_store: Store,
    there: str | None,
    back: str | None,
    api_sees: bool,
    web_sees: bool,
    enabled: bool,
) -> None:
    directory = each_store.inner.object_of(StoreAgents).directory
    assert directory.visible_projects(API) == {API}
    write(each_store, "projects", API, links={WEB: {"direction": there}} if there else {})
    write(
        each_store,
        "projects",
        WEB,
        links={API: {"direction": back, "enabled": enabled}} if back else {},
    )
    assert directory.visible_projects(API) == {API} | ({WEB} if api_sees and enabled else set())
    assert directory.visible_projects(WEB) == {WEB} | ({API} if web_sees and enabled else set())


def test_the_state_holds_only_what_the_question_depends_on(each_store: Store) -> None:
    directory = each_store.inner.object_of(StoreAgents).directory
    write(each_store, "agents", "bob", project=API, discoverable="private")
    assert (
        directory.state(None, PolicyTarget("x"))
        == directory.state("anna", PolicyTarget("x", "group"))
        == PolicyInputs()
    )
    direct = directory.state("anna", PolicyTarget("direct_anna_bob", "direct"))
    assert (set(direct.profiles), direct.visible_projects) == ({"anna", "bob"}, set())
    assert directory.state("bob", PolicyTarget("c", "channel")).visible_projects == {API}
    assert not directory.state("anna", None, ["bob"]).direct_contacts
    each_store.agents.register("anna")
    each_store.messages.send("hi", agent="anna", to="bob")
    assert directory.state("anna", None, ["bob"]).direct_contacts == {"bob"}


#: The agents of two projects and of none, by the name and the project of each.
THERE = {
    "reviewer": ("reviewer", "/a/api"),
    "reviewer-b": ("reviewer", "/b/web"),
    "tester": ("tester", "/b/web"),
    "writer": ("writer", "/c/docs"),
    "anna": ("anna", None),
    "anna-api": ("anna", "/a/api"),
    "hidden": ("hidden", "/b/web"),
    "lone": ("lone", "/d/api"),
}


@pytest.fixture
def there(each_store: Store) -> Store:
    for id, (name, path) in THERE.items():
        each_store.agents.register(id, path, name=name)
    each_store.agents.policy("hidden", discoverable="private")
    each_store.projects.link("web", "docs", direction="out")
    return each_store


@pytest.mark.parametrize(
    ("by", "text", "found"),
    [
        ("reviewer", "reviewer", "reviewer"),
        ("tester", "reviewer", "reviewer-b"),
        ("tester", "reviewer@web", "reviewer-b"),
        ("tester", "reviewer-b", "reviewer-b"),
        ("anna", "reviewer", "reviewer"),
        (None, "reviewer", "reviewer"),
        (None, "reviewer@web", "reviewer-b"),
        ("reviewer", "anna", "anna-api"),
        ("reviewer", "anna@global", "anna"),
        ("tester", "anna", "anna"),
        ("tester", "writer", "writer"),
        ("writer", "tester", "tester"),
        ("reviewer", "hidden", "hidden"),
        ("anna", "lone@api", "lone"),
    ],
)
def test_a_bare_name_is_that_of_ones_own_project_then_of_no_project_then_of_a_linked_one(
    there: Store, by: str | None, text: str, found: str
) -> None:
    assert there.inner.object_of(StoreAgents).directory.resolve(text, by) == found


def test_an_ambiguous_name_is_an_error_that_lists_whom_one_finds(there: Store) -> None:
    for id, path in (("one", "/b/web"), ("two", "/b/web"), ("three", "/d/api")):
        there.agents.register(id, path, name="twin")
    with pytest.raises(InvalidInput, match="one, two") as wrong:
        there.inner.object_of(StoreAgents).directory.resolve("twin", "tester")
    assert "three" not in wrong.value.message
    there.agents.policy("two", discoverable="private")
    assert [
        there.inner.object_of(StoreAgents).directory.resolve("twin", by)
        for by in ("tester", "lone")
    ] == ["one", "three"]
    with pytest.raises(InvalidInput, match="one, three, two"):
        there.inner.object_of(StoreAgents).directory.resolve("twin", None)


def test_a_hidden_agent_is_asked_for_as_one_that_is_not_there(there: Store) -> None:
    anna, told = there.beside(agent="anna").agents, []
    for name in ("hidden", "nobody"):
        for asked in (name, f"{name}@web"):
            with pytest.raises(NotFound) as missing:
                anna.get(asked)
            told.append(missing.value.message.replace(asked, "NAME"))
    assert len(set(told)) == 1 and "anna" in told[0]


def test_an_unknown_name_is_an_error_that_lists_whom_one_finds(there: Store) -> None:
    for text in ("nobody", "nobody@web", "reviewer@nowhere", ""):
        with pytest.raises(NotFound, match="reviewer-b") as missing:
            there.inner.object_of(StoreAgents).directory.resolve(text, "writer")
        assert "hidden" not in missing.value.message


WEB_BOB, API_BOB, GLOBAL_BOB = (
    AgentProfile("bob-b", "bob", WEB),
    AgentProfile("bob", "bob", API),
    AgentProfile("bob", "bob", "global"),
)


@pytest.mark.parametrize(
    ("name", "project", "agents", "found"),
    [
        ("bob", API, [API_BOB, WEB_BOB], "bob"),
        ("bob", WEB, [API_BOB, WEB_BOB], "bob-b"),
        ("bob", WEB, [GLOBAL_BOB, WEB_BOB], "bob-b"),
        ("bob-b", WEB, [API_BOB, WEB_BOB], "bob-b"),
        ("bob", None, [API_BOB, WEB_BOB], "bob"),
        ("bob", None, [WEB_BOB], None),
        ("bob", WEB, [GLOBAL_BOB], "bob"),
        ("bob", WEB, [API_BOB], None),
        ("bob-b", API, [API_BOB, WEB_BOB], None),
        ("rob", API, [AgentProfile("bob", "rob", API)], "bob"),
        ("rob", WEB, [AgentProfile("bob", "rob", "global")], None),
        ("bob", API, [API_BOB, AgentProfile("x", "bob", API)], "bob"),
        ("bob", WEB, [], None),
        ("bob", None, [], None),
    ],
)
def test_as_whom_a_program_acts_is_one_rule(
    name: str, project: str | None, agents: list[AgentProfile], found: str | None
) -> None:
    assert acting_agent(name, project, agents) == found


def test_a_name_that_several_agents_of_the_project_have_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one, two"):
        acting_agent(
            "twin",
            API,
            [
                AgentProfile("one", "twin", API),
                AgentProfile("two", "twin", API),
                AgentProfile("twin", "", "global"),
            ],
        )


@pytest.mark.parametrize(
    ("text", "folder", "found"),
    [
        ("reviewer", "/b/web/src", "reviewer-b"),
        ("reviewer", None, "reviewer"),
        ("reviewer@web", "/a/api", "reviewer-b"),
        ("hidden", "/b/web", "hidden"),
        ("nobody", "/elsewhere", "nobody"),
        ("me@host", "/b/web", "me@host"),
        ("Claude_Code", "/b/web", "Claude_Code"),
        ("reviewer", "/c/docs", None),
        ("nobody", "/c/docs", None),
    ],
)
def test_who_somebody_acts_as_depends_on_the_folder(
    there: Store, text: str, folder: str | None, found: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    before = set(there.agents.names())
    id = there.agents.identity(text, folder)
    assert there.agents.identity(text, folder) == id == (found or id)
    assert there.beside(agent=id).agent == id
    made = {*there.agents.names()} - before
    assert made == (set() if found else {id}) == {word.split()[0] for word in caplog.messages}
    for each in made:
        agent = there.agents.get(each)
        assert (
            agent.name,
            agent.project_path,
            there.agents._documents.registered_folder(each),
        ) == (
            text,
            folder,
            None,
        )
