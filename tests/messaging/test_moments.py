"""Every message is given at least once, whatever moment of listening and acknowledging a merge of
clones comes in.

Other processes bring the index up to date at any time. Here that happens before a chosen question
to the index, so that each moment has its turn.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from capsule import Store
from capsule.format.json import codec
from capsule.format.merge.fields import merge_fields
from capsule.format.merge.merge import merge
from capsule.format.validation import AGENT

CONVERSATION, BOB = "conversations/direct_anna_bob.json", "agents/bob.json"


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store where anna wrote twelve messages to bob, each other one in a topic, of which he has
    read eight.
    """
    root = tmp_path_factory.mktemp("talk") / "store"
    Store.init(root)
    with Store.open(root) as store:
        for agent in ("anna", "bob"):
            store.agents.register(agent)
        for number in range(12):
            send(store, f"old {number}")
            if number == 7:
                assert len(heard(store)) == 8
    return root


def send(store: Store, text: str, by: str = "anna") -> None:
    to = "bob" if by == "anna" else "anna"
    store.messages.send(text, agent=by, to=to, topic="plan" if text[-1] in "13579" else None)


def heard(
    store: Store, *, topic: str | None = None, timeout_s: float = 0, acknowledges: bool = True
) -> set[str]:
    mail = store.messages.listen(agent="bob", topic=topic, timeout_s=timeout_s)
    if acknowledges:
        store.messages.ack(agent="bob", cursor=mail.cursor)
    return {each.content for each in mail.messages}


def rest(store: Store) -> set[str]:
    """What bob hears until nothing is unread."""
    found: set[str] = set()
    while mail := heard(store):
        found |= mail
    assert store.messages.inbox(agent="bob").unread == 0
    return found


def read(root: Path, name: str) -> dict[str, Any]:
    return codec.decode((root / name).read_bytes(), name)


@contextmanager
def at_questions(store: Store, events: dict[int, Callable[[], object]]) -> Iterator[None]:
    """Have these happen right before the store asks its index the question of this number."""
    index, numbers = store.engine.index, count()
    query = index.query

    def asked(*args: Any, **options: Any) -> Any:
        if event := events.pop(next(numbers), None):
            event()
        return query(*args, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index, "query", asked)
        # A wait that ends at once: nothing happens meanwhile but at the questions.
        patch.setattr(store, "wait_for_changes", lambda since, timeout_s: store.changes(since))
        yield


@pytest.mark.parametrize("topic", [None, "plan"])
@pytest.mark.parametrize("removed", [0, 1])
def test_a_message_that_is_put_in_front_at_any_moment_is_given(
    talk: Path, tmp_path: Path, removed: int, topic: str | None
) -> None:
    for number in count():
        root = tmp_path / str(number)
        shutil.copytree(talk, root)
        with Store.open(root) as store, Store.open(root) as other:

            def put_in_front(root: Path = root, other: Store = other) -> None:
                document = read(root, CONVERSATION)
                history = document["history"]
                history.insert(3, history[3] | {"id": "from-another-clone", "content": "merged"})
                del history[:removed]  # Then all that stands behind has its place again.
                (root / CONVERSATION).write_text(json.dumps(document, indent=2))
                other.queries.refresh()

            events = {number: put_in_front}
            with at_questions(store, events):
                found = heard(store, topic=topic) | heard(store)
            if events:
                break  # So many questions were not asked.
            found |= rest(store)
        assert found >= {"merged", *(f"old {number}" for number in range(8, 12))}, number
    assert number > 8


class Clones:
    """Two clones of a store, whose documents are merged one by one, each side taking a merge at any
    time.
    """

    def __init__(self, stores: list[Store], talk: Path) -> None:
        self.stores = stores
        self.roots = [Path(store.root) for store in stores]
        self.bases = {name: read(talk, name) for name in (CONVERSATION, BOB)}
        #: Of each document that was merged: the versions that were, and the merge, until both sides
        #: have it.
        self.merges: dict[str, tuple[dict[int, dict[str, Any]], dict[str, Any]]] = {}

    def bring(self, name: str) -> None:
        """Merge a document, or have the next side take the merge."""
        if name not in self.merges:
            sides = dict(enumerate(read(root, name) for root in self.roots))
            self.merges[name] = sides, merged(name, self.bases[name], sides[0], sides[1])
            return
        sides, of_both = self.merges[name]
        side, was = sides.popitem()
        if not sides:
            self.bases[name] = of_both
            del self.merges[name]
        root = self.roots[side]
        (root / name).write_bytes(codec.encode(merged(name, was, read(root, name), of_both)))
        with Store.open(root) as process:
            process.queries.refresh()

    def finish(self, name: str) -> None:
        """Have both sides take the merge that is under way, and another one of what there
        is then.
        """
        for _ in range(2):
            self.bring(name)
            while name in self.merges:
                self.bring(name)


def merged(name: str, *versions: dict[str, Any]) -> dict[str, Any]:
    return (merge(*versions) if name == CONVERSATION else merge_fields(AGENT, *versions)).document


_STEPS = st.one_of(
    st.tuples(st.just("send"), st.integers(0, 1), st.sampled_from(["anna", "anna", "bob"])),
    st.tuples(st.just("bring"), st.sampled_from([CONVERSATION, CONVERSATION, BOB])),
    st.tuples(st.just("remove"), st.integers(0, 1)),
)
#: bob hears in a clone: in which, of which topic, how long he waits, whether he acknowledges, and
#: what happens meanwhile at which questions.
_HEARS = st.tuples(
    st.just("hear"),
    st.integers(0, 1),
    st.sampled_from([None, None, "plan"]),
    st.sampled_from([0, 60]),
    st.booleans(),
    st.dictionaries(st.integers(0, 14), _STEPS, max_size=4),
)


@pytest.mark.slow
@given(steps=st.lists(st.one_of(_STEPS, _HEARS, _HEARS), max_size=16))
def test_every_message_of_two_clones_is_given_whatever_is_merged_when(
    talk: Path, tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    top = tmp_path_factory.mktemp("clones")
    for side in "01":
        shutil.copytree(talk, top / side)
    found, numbers = set[str](), count()
    old = {f"old {number}" for number in range(8)}
    with Store.open(top / "0") as one, Store.open(top / "1") as other:
        clones = Clones([one, other], talk)

        def do(step: Any) -> None:
            if step[0] == "send":
                send(clones.stores[step[1]], f"new {next(numbers)}", step[2])
            elif step[0] == "remove":
                first = read(clones.roots[step[1]], CONVERSATION)["history"][0]
                if first["content"] in old:
                    clones.stores[step[1]].branches.remove(
                        "direct_anna_bob", first["id"], keep_children=True
                    )
            elif step[0] == "bring":
                clones.bring(step[1])
            else:
                _, side, topic, timeout_s, acknowledges, meanwhile = step
                events = {at: lambda one=one: do(one) for at, one in meanwhile.items()}
                with at_questions(clones.stores[side], events):
                    found.update(
                        heard(
                            clones.stores[side],
                            topic=topic,
                            timeout_s=timeout_s,
                            acknowledges=acknowledges,
                        )
                    )

        for step in steps:
            do(step)
        for name in (CONVERSATION, BOB):
            clones.finish(name)
        for store in clones.stores:
            found |= rest(store)
        histories = [read(root, CONVERSATION)["history"] for root in clones.roots]
    assert histories[0] == histories[1]
    assert (
        found - old == {entry["content"] for entry in histories[0] if entry["from"] == "anna"} - old
    )
    shutil.rmtree(top)
