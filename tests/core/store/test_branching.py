"""Branches of a stored conversation: made, switched, continued and removed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from capsule import Message, Removal, Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.engine import FilesEngine
from capsule.engines.files.storage import FileStorage
from capsule.errors import InvalidInput, NotFound
from capsule.format.tree.tree import Tree
from capsule.format.validation import CONVERSATION
from capsule.maintenance.doctor import examine
from capsule.settings import Settings
from tests.core.store.files import by_hand, file_of, is_canonical
from tests.processes import Child, together

Start = Callable[..., Child]


def talk(store: Store, *texts: str, type: str = "group") -> str:
    """A conversation of these texts, alternately by the user and the assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]
    return store.create(title="T", type=type, messages=messages).id


def forked(store: Store, *, switch: bool = True) -> tuple[str, Message]:
    """Such a conversation with another answer, "two"; the first one is active again."""
    id = talk(store, "question", "one", "more")
    two = store.branches.regenerate(id, "two", "@1")
    if switch:
        store.branches.switch(id, "@2")
    return id, two


def path(store: Store, id: str, message: str | None = None) -> list[str]:
    return [found.content for found in store.branches.path(id, message)]


def metadata(store: Store, id: str) -> dict[str, Any]:
    found = store.document(id)["metadata"]
    assert isinstance(found, dict)
    return found


def test_a_revised_message_becomes_an_active_alternative_of_the_old_one(store: Store) -> None:
    id = talk(store, "question", "answer", "thanks")
    made = store.branches.revise(id, "@0", "other question")
    assert made.parent is None and "parent" in made.model_fields_set and made.role == "user"
    assert path(store, id) == ["other question"]
    assert path(store, id, "@0") == ["question", "answer", "thanks"]
    store.append(id, role="assistant", content="other answer")
    assert path(store, id) == ["other question", "other answer"]
    found = store.branches.alternatives(id, str(made.id))
    assert (found.index, len(found.ids), found.ids[1]) == (1, 2, made.id)


def test_descendants_and_leaves_of_a_message_are_listed(store: Store) -> None:
    id, two = forked(store, switch=False)
    on = store.append(id, content="on two")
    ids = [str(message.id) for message in store.load(id).history]
    assert store.branches.descendants(id, "@0") == [ids[1], two.id, ids[2], on.id]
    assert store.branches.descendants(id, "@2") == []
    assert [store.branches.alternatives(id, message).leaf for message in ids] == [
        on.id,
        ids[2],
        ids[2],
        on.id,
        on.id,
    ]
    asks: list[Callable[[str, str], object]] = [
        store.branches.descendants,
        store.branches.alternatives,
        store.branches.path,
    ]
    for ask in asks:
        with pytest.raises(NotFound):
            ask(id, "nobody")


def test_regenerate_adds_an_alternative_of_the_last_answer(store: Store) -> None:
    id = talk(store, "question", "answer", "more?")
    slot = store.branches.slot(id)
    assert (slot.message, slot.parent) == tuple(
        found.id for found in reversed(store.branches.path(id)[:2])
    )
    made = store.branches.regenerate(id, "better answer", model="m-2")
    assert (made.role, made.model, made.parent) == ("assistant", "m-2", slot.parent)
    assert path(store, id) == ["question", "better answer"]
    with pytest.raises(InvalidInput, match="not an answer"):
        store.branches.regenerate(id, "x", "@0")
    with pytest.raises(NotFound):
        store.branches.regenerate(talk(store, "question"), "x")


def test_switch_leads_to_the_newest_answers_below_a_message(store: Store) -> None:
    id, two = forked(store, switch=False)
    done = store.branches.switch(id, "@1")
    assert done.changed and path(store, id) == ["question", "one", "more"]
    assert metadata(store, id)["currentNode"] == done.leaf == store.branches.path(id)[-1].id
    assert not store.branches.switch(id, "@1").changed
    assert store.branches.switch(id, step=1).message == two.id and path(store, id) == [
        "question",
        "two",
    ]
    assert store.branches.switch(id, str(two.id), step=-1).message == done.message
    assert store.branches.switch(id, str(two.id)[:-2]).leaf == two.id and is_canonical(store, id)


