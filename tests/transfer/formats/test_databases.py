"""What is special of the formats that are databases: llm, OpenCode and Cursor."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import orjson
import pytest

from tests.transfer.exchange import DATA, content, read, read_data

THREAD = """
CREATE TABLE threads (id TEXT, name TEXT, tip_message_hash TEXT, forked_from TEXT, datetime_utc TEXT);
CREATE TABLE turns (id TEXT, thread_id TEXT, parent_message_hash TEXT, tip_message_hash TEXT, model TEXT,
  duration_ms INTEGER, datetime_utc TEXT);
CREATE TABLE messages (hash TEXT PRIMARY KEY, parent_hash TEXT, role TEXT, provider_metadata TEXT);
CREATE TABLE parts (id INTEGER, message_hash TEXT, position INTEGER, type TEXT, text TEXT, payload TEXT);
INSERT INTO threads VALUES ('01jb0000000000000000000001', 'Thanks', 'b2:7', NULL, '2024-11-03 10:00:00');
INSERT INTO turns VALUES ('01jb9', '01jb0000000000000000000001', 'b2:6', 'b2:7', 'gpt-5', 9, '2024-11-03T10:00:00');
"""
SAID = [
    ("system", "Use tools."),
    ("user", "Numbers are exact.\n123 * 321?"),
    ("assistant", ""),
    ("tool", "39483"),
    ("assistant", "39483"),
    ("user", "Thanks"),
    ("assistant", "You are welcome"),
]


def origins(document: dict[str, Any]) -> list[str]:
    return [entry["metadata"]["imported"]["id"] for entry in document["history"]]


def database(script: str) -> bytes:
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(script)
        return made.serialize()


def test_a_thread_that_goes_on_where_responses_ended_doubles_no_message() -> None:
    before, _ = read(DATA / "llm/responses.sql")
    script = (DATA / "llm/responses.sql").read_text("utf-8") + THREAD
    for place, (role, text) in enumerate(SAID, 1):
        parent = f"'b2:{place - 1}'" if place > 1 else "NULL"
        script += f"INSERT INTO messages VALUES ('b2:{place}', {parent}, '{role}', NULL);"
        kind, column = (
            ("tool_result", f'NULL, \'{{"output": "{text}"}}\'')
            if role == "tool"
            else ("text", f"'{text}', NULL")
        )
        script += f"INSERT INTO parts VALUES ({place}, 'b2:{place}', 0, '{kind}', {column});"

    after, problems = read_data(database(script))

    assert not problems.first
    assert [after[0][name] for name in ("id", "title", "createdAt")] == [
        before[0][name] for name in ("id", "title", "createdAt")
    ]
    assert after[0]["history"][: len(before[0]["history"])] == before[0]["history"]
    assert origins(after[0]) == [*origins(before[0]), "b2:6", "b2:7"]
    assert [entry.get("parent") for entry in after[0]["history"]] == [None] * 7


def test_the_instructions_that_a_later_turn_was_given_as_fragments_stand_before_what_it_answers() -> (
    None
):
    script = (DATA / "llm/threads.sql").read_text("utf-8")
    turn = (
        "INSERT INTO turn_fragments SELECT id, {}, 0, 'system' FROM turns ORDER BY id LIMIT 1 "
        "OFFSET {};"
    )
    fragments = (
        "INSERT INTO fragments (id, content) VALUES (8, 'Be short. '), (9, 'Answer in French.');"
    )

    (thread, _), problems = read_data(
        database(script + fragments + turn.format(8, 0) + turn.format(9, 2))
    )

    assert not problems.first
    systems = [n for n, entry in enumerate(thread["history"]) if entry["role"] == "system"]
    assert [thread["history"][n]["content"] for n in systems] == ["Be short.", "Answer in French."]
    assert [entry["role"] for entry in thread["history"][systems[1] :]] == [
        "system",
        "user",
        "assistant",
    ]


def test_the_first_logs_of_llm_are_chats() -> None:
    documents, _ = read(DATA / "llm/logs.sql")

    assert [[entry["content"] for entry in one["history"]] for one in documents] == [
        ["Be short.", "Two names for a pelican", "Percy, Penelope", "One more", "Pablo"],
        ["Another chat", "Yes"],
    ]


def test_a_row_without_an_id_takes_no_thread_away() -> None:
    script = (DATA / "llm/threads.sql").read_text("utf-8")
    whole, _ = read_data(database(script))
    table = "UPDATE threads SET id = NULL WHERE forked_from NOT NULL"
    rest, _ = read_data(database(f"{script}; {table}"))

    assert rest == whole[:1]


def test_a_forked_thread_names_its_origin_and_has_the_times_of_what_both_share() -> None:
    (thread, fork), _ = read(DATA / "llm/threads.sql")

    assert fork["metadata"]["forkedFrom"] == thread["id"]
    shared = [entry.get("timestamp") for entry in fork["history"][:5]]
    assert shared == [entry["timestamp"] for entry in thread["history"][:5]]


def test_the_folder_the_database_and_the_export_of_opencode_give_the_same_messages() -> None:
    shapes = [
        read(DATA / "opencode" / name)[0] for name in ("files", "database.sql", "exported.json")
    ]

    first, *others = [
        next(one for one in shape if one["title"] == "Fix the menu") for shape in shapes
    ]
    for other in others:
        assert other["id"] == first["id"]
        assert [rest(entry) for entry in other["history"]] == [
            rest(entry) for entry in first["history"]
        ]
    child = next(one for one in shapes[0] if one["title"].startswith("Find the menu"))
    assert child["metadata"]["sourceConversationId"] == first["id"]


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_files_of_opencode_may_stand_on_one_line(tmp_path: Path, end: bytes) -> None:
    for file in (DATA / "opencode/files").rglob("*.json"):
        copy = tmp_path / file.relative_to(DATA / "opencode/files")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(orjson.dumps(orjson.loads(file.read_bytes())) + end)

    assert read(tmp_path)[0] == read(DATA / "opencode/files")[0]


def test_the_later_database_of_opencode_has_its_messages_in_the_order_of_their_numbers() -> None:
    script = (DATA / "opencode/database.sql").read_text(
        "utf-8"
    ) + "; DROP TABLE message; DROP TABLE part;"
    script += "ALTER TABLE session_message ADD COLUMN seq; UPDATE session_message SET seq = -rowid"
    documents, problems = read_data(database(script))

    assert not problems.first
    assert [documents[0]["history"][n]["content"] for n in (0, -1)] == ["Said hi.", "Say hi"]


def test_the_database_of_open_webui_gives_the_messages_of_its_export() -> None:
    exported, _ = read(DATA / "open-webui/branches.json")
    columns = ("id", "title", "created_at", "updated_at", "archived", "pinned", "chat", "meta")
    with closing(sqlite3.connect(":memory:")) as made:
        made.executescript(
            "CREATE TABLE auth (id); CREATE TABLE user (id); CREATE TABLE chat "
            f"({', '.join(columns)})"
        )
        for row in orjson.loads((DATA / "open-webui/branches.json").read_bytes()):
            values = (row.get(name) for name in columns)
            texts = [
                orjson.dumps(value).decode() if isinstance(value, dict) else value
                for value in values
            ]
            made.execute(f"INSERT INTO chat VALUES ({', '.join('?' * len(columns))})", texts)
        made.commit()
        stored, problems = read_data(made.serialize())

    assert not problems.first
    assert [one["history"] for one in stored] == [one["history"] for one in exported]
    assert stored[0]["metadata"]["archived"] is exported[0]["metadata"]["archived"]


def rest(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in entry.items() if name != "metadata"}


def test_what_was_undone_in_opencode_is_there_and_not_active() -> None:
    documents, _ = read(DATA / "opencode/database.sql")
    later = next(one for one in documents if one["title"] == "A later session")

    current = next(
        n
        for n, entry in enumerate(later["history"])
        if entry["id"] == later["metadata"]["currentNode"]
    )
    assert [entry["content"] for entry in later["history"][current + 1 :]] == ["Said hi."]


def test_a_bubble_that_a_checkpoint_cut_off_is_a_branch() -> None:
    documents, _ = read(DATA / "cursor/global.sql")
    history = documents[0]["history"]

    cut = next(entry for entry in history if "cut off" in entry["content"])
    assert cut["parent"] == next(
        entry["id"] for entry in history if entry["content"] == "It compares 1 with 2."
    )
    assert documents[0]["metadata"]["currentNode"] == history[history.index(cut) - 1]["id"]


def test_a_workspace_of_cursor_has_chats_and_old_composers_and_one_of_vs_code_has_none() -> None:
    script = (DATA / "cursor/workspace.sql").read_text("utf-8")
    documents, problems = read_data(database(script))
    others, _ = read_data(
        database(script.replace("composer.", "memento.").replace("aichat", "chat"))
    )

    assert not problems.first
    assert [(one["title"], len(one["history"])) for one in documents] == [
        ("Old chat", 2),
        ("Before 2025", 2),
    ]
    assert not others


def test_cursor_is_read_while_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "state.vscdb"
    path.write_bytes(content(DATA / "cursor/global.sql"))
    with closing(sqlite3.connect(path)) as cursor:
        cursor.execute("PRAGMA journal_mode = WAL")
        cursor.execute(
            "UPDATE cursorDiskKV SET value = replace(value, 'Why does', 'Why did') WHERE key LIKE "
            "'%:b1'"
        )
        cursor.commit()
        cursor.execute("DELETE FROM cursorDiskKV")

        documents, problems = read(path)

        assert not problems.first
        assert documents[0]["history"][0]["content"] == "Why did the test fail?"
        cursor.rollback()
        assert cursor.execute("SELECT count(*) FROM cursorDiskKV").fetchone()[0] > 5


ENDLESS = (
    "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x AS id, 'c' AS "
    "conversation_id FROM n"
)


@pytest.mark.parametrize(
    ("responses", "reason"),
    [
        (f"CREATE VIEW responses AS {ENDLESS}", "responses is a view"),
        (
            "CREATE VIRTUAL TABLE responses USING fts5(id, conversation_id)",
            "responses is a virtual table",
        ),
        (
            "CREATE TABLE responses (id, conversation_id AS (hex(zeroblob(900))))",
            "responses is a table with generated",
        ),
        (f"CREATE TABLE responses AS {ENDLESS} LIMIT 20000", "steps"),
    ],
)
def test_only_tables_are_read_of_a_database_and_not_without_end(
    responses: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("capsule.transfer.reading.files._MIN_STEPS", 100_000)
    monkeypatch.setattr("capsule.transfer.reading.files._STEPS_PER_BYTE", 0)

    documents, problems = read_data(database(f"CREATE TABLE conversations (id); {responses}"))

    assert not documents
    assert [(problem.path, reason in problem.reason) for problem in problems.first] == [("x", True)]
