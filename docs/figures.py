"""Puts measured figures into pages: what stands between `<!--=name-->` and `<!--=-->` is taken from
results.json.

What must stay true: a sentence on speed has no figure that a run of `make bench` did not measure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

__all__ = ["FIGURES", "PAGES", "filled"]

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "README.md", ROOT / "docs" / "comparison.md")
_MARKED = re.compile(r"<!--=([\w-]+)-->.*?<!--=-->", re.S)
_FULL = "sqlite FULL"

Measured = Mapping[str, Any]


def _run(measured: Measured, processes: int, conversations: int) -> dict[str, Any]:
    runs = measured["contention"]["runs"]
    return next(
        run["who"]
        for run in runs
        if (run["processes"], run["conversations"]) == (processes, conversations)
    )


def _append_us(who: str, messages: int = 1000) -> Callable[[Measured], str]:
    """The median of a durable append to a conversation of so many messages, in the loop that all
    peers share.
    """

    def figure(measured: Measured) -> str:
        rows = {row["messages"]: row["who"] for row in measured["append"]["by_size"]}
        median_ms = rows[messages][who]["median_us"] / 1000
        return f"{median_ms:.2f} ms" if median_ms < 10 else f"{median_ms:,.0f} ms"

    return figure


def _append_alone(who: str) -> Callable[[Measured], str]:
    """The median of a durable append to 1,000 messages, in the loop without programs that rewrite
    their file.
    """

    def figure(measured: Measured) -> str:
        row = next(
            row
            for row in measured["append"]["bars"]
            if (row["messages"], row["context_bytes"]) == (1000, 0)
        )
        return f"{row['who'][who]['median_us'] / 1000:.2f} ms"

    return figure


def _against_sqlite(measured: Measured) -> str:
    """The time of SQLite's append, by that of ours, at the worst and the best size."""
    rows = [row["who"] for row in measured["append"]["bars"]]
    ratios = sorted(
        row["sqlite3 WAL FULL"]["median_us"] / row["capsule (group)"]["median_us"] for row in rows
    )
    return f"{ratios[0]:.2f} to {ratios[-1]:.2f} times"


def _per_second(who: str, processes: int, conversations: int = 1) -> Callable[[Measured], str]:
    return lambda measured: f"{_run(measured, processes, conversations)[who]['per_second']:,.0f}"


def _times(processes: int, conversations: int = 1) -> Callable[[Measured], str]:
    def figure(measured: Measured) -> str:
        who = _run(measured, processes, conversations)
        return f"{who['capsule']['per_second'] / who[_FULL]['per_second']:.1f}"

    return figure


def _kept(who: str) -> Callable[[Measured], str]:
    """How many messages of four writers are there in the end, of those that were acknowledged."""

    def figure(measured: Measured) -> str:
        of = _run(measured, 4, 1)[who]
        return f"{of['kept']:,} of {of['acknowledged']:,}"

    return figure


def _disk_kb(who: str) -> Callable[[Measured], str]:
    return lambda measured: (
        f"{measured['amplification']['bytes_per_append'][who]['1000']['disk'] / 1000:.0f} kB"
    )


def _small(work: str, ours: str, theirs: str) -> Callable[[Measured], str]:
    """How many times as fast SQLite does a small piece of work."""

    def figure(measured: Measured) -> str:
        small = measured["heads"]["small"]
        return (
            f"{small[f'{work}: {ours}']['median_us'] / small[f'{work}: {theirs}']['median_us']:.0f}"
        )

    return figure


def _page_ms(key: str) -> Callable[[Measured], str]:
    """The median of what the page of a store takes: `first_page`, `paint`,
    `appended` or `search`.
    """
    return lambda measured: f"{measured['web'][key]['capsule web']['median_us'] / 1000:.0f} ms"


def _in_postgres(who: str, field: str) -> Callable[[Measured], str]:
    """Of eight writers that append to one conversation in PostgreSQL."""

    def figure(measured: Measured) -> str:
        case = measured["postgres"]["cases"]["8 writers, 1 conversation, and frameworks"]
        return f"{case[who][field]:,.0f}"

    return figure


#: The figures by name.
FIGURES: dict[str, Callable[[Measured], str]] = {
    "append": _append_alone("capsule (group)"),
    "append-sqlite": _append_alone("sqlite3 WAL FULL"),
    "append-normal": _append_us("sqlite NORMAL"),
    "append-jsonl": _append_us("JSONL, fdatasync"),
    "append-llm-10": _append_us("llm", 10),
    "append-llm-100": _append_us("llm", 100),
    "faster-than-sqlite": _against_sqlite,
    "four": _per_second("capsule", 4),
    "four-sqlite": _per_second(_FULL, 4),
    "four-jsonl": _per_second("JSONL, fdatasync", 4),
    "four-times": _times(4),
    "eight-times": _times(8),
    "fifty-times": _times(4, 50),
    "kept": _kept("capsule"),
    "kept-rewriting": _kept("rewriting"),
    "disk": _disk_kb("capsule"),
    "disk-sqlite": _disk_kb(_FULL),
    "disk-jsonl": _disk_kb("JSONL, fdatasync"),
    "rename-times": _small("rename", "Store.rename", "sqlite3 UPDATE"),
    "create-times": _small("create", "Store.create", "sqlite3, two INSERTs"),
    "delete-times": _small("delete", "Store.delete", "sqlite3, two DELETEs"),
    "postgres": _in_postgres("capsule", "per_second"),
    "postgres-session": _in_postgres("SQLAlchemySession", "per_second"),
    "postgres-saver": _in_postgres("PostgresSaver", "per_second"),
    "postgres-saver-all": _in_postgres("PostgresSaver", "acknowledged"),
    "postgres-saver-lost": _in_postgres("PostgresSaver", "lost"),
    "page-list": _page_ms("first_page"),
    "page-paint": _page_ms("paint"),
    "page-heard": _page_ms("appended"),
}


def filled(page: str) -> str:
    """A page with the figures of the last run. Raises KeyError: it names a figure that there is
    not.
    """
    measured = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))[
        "measurements"
    ]
    return _MARKED.sub(
        lambda match: f"<!--={match[1]}-->{FIGURES[match[1]](measured)}<!--=-->", page
    )
