"""The promises of every engine about pages of a conversation: their messages, and cursors during
writes.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from capsule import InvalidInput, NotFound, Page, Store


def talk(store: Store, count: int) -> str:
    id = store.create(type="group").id
    store.append_many(id, [{"role": "user", "content": str(number)} for number in range(count)])
    return id


def texts(page: Page) -> list[str]:
    return [entry["content"] for _, entry in page.entries]


def places(page: Page) -> list[int]:
    return [place for place, _ in page.entries]


def test_a_page_has_the_newest_messages_or_those_around_a_given_one(store: Store) -> None:
    id = talk(store, 60)
    page = store.page(id, 7)
    assert (places(page), page.at, page.total, page.on_branch) == (list(range(53, 60)), 6, 60, 60)
    assert page.newer() is None and page.is_active and page.sibling(59) is None
    for at, limit, first in (
        (0, 7, 0),
        (3, 7, 0),
        (30, 7, 27),
        (30, 6, 27),
        (59, 7, 53),
        (30, 1, 30),
        (5, 99, 0),
    ):
        wanted = str(store.find_message(id, f"@{at}").id)
        for name in (f"@{at}", wanted, wanted[:30]):
            page = store.page(id, limit, around=name)
            assert places(page) == list(range(first, min(first + limit, 60)))
            assert (
                page.entries[page.at] == (at, page.entries[page.at][1])
                and page.entries[page.at][1]["id"] == wanted
            )


def test_an_empty_conversation_has_an_empty_page(store: Store) -> None:
    page = store.page(store.create().id)
    assert (page.entries, page.at, page.total, page.older(), page.newer()) == (
        [],
        -1,
        0,
        None,
        None,
    )


def test_invalid_arguments_of_a_page_are_refused(store: Store) -> None:
    id = talk(store, 3)
    cursor = store.page(id, 1).older()
    for arguments in (
        {"limit": 0},
        {"cursor": "x"},
        {"cursor": "older:x:y"},
        {"cursor": cursor, "around": "@0"},
    ):
        with pytest.raises(InvalidInput):
            store.page(id, **arguments)  # type: ignore[arg-type]
    for wanted in ("@3", "@x", "no-such-id"):
        with pytest.raises(NotFound):
            store.page(id, around=wanted)
    with pytest.raises(NotFound):
        store.page("no-such-conversation")


@pytest.mark.parametrize("way", ["older", "newer"])
def test_a_cursor_can_continue_from_the_middle_of_a_page(store: Store, way: str) -> None:
    id = talk(store, 30)
    page = store.page(id, 9, around="@14")
    assert places(page) == list(range(10, 19))
    if way == "older":
        assert places(store.page(id, 4, cursor=page.older(3))) == [9, 10, 11, 12]
        assert places(store.page(id, 4, cursor=page.older())) == [6, 7, 8, 9]
    else:
        assert places(store.page(id, 4, cursor=page.newer(3))) == [13, 14, 15, 16]
        assert places(store.page(id, 4, cursor=page.newer())) == [19, 20, 21, 22]


def test_a_page_around_a_message_of_another_branch_has_that_branch(store: Store) -> None:
    id = talk(store, 6)
    store.append(id, content="beside", parent=store.find_message(id, "@2").id)
    store.branches.switch(id, "@6")
    page = store.page(id, 2)
    assert (texts(page), page.total, page.on_branch, page.is_active) == (
        ["2", "beside"],
        7,
        4,
        True,
    )
    assert (page.sibling(6), page.sibling(2)) == ("2/2", None)
    page = store.page(id, 4, around="@4")
    assert (texts(page), page.on_branch, page.is_active) == (["2", "3", "4", "5"], 6, False)
    assert texts(store.page(id, cursor=page.older())) == ["0", "1"]
    assert texts(store.page(id, 3, around="@1")) == ["0", "1", "2"]
    store.branches.switch(id, "@5")
    page = store.page(id, 3)
    assert (texts(page), page.is_active, page.sibling(3)) == (["3", "4", "5"], True, "1/2")


@pytest.mark.parametrize("way", ["older", "newer"])
def test_pages_have_each_remaining_message_once_despite_writes_between_them(
    store: Store, way: str, rng: random.Random
) -> None:
    id = talk(store, 80)
    stays = {str(number) for number in range(80)}
    ids = {
        text: entry["id"]
        for text, (_, entry) in zip(map(str, range(80)), store.page(id, 80).entries, strict=True)
    }
    page = store.page(id, 5) if way == "older" else store.page(id, 5, around="@0")
    met: list[str] = []

    def remove() -> None:
        text = rng.choice(sorted(stays - {next_text}))
        store.branches.remove(id, ids[text], keep_children=True)
        stays.remove(text)

    def switch() -> None:
        # Newer pages follow the active branch if it has their next message; this branch leaves it
        # earlier.
        beside = store.append(
            id, content="beside", parent=ids[rng.choice(sorted(stays & set(met)))]
        ).id
        store.branches.switch(id, str(beside))

    writes: list[Callable[[], object]] = [
        lambda: store.append(id, content="later", parent=ids[max(stays, key=int)]),
        lambda: store.edits.message(id, ids[rng.choice(sorted(stays))], "edited"),
        lambda: store.rename(id, rng.choice("abc")),
        remove,
        switch,
        lambda: store.branches.switch(id, ids[max(stays, key=int)]),
    ]
    known = {message: text for text, message in ids.items()}
    while True:
        shown = [known[entry["id"]] for _, entry in page.entries if entry["id"] in known]
        met = met + shown if way == "newer" else shown + met
        cursor = getattr(page, way)()
        if cursor is None:
            break
        next_text = known.get(cursor.split(":", 2)[2], "")
        for _ in range(3 if len(met) < 60 else 0):
            rng.choice(writes)()
        page = store.page(id, rng.randrange(1, 7), cursor=cursor)
    assert len(met) == len(set(met)) and met == sorted(met, key=int)
    assert stays <= set(met)


def test_a_cursor_of_a_removed_message_is_refused(store: Store) -> None:
    id = talk(store, 9)
    page = store.page(id, 3, around="@4")
    ids = [str(entry["id"]) for _, entry in store.page(id, 9).entries]
    store.branches.remove(
        id, ids[3], keep_children=True
    )  # It was shown, and the next page does not begin at it.
    assert texts(store.page(id, 9, cursor=page.older())) == ["0", "1", "2"]
    store.branches.remove(id, ids[2], keep_children=True)
    with pytest.raises(InvalidInput):
        store.page(id, cursor=page.older())
    assert texts(store.page(id, 2, around=ids[4])) == ["1", "4"]
