"""What a durable append costs, by the size of the conversation.

Two loops. The first holds the bars: the store against the bare system calls and sqlite3, with and
without a project context in the file. The second holds the peers that rewrite their file, at every
size that is worth the wait.
"""

from __future__ import annotations

import itertools
import time
from pathlib import Path
from typing import Any

from benchmarks.fixtures import CONTEXT_BYTES, texts, write_capsule
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.peers import PEERS
from benchmarks.peers.limit import SplicedFile
from benchmarks.peers.sqlite import SqliteMessages
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, size_words, times
from capsule import Store

__all__ = ["BAR_US", "run"]

BAR_RATIO, BAR_US = 1.3, 80.0
_COLUMNS = ("conversation", "who", "rounds", "median", "p95", "p99", "max", "capsule / it")
_GROUP, _CHAT = "capsule (group)", "capsule (chat, kept locked)"
_LIMIT, _FULL = "3 pwrite + fdatasync", "sqlite3 WAL FULL"
_NO_WAIT, _BARE, _NORMAL = "capsule (group), wait=False", "3 pwrite", "sqlite3 WAL NORMAL"
_FASTER, _NO_WAIT_US = 1.15, 100.0
_LONG_S = 0.01

Found = dict[tuple[int, int], dict[str, Samples]]


def run(bench: Bench) -> Report:
    """Measure appends."""
    report = Report()
    sizes = (10, 1000) if bench.quick else (10, 1000, 100_000)
    found: Found = {}
    for messages, context_bytes in itertools.product(sizes, (0, CONTEXT_BYTES)):
        found[messages, context_bytes] = _against_the_limit(bench, messages, context_bytes)
    report.tables.append(_table(found))
    report.bars += _bars(found)
    by_size = {
        n: _against_rewriters(bench, report, n) for n in ((10, 1000) if bench.quick else _SIZES)
    }
    report.tables.append(_peer_table(by_size))
    report.data["bars"] = [
        {
            "messages": n,
            "context_bytes": context,
            "who": {name: one.as_json() for name, one in samples.items()},
        }
        for (n, context), samples in found.items()
    ]
    report.data["by_size"] = [
        {"messages": n, "who": {name: one.as_json() for name, one in samples.items()}}
        for n, samples in by_size.items()
    ]
    return report


_SIZES = (10, 100, 1000, 10_000, 100_000)


def _against_the_limit(bench: Bench, messages: int, context_bytes: int) -> dict[str, Samples]:
    where = bench.directory / f"limit-{messages}-{context_bytes}"
    root = where / "store"
    Store.init(root)
    pool = itertools.cycle(texts())
    label = f"append to {size_words(messages, context_bytes)}"
    with Store.open(root) as store, bench.progress(label, bench.rounds(600, 150)) as step:
        paths = {
            type: write_capsule(
                root, type, messages=messages, type=type, context_bytes=context_bytes
            )
            for type in ("group", "chat")
        }
        store.locks.take("chat")
        growth = _growth(store, "group", paths["group"], pool)
        _growth(store, "chat", paths["chat"], pool)
        limit = SplicedFile(paths["group"], where / "limit", growth)
        bare = SplicedFile(paths["group"], where / "bare", growth, flushes=False)
        full, normal = (
            SqliteMessages(where / "full.db"),
            SqliteMessages(where / "normal.db", "NORMAL"),
        )
        for database in (full, normal):
            database.fill("c", messages, "x" * context_bytes)
        contestants = [
            Contestant(_GROUP, lambda: store.append("group", role="user", content=next(pool))),
            Contestant(_LIMIT, limit.append),
            Contestant(_CHAT, lambda: store.append("chat", role="user", content=next(pool))),
            Contestant(_FULL, lambda: full.append("c", next(pool))),
            Contestant(
                _NO_WAIT, lambda: store.append("group", role="user", content=next(pool), wait=False)
            ),
            Contestant(_BARE, bare.append),
            Contestant(_NORMAL, lambda: normal.append("c", next(pool))),
        ]
        samples = interleave(contestants, bench.rounds(600, 150), warm_up=10, tick=step)
        for contestant in (limit, bare, full, normal):
            contestant.close()
    return samples


def _growth(store: Store, id: str, path: Path, pool: Any) -> int:
    """Let the store take the file in, and say how many bytes it grows by at an append."""
    store.append(id, role="user", content=next(pool))
    before = path.stat().st_size
    store.append(id, role="user", content=next(pool))
    return path.stat().st_size - before


def _table(found: Found) -> Table:
    rows = []
    for (messages, context_bytes), samples in found.items():
        rows += sample_rows(size_words(messages, context_bytes), samples.values(), samples[_GROUP])
    return Table(
        "Durable append: a 400-byte message, one at a time, the store open",
        _COLUMNS,
        rows,
        "Every contestant once a round, in one loop, in an order drawn for each round. Those that "
        "wait for nothing and "
        "the store's flushes behind leave writes that another's sync may have to wait for, the "
        "same for all.",
    )


