"""Policies and links change while messages fly, through every way of writing.

What must hold: once a stricter word is acknowledged, no message is accepted that it forbids, and
once it is taken back, messages are accepted again.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from tests.conftest import SEED
from tests.processes import Child, until
from tests.torture.writers import LONG

SENDS = """
root, door, log, *names = sys.argv[1:]
log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
with Store.open(root, keep_locks=False, agent="anna") as store:
    send = {
        "to": lambda: store.messages.send("x", to="bob"),
        "conversation": lambda: store.messages.send("x", conversation="direct_anna_bob"),
        "append": lambda: store.append("direct_anna_bob", content="x"),
        "channel": lambda: store.append(names[0], content="x"),
    }[door]
    while True:
        try:
            send()
        except CapsuleError as error:
            assert error.exit_code in (3, 6), error  # Out of sight, or refused.
        os.write(log, b".")
"""
DIRECT = "direct_anna_bob"


@pytest.mark.parametrize("rounds", [5, pytest.param(1000 if LONG else 60, marks=pytest.mark.slow)])
def test_no_message_is_accepted_after_a_stricter_word_was_acknowledged(
    store: Store, child: Callable[..., Child], tmp_path: Path, rounds: int
) -> None:
    for agent, project in (("anna", "/api"), ("bob", "/web")):
        store.agents.register(agent, project)
    store.messages.send("first", agent="bob", to="anna")
    store.projects.link("api", "web")
    channel = store.channels.create("news", agent="bob").id
    store.channels.join(channel, agent="anna")
    logs = {door: tmp_path / door for door in ("to", "conversation", "append", "channel")}
    for door, log in logs.items():
        log.touch()
        child(SENDS, store.root, door, log, channel)
    policy, agents, projects = store.agents.policy, store.agents, store.projects
    words: list[tuple[str, Callable[[], Any], Callable[[], Any]]] = [
        (
            DIRECT,
            lambda: agents.block(agent="bob", other="anna"),
            lambda: agents.forget(agent="bob", other="anna"),
        ),
        (
            DIRECT,
            lambda: agents.block(agent="anna", other="bob"),
            lambda: agents.allow(agent="anna", other="bob"),
        ),
        (DIRECT, lambda: policy("bob", dm="closed"), lambda: policy("bob", dm="open")),
        (DIRECT, lambda: policy("bob", dm="restricted"), lambda: policy("bob", dm="open")),
        (
            channel,
            lambda: projects.unlink("api", "web"),
            lambda: projects.link("api", "web", direction="out"),
        ),
    ]
    rng = random.Random(SEED)

    def count(conversation: str) -> int:
        return store.engine.tail(conversation, 0)[1]

    def tried(conversation: str) -> None:
        """Wait until every sender has begun and ended a try."""
        doors = [
            log for door, log in logs.items() if (door == "channel") == (conversation == channel)
        ]
        before = [os.path.getsize(log) for log in doors]
        until(
            lambda: all(
                os.path.getsize(log) >= was + 2 for log, was in zip(doors, before, strict=True)
            )
        )

    for number in range(rounds):
        conversation, forbid, permit = words[number] if number < len(words) else rng.choice(words)
        forbid()
        there = count(conversation)
        tried(conversation)
        assert count(conversation) == there
        permit()
        until(lambda conversation=conversation, there=there: count(conversation) > there)
