"""The names that file synchronizers give to conflict copies."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capsule.format.merge.copy_names import may_be_copy_of, original_of
from capsule.ids import new_id

ID = "550e8400-e29b-41d4-a716-446655440000"

MARKS = [
    ".sync-conflict-20250112-103000-ABCDEFG",
    ".sync-conflict-20250112-103000",
    ".sync-conflict-20250112-103000-ABCDEFG.sync-conflict-20250113-103000-AB2DEFG",
    " (conflicted copy)",
    " (Anna's conflicted copy 2025-01-12)",
    " (Anna’s MacBook's conflicted copy 2025-01-12) (1)",
    " (conflicted copy 2026-07-10 070952)",
    " (conflicted copy anna 2026-07-10 070952)",
    " (Conflicted copy ThinkPad 202603121129)",
    "_conflict-20250112-103000",
    "_conflict-anna-20250112-103000",
    " (SFConflict anna@example.org 2025-01-12-10-30-00)",
    " [conflicted]",
    " (conflicted)",
    " 2",
    " (1)",
    "(1)",
]


def test_a_copy_is_known_by_the_mark_behind_the_id() -> None:
    for mark in MARKS:
        for id in (ID, "plan", "plan.v2", "anna@work-2"):
            assert original_of(id + mark) == id
            assert may_be_copy_of(id + mark, id)
        assert not may_be_copy_of(ID + mark, "plan")


def test_any_other_name_is_no_copys() -> None:
    for name in [
        ID,
        "plan",
        "plan-2",
        "plan-DESKTOP-AB12CD",
        "conflict-20250112-103000",
        "plan copy",
        "plan (old)",
        "é (1)",
        "a b 2",
    ]:
        assert original_of(name) is None


def test_a_computers_name_counts_only_for_the_very_conversation() -> None:
    assert may_be_copy_of(f"{ID}-DESKTOP-AB12CD", ID) and may_be_copy_of(
        f"{ID}-Annas-MacBook (1)", ID
    )
    assert not may_be_copy_of("plan-2", "plan") and not may_be_copy_of("plan-copy", "plan")
    assert not may_be_copy_of("plan", "plan") and not may_be_copy_of("plan copy", "plan")


def test_a_new_id_is_never_a_copys() -> None:
    assert all(original_of(new_id()) is None for _ in range(1000))


@given(st.text(max_size=300) | st.text(alphabet="x( )'-conflited.syp0123", max_size=300))
def test_any_text_has_an_answer(name: str) -> None:
    found = original_of(name)
    assert found is None or (name.startswith(found) and name != found)
