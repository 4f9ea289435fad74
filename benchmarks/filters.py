"""Filters over the metadata of 100,000 messages, side by side with SQLite's JSON functions over the
same metadata.

What must stay true: every round asks for other values, and both sides find the same number of
messages.
"""

from __future__ import annotations

import itertools
import json
import random
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.fixtures import STAMP, texts
from benchmarks.harness import Contestant, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows
from capsule import Store
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.ids import new_message_id

__all__ = ["run"]

_COLUMNS = ("filter", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
_EACH, _BAR_S = 1000, 0.1
_OURS, _SQLITE = "Store.search(where=)", "sqlite3: json_extract, json_each"
_TAG = "EXISTS (SELECT 1 FROM json_each(body, '$.tags') WHERE value = ?)"


@dataclass(frozen=True, slots=True)
class _Case:
    """A filter and the same in SQL, made of a number that differs in every round."""

    name: str
    where: Callable[[float], dict[str, Any]]
    sql: str
    values: Callable[[float], tuple[Any, ...]]


_CASES = (
    _Case(
        "one message: n = x",
        lambda x: {"n": int(x * 1e5)},
        "body ->> '$.n' = ?",
        lambda x: (int(x * 1e5),),
    ),
    _Case(
        "half of all: confidence >= x",
        lambda x: {"confidence": {"$gte": 0.5 + x / 100}},
        "body ->> '$.confidence' >= ?",
        lambda x: (0.5 + x / 100,),
    ),
    _Case(
        "confidence >= x, and a tag",
        lambda x: {"confidence": {"$gte": 0.5 + x / 100}, "tags": {"$contains": "t3"}},
        f"body ->> '$.confidence' >= ? AND {_TAG}",
        lambda x: (0.5 + x / 100, "t3"),
    ),
    _Case(
        "not a tag, or confidence < x",
        lambda x: {"$or": [{"tags": {"$not_contains": "t3"}}, {"confidence": {"$lt": x / 100}}]},
        f"NOT {_TAG} OR body ->> '$.confidence' < ?",
        lambda x: ("t3", x / 100),
    ),
    _Case(
        "a piece of a text, each other",
        lambda x: {"author.name": {"$contains": f"{int(x * 1e4):04}"}},
        "instr(body ->> '$.author.name', ?)",
        lambda x: (f"{int(x * 1e4):04}",),
    ),
    _Case(
        "a pattern, all texts other",
        lambda x: {"author.name": {"$regex": f"^writer 0*{int(x * 1e4)}[0-9]?$"}},
        "body ->> '$.author.name' REGEXP ?",
        lambda x: (f"^writer 0*{int(x * 1e4)}[0-9]?$",),
    ),
)


def run(bench: Bench) -> Report:
    """Measure filters."""
    report = Report()
    count = 20 if bench.quick else 100
    Store.init(bench.directory)
    peer = _Peer()
    draw = random.Random(5)
    with bench.progress("writing messages with metadata", count) as step:
        for number in range(count):
            said = [_message(draw, number * _EACH + at) for at in range(_EACH)]
            document = new_capsule(f"c{number}", f"Conversation {number}", STAMP, messages=said)
            (bench.directory / "conversations" / f"c{number}.json").write_bytes(
                codec.encode(document)
            )
            peer.add([message["metadata"] for message in said])
            step()
    with Store.open(bench.directory) as store:
        store.search("")
        _measure(bench, report, store, peer, f"{count * _EACH:,}")
    return report


def _message(draw: random.Random, number: int) -> dict[str, Any]:
    metadata = {
        "n": number,
        "confidence": draw.random(),
        "tags": draw.sample(["t1", "t2", "t3", "t4"], 2),
        "author": {"name": f"writer {draw.randrange(10**5):05}"},
    }
    text = texts()[number % len(texts())]
    return {
        "role": "user",
        "content": text,
        "timestamp": STAMP,
        "id": new_message_id(),
        "metadata": metadata,
    }


class _Peer:
    """A table of the same metadata as JSON, scanned."""

    def __init__(self) -> None:
        import re

        self._db = sqlite3.connect(":memory:")
        self._db.execute("CREATE TABLE messages(num INTEGER PRIMARY KEY, body TEXT)")
        self._db.create_function(
            "REGEXP", 2, lambda pattern, text: re.search(pattern, text) is not None
        )

    def add(self, bodies: list[dict[str, Any]]) -> None:
        self._db.executemany(
            "INSERT INTO messages(body) VALUES(?)", ((json.dumps(body),) for body in bodies)
        )

    def found(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        return self._db.execute(
            f"SELECT num FROM messages WHERE {sql} ORDER BY num DESC", values
        ).fetchall()


def _measure(bench: Bench, report: Report, store: Store, peer: _Peer, messages: str) -> None:
    rounds = bench.rounds(30, 8)
    slowest, numbers = 0.0, (number / 1000 % 1 for number in itertools.count(100, 7))
    rows: list[tuple[str, ...]] = []
    for case in _CASES:
        assert len(store.queries.messages(case.where(0.3))) == len(
            peer.found(case.sql, case.values(0.3))
        ), case.name
        with bench.progress(case.name, rounds) as step:
            found = interleave(
                _contestants(case, store, peer, numbers), rounds, warm_up=1, tick=step
            )
        slowest = max(slowest, found[_OURS].median)
        rows += sample_rows(case.name, found.values(), found[_OURS])
        report.data[case.name] = {name: one.as_json() for name, one in found.items()}
    note = (
        "Ours ranks the newest 2,048 and shows 20 hits. SQLite scans the table, and gives the "
        "numbers of the rows."
    )
    report.tables.append(
        Table(f"Filters over the metadata of {messages} messages", _COLUMNS, rows, note)
    )
    report.bars.append(
        Bar(
            f"a filter over {messages} messages",
            "under 100 ms, each",
            micro(slowest),
            slowest < _BAR_S,
            "the slowest",
        )
    )


def _contestants(
    case: _Case, store: Store, peer: _Peer, numbers: Iterator[float]
) -> list[Contestant]:
    return [
        Contestant(_OURS, lambda: store.search("", where=case.where(next(numbers)))),
        Contestant(_SQLITE, lambda: peer.found(case.sql, case.values(next(numbers)))),
    ]
