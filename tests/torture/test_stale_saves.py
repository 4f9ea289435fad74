"""Saves of any earlier version, compared with a model: nothing that was acknowledged disappears in
silence.

Two writers append, edit, remove, restore, fork, name and tag. In between, a person or a program
saves a version that it read at any time before, with one change, in an editor that leaves
`updatedAt` alone or a program that sets its own.

What must stay true of the model: it knows which version was read, and nothing of the log. A
message, a text or a title of a writer is there after a save, or the version that was read had it
and the save dropped it. What a save takes away is in the quarantine.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from capsule import Store
from tests.core.store.files import put_over, text_of
from tests.torture.writers import LONG

ID = "plan"
EARLIER = "2020-01-01T00:00:00.000Z"
PLACE = st.integers(0, 1000)
WRITER = st.integers(0, 1)
CHANGES = ("nothing", "title", "text", "type", "drop", "drop many", "tag", "place")
TIMES = ("as read", "as read", "later", "earlier")

APPENDS = st.tuples(st.just("append"), WRITER, st.integers(1, 3))
WRITES = st.tuples(
    st.sampled_from(
        (
            "edit",
            "remove",
            "remove branch",
            "restore",
            "revise",
            "fork",
            "title",
            "tag",
            "untag",
            "rewrite",
            "reopen",
        )
    ),
    WRITER,
    PLACE,
)
SAVES = st.tuples(st.just("save"), PLACE, st.sampled_from(CHANGES), PLACE, st.sampled_from(TIMES))
STEPS = st.lists(st.one_of(APPENDS, WRITES, WRITES, SAVES), min_size=4, max_size=14)


@dataclass(frozen=True)
class Version:
    """A conversation as a person can have read it."""

    document: dict[str, Any]

    @property
    def entries(self) -> dict[str, dict[str, Any]]:
        return {entry["id"]: entry for entry in self.document["history"] if "id" in entry}

    @property
    def texts(self) -> dict[str, str]:
        return {id: entry["content"] for id, entry in self.entries.items()}

    @property
    def title(self) -> str:
        return str(self.document["title"])

    @property
    def tags(self) -> list[str]:
        return list(self.document["metadata"].get("tags", ()))


@dataclass
class Played:
    """One case: a store of files, the versions that there were, and what is a person's own.

    Attributes:
        typed: Texts, titles and tags that a person typed: two persons may overwrite each other.
        moved: Ids of messages that a person took out or put back.
        chosen: Texts, by the ids, and the title (""), that a save put in the place of others: they
            are a person's, too.
        is_logged: Whether the log has the first messages.
    """

    root: Path
    stores: list[Store]
    versions: list[Version] = field(default_factory=list)
    typed: set[str] = field(default_factory=set)
    moved: set[str] = field(default_factory=set)
    chosen: dict[str, str] = field(default_factory=dict)
    is_logged: bool = True
    count: int = 0

    def word(self) -> str:
        self.count += 1
        return f"word-{self.count}"

    def type(self) -> str:
        """A word that a person types."""
        word = self.word()
        self.typed.add(word)
        return word

    @property
    def path(self) -> Path:
        return self.root / "conversations" / f"{ID}.json"

    def kept(self) -> bytes:
        """All that the trash and the quarantine have."""
        files = [*self.root.glob(".capsule/quarantine/*"), *self.root.glob(".capsule/trash/*")]
        return b"".join(path.read_bytes() for path in files)

    def is_in_log(self, text: str) -> bool:
        return self.is_logged or text.startswith("word-")

    def has_kept(self, text: str) -> bool:
        return f'"{text}"'.encode() in self.kept()

    def read(self) -> Version:
        """The conversation as it is now, which from now on can be saved."""
        self.stores[0].head(ID)
        version = Version(orjson.loads(self.path.read_bytes()))
        self.versions.append(version)
        return version

    def write(self, what: str, writer: int, place: int) -> None:
        store = self.stores[writer]
        history = self.versions[-1].document["history"]
        which = f"@{place % len(history)}" if history else ""
        if what == "append":
            store.append_many(ID, [{"role": "user", "content": self.word()} for _ in range(place)])
        elif what == "title":
            store.rename(ID, self.word())
        elif what == "tag":
            store.tag(ID, self.word())
        elif what == "untag" and self.versions[-1].tags:
            store.untag(ID, self.versions[-1].tags[place % len(self.versions[-1].tags)])
        elif what == "restore":
            if removed := store.trash.removed(ID):
                store.trash.restore_messages(removed[place % len(removed)].trashed)
        elif what == "reopen":
            store.close()
            self.stores[writer] = Store.open(self.root)
        elif what == "rewrite":
            read = store.read(ID)
            document = orjson.loads(read) | {"title": self.word()}
            document["history"].insert(
                place % (len(history) + 1), {"role": "user", "content": self.word()}
            )
            store.edits.rewrite(ID, text_of(document), read)
        elif which and what == "edit":
            store.edits.message(ID, which, self.word())
        elif which and what in ("remove", "remove branch"):
            store.branches.remove(ID, which, keep_children=what == "remove")
        elif which and what == "revise":
            store.branches.revise(ID, which, self.word())
        elif which and what == "fork":
            store.forks.create(ID, at=which)

    def save(self, number: int, change: str, place: int, time: str) -> None:
        before, base = self.versions[-1], self.versions[number % len(self.versions)]
        document = orjson.loads(orjson.dumps(base.document))
        self._change(document, change, place)
        if time != "as read":
            self.count += 1  # Later than all before, and no time that a write gets.
            later = f"2990-01-01T{self.count // 60:02}:{self.count % 60:02}:00.000Z"
            document["updatedAt"] = later if time == "later" else EARLIER
        put_over(self.path, text_of(document))
        os.utime(
            self.path, ns=(1, self.path.stat().st_mtime_ns - 1_000_000_000)
        )  # Nobody is still saving it.
        after = self.read()
        self._check(before, base, Version(document), after, time)
        put_over(self.path, self.path.read_bytes())
        os.utime(self.path, ns=(1, self.path.stat().st_mtime_ns - 2_000_000_000))
        kept = self.kept()
        assert self.read() == after, "a version that was taken in stays as it is"
        assert self.kept() == kept

    def _change(self, document: dict[str, Any], change: str, place: int) -> None:
        history = document["history"]
        at = place % len(history) if history else 0
        if change == "title":
            document["title"] = self.type()
        elif change == "tag":
            tags = document["metadata"].get("tags", [])
            document["metadata"]["tags"] = [*tags[place % 2 :], self.type()]
        elif change == "type":
            history.insert(place % (len(history) + 1), {"role": "user", "content": self.type()})
        elif change == "text" and history:
            history[at]["content"] = self.type()
        elif change == "drop" and history:
            del history[at]
        elif change == "drop many" and history:
            del history[at:]
        elif change == "place" and history:
            history.append(history.pop(at))

    def _check(
        self, before: Version, base: Version, saved: Version, after: Version, time: str
    ) -> None:
        ids = [entry["id"] for entry in after.document["history"] if "id" in entry]
        assert len(ids) == len(set(ids)), "no message is there twice"
        texts = [entry["content"] for entry in after.document["history"]]
        for entry in saved.document["history"]:
            if "id" not in entry and entry not in base.document["history"]:
                assert entry["content"] in texts, "what a person typed is there"
        for id, text in before.texts.items():
            if text in self.typed or text == self.chosen.get(id):
                continue
            if id not in after.texts:
                is_dropped = id in base.texts and id not in saved.texts
                assert is_dropped or id in self.moved, (
                    f"{text} was never read by who saved, and is gone"
                )
                assert not self.is_in_log(text) or self.has_kept(text), (
                    f"{text} is gone, and kept nowhere"
                )
            elif after.texts[id] != text and id not in self.moved:
                self._check_text(id, before, base, saved, after, time)
        for id, text in saved.texts.items():
            is_removed_since = id in base.texts and id not in before.texts and id not in self.moved
            is_left_alone = (
                text == base.texts.get(id) and text not in self.typed and self.is_in_log(text)
            )
            if is_removed_since and is_left_alone and time != "later":
                assert id not in after.texts, f"{text} was removed, and came back"
        self._check_head(before, base, saved, after, time)
        self.chosen |= {
            id: text for id, text in after.texts.items() if before.texts.get(id, text) != text
        }
        if after.title != before.title:
            self.chosen[""] = after.title
        self.typed |= set(after.tags) - set(before.tags)
        self.moved |= before.texts.keys() - after.texts.keys()
        self.moved |= (saved.texts.keys() & after.texts.keys()) - before.texts.keys()

    def _check_text(
        self, id: str, before: Version, base: Version, saved: Version, after: Version, time: str
    ) -> None:
        """A text of a writer was replaced by the person, or by a program that had not read it, and
        then is kept.
        """
        text = before.texts[id]
        is_changed = saved.texts.get(id) != base.texts.get(id)
        assert after.texts[id] == saved.texts.get(id, after.texts[id])
        former = base.texts.get(id, "")
        if former not in {text, *self.typed} and self.is_in_log(former):
            assert is_changed or time == "later", f"{text} was edited since, and nobody changed it"
            assert self.has_kept(text), f"{text} is overruled, and kept nowhere"

    def _check_head(
        self, before: Version, base: Version, saved: Version, after: Version, time: str
    ) -> None:
        if after.title != before.title and before.title not in {*self.typed, self.chosen.get("")}:
            assert after.title == saved.title
            if base.title not in {before.title, *self.typed}:
                is_a_persons = any(version.title in self.typed for version in self.versions)
                assert time != "as read" or saved.title != base.title or is_a_persons, (
                    "a new title was taken back"
                )
                assert self.has_kept(before.title)
        if saved.title != base.title:
            assert after.title == saved.title, "the person's title stands"
        if time == "as read" and saved.tags == base.tags:
            assert set(before.tags) - set(base.tags) - self.typed <= set(after.tags)


@pytest.fixture
def memory() -> Iterator[Path]:
    """A directory in memory, where the machine has one."""
    with tempfile.TemporaryDirectory(
        dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    ) as directory:
        yield Path(directory)


def play(root: Path, is_created_with: bool, steps: list[tuple[Any, ...]]) -> None:
    """Play one case in an empty directory."""
    Store.init(root)
    stores = [Store.open(root, keep_locks=False), Store.open(root, keep_locks=False)]
    messages = [{"role": "user", "content": text} for text in ("first", "second")]
    try:
        stores[0].create(
            id=ID, title="Plan", type="group", messages=messages if is_created_with else []
        )
        if not is_created_with:
            stores[0].append_many(ID, messages)
        played = Played(root, stores, is_logged=not is_created_with)
        played.read()
        for step in steps:
            if step[0] == "save":
                played.save(*step[1:])
                continue
            played.write(*step)
            played.read()
    finally:
        for store in stores:
            store.close()


@pytest.mark.files
@pytest.mark.slow
@pytest.mark.sample
@settings(max_examples=10_000 if LONG else 100, derandomize=not LONG, database=None)
@given(is_created_with=st.booleans(), steps=STEPS)
def test_no_save_takes_away_in_silence_what_was_acknowledged(
    memory: Path, is_created_with: bool, steps: list[tuple[Any, ...]]
) -> None:
    root = memory / "store"
    try:
        play(root, is_created_with, steps)
    finally:
        shutil.rmtree(root, ignore_errors=True)
