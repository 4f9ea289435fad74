"""What merging costs: two versions of a large conversation that both went on, beside parsing what
is merged.
"""

from __future__ import annotations

import gc
from typing import Any

from benchmarks.fixtures import STAMP, history
from benchmarks.harness import Contestant, interleave
from benchmarks.report import Bar, Bench, Report, Table, sample_rows, times
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule.format.merge.merge import merge

__all__ = ["run"]

BAR_RATIO = 3.0
_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "the merge / it")
_MESSAGES, _NEW = 10_000, 100
_WHOLE, _PARSING, _ALONE = (
    "bytes to bytes: parse, merge, encode",
    "parsing the three",
    "the merge alone",
)


def run(bench: Bench) -> Report:
    """Measure a merge, for a conversation with branches and for one with a line."""
    report = Report()
    count = _MESSAGES // (10 if bench.quick else 1)
    for type, words in (("chat", "two branches"), ("group", "one line by time")):
        _merge(bench, report, type, words, count)
    return report


def _merge(bench: Bench, report: Report, type: str, words: str, count: int) -> None:
    entries = list(history(count + 2 * _NEW))
    ends: tuple[list[dict[str, str]], ...] = (
        [],
        entries[count : count + _NEW],
        entries[count + _NEW :],
    )
    versions = [
        codec.encode(new_capsule("c", "Merge", STAMP, type=type, messages=[*entries[:count], *end]))
        for end in ends
    ]

    def parse() -> list[dict[str, Any]]:
        return [codec.decode(version, "") for version in versions]

    def whole() -> bytes:
        base, ours, theirs = parse()
        return codec.encode(merge(base, ours, theirs).document)

    #: Nothing is kept between rounds: the more objects there are, the longer Python looks for
    #: garbage among them.
    parsed: list[list[dict[str, Any]]] = []

    def alone() -> None:
        base, ours, theirs = parsed.pop()
        merge(base, ours, theirs)

    if len(codec.decode(whole(), "")["history"]) != count + 2 * _NEW:
        raise RuntimeError("the merge is not what it should be")
    rounds = bench.rounds(40, 10)
    with bench.progress(f"merging, {words}", rounds) as step:
        samples = interleave(
            [
                Contestant(_WHOLE, whole, prepare=gc.collect),
                Contestant(_PARSING, parse, prepare=gc.collect),
                Contestant(_ALONE, alone, prepare=lambda: parsed.append(parse())),
            ],
            rounds,
            warm_up=1,
            tick=step,
        )
    ratio = samples[_WHOLE].median / samples[_PARSING].median
    label = f"{count:,} messages, {_NEW} new on each side, {words}"
    report.tables.append(
        Table(
            f"Merging, {words}",
            _COLUMNS,
            sample_rows(label, samples.values(), samples[_WHOLE]),
            f"Parsing is codec.decode of ancestor, ours and theirs ({len(versions[0]) / 1e6:.1f} "
            "MB each).",
        )
    )
    report.bars.append(
        Bar(
            f"merging two {type}s of {label}, from bytes to bytes",
            "under 3x of parsing the three",
            times(ratio),
            ratio < BAR_RATIO,
            "each message of a side is compared with that of the ancestor, in Python",
        )
    )
    report.data[f"merge_{type}"] = {name: one.as_json() for name, one in samples.items()}
