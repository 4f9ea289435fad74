"""What an index says, in a form that two of them can be compared in."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

from capsule import Store
from capsule.engines.changes import Change
from capsule.engines.index.index import Index
from capsule.engines.index.queries import IndexQueries
from capsule.engines.questions.query import fold

MESSAGES = """
    SELECT capsules.id, at, messages.id, parent, role, sender, time_ms, messages.words, active, content, tools,
    messages.digest, messages.tokens
    FROM messages JOIN capsules ON capsules.num = capsule WHERE gone = 0 AND damaged = '' ORDER BY capsules.id, at
"""
SOUND = """
    SELECT id, title, created_at, updated_at, updated_ms, mode, source, tags, archived, lock, current, rest, context,
    entries, words, tokens, linear FROM capsules WHERE gone = 0 AND damaged = '' ORDER BY id
"""
MEMBERS = """
    SELECT id, agent, damaged != '', gone FROM members LEFT JOIN capsules ON capsules.num = capsule ORDER BY id, agent
"""
FACTS = """
    SELECT capsules.id, at, path, type, value, damaged != '', gone FROM facts
    LEFT JOIN messages ON messages.num = message LEFT JOIN capsules ON capsules.num = capsule ORDER BY 1, 2, 3, 4, 5
"""
AGENTS = ("anna", "bob")
T = TypeVar("T")


def index_of(store: Store) -> Index:
    return cast(IndexQueries, store.queries)._index


def asked(store: Store, ask: Callable[[sqlite3.Connection], T]) -> T:
    """What is read from the index, brought up to date."""
    return index_of(store).query(None, lambda db, _: ask(db))


def state(store: Store) -> dict[str, Any]:
    """All that the index says of the conversations, but for where they lie and what it knows of
    their files.
    """
    heads = {head.id: head.as_json() for head in store.heads()}
    for head in heads.values():
        if "damaged" in head:
            head["damaged"] = head["damaged"].replace(str(store.root), "")
        head["path"] = head["path"].replace(str(store.root), "")

    def ask(db: sqlite3.Connection) -> dict[str, Any]:
        messages = db.execute(MESSAGES).fetchall()
        places = dict(db.execute("SELECT num, capsule * 1000000 + at FROM messages"))
        words = {
            word
            for message in messages
            for word in f"{message[9]} {message[10] or ''}".split()
            if word.isalnum()
        }
        found = {}
        for word in sorted(words):
            rows = db.execute(
                "SELECT rowid FROM words WHERE words MATCH ?", (f'"{fold(word)}"',)
            ).fetchall()
            named = db.execute(
                "SELECT capsules.id, at FROM messages JOIN capsules ON capsules.num = capsule "
                "WHERE gone = 0"
                f" AND damaged = '' AND messages.num IN ({','.join(str(row[0]) for row in rows)}) "
                "ORDER BY 1, 2"
            )
            assert all(row[0] in places for row in rows), "a word of a message that is gone"
            found[word] = named.fetchall()
        titles = [
            db.execute(
                "SELECT 1 FROM names WHERE names MATCH ? AND rowid = ?", (f'"{fold(title)}"', num)
            ).fetchone()
            for num, title in db.execute(
                "SELECT num, title FROM capsules WHERE gone = 0 AND title != ''"
            )
            if title.isalnum()
        ]
        assert all(titles), "a title that is not found"
        members = db.execute(MEMBERS).fetchall()
        assert all(gone == 0 for *_, gone in members), "a member of a conversation that is gone"
        facts = db.execute(FACTS).fetchall()
        assert all(gone == 0 for *_, gone in facts), "a fact of a message that is gone"
        told = {
            "members": [row[:2] for row in members if not row[2]],
            "facts": [row[:5] for row in facts if not row[5]],
        }
        return {
            "capsules": db.execute(SOUND).fetchall(),
            "messages": messages,
            "words": found,
            **told,
        }

    # What the index remembers of the answers before is the same as what it reads.
    # No file has the tag; and the version is empty until the file is 50 ms old, in each index by
    # its own clock.
    mine = {
        agent: sorted(
            each._replace(tag="", version="") for each in store.queries.participations(agent)
        )
        for agent in AGENTS
    }
    return {"heads": heads, "mine": mine} | asked(store, ask)


def state_of_the_files(root: Path) -> dict[str, Any]:
    """What an index says that is made from the files alone."""
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory) / "store"
        Store.init(copy)
        shutil.copytree(
            root / "conversations", copy / "conversations", dirs_exist_ok=True, symlinks=True
        )
        with Store.open(copy, keep_locks=False) as store:
            return state(store)


class Follower:
    """Knows the conversations from the changes alone: for each the ids of its messages, its title
    and its lock.
    """

    def __init__(self, store: Store) -> None:
        self.cursor = store.changes().cursor
        self.messages: dict[str, set[str]] = {}
        self.locked: set[str] = set()
        self.damaged: set[str] = set()
        #: Conversations of which the follower knows that it must look, and what it saw there.
        self.titles: dict[str, str] = {}

    def follow(self, store: Store) -> list[Change]:
        """Take in what happened since the last time."""
        told: list[Change] = []
        while True:
            found = store.changes(self.cursor, limit=3)
            for change in found.changes:
                self._take(change, store)
            told += found.changes
            self.cursor = found.cursor
            if not found.changes:
                return told

    def _take(self, change: Change, store: Store) -> None:
        if change.kind in ("created", "restored"):
            self.messages[change.id] = set(change.messages)
            self.locked.discard(change.id)
            self.damaged.discard(change.id)
        elif change.kind in ("appended", "edited"):
            self.messages[change.id] |= set(change.messages)
            self.messages[change.id] -= set(change.removed)
        elif change.kind == "deleted":
            del self.messages[change.id]
            self.titles.pop(change.id, None)
            self.locked.discard(change.id)
            self.damaged.discard(change.id)
        elif change.kind == "locked":
            self.locked.add(change.id)
        elif change.kind == "unlocked":
            self.locked.discard(change.id)
        elif change.kind == "damaged":
            self.damaged.add(change.id)
        elif change.kind == "repaired":
            self.damaged.discard(change.id)
        if change.kind in ("created", "restored", "repaired") or "title" in change.fields:
            self.titles[change.id] = next(
                (head.title for head in store.heads() if head.id == change.id), ""
            )
