"""Read the database of `llm`: its threads, the older rows of responses, and the first logs.

A message of a thread is stored once and names the message before it, and threads share messages.
It has no time, no model and no token counts of its own. It gets those of the turn that wrote it.

A thread that continues an older conversation has its id and repeats the texts of its responses.
Messages that are equal in both keep the ids that they have in the responses.

A missing or damaged row is reported. Pure, and read-only.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from capsule.transfer.interface import Draft, Fields, Format, Source, read_items, read_rows
from capsule.transfer.records.mapping import (
    counts_of,
    json_of,
    milliseconds,
    moment,
    text_of,
    with_nonempty,
    without,
)

if TYPE_CHECKING:
    import sqlite3

_ROLES = ("user", "assistant", "system", "tool")
_TOKENS = {"inputTokens": "input_tokens", "outputTokens": "output_tokens"}
#: The fields of a payload, a turn and a response with a field of ours.
_PAYLOAD_FIELDS = (
    "arguments",
    "tool_call_id",
    "output",
    "attachment",
    "attachments",
    "text_ref",
)
_TURN_FIELDS = (
    "thread_id",
    "parent_message_hash",
    "tip_message_hash",
    "model",
    "datetime_utc",
    "duration_ms",
)
_RESPONSE_FIELDS = (
    "id",
    "model",
    "prompt",
    "system",
    "response",
    "reasoning",
    "conversation_id",
    "datetime_utc",
)
#: Every message on the path from the end of a thread, or of one of its turns, to a root.
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
    location = text_of(row.get("path") or row.get("url"))
    name = location.rpartition("/")[2] or text_of(row.get("id"))[:12]
    attachment = with_nonempty({"name": name}, type=row.get("type"))
    if isinstance(row.get("content"), bytes):
        attachment["data"] = row["content"]
    elif row.get("url"):
        attachment["url"] = location
    else:
        attachment["reference"] = location
    return attachment


class _LlmDatabase:
    """Reads one database."""

    def __init__(self, database: sqlite3.Connection, source: Source) -> None:
        self._database = database
        self._source = source
        self._tables = source.tables
        #: By the name of a table, the ids of its rows by the value of a column.
        self._ids_by_value: dict[str, dict[Any, list[Any]]] = {}

    def rows(self, sql: str, *values: object) -> Iterator[Fields]:
        """Return the rows without their NULLs. None, if the database lacks one of the tables."""
        tables = set(re.findall(r"(?:FROM|JOIN) (\w+)", sql)) - {"up"}
        if tables <= self._tables:
            yield from read_rows(self._database, sql, *values)

    def row(self, table: str, id: object) -> Fields:
        """Return the row with an id. Empty: the table has no such row."""
        return next(self.rows(f"SELECT * FROM {table} WHERE id = ?", id), {})

    def rows_with(self, table: str, column: str, value: object) -> Iterator[Fields]:
        """Return the rows of a table with a value in a column that has no index.

        A row without a value counts as one with its own id there. The column is read once.
        """
        ids = self._ids(table, column).get(value, ())
        return (self.row(table, id) for id in ids)

    def _ids(self, table: str, column: str) -> dict[Any, list[Any]]:
        """Return the ids of the rows of a table by the values of a column."""
        if table not in self._ids_by_value:
            ids: dict[Any, list[Any]] = {}
            for row in self.rows(f"SELECT id, {column} FROM {table} WHERE id NOT NULL ORDER BY id"):
                ids.setdefault(row.get(column, row["id"]), []).append(row["id"])
            self._ids_by_value[table] = ids
        return self._ids_by_value[table]

    def drafts(self) -> Iterator[Draft]:
        """Return threads and conversations in the order of their ids, then the first logs."""
        ids = set(self._ids("responses", "conversation_id"))
        ids |= {row["id"] for row in self.rows("SELECT id FROM threads WHERE id NOT NULL")}
        items = ((None, id) for id in sorted(ids, key=str))
        yield from read_items(self._source, lambda id, *_: self._draft(id), items)
        for table in sorted({"log", "logs"} & self._tables):
            chats = ((None, chat) for chat in self._first_chats(table))
            yield from read_items(self._source, self._draft_of_chat, chats)

    def _first_chats(self, table: str) -> Iterator[tuple[str, list[Fields]]]:
        """Return the chats of the first logs: the id and the rows of each."""
        chats: dict[str, list[Fields]] = {}
        for row in self.rows(f"SELECT rowid AS id, * FROM {table} ORDER BY rowid"):
            # The first row of a chat may not name it.
            chat_id = f"{table}/{row.get('chat_id', row['id'])}"
            row["id"] = f"{table}/{row['id']}"
            row["datetime_utc"] = row.get("datetime_utc", row.pop("timestamp", None))
            chats.setdefault(chat_id, []).append(row)
        yield from chats.items()

    def _draft_of_chat(self, chat: tuple[str, list[Fields]], *_: object) -> Draft:
        id, rows = chat
        return Draft({"id": id}, self._responses(rows))

    def _draft(self, id: str) -> Draft | None:
        """Return the draft of a thread, of an older conversation, or of both together."""
        thread = self.row("threads", id)
        conversation = self.row("conversations", id)
        history = self._thread(id, thread)
        responses = self._responses(self.rows_with("responses", "conversation_id", id))
        new_ids = _take_over_responses(history, responses)
        later_responses = responses[len(new_ids) :]
        if later_responses and history:
            later_responses[0]["parent"] = responses[len(new_ids) - 1]["id"] if new_ids else None
        tip = thread.get("tip_message_hash")
        unmapped = without(
            conversation | thread, "id", "name", "datetime_utc", "forked_from", "tip_message_hash"
        )
        head = with_nonempty(
            {"id": id, "title": text_of(conversation.get("name", thread.get("name")))},
            createdAt=None if responses else self._time(thread),
            metadata=with_nonempty(
                {},
                currentNode=new_ids.get(tip, tip),
                forkedFrom=thread.get("forked_from"),
                source=unmapped,
            ),
        )
        return Draft(head, history + later_responses)

    def _time(self, row: Fields) -> str | None:
        """Return the start of a thread, a turn or a response. A missing one is reported."""
        time = moment(row.get("datetime_utc"))
        if time is None and row:
            self._source.tell(f"{text_of(row.get('id'))[:60]} has no time")
        return time

    def _thread(self, id: str, thread: Fields) -> list[Fields]:
        """Return the messages of a thread."""
        message_rows = list(self.rows(_CHAIN, id, id, id))
        parents = {row["hash"]: row.get("parent_hash") for row in message_rows}
        turn_by_hash, times = self._turns_and_times(id, thread, parents)
        instructions = self._instructions(turn_by_hash.values())
        history: list[Fields] = []
        last_instructions = ""
        for row in message_rows:
            hash = row["hash"]
            entries = self._messages(row, turn_by_hash.get(hash, {}), times.get(hash))
            system = instructions.get(hash)
            if system is not None and system["content"] not in last_instructions:
                history.append(system | {"parent": entries[0]["parent"]})
                entries[0]["parent"] = system["id"]
                last_instructions = system["content"]
            if entries[0]["role"] == "system":
                last_instructions = entries[0]["content"]
            history += entries
        return history

    def _turns_and_times(
        self, id: str, thread: Fields, parents: dict[Any, Any]
    ) -> tuple[dict[Any, Fields], dict[Any, str | None]]:
        """Return the turn that each tip is of, and the time of each message, by their hashes.

        The messages that a turn wrote have its end as their time, and earlier ones its start.
        """
        turn_by_hash: dict[Any, Fields] = {}
        times: dict[Any, str | None] = {}
        for turn in self._turns(id, thread):
            tip = turn.get("tip_message_hash")
            input_hash = turn.get("parent_message_hash")
            start = self._time(turn)
            turn_by_hash.setdefault(tip, turn)
            hash = tip
            while hash in parents and hash not in times and hash != input_hash:
                times[hash] = _end(turn)
                hash = parents[hash]
            hash = input_hash
            while hash in parents and hash not in times:
                times[hash] = start
                hash = parents[hash]
        return turn_by_hash, times

    def _instructions(self, turns: Iterable[Fields]) -> dict[Any, Fields]:
        """Return the system messages for the fragments of turns, by the message that each answers.

        Only the instructions of the first turn are a message of the thread.
        """
        systems: dict[Any, Fields] = {}
        for turn in turns:
            rows = self.rows(_INSTRUCTIONS, turn.get("id"))
            texts = [text_of(row.get("content")).strip() for row in rows]
            content = "\n\n".join(filter(None, texts))
            if content:
                entry = {"id": f"{turn.get('id')}/system", "role": "system", "content": content}
                time = moment(turn.get("datetime_utc"))
                systems[turn.get("parent_message_hash")] = with_nonempty(entry, timestamp=time)
        return systems

    def _turns(self, id: str, thread: Fields) -> list[Fields]:
        """Return the turns of a thread and of the threads that it was forked from.

        The turns of the earliest thread come first. They wrote the messages that both share.
        """
        turns_by_thread: dict[str, list[Fields]] = {}
        thread_id = id
        row = thread
        while thread_id and thread_id not in turns_by_thread:
            turns_by_thread[thread_id] = list(
                self.rows("SELECT * FROM turns WHERE thread_id = ? ORDER BY id", thread_id)
            )
            thread_id = text_of(row.get("forked_from"))
            row = self.row("threads", thread_id)
        return [turn for turns in reversed(turns_by_thread.values()) for turn in turns]

    def _messages(self, row: Fields, turn: Fields, time: str | None) -> list[Fields]:
        """Return the messages of a row: several if it has results. The last one has the row's id.

        Args:
            row: The row of the message.
            turn: The turn that wrote it. Empty: it is not known.
            time: Its time.
        """
        groups: list[list[Fields]] = [[]]
        sql = "SELECT * FROM parts WHERE message_hash = ? ORDER BY position"
        for part in self.rows(sql, row["hash"]):
            if groups[-1] and "tool_result" in (part.get("type"), groups[-1][-1].get("type")):
                groups.append([])
            groups[-1].append(part)
        role = text_of(row.get("role"))
        entries = [with_nonempty(self._message(group, role), timestamp=time) for group in groups]
        for distance, entry in enumerate(reversed(entries)):
            entry["id"] = f"{row['hash']}/{distance}" if distance else row["hash"]
        entries[0]["parent"] = row.get("parent_hash")
        metadata = entries[-1].pop("metadata", {})
        source = with_nonempty(
            metadata.pop("source", {}),
            turn=without(turn, *_TURN_FIELDS, *_TOKENS.values()),
            provider_metadata=json_of(row.get("provider_metadata")),
        )
        metadata = with_nonempty(metadata, usage=counts_of(turn, _TOKENS), source=source)
        model = text_of(turn.get("model"))
        entries[-1] = with_nonempty(entries[-1], model=model, metadata=metadata)
        return entries

    def _message(self, parts: list[Fields], role: str) -> Fields:
        """Return the message of parts: the result of a tool, or texts, reasoning and calls."""
        entry: Fields = {"role": role if role in _ROLES else "assistant"}
        metadata: Fields = {}
        texts: list[str] = []
        reasoning: list[str] = []
        calls: list[Fields] = []
        attachments: list[Fields] = []
        unmapped_parts: list[Fields] = []
        for part in parts:
            kind = part.get("type")
            payload = self._payload(part)
            unmapped = without(payload, *_PAYLOAD_FIELDS)
            call_id = payload.get("tool_call_id")
            if kind == "tool_call":
                call = {
                    "name": text_of(part.get("tool_name")),
                    "arguments": payload.get("arguments", {}),
                }
                calls.append(with_nonempty(unmapped | call, id=call_id))
                unmapped = {}
            elif kind == "tool_result":
                entry = with_nonempty(entry | {"role": "tool"}, toolCallId=call_id)
                texts.append(text_of(payload.get("output")))
                metadata = with_nonempty(metadata, isError="exception" in payload)
            elif kind == "reasoning":
                reasoning.append(self._text(part, payload))
            elif kind != "attachment":
                texts.append(self._text(part, payload))
            attachments += self._attachments(payload)
            unmapped_parts.append(unmapped)
        source = {"parts": unmapped_parts} if any(unmapped_parts) else {}
        entry["content"] = "\n\n".join(texts)
        return with_nonempty(
            entry,
            reasoning="\n\n".join(filter(None, reasoning)),
            toolCalls=calls,
            attachments=attachments,
            metadata=with_nonempty(metadata, source=source),
        )

    def _payload(self, part: Fields) -> Fields:
        payload = json_of(part.get("payload", {}))
        if isinstance(payload, dict):
            return payload
        self._source.tell(f"part {part.get('id')} is not valid JSON")
        return {}

    def _attachments(self, payload: Fields) -> list[Fields]:
        """Return the attachments that a payload refers to."""
        attachments = []
        for reference in [payload.get("attachment"), *(payload.get("attachments") or [])]:
            if isinstance(reference, dict):
                row = self.row("attachments", reference.get("id"))
                attachments.append(_attachment(reference | row))
        return attachments

    def _text(self, part: Fields, payload: Fields) -> str:
        """Return the text of a part, with the fragments that it refers to."""
        texts = [text_of(part.get("text"))]
        for reference in payload.get("text_ref") or []:
            if "fragment" in reference:
                row = self.row("fragments", reference["fragment"])
            else:
                row = {"content": reference.get("literal")}
            if "content" not in row:
                self._source.tell(f"fragment {reference['fragment']} is missing")
            texts.append(text_of(row.get("content")))
        return "".join(texts)

    def _responses(self, rows: Iterable[Fields]) -> list[Fields]:
        """Return the messages for rows of responses, each a prompt with its answer."""
        entries: list[Fields] = []
        instructions = ""
        for row in rows:
            key = text_of(row["id"])
            start = self._time(row)
            system = self._with_fragments(row, "system")
            if system not in ("", instructions):
                entries.append(
                    {
                        "id": f"{key}/system",
                        "role": "system",
                        "content": system,
                        "timestamp": start,
                    }
                )
                instructions = system
            entries += self._results(key, start)
            prompt = self._with_fragments(row, "prompt")
            attachments = self._files("prompt_attachments", "response_id", key)
            is_after_result = bool(entries) and entries[-1]["role"] == "tool"
            if prompt or attachments or not is_after_result:
                entry = {
                    "id": f"{key}/prompt",
                    "role": "user",
                    "content": prompt,
                    "timestamp": start,
                }
                entries.append(with_nonempty(entry, attachments=attachments))
            entries.append(self._answer(row, key))
        return entries

    def _results(self, key: str, time: str | None) -> Iterator[Fields]:
        """Return the messages for the results that a response was given."""
        for result in self.rows_with("tool_results", "response_id", key):
            unmapped = without(result, "id", "response_id", "output", "tool_call_id")
            is_error = "exception" in result
            entry = {
                "id": f"{key}/result/{result['id']}",
                "role": "tool",
                "timestamp": time,
                "content": text_of(result.get("output")),
            }
            yield with_nonempty(
                entry,
                toolCallId=result.get("tool_call_id"),
                attachments=self._files("tool_results_attachments", "tool_result_id", result["id"]),
                metadata=with_nonempty({}, isError=is_error, source=unmapped),
            )

    def _answer(self, row: Fields, key: str) -> Fields:
        calls = []
        for call in self.rows_with("tool_calls", "response_id", key):
            fields = {"name": text_of(call.get("name"))}
            fields = with_nonempty(fields, id=call.get("tool_call_id"))
            calls.append(fields | {"arguments": json_of(call.get("arguments", {}))})
        entry = {
            "id": key,
            "role": "assistant",
            "content": text_of(row.get("response")),
            "timestamp": _end(row),
        }
        unmapped = without(row, *_RESPONSE_FIELDS, *_TOKENS.values())
        return with_nonempty(
            entry,
            model=text_of(row.get("model")),
            reasoning=text_of(row.get("reasoning")),
            toolCalls=calls,
            metadata=with_nonempty({}, usage=counts_of(row, _TOKENS), source=unmapped),
        )

    def _with_fragments(self, row: Fields, name: str) -> str:
        """Return a text of a row (`prompt` or `system`), after its fragments."""
        fragments = self.rows(_FRAGMENTS.format(name), row["id"])
        texts = [text_of(fragment.get("content")) for fragment in fragments]
        return "\n".join(filter(None, [*texts, text_of(row.get(name))]))

    def _files(self, table: str, column: str, id: object) -> list[Fields]:
        return [_attachment(row) for row in self.rows(_FILES.format(table, column), id)]


def _take_over_responses(history: list[Fields], responses: list[Fields]) -> dict[Any, str]:
    """Give the messages at the beginning of a thread the ids and fields of equal responses.

    Return the new ids by the old ones.
    """
    new_ids: dict[Any, str] = {}
    for entry, response in zip(history, responses, strict=False):
        if any(entry.get(name) != response.get(name) for name in ("role", "content")):
            break
        metadata = entry.get("metadata", {}) | response.get("metadata", {})
        new_ids[entry["id"]] = response["id"]
        entry |= with_nonempty(dict(response), metadata=metadata)
    for entry in history:
        if entry.get("parent") in new_ids:
            entry["parent"] = new_ids[entry["parent"]]
    return new_ids


def _end(row: Fields) -> str | None:
    """Return the time at which the answer of a turn or a response was complete."""
    start_ms = milliseconds(moment(row.get("datetime_utc")))
    if start_ms is None:
        return None
    duration_ms = row.get("duration_ms")
    return moment(start_ms + (duration_ms if isinstance(duration_ms, int) else 0))


def _recognizes(source: Source) -> bool:
    schemas = (
        {"threads", "turns", "messages", "parts"},
        {"conversations", "responses"},
        {"_llm_migrations", "logs"},
        {"_llm_migrations", "log"},
    )
    return any(source.tables >= schema for schema in schemas)


def _read(source: Source) -> Iterator[Draft]:
    with source.database() as database:
        yield from _LlmDatabase(database, source).drafts()


_PLACES = (
    "~/.config/io.datasette.llm/logs.db",
    "~/Library/Application Support/io.datasette.llm/logs.db",
)
FORMATS = [
    Format("llm", "llm (logs.db)", recognizes=_recognizes, read=_read, places=_PLACES),
]
