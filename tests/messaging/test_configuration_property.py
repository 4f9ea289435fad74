"""Whatever files declare, and people do in between: an apply does what its plan says, and the next
plan is empty.
"""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import CapsuleError, Store
from capsule.engines.interface import Engine
from capsule.messaging.configuration import Configuration
from capsule.settings import Settings

pytestmark = pytest.mark.slow

NAMES = st.sampled_from(["anna", "bob", "carl", "dora", "nobody"])
PROJECTS = st.sampled_from(["a", "b", "nowhere"])
CHANNELS = st.sampled_from(["x", "y", "news", "x@a", "y@b"])
DM, FOUND = (
    st.sampled_from(["open", "restricted", "closed"]),
    st.sampled_from(["public", "project", "private"]),
)
TEXT, FLAG, MANY, SOME = (
    st.sampled_from(["", "text"]),
    st.booleans(),
    st.lists(NAMES, max_size=3),
    st.lists(CHANNELS, max_size=2),
)


def table(**fields: Any) -> Any:
    return st.fixed_dictionaries({}, optional=fields)


CHANNEL = table(
    scope=st.sampled_from(["global", "a", "nowhere"]),
    access=st.sampled_from(["open", "members", "private"]),
    description=TEXT,
    default=FLAG,
    topic_required=FLAG,
    default_topic=TEXT,
    members=MANY,
)
DECLARED = st.builds(
    Settings,
    channels=st.dictionaries(CHANNELS, CHANNEL, max_size=3),
    agents=st.dictionaries(
        NAMES,
        table(dm=DM, discoverable=FOUND, description=TEXT, allow=MANY, block=MANY),
        max_size=3,
    ),
    links=st.dictionaries(PROJECTS, st.lists(PROJECTS, max_size=2).map(tuple), max_size=2),
)
FILE = st.fixed_dictionaries(
    {"name": st.sampled_from(["dora", "anna", "eve"])},
    optional={
        "dm_policy": DM,
        "discoverable": FOUND,
        "description": TEXT,
        "dm_whitelist": MANY,
        "never_default": FLAG,
        "channels": st.fixed_dictionaries(
            {}, optional={"global": SOME, "project": SOME, "exclude": SOME}
        ),
    },
)
BY_HAND = st.tuples(
    st.sampled_from(["leave", "block", "policy", "archive"]),
    st.sampled_from(["anna", "bob", "carl"]),
    CHANNELS,
)


def do(store: Store, deed: str, agent: str, channel: str) -> None:
    with suppress(CapsuleError):
        if deed == "leave":
            store.channels.leave(channel, agent=agent)
        elif deed == "block":
            store.agents.block(agent=agent, other="dora")
        elif deed == "policy":
            store.agents.policy(agent, dm="restricted", discoverable="private")
        else:
            store.channels.update(channel, archived=True)


def declared(engine: Engine, settings: Settings, folder: str, files: list[Any]) -> Configuration:
    place = Path(folder, ".claude", "agents")
    place.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        fields = files[number] if number < len(files) else {}
        (place / f"{number}.md").write_text(f"---\n{json.dumps(fields)}\n---\n")
    return Store("", settings, engine).configuration


@given(
    st.lists(
        st.tuples(DECLARED, st.lists(FILE, max_size=2), FLAG, st.lists(BY_HAND, max_size=2)),
        min_size=1,
        max_size=3,
    )
)
def test_an_apply_does_what_its_plan_says_and_the_next_plan_has_nothing_to_do(
    rounds: list[Any],
) -> None:
    with TemporaryDirectory() as folder, Store.in_memory() as store:
        for id, project in (("anna", "/a"), ("bob", "/b"), ("carl", None)):
            store.agents.register(id, project)
        store.channels.create("news", scope="global", default=True)
        for settings, files, prune, deeds in rounds:
            config = declared(store.engine, settings, folder, files)
            plan = config.plan([folder], prune=prune)
            applied = config.apply(plan)
            assert [of.key for of in applied.having("done")] == [
                of.key for of in plan.having("planned")
            ]
            assert config.plan([folder], prune=prune).having("planned") == []
            for deed in deeds:
                do(store, *deed)
        for applied in reversed(config.history()):
            assert config.rollback(applied.number).having("planned") == []
