"""What an import does to a store: the first time, again, and when both sides changed something."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import CapsuleError, InvalidInput, NotFound, Refused, StorageFailed, StoreBusy
from capsule.format.merge.merge import merge
from capsule.format.tree.tree import Tree
from capsule.transfer.drafts.conversion import document_of, draft_of
from capsule.transfer.drafts.import_records import Report
from capsule.transfer.registry import formats
from tests.transfer.exchange import DATA, Shelf, said, take, zipped


def states(report: Report) -> list[str]:
    return [taken.state for taken in report.conversations]


def texts(store: Store, id: str) -> list[str]:
    return [message.content for message in store.load(id).history]


def test_a_conversation_is_imported_with_a_title_and_found_again(store: Store) -> None:
    report = take(store, said("Hi there", "Hello"))

    (taken,) = report.conversations
    assert report.as_json()["imported"] == 1
    about = (taken.title, taken.messages, taken.format, taken.source, taken.path)
    assert about == ("Hi there", 2, "sharegpt", "c1", "-")
    assert texts(store, taken.id) == ["Hi there", "Hello"]
    assert states(take(store, said("Hi there", "Hello"))) == ["unchanged"]
    assert store.ids() == [taken.id]


def test_conversations_whose_messages_have_the_same_ids_share_none_of_them(store: Store) -> None:
    report = take(store, said("a", "b", id="one") + said("a", "b", id="two"))

    one, two = (
        {message.id for message in store.load(taken.id).history} for taken in report.conversations
    )
    assert not one & two


Change = Callable[[Store, str], object]


def edit_first(store: Store, id: str) -> object:
    return store.edits.message(id, str(store.load(id).history[0].id), "mine")


def delete_last(store: Store, id: str) -> object:
    return store.branches.remove(id, str(store.load(id).history[-1].id))


def append(store: Store, id: str) -> object:
    return store.append(id, content="mine")


def nothing(store: Store, id: str) -> object:
    return None


@pytest.mark.parametrize(
    ("here", "there", "on_conflict", "state", "after"),
    [
        (nothing, ("a", "b", "c"), "skip", "updated", ["a", "b", "c"]),
        (nothing, ("A", "b"), "skip", "updated", ["A", "b"]),
        (nothing, ("a",), "skip", "unchanged", ["a", "b"]),
        (append, ("a", "b"), "skip", "unchanged", ["a", "b", "mine"]),
        (append, ("a", "b", "c"), "skip", "updated", ["a", "b", "mine", "c"]),
        (edit_first, ("a", "b"), "skip", "unchanged", ["mine", "b"]),
        (edit_first, ("a", "b", "c"), "skip", "updated", ["mine", "b", "c"]),
        (edit_first, ("A", "b"), "skip", "skipped", ["mine", "b"]),
        (edit_first, ("A", "b"), "update", "updated", ["A", "b"]),
        (edit_first, ("A", "b"), "copy", "skipped", ["mine", "b"]),
        (delete_last, ("a", "b"), "skip", "unchanged", ["a"]),
        (delete_last, ("a", "b", "c"), "skip", "updated", ["a", "c"]),
    ],
)
def test_a_later_import_takes_what_is_new_and_leaves_what_was_changed_here(
    store: Store,
    here: Change,
    there: tuple[str, ...],
    on_conflict: str,
    state: str,
    after: list[str],
) -> None:
    id = take(store, said("a", "b")).conversations[0].id
    here(store, id)

    report = take(store, said(*there), on_conflict=on_conflict)

    assert states(report)[0] == state
    assert texts(store, id) == after
    assert len(store.ids()) == (2 if on_conflict == "copy" else 1)
    again = take(store, said(*there), on_conflict=on_conflict)
    assert states(again)[0] == ("unchanged" if state != "skipped" else "skipped")
    assert len(store.ids()) == (2 if on_conflict == "copy" else 1)


def test_an_answer_that_was_added_here_stays_the_active_branch(store: Store) -> None:
    id = take(store, said("a", "b")).conversations[0].id
    mine = store.append(id, content="mine")
    take(store, said("a", "b", "c"))

    assert store.branches.path(id)[-1].id == mine.id
    added = store.load(id).history[-1]
    assert added.parent == store.load(id).history[1].id


def test_messages_without_a_time_are_known_again_in_files(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path, keep_locks=False) as store:
        id = take(store, said("a", "b")).conversations[0].id
        append(store, id)
        edit_first(store, id)
    with Store.open(tmp_path, keep_locks=False) as store:
        assert states(take(store, said("a", "B"))) == ["updated"]
        assert texts(store, id) == ["mine", "B", "mine"]
        for damaged in (b"no JSON", b"[]"):
            (tmp_path / ".capsule" / "imports" / "digests.json").write_bytes(damaged)
            assert states(take(store, said("a", "B"))) == ["unchanged"]


def test_what_an_import_replaces_is_in_the_trash(store: Store) -> None:
    id = take(store, said("a", "b")).conversations[0].id
    edit_first(store, id)
    take(store, said("A", "b"), on_conflict="update")

    assert "mine" in [
        entry["content"] for removed in store.trash.removed(id) for entry in removed.messages
    ]


@pytest.mark.parametrize(("changes", "title"), [({}, "theirs, newer"), ({"title": "mine"}, "mine")])
def test_a_title_that_changed_there_is_taken_unless_it_was_changed_here_and_tags_from_here_stay(
    store: Store, changes: dict[str, Any], title: str
) -> None:
    id = take(store, said("a", title="theirs")).conversations[0].id
    store.update(id, tags=["x"], **changes)
    report = take(store, said("a", "b", title="theirs, newer"))

    assert (store.head(id).title, store.head(id).tags) == (title, ("x",))
    assert states(report) == ["updated"]


def test_an_older_export_adds_what_is_missing_and_takes_nothing_back(store: Store) -> None:
    (whole,) = json.loads((DATA / "chatgpt" / "modern" / "conversations.json").read_bytes())
    newer = whole | {"title": "newer", "update_time": whole["update_time"] + 100}
    id = take(store, json.dumps([newer]).encode()).conversations[0].id

    for choice in ("skip", "update"):
        older = json.dumps([whole | {"title": "older"}]).encode()
        assert states(take(store, older, on_conflict=choice)) == ["unchanged"]
    assert store.head(id).title == "newer"


@pytest.mark.parametrize(
    ("choice", "title", "count"), [("update", "theirs", 1), ("copy", "ours", 2)]
)
def test_a_conflict_that_was_skipped_can_be_decided_later(
    store: Store, choice: Any, title: str, count: int
) -> None:
    id = take(store, said("a", title="first")).conversations[0].id
    store.rename(id, "ours")
    assert states(take(store, said("a", "b", title="theirs"))) == ["updated"]

    take(store, said("a", "b", title="theirs"), on_conflict=choice)

    assert store.head(id).title == title
    assert len(store.ids()) == count


def test_a_deleted_conversation_stays_deleted(store: Store) -> None:
    id = take(store, said("a")).conversations[0].id
    store.delete(id)

    assert states(take(store, said("a"))) == ["skipped"]
    assert store.ids() == []


def test_a_dry_run_writes_nothing_and_says_the_same(store: Store) -> None:
    assert states(take(store, said("a"), is_dry_run=True)) == ["imported"]
    assert store.ids() == []
    take(store, said("a"))
    assert states(take(store, said("a", "b"), is_dry_run=True)) == ["updated"]
    assert states(take(store, said("a", "b"))) == ["updated"]


@pytest.mark.parametrize(
    "error", [StorageFailed("the disk is full", path="x"), StoreBusy("held", id="x", holder="x")]
)
def test_a_file_of_which_a_conversation_could_not_be_written_is_read_again(
    store: Store, error: CapsuleError, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, create, failures = said("a", id="1") + said("b", id="2"), store.engine.create, [error]

    def failing(*args: Any) -> int:
        if failures:
            raise failures.pop()
        return create(*args)

    monkeypatch.setattr(store.engine, "create", failing)
    if isinstance(error, StorageFailed):
        with pytest.raises(StorageFailed):
            take(store, data)
    else:
        assert take(store, data).problems.count == 1
    take(store, data)

    assert len(store.ids()) == 2


RUNS = [said("Do it", "first", id="s"), said("Do it", "second", "and more", id="s")]
HEAD = {"schema_version": "ATIF-v1.7", "session_id": "s", "agent": {"name": "x", "version": "1"}}
ASKED = {"step_id": 1, "source": "user", "message": "Do it"}
STEPS = [
    json.dumps(
        HEAD | {"steps": [ASKED, {"step_id": 2, "source": "agent", "message": text}]}
    ).encode()
    for text in ("first", "second")
]


@pytest.mark.parametrize("is_at_once", [True, False])
@pytest.mark.parametrize("runs", [RUNS, STEPS])
def test_two_sources_that_disagree_on_a_conversation_are_both_kept(
    store: Store, tmp_path: Path, runs: list[bytes], is_at_once: bool
) -> None:
    files = [tmp_path / "1", tmp_path / "2"]
    for file, data in zip(files, runs, strict=True):
        file.write_bytes(data)
    reports = [store.import_(tmp_path)] if is_at_once else [store.import_(file) for file in files]

    first, second = [taken.id for report in reports for taken in report.conversations]
    assert [texts(store, id)[:2] for id in (first, second)] == [
        ["Do it", "first"],
        ["Do it", "second"],
    ]
    assert [first in note.reason and second in note.reason for note in reports[-1].notes.first] == [
        True
    ]
    for again in ([tmp_path], [files[1]], [files[0]]):
        store.engine.local.delete("imports", "digests")
        assert set(states(store.import_(*again))) == {"unchanged"}
    files[1].write_bytes(runs[1].replace(b"second", b"changed"))
    assert states(store.import_(tmp_path)) == ["unchanged", "updated"]
    assert (texts(store, first)[1], texts(store, second)[1]) == ("first", "changed")


def test_of_two_sources_with_another_title_the_first_one_stands(
    store: Store, tmp_path: Path
) -> None:
    for name in ("1", "2"):
        (tmp_path / name).write_bytes(said("a", *name[1:], title=f"title {name}"))
    report = store.import_(tmp_path)

    assert (states(report), len(report.notes.first)) == (["imported", "unchanged"], 1)
    for name in ("1", "2"):  # Their files are others, and say the same.
        (tmp_path / name).write_bytes((tmp_path / name).read_bytes() + b"\n")
        assert set(states(store.import_(tmp_path))) == {"unchanged"}
    assert [store.head(id).title for id in store.ids()] == ["title 1"]


@pytest.mark.parametrize("is_locked", [True, False])
def test_an_import_goes_on_when_another_process_makes_the_same_conversation_first(
    store: Store, is_locked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, other = store.engine.create, store.beside(instance="anna")
    id = take(store, said("a", "b"), is_dry_run=True).conversations[0].id

    def slow(kind: str, document: dict[str, Any], *rest: Any) -> int:
        if document["id"] == id and not store.engine.exists(kind, id):
            monkeypatch.setattr(store.engine, "create", create)
            take(other, said("a"))
            if is_locked:
                other.locks.take(id)
        return create(kind, document, *rest)

    monkeypatch.setattr(store.engine, "create", slow)
    report = take(store, said("a", "b") + said("a", id="two"))

    assert states(report) == (["imported"] if is_locked else ["imported", "updated"])
    assert [id in problem.reason for problem in report.problems.first] == (
        [True] if is_locked else []
    )
    assert len(store.ids()) == 2


def test_an_imported_conversation_comes_back_from_an_export_as_it_was(store: Store) -> None:
    id = take(store, said("a", "b", title="theirs")).conversations[0].id
    append(store, id)
    store.export([id], file := BytesIO(), format="capsule")
    store.rename(id, "mine")
    edit_first(store, id)

    assert states(take(store, file.getvalue())) == ["skipped"]
    store.delete(id)
    store.trash.purge()
    assert states(take(store, file.getvalue())) == ["imported"]
    assert texts(store, id) == ["a", "b", "mine"]


def test_what_can_not_be_imported_is_an_error(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        store.import_(tmp_path / "none")
    with pytest.raises(InvalidInput, match="jsonl"):
        take(store, said("a"), format="word")
    with pytest.raises(InvalidInput, match="only be exported"):
        take(store, said("a"), format="html")
    with pytest.raises(InvalidInput, match="copy"):
        take(store, said("a"), on_conflict="merge")
    with pytest.raises(Refused):
        take(store.beside(agent="anna"), said("a"))


@pytest.mark.parametrize(
    ("data", "line", "is_damaged"),
    [
        (b"Dear diary", None, False),
        (b'{"name": "x"}', None, False),
        (b'{"compilerOptions": {\n// none\n}}', 2, False),
        (b'{"title": "x",\n"id" "y", "messages": []}', 2, True),
    ],
)
def test_a_file_of_no_format_is_a_problem_if_it_was_named_or_looks_like_a_damaged_conversation(
    store: Store, tmp_path: Path, data: bytes, line: int | None, is_damaged: bool
) -> None:
    path = tmp_path / "chat"
    path.write_bytes(data)
    for named in (path, tmp_path):
        report = store.import_(named)
        assert ([file.path for file in report.unknown], report.conversations) == ([str(path)], [])
        told = [(problem.path, problem.line) for problem in report.remarks]
        assert told == ([(str(path), line)] if named == path or is_damaged else [])
        assert report.problems.count == is_damaged


@pytest.mark.parametrize("format", [None, "markdown"])
@pytest.mark.parametrize(
    ("data", "reason"),
    [(zipped({"a.txt": b"Dear"}), "no conversation"), (b"SQLite format 3\0", "not a database")],
)
def test_a_file_in_which_nothing_is_found_is_reported_once(
    store: Store, data: bytes, reason: str, format: str | None
) -> None:
    for _ in range(2):
        (problem,) = take(store, data, format=format).remarks
        assert (reason if format is None else "no conversation") in problem.reason


ODD = [5, None, "x", [1], [[]], {"a": 1}]


@pytest.mark.parametrize("value", ODD)
@pytest.mark.parametrize("name", ["metadata", "tags", "participants", "head", "history"])
def test_an_odd_conversation_takes_no_other_away(store: Store, name: str, value: Any) -> None:
    own = {name: value} if name in ("head", "history") else {"head": {"id": "x"}}
    about = {"id": "x", "metadata": value if name == "metadata" else {name: value}}
    lines = [{"messages": [{"role": "user", "content": text}], "id": text} for text in "ab"]
    lines[0] |= {"capsule": own}
    for data in (
        "\n".join(map(json.dumps, lines)),
        f"<!-- capsule:head {json.dumps(about)} -->\n\n# x\n",
    ):
        report = take(store, data.encode())
        assert report.conversations or report.problems.first
    assert ["b"] in [texts(store, id) for id in store.ids()]


def test_a_path_that_is_not_utf_8_is_read(store: Store, tmp_path: Path) -> None:
    (tmp_path / os.fsdecode(b"caf\xe9")).write_bytes(said("a"))
    for state in ("imported", "unchanged"):
        assert states(report := store.import_(tmp_path)) == [state]
        assert json.dumps(report.as_json()).encode().count(b"caf") == 1


def test_what_a_source_adds_to_a_conversation_from_here_is_on_the_active_branch(
    store: Store,
) -> None:
    id = store.create(title="T", messages=[{"role": "user", "content": text} for text in "ab"]).id
    out = BytesIO()
    store.export([id], out, format="capsule")
    document = json.loads(out.getvalue())
    document["history"].append(
        {"role": "user", "content": "c", "timestamp": "2026-01-02T10:00:00.000Z", "id": "c"}
    )

    assert states(take(store, json.dumps(document).encode())) == ["updated"]
    assert [message.content for message in store.load(id).history] == ["a", "b", "c"]
    assert store.document(id)["metadata"].get("currentNode") is None
    store.append(id, content="mine", parent=str(store.load(id).history[1].id))
    document["history"].append(
        {"role": "assistant", "content": "d", "timestamp": "2026-01-02T10:00:01.000Z", "id": "d"}
    )
    assert states(take(store, json.dumps(document).encode())) == ["updated"]
    (mine,) = [message.id for message in store.load(id).history if message.content == "mine"]
    assert store.document(id)["metadata"]["currentNode"] == mine


def test_all_examples_are_imported_once(store: Store) -> None:
    first = store.import_(DATA)
    # Some are there in several shapes.
    assert {taken.state for taken in first.conversations if taken.id} <= {
        "imported",
        "updated",
        "unchanged",
    }
    assert len(store.ids()) == sum(taken.state == "imported" for taken in first.conversations)
    assert {taken.format for taken in first.conversations} <= set(formats())
    again = store.import_(DATA)
    assert {taken.state for taken in again.conversations if taken.id} == {"unchanged"}


def test_two_clones_that_import_the_same_merge_to_one_conversation(store: Store) -> None:
    id = take(store, said("a", "b", "c", title="A plan")).conversations[0].id
    append(store, id)
    with Store.in_memory(keep_locks=False) as other:
        take(other, said("a", "b", title="A plan"))
        take(other, said("a", "b", "c", "d", title="A plan"))
        made = merge(None, store.document(id), other.document(id))
    document = made.document

    assert [entry["content"] for entry in document["history"]].count("a") == 1
    assert sorted(entry["content"] for entry in document["history"]) == ["a", "b", "c", "d", "mine"]
    assert "conflicts" not in document["metadata"]


DEEP = b"[" * 3000 + b"]" * 3000


@pytest.mark.parametrize(
    "extra",
    [
        b'"x": ' + DEEP,
        b'"x": ' + DEEP[2500:3500],
        b'"\\ud800": ' + DEEP,
        b'"x": 1' + b"0" * 400,
        b'"x": NaN',
        b'"x": "\\ud800"',
        b'"\\u0000": 1e999',
    ],
)
@pytest.mark.parametrize("indent", [b"", b"[\n"])
def test_what_json_can_not_hold_is_told_or_read_around(
    store: Store, extra: bytes, indent: bytes
) -> None:
    odd = said("a", id="1")[:-2] + b", " + extra + b"}"
    data = (
        indent + odd + (b",\n" if indent else b"\n") + said("b", id="2") + (b"]" if indent else b"")
    )
    report = take(store, data)

    assert "2" in [taken.source for taken in report.conversations]
    assert "1" in [taken.source for taken in report.conversations] or report.problems.first


@pytest.mark.parametrize(
    ("extra", "damaged"),
    [(b"1" + b"0" * 400, 0), (b"12345678901234567890123", 0), (b"-1e999", 0), (DEEP[2500:3500], 1)],
)
def test_a_message_is_kept_without_what_no_file_can_hold(
    store: Store, extra: bytes, damaged: int
) -> None:
    data = said("a", id="1").replace(b'"value"', b'"x": ' + extra + b', "value"')
    report = take(store, b"[" + data + b"]")

    assert [taken.messages for taken in report.conversations] == [1]
    assert report.problems.count == damaged


def test_a_conversation_without_a_message_is_skipped_each_time(store: Store) -> None:
    for _ in range(2):
        report = store.import_(DATA / "chatgpt" / "conversations.json")

        assert [(taken.id == "", taken.state) for taken in report.conversations][1:] == [
            (True, "skipped")
        ]
        assert not report.problems.first
    assert len(store.ids()) == 1


@pytest.mark.parametrize("root_first", [True, False])
def test_a_message_with_an_empty_id_is_kept(store: Store, *, root_first: bool) -> None:
    document = store.document(store.create(title="T").id)
    root = {"role": "user", "content": "a", "id": "", "parent": None}
    answer = {"role": "assistant", "content": "b", "id": "b", "parent": ""}
    history = [root, answer] if root_first else [answer, root]
    problems = []
    made = document_of(
        replace(draft_of(document, "capsule"), history=history, local_ids=frozenset()),
        "capsule",
        document["createdAt"],
        lambda reason, id: problems.append((reason, id)),
        Shelf().keep,
        is_trusted=True,
    )
    ids = [(message["content"], message["id"]) for message in made["history"]]
    assert ids == [("a", ""), ("b", "b")] and not problems
    assert Tree(made["history"]).parents == [-1, 0]