def test_an_impossible_switch_changes_nothing(store: Store) -> None:
    id = talk(store, "question", "one")
    before = store.read(id)
    for ask in (
        lambda: store.branches.switch(id),
        lambda: store.branches.switch(id, step=1),
        lambda: store.branches.switch(id, "@1", step=1),
        lambda: store.branches.switch(id, str(store.branches.path(id)[1].id), step=-1),
    ):
        with pytest.raises(InvalidInput):
            ask()
    with pytest.raises(NotFound):
        store.branches.switch(id, "nobody")
    assert not store.branches.switch(id, "@last").changed
    assert store.read(id) == before


@pytest.mark.parametrize("layout", [orjson.OPT_INDENT_2, 0])
def test_an_append_continues_the_active_branch_and_writes_its_parent_once(
    root: Path, store: Store, layout: int
) -> None:
    id, _ = forked(store)
    by_hand(root, id, lambda document: document.update(title="Mine"), layout)
    leaf = store.branches.path(id)[-1].id
    made = [store.append(id, content=text) for text in ("a", "b", "c")]
    assert path(store, id) == ["question", "one", "more", "a", "b", "c"]
    assert made[0].parent == leaf and [message.parent for message in made[1:]] == [None, None]
    assert "parent" not in made[1].model_fields_set and is_canonical(store, id)


def test_an_append_to_another_branch_stays_a_splice(root: Path, store: Store) -> None:
    id, _ = forked(store)
    before = file_of(root, id).stat().st_ino
    for text in ("a", "b"):
        store.append(id, content=text)
        with Store.open(root) as other:
            other.append(id, content=f"{text}'")
    assert file_of(root, id).stat().st_ino == before and path(store, id)[3:] == [
        "a",
        "a'",
        "b",
        "b'",
    ]


@pytest.mark.files
def test_a_newly_opened_store_appends_to_another_branch_without_reading_the_file(
    root: Path, store: Store
) -> None:
    id = talk(store, "question", "one", "x" * 300_000)
    store.branches.regenerate(id, "two", "@1")
    store.branches.switch(id, "@1")
    store.append(id, content="a")

    class Counting(Syscalls):
        read = 0

        def pread(self, fd: int, size: int, offset: int) -> bytes:
            data = super().pread(fd, size, offset)
            self.read += len(data)
            return data

    sys = Counting()
    with Store(str(root), Settings(), FilesEngine(FileStorage(str(root), sys=sys))) as other:
        other.append(id, content="b")
    assert sys.read < 100_000 and path(store, id)[-2:] == ["a", "b"]


def test_an_answer_moves_the_active_branch_only_if_its_parent_is_on_it(store: Store) -> None:
    id, two = forked(store)
    store.append(id, content="aside", parent=two.id)
    assert path(store, id) == ["question", "one", "more"]
    more = store.branches.path(id)[-1].id
    store.append(id, content="and more")
    store.append(id, content="instead", parent=more)
    assert path(store, id) == ["question", "one", "more", "instead"]
    assert path(store, id, str(two.id)) == ["question", "two", "aside"]


@pytest.mark.parametrize("is_open", [False, True])
def test_messages_of_one_write_get_the_same_parents_as_messages_of_many_writes(
    store: Store, is_open: bool
) -> None:
    def prepared() -> tuple[str, list[str]]:
        id, _ = forked(store)
        ids = [str(message.id) for message in store.load(id).history]
        if is_open:
            store.append(id, content="open")
        return id, ids

    def batch(ids: list[str], at: int) -> list[dict[str, Any]]:
        first = f"{at:08d}-0000-7000-8000-000000000000"
        return [
            *([] if is_open else [{"role": "user", "content": "a"}]),
            {"role": "user", "content": "b", "parent": ids[3], "id": first},
            {"role": "user", "content": "c"},
            {"role": "user", "content": "d", "parent": first},
            {"role": "user", "content": "e"},
            {"role": "user", "content": "f", "parent": ids[2]},
            {"role": "user", "content": "g"},
            {"role": "user", "content": "h", "parent": None},
            {"role": "user", "content": "i"},
        ]

    found = []
    for at, at_once in enumerate((True, False)):
        id, ids = prepared()
        messages = batch(ids, at)
        for part in [messages] if at_once else [[message] for message in messages]:
            store.append_many(id, part)
        history = {str(message.id): message.content for message in store.load(id).history}
        found.append(
            [
                (entry["content"], history.get(entry.get("parent")))
                for entry in store.document(id)["history"]
            ]
        )
        assert path(store, id) == ["question", "one", "more", "f", "g", "i"]
    assert found[0] == found[1]


