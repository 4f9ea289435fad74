"""The overview: what is in the store, counted and drawn, and whether it is well."""

from __future__ import annotations

import re
from datetime import date, timedelta
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.mcp_server.access import Tokens
from capsule.web import plots
from tests.web.drawn import text
from tests.web.test_admission import Door

HOSTILE = '<script>canary()</script>"&'


@pytest.fixture
def owner(store: Store, tmp_path: Path) -> Door:
    door = Door(store, Tokens(tmp_path / "config", store.root))
    door.enter(door.site.admission.token())
    return door


def test_the_page_has_the_figures_of_stats(store: Store, owner: Door) -> None:
    store.agents.register("anna")
    store.agents.register("bob")
    store.messages.send("some words here", agent="anna", to="bob")
    id = store.create(title=f"The longest {HOSTILE}").id
    store.append(id, content="a " * 2000)
    stats, answer = store.stats(), owner.ask("/overview")
    shown = text(answer)
    assert "2 messages" in shown.replace("messages 2", "2 messages")
    assert f"{stats.tokens:,}" in shown and f"{stats.words:,}" in shown
    assert "The longest <script>canary()" in shown and "<script>canary" not in answer.text
    (day,) = stats.by_day
    assert f"{day} 2 {stats.by_day[day].tokens:,}" in shown and "anna 1" in shown
    for svg in re.findall("<svg.*?</svg>", answer.text, re.DOTALL):
        assert ElementTree.fromstring(svg).get("aria-label", "").startswith("Messages by ")
    assert "style=" not in answer.text


def test_an_agent_counts_what_it_reads(store: Store, tmp_path: Path) -> None:
    for agent in ("anna", "bob", "eve"):
        store.agents.register(agent)
    store.messages.send("canary " * 900, agent="bob", to="eve")
    with store.beside(agent="anna") as anna:
        door = Door(anna, Tokens(tmp_path / "config", store.root))
        door.enter(door.site.admission.token())
        shown = text(door.ask("/overview"))
        assert "bob" not in shown and "900" not in shown and "Examine" not in shown
        assert door.ask("/overview?health=1").status == 403


@pytest.mark.files
def test_the_health_is_examined_on_demand_and_nothing_is_changed(store: Store, owner: Door) -> None:
    store.create(title="Sound")
    store.flush()
    assert "All is well" not in text(owner.ask("/overview"))
    assert "All is well" in text(owner.ask("/overview?health=1"))
    path = Path(store.root) / "conversations" / "misnamed.json"
    next(path.parent.glob("*.json")).rename(path)
    before = path.read_bytes()
    shown = text(owner.ask("/overview?health=1"))
    assert "misnamed.json" in shown and "capsule store doctor --repair" in shown
    assert path.read_bytes() == before


@given(st.integers(0, 10**12))
def test_an_axis_has_few_round_numbers_and_reaches_the_most(most: int) -> None:
    numbers = plots.scale(most)
    assert numbers[0] == 0 and numbers[-1] >= most and 2 <= len(numbers) <= 7
    assert {b - a for a, b in pairwise(numbers)} == {numbers[1]}
    assert str(numbers[1]).strip("0") in ("1", "2", "5")


def test_the_days_that_are_drawn_have_no_gap_and_end_with_the_last() -> None:
    counts = {"no time": 9, "2024-02-28": 1, "2024-03-01": 3, "2023-01-01": 5}
    assert plots.latest_days(counts, 3) == {"2024-02-28": 1, "2024-02-29": 0, "2024-03-01": 3}
    assert plots.latest_days({"no time": 9}, 3) == {} == plots.latest_days({}, 3)
    assert plots.latest_days({"0001-01-02": 1}, 5) == {"0001-01-01": 0, "0001-01-02": 1}


@given(st.dictionaries(st.text(), st.integers(0, 10**9), max_size=12))
def test_a_plot_is_sound_whatever_it_shows(counts: dict[str, int]) -> None:
    printable = {
        name: number for name, number in counts.items() if all(ord(char) > 31 for char in name)
    }
    printable = {name: number for name, number in printable.items() if name.isprintable()} | {
        HOSTILE: 3
    }
    days = {
        str(date(2026, 1, 1) + timedelta(days=at)): number
        for at, number in enumerate(printable.values())
    }
    for drawn in (plots.by_name(HOSTILE, [*printable.items()]), plots.by_day(HOSTILE, days)):
        svg = ElementTree.fromstring(str(drawn))
        assert svg.get("aria-label") == HOSTILE and svg.get("role") == "img"
        bars = [rect for rect in svg.iter("rect") if float(rect.get("width", "0%").rstrip("%")) > 0]
        ends = [
            float(b.get("x", "").rstrip("%")) + float(b.get("width", "").rstrip("%")) for b in bars
        ]
        assert all(end <= 100.01 for end in ends)
        assert len(bars) > 0
