"""Channels: what a decision costs, a message into a channel of many members, and what is unread in
many channels.

What must stay true: the members have no part in what a message costs, as nobody looks at them one
by one; a message is compared with the plain append of an equal entry to a file of the same size, in
the same rounds.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from benchmarks.fixtures import STAMP, history
from benchmarks.harness import Contestant, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store
from capsule.format.documents.agents import GLOBAL
from capsule.format.documents.channels import Channel
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.members import Member
from capsule.format.json import codec
from capsule.rules import policy
from capsule.rules.consent import AgentProfile, PolicyInputs

__all__ = ["run"]

_MEMBERS, _CHANNELS, _MESSAGES, _TEXT_BYTES = 1000, 1000, 100, 100
#: Decisions that are timed at once.
_AT_ONCE = 100
_ACTIONS: tuple[policy.Action, ...] = ("find", "read", "join", "append", "manage")
_MAY_S, _RATIO, _UNREAD_S = 5e-6, 1.2, 0.010
_APPENDED, _SENT = "append_entries, the agent", f"send, {_MEMBERS:,} members"
_COLUMNS = ("", "what", "rounds", "median", "p95", "p99", "max")


def run(bench: Bench) -> Report:
    """Measure channels."""
    report = Report()
    _decide(bench, report)
    _send(bench, report)
    _unread(bench, report)
    return report


def _document(
    name: str, members: int, entries: Iterable[dict[str, Any]] = (), *, access: str = "open"
) -> dict[str, Any]:
    """A channel for all, with anna, bob and others."""
    channel = Channel(name, access=access)
    names = ("anna", "bob", *(f"agent-{number}" for number in range(members - 2)))
    item = {"joinedAt": STAMP, "invitedBy": "self", "source": "manual"}
    about = {"participants": [{"id": id, **item} for id in names], "channel": channel.as_json()}
    return new_capsule(
        channel.id,
        name,
        STAMP,
        type="channel",
        title_set_by="user",
        messages=list(entries),
        metadata=about,
    )


def _decide(bench: Bench, report: Report) -> None:
    profiles = {id: AgentProfile(id, id, GLOBAL) for id in ("bob", "carl")}
    state = PolicyInputs(profiles, frozenset({GLOBAL}))
    contestants = []
    for access in ("open", "members"):
        object = policy.PolicyTarget.from_document(_document("many", _MEMBERS, access=access))
        for who, what in (("bob", "a member"), ("carl", "another agent")):
            for action in _ACTIONS:
                once = partial(_decide_often, who, action, object, state)
                contestants.append(Contestant(f"may {what} {action}, access {access}", once))
    members = tuple(
        Member(id) for id in ("bob", "carl", *(f"agent-{number}" for number in range(_MEMBERS - 2)))
    )
    group, direct = (
        policy.PolicyTarget("team", "group", members),
        policy.PolicyTarget("direct_bob_carl", "direct", members[:2]),
    )
    asked: list[tuple[policy.Action, policy.PolicyTarget]] = [
        ("append", direct),
        ("append", group),
        ("add", group),
    ]
    for action, there in asked:
        once = partial(_decide_often, "bob", action, there, state)
        contestants.append(Contestant(f"may a member {action}, {there.type}", once))
    samples = interleave(contestants, bench.rounds(100, 10))
    for one in samples.values():
        one.seconds = [seconds / _AT_ONCE for seconds in one.seconds]
    rows = [row[1:-1] for row in sample_rows("", samples.values(), next(iter(samples.values())))]
    worst = max(one.median for one in samples.values())
    report.tables.append(
        Table(
            f"A decision about a channel or a group of {_MEMBERS:,} members, or a direct",
            _COLUMNS[1:],
            rows,
        )
    )
    report.bars.append(
        Bar(
            f"may, a channel or a group of {_MEMBERS:,} members",
            "under 5 µs",
            f"at worst {micro(worst)}",
            worst < _MAY_S,
        )
    )
    report.data["may"] = {name: one.as_json() for name, one in samples.items()}


def _decide_often(
    who: str, action: policy.Action, object: policy.PolicyTarget, state: PolicyInputs
) -> None:
    for _ in range(_AT_ONCE):
        policy.decide(who, action, object, state)


def _send(bench: Bench, report: Report) -> None:
    root = bench.directory / "send"
    Store.init(root)
    plain, many, few = (
        _document("plain", _MEMBERS),
        _document("many", _MEMBERS),
        _document("few", 10),
    )
    for document in (plain, many, few):
        Path(root, "conversations", f"{document['id']}.json").write_bytes(codec.encode(document))
    text = "x" * _TEXT_BYTES
    with Store.open(root) as store:
        for agent in ("anna", "bob"):
            store.agents.register(agent)
        entry, anna = {"role": "user", "content": text}, store.beside(agent="anna")
        contestants = [
            Contestant(_APPENDED, lambda: anna.append_entries(plain["id"], [entry])),
            Contestant(
                "append_entries, the owner", lambda: store.append_entries(plain["id"], [entry])
            ),
            Contestant(
                _SENT, lambda: store.messages.send(text, agent="anna", conversation=many["id"])
            ),
            Contestant(
                "send, 10 members",
                lambda: store.messages.send(text, agent="anna", conversation=few["id"]),
            ),
        ]
        samples = interleave(contestants, bench.rounds(500, 40))
    appended, sent = samples[_APPENDED], samples[_SENT]
    columns = (*_COLUMNS, f"{_SENT} / it")
    note = "What an agent appends is judged as what it sends is; nobody asks what the owner may do."
    rows = sample_rows("one store", samples.values(), sent)
    report.tables.append(Table("A message into a channel", columns, rows, note))
    ratio = sent.median / appended.median
    report.bars.append(
        Bar(
            f"send into a channel of {_MEMBERS:,} members",
            f"at most {_RATIO}x of a plain append of the agent",
            f"{times(ratio)} ({micro(sent.median)} and {micro(appended.median)})",
            ratio <= _RATIO,
            "who can be rung here is looked up in two directories",
        )
    )
    report.data["send"] = {name: one.as_json() for name, one in samples.items()}


def _unread(bench: Bench, report: Report) -> None:
    root, count = bench.directory / "unread", bench.rounds(_CHANNELS, 100)
    Store.init(root)
    cursors: dict[str, Any] = {}
    with bench.progress(f"making {count:,} channels", count) as step:
        for number in range(count):
            entries: list[dict[str, Any]] = [
                {**entry, "from": "anna"} for entry in history(_MESSAGES, _TEXT_BYTES)
            ]
            entries[-1] |= {"mentions": {"valid": ["bob"], "invalid": [], "unknown": []}}
            document = _document(f"c{number}", 20, entries)
            Path(root, "conversations", f"{document['id']}.json").write_bytes(
                codec.encode(document)
            )
            at = _MESSAGES - 1 - number % 2
            cursors[document["id"]] = {"at": at, "trail": {str(at): entries[at]["id"]}}
            step()
    with Store.open(root) as store:
        for agent in ("anna", "bob"):
            store.agents.register(agent)
        path = root / "agents" / "bob.json"
        about = {"cursors": cursors, "reading": {id: {"muted": True} for id in list(cursors)[::4]}}
        path.write_bytes(
            orjson.dumps(orjson.loads(path.read_bytes()) | about, option=orjson.OPT_INDENT_2)
        )
        look = partial(store.messages.inbox, agent="bob")
        come = partial(store.messages.send, "hello", agent="anna", conversation="channel_global_c1")
        if len(look().conversations) != count // 2:
            raise RuntimeError("not every second channel has something unread")
        samples = interleave(
            [Contestant("nothing came", look), Contestant("a message came", look, prepare=come)],
            bench.rounds(200, 20),
        )
    columns = (*_COLUMNS, "nothing came / it")
    warm = samples["nothing came"]
    size = f"{count:,} channels, {count * _MESSAGES:,} messages"
    note = (
        "Every second channel has an unread message, which mentions the agent; every fourth is "
        "muted."
    )
    report.tables.append(
        Table(
            "What is unread in channels", columns, sample_rows(size, samples.values(), warm), note
        )
    )
    slowest = max(one.median for one in samples.values())
    report.bars.append(
        Bar(
            f"what is unread, {size}",
            "under 10 ms",
            micro(slowest),
            slowest < _UNREAD_S,
            "also when a message came",
        )
    )
    report.data["unread"] = {name: one.as_json() for name, one in samples.items()}
