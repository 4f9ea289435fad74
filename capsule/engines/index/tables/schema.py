"""Create the tables of the index.

What must stay true: every change of this file, or of the values written into the tables, gets a new
`VERSION`. An index of another version is built again, never altered. Nothing in the index is the
only copy of anything.
"""

from __future__ import annotations

import sqlite3

#: Increased with every change of the tables, or of the values written into them.
VERSION = 16

_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value) WITHOUT ROWID;

-- A row for every conversation, also for a deleted one, as it can be restored. Valid: gone = 0 AND damaged = ''.
CREATE TABLE capsules(
    num INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    version TEXT, size INTEGER, written INTEGER, changed_ns INTEGER,  -- the fields of `IndexedVersion`
    racy INTEGER NOT NULL DEFAULT 0,      -- the file may have changed with the same version: it is read again
    tag TEXT NOT NULL DEFAULT '',         -- of the state header, if that belongs to this version
    head TEXT,                            -- the fields of `Head`, as a JSON array
    title TEXT NOT NULL DEFAULT '', created_at TEXT, updated_at TEXT,
    updated_ms INTEGER NOT NULL DEFAULT 0,
    mode TEXT,
    source TEXT NOT NULL DEFAULT '',      -- the program that it was imported from
    tags TEXT NOT NULL DEFAULT '[]',      -- a JSON array
    archived INTEGER,
    lock TEXT,                            -- a JSON object, if it is active
    current TEXT,                         -- metadata.currentNode
    forked TEXT,                          -- metadata.forkedFrom
    rest INTEGER, context INTEGER,        -- checksums of the other fields of the head, and of the context
    damaged TEXT NOT NULL DEFAULT '',     -- the damage; the messages are then those of the last valid version
    digest INTEGER,                       -- checksum of the bytes from `history` to `tail`
    history INTEGER, tail INTEGER,        -- offsets of the canonical layout; NULL in another one
    entries INTEGER NOT NULL DEFAULT 0,
    words INTEGER NOT NULL DEFAULT 0,
    tokens INTEGER NOT NULL DEFAULT 0,
    linear INTEGER NOT NULL DEFAULT 1,    -- no message names a parent, and there is no currentNode
    gone INTEGER NOT NULL DEFAULT 0
);

-- The current members of conversations that are not deleted.
CREATE TABLE members(agent TEXT NOT NULL, capsule INTEGER NOT NULL, PRIMARY KEY(agent, capsule)) WITHOUT ROWID;

CREATE TABLE messages(
    num INTEGER PRIMARY KEY,
    capsule INTEGER NOT NULL,
    at INTEGER NOT NULL,                  -- position in the history, from 0
    id TEXT NOT NULL,                     -- for a message without an id: the id that the next write gives it
    front INTEGER NOT NULL,               -- digest of all ids up to this one, in their order
    parent TEXT,                          -- as the file has it; NULL: the entry before; '': a root
    role TEXT NOT NULL,
    sender TEXT,                          -- the field `from`
    time_ms INTEGER NOT NULL,
    words INTEGER NOT NULL,
    tokens INTEGER NOT NULL,              -- of the content, and of `tools`; estimated
    active INTEGER NOT NULL,              -- whether it is on the active branch
    content TEXT NOT NULL,
    tools TEXT,                           -- tool calls and reasoning, as text
    digest INTEGER NOT NULL               -- checksum and length of its bytes
);

-- The values that filters compare (see `filters.py`); most messages have none.
CREATE TABLE facts(
    message INTEGER NOT NULL,             -- its num
    path TEXT NOT NULL,                   -- a field, or a key in `metadata`; below it: "release.name"
    type INTEGER NOT NULL,
    value NOT NULL,                       -- an integer, a real or a text
    PRIMARY KEY(message, path, type, value)
) WITHOUT ROWID;

CREATE TABLE changes(
    seq INTEGER PRIMARY KEY AUTOINCREMENT,
    at_ms INTEGER NOT NULL,
    since_ms INTEGER NOT NULL,            -- it happened after this time
    id TEXT NOT NULL,
    kind TEXT NOT NULL,
    told TEXT NOT NULL                    -- the further fields of `Change`, as JSON
);
"""
_INDEXES = (
    "CREATE INDEX forks ON capsules(forked) WHERE forked IS NOT NULL",
    "CREATE INDEX members_in ON members(capsule)",
    # Has all columns that counting unread messages needs.
    "CREATE INDEX messages_in_order ON messages(capsule, at, sender, time_ms)",
    # Has all columns that a search compares, without the texts, which make rows lie far apart.
    (
        "CREATE INDEX messages_narrow ON messages(num, time_ms, active, capsule, role, sender, words, "
        "tokens)"
    ),
    "CREATE INDEX facts_by_value ON facts(path, type, value, message)",
)


def create(db: sqlite3.Connection) -> None:
    """Create the tables in an empty database. Call `finish` when they are filled."""
    # Imported here, as a list mostly writes nothing.
    from capsule.engines.index.search import words

    db.executescript(_TABLES)
    words.create(db)
    db.execute(f"PRAGMA user_version = {VERSION}")


def finish(db: sqlite3.Connection) -> None:
    """Create the indexes. This is quicker when the tables are filled."""
    for statement in _INDEXES:
        db.execute(statement)
