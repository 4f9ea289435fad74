"""The database of `llm`: threads of messages that are stored once, the older rows of responses, and
the first logs.

A message of a thread is a link of a chain that threads share, so it has no time, no model and no
tokens: it has those of the turn that wrote it. A thread that goes on where responses ended has
their id and repeats what they said; what is the same keeps the ids that it has there. Pure, and
read-only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from capsule.transfer.interface import Draft, Fields, Format, Source, read_each, read_rows
from capsule.transfer.records.coercion import (
    counts_of,
    filled,
    json_of,
    milliseconds,
    moment,
    rest,
    text_of,
)

if TYPE_CHECKING:
    import sqlite3

_ROLES = ("user", "assistant", "system", "tool")
_TOKENS = {"inputTokens": "input_tokens", "outputTokens": "output_tokens"}
_PAYLOAD = ("arguments", "tool_call_id", "output", "attachment", "attachments", "text_ref")
_OF_A_TURN = (
    "thread_id",
    "parent_message_hash",
    "tip_message_hash",
    "model",
    "datetime_utc",
    "duration_ms",
)
_OF_A_RESPONSE = (
    "id",
    "model",
    "prompt",
    "system",
    "response",
    "reasoning",
    "conversation_id",
    "datetime_utc",
)
#: Every message on the way from the ends of a thread, and of its turns, to a root.
_CHAIN = """
WITH RECURSIVE up(hash) AS (
  SELECT tip_message_hash FROM threads WHERE id = ?
  UNION SELECT tip_message_hash FROM turns WHERE thread_id = ?
  UNION SELECT parent_message_hash FROM turns WHERE thread_id = ?
  UNION SELECT messages.parent_hash FROM messages JOIN up ON messages.hash = up.hash
) SELECT messages.* FROM messages JOIN up ON messages.hash = up.hash ORDER BY messages.rowid
"""
_FRAGMENTS = """SELECT content FROM {}_fragments JOIN fragments ON fragments.id = fragment_id WHERE response_id = ?
ORDER BY "order" """
_INSTRUCTIONS = """SELECT content FROM turn_fragments JOIN fragments ON fragments.id = fragment_id
WHERE turn_id = ? AND kind = 'system' ORDER BY "order" """
_FILES = """SELECT attachments.* FROM {} JOIN attachments ON attachments.id = attachment_id WHERE {} = ?
ORDER BY "order" """


def _attachment(row: Fields) -> Fields:
    where = text_of(row.get("path") or row.get("url"))
    made = filled(
        {"name": where.rpartition("/")[2] or text_of(row.get("id"))[:12]}, type=row.get("type")
    )
    if isinstance(row.get("content"), bytes):
        return made | {"data": row["content"]}
    return made | {"url" if row.get("url") else "reference": where}


class _LlmDatabase:
    """Reads one database."""

    def __init__(self, database: sqlite3.Connection, source: Source) -> None:
        self.database, self.source, self.tables = database, source, source.tables
        self.known: dict[str, dict[Any, list[Any]]] = {}

    def rows(self, sql: str, *values: object) -> Iterator[Fields]:
        """The rows without their NULLs; none if the database is too old to have one of
        the tables.
        """
        if set(re.findall(r"(?:FROM|JOIN) (\w+)", sql)) - {"up"} <= self.tables:
            yield from read_rows(self.database, sql, *values)

    def row(self, table: str, id: object) -> Fields:
        """The row of an id; empty: there is none."""
        return next(self.rows(f"SELECT * FROM {table} WHERE id = ?", id), {})

    def of(self, table: str, column: str, id: object) -> Iterator[Fields]:
        """The rows of a table that name this in a column without an index, which is read once."""
        if table not in self.known:
            ids = self.known.setdefault(table, {})
            for row in self.rows(f"SELECT id, {column} FROM {table} WHERE id NOT NULL ORDER BY id"):
                ids.setdefault(row.get(column, row["id"]), []).append(row["id"])
        return (self.row(table, own) for own in self.known[table].get(id, ()))

    def drafts(self) -> Iterator[Draft]:
        self.of("responses", "conversation_id", None)
        ids = {row["id"] for row in self.rows("SELECT id FROM threads WHERE id NOT NULL")} | {
            *self.known["responses"]
        }
        yield from read_each(
            self.source, lambda id, *_: self.draft(id), ((None, id) for id in sorted(ids, key=str))
        )
        for table in sorted({"log", "logs"} & self.tables):
            chats: dict[str, list[Fields]] = {}
            for row in self.rows(f"SELECT rowid AS id, * FROM {table} ORDER BY rowid"):
                # The first row of a chat may not name it.
                id, chat = (
                    f"{table}/{number}" for number in (row["id"], row.get("chat_id", row["id"]))
                )
                row |= {
                    "id": id,
                    "datetime_utc": row.get("datetime_utc", row.pop("timestamp", None)),
                }
                chats.setdefault(chat, []).append(row)
            items = ((None, item) for item in chats.items())
            yield from read_each(
                self.source, lambda item, *_: Draft({"id": item[0]}, self.responses(item[1])), items
            )

    def draft(self, id: str) -> Draft | None:
        thread, old = self.row("threads", id), self.row("conversations", id)
        rows = self.of("responses", "conversation_id", id)
        history, said, names = self.thread(id, thread), self.responses(rows), dict[Any, str]()
        for entry, before in zip(history, said, strict=False):
            if any(entry.get(name) != before.get(name) for name in ("role", "content")):
                break
            about = entry.get("metadata", {}) | before.get("metadata", {})
            names[entry["id"]] = before["id"]
            entry |= filled(dict(before), metadata=about)
        for entry in history:
            if entry.get("parent") in names:
                entry["parent"] = names[entry["parent"]]
        others = said[len(names) :]
        if others and history:
            others[0]["parent"] = said[len(names) - 1]["id"] if names else None
        tip = thread.get("tip_message_hash")
        left = rest(old | thread, "id", "name", "datetime_utc", "forked_from", "tip_message_hash")
        metadata = filled(
            {}, currentNode=names.get(tip, tip), forkedFrom=thread.get("forked_from"), source=left
        )
        title, began = (
            text_of(old.get("name", thread.get("name"))),
            None if said else self.time(thread),
        )
        return Draft(
            filled({"id": id, "title": title}, createdAt=began, metadata=metadata), history + others
        )

    def time(self, row: Fields) -> str | None:
        """When a thread, a turn or a response began."""
        time = moment(row.get("datetime_utc"))
        if time is None and row:
            self.source.tell(f"{text_of(row.get('id'))[:60]} has no time")
        return time

    def thread(self, id: str, thread: Fields) -> list[Fields]:
        """The messages of a thread."""
        messages = list(self.rows(_CHAIN, id, id, id))
        parents = {row["hash"]: row.get("parent_hash") for row in messages}
        times: dict[Any, str | None] = {}
        wrote: dict[Any, Fields] = {}
        for turn in self.turns(id, thread):
            tip, given, began = (
                turn.get("tip_message_hash"),
                turn.get("parent_message_hash"),
                self.time(turn),
            )
            wrote.setdefault(tip, turn)
            while tip in parents and tip not in times and tip != given:
                times[tip], tip = _end(turn), parents[tip]
            while given in parents and given not in times:
                times[given], given = began, parents[given]
        systems, history, heard = self.systems(wrote.values()), list[Fields](), ""
        for row in messages:
            entries = self.message(row, wrote.get(row["hash"], {}), times.get(row["hash"]))
            system = systems.get(row["hash"])
            if system is not None and system["content"] not in heard:
                history.append(system | {"parent": entries[0]["parent"]})
                entries[0]["parent"], heard = system["id"], system["content"]
            heard = entries[0]["content"] if entries[0]["role"] == "system" else heard
            history += entries
        return history

    def systems(self, turns: Iterable[Fields]) -> dict[Any, Fields]:
        """The instructions that turns were given as fragments, by the message that each answers.

        Only those of the first turn are in a message of the thread.
        """
        systems: dict[Any, Fields] = {}
        for turn in turns:
            texts = [
                text_of(row.get("content")).strip()
                for row in self.rows(_INSTRUCTIONS, turn.get("id"))
            ]
            entry = {
                "id": f"{turn.get('id')}/system",
                "role": "system",
                "content": "\n\n".join(filter(None, texts)),
            }
            if entry["content"]:
                systems[turn.get("parent_message_hash")] = filled(
                    entry, timestamp=moment(turn.get("datetime_utc"))
                )
        return systems

    def turns(self, id: str, thread: Fields) -> list[Fields]:
        """The turns of a thread and of the threads that it was forked from, which wrote the
        messages they share.
        """
        by_thread: dict[str, list[Fields]] = {}
        while id and id not in by_thread:
            by_thread[id] = list(
                self.rows("SELECT * FROM turns WHERE thread_id = ? ORDER BY id", id)
            )
            id = text_of(thread.get("forked_from"))
            thread = self.row("threads", id)
        return [turn for turns in reversed(by_thread.values()) for turn in turns]

    def message(self, row: Fields, turn: Fields, time: str | None) -> list[Fields]:
        """The messages of a row: several if it has results of tools, and the last of them has its
        id.
        """
        groups: list[list[Fields]] = [[]]
        for part in self.rows(
            "SELECT * FROM parts WHERE message_hash = ? ORDER BY position", row["hash"]
        ):
            if groups[-1] and "tool_result" in (part.get("type"), groups[-1][-1].get("type")):
                groups.append([])
            groups[-1].append(part)
        entries = [
            filled(self.said(group, text_of(row.get("role"))), timestamp=time) for group in groups
        ]
        for place, entry in enumerate(entries, 1 - len(entries)):
            entry["id"] = row["hash"] if place == 0 else f"{row['hash']}/{-place}"
        entries[0]["parent"] = row.get("parent_hash")
        about = entries[-1].pop("metadata", {})
        left = rest(turn, *_OF_A_TURN, *_TOKENS.values())
        left = filled(
            about.pop("source", {}),
            turn=left,
            provider_metadata=json_of(row.get("provider_metadata")),
        )
        about = filled(about, usage=counts_of(turn, _TOKENS), source=left)
        entries[-1] = filled(entries[-1], model=text_of(turn.get("model")), metadata=about)
        return entries

    def said(self, parts: list[Fields], role: str) -> Fields:
        """What parts of a message say: the result of a tool, or texts, reasoning, calls and
        attachments.
        """
        texts, thoughts, calls, files, rests = (
            list[str](),
            list[str](),
            list[Fields](),
            list[Fields](),
            list[Fields](),
        )
        entry: Fields = {"role": role if role in _ROLES else "assistant"}
        about: Fields = {}
        for part in parts:
            kind, payload = part.get("type"), json_of(part.get("payload", {}))
            if not isinstance(payload, dict):
                self.source.tell(f"part {part.get('id')} is not valid JSON")
                payload = {}
            left = rest(payload, *_PAYLOAD)
            if kind == "tool_call":
                call = {
                    "name": text_of(part.get("tool_name")),
                    "arguments": payload.get("arguments", {}),
                }
                calls.append(filled(left | call, id=payload.get("tool_call_id")))
                left = {}
            elif kind == "tool_result":
                entry = filled(entry | {"role": "tool"}, toolCallId=payload.get("tool_call_id"))
                texts.append(text_of(payload.get("output")))
                about = filled(about, isError="exception" in payload)
            elif kind != "attachment":
                (thoughts if kind == "reasoning" else texts).append(self.text(part, payload))
            for reference in [payload.get("attachment"), *(payload.get("attachments") or [])]:
                if isinstance(reference, dict):
                    files.append(
                        _attachment(reference | self.row("attachments", reference.get("id")))
                    )
            rests.append(left)
        about = filled(about, source={"parts": rests} if any(rests) else {})
        entry["content"], reasoning = "\n\n".join(texts), "\n\n".join(filter(None, thoughts))
        return filled(
            entry, reasoning=reasoning, toolCalls=calls, attachments=files, metadata=about
        )

    def text(self, part: Fields, payload: Fields) -> str:
        """The text of a part, with the fragments that it refers to."""
        pieces = [text_of(part.get("text"))]
        for piece in payload.get("text_ref") or []:
            row = (
                self.row("fragments", piece["fragment"])
                if "fragment" in piece
                else {"content": piece.get("literal")}
            )
            if "content" not in row:
                self.source.tell(f"fragment {piece['fragment']} is not there")
            pieces.append(text_of(row.get("content")))
        return "".join(pieces)

    def responses(self, rows: Iterable[Fields]) -> list[Fields]:
        """The messages of the older stores."""
        entries: list[Fields] = []
        system = ""
        for row in rows:
            key, began = text_of(row["id"]), self.time(row)
            if (said := self._with_fragments(row, "system")) not in ("", system):
                entries.append(
                    {"id": f"{key}/system", "role": "system", "content": said, "timestamp": began}
                )
                system = said
            for result in self.of("tool_results", "response_id", key):
                left = rest(result, "id", "response_id", "output", "tool_call_id")
                about = filled({}, isError="exception" in result, source=left)
                files = self._files("tool_results_attachments", "tool_result_id", result["id"])
                answer = {"id": f"{key}/result/{result['id']}", "role": "tool", "timestamp": began}
                answer |= {"content": text_of(result.get("output"))}
                entries.append(
                    filled(
                        answer,
                        toolCallId=result.get("tool_call_id"),
                        attachments=files,
                        metadata=about,
                    )
                )
            asked, files = (
                self._with_fragments(row, "prompt"),
                self._files("prompt_attachments", "response_id", key),
            )
            if asked or files or not entries or entries[-1]["role"] != "tool":
                prompt = {
                    "id": f"{key}/prompt",
                    "role": "user",
                    "content": asked,
                    "timestamp": began,
                }
                entries.append(filled(prompt, attachments=files))
            calls = [
                filled({"name": text_of(call.get("name"))}, id=call.get("tool_call_id"))
                | {"arguments": json_of(call.get("arguments", {}))}
                for call in self.of("tool_calls", "response_id", key)
            ]
            about = filled(
                {},
                usage=counts_of(row, _TOKENS),
                source=rest(row, *_OF_A_RESPONSE, *_TOKENS.values()),
            )
            answer = {
                "id": key,
                "role": "assistant",
                "content": text_of(row.get("response")),
                "timestamp": _end(row),
            }
            model, reasoning = text_of(row.get("model")), text_of(row.get("reasoning"))
            entries.append(
                filled(answer, model=model, reasoning=reasoning, toolCalls=calls, metadata=about)
            )
        return entries

    def _with_fragments(self, row: Fields, name: str) -> str:
        texts = [
            text_of(part.get("content")) for part in self.rows(_FRAGMENTS.format(name), row["id"])
        ]
        return "\n".join(filter(None, [*texts, text_of(row.get(name))]))

    def _files(self, table: str, column: str, id: object) -> list[Fields]:
        return [_attachment(row) for row in self.rows(_FILES.format(table, column), id)]


def _end(row: Fields) -> str | None:
    """When the answer of a turn or a response was complete."""
    began, took = milliseconds(moment(row.get("datetime_utc"))), row.get("duration_ms")
    return None if began is None else moment(began + (took if isinstance(took, int) else 0))


def _recognizes(source: Source) -> bool:
    schemas = (
        "threads turns messages parts",
        "conversations responses",
        "_llm_migrations logs",
        "_llm_migrations log",
    )
    return any(source.tables.issuperset(schema.split()) for schema in schemas)


def _read(source: Source) -> Iterator[Draft]:
    with source.database() as database:
        yield from _LlmDatabase(database, source).drafts()


_PLACES = (
    "~/.config/io.datasette.llm/logs.db",
    "~/Library/Application Support/io.datasette.llm/logs.db",
)
FORMATS = [Format("llm", "llm (logs.db)", _recognizes, _read, places=_PLACES)]
