"""Hosts and workers are killed again and again, and the clock jumps, while messages come and
schedules run.

Every message is answered once, or failed and its sender was told; each occurrence of a schedule
comes once, and none is left out.
"""

from __future__ import annotations

import json
import os
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from capsule import Store, timestamps
from capsule.errors import NotFound
from capsule.sessions.events import Route, reply_id
from capsule.sessions.registry import Registry
from capsule.sessions.rules import messages, schedules
from capsule.sessions.session import Session
from capsule.sessions.session_state import FINAL
from tests.processes import PATIENCE_S, Child
from tests.sessions.hosting import group
from tests.torture.nursery import JUMPS_S
from tests.torture.writers import LONG, assert_only_leftovers

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not hasattr(os, "pidfd_open"), reason="processes are known by their numbers alone here"
    ),
]

KILLS, MESSAGES, PEOPLE, LIFE_S = (1000, 10_000, 10, 0.5) if LONG else (40, 600, 4, 0.25)
AGENTS = ("amber", "birch")
SERIES = ("all", "latest", "skip")


def schedule(store: Store, agent: str) -> dict[str, Session]:
    """A session for each way to catch up, with a series of a task a minute; by these ways."""
    registry, made = Registry(store.engine), {}
    for catch_up in SERIES:
        place, now = (
            store.messages.send("Hello", agent=f"{catch_up}-{agent}", to=agent).conversation,
            timestamps.now(),
        )
        row = registry.ensure_session((agent, "conversations", place, ""), now)
        session = made[catch_up] = Session.create(store.engine, row.id, row.id)
        task = {
            "action": "make",
            "series": "s",
            "prompt": "Look",
            "cron": "* * * * *",
            "catchUp": catch_up,
        }
        to = Route("conversations", place)
        session.write_inbound(
            lambda session_state, task=task, now=now, to=to: schedules.apply_task(
                session_state, task, "first", now, route=to
            )
        )
    return made


def state_of(session: Session, id: str) -> str:
    try:
        return session.read().status(id)
    except NotFound:
        return "unknown"


def is_settled(session: Session, ids: list[str]) -> bool:
    """Whether all these messages are at their end, what was said is delivered, and no task comes in
    ten seconds.
    """
    if any(state_of(session, id) not in FINAL for id in ids):
        return False
    session_state = session.read()
    soon = messages.add_seconds(timestamps.now(), JUMPS_S[1] + 10)
    tasks = schedules.live_occurrences(session_state).values()
    return not (
        any(session_state.undelivered_messages())
        or session_state.inbound.notices
        or any(task.due < soon for task in tasks)
    )


def said(
    store: Store, conversation: str, agent: str
) -> tuple[dict[str, Counter[str]], dict[str, str]]:
    """By the first word of what an agent said, how often each message is named in it; and the times
    named with them.
    """
    counts, times = defaultdict[str, Counter[str]](Counter), dict[str, str]()
    for entry in store.engine.document("conversations", conversation)["history"]:
        if entry["from"] == agent:
            first, *named = entry["content"].split()
            pairs = [word.partition("@") for word in named if "@" in word]
            counts[first].update(id for id, _, _ in pairs)
            times |= {id: at for id, _, at in pairs}
    return counts, times


def notices(store: Store, conversation: str, agent: str) -> Counter[tuple[str, str]]:
    """How often an agent told a sender of a failed message: by the sender and the message."""
    history = store.engine.document("conversations", conversation)["history"]
    senders = {entry["id"]: entry["from"] for entry in history}
    told = Counter[tuple[str, str]]()
    for entry in history:
        ids = re.findall("capsule worker retry (.*)", entry["content"])
        if entry["from"] == agent and ids:
            assert entry["replyTo"] in ids
            told.update((senders[entry["replyTo"]], id) for id in ids)
    return told


def assert_answered(
    store: Store, session: Session, conversation: str, agent: str, senders: dict[str, str]
) -> Counter[str]:
    """Assert that each message was answered once, or failed and its sender was told once; how many
    became what.
    """
    counts, _ = said(store, conversation, agent)
    states = {id: state_of(session, id) for id in senders}
    assert set(states.values()) <= {"completed", "failed"}
    for id, state in states.items():
        assert counts["answered"][id] == (state == "completed"), (conversation, id, state)
        assert counts["meanwhile"][id] <= 1, (conversation, id, "said twice what is said once")
    failed = Counter((senders[id], id) for id, state in states.items() if state == "failed")
    assert notices(store, conversation, agent) == failed
    by_sender = Counter(sender for sender, _ in failed)
    assert session.read().inbound.failures == {
        sender: (count, count) for sender, count in by_sender.items()
    }
    return Counter(states.values()) + Counter(told=len(by_sender))