def _bars(found: Found) -> list[Bar]:
    ours = [
        (size_words(*size) + f", {who.partition(' ')[2].strip('()')}", samples[who], samples)
        for size, samples in found.items()
        for who in (_GROUP, _CHAT)
    ]

    def worst(over: Any) -> tuple[str, Samples, dict[str, Samples]]:
        return max(ours, key=over)

    def allowed_s(samples: dict[str, Samples], limit: str) -> float:
        return BAR_RATIO * samples[limit].median + BAR_US / 1e6

    where, us, samples = worst(lambda one: one[1].median - allowed_s(one[2], _LIMIT))
    bars = [
        Bar(
            "durable append, at each size, with and without 1.2 MB of context",
            f"median at most {BAR_RATIO}x of the log's pwrite and fdatasync and two pwrites, plus "
            f"{BAR_US:.0f} µs",
            f"at worst {micro(us.median)} of {micro(allowed_s(samples, _LIMIT))} allowed "
            f"({where}; the bare calls: "
            f"{micro(samples[_LIMIT].median)})",
            us.median <= allowed_s(samples, _LIMIT),
            "what Python does around the calls",
        )
    ]
    where, us, samples = worst(lambda one: one[1].median / one[2][_FULL].median)
    ratio = samples[_FULL].median / us.median
    bars.append(
        Bar(
            "the same against sqlite3 (WAL, FULL, one row, an FTS5 trigger)",
            f"at least {_FASTER}x as fast",
            f"at worst {times(ratio)} ({where})",
            ratio >= _FASTER,
            "sqlite3 spends less time in its own code than Python does around our system calls, "
            "and both wait for "
            "one fdatasync",
        )
    )
    of_size = [(size_words(*size), samples) for size, samples in found.items()]
    where, samples = max(of_size, key=lambda one: one[1][_NO_WAIT].median - one[1][_BARE].median)
    over_s = samples[_NO_WAIT].median - samples[_BARE].median
    normal = samples[_NORMAL].median / samples[_NO_WAIT].median
    bars.append(
        Bar(
            "append(..., wait=False)",
            f"at most {_NO_WAIT_US:.0f} µs over the bare writes",
            f"at worst {micro(over_s)} over {micro(samples[_BARE].median)} ({where}); "
            f"{times(normal)} as fast as "
            "sqlite3 (WAL, NORMAL)",
            over_s * 1e6 <= _NO_WAIT_US,
            "what Python does around the calls",
        )
    )
    where, us, samples = worst(lambda one: one[1].quantile(0.99) / one[1].median)
    ratio = us.quantile(0.99) / us.median
    bare = samples[_LIMIT]
    bars.append(
        Bar(
            "the slow appends",
            "p99 at most 5x the median, on an idle machine",
            f"at worst {times(ratio)} ({where}; the bare calls: "
            f"{times(bare.quantile(0.99) / bare.median)})",
            ratio <= 5,
            "the disk's own slow syncs, as the bare calls in the same loop show",
        )
    )
    return bars


def _against_rewriters(bench: Bench, report: Report, messages: int) -> dict[str, Samples]:
    pool = itertools.cycle(texts())
    rounds = bench.rounds(200, 30)
    opened, contestants = [], []
    with bench.progress(f"append to {messages:,} messages, and the peers", rounds) as step:
        for name, peer in PEERS.items():
            reason = peer.missing() or ("" if messages <= peer.largest else "too slow to fill")
            if reason:
                report.skipped[
                    name if peer.missing() else f"{name} beyond {peer.largest} messages"
                ] = reason
                continue
            directory = bench.directory / f"peers-{messages}" / peer.module
            directory.mkdir(parents=True, exist_ok=True)
            messages_of = peer.open(directory)
            opened.append(messages_of)
            messages_of.fill("c", messages)
            start = time.perf_counter()
            messages_of.append("c", next(pool))
            every = min(max(int((time.perf_counter() - start) / _LONG_S), 1), rounds // 5)

            def append_next(messages_of: Any = messages_of) -> None:
                messages_of.append("c", next(pool))

            contestants.append(Contestant(name, append_next, every))
        samples = interleave(contestants, rounds, warm_up=1, tick=step)
    for messages_of in opened:
        messages_of.close()
    return samples


def _peer_table(by_size: dict[int, dict[str, Samples]]) -> Table:
    rows = []
    for messages, samples in by_size.items():
        rows += sample_rows(size_words(messages, 0), samples.values(), samples["capsule"])
    durable = ", ".join(name for name, peer in PEERS.items() if not peer.durable)
    return Table(
        "Append, against what is used instead",
        _COLUMNS,
        rows,
        f"Not durable when they return, and faster by that: {durable}. What rewrites its file "
        "takes part in fewer "
        "rounds, the longer it takes. llm logs a turn, which is two messages.",
    )
