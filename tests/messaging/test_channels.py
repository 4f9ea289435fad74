"""Channels: who comes in, who stays out, what a name means, and what becomes of a membership when a
link ends.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from capsule import InvalidInput, Locked, NotFound, Refused, Store
from capsule.messaging.directory import StoreAgents
from tests.processes import Child, together

API, WEB = "/projects/api", "/projects/web"
#: Their projects; dora works in none.
AGENTS = {"anna": API, "bob": API, "carl": WEB, "dora": None}


def project(store: Store, agent: str) -> str:
    return store.inner.object_of(StoreAgents).directory.profile(agent).project


def link(store: Store, direction: str) -> None:
    store.projects.link(project(store, "anna"), project(store, "carl"), direction=direction)


def unlink(store: Store) -> None:
    store.projects.unlink(project(store, "anna"), project(store, "carl"))


def members(store: Store, channel: str) -> list[str]:
    return [member.id for member in store.channels.members(channel)]


def names(store: Store, agent: str) -> list[str]:
    return [each.channel.name for each in store.channels.list(agent=agent)]


def outcome(act: Callable[[], Any]) -> str:
    try:
        act()
    except (NotFound, Refused) as error:
        return type(error).__name__
    return "in"


_OUT = {"carl": "NotFound"}
_IN_PROJECT = {"bob": "in", "dora": "in"}


@pytest.mark.parametrize(
    ("scope", "access", "links", "joining"),
    [
        ("project", "open", None, _IN_PROJECT | _OUT),
        ("project", "open", "in", _IN_PROJECT | {"carl": "in"}),
        ("project", "open", "both", _IN_PROJECT | {"carl": "in"}),
        ("project", "open", "out", _IN_PROJECT | _OUT),
        ("global", "open", None, _IN_PROJECT | {"carl": "in"}),
        ("project", "members", None, {"bob": "Refused", "dora": "Refused"} | _OUT),
        ("project", "members", "in", dict.fromkeys(("bob", "carl", "dora"), "Refused")),
        ("global", "members", None, dict.fromkeys(("bob", "carl", "dora"), "Refused")),
        ("project", "private", "both", dict.fromkeys(("bob", "carl", "dora"), "NotFound")),
        ("global", "private", None, dict.fromkeys(("bob", "carl", "dora"), "NotFound")),
    ],
)
def test_who_joins_a_channel_depends_on_its_scope_and_access(
    store: Store, scope: str, access: str, links: str | None, joining: dict[str, str]
) -> None:
    id = store.channels.create("news", agent="anna", scope=scope, access=access).id
    if links:
        link(store, links)
    listed = {agent for agent in joining if names(store, agent)}
    assert listed == {agent for agent, end in joining.items() if end != "NotFound"}
    assert {
        agent: outcome(lambda a=agent: store.channels.join(id, agent=a)) for agent in joining
    } == joining
    assert set(members(store, id)) == {"anna"} | {
        agent for agent, end in joining.items() if end == "in"
    }


def test_a_refusal_says_who_may_invite_and_a_member_by_whom_it_was(store: Store) -> None:
    store.channels.create("releases", agent="anna", access="members")
    with pytest.raises(Refused, match="anna"):
        store.channels.join("releases", agent="bob")
    store.channels.invite("releases", ["carl"], agent="anna", can_invite=True)
    store.channels.invite(store.channels.resolve("releases", "carl"), ["dora"], agent="carl")
    members = store.channels.members("releases", agent="dora")
    assert [(each.id, each.invited_by) for each in members] == [
        ("anna", "self"),
        ("carl", "anna"),
        ("dora", "carl"),
    ]


def test_who_manages_a_channel_changes_what_its_members_may_do_by_inviting_them_again(
    store: Store,
) -> None:
    id = store.channels.create(
        "releases", agent="anna", access="members", members=["bob", "carl"]
    ).id
    store.channels.invite("releases", ["bob"], agent="anna", can_send=False, can_invite=True)
    with pytest.raises(Refused):
        store.messages.send("hi", agent="bob", conversation=id)
    store.channels.invite("releases", ["dora"], agent="bob")
    for rights in ({"can_send": True}, {"can_manage": True}, {"can_leave": False}):
        with pytest.raises(Refused):
            store.channels.invite("releases", ["bob", "carl"], agent="bob", **rights)
    for act in (
        lambda: store.channels.update(id, description="ours", agent="bob"),
        lambda: store.channels.remove(id, "anna", agent="bob"),
    ):
        assert outcome(act) == "Refused"
    store.channels.invite(
        "releases", ["bob", "dora"], agent="bob"
    )  # Nothing changes, so nothing is refused.
    before = store.channels.members("releases", agent="bob")
    store.channels.invite("releases", ["bob"], agent="anna", can_send=True, can_invite=False)
    bob, was = (
        next(each for each in there if each.id == "bob")
        for there in (store.channels.members(id), before)
    )
    assert (bob.can_send, bob.can_invite) == (True, False)
    assert (bob.joined_at, bob.invited_by) == (was.joined_at, was.invited_by)
    store.messages.send("hi", agent="bob", conversation=id)


def test_a_membership_by_oneself_ends_with_the_link_and_one_by_invitation_stays(
    store: Store,
) -> None:
    for name, access in (("news", "open"), ("crew", "members")):
        store.channels.create(name, agent="anna", access=access)
    link(store, "both")
    store.channels.join("news", agent="carl")
    store.channels.invite("crew", ["carl"], agent="anna")
    ids = [store.channels.resolve(name, "carl") for name in ("news", "crew")]
    unlink(store)
    assert names(store, "carl") == ["crew"]
    assert [
        outcome(lambda id=id: store.beside(agent="carl").append(id, content="hi")) for id in ids
    ] == [
        "NotFound",
        "in",
    ]
    link(store, "both")
    assert names(store, "carl") == ["crew", "news"]
    store.beside(agent="carl").append(ids[0], content="back")


_COMES_BACK: dict[str, Callable[[Store, str], Any]] = {
    "invite": lambda store, id: store.channels.invite(id, ["bob"], agent="anna"),
    "the owner": lambda store, id: store.channels.invite(id, ["bob"]),
    "default": lambda store, id: store.channels.join_defaults("bob"),
    "frontmatter": lambda store, id: store.channels.join(id, agent="bob", source="frontmatter"),
    "itself": lambda store, id: store.channels.join(id, agent="bob"),
}


@pytest.mark.parametrize(
    ("access", "how", "by", "is_back"),
    [
        ("open", "left", "invite", False),
        ("open", "left", "the owner", False),
        ("open", "left", "default", False),
        ("open", "left", "frontmatter", False),
        ("open", "left", "itself", True),
        ("members", "left", "invite", False),
        ("members", "left", "itself", True),
        ("open", "removed", "invite", True),
        ("open", "removed", "default", False),
        ("open", "removed", "frontmatter", True),
        ("members", "removed", "invite", True),
        ("members", "removed", "the owner", True),
        ("members", "removed", "itself", False),
    ],
)
def test_who_opted_out_comes_back_by_itself_and_who_was_removed_by_others(
    store: Store, access: str, how: str, by: str, is_back: bool
) -> None:
    id = store.channels.create("news", agent="anna", access=access, default=True).id
    store.channels.invite(id, ["bob"], agent="anna")
    if how == "left":
        store.channels.leave(id, agent="bob")
    else:
        store.channels.remove(id, "bob", agent="anna")
    assert members(store, id) == ["anna"]
    outcome(lambda: _COMES_BACK[by](store, id))
    assert ("bob" in members(store, id)) is is_back


def test_an_agent_of_another_project_that_left_comes_back_on_its_invitation(store: Store) -> None:
    id = store.channels.create("crew", agent="anna", access="members").id
    store.channels.invite(id, ["carl"], agent="anna")
    store.channels.leave("crew", agent="carl")
    store.channels.join(id, agent="carl")
    assert members(store, id) == ["anna", "carl"]
    store.channels.remove(id, "carl", agent="anna")
    assert outcome(lambda: store.channels.join(id, agent="carl")) == "NotFound"


def test_who_is_not_registered_joins_nothing(store: Store) -> None:
    id = store.channels.create("news", agent="anna", scope="global").id
    assert outcome(lambda: store.channels.join(id, agent="zoe")) == "NotFound"
    assert outcome(lambda: store.channels.invite(id, ["zoe"], agent="anna")) == "Refused"
    assert outcome(lambda: store.channels.invite(id, ["zoe"])) == "NotFound"
    assert members(store, id) == ["anna"]


def test_nobody_but_a_person_lets_another_into_a_private_channel(store: Store) -> None:
    id = store.channels.create("plan", agent="anna", access="private", members=["bob"]).id
    for change in (
        lambda: store.channels.invite(id, ["dora"], agent="anna"),
        lambda: store.channels.remove(id, "bob", agent="anna"),
        lambda: store.channels.update(id, access="open", agent="anna"),
    ):
        assert outcome(change) == "Refused"
    store.channels.invite(id, ["dora"])
    assert members(store, id) == ["anna", "bob", "dora"]


def test_whoever_left_a_private_channel_comes_back_by_a_new_invitation_alone(store: Store) -> None:
    id = store.channels.create("plan", agent="anna", access="private", members=["bob", "dora"]).id
    store.channels.leave(id, agent="bob")
    assert members(store, id) == ["anna", "dora"] and names(store, "bob") == []
    assert outcome(lambda: store.beside(agent="bob").load(id)) == "NotFound"
    for back in (
        lambda: store.channels.join(id, agent="bob"),
        lambda: store.channels.invite(id, ["bob"], agent="bob"),
    ):
        assert outcome(back) == "NotFound"
    assert outcome(lambda: store.channels.invite(id, ["bob"], agent="dora")) == "Refused"
    store.agents.block(agent="bob", other="anna")
    assert outcome(lambda: store.channels.invite(id, ["bob"], agent="anna")) == "Refused"
    store.agents.forget(agent="bob", other="anna")
    for invites in ("anna", None):
        assert outcome(lambda who=invites: store.channels.invite(id, ["bob"], agent=who)) == "in"
        assert members(store, id) == ["anna", "bob", "dora"]
        store.messages.send("here again", agent="bob", conversation=id)
        store.channels.leave(id, agent="bob")


def test_nobody_leaves_its_own_notes_and_whoever_reads_them_does(store: Store) -> None:
    store.notes.write("mine", agent="anna")
    notes = "notes_anna"
    store.notes.share("bob", agent="anna")
    assert outcome(lambda: store.channels.leave(notes, agent="anna")) == "Refused"
    store.channels.leave(notes, agent="bob")
    assert outcome(lambda: store.beside(agent="bob").load(notes)) == "NotFound"
    store.notes.share("bob", agent="anna")
    assert store.beside(agent="bob").load(notes).history[0].content == "mine"


def test_a_global_channel_becomes_a_default_one_by_a_person(store: Store) -> None:
    refused = lambda: store.channels.create("all", agent="anna", scope="global", default=True)  # noqa: E731
    assert outcome(refused) == "Refused" and store.channels.list() == []
    id = store.channels.create("all", agent="anna", scope="global").id
    assert outcome(lambda: store.channels.update(id, agent="anna", default=True)) == "Refused"
    assert (
        outcome(lambda: store.channels.create("none", agent="dora", default=True)) == "Refused"
    )  # She has no project.
    store.channels.update(id, default=True)
    store.channels.create("api", agent="anna", default=True)
    store.agents.register("emil", API)
    assert names(store, "emil") == [*names(store, "anna")]


def test_an_agent_locks_chats_alone_and_a_person_everything(store: Store) -> None:
    chat = store.create(title="plan").id
    ids = [store.messages.send("hi", agent="anna", to="bob").conversation]
    ids.append(store.groups.create("Talk", agent="anna", with_=["bob"]).id)
    ids += [
        store.channels.create(access, agent="anna", access=access).id
        for access in ("open", "members", "private")
    ]
    store.notes.write("mine", agent="anna")
    ids += ["notes_anna", store.create(type="group").id]
    anna = store.beside(agent="anna", keep_locks=False)
    for id in ids:
        assert outcome(lambda id=id: anna.locks.take(id)) == "Refused"
        anna.append(id, content="not locked")
        with store.locks.take(id), pytest.raises(Locked):
            anna.append(id, content="locked")
    store.locks.release(chat)
    with anna.locks.take(chat), pytest.raises(Locked):
        store.append(chat, content="locked")


def test_a_private_channel_is_not_told_by_its_name(store: Store) -> None:
    hidden = store.channels.create("plan", agent="anna", access="private").id
    store.channels.create("news", agent="anna")
    store.channels.update(
        "news", access="private"
    )  # It keeps the id of its name, as those of older stores have.
    for name in ("plan", "news"):
        mine = store.channels.create(name, agent="bob")
        assert store.channels.resolve(name, "bob") == mine.id
        assert store.beside(agent="bob").channels.join(name).id == mine.id
        with pytest.raises(InvalidInput):
            store.channels.create(name, agent="bob", access="private")
        for agent in (None, "anna"):  # She is not to write to the one that all read, for her own.
            with pytest.raises(InvalidInput, match=mine.id):
                store.channels.get(name, agent=agent)
    assert (
        store.channels.get(hidden, agent="anna").id
        == hidden
        != f"channel_{project(store, 'anna')}_plan"
    )


def test_a_name_means_the_own_project_then_global_then_others(store: Store) -> None:
    api, web = (project(store, agent) for agent in ("anna", "carl"))
    ids = {
        scope: store.channels.create("news", agent=agent, scope=scope).id
        for scope, agent in ((api, "anna"), (web, "carl"), ("global", "anna"))
    }
    resolve = store.channels.resolve
    assert [resolve("news", agent) for agent in AGENTS] == [
        ids[api],
        ids[api],
        ids[web],
        ids["global"],
    ]
    assert [resolve(f"news@{where}", "dora") for where in (api, "api", web, "global")] == [
        ids[api],
        ids[api],
        ids[web],
        ids["global"],
    ]
    assert resolve(ids[web], "carl") == resolve("news", "carl")
    for text in (ids[web], "news@web", f"news@{web}"):
        with pytest.raises(NotFound):
            resolve(text, "anna")
    store.delete(ids["global"])
    for agent in ("dora", None):
        with pytest.raises(InvalidInput, match=f"news@{api} .*news@{web} "):
            resolve("news", agent)
    link(store, "out")
    store.delete(ids[api])
    assert resolve("news", "anna") == ids[web]


def test_a_channel_of_another_project_is_named_by_its_members_and_no_error_names_that_project(
    store: Store,
) -> None:
    id = store.channels.create("crew", agent="carl", access="members").id
    web = project(store, "carl")
    for text in ("crew", "crew@web", f"crew@{web}", id, "crew@../conversations/x", "crew@nowhere"):
        with pytest.raises(NotFound) as missing:
            store.channels.join(text, agent="anna")
        assert web not in missing.value.message.replace(text, "")
    for scope in ("web", web, "nowhere"):
        with pytest.raises(NotFound) as missing:
            store.channels.create("mine", agent="anna", scope=scope)
        assert web not in missing.value.message.replace(scope, "")
    store.channels.invite(id, ["anna"], agent="carl")
    assert {
        store.channels.resolve(text, "anna") for text in ("crew", "crew@web", f"crew@{web}", id)
    } == {id}


def test_a_name_is_taken_once_in_a_scope(store: Store) -> None:
    id = store.channels.create("news", agent="anna").id
    assert id == f"channel_{project(store, 'anna')}_news"
    for agent in ("anna", "bob"):
        with pytest.raises(InvalidInput, match="news"):
            store.channels.create("news", agent=agent)
    store.channels.create("news", agent="carl")
    store.channels.create("news", agent="bob", scope="global")
    assert len({each.id for each in store.channels.list()}) == 3


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("News", {}),
        ("a_b", {}),
        ("x" * 81, {}),
        ("", {}),
        ("news", {"access": "closed"}),
        ("news", {"scope": "nowhere"}),
        ("news", {"members": ["zoe"]}),
    ],
)
def test_what_is_no_channel_is_not_made(store: Store, name: str, settings: dict[str, Any]) -> None:
    with pytest.raises((InvalidInput, NotFound, Refused)):
        store.channels.create(name, agent="anna", **settings)
    assert store.channels.list() == []


def test_what_a_channel_is_can_be_changed_but_for_its_name_and_scope(store: Store) -> None:
    store.channels.create("news", agent="anna", description="old", default_topic="misc")
    store.channels.update(
        "news", agent="anna", description="new", topic_required=True, default_topic=""
    )
    (listed,) = store.channels.list(agent="bob")
    channel = listed.channel
    assert (listed.description, channel.topic_required, channel.default_topic) == ("new", True, "")
    assert (listed.members, listed.is_in, channel.access) == (1, False, "open")
    store.channels.update("news", archived=True)
    assert (store.channels.list(), len(store.channels.list(archived=True))) == ([], 1)
    store.channels.join("news", agent="bob")


def test_default_channels_are_joined_at_registration_unless_excluded(store: Store) -> None:
    for name, settings in {
        "all": {},
        "api": {"scope": "project"},
        "crew": {"access": "members"},
    }.items():
        id = store.channels.create(name, agent="anna", **({"scope": "global"} | settings)).id
        store.channels.update(id, default=True)
    store.channels.create("optional", agent="anna", scope="global")
    for _ in range(2):
        store.agents.register("emil", API)
        store.agents.register("fritz", WEB)
        store.agents.register("gerd", API, exclude=["api"])
        store.agents.register("hans", API, exclude=["*"])
        store.agents.register("gerd", API)  # What was excluded once stays so.
        store.agents.register("hans", API)
    there = {
        each.id: [member.id for member in store.channels.members(each.id)]
        for each in store.channels.list()
    }
    assert there == {
        "channel_global_all": ["anna", "emil", "fritz", "gerd"],
        "channel_global_crew": ["anna"],
        "channel_global_optional": ["anna"],
        f"channel_{project(store, 'anna')}_api": ["anna", "emil"],
    }
    assert [(m.invited_by, m.source) for m in store.channels.members("all") if m.id == "emil"] == [
        ("system", "default")
    ]
    assert outcome(lambda: store.channels.join("api", agent="gerd")) == "in"


def test_what_one_is_told_of_stands_in_the_document_of_the_agent(store: Store) -> None:
    store.channels.create("news", agent="anna")
    store.channels.mute("news", agent="bob")
    store.channels.mute("news", None, notify="mentions", agent="bob")
    id = store.channels.resolve("news")
    assert store.agents._documents.read("bob")["reading"] == {
        id: {"muted": True, "notify": "mentions"}
    }
    store.channels.mute(id, False, agent="bob")
    assert store.agents._documents.read("bob")["reading"] == {
        id: {"muted": False, "notify": "mentions"}
    }
    with pytest.raises(InvalidInput):
        store.channels.mute(id, notify="some", agent="bob")
    with pytest.raises(NotFound):
        store.channels.mute(id, agent="carl")


def test_the_topics_of_a_channel_are_those_of_its_messages(store: Store) -> None:
    id = store.channels.create("news", agent="anna").id
    for topic in ("api", "web", "api"):
        store.append(id, content="hello", topic=topic)
    found = store.channels.topics("news", agent="bob")
    assert [(name, count) for name, count, _ in found] == [("api", 2), ("web", 1)]
    with pytest.raises(NotFound):
        store.channels.topics(id, agent="carl")


MAKES = """
with Store.open(sys.argv[1]) as store:
    say()
    hear()
    made = []
    for number in range(20):
        try:
            store.channels.create(f"n{number}", agent=sys.argv[2], scope="global")
            made.append(number)
        except CapsuleError as error:
            assert type(error).__name__ == "InvalidInput", error
    say(made)
"""


@pytest.mark.slow
def test_of_two_processes_that_make_one_channel_at_a_moment_one_does(
    root: Any, child: Callable[..., Child]
) -> None:
    with Store.open(root) as store:
        for agent in ("anna", "bob"):
            store.agents.register(agent)
        sides = [child(MAKES, store.root, agent) for agent in ("anna", "bob")]
        together(*sides)
        made = [set(side.hear()) for side in sides]
        assert made[0] | made[1] == set(range(20))
        assert not made[0] & made[1]
        for agent, numbers in zip(("anna", "bob"), made, strict=True):
            assert all(members(store, f"n{number}") == [agent] for number in numbers)