@pytest.mark.parametrize("switched", [False, True])
@pytest.mark.parametrize("layout", [orjson.OPT_INDENT_2, 0])
def test_an_unknown_parent_is_refused_and_nothing_is_written(
    root: Path, store: Store, switched: bool, layout: int
) -> None:
    id = talk(store, "question", "one")
    if switched:
        store.branches.regenerate(id, "two")
        store.branches.switch(id, "@1")
    by_hand(root, id, lambda document: document.update(title="Mine"), layout)
    before = store.read(id)
    with pytest.raises(InvalidInput, match="is not the id of a message"):
        store.append_many(
            id,
            [
                {"role": "user", "content": "a"},
                {"role": "user", "content": "b", "parent": "nobody"},
            ],
        )
    assert store.read(id) == before


def test_a_key_is_recognized_when_the_store_chose_the_parent(store: Store) -> None:
    id, _ = forked(store)
    message, repeated = store.append_once(id, "k", content="a")
    assert message.parent is not None and not repeated
    assert store.append_once(id, "k", content="a") == (message, True)
    with pytest.raises(InvalidInput):
        store.append_once(id, "k", content="a", parent=store.branches.path(id)[0].id)


def test_removing_a_message_removes_its_descendants_and_nothing_else(store: Store) -> None:
    id = talk(store, "question", "one", "more", "even more")
    store.branches.regenerate(id, "two", "@1")
    store.append(id, content="on two")
    planned = store.branches.remove(id, "@4", dry_run=True)
    assert (
        planned.roles == {"assistant": 1, "user": 1}
        and str(planned) == "2 messages (1 assistant, 1 user)"
    )
    assert path(store, id)[-1] == "on two"
    assert store.branches.remove(id, "@4") == planned
    assert (
        path(store, id) == ["question", "one", "more", "even more"]
        and store.branches.path(id)[-1].id == planned.leaf
    )
    assert is_canonical(store, id)


def test_removal_of_the_active_branch_activates_the_newest_alternative_or_the_parent(
    store: Store,
) -> None:
    id = talk(store, "question", "one")
    for text in ("two", "three"):
        store.branches.regenerate(id, text, "@1")
    store.append(id, content="elsewhere", parent=None)
    store.branches.switch(id, "@3")
    store.branches.remove(id, "@3")
    assert path(store, id) == ["question", "two"]
    store.branches.remove(id, "@2")
    assert path(store, id) == ["question", "one"]
    store.branches.remove(id, "@1")
    assert path(store, id) == ["question"]
    store.branches.remove(id, "@0")
    assert path(store, id) == ["elsewhere"]
    assert store.branches.remove(id, "@0").leaf is None
    assert path(store, id) == [] and "currentNode" not in metadata(store, id)


def test_pruning_leaves_one_branch(store: Store) -> None:
    id, _ = forked(store)
    store.append(id, content="last")
    assert store.branches.trim(id, dry_run=True).roles == {"assistant": 1}
    store.branches.trim(id)
    assert (
        path(store, id)
        == ["question", "one", "more", "last"]
        == [m.content for m in store.load(id).history]
    )
    assert "currentNode" not in metadata(store, id) and is_canonical(store, id)
    before = store.read(id)
    assert store.branches.trim(id).ids == () and store.read(id) == before


@pytest.mark.parametrize("is_pruned", [False, True])
def test_a_removal_other_than_the_expected_one_is_refused(store: Store, is_pruned: bool) -> None:
    id, _ = forked(store)
    store.branches.switch(id, "@3")

    def taken(**more: Any) -> Removal:
        return (
            store.branches.trim(id, **more)
            if is_pruned
            else store.branches.remove(id, "@1", **more)
        )

    agreed = taken(dry_run=True)
    with store.beside() as other:
        other.append(id, content="wait", parent=agreed.ids[-1])
    before = store.read(id)
    for expected in (agreed.ids, (), [*agreed.ids, "nobody"]):
        with pytest.raises(InvalidInput, match=r"3 messages .* would be removed now, not the"):
            taken(expected=expected)
    assert store.read(id) == before
    now = taken(dry_run=True)
    assert taken(expected=list(reversed(now.ids))) == now and path(store, id) == ["question", "two"]


