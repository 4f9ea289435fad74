"""The judgement of the conformance runner, on which a red CI for a broken server depends."""

from __future__ import annotations

import tomllib
from typing import Any

from tests.conformance import run

EXPECTED: dict[str, dict[str, Any]] = {
    "scenarios": {"0.1.16": 2},
    "both": {},
    "fixture": {},
    "product": {
        "tools-call": "calls a tool of the test server",
        "stateless:one-check": "asks for a test tool",
    },
}


def scenarios(**failures: dict[str, str]) -> list[run.Scenario]:
    return [
        run.Scenario(name.replace("_", "-"), passed=1, failures=found)
        for name, found in {
            "tools_call": {"any": "no"},
            "stateless": {"one-check": "no"},
            **failures,
        }.items()
    ]


def wrong(found: list[run.Scenario], server: str = "product") -> list[str]:
    verdict = run.judge(server, "0.1.16", found, EXPECTED)
    return [*verdict.wrong, *run.stale([verdict], EXPECTED)]


def test_excused_checks_may_fail() -> None:
    assert wrong(scenarios()) == []


def test_an_excuse_of_one_server_does_not_count_for_another() -> None:
    assert wrong(scenarios(), "fixture") == [
        "tools-call:any fails: no",
        "stateless:one-check fails: no",
    ]


def test_an_excused_check_that_passes_is_wrong() -> None:
    assert wrong(scenarios(tools_call={})) == [
        "tools-call:all of it passes: take it out of expected.toml"
    ]
    assert wrong(scenarios(stateless={})) == [
        "stateless:one-check passes: take it out of expected.toml"
    ]


def test_a_check_without_an_excuse_in_an_excused_scenario_must_pass() -> None:
    assert wrong(scenarios(stateless={"one-check": "no", "another": "down"})) == [
        "stateless:another fails: down"
    ]


def test_a_new_and_a_missing_scenario_are_noticed() -> None:
    assert wrong([*scenarios(), run.Scenario("new", passed=1)]) == [
        "the suite ran 3 scenarios, and expected.toml says 2"
    ]
    assert wrong(scenarios()[1:]) == [
        "the suite ran 1 scenarios, and expected.toml says 2",
        "product: no suite has tools-call: take it out of expected.toml",
    ]


def test_every_excuse_has_a_reason() -> None:
    expected = tomllib.loads((run.HERE / "expected.toml").read_text())
    assert set(expected) == set(EXPECTED)
    assert set(expected["scenarios"]) == set(run.SUITES)
    for server in ("both", "fixture", "product"):
        assert all(len(str(reason).split()) > 2 for reason in expected[server].values())
