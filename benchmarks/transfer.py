"""Importing: how fast, with how much memory, again, and while another program writes.

What must stay true: each import runs in a process of its own, whose peak of memory is told by the
system; the disk and its flushes are part of what is measured. The files are made of texts as the
other measurements have them.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import orjson

from benchmarks.environment import usual
from benchmarks.fixtures import texts
from benchmarks.harness import Samples
from benchmarks.report import Bar, Bench, Report, Table, micro
from capsule import Store
from capsule.transfer.registry import formats

__all__ = ["run"]

_MB = 1_000_000
_CHATGPT_BAR, _LINES_BAR, _MEMORY_BAR_MB, _AGAIN_BAR, _BEHIND_BAR_S, _IDLE_BAR = (
    30,
    50,
    150,
    5,
    1.0,
    0.01,
)
_IDLE_S = 10
#: In a process of its own: seconds, processor seconds, peak memory in bytes, and what was found.
_IMPORT = """
import json, resource, sys, time
from capsule import Store
with Store.open(sys.argv[1], keep_locks=False) as store:
    begin = time.perf_counter()
    report = store.import_(sys.argv[2])
    seconds = time.perf_counter() - begin
from benchmarks.memory import peak_bytes  # Not `ru_maxrss`: that has the peak of the process that started this one.
used = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps([seconds, used.ru_utime + used.ru_stime, peak_bytes(), len(report.conversations),
                  report.problems.count]))
