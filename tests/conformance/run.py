"""Runs the official conformance suite against our server class and against the product, and prints
unexpected results.

What must stay true: a scenario must pass unless `expected.toml` excuses it by name, with a reason;
and an excused scenario must fail. On the fixture the suite must also exit with 0. That alone is not
enough, as the exit code ignores scenarios that do not count.

    python tests/conformance/run.py               both servers, all suites (make conformance)
    python tests/conformance/run.py fixture       one server
    python tests/conformance/run.py --may-skip    exit 0 with a note where npm or its registry is not available
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT)]

from tests.node.ensure import UNAVAILABLE, Installed, Unavailable, ensure  # noqa: E402
from tests.node.serving import capsule, environment, serving  # noqa: E402


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite: its package in tests/node/package.json, its version, and its arguments."""

    package: str
    version: str
    options: tuple[str, ...] = ()


SUITES = {
    "0.1.16": Suite("conformance-0.1", "0.1.16"),
    "2025-11-25": Suite("conformance-0.2", "0.2.0-alpha.12", ("--requirements", "2025-11-25")),
    "2026-07-28": Suite("conformance-0.2", "0.2.0-alpha.12", ("--requirements", "2026-07-28")),
}
SERVERS = ("fixture", "product")
#: Seconds for one suite against one server; they take two to ten.
TIMEOUT_S = 60

_RUN = re.compile(r"^=== Running scenario: (\S+) ===$", re.MULTILINE)
_RESULT = re.compile(r"^server-(?P<scenario>.+)-\d{4}-\d\d-\d\dT[\d-]+Z$")


#: The content of `expected.toml`.
Expected = dict[str, dict[str, Any]]


