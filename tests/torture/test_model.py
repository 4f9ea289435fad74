"""Two stores, on files also a person at an editor, compared with a plain dictionary.

Hypothesis drives them through creating, appending, editing, naming, tagging, locking, stealing,
deleting, restoring, crashing, reopening and hand edits, and after each step both stores must equal
the dictionary. What must stay true of the model: it has the rules of docs/guarantees.md, and knows
nothing of their implementation.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from capsule import Store
from capsule.errors import Locked, LockLost, NotFound
from capsule.maintenance import doctor
from tests.torture.writers import LONG

TEXT = st.text(st.characters(codec="utf-8", exclude_categories=("Cs",)), max_size=30)
WORD = st.text("abcdefgh", min_size=1, max_size=4)
WHICH = st.integers(0, 1)


@dataclass
class Modelled:
    """The expected state of a conversation.

    Attributes:
        history: Ids and texts.
        holder: The instance that holds the lock, as a number that each opening increases; None: no
            instance.
    """

    type: str
    title: str
    tags: list[str]
    history: list[tuple[str, str]] = field(default_factory=list)
    holder: int | None = None


def _tick() -> None:
    """Wait until the next millisecond: the times of the writes decide which of them an editor has
    read.
    """
    start = time.time_ns() // 1_000_000
    while time.time_ns() // 1_000_000 <= start:
        pass


class Stores(RuleBasedStateMachine):
    """The machine, on the engine in memory; each rule does one thing to a store and to
    the model.
    """

    ids = Bundle("ids")
    deleted = Bundle("deleted")

    @initialize()
    def begin(self) -> None:
        self._make()
        self.opened = 0
        self.stores: list[Store] = []
        self.instances: list[int] = []
        #: Conversations whose lock an instance believes to hold.
        self.thinks: list[set[str]] = []
        self.model: dict[str, Modelled] = {}
        self.trash: dict[str, Modelled] = {}
        for _ in range(2):
            self.stores.append(self._open())
            self.thinks.append(set())
            self.instances.append(self.opened)

    def teardown(self) -> None:
        for store in getattr(self, "stores", []):
            store.close()

    def _make(self) -> None:
        """Make the documents that both stores are opened on."""
        self.first = Store.in_memory()

    def _open_one(self) -> Store:
        return self.first.beside()

    def _open(self) -> Store:
        self.opened += 1
        return self._open_one()

    def _die(self, store: Store) -> None:
        """End the process of a store without closing it."""
        store.inner.instance_locks._stop.set()
        store.engine.leases.release(store.instance_id)

    # -- The rules of locks ------------------------------------------------------------------------

    def _admitted(self, which: int, id: str) -> type[Exception] | None:
        """The error that a write of this store to this conversation must raise."""
        if id not in self.model:
            return NotFound
        conversation = self.model[id]
        if conversation.holder == self.instances[which]:
            return None
        if id in self.thinks[which]:
            return LockLost
        return Locked if conversation.holder in self.instances else None

    def _writes(self, which: int, id: str, act: Any, *, takes: bool = True) -> Any:
        """Let a store write. Returns: None if the write was refused, as it had to be."""
        _tick()
        refused = self._admitted(which, id)
        if refused is not None:
            with pytest.raises(refused):
                act(self.stores[which])
            self.thinks[which].discard(id)
            return None
        done = act(self.stores[which])
        conversation = self.model[id]
        if conversation.holder != self.instances[which]:
            conversation.holder = None
            if takes and conversation.type == "chat":
                conversation.holder = self.instances[which]
                self.thinks[which].add(id)
        return done

    # -- Writing -----------------------------------------------------------------------------------

    @rule(
        target=ids,
        which=WHICH,
        type=st.sampled_from(["chat", "group"]),
        title=WORD,
        tags=st.lists(WORD, unique=True),
    )
    def create(self, which: int, type: str, title: str, tags: list[str]) -> str:
        id = self.stores[which].create(type=type, title=title, tags=tags).id
        self.model[id] = Modelled(
            type, title, tags, holder=self.instances[which] if type == "chat" else None
        )
        if type == "chat":
            self.thinks[which].add(id)
        return id

    @rule(which=WHICH, id=ids, texts=st.lists(TEXT, min_size=1, max_size=3))
    def append(self, which: int, id: str, texts: list[str]) -> None:
        messages = [{"role": "user", "content": text} for text in texts]
        done = self._writes(which, id, lambda store: store.append_many(id, messages))
        if done:
            assert [message.at for message in done] == [
                len(self.model[id].history) + i for i in range(len(done))
            ]
            self.model[id].history += [
                (message.id, text) for message, text in zip(done, texts, strict=True)
            ]

    @rule(which=WHICH, id=ids, place=st.integers(0, 20), text=TEXT)
    def edit_message(self, which: int, id: str, place: int, text: str) -> None:
        if id not in self.model or not self.model[id].history:
            return
        history = self.model[id].history
        place %= len(history)
        if self._writes(which, id, lambda store: store.edits.message(id, f"@{place}", text)):
            history[place] = (history[place][0], text)

    @rule(which=WHICH, id=ids, title=WORD)
    def rename(self, which: int, id: str, title: str) -> None:
        if self._writes(which, id, lambda store: store.rename(id, title)):
            self.model[id].title = title

    @rule(which=WHICH, id=ids, tag=WORD)
    def tag(self, which: int, id: str, tag: str) -> None:
        if (
            self._writes(which, id, lambda store: store.tag(id, tag))
            and tag not in self.model[id].tags
        ):
            self.model[id].tags.append(tag)

    @rule(which=WHICH, id=ids, tag=WORD)
    def untag(self, which: int, id: str, tag: str) -> None:
        if self._writes(which, id, lambda store: store.untag(id, tag)):
            self.model[id].tags = [there for there in self.model[id].tags if there != tag]

    # -- Locks -------------------------------------------------------------------------------------

    @rule(which=WHICH, id=ids)
    def lock(self, which: int, id: str) -> None:
        if self._writes(which, id, lambda store: store.locks.take(id), takes=False):
            self.model[id].holder = self.instances[which]
            self.thinks[which].add(id)

    @rule(which=WHICH, id=ids, force=st.booleans())
    def unlock(self, which: int, id: str, force: bool) -> None:
        if id not in self.model:
            return
        conversation = self.model[id]
        other = (
            conversation.holder in self.instances and conversation.holder != self.instances[which]
        )
        if other and not force:
            with pytest.raises(Locked):
                self.stores[which].locks.release(id)
        else:
            assert self.stores[which].locks.release(id, force=force) == (
                conversation.holder is not None
            )
            conversation.holder = None
        self.thinks[which].discard(id)

    # -- The trash ---------------------------------------------------------------------------------

    @rule(target=deleted, which=WHICH, id=consumes(ids))
    def delete(self, which: int, id: str) -> str:
        there = self.model.get(id)
        if self._writes(which, id, lambda store: store.delete(id), takes=False) and there:
            there.holder = None
            self.trash[id] = self.model.pop(id)
            self.thinks[which].discard(id)
        return id

    @rule(target=ids, which=WHICH, id=consumes(deleted))
    def restore(self, which: int, id: str) -> str:
        if id in self.trash:
            self.stores[which].trash.restore(id)
            self.model[id] = self.trash.pop(id)
        return id

    @rule(which=WHICH)
    def purge(self, which: int) -> None:
        self.stores[which].trash.purge()
        self.trash.clear()

    # -- Opening and crashing ----------------------------------------------------------------------

    @rule(which=WHICH)
    def reopen(self, which: int) -> None:
        self.stores[which].close()
        for id, conversation in self.model.items():
            if conversation.holder == self.instances[which] and id in self.thinks[which]:
                conversation.holder = None
        self._renew_instance(which)

    @rule(which=WHICH)
    def crash(self, which: int) -> None:
        self._die(self.stores[which])
        self._renew_instance(which)

    def _renew_instance(self, which: int) -> None:
        self.stores[which] = self._open()
        self.instances[which] = self.opened
        self.thinks[which] = set()

    # -- What must hold ----------------------------------------------------------------------------

    @invariant()
    def both_stores_equal_the_model(self) -> None:
        for store in getattr(self, "stores", []):
            assert store.ids() == sorted(self.model)
            for id in self.model:
                store.head(id)  # A list has the person's save as it is; this read merges it.
            for head in store.heads():
                expected = self.model[head.id]
                assert not head.damaged
                assert (head.title, head.type, list(head.tags)) == (
                    expected.title,
                    expected.type,
                    expected.tags,
                )
                assert (head.lock is not None) == (expected.holder is not None)
            states = {lock.id: lock.state for lock in store.locks.list()}
            assert states == {
                id: "held" if conversation.holder in self.instances else "orphaned"
                for id, conversation in self.model.items()
                if conversation.holder is not None
            }
            for id, expected in self.model.items():
                history = store.load(id).history
                assert [message.content for message in history] == [
                    text for _, text in expected.history
                ]
                # A message typed by hand gets its id with the next write.
                stored = orjson.loads(store.engine.read("conversations", id))["history"]
                expected.history = [
                    (known or entry.get("id", ""), message.content)
                    for (known, _), message, entry in zip(
                        expected.history, history, stored, strict=True
                    )
                ]
                assert [
                    message.id
                    for message, (known, _) in zip(history, expected.history, strict=True)
                    if known
                ] == [known for known, _ in expected.history if known]
                assert [message.content for message in store.tail(id, 2)] == [
                    text for _, text in expected.history
                ][-2:]
            assert {trashed.id for trashed in store.trash.list()} == self.trash.keys()


class StoresOnFiles(Stores):
    """The same on files, with a person who edits them."""

    def _make(self) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="capsule-model-"))
        Store.init(self.root)

    def teardown(self) -> None:
        if not hasattr(self, "root"):
            return
        super().teardown()
        with Store.open(self.root, keep_locks=False) as store:
            for id in store.ids():
                store.locks.release(id, force=True)
                store.append(id, content="last")
            # A crash may leave these, and nothing else.
            assert {finding.kind for finding in doctor.examine(store, repair=True)} <= {"leftover"}
            assert [str(finding) for finding in doctor.examine(store)] == []
        shutil.rmtree(self.root)

    def _open_one(self) -> Store:
        return Store.open(self.root)

    def _path(self, id: str) -> Path:
        return self.root / "conversations" / f"{id}.json"

    def _die(self, store: Store) -> None:
        """The kernel closes the files of the process, and nothing else happens."""
        store.inner.instance_locks._stop.set()
        for fd in store.engine.storage.leases._own_instance_fds.values():
            os.close(fd)
        store.engine.storage.mutexes.close()
        store.engine.storage.leases._own_instance_fds.clear()

    @precondition(lambda self: any(self.model))
    @rule()
    def lose_derived_files(self) -> None:
        """Both close, `.capsule/` is deleted, both open again."""
        for which in range(2):
            self.reopen(which)
        self.trash.clear()
        for which in range(2):
            self.stores[which].close()
        shutil.rmtree(self.root / ".capsule", ignore_errors=True)
        for which in range(2):
            self._renew_instance(which)

    # -- A person ----------------------------------------------------------------------------------

    @rule(
        id=Stores.ids,
        in_place=st.booleans(),
        indent=st.booleans(),
        title=st.none() | WORD,
        typed=st.none() | TEXT,
        changed=st.none() | st.tuples(st.integers(0, 20), TEXT),
        removed=st.none() | st.integers(0, 20),
        meanwhile=st.lists(TEXT, max_size=2),
        which=WHICH,
    )
    def edit_by_hand(
        self,
        id: str,
        in_place: bool,
        indent: bool,
        title: str | None,
        typed: str | None,
        changed: tuple[int, str] | None,
        removed: int | None,
        meanwhile: list[str],
        which: int,
    ) -> None:
        """A person opens the file; a store appends, if it may; and the person saves
        their version.
        """
        if id not in self.model:
            return
        conversation = self.model[id]
        _tick()
        document = orjson.loads(self._path(id).read_bytes())
        read = list(conversation.history)
        if meanwhile:
            self.append(which, id, meanwhile)
        unread = conversation.history[len(read) :]
        if title is not None:
            document["title"] = conversation.title = title
        if changed is not None and read:
            place = changed[0] % len(read)
            document["history"][place]["content"] = changed[1]
            read[place] = (read[place][0], changed[1])
        if removed is not None and read:
            place = removed % len(read)
            del document["history"][place], read[place]
        if typed is not None:
            document["history"].append({"role": "user", "content": typed})
            read.append(("", typed))
        conversation.history = read + unread
        data = orjson.dumps(document, option=orjson.OPT_INDENT_2 if indent else None) + b"\n"
        if in_place:
            self._path(id).write_bytes(data)
        else:
            copy = self._path(id).with_suffix(".new")
            copy.write_bytes(data)
            copy.rename(self._path(id))


MANY = settings(
    settings.default,
    max_examples=1500 if LONG else 25,
    stateful_step_count=40 if LONG else 20,
    derandomize=not LONG,
    database=None,
)
Stores.TestCase.settings = StoresOnFiles.TestCase.settings = MANY
test_two_stores_do_what_a_dictionary_does = Stores.TestCase
test_two_stores_and_a_person_do_what_a_dictionary_does = pytest.mark.slow(StoresOnFiles.TestCase)
