"""The runner of the measurements, and how they measure memory. `make bench-smoke` runs the
measurements themselves.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import __main__ as runner
from benchmarks import browsing
from benchmarks.report import Bench, Report
from benchmarks.transfer import _imported
from capsule import Store


def test_a_measurement_that_fails_is_named_at_the_end_and_ends_no_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(bench: Bench) -> Report:
        raise TypeError("an argument is missing")

    runs = {"benchmarks.append": fail, "benchmarks.git": lambda bench: Report(data={"figure": 1})}
    monkeypatch.setattr(runner, "import_module", lambda name: SimpleNamespace(run=runs[name]))
    monkeypatch.setattr(runner, "_HERE", tmp_path / "benchmarks")
    monkeypatch.setattr(
        sys, "argv", ["", "--only", "append", "git", "--json", "--directory", str(tmp_path)]
    )
    assert runner.main() == 1
    out, err = capsys.readouterr()
    assert json.loads(out)["measurements"]["git"]["figure"] == 1
    assert err.splitlines()[-1] == "failed: append"


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere the peak of a process is told as its own"
)
def test_the_peak_of_an_import_is_not_that_of_the_process_that_started_it(tmp_path: Path) -> None:
    Store.init(tmp_path / "store")
    (tmp_path / "chat.jsonl").write_bytes(b"")
    large = b"x" * 400_000_000
    assert _imported(tmp_path / "store", tmp_path / "chat.jsonl")[2] < len(large)


def test_what_needs_a_browser_is_named_where_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(browsing, "program", lambda: None)
    report = Report()
    with browsing.launched(report) as browser:
        assert browser is None
    assert len(report.skipped) == 5
    assert "tabs of one browser, idle" in report.skipped
