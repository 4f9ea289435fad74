"""The page: how soon it is there, what it loads, how soon it shows what another process wrote, and
its cost when idle.

What must stay true: the page is `capsule web` in a process of its own, and beside it stands a bare
Starlette page in another one; whatever a person sees is timed inside a real browser, by its own
clock, and a writer is a process of its own that reads the clock of the system, as the browser does.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import psutil  # type: ignore[import-untyped]

from benchmarks import corpus
from benchmarks.browsing import (
    LOADED,
    PAINTED,
    WATCH_HITS,
    WATCH_TEXTS,
    evaluated,
    launched,
    opened,
)
from benchmarks.environment import usual
from benchmarks.fixtures import write_capsule
from benchmarks.harness import Contestant, Samples, interleave
from benchmarks.report import Bar, Bench, Report, Table, micro, sample_rows, times
from capsule import Store
from tests.web.serving import Served

if TYPE_CHECKING:
    from playwright.sync_api import Browser

__all__ = ["run"]

_OURS, _BARE = "capsule web", "a bare Starlette page"
_LIST_S, _LIST_RATIO, _LOADED, _PAINT_S, _HEARD_S, _SEARCH_S, _IDLE = (
    0.1,
    8.0,
    150_000,
    0.3,
    0.05,
    0.06,
    0.05,
)
_COLUMNS = ("what", "how", "rounds", "median", "p95", "p99", "max", "capsule web / it")
_TABS, _IDLE_S, _SETTLE_S = 200, 20, 60


def run(bench: Bench) -> Report:
    """Measure the page."""
    report = Report()
    made = corpus.ensure(bench)
    with bench.progress("indexing", 1), Store.open(made.root) as store:
        store.heads()
    with _served(made.root, bench) as served, _bare() as bare:
        _first_page(bench, report, made, served, bare)
        with launched(report) as browser:
            if browser is not None:
                _loaded(report, browser, served)
                _search(bench, report, browser, made, served)
    root = bench.directory / "large"
    Store.init(root)
    messages = bench.rounds(100_000, 5_000, 500)
    write_capsule(root, "large", messages=messages, type="chat")
    write_capsule(
        root, "small", messages=20, type="chat"
    )  # For many tabs: most of a tab's cost is its text.
    with _served(root, bench) as served, _bare() as bare, launched(report) as browser:
        if browser is not None:
            _paint(bench, report, browser, served, bare, messages)
            _appended(bench, report, browser, served, bare)
    with _served(root, bench) as served, _bare() as bare:
        _idle(bench, report, served, bare)
    return report


# -- What serves, and what looks -------------------------------------------------------------------


@contextmanager
def _served(root: Path, bench: Bench) -> Iterator[Served]:
    served = Served(root, (), bench.directory / "web.txt", [])
    try:
        served.client.get("/").raise_for_status()
        yield served
    finally:
        served.stop()


@contextmanager
def _bare() -> Iterator[str]:
    """A page of a few bytes, in a process of its own: its address."""
    with _process("benchmarks.peers.bare_page") as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()
        process.kill()


def _process(module: str, *words: str) -> subprocess.Popen[str]:
    command, here = [sys.executable, "-m", module, *words], Path(__file__).parent.parent
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, cwd=here, env=usual())


# -- The measurements ------------------------------------------------------------------------------


def _tell(
    report: Report, key: str, title: str, what: str, samples: dict[str, Samples], note: str = ""
) -> None:
    report.tables.append(
        Table(title, _COLUMNS, sample_rows(what, samples.values(), samples[_OURS]), note)
    )
    report.data[key] = {name: one.as_json() for name, one in samples.items()}


def _first_page(
    bench: Bench, report: Report, made: corpus.Corpus, served: Served, bare: str
) -> None:
    with httpx2.Client(base_url=bare) as client:
        contestants = [
            Contestant(_OURS, lambda: served.client.get("/").raise_for_status()),
            Contestant(_BARE, lambda: client.get("/").raise_for_status()),
        ]
        samples = interleave(contestants, bench.rounds(200, 30))
    ours = samples[_OURS].median
    ratio = ours / samples[_BARE].median
    what = f"first page of {made.conversations:,} conversations"
    _tell(report, "first_page", "From the request to the last byte", what, samples)
    report.bars.append(
        Bar(
            f"{what}, request to last byte",
            f"median under {_LIST_S * 1000:.0f} ms, or {_LIST_RATIO:g}x of an empty page",
            f"{micro(ours)}, {times(ratio)}",
            ours < _LIST_S or ratio < _LIST_RATIO,
            "a look for files that changed, a query of the index, and a template",
        )
    )


def _loaded(report: Report, browser: Browser, served: Served) -> None:
    context = browser.new_context()
    page = opened(context, served, "/")
    parts: list[tuple[str, int]] = page.evaluate(LOADED)
    context.close()
    total = sum(size for _, size in parts)
    rows = [(path, f"{size:,}") for path, size in sorted(parts, key=lambda part: -part[1])]
    report.tables.append(
        Table("What a first page loads, in bytes, with headers", ("what", "bytes"), rows)
    )
    report.bars.append(
        Bar(
            "all that a first page loads",
            f"under {_LOADED / 1000:.0f} KB",
            f"{total / 1000:.1f} KB in {len(parts)} requests",
            total < _LOADED,
            "the list, one sheet of styles and the modules of the script, not compressed",
        )
    )
    report.data["loaded"] = dict(parts)


def _paint(
    bench: Bench, report: Report, browser: Browser, served: Served, bare: str, messages: int
) -> None:
    def painted(name: str) -> float:
        context = browser.new_context()  # With nothing in its cache.
        context.add_cookies(served.cookies())  # type: ignore[arg-type]
        page = context.new_page()
        page.goto(f"{served.base}/c/large" if name == _OURS else bare)
        seconds = evaluated(page, PAINTED)
        context.close()
        return float(seconds)

    draw, samples = random.Random(2), {name: Samples(name) for name in (_OURS, _BARE)}
    for _ in range(bench.rounds(30, 5, 1)):
        for name in draw.sample([*samples], 2):
            samples[name].seconds.append(painted(name))
    us, what = samples[_OURS], f"a conversation of {messages:,} messages"
    _tell(
        report, "paint", "From the request to the first paint, with an empty cache", what, samples
    )
    report.bars.append(
        Bar(
            f"first paint of {what}",
            f"median under {_PAINT_S * 1000:.0f} ms",
            f"{micro(us.median)}, {times(us.median / samples[_BARE].median)} of a bare page",
            us.median < _PAINT_S,
            "the end of the file is read, and a window of it drawn",
        )
    )


def _appended(bench: Bench, report: Report, browser: Browser, served: Served, bare: str) -> None:
    count, context = bench.rounds(200, 30, 3), browser.new_context()
    pages = {_OURS: opened(context, served, "/c/large"), _BARE: context.new_page()}
    pages[_BARE].goto(bare)
    for page in pages.values():
        evaluated(page, WATCH_TEXTS)
    with _process("benchmarks.web", str(served.root), bare, str(count)) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdout.readline()
        for page in pages.values():
            evaluated(page, "() => __until('mark-0-')")  # From then on it listens.
        writer.stdin.write("\n")
        writer.stdin.flush()
        begun: dict[str, dict[str, float]] = json.loads(writer.stdout.readline())
    samples = {}
    for name, page in pages.items():
        seen: dict[str, float] = evaluated(page, f"() => __until('mark-{count}-')")
        samples[name] = Samples(
            name, [seen[mark] / 1000 - moment for mark, moment in begun[name].items()]
        )
    context.close()
    us = samples[_OURS]
    note = (
        "A writer takes turns, after 30 to 130 ms: it appends, or posts to the bare page, "
        "which sends on from memory."
    )
    title = "From before an append in another process until the text is in the page"
    _tell(report, "appended", title, "one tab", samples, note)
    report.bars.append(
        Bar(
            "append in another process to the text in the page",
            f"median under {_HEARD_S * 1000:.0f} ms",
            f"{micro(us.median)}, {times(us.median / samples[_BARE].median)} of a bare page",
            us.median < _HEARD_S,
            "the append with its sync, the notice, the index, the event, and the page's question "
            "for the message",
        )
    )


def _search(
    bench: Bench, report: Report, browser: Browser, made: corpus.Corpus, served: Served
) -> None:
    words, _ = corpus._words()
    queries, draw = itertools.cycle(words[200:300]), random.Random(3)
    context = browser.new_context()
    page = opened(context, served, "/search?q=" + words[199])
    samples = {name: Samples(name) for name in (_OURS, "Store.search")}

    def shown(word: str) -> float:
        evaluated(page, WATCH_HITS)
        page.fill("#q", word)
        return float(evaluated(page, "() => __hits"))

    with Store.open(made.root, keep_locks=False) as store:

        def found(word: str) -> float:
            begin = time.perf_counter()
            store.search(word)
            return time.perf_counter() - begin

        how = {_OURS: shown, "Store.search": found}
        for number in range(-bench.rounds(3, 3, 1), bench.rounds(60, 10, 1)):
            word = next(queries)
            for name in draw.sample([*how], 2):
                seconds = how[name](word)
                if number >= 0:
                    samples[name].seconds.append(seconds)
    context.close()
    us, alone, what = samples[_OURS], samples["Store.search"].median, f"{made.messages:,} messages"
    _tell(report, "search", "From the key to the hits in the page", what, samples)
    report.bars.append(
        Bar(
            f"a search in {what}, key to hits",
            f"median under {_SEARCH_S * 1000:.0f} ms over the search itself",
            f"{micro(max(us.median - alone, 0))} over it",
            us.median - alone < _SEARCH_S,
            "the pause after a key, a request, and the hits in their surroundings",
        )
    )


def _idle(bench: Bench, report: Report, served: Served, bare: str) -> None:
    """In a fresh browser each, a minute after the last tab was opened: until then it tidies up what
    it loaded.
    """
    count, seconds = bench.rounds(_TABS, 20, 3), bench.rounds(_IDLE_S, 5, 1)
    settle, shares = bench.rounds(_SETTLE_S, 10, 1), dict[str, tuple[float, float]]()
    still = f"{bare}/still"
    for name in (_OURS, still):
        with launched(report) as browser:
            if browser is None:
                return
            context = browser.new_context()
            for _ in range(count):
                if name == _OURS:
                    opened(context, served, "/c/small")
                else:
                    context.new_page().goto(name)
            time.sleep(settle)
            shares[name] = _shares(served, seconds)
    of_browser, of_server = shares[_OURS]
    total, bare_total = of_browser + of_server, shares[still][0]
    rows = [
        (f"{count} tabs of {_OURS}", f"{total:.2%}", f"{of_server:.2%}"),
        (f"{count} tabs of {_BARE} without script", f"{bare_total:.2%}", ""),
    ]
    title = f"Idle for {seconds} s, {settle} s after the last tab was opened: shares of a processor"
    note = (
        "The browser and the server, without the program that drives the browser, which a "
        "person does not have."
    )
    report.tables.append(Table(title, ("what", "all", "capsule web"), rows, note))
    report.bars.append(
        Bar(
            f"{count} tabs of one browser, idle",
            f"under {_IDLE:.0%} of a processor",
            f"{total:.2%}, of which the server {of_server:.2%}",
            total < _IDLE,
            "the looks without a notice now and then, and what a browser does for its tabs",
        )
    )
    report.data["idle"] = {"tabs": count, "all": total, "server": of_server, "bare": bare_total}


def _shares(served: Served, seconds: int) -> tuple[float, float]:
    """Shares of a processor while nothing happens: of the browser, and of the server."""
    begin, before = time.monotonic(), _times(served)
    time.sleep(seconds)
    passed, after = time.monotonic() - begin, _times(served)
    spent = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
    server = spent.pop(served.process.pid)
    return sum(spent.values()) / passed, server / passed


def _times(served: Served) -> dict[int, float]:
    """The processor times of the server and of what the driver of the browser started,
    in seconds.
    """
    found = {}
    drivers = [one for one in psutil.Process().children() if "run-driver" in one.cmdline()]
    for process in [
        psutil.Process(served.process.pid),
        *(each for one in drivers for each in one.children(True)),
    ]:
        try:
            used = process.cpu_times()
        except psutil.NoSuchProcess:
            continue
        found[process.pid] = used.user + used.system
    return found


# -- The writer ------------------------------------------------------------------------------------


def _write(root: str, bare: str, count: int) -> None:
    """Run in a process of its own: append marked texts, and post others to the bare page; when each
    was begun.
    """
    draw = random.Random(1)
    with Store.open(root, keep_locks=False) as store, httpx2.Client(base_url=bare) as client:
        send: dict[str, Callable[[str], Any]] = {
            _OURS: lambda text: store.append("large", content=text),
            _BARE: lambda text: client.post("/append", content=text).raise_for_status(),
        }
        begun: dict[str, dict[str, float]] = {name: {} for name in send}
        send[_OURS]("mark-0-")
        print(flush=True)
        sys.stdin.readline()
        for mark in (f"mark-{number}-" for number in range(1, count + 1)):
            for name in draw.sample([*send], 2):
                time.sleep(draw.uniform(0.03, 0.13))
                begun[name][mark] = time.time()
                send[name](mark)
        print(json.dumps(begun), flush=True)


if __name__ == "__main__":
    _write(sys.argv[1], sys.argv[2], int(sys.argv[3]))
