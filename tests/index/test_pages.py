"""Pages of the list of conversations, while others write."""

from __future__ import annotations

from pathlib import Path

import pytest

from capsule import InvalidInput, Store


def test_a_list_in_pages_misses_none_and_repeats_none_while_others_append(store: Store) -> None:
    ids = [store.create(title=f"c {number}", type="group").id for number in range(45)]
    met: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = store.newest(limit=4, cursor=cursor)
        met += [head.id for head in page.heads]
        # What was shown, and what was not: both move to the top.
        for id in (ids[0], ids[len(met) // 2], ids[-1], met[0]):
            store.append(id, content="moves it to the top")
        cursor = page.cursor()
    assert len(met) == len(set(met)) and set(met) == set(ids)


def test_pages_begin_with_what_changed_last_and_may_be_left_in_the_middle(store: Store) -> None:
    for number in range(5):
        store.create(title=f"c {number}")
    ids = [head.id for head in sorted(store.heads(), key=lambda head: (head.updated_at, head.id), reverse=True)]
    page = store.newest(limit=3)
    assert [head.id for head in page.heads] == ids[:3] and page.total == 5
    rest = store.newest(limit=9, cursor=page.cursor(1) or "")
    assert [head.id for head in rest.heads] == ids[1:] and rest.cursor() is None


def test_a_cursor_is_of_one_view_of_one_store(store: Store, tmp_path: Path) -> None:
    for number in range(3):
        store.create(title=f"c {number}", messages=[{"role": "user", "content": "text"}])
    cursor = store.newest(limit=1, view="all").cursor() or ""
    Store.init(tmp_path / "other")
    with Store.open(tmp_path / "other") as other, pytest.raises(InvalidInput):
        other.newest(limit=1, view="all", cursor=cursor)
    search = store.search("", limit=1).cursor
    for view, wrong in (("tagged", cursor), ("all", "x"), ("all", "2025-01-01/c"), ("all", search), ("all", "é" * 99)):
        with pytest.raises(InvalidInput):
            store.newest(limit=1, view=view, cursor=wrong or "")
