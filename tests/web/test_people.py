"""Who is there, what waits for whom, and who may do what, as the page shows it to the owner and to
agents.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from capsule import Store
from capsule.mcp_server.access import Tokens
from capsule.messaging import doorbells
from capsule.messaging.directory import StoreAgents
from capsule.messaging.doorbells import DoorbellTarget
from tests.messaging.test_consent import PAIRS, expected, say
from tests.web.drawn import buttons, press, text
from tests.web.test_admission import Door

if TYPE_CHECKING:
    pass


@pytest.fixture
def tokens(store: Store, tmp_path: Path) -> Tokens:
    return Tokens(tmp_path / "config", store.root)


@pytest.fixture
def as_(store: Store, tokens: Tokens) -> Callable[..., Door]:
    """The page, opened by the owner (None) or with a token of an agent."""

    doors: dict[str | None, Door] = {}

    def open(agent: str | None, **given: Any) -> Door:
        if agent not in doors:
            doors[agent] = door = Door(store, tokens)
            if agent is None:
                door.enter(door.site.admission.token())
            else:
                door.enter_token(tokens.add(agent, **given))
        return doors[agent]

    return open


@pytest.fixture(autouse=True)
def world(store: Store, tmp_path: Path) -> None:
    """Two projects that don't see each other, a private agent, and channels of all kinds."""
    for name in ("api", "web"):
        (tmp_path / name).mkdir()
    for agent, project in {"anna": "api", "bob": "api", "carl": "web", "zoe": None}.items():
        store.agents.register(agent, project and str(tmp_path / project))
    store.agents.policy("zoe", discoverable="private")
    store.channels.create("plans", agent="anna", description="What we plan")
    store.channels.create("board", agent="carl", access="members", scope="global")
    store.channels.create("canary-of-carl", agent="carl")
    store.channels.create("canary-of-few", agent="zoe", access="private", scope="global")
    store.groups.create("canary of zoe", agent="zoe", with_=["carl"])
    store.groups.create("Talk", agent="anna", with_=["bob"])


def test_the_page_says_who_is_there_and_what_waits_for_whom(
    store: Store, as_: Callable[..., Door]
) -> None:
    store.messages.send("hi", agent="anna", to="bob")
    store.agents.set_status("carl", "mowing the south", busy=True)
    with (
        store.beside(agent="anna") as anna,
        store.beside(agent="carl") as carl,
        store.beside(agent="bob") as bob,
    ):
        anna.agents.serve()
        carl.agents.serve()
        with bob.inner.object_of(StoreAgents).listening("bob"):
            said = text(as_(None).ask("/people"))
    assert "anna online" in said and "bob listening 1 unread from anna" in said
    assert "carl busy mowing the south" in said and "zoe away" in said
    assert "canary-of-few" in said and "Talk" in said and "api" in said
    said = text(as_("bob").ask("/people"))
    assert "1 unread from anna" in said
    assert "unread" not in text(as_("carl").ask("/people"))


def test_an_agent_is_told_of_nobody_and_of_nothing_that_it_does_not_find(
    as_: Callable[..., Door],
) -> None:
    anna, owner = as_("anna"), as_(None)
    shown = [
        anna.ask(path) for path in ("/people", "/people/bob", "/projects/api", "/channels/plans")
    ]
    shown += [
        anna.ask(f"/people/anna?action=read&conversation={name}")
        for name in ("canary-of-few", "canary-of-carl")
    ]
    web = next(project.id for project in owner.site.store.projects.list() if project.name == "web")
    assert owner.ask(f"/projects/{web}").status == 200
    for path in ("/people/zoe", "/people/nobody", f"/projects/{web}", "/channels/canary-of-few"):
        shown.append(anna.ask(path))
        assert shown[-1].status == 404, path
    for answer in shown:
        said = (
            text(answer).replace("canary-of-few", "", 1) if answer.status == 404 else text(answer)
        )
        assert "canary of" not in said and "zoe" not in said.replace("'zoe'", ""), said
    assert "canary" not in text(shown[0]) and "Talk" in text(shown[0]) and "board" in text(shown[0])


