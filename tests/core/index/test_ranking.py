"""In which order hits stand."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

import pytest

from capsule import Store, timestamps
from capsule.engines.questions import ranking
from capsule.engines.questions.ranking import PROFILES, profile_of
from tests.core.index.state import asked

NOW_MS = 1_750_000_000_000
HOUR_MS = 3_600_000


def ago(hours: float) -> str:
    return timestamps.canonical((datetime.now(UTC) - timedelta(hours=hours)).isoformat())


def order(store: Store, query: str, **options: str) -> list[int | None]:
    return [hit.at for hit in store.search(query, **options).hits]  # type: ignore[arg-type]


def fill(store: Store, *messages: tuple[str, float]) -> None:
    """A conversation of these messages, each so many hours old; and others, so that a word tells
    something.
    """
    store.create(
        id="c",
        title="~",
        messages=[
            {"role": "user", "content": text, "timestamp": ago(hours)} for text, hours in messages
        ],
    )
    store.create(
        title="~~", messages=[{"role": "user", "content": f"filler number {n}"} for n in range(20)]
    )


def test_the_formula_is_that_of_the_documentation() -> None:
    for name, half_life_h, floor in [("recent", 24, 0.1), ("balanced", 168, 0.5)]:
        profile = profile_of(name)
        ages = (0, 1, half_life_h, 10 * half_life_h, -5)
        scores = profile.weigh([(2.0, NOW_MS - int(age * HOUR_MS), 1) for age in ages], NOW_MS)
        for age, score in zip(ages, scores, strict=True):
            assert score == pytest.approx(
                2.0 * (floor + (1 - floor) * math.pow(2, -max(age, 0) / half_life_h))
            )


def test_of_two_equally_old_messages_the_better_fit_stands_first(store: Store) -> None:
    fill(
        store,
        ("a plan among many other words that have nothing to do with it", 5),
        ("plan plan", 5),
        ("the plan", 5),
    )
    for profile in PROFILES:
        assert order(store, "plan", profile=profile) == [1, 2, 0]


def test_of_two_that_fit_alike_the_newer_stands_first(store: Store) -> None:
    fill(store, ("the plan", 50), ("the plan", 3), ("the plan", 700))
    for profile in PROFILES:
        assert order(store, "plan", profile=profile) == [1, 0, 2]


def test_profiles_weigh_age_against_fit(store: Store) -> None:
    fill(store, ("plan plan plan", 24 * 6), ("we have a plan for it now", 1))
    assert order(store, "plan", profile="exact") == [0, 1]
    assert order(store, "plan", profile="recent") == [1, 0]


def test_a_very_old_message_keeps_a_share_of_its_score(store: Store) -> None:
    fill(
        store,
        ("plan", 24 * 900),
        ("a text of very many words in which there is a plan somewhere", 24 * 800),
    )
    assert order(store, "plan", profile="balanced") == [0, 1]


def test_the_best_title_fits_as_well_as_the_best_message(store: Store) -> None:
    fill(
        store,
        ("the plan", 0),
        ("a longer text in which the plan is one of many words, and no more", 0),
    )
    store.create(id="t", title="The plan", messages=[])
    for number in range(9):
        store.create(id=f"o{number}", title=f"Other {number}")
    hits = store.search("plan", profile="exact").hits
    assert [hit.at for hit in hits] == [None, 0, 1]
    assert hits[0].score == hits[1].score > hits[2].score


def test_words_in_a_title_count_more_than_in_tags(store: Store) -> None:
    store.create(id="tagged", title="Something here", tags=["plan"])
    store.create(id="titled", title="Plan here", tags=["something"])
    for number in range(9):
        store.create(title=f"Other {number}")
    assert [hit.id for hit in store.search("plan", profile="exact").hits] == ["titled", "tagged"]


@pytest.mark.parametrize("profile", ["balanced", "recent"])
def test_only_the_newest_matches_are_ranked_when_there_are_very_many(
    store: Store, monkeypatch: pytest.MonkeyPatch, profile: str
) -> None:
    monkeypatch.setattr(ranking, "WINDOW", 5)
    fill(store, ("plan", 0), *((f"one of many plan texts {n}", 0) for n in range(8)))
    found = order(store, "plan", profile=profile)
    assert len(found) == 5
    assert 0 not in found
    assert order(store, "plan", profile="exact")[0] == 0


def test_exact_ranks_all_whatever_narrows_them(store: Store) -> None:
    texts = [("plan " * (n % 9 + 1), float(n)) for n in range(200)]
    fill(store, *texts)
    store.create(
        id="other", title="~", messages=[{"role": "assistant", "content": "plan " * 9}] * 3
    )
    everything = [
        (hit.id, hit.at) for hit in store.search("plan", profile="exact", limit=1000).hits
    ]
    assert len(everything) == 203
    assert everything[:20] == [
        (hit.id, hit.at) for hit in store.search("plan", profile="exact").hits
    ]
    narrowed = [
        (hit.id, hit.at)
        for hit in store.search("plan", profile="exact", roles=["user"], limit=7).hits
    ]
    assert narrowed == [place for place in everything if place[0] == "c"][:7]


@pytest.mark.files
def test_the_index_is_ordered_by_when_files_were_changed(store: Store) -> None:
    import os

    for number, id in enumerate(("b", "c", "a")):
        store.create(id=id, title="~", messages=[{"role": "user", "content": f"text of {id}"}])
        os.utime(store.engine.storage.path("conversations", id), ns=(0, 10**18 + number * 10**9))
    store.reindex()
    rows = asked(
        store,
        lambda db: db.execute(
            "SELECT c.id FROM messages AS m JOIN capsules AS c ON c.num = m.capsule ORDER BY m.num"
        ).fetchall(),
    )
    assert [id for (id,) in rows] == ["b", "c", "a"]


def test_many_titles_that_fit_alike_leave_half_of_the_page_to_messages(store: Store) -> None:
    for number in range(40):
        store.create(
            title=f"garden {number}",
            messages=[{"role": "user", "content": f"nothing of it, {number}"}],
        )
    many = [
        {"role": "user", "content": "the garden" + " and more" * number} for number in range(40)
    ]
    store.create(title="talk", type="group", messages=many)
    hits = store.search("garden", limit=20).hits
    assert 9 <= sum(hit.message is None for hit in hits) <= 11
    only = store.search("garden", title_only=True, limit=50).hits
    assert len(only) == 40
    cursor, seen = None, []
    while True:
        found = store.search("garden", limit=7, cursor=cursor)
        seen += [(hit.id, hit.message) for hit in found.hits]
        cursor = found.cursor
        if cursor is None:
            break
    assert len(seen) == len(set(seen)) == 80
