"""Searching a million messages, side by side with bare FTS5 and with what reads the files.

What must stay true: every round asks for another word of the same kind, so that nothing is measured
which only repeats an answer; how many messages a word stands in is counted, not assumed.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from benchmarks import corpus
from benchmarks.fixtures import texts
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.peers.fts import BareText
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store

__all__ = ["run"]

_COLUMNS = ("query", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
_BAR_S, _BAR_RATIO, _HITS, _DIFFERENT = 0.02, 1.5, 20, 12
_OURS, _BARE, _JOINED = (
    "Store.search",
    "bare FTS5: texts by rank",
    "FTS5: conversation, time, snippet by rank",
)
_COMMON = "a common word, in 10 % of all messages"


@dataclass(frozen=True, slots=True)
class _Case:
    """Queries of one kind.

    Attributes:
        name: What the tables call it.
        queries: As the store is asked; they take turns.
        match: As FTS5 is asked; empty: it can't be.
        options: What the store is asked besides.
        every: Takes part in every n-th round.
        prepare: Runs before each search of the store.
    """

    name: str
    queries: list[str]
    match: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)
    every: int = 1
    prepare: Callable[[], Any] | None = None


def run(bench: Bench) -> Report:
    """Measure search."""
    report = Report()
    made = corpus.ensure(bench)
    path = bench.shared / corpus.BARE
    is_there = path.exists()
    bare = BareText(path)
    if not is_there:
        with bench.progress("filling bare FTS5", 1):
            bare.fill(corpus.rows(made))
    with Store.open(made.root) as store:
        cases = _cases(made, bare, store)
        rounds = bench.rounds(24, 12)
        with bench.progress(f"searching {made.messages:,} messages", rounds) as step:
            found = interleave(list(_contestants(cases, store, bare)), rounds, warm_up=1, tick=step)
        for number, (name, once) in enumerate(_readers(made, cases[0].queries, report).items()):
            with bench.progress(name, 3):
                found |= interleave([Contestant(f"{number}: {name}", once)], 3, warm_up=1)
        same = _agreement(store, bare, next(case for case in cases if case.name == _COMMON).queries)
    _tell(report, made, cases, found, bare, same)
    bare.close()
    return report


def _cases(made: corpus.Corpus, bare: BareText, store: Store) -> list[_Case]:
    def share(of_all: float) -> list[str]:
        return bare.words_in(int(made.messages * of_all), _DIFFERENT)

    rare, some, common, most = share(0.001), share(0.01), share(0.1), share(0.5)[:4]
    two = [f"{first} {second}" for first, second in zip(common, some, strict=True)]
    begin = [f"{word[:4]}*" for word in some]
    east = [
        "不是",
        "一个",
        "这个",
        "中国",
        "大人",
        "他的",
        "来了",
        "有人",
        "我的",
        "国人",
        "上来",
        "在这",
    ]
    ids = itertools.cycle([head.id for head in store.heads()][:20])
    pool = itertools.cycle(texts())

    def append() -> None:
        store.append(next(ids), content=next(pool))

    return [
        _Case("a rare word, in 0.1 %", rare, rare),
        _Case("a word in 1 %", some, some),
        _Case(_COMMON, common, common),
        _Case("a word in half of all", most, most, every=3),
        _Case("two words, of 10 % and of 1 %", two, two),
        _Case(f'a phrase, "{corpus.PHRASE}"', [f'"{corpus.PHRASE}"'], [f'"{corpus.PHRASE}"']),
        _Case("the beginnings of words, of 4 letters", begin, begin),
        _Case("two characters of Chinese", east),
        _Case("the common word, ranked by fit alone (exact)", common, common, {"profile": "exact"}),
        _Case("the common word, right after an append", common, prepare=append),
        _Case(
            "the common word, of one role and one tag",
            common,
            options={"roles": ["user"], "tags": ["work"]},
        ),
        _Case(
            "the common word, of one month",
            common,
            options={"since": "2024-05-01", "until": "2024-06-01"},
        ),
        _Case("the common word, again and again", common[:1]),
    ]


def _contestants(cases: list[_Case], store: Store, bare: BareText) -> Iterator[Contestant]:
    def asks(search: Callable[[str], Any], queries: list[str]) -> Callable[[], Any]:
        turn = itertools.cycle(queries)
        return lambda: search(next(turn))

    for case in cases:
        options = case.options

        def ours(query: str, options: dict[str, Any] = options) -> Any:
            found = store.search(query, limit=_HITS, **options)
            assert found.hits, query
            return found

        yield Contestant(
            f"{case.name}: {_OURS}", asks(ours, case.queries), case.every, case.prepare
        )
        if case.match:
            yield Contestant(
                f"{case.name}: {_BARE}",
                asks(lambda q: bare.search(q, _HITS), case.match),
                case.every,
            )
            joined = asks(lambda q: bare.search_joined(q, _HITS), case.match)
            yield Contestant(f"{case.name}: {_JOINED}", joined, case.every)


def _readers(made: corpus.Corpus, words: list[str], report: Report) -> dict[str, Callable[[], Any]]:
    """What one would type without a store: the rare word, as the files that it stands in."""
    turn, where = itertools.cycle(words), made.root / "conversations"
    found: dict[str, Callable[[], Any]] = {}
    for program, options in (("grep", ["-rliw"]), ("rg", ["-liw"])):
        path = shutil.which(program)
        if path is None:
            report.skipped[f"{program} as a way to search"] = "there is no such program here"
            continue
        words_before = [path, *options]
        found[f"{program} {options[0]}"] = lambda before=words_before: subprocess.run(  # type: ignore[misc]
            [*before, next(turn), str(where)], check=True, stdout=subprocess.DEVNULL
        )
    return found


def _agreement(store: Store, bare: BareText, words: list[str]) -> float:
    """Of the messages that bare FTS5 ranks first, the share that the store has among as many, by
    fit alone.

    Naming every role leaves titles out, which bare FTS5 doesn't have.
    """
    agreed = 0
    for word in words:
        hits = store.search(word, limit=_HITS, profile="exact", roles=("user", "assistant")).hits
        ours = {(hit.id, hit.message) for hit in hits}
        agreed += sum((row[0], row[1]) in ours for row in bare.search_joined(word, _HITS))
    return agreed / (_HITS * len(words))


def _tell(
    report: Report,
    made: corpus.Corpus,
    cases: list[_Case],
    found: dict[str, Samples],
    bare: BareText,
    same: float,
) -> None:
    rows: list[tuple[str, ...]] = []
    for case in cases:
        of_case = {
            how: found[f"{case.name}: {how}"]
            for how in (_OURS, _BARE, _JOINED)
            if f"{case.name}: {how}" in found
        }
        counts = sorted(bare.count(match) for match in case.match)
        label = f"{case.name} ({counts[len(counts) // 2]:,} hits)" if counts else case.name
        rows += [
            (label, how, *row[2:])
            for how, one in of_case.items()
            for row in sample_rows("", [one], of_case[_OURS])
        ]
    rare = found[f"{cases[0].name}: {_OURS}"]
    for name, one in found.items():
        number, _, how = name.partition(": ")
        if number.isdigit():
            rows += [
                ("the rare word, names of files", how, *row[2:])
                for row in sample_rows("", [one], rare)
            ]
    note = (
        f"Every round asks for another word, {_DIFFERENT} of a kind, but for the last. Ranked by "
        f"fit alone, {same:.0%} "
        "of what bare FTS5 has first are there. Hits are counted in bare FTS5."
    )
    report.tables.append(
        Table(f"Searching {made.messages:,} messages, the best {_HITS}", _COLUMNS, rows, note)
    )
    us, limit = found[f"{_COMMON}: {_OURS}"], found[f"{_COMMON}: {_BARE}"]
    ratio = us.median / limit.median
    size = (
        f"search, {made.messages:,} messages in {made.conversations:,} capsules, {_COMMON}, "
        f"{_HITS} hits"
    )
    report.bars += [
        Bar(
            size,
            f"median under {_BAR_S * 1e3:g} ms, warm, in an open store",
            micro(us.median),
            us.median < _BAR_S,
            "what is ranked of the matches, by fit and by age; bare FTS5 ranks all in "
            f"{micro(limit.median)}",
        ),
        Bar(
            "the same against bare FTS5 on the same rows",
            f"at most {_BAR_RATIO}x",
            f"{times(ratio)} ({micro(us.median)} and {micro(limit.median)})",
            ratio <= _BAR_RATIO,
            "what each hit is weighed by besides the fit, and the snippets",
        ),
    ]
    report.data["search"] = {name: one.as_json() for name, one in found.items()}
    report.data["same_as_bare"] = same
