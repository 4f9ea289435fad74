"""Random things done to a store, by itself and by hand: the index always says what one made from
the files says.

And whoever follows the changes knows what the files say, without having looked.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from capsule import Store
from capsule.errors import Locked
from capsule.format.json import codec
from tests.core.index.state import AGENTS, Follower, index_of, state, state_of_the_files

pytestmark = pytest.mark.slow

WORDS = st.lists(
    st.sampled_from(["red", "green", "blue", "fish", "bird", "漢字", "can't"]), max_size=4
).map(" ".join)
TITLES = st.sampled_from(["Plan", "fish", "red bird", "Überblick"])
WHICH = st.integers(0, 7)
PLACE = st.integers(0, 9)


class Indexed(RuleBasedStateMachine):
    """Each rule does one thing to the files."""

    @initialize(early=st.booleans())
    def begin(self, early: bool) -> None:
        self.root = Path(tempfile.mkdtemp(prefix="capsule-index-"))
        Store.init(self.root)
        self.store = Store.open(self.root, keep_locks=False)
        self.other = Store.open(self.root, keep_locks=False)
        self.follower = Follower(self.store)
        self.asked = early
        self.made = 0

    def teardown(self) -> None:
        if hasattr(self, "root"):
            self.store.close()
            self.other.close()
            shutil.rmtree(self.root)

    def _path(self, which: int) -> Path | None:
        paths = sorted((self.root / "conversations").glob("*.json"))
        return paths[which % len(paths)] if paths else None

    def _sound(self, which: int) -> str | None:
        """The id of a conversation that parses."""
        opened = self._opened(which)
        return opened[0].stem if opened else None

    def _opened(self, which: int) -> tuple[Path, Any] | None:
        """The file of a conversation that parses, and its document."""
        path = self._path(which)
        try:
            return None if path is None else (path, orjson.loads(path.read_bytes()))
        except orjson.JSONDecodeError:
            return None

    @rule(text=WORDS, title=TITLES, type=st.sampled_from(["chat", "group"]))
    def create(self, text: str, title: str, type: str) -> None:
        self.made += 1
        messages = [{"role": "user", "content": text}] if text else []
        self.store.create(id=f"c{self.made}", title=title, type=type, messages=messages)

    @rule(which=WHICH, texts=st.lists(WORDS, min_size=1, max_size=3), through_other=st.booleans())
    def append(self, which: int, texts: list[str], through_other: bool) -> None:
        if id := self._sound(which):
            store = self.other if through_other else self.store
            with suppress(Locked):  # The other may have locked it.
                more = {"reasoning": "so", "topic": texts[0], "metadata": {"of": {"words": texts}}}
                store.append_many(
                    id, [{"role": "assistant", "content": text, **more} for text in texts]
                )

    @rule(which=WHICH, place=PLACE, text=WORDS)
    def answer_an_older_one(self, which: int, place: int, text: str) -> None:
        if id := self._sound(which):
            ids = [message.id for message in self.store.load(id).history]
            parent = ids[place % len(ids)] if ids else None
            self.store.append(id, content=text, parent=parent)

    @rule(which=WHICH, place=PLACE, text=WORDS)
    def edit(self, which: int, place: int, text: str) -> None:
        if (id := self._sound(which)) and (count := len(self.store.load(id).history)):
            self.store.edits.message(id, f"@{place % count}", text)

    @rule(which=WHICH, title=TITLES)
    def rename(self, which: int, title: str) -> None:
        if id := self._sound(which):
            self.store.rename(id, title)

    @rule(which=WHICH, tag=st.sampled_from(["one", "two"]))
    def tag(self, which: int, tag: str) -> None:
        if id := self._sound(which):
            self.store.tag(id, tag)

    @rule(which=WHICH)
    def lock_or_unlock(self, which: int) -> None:
        if (id := self._sound(which)) and not self.store.locks.release(id):
            self.store.locks.take(id)

    @rule(which=WHICH)
    def delete(self, which: int) -> None:
        path = self._path(which)
        if path is not None:
            self.store.delete(path.stem)

    @rule()
    def restore(self) -> None:
        there = {path.stem for path in (self.root / "conversations").iterdir()}
        gone = [item.id for item in self.store.trash.list() if item.id not in there]
        if gone:
            self.store.trash.restore(gone[0])

    # -- By hand -----------------------------------------------------------------------------------

    @rule(which=WHICH, place=PLACE, text=WORDS, layout=st.booleans(), in_place=st.booleans())
    def type_into(self, which: int, place: int, text: str, layout: bool, in_place: bool) -> None:
        if not (opened := self._opened(which)):
            return
        path, document = opened
        document["history"].insert(
            place % (len(document["history"]) + 1), {"role": "user", "content": text}
        )
        self._save(path, codec.encode(document) if layout else orjson.dumps(document), in_place)

    @rule(which=WHICH, place=PLACE, in_place=st.booleans())
    def take_out(self, which: int, place: int, in_place: bool) -> None:
        if not (opened := self._opened(which)):
            return
        path, document = opened
        if document["history"]:
            del document["history"][place % len(document["history"])]
            self._save(path, codec.encode(document), in_place)

    @rule(which=WHICH, by=st.sampled_from([("red", "bad"), ("fish", "dish"), ("e", "a")]))
    def change_letters(self, which: int, by: tuple[str, str]) -> None:
        """In place, of the same size, and at once."""
        if not (opened := self._opened(which)):
            return
        path, document = opened
        for message in document["history"]:
            message["content"] = message["content"].replace(*by)
            if "topic" in message:
                message["topic"] = message["topic"].replace(*by)
        self._save(path, codec.encode(document), True)

    @rule(which=WHICH, node=PLACE)
    def switch_branch(self, which: int, node: int) -> None:
        if not (opened := self._opened(which)):
            return
        path, document = opened
        ids = [message["id"] for message in document["history"] if message.get("id")]
        if ids:
            document["metadata"]["currentNode"] = ids[node % len(ids)]
            self._save(path, codec.encode(document), False)

    @rule(
        which=WHICH, agents=st.sets(st.sampled_from(AGENTS)), left=st.sets(st.sampled_from(AGENTS))
    )
    def set_participants(self, which: int, agents: set[str], left: set[str]) -> None:
        if not (opened := self._opened(which)):
            return
        path, document = opened
        gone = [
            {"id": agent, "leftAt": "2026-01-01T10:00:00.000Z"} for agent in sorted(left - agents)
        ]
        document["metadata"]["participants"] = [*sorted(agents), *gone]
        self._save(path, codec.encode(document), False)

    @rule(which=WHICH, at=st.integers(0, 400))
    def break_it(self, which: int, at: int) -> None:
        if opened := self._opened(which):
            data = opened[0].read_bytes()
            self._save(opened[0], data[:at] + b'"' + data[at:], False)

    @precondition(lambda self: hasattr(self, "root"))
    @rule(which=WHICH)
    def remove(self, which: int) -> None:
        path = self._path(which)
        if path is not None:
            path.unlink()

    def _save(self, path: Path, data: bytes, in_place: bool) -> None:
        if in_place:
            path.write_bytes(data)
        else:
            copy = path.with_suffix(".swp")
            copy.write_bytes(data)
            copy.rename(path)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store.open(self.root, keep_locks=False)

    @rule(how=st.sampled_from(["delete", "truncate", "garbage"]))
    def harm_the_index(self, how: str) -> None:
        path = self.root / ".capsule" / "index.sqlite3"
        if path.exists():
            # Nobody has it open: what is done to a database under SQLite's feet is another test's.
            self.store.close()
            self.other.close()
            if how == "delete":
                path.unlink()
            elif how == "truncate":
                os.truncate(path, path.stat().st_size // 2)
            else:
                path.write_bytes(b"garbage" * 1000)
            self.store, self.other = (Store.open(self.root, keep_locks=False) for _ in range(2))
            # Whatever happened before is told from the files' times now; the follower begins anew.
            list(self.store.heads())
            self._begin_anew()

    def _begin_anew(self) -> None:
        self.follower = Follower(self.store)
        heads = {head.id: head for head in self.store.heads()}
        self.follower.titles = {id: head.title for id, head in heads.items()}
        self.follower.locked = {id for id, head in heads.items() if head.lock}
        self.follower.damaged = {id for id, head in heads.items() if head.damaged}
        rows = index_of(self.store)._database.connection.execute(
            "SELECT capsules.id, messages.id FROM capsules LEFT JOIN messages ON capsule = "
            "capsules.num WHERE gone = 0"
        )
        self.follower.messages = {}
        for id, message in rows:
            self.follower.messages.setdefault(id, set()).update([message] if message else [])

    @invariant()
    def the_index_says_what_the_files_say(self) -> None:
        if not hasattr(self, "root"):
            return
        self.follower.follow(self.store)
        # First, as settling a hand edit may write: what is compared with is read after it.
        said = state(self.store)
        assert said == state_of_the_files(self.root)
        assert state(self.other) == said
        heads = said["heads"]
        assert self.follower.messages.keys() == heads.keys()
        self.follower.follow(self.store)
        sound = {id for id, head in heads.items() if "damaged" not in head}
        assert self.follower.damaged == heads.keys() - sound
        known: dict[str, set[str]] = {id: set() for id in sound}
        for row in said["messages"]:
            known[row[0]].add(row[2])
        assert {id: self.follower.messages[id] for id in sound} == known
        assert self.follower.locked & sound == {id for id in sound if heads[id]["lock"]}
        assert {id: self.follower.titles.get(id) for id in sound} == {
            id: heads[id]["title"] for id in sound
        }


TestIndexed = Indexed.TestCase
TestIndexed.settings = settings(
    max_examples=max(settings().max_examples // 3, 20), stateful_step_count=15
)
