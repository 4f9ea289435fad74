"""Configuration as code: what is planned, what is refused, and what is taken back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from capsule import NotFound, Refused, Store, settings
from capsule.format.documents.agents import project_id
from capsule.messaging.configuration import Plan, current_value
from capsule.messaging.directory import StoreAgents

A, B = project_id("/a"), project_id("/b")


AGENTS = {"anna": "/a", "bob": "/b", "carl": None}


def declaring(store: Store, toml: str) -> Store:
    """The same documents, with this `capsule.toml`."""
    return Store("", settings.parse(toml.encode(), "capsule.toml"), store.engine)


def agent_file(folder: Path, fields: str, name: str = "dora") -> Path:
    path = folder / ".claude" / "agents" / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"---\nname: {name}\n{fields}\n---\nBe brief.\n")
    return path


def brief(plan: Plan) -> list[Any]:
    return [(of.kind, of.on, of.other, of.before, of.after) for of in plan.actions]


NEWS, API = "channel_global_news", f"channel_{A}_api"
MADE: list[tuple[str, list[Any]]] = [
    ("[links]\na = ['b']", [("link", A, B, None, True)]),
    ("[links]\na = ['b']\nb = ['a']", [("link", A, B, None, True), ("link", B, A, None, True)]),
    ("[channels.news]", [("channel", NEWS, "access", None, "open")]),
    (
        (
            "[channels.api]\nscope = 'a'\naccess = 'members'\ndescription = 'x'\ndefault = true\n"
            "members = ['bob@b', 'carl']"
        ),
        [
            ("channel", API, "access", None, "members"),
            ("channel", API, "description", "", "x"),
            ("channel", API, "default", False, True),
            ("member", API, "bob", None, True),
            ("member", API, "carl", None, True),
        ],
    ),
    (
        "[channels.'api@a']\naccess = 'private'\nmembers = []",
        [("channel", API, "access", None, "private")],
    ),
    (
        "[channels.news]\ntopic_required = true\ndefault_topic = 'all'",
        [
            ("channel", NEWS, "access", None, "open"),
            ("channel", NEWS, "topic_required", False, True),
            ("channel", NEWS, "default_topic", "", "all"),
        ],
    ),
    (
        (
            "[agents.bob]\ndm = 'restricted'\ndiscoverable = 'project'\ndescription = 'builds'\n"
            "allow = ['anna']\nblock = ['carl']"
        ),
        [
            ("agent", "bob", "dm", "open", "restricted"),
            ("agent", "bob", "discoverable", "public", "project"),
            ("agent", "bob", "description", "", "builds"),
            ("entry", "bob", "carl", None, "block"),
            ("entry", "bob", "anna", None, "allow"),
        ],
    ),
    ("[agents.'bob@b']\ndm = 'open'", []),
    ("", []),
]


@pytest.mark.parametrize(("toml", "expected"), MADE)
def test_what_is_declared_is_planned_and_applied_once_and_can_be_rolled_back(
    store: Store, toml: str, expected: list[Any]
) -> None:
    store.channels.create("all", scope="global", default=True)
    config = declaring(store, toml).configuration
    plan = config.plan()
    assert brief(plan) == expected == brief(config.plan()), "a plan changes nothing"
    applied = config.apply(plan)
    assert applied.having("done") == list(applied.actions) and brief(applied) == expected
    assert config.plan().actions == () == (*store.channels.members("all"),)
    assert [each.number for each in config.history()] == ([1] if expected else [])
    if expected:
        taken = config.rollback(1)
        assert taken.having("refused") == []
        assert all(current_value(store, of.key) == of.before for of in taken.actions) is False
        assert brief(config.plan())[0] == expected[0]


REFUSED = [
    ("[links]\na = ['c']", ("link", "a", "c"), "c"),
    ("[channels.'No Name']", ("channel", "No Name@global", "access"), "No Name"),
    ("[channels.x]\nscope = 'c'", ("channel", "x@c", "access"), "c"),
    ("[channels.x]\nmembers = ['dora']", ("member", "x@global", "dora"), "dora"),
    ("[agents.dora]\ndm = 'closed'", ("agent", "dora", "dm"), "dora"),
    ("[agents.bob]\nallow = ['dora']", ("entry", "bob", "dora"), "dora"),
    ("[agents.bob]\nallow = ['anna']", ("entry", "bob", "anna"), "blocked"),
]


@pytest.mark.parametrize(("toml", "key", "reason"), REFUSED)
def test_what_can_not_be_is_reported_and_the_rest_is_done(
    store: Store, toml: str, key: Any, reason: str
) -> None:
    store.agents.block(agent="bob", other="anna")
    config = declaring(store, toml + "\n[agents.anna]\ndm = 'closed'").configuration
    applied = config.apply(config.plan())
    (refused,) = applied.having("refused")
    assert refused.key == key and reason in refused.reason
    assert ("agent", "anna", "dm", "open", "closed") in [
        (*of.key, of.before, of.after) for of in applied.having("done")
    ]
    assert config.plan().having("planned") == []


def test_an_agent_that_has_left_a_channel_by_itself_is_no_difference(
    store: Store, tmp_path: Path
) -> None:
    agent_file(tmp_path, "channels:\n  global: [news]")
    config = declaring(store, "[channels.news]\nmembers = ['carl']").configuration
    assert config.apply(config.plan([str(tmp_path)])).having("refused") == []
    for agent in ("carl", "dora"):
        store.channels.leave("news", agent=agent)
    for prune in (False, True):
        assert config.plan([str(tmp_path)], prune=prune).actions == ()


FILED = [
    ("dm_policy: closed", [("agent", "dm", "closed")], []),
    (
        "discoverable: private\ndescription: Reviews.",
        [("agent", "discoverable", "private"), ("agent", "description", "Reviews.")],
        [],
    ),
    ("dm_whitelist: [anna]", [("entry", "anna", "allow")], []),
    (
        "channels:\n  global: [news]\n  project: [api]",
        [("member", "DORA", True), ("member", "DORA", True)],
        [],
    ),
    ("channels:\n  global: [staff]", [], ["anna"]),  # By invitation, and it says who may invite.
    ("channels:\n  global: [nowhere]", [], ["nowhere"]),
    (f"channels:\n  project: ['far@{B}']", [], ["far"]),  # Out of scope.
    ("dm_whitelist: [nobody]", [], ["nobody"]),
    ("dm_policy: open", [], []),
    ("channels:\n  project: [talk]", [], []),  # The agent has left it for good.
]


@pytest.mark.parametrize(("fields", "done", "refused"), FILED)
def test_the_file_of_an_agent_grants_what_the_agent_itself_may_do(
    store: Store, tmp_path: Path, fields: str, done: list[Any], refused: list[str]
) -> None:
    path, here = agent_file(tmp_path, fields), project_id(str(tmp_path))
    dora = store.agents.register("dora", str(tmp_path)).id
    for name, scope, access in (
        ("news", "global", "open"),
        ("api", here, "open"),
        ("far", B, "open"),
        ("talk", here, "open"),
    ):
        store.channels.create(name, scope=scope, access=access)
    store.channels.create("staff", agent="anna", scope="global", access="members")
    store.channels.join("talk", agent=dora)
    store.channels.leave("talk", agent=dora)
    config = store.configuration
    applied = config.apply(config.plan([str(tmp_path)]))
    found = [(of.kind, of.other.replace("dora", "DORA"), of.after) for of in applied.having("done")]
    assert found == done
    assert {(of.by, of.file) for of in applied.actions} <= {(dora, str(path))}
    assert len(applied.having("refused")) == len(refused)
    assert all(
        word in of.reason for word, of in zip(refused, applied.having("refused"), strict=True)
    )
    assert config.plan([str(tmp_path)]).having("planned") == []


@pytest.mark.parametrize("taken", ["", "/b", "global"])
def test_the_file_of_an_agent_registers_it_and_takes_over_no_other_agent_of_its_name(
    store: Store, tmp_path: Path, taken: str
) -> None:
    if taken:
        store.agents.register("dora", taken if taken == "/b" else None, name="Other")
    agent_file(tmp_path / "project", "dm_policy: closed")
    agent_file(tmp_path / "home", "discoverable: private")
    folders = [str(tmp_path / "project")], str(tmp_path / "home")
    config = store.configuration
    applied = config.apply(config.plan(*folders))
    assert applied.having("refused") == [] == config.plan(*folders).having("planned")
    agents = {
        each: store.inner.object_of(StoreAgents).directory.profile(each)
        for each in store.agents.names()
    }
    mine = [
        (of.project, of.dm, of.discoverable) for id, of in agents.items() if id.startswith("dora")
    ]
    expected = [(project_id(folders[0][0]), "closed", "public"), ("global", "open", "private")]
    assert sorted(mine) == sorted([*expected, *([(B, "open", "public")] if taken == "/b" else [])])
    assert not taken or agents["dora"].name == "Other"


@pytest.mark.parametrize("is_registered", [False, True])
@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ("", {"all", "some", "own"}),
        ("channels:\n  exclude: [some]", {"all", "own"}),
        ("never_default: true", {"own"}),
    ],
)
def test_an_agent_stays_out_of_the_default_channels_that_its_file_excludes(
    store: Store, tmp_path: Path, fields: str, expected: set[str], is_registered: bool
) -> None:
    for name in ("all", "some", "own"):
        store.channels.create(name, scope="global", default=name != "own")
    if is_registered:
        store.agents.register("dora", str(tmp_path))
    agent_file(tmp_path, fields)
    config = declaring(store, "[channels.own]\ndefault = true\nmembers = ['dora']").configuration
    assert config.apply(config.plan([str(tmp_path)])).having("refused") == []
    store.agents.register("dora")
    assert {of.channel.name for of in store.channels.list(agent="dora") if of.is_in} == expected
    assert config.plan([str(tmp_path)], prune=True).actions == ()
    assert store.configuration.plan(prune=True).having("refused") == [], (
        "who has left is not invited again"
    )


def test_capsule_toml_counts_more_than_the_file_of_an_agent(store: Store, tmp_path: Path) -> None:
    agent_file(tmp_path, "dm_policy: open\ndm_whitelist: [anna]", "bob")
    store.agents.register("bob", "/b")
    config = declaring(
        store, f"[agents.'bob@{project_id(str(tmp_path))}']\ndm = 'closed'\nblock = ['anna']"
    ).configuration
    applied = config.apply(config.plan([str(tmp_path)]))
    assert [(of.other, of.after) for of in applied.actions[1:]] == [
        ("dm", "closed"),
        ("anna", "block"),
    ]
    assert config.plan([str(tmp_path)]).actions == ()


def test_only_what_an_apply_did_is_pruned_and_only_as_it_left_it(store: Store) -> None:
    store.channels.create("own", scope="global")
    store.agents.policy("carl", dm="closed")
    toml = "[channels.news]\nmembers = ['anna']\n[agents.bob]\ndm = 'closed'\nallow = ['anna']\n"
    config = declaring(
        store, toml + "[agents.anna]\ndm = 'closed'\n[links]\na = ['b']"
    ).configuration
    config.apply(config.plan())
    store.agents.policy("anna", dm="restricted")
    after = declaring(store, "[agents.bob]\ndm = 'closed'").configuration
    assert after.plan().actions == ()
    plan = after.plan(prune=True)
    assert brief(plan) == [
        ("link", A, B, True, None),
        ("channel", NEWS, "access", "open", None),
        ("member", NEWS, "anna", True, None),
        ("entry", "bob", "anna", "allow", None),
        ("agent", "anna", "dm", "restricted", "open"),
    ]
    assert [of.other for of in plan.having("refused")] == ["dm"]
    assert len(after.apply(plan).having("done")) == 4
    assert after.plan(prune=True).having("planned") == []
    assert store.head(NEWS).archived and not store.head("channel_global_own").archived
    profile = store.inner.object_of(StoreAgents).directory.profile
    assert [profile(id).dm for id in ("anna", "bob", "carl")] == [
        "restricted",
        "closed",
        "closed",
    ]
    config.apply(config.plan())
    assert not store.head(NEWS).archived


def test_a_member_that_was_rolled_back_comes_back_with_the_next_apply(
    store: Store, tmp_path: Path
) -> None:
    store.channels.create("news", scope="global")
    agent_file(tmp_path, "channels:\n  global: [news]")
    config = store.configuration
    config.apply(config.plan([str(tmp_path)]))
    for number in (1, 2):
        assert [of.is_in for of in store.channels.list(agent="dora")] == [number == 1]
        config.rollback(number)
    assert [of.is_in for of in store.channels.list(agent="dora")] == [True], (
        "a rollback can be rolled back"
    )
    config.rollback(1)
    config.apply(config.plan([str(tmp_path)]))
    assert [of.is_in for of in store.channels.list(agent="dora")] == [True]
    with pytest.raises(NotFound):
        config.rollback(9)


def test_an_apply_that_was_cut_short_can_be_rolled_back(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = declaring(store, "[channels.news]\n[agents.bob]\ndm = 'closed'").configuration
    plan = config.plan()

    def dies(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("capsule.messaging.agents.Agents.policy", dies)
        with pytest.raises(KeyboardInterrupt):
            config.apply(plan)
    store.agents.forget("bob")
    assert [of.kind for of in config.rollback(1).having("done")] == ["channel"]


def test_applies_at_the_same_moment_are_all_recorded(store: Store) -> None:
    configs = [declaring(store, f"[channels.c{n}]").configuration for n in range(8)]
    plans = [config.plan() for config in configs]
    with ThreadPoolExecutor(8) as pool:
        applied = [*pool.map(lambda config, plan: config.apply(plan), configs, plans)]
    assert (
        sorted(plan.number for plan in applied)
        == [*range(1, 9)]
        == [plan.number for plan in configs[0].history()]
    )


def test_the_configuration_is_no_agents_affair(store: Store) -> None:
    config = store.beside(agent="anna").configuration
    for call in (
        config.plan,
        config.history,
        lambda: config.apply(Plan((), {})),
        lambda: config.rollback(1),
    ):
        with pytest.raises(Refused):
            call()