@dataclass(slots=True)
class Scenario:
    """The result of one scenario."""

    name: str
    passed: int = 0
    warned: int = 0
    failures: dict[str, str] = field(default_factory=dict)  # by the check's id


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of a suite on a server, compared with the expected one."""

    server: str
    suite: str
    scenarios: list[Scenario]
    excused: list[str]
    wrong: list[str]


def _command(server: str, place: Path) -> list[str]:
    if server == "fixture":
        return [sys.executable, "-m", "tests.conformance.fixture", str(place)]
    store = place / "store"
    program, env = capsule(store), environment(place)
    subprocess.run([*program, "init", str(store)], check=True, stdout=subprocess.DEVNULL, env=env)
    shutil.copytree(ROOT / "conversations", store / "conversations", dirs_exist_ok=True)
    added = [*program, "mcp", "tokens", "add", "suite", "--allow", "admin"]
    (place / "token").write_bytes(
        subprocess.run(added, check=True, stdout=subprocess.PIPE, env=env).stdout
    )
    return [*program, "mcp", "--http", "127.0.0.1:0"]


def run(
    suite: str, url: str, token: str, node: Installed, results: Path
) -> tuple[list[Scenario], int]:
    """Run a suite against a server. Returns: the result of each scenario, and the exit code of the
    suite.

    Raises:
        RuntimeError: The suite itself did not run.
    """
    script = node.modules / SUITES[suite].package / "dist" / "index.js"
    words = ["server", "--url", url, "--output-dir", str(results), *SUITES[suite].options]
    done = subprocess.run(
        node.command(script, *words, token=token),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT_S,
        env=node.environment(token),
    )
    begun = {name: Scenario(name) for name in _RUN.findall(done.stdout)}
    if not begun:
        raise RuntimeError(f"the suite {suite} ran nothing:\n{done.stdout}{done.stderr}")
    for directory in results.iterdir():
        named = _RESULT.match(directory.name)
        if named and named["scenario"] in begun:
            _read(directory / "checks.json", begun[named["scenario"]])
    for scenario in begun.values():
        if not (
            scenario.passed
            or scenario.warned
            or scenario.failures
            or _is_without_findings(results, scenario.name)
        ):
            scenario.failures["no-result"] = "the suite wrote no result of it"
    return list(begun.values()), done.returncode


def _is_without_findings(results: Path, name: str) -> bool:
    """Whether the scenario wrote results without a finding, as one that does not apply."""
    return any((found / "checks.json").is_file() for found in results.glob(f"server-{name}-*"))


def _read(path: Path, scenario: Scenario) -> None:
    for check in json.loads(path.read_text()):
        if check["status"] == "FAILURE":
            scenario.failures[check["id"]] = " ".join(
                check.get("errorMessage", check["description"]).split()
            )
        scenario.passed += check["status"] == "SUCCESS"
        scenario.warned += check["status"] == "WARNING"


def judge(server: str, suite: str, scenarios: list[Scenario], expected: Expected) -> Verdict:
    """Compare the results of a suite with those expected of the server."""
    entries = _entries(expected, server)
    excused, wrong = [], []
    for scenario in scenarios:
        failed = set(scenario.failures)
        checks = {
            name.partition(":")[2] for name in entries if name.startswith(f"{scenario.name}:")
        }
        if scenario.name in entries:
            # The whole scenario is excused, whichever of its checks fail.
            checks = failed or {"all of it"}
        excused += [f"{scenario.name}:{check}" for check in sorted(failed & checks)]
        wrong += [
            f"{scenario.name}:{check} passes: take it out of expected.toml"
            for check in sorted(checks - failed)
        ]
        wrong += [
            f"{scenario.name}:{check} fails: {scenario.failures[check]}"
            for check in sorted(failed - checks)
        ]
    if (count := int(expected["scenarios"][suite])) != len(scenarios):
        wrong.append(f"the suite ran {len(scenarios)} scenarios, and expected.toml says {count}")
    return Verdict(server, suite, scenarios, excused, wrong)


def _entries(expected: Expected, server: str) -> set[str]:
    return {*expected["both"], *expected[server]}


def stale(verdicts: list[Verdict], expected: Expected) -> list[str]:
    """The excused scenarios of a server that no suite ran against it."""
    found = []
    for server in sorted({verdict.server for verdict in verdicts}):
        ran = {
            scenario.name
            for verdict in verdicts
            if verdict.server == server
            for scenario in verdict.scenarios
        }
        names = {name.partition(":")[0] for name in _entries(expected, server)}
        found += [
            f"{server}: no suite has {name}: take it out of expected.toml"
            for name in sorted(names - ran)
        ]
    return found


def report(verdicts: list[Verdict], took_s: float) -> str:
    """The table of results, and below it everything wrong."""
    row = "{:<8} {:<26} {:>9} {:>7} {:>8} {:>6} {:>10} {:>9}".format
    lines = [
        "",
        row("server", "suite", "scenarios", "passed", "excused", "wrong", "checks ok", "warnings"),
    ]
    for verdict in verdicts:
        failed = {scenario.name for scenario in verdict.scenarios if scenario.failures}
        wrong = {what.partition(":")[0].partition(" ")[0] for what in verdict.wrong}
        lines.append(
            row(
                verdict.server,
                " ".join([SUITES[verdict.suite].version, *SUITES[verdict.suite].options[1:]]),
                len(verdict.scenarios),
                len(verdict.scenarios) - len(failed),
                len(failed - wrong),
                len(verdict.wrong),
                sum(scenario.passed for scenario in verdict.scenarios),
                sum(scenario.warned for scenario in verdict.scenarios),
            )
        )
    lines += [
        f"WRONG: {verdict.server}, {verdict.suite}: {what}"
        for verdict in verdicts
        for what in verdict.wrong
    ]
    return "\n".join([*lines, f"took {took_s:.0f} s"])


def conformance(servers: Sequence[str]) -> int:
    """Run all suites against these servers.

    Raises:
        Unavailable: npm or its registry is not available.
    """
    node = ensure()
    started = time.monotonic()
    expected = tomllib.loads((HERE / "expected.toml").read_text())
    verdicts = []
    with tempfile.TemporaryDirectory(prefix="capsule conformance ") as name:
        for server in servers:
            place = Path(name) / server
            place.mkdir()
            with serving(_command(server, place), place / "log", environment(place)) as url:
                token = (place / "token").read_text().strip()
                for suite in SUITES:
                    scenarios, code = run(suite, url, token, node, place / f"results-{suite}")
                    verdict = judge(server, suite, scenarios, expected)
                    if server == "fixture" and code:
                        verdict.wrong.append(f"the suite itself is not content: exit code {code}")
                    verdicts.append(verdict)
    wrong = stale(verdicts, expected)
    print(report(verdicts, time.monotonic() - started))
    print("".join(f"WRONG: {what}\n" for what in wrong), end="")
    return 1 if wrong or any(verdict.wrong for verdict in verdicts) else 0


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("server", nargs="*", choices=[*SERVERS, []], default=[])
    parser.add_argument(
        "--may-skip", action="store_true", help="exit 0 where npm or its registry can't be had"
    )
    asked = parser.parse_args(arguments)
    try:
        return conformance(asked.server or SERVERS)
    except Unavailable as error:
        print(
            f"SKIPPED: the official conformance suite, and with it all that it proves: {error}",
            file=sys.stderr,
        )
        return 0 if asked.may_skip else UNAVAILABLE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
