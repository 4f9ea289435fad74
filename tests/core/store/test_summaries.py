"""Summaries, and their standing towards their source."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from capsule import InvalidInput, NotFound, Store
from capsule.maintenance.doctor import examine
from tests.core.store.files import by_hand, opened


@pytest.fixture
def plan(store: Store) -> str:
    talk = [{"role": "user", "content": "To the sea?"}, {"role": "assistant", "content": "Yes."}]
    id = store.create(
        id="plan-1", title="Holidays", tags=["home", "2026"], mode="toolbox", messages=talk
    ).id
    store.locks.release(id)
    return id


def test_a_summary_is_a_conversation_that_names_its_source(store: Store, plan: str) -> None:
    before = store.read(plan)
    head = store.summaries.add(plan, "They go to the sea.")
    made = store.document(head.id)
    assert (head.title, head.tags, head.mode, head.is_summary) == (
        "Summary: Holidays",
        ("home", "2026"),
        "toolbox",
        True,
    )
    assert [(message["role"], message["content"]) for message in made["history"]] == [
        ("assistant", "They go to the sea.")
    ]
    last = store.tail(plan, 1)[0]
    assert made["metadata"]["sourceConversationId"] == plan
    assert made["metadata"]["summaryOf"] == {
        "message": last.id,
        "messages": 2,
        "updatedAt": store.head(plan).updated_at,
    }
    assert store.read(plan) == before


def test_a_title_and_more_tags_can_be_given(store: Store, plan: str) -> None:
    head = store.summaries.add(plan, "They go.", title="In short", tags=["short", "home"])
    assert (head.title, head.tags, head.title_set_by) == (
        "In short",
        ("home", "2026", "short"),
        "user",
    )


def test_any_title_of_the_source_makes_a_valid_title(root: Path, store: Store, plan: str) -> None:
    for title in ["", "x" * 200, "a\x07b", " " * 5]:
        by_hand(root, plan, lambda document: document.update(title=title))
        made = store.summaries.add(plan, "They go to the sea.").title
        assert made.startswith("Summary: ")
        assert len(made) <= 200
        assert made.isprintable()


def test_an_empty_summary_is_refused_and_makes_no_conversation(store: Store, plan: str) -> None:
    for text in ("", " \n"):
        with pytest.raises(InvalidInput, match="empty"):
            store.summaries.add(plan, text)
    with pytest.raises(NotFound):
        store.summaries.add("nobody", "text")
    assert store.ids() == [plan]


def test_the_standing_of_a_summary_counts_new_and_edited_messages(store: Store, plan: str) -> None:
    summary = store.summaries.add(plan, "They go.").id
    assert str(store.summaries.standing(summary)) == "its source is unchanged"
    store.rename(plan, "Summer")
    assert store.summaries.standing(summary).state == "current"  # type: ignore[union-attr]
    store.append(plan, content="When?")
    store.append(plan, role="assistant", content="In May.")
    assert str(store.summaries.standing(summary)) == "its source has changed since: 2 new messages"
    store.edits.message(plan, "@0", "To the mountains?")
    assert (
        str(store.summaries.standing(summary))
        == "its source has changed since: 2 new messages, 1 edited"
    )
    assert store.summaries.standing(plan) is None


def test_messages_appended_while_the_summary_was_written_count_as_new(
    store: Store, plan: str
) -> None:
    mark = store.summaries.mark(plan)
    store.append(plan, content="Wait, when?")
    summary = store.summaries.add(plan, "They go.", of=mark).id
    assert store.summaries.standing(summary).as_json() == {
        "state": "behind",
        "added": 1,
        "edited": 0,
    }  # type: ignore[union-attr]


def test_a_summary_up_to_a_message_is_behind_by_the_later_ones(store: Store, plan: str) -> None:
    summary = store.summaries.add(plan, "A question.", of=store.summaries.mark(plan, "@0")).id
    assert store.summaries.standing(summary).added == 1  # type: ignore[union-attr]
    with pytest.raises(NotFound):
        store.summaries.mark(plan, "@7")


def test_a_summary_stays_current_when_messages_get_ids(store: Store, root: Path) -> None:
    stamp = "2025-01-12T10:00:00Z"
    old = {"id": "old-1", "title": "Old", "version": "2.0", "createdAt": stamp, "updatedAt": stamp}
    history = [{"role": "user", "content": text, "timestamp": stamp} for text in "ab"]
    (root / "conversations" / "old-1.json").write_bytes(orjson.dumps(old | {"history": history}))
    summary = store.summaries.add("old-1", "Letters.").id
    store.rename("old-1", "Letters")
    assert orjson.loads(store.read("old-1"))["history"][0]["id"]
    assert store.summaries.standing(summary).state == "current"  # type: ignore[union-attr]


def test_a_source_that_changed_branch_or_lost_messages_is_elsewhere(
    root: Path, store: Store, plan: str
) -> None:
    summary = store.summaries.add(plan, "They go.").id
    first = store.find_message(plan, "@0").id
    by_hand(
        root,
        plan,
        lambda document: document["history"].append(
            {"role": "assistant", "content": "No.", "parent": first}
        ),
    )
    assert store.summaries.standing(summary).state == "elsewhere"  # type: ignore[union-attr]
    by_hand(root, plan, lambda document: document["history"].pop())
    by_hand(root, plan, lambda document: document["history"][1].update(id="another"))
    assert store.summaries.standing(summary).state == "elsewhere"  # type: ignore[union-attr]


def test_summaries_of_a_conversation_are_listed_newest_first_even_after_it_was_deleted(
    store: Store, plan: str
) -> None:
    made = [store.summaries.add(plan, text).id for text in ("one", "two")]
    store.summaries.add(made[0], "of a summary")
    store.append(plan, content="more")
    found = store.summaries.list(plan)
    assert {summary.head.id for summary in found} == set(made)
    assert [summary.head.created_at for summary in found] == sorted(
        (summary.head.created_at for summary in found), reverse=True
    )
    assert {summary.standing.added for summary in found} == {1}
    store.delete(plan)
    assert {str(summary.standing) for summary in store.summaries.list(plan)} == {
        "its source is gone, or can't be read"
    }
    assert store.summaries.list("nobody") == []


def test_the_standing_of_a_summary_without_source_or_end_is_unknown(
    root: Path, store: Store, plan: str
) -> None:
    summary = store.summaries.add(plan, "They go.").id
    written = opened(root, summary)["metadata"]
    for name in ("sourceConversationId", "summaryOf"):
        about = {key: value for key, value in written.items() if key != name}
        by_hand(root, summary, lambda document: document.update(metadata=about))
        assert store.summaries.standing(summary).state == "unknown"  # type: ignore[union-attr]


@pytest.mark.files
def test_the_doctor_reports_a_summary_that_is_behind_as_no_trouble(
    root: Path, store: Store, plan: str
) -> None:
    summary = store.summaries.add(plan, "They go.").id
    assert list(examine(store)) == []
    store.append(plan, content="When?")
    found = list(examine(store, repair=True))
    assert [(finding.id, finding.kind, finding.is_trouble) for finding in found] == [
        (summary, "behind", False)
    ]
    assert found[0].what == f"a summary of {plan}; its source has changed since: 1 new message"
    store.delete(plan)
    assert list(examine(store)) == []


def test_an_edit_before_the_summary_is_in_it_even_in_a_large_file(store: Store, plan: str) -> None:
    store.append_many(plan, [{"role": "user", "content": "x" * 50} for _ in range(2_000)])
    for _ in range(3):
        store.edits.message(plan, "@0", "To the mountains?")
        head = store.head(plan)
        assert store.find_message(plan, "@0").edited_at == head.updated_at
        summary = store.summaries.add(plan, "They go.").id
        assert store.summaries.standing(summary).state == "current"  # type: ignore[union-attr]


def test_an_edit_counts_even_when_the_clock_is_behind_the_file(
    root: Path, store: Store, plan: str
) -> None:
    by_hand(root, plan, lambda document: document.update(updatedAt="2999-12-31T23:59:59.999Z"))
    summary = store.summaries.add(plan, "They go.").id
    store.edits.message(plan, "@0", "To the mountains?")
    assert str(store.summaries.standing(summary)) == "its source has changed since: 1 edited"
    assert store.head(plan).updated_at == "3000-01-01T00:00:00.000Z"


def test_a_hand_edit_counts_as_an_edit(store: Store, plan: str) -> None:
    summary = store.summaries.add(plan, "They go.").id
    read = store.read(plan)
    store.edits.rewrite(plan, read.replace(b"To the sea?", b"To the mountains?"), read)
    first, second = store.load(plan).history
    assert (first.edited_at, second.edited_at) == (store.head(plan).updated_at, None)
    assert str(store.summaries.standing(summary)) == "its source has changed since: 1 edited"