def assert_ran(store: Store, session: Session, catch_up: str, agent: str) -> int:
    """Assert that a series ran once at each of its times; how often it ran."""
    route = session.read().inbound.messages[session.read().inbound.series["s"]].route
    assert route is not None
    counts, times = said(store, route.place, agent)
    id, chain = reply_id(session.id, "first", "next"), []
    while (state := state_of(session, id)) != "unknown":
        assert counts["answered"][id] == (state == "completed"), (catch_up, id, state)
        chain.append((id, state))
        id = reply_id(session.id, id, "next")
    *over, (head, _) = chain
    assert session.read().inbound.series["s"] == head
    assert {state for _, state in over} <= (
        {"completed", "failed"} if catch_up == "all" else FINAL
    ), over
    ran = [
        (place, timestamps.ms_of(times[id])) for place, (id, _) in enumerate(chain) if id in times
    ]
    for (place, at), (next_place, next_at) in pairwise(ran):
        minutes = (next_at - at) / 60_000
        assert minutes == next_place - place if catch_up == "all" else minutes >= 1, (
            catch_up,
            at,
            next_at,
        )
    assert len(counts["answered"].keys() - {"", *(id for id, _ in chain)}) == 1, (
        "besides them, only what woke it"
    )
    return len(ran)


def test_killed_hosts_and_workers_answer_every_message_once_whatever_the_clock_does(
    tmp_path: Path, rng: random.Random, child: Callable[..., Child]
) -> None:
    root = tmp_path / "store"
    Store.init(root)
    with Store.open(root, keep_locks=False) as store:
        people = [f"person{number}" for number in range(PEOPLE)]
        for name in (*people, *(f"{way}-{agent}" for way in SERIES for agent in AGENTS)):
            store.agents.register(name)
        for agent in AGENTS:
            group(store, agent)
        series = {agent: schedule(store, agent) for agent in AGENTS}
        body = (
            "import tests.torture.nursery as n; os.chdir(sys.argv[1]); "
            "n.run(*json.loads(sys.argv[2]), say, 0)"
        )
        nursery = child(
            body, str(tmp_path), json.dumps([str(root), rng.getrandbits(32), KILLS, LIFE_S])
        )
        team = store.groups.create("team", with_=[*people[1:], *AGENTS], agent=people[0]).id
        sent = defaultdict[tuple[str, str], dict[str, str]](dict)
        for number in range(MESSAGES):
            if number % (MESSAGES // KILLS) == 0 and number // (MESSAGES // KILLS) < KILLS:
                nursery.hear()
            person, agent = rng.choice(people), rng.choice(AGENTS)
            text = f"hopeless {number}" if rng.random() < 1 / 100 else f"message {number}"
            if rng.random() < 1 / 4:  # Messages of several senders come in one batch.
                done = store.messages.send(f"@{agent} {text}", agent=person, conversation=team)
            else:
                done = store.messages.send(text, agent=person, to=agent)
            sent[done.conversation, agent][done.message] = person
        deadline, serving = time.monotonic() + PATIENCE_S, {}
        while len(serving) < len(sent):
            rows = Registry(store.engine).read().sessions_by_key
            serving = {
                key: row.id
                for key in sent
                if (row := rows.get((key[1], "conversations", key[0], "")))
            }
            assert nursery.is_running, nursery.hear()
            assert time.monotonic() < deadline
        sessions = {key: Session(store.engine, id) for key, id in serving.items()}
        waiting = [(sessions[key], list(senders)) for key, senders in sent.items()]
        waiting += [(session, []) for made in series.values() for session in made.values()]
        while any(not is_settled(*each) for each in waiting):
            assert nursery.is_running, nursery.hear()  # Which raises what it said at its end.
            assert time.monotonic() < deadline, {
                session.id: Counter(state_of(session, id) for id in ids) for session, ids in waiting
            }
            time.sleep(0.2)
        nursery.say("end")
        report = nursery.hear()
        total = Counter[str]()
        for (conversation, agent), senders in sent.items():
            total += assert_answered(
                store, sessions[conversation, agent], conversation, agent, senders
            )
        ran = {
            f"{way} {agent}": assert_ran(store, session, way, agent)
            for agent, made in series.items()
            for way, session in made.items()
        }
        files = [path.stat().st_size for path in (root / "sessions").glob("*/*.json")]
    assert total["completed"] + total["failed"] == MESSAGES
    leftovers = assert_only_leftovers(root)
    print(
        f"{report}, {dict(total)}, occurrences {ran}, largest file {max(files)} bytes, "
        f"{leftovers} leftovers"
    )
