"""Read and write the sessions of Claude Code: a file of JSON lines for each session and subagent.

A record is a line of the file. `claude_records` turns the records of one message into a message and
back. Records without a message (snapshots, durations) are kept with the message that follows them,
in `metadata.source.before`. Records of progress are dropped. A subagent is a conversation of its
own, with the id `{session}:{agent}`. A damaged record is reported and left out.

What must stay true: the results of one answer form a chain, each the answer to the one before it,
and the next message answers the last of them. Each call in a written file has a result. Only the
given source is read: the file, and the files near it with titles of subagents and with large
results.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from capsule.transfer.formats.agents.claude_records import (
    SEPARATE_FIELDS,
    ClaudeMessage,
    records_of,
)
from capsule.transfer.interface import (
    Draft,
    Format,
    Source,
    first_records,
    read_records,
    read_text,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    Fields,
    apply_difference,
    difference,
    encode_records,
    json_of,
    objects_of,
    uuid_of,
    with_acceptable_calls,
    with_source,
    without,
    without_source,
)

#: The fields that all records of a session share.
_COMMON_FIELDS = (
    "isSidechain",
    "userType",
    "entrypoint",
    "cwd",
    "sessionId",
    "version",
    "gitBranch",
    "slug",
    "agentId",
)
#: Their values in a session that Claude Code did not write.
_DEFAULT_COMMON = {
    "isSidechain": False,
    "userType": "external",
    "cwd": "/",
    "version": "2.1.0",
    "gitBranch": "",
}
#: The fields that a block of each type has at least.
_BLOCK_FIELDS: dict[str, set[str]] = {
    "text": {"text"},
    "thinking": {"thinking"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id"},
}
#: The result that a call without a result gets.
_NO_RESULT = "not recorded"
#: A longer name of the folder of a project, in UTF-16 units, ends with a hash.
_MAX_FOLDER_NAME = 200
#: The fields of records without a message that have a title, the best one last.
_TITLE_FIELDS = ("summary", "aiTitle", "customTitle")
#: The beginning of a result that was too large, with the name of the file that has it.
_MOVED_RESULT = r"(?s)<persisted-output>.{,1000}?tool-results[/\\]([\w-]+\.\w+)"
#: The types of records that have no message.
_METADATA_TYPES = {
    "summary",
    "file-history-snapshot",
    "queue-operation",
    "last-prompt",
    "mode",
    "ai-title",
    "custom-title",
}


class _TranscriptReader:
    """Reads the records of one conversation, one after the other.

    A record names the record that it answers. `_message_ids` finds the message of that record, and
    `_answers` finds the answer of the model that this message is, or is a result of. So a further
    record of an answer is added to its message, and a result to the chain of its answer.

    Attributes:
        messages: The messages.
        pending: The records without a message since the last message.
        common: The common fields of the first record with a message. Others may differ.
        note: The note of an export, from the record of the type `capsule`.
        lines: The line of each record by its id.
        sessions: How often each session is named.
    """

    def __init__(self, report_problem: Callable[[str, int | None], None]) -> None:
        self._report_problem = report_problem
        self.messages: list[ClaudeMessage] = []
        self.pending: list[Fields] = []
        self.common: Fields = {}
        self.note: Fields = {}
        self.lines: dict[str, int] = {}
        self.sessions: Counter[str] = Counter()
        #: The titles by their field. Those of summaries by the last record that each is about.
        self._titles: dict[str, str] = {}
        #: The record at which the chosen branch ends. None: the last message is the current one.
        self._current_uuid: str | None = None
        #: `forkedFrom` of the first record, with the session of which this one is a copy.
        self._forked_from: Any = None
        #: For each record the id of its message, or of the message before it.
        self._message_ids: dict[Any, Any] = {}
        #: For each record that is dropped, the last record before it that is not.
        self._replaced_parents: dict[Any, Any] = {}
        #: The records with a message, by their id.
        self._records: dict[Any, Fields] = {}
        #: The last record of each message.
        self._last_uuids: dict[Any, Any] = {}
        #: For each message the answer that it is, or is a result of.
        self._answers: dict[Any, ClaudeMessage] = {}

    def add(self, record: Fields, line: int | None) -> None:
        """Read the next record."""
        kind = record.get("type")
        uuid = record.get("uuid")
        parent = record.get("parentUuid")
        self.sessions[record.get("sessionId") or ""] += 1
        if kind == "progress" or _is_filler(record):
            self._replaced_parents[uuid] = self._replaced_parents.get(parent, parent)
            self._message_ids[uuid] = self._message_ids.get(parent, parent)
            return
        if parent in self._replaced_parents:
            parent = self._replaced_parents[parent]
            record = record | {"parentUuid": parent}
        body = record.get("content") if kind == "system" else record.get("message")
        if isinstance(body, _BODY_TYPES.get(kind, ())):
            self._add_message_record(record, line)
            return
        if kind in _BODY_TYPES and kind != "system":
            self._report_problem("a message without content", line)
        elif kind is None and "message" in record:
            self._report_problem("a message without its type", line)
        if isinstance(uuid, str):
            self._message_ids[uuid] = self._message_ids.get(parent, parent)
        self._add_metadata_record(record)

    def _add_message_record(self, record: Fields, line: int | None) -> None:
        """Read a record with a message, and report the fields that it lacks."""
        if record.get("timestamp") is None:
            self._report_problem("a message without its time", line)
        if record["type"] != "system" and "content" not in record["message"]:
            self._report_problem("a message without content", line)
        if not self.messages:
            self.common = {key: record[key] for key in _COMMON_FIELDS if key in record}
            self._forked_from = record.get("forkedFrom")
        if any(
            not _BLOCK_FIELDS.get(str(block.get("type")), {"type"}) <= block.keys()
            for block in _blocks(record)
        ):
            self._report_problem("a part of a message that is not understood", line)
        has_common_fields = self.common.items() <= record.items()
        if line is not None:
            self.lines[str(record.get("uuid"))] = line
        for part in _split_record(record):
            self._add_part(part, has_common_fields=has_common_fields)
        self._current_uuid = None

    def _add_part(self, record: Fields, *, has_common_fields: bool) -> None:
        """Add a record to its answer, or begin a message with it.

        An equal record with the same id is ignored. A different one begins a message.
        """
        uuid = record.get("uuid")
        is_repeated = uuid in self._records
        if is_repeated and self._records[uuid] == record:
            return
        self._records[uuid] = record
        parent_id = self._parent_message_id(record)
        answer = self._answers.get(parent_id)
        answer_id = record["message"].get("id") if record["type"] == "assistant" else None
        if answer and answer_id and answer.answer_id == answer_id and not is_repeated:
            answer.add(record, has_common_fields=has_common_fields)
            # A result that came before this record counts as one before it.
            self._message_ids[uuid] = parent_id
            self._last_uuids[answer.fields["id"]] = uuid
            return
        message = ClaudeMessage(record, self.pending, has_common_fields=has_common_fields)
        self.pending = []
        self.messages.append(message)
        message.fields["parent"] = self._link_to_answer(message, answer, parent_id, uuid)
        if not isinstance(uuid, str):
            return
        self._message_ids[uuid] = uuid
        self._last_uuids[uuid] = uuid
        if message.fields["role"] == "assistant":
            self._answers[uuid] = message
        elif answer and answer.last == uuid:
            self._answers[uuid] = answer

    def _parent_message_id(self, record: Fields) -> Any:
        """Return the id of the message that a record answers."""
        parent = record.get("parentUuid")
        logical_parent = record.get("logicalParentUuid") if parent is None else None
        if logical_parent is not None:
            return self._message_ids.get(logical_parent)
        return self._message_ids.get(parent, parent)

    @staticmethod
    def _link_to_answer(
        message: ClaudeMessage, answer: ClaudeMessage | None, parent_id: Any, uuid: Any
    ) -> Any:
        """Return the id of the message that a new message answers. A result is noted in `answer`.

        The first result of each call is appended to the chain of its answer. The next message
        answers the end of the chain, even if its record names another result.

        Args:
            message: The new message.
            answer: The answer that the parent is, or is a result of. It is changed. None: there is
                none.
            parent_id: The id of the message that the record of the new message answers.
            uuid: The id of this record.
        """
        if answer is None:
            return parent_id
        if message.fields["role"] != "tool":
            return parent_id if parent_id == answer.fields["id"] else answer.last
        call_id = message.fields["toolCallId"]
        if call_id in answer.answered_calls:
            return parent_id
        answer.answered_calls.add(call_id)
        previous_id = answer.last
        answer.last = uuid
        return previous_id

    def _add_metadata_record(self, record: Fields) -> None:
        """Read a record without a message: titles, the current message, or another one."""
        kind = record.get("type")
        for name in _TITLE_FIELDS:
            title = record.get(name)
            if not isinstance(title, str):
                continue
            if name != "summary":
                self._titles[name] = title
            elif "leafUuid" in record:
                self._titles[f"{record['leafUuid']}"] = title
        if kind == "last-prompt" and record.get("explicit") is True:
            self._current_uuid = record.get("leafUuid")
        elif kind == CAPSULE_KEY and isinstance(record.get(CAPSULE_KEY), dict):
            self.note = record[CAPSULE_KEY]
        else:
            self.pending.append(record)

    def _title(self, default_title: str) -> str | None:
        """Return the best title. A summary counts if its last message is in this file."""
        # The best first. A summary is stored under another key than `summary`.
        titles = [self._titles.get(name) for name in reversed(_TITLE_FIELDS)]
        summaries = [text for leaf, text in self._titles.items() if leaf in self._message_ids]
        titles += [*reversed(summaries), default_title]
        return next(filter(None, titles), None)

    def draft(self, agent: str, session: str, default_title: str) -> Draft:
        """Return the conversation of a session, or of its subagent if `agent` is not empty."""
        title = self._title(default_title)
        head: Fields = {"id": f"{session}:{agent}" if agent else session}
        if title:
            head["title"] = title
        metadata: Fields = {}
        if agent:
            metadata["sourceConversationId"] = session
        if isinstance(self._forked_from, dict):
            forked_session = self._forked_from.get("sessionId")
            if isinstance(forked_session, str):
                metadata["forkedFrom"] = forked_session
        separate_fields = SEPARATE_FIELDS.union(self.common)
        history = [
            message.entry(self.common, separate_fields, self._last_uuids)
            for message in self.messages
        ]
        new_ids = {
            message.fields.get("id"): entry.get("id")
            for message, entry in zip(self.messages, history, strict=True)
        }
        current = new_ids.get(self._message_ids.get(self._current_uuid))
        if current:
            metadata["currentNode"] = current
        if metadata:
            head["metadata"] = metadata
        title_record = _title_record(title, session, agent)
        trailing_records = [record for record in self.pending if record != title_record]
        is_own = isinstance(self.note.get("id"), str)
        source: Fields = {}
        if not is_own:
            if self.common:
                source = difference(self.common, _default_common(session, agent))
            if trailing_records:
                source["records"] = trailing_records
        return Draft(
            with_source(head, source),
            history,
            line=1,
            is_own=is_own,
            lines=self.lines,
            export_note=self.note,
        )


#: The type of the body of each record with a message. The body is `message`, or `content` in a
#: record of the system.
_BODY_TYPES: dict[Any, Any] = {"user": dict, "assistant": dict, "system": str}


def _default_common(session: str, agent: str) -> Fields:
    return _DEFAULT_COMMON | _session_fields(session, agent)


def _session_fields(session: str, agent: str) -> Fields:
    """Return the fields that name the session, and its subagent if `agent` is not empty."""
    fields: Fields = {"sessionId": session}
    if agent:
        fields |= {"isSidechain": True, "agentId": agent}
    return fields


def _title_record(title: str | None, session: str, agent: str) -> Fields:
    return {"type": "custom-title", "customTitle": title, **_session_fields(session, agent)}


def _split_record(record: Fields) -> Iterable[Fields]:
    """Return the parts of a record, each of which is a record of one message.

    A record of the user may have several results and other blocks. Each result is a part, and so
    are the blocks between two results. Each part answers the one before it. Only the last one keeps
    the id of the record.
    """
    content = record["message"].get("content") if record["type"] == "user" else None
    if not isinstance(content, list) or len(content) < 2:
        return (record,)
    runs: list[list[Any]] = []
    was_result = False
    for block in content:
        is_result = isinstance(block, dict) and block.get("type") == "tool_result"
        if is_result or was_result or not runs:
            runs.append([])
        runs[-1].append(block)
        was_result = is_result
    if len(runs) < 2:
        return (record,)
    parts = [record | {"message": record["message"] | {"content": run}} for run in runs]
    for number, part in enumerate(parts[:-1]):
        part.pop("toolUseResult", None)
        part_uuid = f"{record.get('uuid')}:{number}"
        part["uuid"] = part_uuid
        parts[number + 1]["parentUuid"] = part_uuid
    return parts


def _drafts(
    records: Iterable[tuple[int, Fields]],
    report_problem: Callable[[str, int | None], None],
    stem: str = "",
    title_of: Callable[[str], str] = lambda agent: "",
) -> list[Draft]:
    """Return the conversations of a file: the session, and its subagents.

    Args:
        records: The records with their lines.
        report_problem: Gets a problem and its line.
        stem: The name of the file. It is the id of the session, if a record has this id. Otherwise
            the session is the one that most records name.
        title_of: Returns the title of a subagent.
    """
    #: By the id of the subagent. The key of the session itself is empty.
    readers = {"": _TranscriptReader(report_problem)}
    #: For each record of a subagent, by its id, the id of the subagent. Old records do not name it.
    agents: dict[Any, str] = {}
    for line, record in records:
        with reporting_damage(report_problem, "a record", line):
            agent = ""
            if record.get("isSidechain") is True:
                uuid = record.get("uuid")
                agent = str(record.get("agentId") or agents.get(record.get("parentUuid")) or uuid)
                agents[uuid] = agent
            if agent not in readers:
                readers[agent] = _TranscriptReader(report_problem)
            readers[agent].add(record, line)
    sessions = sum((reader.sessions for reader in readers.values()), Counter[str]())
    sessions.pop("", None)
    session = stem
    if stem not in sessions:
        session = next((name for name, _ in sessions.most_common(1)), "")
    drafts = []
    for agent, reader in readers.items():
        if reader.messages or reader.note:
            drafts.append(reader.draft(agent, session, title_of(agent) if agent else ""))
    return drafts


def _read(source: Source) -> Iterator[Draft]:
    def title_of(agent: str) -> str:
        for file in source.near(f"agent-{agent}.meta.json"):
            metadata = json_of(read_text(file))
            if isinstance(metadata, dict):
                return str(metadata.get("description") or "")
            return ""
        return ""

    stem = source.name.rpartition("/")[2].removesuffix(".jsonl")
    for draft in _drafts(read_records(source), source.tell, stem, title_of):
        for entry in draft.history:
            if entry["role"] == "tool":
                line = draft.lines.get(str(entry.get("id")))
                _attach_result(entry, source, stem, line)
        yield draft


def _attach_result(entry: Fields, source: Source, stem: str, line: int | None) -> None:
    """Attach the whole result if the transcript has only its beginning."""
    match = re.match(_MOVED_RESULT, entry["content"])
    if match is None:
        return
    name = match[1]
    attachments = entry.get("attachments", [])
    if any(attachment.get("name") == name for attachment in attachments):
        return
    for path in (f"{stem}/tool-results/{name}", f"../tool-results/{name}"):
        for file in source.near(path):
            attachment = {"name": name, "type": "text/plain", "data": file}
            entry["attachments"] = [attachment, *attachments]
            return
    source.tell(f"the result that was moved to tool-results/{name} is missing", line)


def _record_groups(
    draft: Draft, common: Fields
) -> tuple[list[list[Fields]], dict[Any, str | None]]:
    """Return the records of each message, with the records without a message before it.

    Also returns the id of the last record of each message. A record whose parent is not in the file
    anymore (its message was deleted here) answers the parent of its message.
    """
    groups: list[list[Fields]] = []
    last_uuids: dict[Any, Any] = {None: None}
    parents: list[Any] = []
    last_uuid = None
    time = draft.head.get("createdAt")
    for entry in draft.history:
        message, source = without_source(entry)
        time = message.get("timestamp") or time
        is_edited = entry.get("id") in draft.edited
        if draft.is_own:
            message["id"] = uuid_of(message["id"])
            if time:
                message["timestamp"] = time
        if draft.is_own or is_edited:
            message = with_acceptable_calls(message)
        if is_edited:  # The templates do not fit the new texts.
            source = without(source, "blocks", "records")
        records = records_of(message, source, common)
        parent = last_uuids.get(entry["parent"]) if "parent" in entry else last_uuid
        parents.append(parent)
        records[0]["parentUuid"] = source.get("parentUuid", parent)
        last_uuid = records[-1].get("uuid")
        if "id" in entry:
            last_uuids[entry["id"]] = last_uuid
        groups.append([dict(record) for record in source.get("before", ())] + records)
    _replace_missing_parents(groups, parents)
    return groups, last_uuids


def _replace_missing_parents(groups: list[list[Fields]], parents: list[Any]) -> None:
    """Let each record that answers a missing record answer the parent of its message.

    `parents` has the id of the record that each message answers.
    """
    existing_ids = {
        record["uuid"]
        for group in groups
        for record in group
        if isinstance(record.get("uuid"), str)
    }
    for group, parent in zip(groups, parents, strict=True):
        for record in group:
            link = record.get("parentUuid")
            if isinstance(link, str) and link not in existing_ids:
                record["parentUuid"] = parent


def _in_order(records: list[Fields]) -> list[Fields]:
    """Return the records in their order, but each after the record that it answers.

    Claude Code writes a result as soon as it has it, also between two records of one answer.
    Records that answer each other in a circle come last.
    """
    ids = {record["uuid"] for record in records if isinstance(record.get("uuid"), str)}
    result: list[Fields] = []
    written_ids: set[Any] = set()
    waiting: dict[Any, list[Fields]] = {}
    for next_record in records:
        ready = [next_record]
        while ready:  # The record, and then the records that waited for it.
            record = ready.pop()
            parent = record.get("parentUuid")
            if isinstance(parent, str) and parent in ids and parent not in written_ids:
                waiting.setdefault(parent, []).append(record)
                continue
            result.append(record)
            uuid = record.get("uuid")
            if isinstance(uuid, str):
                written_ids.add(uuid)
                ready += reversed(waiting.pop(uuid, []))
    for circle in waiting.values():
        result += circle
    return result


def _is_filler(record: Fields) -> bool:
    """Return whether `_with_results` made a record, in place of results that were not recorded."""
    parent = record.get("parentUuid")
    return isinstance(parent, str) and record.get("uuid") == _filler_id(parent)


def _filler_id(parent: str) -> str:
    return uuid_of(f"{parent}:{_NO_RESULT}")


def _with_results(records: list[Fields], trailing_records: list[Fields]) -> list[Fields]:
    """Return all records, with a result for each call that has none.

    Claude Code resumes no answer with an open call. The record of these results follows the last
    record of the answer, and the records that answered that one now answer it. Its id shows that it
    was made here.
    """
    open_calls = _open_calls(records)
    last_records = {_answer_id(record): record for record in records}
    new_ends: dict[str, str] = {}
    result: list[Fields] = []
    for record in records:
        result.append(_relinked(record, "parentUuid", new_ends))
        answer_id = _answer_id(record)
        uuid = record.get("uuid")
        is_last = answer_id in open_calls and record is last_records[answer_id]
        if is_last and isinstance(uuid, str):
            filler = _filler(record, uuid, open_calls[answer_id])
            new_ends[uuid] = filler["uuid"]
            result.append(filler)
    return result + [_relinked(record, "leafUuid", new_ends) for record in trailing_records]


def _open_calls(records: list[Fields]) -> dict[str, list[str]]:
    """Return the ids of the calls without a result, by the id of their answer."""
    answered_calls = set()
    for record in records:
        for block in _blocks(record):
            call_id = block.get("tool_use_id")
            if block.get("type") == "tool_result" and isinstance(call_id, str):
                answered_calls.add(call_id)
    open_calls: dict[str, list[str]] = {}
    for record in records:
        for block in _blocks(record):
            id = block.get("id")
            if block.get("type") != "tool_use" or not isinstance(id, str):
                continue
            if id not in answered_calls and _answer_id(record):
                open_calls.setdefault(_answer_id(record), []).append(id)
    return open_calls


def _filler(record: Fields, uuid: str, call_ids: list[str]) -> Fields:
    """Return the record of the results that were not recorded, after the last of an answer."""
    content = [{"type": "tool_result", "tool_use_id": id, "content": _NO_RESULT} for id in call_ids]
    shared_fields = {
        name: record[name] for name in (*_COMMON_FIELDS, "timestamp") if name in record
    }
    return {
        **shared_fields,
        "type": "user",
        "message": {"role": "user", "content": content},
        "uuid": _filler_id(uuid),
        "parentUuid": uuid,
    }


def _relinked(record: Fields, key: str, new_ends: dict[str, str]) -> Fields:
    """Return a record that names the new end of an answer under `key`, if it named the end."""
    link = record.get(key)
    if isinstance(link, str) and link in new_ends:
        return record | {key: new_ends[link]}
    return record


def _blocks(record: Fields) -> list[Fields]:
    """Return the blocks of the content of a record."""
    message = record.get("message")
    return objects_of(message.get("content")) if isinstance(message, dict) else []


def _answer_id(record: Fields) -> str:
    """Return the id that the records of one answer share. Empty: the record is no answer."""
    message = record.get("message")
    if record.get("type") != "assistant" or not isinstance(message, dict):
        return ""
    return str(message.get("id") or record.get("uuid"))


def _write(draft: Draft) -> bytes:
    """Return a draft as a transcript, with the note of an export as its first record."""
    head, source = without_source(draft.head)
    if draft.is_own:
        session = uuid_of(draft.id)
        agent = ""
    else:
        session, *after_colon = draft.id.split(":")[:2]
        agent = "".join(after_colon)
    common = _default_common(session, agent)
    if draft.is_own and draft.folder:
        common["cwd"] = draft.folder
    common = apply_difference(common, without(source, "records"))
    groups, last_uuids = _record_groups(draft, common)
    trailing_records = list(source.get("records", ()))
    records = _in_order([record for group in groups for record in group])
    current = draft.metadata.get("currentNode")
    if draft.history and current is not None and current != draft.history[-1].get("id"):
        trailing_records.append(
            {
                "type": "last-prompt",
                "leafUuid": last_uuids.get(current),
                "explicit": True,
                **_session_fields(session, agent),
            }
        )
    # The title needs a record of its own only if a reader would find another one.
    reread_drafts = _drafts(enumerate(records + trailing_records), lambda reason, line: None)
    reread_draft = reread_drafts[0] if reread_drafts else Draft({}, [])
    if "title" in head and reread_draft.head.get("title") != head["title"]:
        trailing_records.append(_title_record(head["title"], session, agent))
    result = _with_results(records, trailing_records)
    if draft.export_note:
        marker = {"type": CAPSULE_KEY, **_session_fields(session, agent)}
        result.insert(0, draft.with_note(marker))
    return encode_records(result)


def _file_name(draft: Draft) -> str:
    """Return the path of a written file below `~/.claude/projects`.

    If the folder of the session is not known, the path lacks the folder of the project.
    """
    session, _, agent = draft.id.partition(":")
    if agent:
        path = f"{session}/subagents/agent-{agent}.jsonl"
    else:
        path = f"{uuid_of(session)}.jsonl"
    return f"{_project_folder(draft.folder)}/{path}" if draft.folder else path


def _project_folder(folder: str) -> str:
    """Return the name that Claude Code gives to the folder of a project.

    It counts in UTF-16, as JavaScript does.
    """
    data = folder.encode("utf-16-le", "surrogatepass")
    units = [
        int.from_bytes(data[offset : offset + 2], "little") for offset in range(0, len(data), 2)
    ]
    name = "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else "-" for unit in units)
    if len(name) <= _MAX_FOLDER_NAME:
        return name
    hash = 0
    for unit in units:
        hash = (hash * 31 + unit) % (1 << 32)
    if hash >= 1 << 31:  # JavaScript's number is negative then, and its sign is left out.
        hash = (1 << 32) - hash
    return f"{name[:_MAX_FOLDER_NAME]}-{_base36(hash)}"


def _base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def _is_transcript_record(record: Fields) -> bool:
    """Return whether an object can only be a record of Claude Code."""
    is_metadata = record.get("type") in _METADATA_TYPES
    if "sessionId" in record:
        return "parentUuid" in record or is_metadata or record.get("type") == CAPSULE_KEY
    return is_metadata and ("leafUuid" in record or "messageId" in record)


def _is_part(source: Source) -> bool:
    """Return whether a file describes a subagent, or is a list of sessions."""
    for record in first_records(source)[:1]:
        is_session_list = "entries" in record and "originalPath" in record
        return "agentType" in record or is_session_list
    return False


_PLACES = tuple(
    f"{folder}/projects/{files}"
    for folder in ("~/.claude", "~/.config/claude")
    for files in ("*/*.jsonl", "*/*/subagents/*.jsonl")
)
FORMATS = [
    Format(
        "claude-code",
        "Claude Code",
        recognizes=recognizes_record(_is_transcript_record),
        read=_read,
        write=_write,
        extension=".jsonl",
        is_part=_is_part,
        file_name=_file_name,
        embeds_files=True,
        is_portable=False,
        places=_PLACES,
    )
]