"""


def _id(number: int) -> str:
    return str(UUID(int=number * 0x9E3779B97F4A7C15F39CC0605CEDC834 % (1 << 128)))


def _chatgpt(path: Path, size: int) -> int:
    """Write an export of ChatGPT of about so many bytes; its size."""
    pool, number = _texts(), 0
    with path.open("wb") as file:
        file.write(b"[")
        while file.tell() < size:
            ids = [_id(number + step) for step in range(31)]
            nodes: dict[str, object] = {}
            for step, id in enumerate(ids):
                node: dict[str, object] = {
                    "id": id,
                    "message": None,
                    "parent": ids[step - 1] if step else None,
                }
                node["children"] = ids[step + 1 : step + 2]
                if step:
                    author: dict[str, object] = {
                        "role": "user" if step % 2 else "assistant",
                        "name": None,
                        "metadata": {},
                    }
                    about: dict[str, object] = {"request_id": id[:16], "turn_exchange_id": ids[0]}
                    about["timestamp_"] = "absolute"
                    if not step % 2:
                        about |= {
                            "model_slug": "gpt-4o",
                            "finish_details": {"type": "stop", "stop_tokens": [200002]},
                        }
                    node["message"] = {
                        "id": id,
                        "author": author,
                        "create_time": 1736676000.125 + number + step,
                        "update_time": None,
                        "content": {"content_type": "text", "parts": [next(pool)]},
                        "status": "finished_successfully",
                        "end_turn": None,
                        "weight": 1.0,
                        "metadata": about,
                        "recipient": "all",
                    }
                nodes[id] = node
            conversation: dict[str, object] = {
                "title": f"Conversation {number}",
                "create_time": 1736676000.125 + number,
            }
            conversation |= {
                "update_time": 1736676100.5 + number,
                "mapping": nodes,
                "current_node": ids[-1],
            }
            conversation |= {
                "conversation_id": _id(number),
                "id": _id(number),
                "is_archived": False,
            }
            file.write((b", " if number else b"") + orjson.dumps(conversation))
            number += 31
        file.write(b"]")
    return path.stat().st_size


def _sessions(folder: Path, size: int) -> int:
    """Write sessions of Claude Code of about so many bytes in all; their size."""
    pool, number, made = _texts(), 0, 0
    while made < size:
        session, lines, before = _id(number), [], None
        for step in range(400):
            number += 1
            lines.append(_record(session, number, before, next(pool), is_answer=bool(step % 2)))
            before = _id(number)
        path = folder / f"{session}.jsonl"
        path.write_bytes(b"".join(lines))
        made += path.stat().st_size
    return made


def _record(session: str, number: int, before: str | None, text: str, *, is_answer: bool) -> bytes:
    record = {
        "parentUuid": before,
        "isSidechain": False,
        "userType": "external",
        "cwd": "/home/dev/app",
    }
    record |= {"sessionId": session, "version": "2.0.14", "gitBranch": "main", "uuid": _id(number)}
    at = f"2025-10-02T12:{number // 60 % 60:02d}:{number % 60:02d}.000Z"
    message: dict[str, object] = {"role": "user", "content": text}
    if is_answer:
        message = {
            "id": f"msg_{number}",
            "type": "message",
            "role": "assistant",
            "model": "claude-sonnet-4-5",
        }
        message |= {"content": [{"type": "text", "text": text}], "stop_reason": "end_turn"}
        message |= {"usage": {"input_tokens": 10, "output_tokens": 400}}
    kind = "assistant" if is_answer else "user"
    return orjson.dumps(record | {"type": kind, "message": message, "timestamp": at}) + b"\n"


def _texts() -> Iterator[str]:
    """Texts of messages: questions, and answers of a page."""
    pool = itertools.cycle(texts())
    while True:
        yield next(pool)
        yield "\n\n".join(next(pool) for _ in range(8))


def run(bench: Bench) -> Report:
    """Measure imports."""
    report = Report()
    size = bench.rounds(1000, 40, 5) * _MB
    export = bench.directory / "conversations.json"
    sessions = bench.directory / "sessions"
    sessions.mkdir()
    with bench.progress("writing files to import", 2) as step:
        cases = [("ChatGPT, one JSON array", export, _chatgpt(export, size), _CHATGPT_BAR)]
        step()
        cases.append(("Claude Code, JSONL", sessions, _sessions(sessions, size // 4), _LINES_BAR))
    rows = []
    for number, (name, path, many, bar) in enumerate(cases):
        if number and "claude-code" not in formats():
            report.skipped[name] = "there is no such format"
            continue
        store = bench.directory / f"store{number}"
        Store.init(store)
        with bench.progress(f"importing {name}", 2) as step:
            first = _imported(store, path)
            step()
            again = _imported(store, path)
        speed, speed_again = (many / _MB / one[0] for one in (first, again))
        for what, one, rate in (("the first time", first, speed), ("again", again, speed_again)):
            figures = (f"{rate:,.0f} MB/s", micro(one[1]), f"{one[2] / _MB:,.0f} MB", f"{one[3]:,}")
            rows.append((f"{name}, {many / _MB:,.0f} MB", what, micro(one[0]), *figures))
        data = {"bytes": many, "first": first, "again": again}
        report.data[name] = data
        report.bars.append(
            _bar(f"Import of {name}", f"{bar} MB/s", f"{speed:,.0f} MB/s", speed >= bar)
        )
        ratio = speed_again / speed
        report.bars.append(
            _bar(f"The same again: {name}", f"{_AGAIN_BAR}x", f"{ratio:,.1f}x", ratio >= _AGAIN_BAR)
        )
        peak = first[2] / _MB
        report.bars.append(
            _bar(
                f"Memory for {name}",
                f"{_MEMORY_BAR_MB} MB",
                f"{peak:,.0f} MB",
                peak < _MEMORY_BAR_MB,
            )
        )
    columns = ("what", "when", "seconds", "speed", "processor", "peak of memory", "conversations")
    report.tables.append(
        Table("Importing", columns, rows, "Each in a process of its own; flushes included.")
    )
    if "claude-code" in formats():
        _follow(bench, report)
    return report


def _bar(what: str, bar: str, measured: str, reached: bool) -> Bar:
    return Bar(what, bar, measured, reached, "" if reached else "see the table")


def _imported(store: Path, path: Path) -> list[float]:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORT, str(store), str(path)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parent.parent,
        env=usual(),
    )
    found: list[float] = json.loads(done.stdout)
    assert not found[4], "the files are whole"
    return found


def _follow(bench: Bench, report: Report) -> None:
    """How long after a line is written it is in the store, and what waiting costs."""
    folder, root = bench.directory / "live", bench.directory / "store-live"
    folder.mkdir()
    Store.init(root)
    session = _id(7)
    path = folder / f"{session}.jsonl"
    path.write_bytes(_record(session, 1, None, "Begin", is_answer=False))
    command = [
        sys.executable,
        "-m",
        "capsule_cli",
        "--store",
        str(root),
        "import",
        "--follow",
        str(folder),
        "--json",
    ]
    rounds, behind = bench.rounds(40, 10), []
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        with bench.progress("following a session", rounds) as step:
            for number in range(2, rounds + 2):
                time.sleep(0.05)
                with path.open("ab") as file:
                    file.write(
                        _record(session, number, _id(number - 1), "More", is_answer=number % 2 == 0)
                    )
                begin = time.perf_counter()
                process.stdout.readline()
                behind.append(time.perf_counter() - begin)
                step()
        before = _processor_s(process.pid)
        time.sleep(idle_s := bench.rounds(_IDLE_S, _IDLE_S, 1))
        idle = (_processor_s(process.pid) - before) / idle_s
        process.terminate()
    samples = Samples("a line of a session, until it is told as imported", behind)
    rows = [(samples.name, *(micro(samples.quantile(q)) for q in (0.5, 0.95, 1.0)), f"{idle:.2%}")]
    report.tables.append(
        Table("Following", ("what", "median", "p95", "max", "processor, idle"), rows)
    )
    worst = samples.quantile(1.0)
    report.bars.append(
        _bar(
            "A followed session, behind", f"{_BEHIND_BAR_S} s", micro(worst), worst < _BEHIND_BAR_S
        )
    )
    report.bars.append(
        _bar("Following, idle", f"{_IDLE_BAR:.0%} of a processor", f"{idle:.2%}", idle < _IDLE_BAR)
    )


def _processor_s(pid: int) -> float:
    """The processor seconds of a process (Linux)."""
    fields = Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
