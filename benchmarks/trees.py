"""What branches cost: drawing the active path of a large tree, switching, and appending to a
branch.

Every store is opened anew for a switch and an append that say "first": what an open one remembers
doesn't help them.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.fixtures import STAMP, copy_durably, history, texts
from benchmarks.harness import Contestant, interleave
from benchmarks.peers.limit import SplicedFile
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store
from capsule.format.documents.creation import new_capsule
from capsule.format.json import codec
from capsule_cli.commands.drawing import draw_message

__all__ = ["run"]

_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "capsule / it")
_MESSAGES, _BRANCHES, _MESSAGES_50_MB = 100_000, 1000, 90_000
BAR_RATIO, BAR_US = 1.3, 80.0


def run(bench: Bench) -> Report:
    """Measure trees."""
    report = Report()
    _draw(bench, report)
    _switch(bench, report)
    _append(bench, report)
    return report


def write_tree(root: Path, id: str, messages: int, branches: int) -> list[str]:
    """Write a canonical capsule with branches that go off the newest one, not far from its end; the
    ids.
    """
    draw = random.Random(7)
    entries = [dict(entry) for entry in history(messages)]
    for place in draw.sample(range(1, messages), branches):
        entries[place]["parent"] = entries[draw.randrange(max(0, place - 20), place)]["id"]
    document = new_capsule(id, "Tree", STAMP, type="group", title_set_by="user", messages=entries)
    (root / "conversations" / f"{id}.json").write_bytes(codec.encode(document))
    return [entry["id"] for entry in entries]


def _drawn(store: Store) -> int:
    """What `capsule show` does with a conversation, up to the writing."""
    history, tree, current = store.branches.tree("c")
    messages = [(place, history[place]) for place in tree.path(current)]
    return len("\n\n".join(draw_message(at, message) for at, message in messages))


def _draw(bench: Bench, report: Report) -> None:
    root = bench.directory / "draw"
    Store.init(root)
    scale = 10 if bench.quick else 1
    write_tree(root, "c", _MESSAGES // scale, _BRANCHES // scale)
    rounds = bench.rounds(30, 10)
    with Store.open(root) as store, bench.progress("drawing a tree", rounds) as step:
        shown = len(store.page("c", _MESSAGES).entries)
        samples = interleave(
            [
                Contestant("capsule show, drawn", lambda: _drawn(store)),
                Contestant("Store.page, all of it", lambda: store.page("c", _MESSAGES)),
                Contestant("Store.load", lambda: store.load("c")),
            ],
            rounds,
            warm_up=1,
            tick=step,
        )
    us = samples["capsule show, drawn"]
    ratio = us.median / samples["Store.load"].median
    label = (
        f"{_MESSAGES // scale:,} messages, {_BRANCHES // scale:,} branches, {shown:,} "
        "messages active"
    )
    report.tables.append(
        Table("The active path of a large tree", _COLUMNS, sample_rows(label, samples.values(), us))
    )
    report.bars.append(
        Bar(
            f"drawing the active path of a tree of {label}",
            "under 1.5x of load",
            times(ratio),
            ratio < 1.5,
            "the text of each message is made in Python",
        )
    )
    report.data["draw"] = {name: one.as_json() for name, one in samples.items()}


def _switch(bench: Bench, report: Report) -> None:
    root = bench.directory / "switch"
    Store.init(root)
    write_tree(root, "c", _MESSAGES_50_MB // (5 if bench.quick else 1), 20)
    path, copy = root / "conversations" / "c.json", root / "copy"
    with Store.open(root) as store:
        store.append("c", content="settled")
        _, tree, _ = store.branches.tree("c")
    forks = sorted(places for places in tree.children.values() if len(places) > 1)
    places = {"near the end": -1, "at the beginning": 0}
    pairs = {
        name: itertools.cycle([str(tree.ids[place]) for place in forks[at][:2]])
        for name, at in places.items()
    }
    elsewhere, numbers = str(tree.ids[forks[1][0]]), itertools.count()
    #: One step to the next of two, from a message halfway up.
    beside = str(tree.ids[forks[len(forks) // 2][0]])
    kept = Store.open(root)

    def once(act: Callable[[Store], object], store: Store | None) -> None:
        if store is not None:
            act(store)
            return
        with Store.open(root) as opened:
            act(opened)

    def contestants(store: Store | None) -> list[Contestant]:
        def away() -> None:
            once(lambda store: store.branches.switch("c", elsewhere), store)
            os.sync()

        def clear() -> None:
            copy.unlink(missing_ok=True)
            os.sync()

        def to(name: str) -> Contestant:
            act = lambda store: store.branches.switch("c", next(pairs[name]))  # noqa: E731
            return Contestant(
                f"Store.branches.switch, to a message {name}",
                lambda: once(act, store),
                prepare=away,
            )

        rename = lambda store: store.rename("c", f"Title {next(numbers)}")  # noqa: E731
        step = lambda store: store.branches.switch("c", beside, step=1)  # noqa: E731
        return [
            *map(to, pairs),
            Contestant(
                "Store.branches.switch, to the next beside a message",
                lambda: once(step, store),
                prepare=away,
            ),
            Contestant("Store.rename", lambda: once(rename, store), prepare=os.sync),
            Contestant("Store.load", lambda: once(lambda store: store.load("c"), store)),
            Contestant("cp + fsync", lambda: copy_durably(path, copy), prepare=clear),
        ]

    rounds = bench.rounds(
        10, 5
    )  # Each switch parses the whole file, as does the one that prepares it.
    label = f"{path.stat().st_size / 1e6:.0f} MB"
    told: list[str] = []
    ratios: list[float] = []
    stores: dict[str, Store | None] = {
        "a Store opened for it": None,
        "an open Store that did it before": kept,
    }
    for how, opened in stores.items():
        with bench.progress(f"switch on {label}, {how}", rounds) as step:
            samples = interleave(contestants(opened), rounds, warm_up=2, tick=step)
        load = samples["Store.load"]
        step_ratios: dict[str, float] = {}
        for name, sample in samples.items():
            if name.startswith("Store.branches.switch"):
                step_name = name.removeprefix("Store.branches.switch, to ").removeprefix(
                    "a message "
                )
                step_ratios[step_name] = sample.median / load.median
        told.append(
            f"{how}: " + ", ".join(f"{times(ratio)} {name}" for name, ratio in step_ratios.items())
        )
        ratios += step_ratios.values()
        us = samples["Store.branches.switch, to a message near the end"]
        report.tables.append(
            Table(
                f"Switching to another branch: {how}",
                _COLUMNS,
                sample_rows(f"switch, {label}", samples.values(), us),
                "By the id of a message, or by a step. Each parses the file and copies it in the "
                "kernel.",
            )
        )
        report.data[f"switch, {how}"] = {name: one.as_json() for name, one in samples.items()}
    kept.close()
    report.bars.append(
        Bar(
            f"switch on a {label} capsule",
            "at most 1.5x of load",
            "; ".join(told),
            max(ratios) <= 1.5,
            "the file is parsed for its tree, then copied and flushed",
        )
    )


def _append(bench: Bench, report: Report) -> None:
    root = bench.directory / "append"
    Store.init(root)
    ids, others = (write_tree(root, id, 10_000, 100) for id in ("c", "other"))
    pool = itertools.cycle(texts())
    path = root / "conversations" / "c.json"
    rounds = bench.rounds(600, 150)
    with Store.open(root) as store, bench.progress("append to a branch", rounds) as step:
        store.branches.switch("c", ids[5000])
        store.append("c", content=next(pool))
        before = path.stat().st_size
        store.append("c", content=next(pool))
        limit = SplicedFile(path, bench.directory / "limit", path.stat().st_size - before)

        def first() -> None:
            with Store.open(root) as other:
                other.append("other", content=next(pool))

        def plain() -> None:
            with Store.open(root) as other:
                other.append("line", content=next(pool))

        write_tree(root, "line", 10_000, 0)
        store.branches.switch("other", others[5000])
        plain()
        samples = interleave(
            [
                Contestant("Store.append", lambda: store.append("c", content=next(pool))),
                Contestant("2 pwrite + fdatasync", limit.append),
                Contestant("a Store opened for it", first),
                Contestant("the same, to a conversation without branches", plain),
            ],
            rounds,
            warm_up=10,
            tick=step,
        )
        limit.close()
    us, bare = samples["Store.append"], samples["2 pwrite + fdatasync"]
    allowed = BAR_RATIO * bare.median + BAR_US / 1e6
    report.tables.append(
        Table(
            "Appending to the branch that was switched to",
            _COLUMNS,
            sample_rows("10,000 messages, 100 branches", samples.values(), us),
        )
    )
    report.bars.append(
        Bar(
            "durable append to the active branch, another one being the last",
            f"median at most {BAR_RATIO}x of the same two pwrites + fdatasync, plus {BAR_US:.0f} "
            "µs",
            f"{micro(us.median)} of {micro(allowed)} allowed (the bare calls: "
            f"{micro(bare.median)})",
            us.median <= allowed,
            "what Python does around the calls",
        )
    )
    report.data["append"] = {name: one.as_json() for name, one in samples.items()}
