"""A suggested title is used unless a person gave the conversation its title."""

from __future__ import annotations

import threading
from pathlib import Path

import orjson

from capsule import Store


def test_a_suggestion_is_used_while_no_person_gave_a_title(store: Store) -> None:
    id = store.create(messages=[{"role": "user", "content": "How do I sort a list?"}]).id
    head = store.titles.suggest(id, "Sorting")
    assert head is not None
    assert (head.title, head.title_set_by, head.named) == ("Sorting", "auto", False)
    assert store.titles.suggest(id, "Sorting lists").title == "Sorting lists"  # type: ignore[union-attr]


def test_a_suggestion_does_not_change_a_title_given_by_a_person(store: Store) -> None:
    id = store.create(title="Mine").id
    before = store.read(id)
    assert store.titles.suggest(id, "Better") is None
    assert store.titles.suggest(id, "Better", instead_of="What it was once") is None
    assert store.read(id) == before


def test_a_title_replaced_with_consent_counts_as_given_by_a_person(store: Store) -> None:
    id = store.create(title="Mine").id
    head = store.titles.suggest(id, "Better", instead_of="Mine")
    assert head is not None
    assert (head.title, head.title_set_by) == ("Better", "user")
    assert store.titles.suggest(id, "Best", instead_of="Mine") is None


def test_a_title_of_version_2_0_counts_as_given_by_a_person(store: Store, root: Path) -> None:
    stamp = "2025-01-12T10:00:00Z"
    old = {
        "id": "old-1",
        "title": "Old",
        "version": "2.0",
        "createdAt": stamp,
        "updatedAt": stamp,
        "history": [],
    }
    (root / "conversations" / "old-1.json").write_bytes(orjson.dumps(old))
    assert store.titles.suggest("old-1", "New") is None
    assert store.titles.suggest("old-1", "New", instead_of="Old") is not None


def test_a_person_wins_over_a_suggestion_at_the_same_time() -> None:
    for _ in range(10):
        with Store.in_memory(keep_locks=False) as store:
            id = store.create().id
            together = threading.Barrier(2)

            def suggest(
                store: Store = store, id: str = id, together: threading.Barrier = together
            ) -> None:
                together.wait()
                store.titles.suggest(id, "A model's")

            other = threading.Thread(target=suggest)
            other.start()
            together.wait()
            store.rename(id, "A person's")
            other.join()
            assert store.head(id).title == "A person's"


def test_an_edit_of_the_first_message_changes_its_title_but_not_a_suggested_one(
    store: Store,
) -> None:
    made, suggested = (
        store.create(messages=[{"role": "user", "content": "How do I sort a list?"}]).id
        for _ in range(2)
    )
    store.titles.suggest(suggested, "Sorting")
    for id in (made, suggested):
        store.edits.message(id, "@0", "How do I sort a tree?")
    assert (store.head(made).title, store.head(suggested).title) == (
        "How do I sort a tree?",
        "Sorting",
    )


def test_the_first_message_with_words_gives_the_title(store: Store) -> None:
    talk = [
        {"role": "assistant", "content": "Welcome!"},
        {"role": "user", "content": " \n"},
        {"role": "user", "content": "\n # To the *sea*?\nAnd when?"},
        {"role": "user", "content": "Another thing"},
    ]
    one_by_one, at_once = store.create().id, store.create().id
    for message in talk:
        store.append_many(one_by_one, [message])
    store.append_many(at_once, talk)
    made = store.create(messages=talk).id
    heads = [store.head(id) for id in (one_by_one, at_once, made)]
    assert {(head.title, head.title_set_by) for head in heads} == {("To the *sea*?", "auto")}
    assert store.titles.by_rule(made) == "To the *sea*?"
    store.edits.message(made, "@2", "To the mountains?")
    assert store.head(made).title == "To the mountains?"
    store.edits.message(made, "@1", "Anna asks:")
    assert store.head(made).title == "Anna asks:"
    store.branches.remove(made, "@1", keep_children=True)
    assert store.head(made).title == "To the mountains?"