def test_what_an_agent_says_of_others_is_for_itself_and_the_owner(
    store: Store, as_: Callable[..., Door]
) -> None:
    store.agents.block(agent="bob", other="anna", reason="canary noise")
    for door, sees in ((as_("anna"), False), (as_("bob"), True), (as_(None), True)):
        answer = door.ask("/people/bob")
        assert ("canary noise" in answer.text) == sees
        assert ("Unblock anna" in buttons(answer)) == sees
    assert as_("anna").ask("/people/bob", {"do": "unblock", "other": "anna"}).status == 403
    assert store.agents.get("bob").dm


def test_the_buttons_of_an_agent_say_who_may_write_to_it(
    store: Store, as_: Callable[..., Door]
) -> None:
    door, bob = as_(None), lambda: store.agents.get("bob")
    assert press(door, "/people/bob", "Set", dm="restricted", discoverable="project").status == 303
    assert (bob().dm_policy, bob().discoverable) == ("restricted", "project")
    assert as_("anna").ask("/people/bob").status == 200
    with store.beside(agent="anna") as anna, pytest.raises(Exception, match="requires permission"):
        anna.messages.send("may I?", to="bob")
    assert "anna asked" in text(door.ask("/people/bob"))
    press(door, "/people/bob", "Allow anna")
    assert bob().dm["anna"]["permission"] == "allow"
    press(door, "/people/bob", "Take back anna")
    press(door, "/people/bob", "Block", other="carl")
    assert {other: said["permission"] for other, said in bob().dm.items()} == {"carl": "block"}
    press(door, "/people/bob", "Say", text="at lunch")
    assert bob().status_message == "at lunch"


def test_the_page_says_what_an_agent_may_do_and_why_not(as_: Callable[..., Door]) -> None:
    def said(door: Door, agent: str, **asked: str) -> str:
        query = "&".join(f"{name}={value}" for name, value in asked.items())
        return text(door.ask(f"/people/{agent}?{query}"))

    owner = as_(None)
    assert "Yes: anna may" in said(owner, "anna", action="append", conversation="plans")
    assert "No: anna is not a member" in said(owner, "anna", action="append", conversation="board")
    assert "can't see that it exists" in said(
        owner, "anna", action="read", conversation="canary-of-few"
    )
    assert "Yes: anna may" in said(owner, "anna", action="message", other="bob")
    assert "is not an action" in said(owner, "anna", action="fly", other="bob")
    assert "who may invite" in said(as_("anna"), "anna", action="read", conversation="board")
    assert "No: " not in said(as_("anna"), "bob", action="append", conversation="plans")


def test_an_agent_shows_its_notes_and_where_it_is_woken(
    store: Store, as_: Callable[..., Door]
) -> None:
    store.notes.write("grass dries from above", agent="anna")
    doorbells.register(store, "anna", DoorbellTarget("herdr", {"pane": "1"}))
    assert "grass dries" in as_(None).ask("/people/anna").text and "herdr, not rung yet" in text(
        as_("anna").ask("/people/anna")
    )
    shown = text(as_("bob").ask("/people/anna"))
    assert "grass dries" not in shown and "herdr" not in shown


def test_the_owner_links_projects_and_an_agent_does_not(
    store: Store, as_: Callable[..., Door]
) -> None:
    api, web = (project.id for project in store.projects.list())
    door = as_(None)
    assert "anna" in text(door.ask(f"/projects/{api}")) and "plans" in text(
        door.ask(f"/projects/{api}")
    )
    assert press(door, f"/projects/{api}", "Link", other=web, direction="out").status == 303
    assert store.projects.get(api).links[web]["direction"] == "out"
    assert "sees web" in text(door.ask(f"/projects/{api}"))
    assert buttons(as_("anna").ask(f"/projects/{api}")) == []
    assert as_("anna").ask(f"/projects/{api}", {"do": "unlink", "other": web}).status == 403
    press(door, f"/projects/{api}", f"Unlink {web}")
    assert store.projects.get(api).links == {}