def test_a_doubled_id_means_the_first_message(store: Store) -> None:
    id, twice = talk(store, "question", "one"), "00000000-0000-7000-8000-000000000000"
    store.append_many(id, [{"role": "user", "content": "first", "id": twice}])
    store.append_many(
        id,
        [{"role": "user", "content": "2nd", "id": twice, "parent": store.branches.path(id)[0].id}],
    )
    done = store.append(id, content="under the first", parent=twice)
    with store.beside() as other:
        assert other.branches.switch(id, twice).leaf == done.id
        assert other.branches.alternatives(id, twice).leaves == (done.id,)


def test_every_kind_of_branching_locks_a_chat(store: Store) -> None:
    id = talk(store, "question", "one", type="chat")
    store.locks.release(id)
    for save in (
        lambda: store.branches.regenerate(id, "two"),
        lambda: store.branches.switch(id, "@1"),
        lambda: store.branches.remove(id, "@2"),
        lambda: store.branches.revise(id, "@0", "other"),
        lambda: store.branches.trim(id),
    ):
        save()
        assert store.locks.release(id)


def test_messages_without_ids_can_be_branched(root: Path, store: Store) -> None:
    id = talk(store)
    by_hand(
        root,
        id,
        lambda document: document.update(
            history=[{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]
        ),
    )
    named = [message["id"] for message in store.document(id)["history"]]
    assert store.branches.regenerate(id, "b").parent == named[0]
    assert [message.id for message in store.load(id).history[:2]] == named
    store.branches.switch(id, named[1])
    by_hand(
        root, id, lambda document: document["history"].append({"role": "user", "content": "typed"})
    )
    store.append(id, content="on")
    assert path(store, id) == ["q", "a", "on"] and path(store, id, "@3") == ["q", "b", "typed"]


def test_odd_parents_in_a_hand_edited_tree_are_reported_and_the_tree_works(
    root: Path, store: Store
) -> None:
    id = talk(store, "a", "b", "c", "d")
    ids = [str(message.id) for message in store.branches.path(id)]

    def change(document: dict[str, Any]) -> None:
        history = document["history"]
        history[0]["parent"], history[2]["parent"], history[3]["parent"] = ids[1], "nobody", ids[3]
        document["metadata"]["currentNode"] = "no one"

    by_hand(root, id, change)
    reported = [
        (problem.where, problem.what.partition(";")[0])
        for problem in CONVERSATION.problems_of(store.read(id), "x")
    ]
    assert reported == [
        ("metadata.currentNode", "'no one' is not the id of a message here"),
        ("history[0].parent", "closes a circle of messages that answer each other"),
        ("history[2].parent", "'nobody' is not the id of a message here"),
        ("history[3].parent", "is the message's own id"),
    ]
    findings = [finding for finding in examine(store) if finding.kind == "odd"]
    assert [finding.line > 0 for finding in findings] == [True] * 4
    assert path(store, id) == ["a", "b", "c", "d"]
    store.append(id, content="e")
    store.branches.switch(id, "@0")
    assert path(store, id)[-1] == "e" and set(path(store, id)) >= {"c", "d"}
    store.branches.remove(id, "@1", keep_children=True)
    assert path(store, id)[-2:] == ["d", "e"]


#: A hand-made tree: the id of each message, and its parent: not given, none (a root), any message,
#: or a missing one.
BY_HAND = st.lists(
    st.tuples(st.integers(0, 7), st.one_of(st.none(), st.none(), st.integers(-2, 9))),
    min_size=1,
    max_size=9,
)


@pytest.mark.slow
@pytest.mark.parametrize("layout", [orjson.OPT_INDENT_2, 0])
@given(
    made=BY_HAND, twice=st.booleans(), wanted=st.integers(0, 8), step=st.sampled_from([0, 0, 1, -1])
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_switch_in_any_hand_made_tree_follows_the_tree(
    root: Path,
    store: Store,
    layout: int,
    made: list[tuple[int, int | None]],
    twice: bool,
    wanted: int,
    step: int,
) -> None:
    def name(n: int) -> str:
        return f"{n:08d}-0000-7000-8000-000000000000"

    history: list[dict[str, Any]] = [
        {
            "role": "user",
            "content": str(at),
            "timestamp": "2025-01-12T10:00:00.000Z",
            "id": name(id if twice else at),
        }
        | ({} if parent is None else {"parent": None if parent < 0 else name(parent)})
        for at, (id, parent) in enumerate(made)
    ]
    id = talk(store)
    by_hand(root, id, lambda document: document.update(history=history), layout)
    for n in range(2):  # The second time the store has a cache.
        tree = Tree(history)
        message = str(tree.ids[(wanted + n) % len(tree)])
        siblings = tree.siblings_at(tree.places[message])
        index, leaves = siblings.index(tree.places[message]), [tree.leaf_at(at) for at in siblings]
        alternatives = store.branches.alternatives(id, message)
        assert (alternatives.index, list(alternatives.ids)) == (
            index,
            [tree.ids[at] for at in siblings],
        )
        assert list(alternatives.leaves) == [tree.ids[at] for at in leaves]
        if 0 <= index + step < len(siblings):
            leaf = tree.ids[leaves[index + step]]
            done = store.branches.switch(id, message, step=step)
            assert (done.message, done.leaf) == (tree.ids[siblings[index + step]], leaf)
            if tree.ids.count(leaf) == 1:
                assert store.branches.path(id)[-1].id == leaf
        else:
            with pytest.raises(InvalidInput):
                store.branches.switch(id, message, step=step)
        active = tree.active_leaf(metadata(store, id).get("currentNode"))
        fork = tree.nearest_fork(active)
        if fork >= 0 and (before := tree.siblings_at(fork)[: tree.siblings_at(fork).index(fork)]):
            assert store.branches.switch(id, step=-1).message == tree.ids[before[-1]]
        appended = store.append(id, content="more")
        history = store.document(id)["history"]
        assert history[-1]["id"] == appended.id and is_canonical(store, id)
    store.delete(id)


APPENDER = """
with Store.open(sys.argv[1]) as store:
    say("ready")
    hear()
    say([store.append(sys.argv[2], content=f"{sys.argv[3]} {n}").id for n in range(40)])
"""


@pytest.mark.slow
def test_processes_that_append_at_once_make_one_branch(
    root: Path, store: Store, child: Start
) -> None:
    id, two = forked(store)
    writers = [child(APPENDER, root, id, name) for name in "abc"]
    together(*writers)
    aside = [store.append(id, content=f"aside {n}", parent=two.id).id for n in range(20)]
    done = [message for writer in writers for message in writer.hear()]
    assert all(writer.end() == 0 for writer in writers)
    line = store.branches.path(id)
    assert sorted(str(message.id) for message in line[3:]) == sorted(done)
    assert {str(message.id) for message in store.load(id).history[4:]} == {*done, *aside}
    for name in "abc":
        texts = [message.content for message in line if message.content.startswith(f"{name} ")]
        assert texts == [f"{name} {n}" for n in range(40)]


@pytest.mark.files
def test_switching_while_another_process_appends_loses_nothing(
    root: Path, store: Store, child: Start
) -> None:
    id = talk(store, "question", "one")
    two = str(store.branches.regenerate(id, "two").id)
    one = str(store.branches.path(id, "@1")[-1].id)
    writer = child(APPENDER, root, id, "a")
    writer.hear()
    writer.say()
    for n in range(30):
        store.branches.switch(id, (one, two)[n % 2])
    done = writer.hear()
    assert writer.end() == 0
    there = {str(found.id) for message in (one, two) for found in store.branches.path(id, message)}
    assert set(done) <= {str(message.id) for message in store.load(id).history}
    assert set(done) <= there, "every message is on one of the two branches"
    assert is_canonical(store, id) and not [
        found for found in examine(store) if found.kind != "lock"
    ]