def test_a_channel_says_who_may_do_what_and_lets_agents_come_and_go(
    store: Store, as_: Callable[..., Door]
) -> None:
    id = store.channels.get("plans", agent="anna").id
    here, bob, owner = f"/channels/{id}", as_("bob"), as_(None)
    store.messages.send("x", agent="anna", channel="plans", topic="weather")
    assert "anna write, invite, manage, leave" in text(bob.ask(here)) and "weather" in text(
        bob.ask(here)
    )
    assert press(bob, here, "Join as bob").status == 303
    assert "2 members" in text(bob.ask(here)) and "bob write, invite, leave" in text(bob.ask(here))
    press(bob, here, "Set", notify="mentions")
    store.messages.send("y", agent="anna", channel="plans", topic="weather")
    assert store.messages.inbox(agent="bob").unread == 0
    assert not {"Remove anna", "Remove bob"} & {*buttons(bob.ask(here))} and "Invite" in buttons(
        bob.ask(here)
    )
    press(bob, here, "Leave as bob")
    assert "Invite" not in buttons(bob.ask(here))
    assert "1 member" in text(owner.ask(here))
    press(owner, here, "Invite", agents="carl, zoe")
    press(owner, here, "Remove carl")
    assert [member.id for member in store.channels.members(id) if member.is_in] == ["anna", "zoe"]
    refused = as_("anna").ask("/channels/board")
    assert (
        "who may invite" in text(refused)
        and "carl" not in text(refused).partition("who may invite")[0]
    )


def test_a_form_says_what_it_does_and_needs_a_token_that_may_write(
    as_: Callable[..., Door],
) -> None:
    assert as_(None).ask("/people/bob", {"do": "fly"}).status == 400
    reader = as_("bob", scope="read")
    assert buttons(reader.ask("/people/bob")) == [] and buttons(reader.ask("/channels/plans")) == []
    assert reader.ask("/people/bob", {"do": "status", "text": "x"}).status == 403


def test_an_empty_store_says_how_to_begin(tmp_path: Path) -> None:
    Store.init(tmp_path / "empty")
    with Store.open(tmp_path / "empty") as store:
        door = Door(store, Tokens(tmp_path / "config", store.root))
        door.enter(door.site.admission.token())
        assert "capsule agent register" in text(door.ask("/people"))
        assert "capsule worker set" in text(door.ask("/workers"))
        assert "The trash is empty" in text(door.ask("/repairs"))
        assert "There is no message yet" in text(door.ask("/overview"))


def test_more_agents_than_a_page_has_are_on_the_next(
    store: Store, as_: Callable[..., Door]
) -> None:
    for number in range(200):
        store.agents.register(f"many-{number:03}")
    first, second = as_(None).ask("/people"), as_(None).ask("/people?after=many-196")
    assert "/people?after=many-196" in first.text and "many-197" not in text(first)
    assert "many-197" in text(second) and "after=" not in second.text


@pytest.mark.slow
def test_the_page_brings_an_agent_in_with_the_consent_of_both(
    store: Store, as_: Callable[..., Door]
) -> None:
    anna = as_("anna")
    for number, pair in enumerate(PAIRS):
        id = store.channels.create(f"news-{number}", agent="anna", access="members").id
        say(store, "anna", "bob", pair)
        answer = anna.ask(f"/channels/{id}", {"do": "invite", "agents": "bob"})
        is_available = expected(*pair) == "available"
        assert answer.status == (303 if is_available else 403), pair
        assert is_available or expected(*pair) in text(answer), pair
        assert [member.id for member in store.channels.members(id)] == ["anna", "bob"][
            : 1 + is_available
        ], pair


def test_the_page_locks_chats_for_agents_and_all_for_the_owner(
    store: Store, as_: Callable[..., Door]
) -> None:
    plans = store.channels.get("plans", agent="anna").id
    with store.beside(keep_locks=False) as other:
        chat = other.create(title="Chat").id
    assert "Lock" in buttons(as_("anna").ask(f"/c/{chat}"))
    assert "Lock" not in buttons(as_("anna").ask(f"/c/{plans}"))
    assert as_("anna").ask(f"/c/{plans}/lock", {"on": "yes"}).status == 403
    assert "Lock" in buttons(as_(None).ask(f"/c/{plans}"))
