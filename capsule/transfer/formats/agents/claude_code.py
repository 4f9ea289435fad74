"""Read and write the sessions of Claude Code: a file of JSON lines for each session and subagent.

A record is a line of the file. An answer of the model is as many records as it has blocks of
content, and one message here. Records without words (snapshots, durations) are kept with the
message that follows them, in `metadata.source.before`. Records of progress are dropped. A subagent
is a conversation of its own, with the id `{session}:{agent}`.

The first half of the module turns the records of one message into a `ClaudeMessage` and back. The
second half reads a file (`_TranscriptReader`) and writes one (`_write`).

Invariants: `records_of` gives back the records that a message was made of. What is kept of a record
has no text that the message has. On the way back, the blocks are filled from the message, the last
one first. An answer that grows keeps its id, the id of its first record. The writer reads what it
wrote, and keeps what would be lost under `capsule`. Pure.
"""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from capsule.transfer.interface import (
    FORMAT_ERRORS,
    Draft,
    Format,
    Source,
    by_record,
    first,
    read_records,
    read_text,
    reporting_damage,
)
from capsule.transfer.records.calls import acceptable
from capsule.transfer.records.coercion import (
    counts_of,
    encoded_lines,
    is_text,
    json_of,
    moment,
    objects_of,
    uuid_of,
)
from capsule.transfer.records.round_trip import (
    CAPSULE_KEY,
    Fields,
    apply_difference,
    difference,
    with_source,
    without_source,
)

#: The blocks whose text is under the name of their type, and the field of ours that has it.
_SAID = {"text": "content", "thinking": "reasoning"}
_CALLS = ("tool_use", "server_tool_use")
_FILES = {"image": "image", "application": "document"}
#: Stands for a block that is left out.
_GONE = object()
_USAGE = {
    "inputTokens": "input_tokens",
    "outputTokens": "output_tokens",
    "cachedTokens": "cache_read_input_tokens",
}
#: In a structured result, where it repeats the content.
_SAME = {"$content": True}
APART = frozenset({"message", "parentUuid", CAPSULE_KEY})


def _split_block(block: Any, said: Fields) -> Any:
    """What is left of a block when the message has its part of it."""
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _SAID:
        name, text = _SAID[kind], block.get(kind)
        if not isinstance(text, str):
            return block | {kind: text}
        rest = {key: value for key, value in block.items() if key != kind}
        if before := said.get(name):
            rest["from"] = len(before) + 2
            text = f"{before}\n\n{text}" if text else before
        if text or name in said:
            said[name] = text
        return rest
    if kind in _CALLS:
        if not _is_call(block, "input"):
            return {"id": None, **block}
        call = {"id": block["id"], "name": block["name"], "arguments": block["input"]}
        said.setdefault("toolCalls", []).append(call)
        return {key: value for key, value in block.items() if key not in ("id", "name", "input")}
    if (
        kind == "tool_result"
        and isinstance(block.get("tool_use_id"), str)
        and "toolCallId" not in said
    ):
        said["toolCallId"] = block["tool_use_id"]
        if block.get("is_error") is True:
            said["metadata"] = said.get("metadata", {}) | {"isError": True}
        content = block.get("content")
        rest = {key: value for key, value in block.items() if key not in ("tool_use_id", "content")}
        if isinstance(content, str):
            said["content"] = content
            return rest
        return rest | {
            "content": [_split_block(part, said) for part in content]
            if isinstance(content, list)
            else content
        }
    if kind in ("image", "document") and (data := _data(block.get("source"))) is not None:
        name = block.get("title")
        file = {
            "name": name if isinstance(name, str) else kind,
            "type": block["source"].get("media_type") or kind,
        }
        said.setdefault("attachments", []).append(file | {"data": data})
        return block | {
            "source": {key: value for key, value in block["source"].items() if key != "data"}
        }
    if kind == "tool_result":
        return {"tool_use_id": None, **block}
    return (
        block | {"source": block["source"] | {"data": None}} if _lacks_data(kind, block) else block
    )


def _lacks_data(kind: Any, block: Any) -> bool:
    if kind not in ("image", "document") or not isinstance(block.get("source"), dict):
        return False
    return bool(block["source"].keys() == {"type", "media_type"})


def _is_call(call: Fields, arguments: str) -> bool:
    texts = isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    return texts and isinstance(call.get(arguments), dict | str)


def _data(source: Any) -> bytes | None:
    try:
        if source.keys() != {"type", "media_type", "data"} or source["type"] != "base64":
            return None
        data = b64decode(source["data"], validate=True)
        return data if b64encode(data).decode() == source["data"] else None
    except FORMAT_ERRORS:
        return None


def _restore_content(kept: Any, left: Fields) -> Any:
    """The content that `kept` is the rest of; `left` is what the message has, without what later
    blocks have taken.
    """
    if kept == "":
        return left["content"]
    if not isinstance(kept, list):
        return kept
    return [
        block
        for block in [_restore_block(block, left) for block in reversed(kept)][::-1]
        if block is not _GONE
    ]


def _restore_block(block: Any, left: Fields) -> Any:
    kind = block.get("type") if isinstance(block, dict) else None
    if kind in _SAID and kind not in block:
        name, at = _SAID[kind], block.get("from", 0)
        text = left.get(name, "")
        left[name] = text[: max(at - 2, 0)]
        return {key: value for key, value in block.items() if key != "from"} | {kind: text[at:]}
    if kind in _CALLS and "id" not in block:
        call = left["toolCalls"].pop()
        return block | {"id": call["id"], "name": call["name"], "input": call["arguments"]}
    if kind == "tool_result" and "tool_use_id" not in block:
        return {
            "tool_use_id": left["toolCallId"],
            **block,
            "content": _restore_content(block.get("content", ""), left),
        }
    if _lacks_data(kind, block):
        data = left["attachments"].pop().get("data")
        return (
            block | {"source": block["source"] | {"data": b64encode(data).decode()}}
            if data is not None
            else _GONE
        )
    return block


def _calls(said: Fields) -> list[Fields]:
    """The calls of a message, if all can be blocks."""
    calls: list[Fields] = said.get("toolCalls", [])
    return calls if all(_is_call(call, "arguments") for call in calls) else []


def _default_blocks(said: Fields) -> Any:
    """What is left of the content of a message that Claude Code did not write."""
    if said["role"] == "assistant":
        called = [{"type": "tool_use"} for _ in _calls(said)]
        return [{"type": "text"}, *called] if said["content"] or not called else called
    files, kept = said.get("attachments"), list[Fields]()
    if (
        files
        and said["role"] in ("user", "tool")
        and all(isinstance(file.get("data"), bytes) for file in files)
    ):
        kinds = [_FILES.get(str(file.get("type")).partition("/")[0]) for file in files]
        if None not in kinds:
            sources = [{"type": "base64", "media_type": file["type"]} for file in files]
            kept = [
                {"type": kind, "source": source}
                for kind, source in zip(kinds, sources, strict=True)
            ]
    content: Any = [*kept, {"type": "text"}] if kept else ""
    if said["role"] != "tool" or "toolCallId" not in said:
        return content
    error = {"is_error": True} if said.get("metadata", {}).get("isError") is True else {}
    return [{"type": "tool_result"} | error | ({"content": content} if content else {})]


def _default_record(said: Fields, common: Fields) -> Fields:
    """The first record of a message, without its content and its parent."""
    role, about = said["role"], said.get("metadata", {})
    kind = "user" if role == "tool" else role
    base = {**common, "type": kind}
    base |= {
        key: said[name]
        for key, name in (("uuid", "id"), ("timestamp", "timestamp"))
        if name in said
    }
    if about.get("hidden") is True:
        base["isMeta"] = True
    if kind == "system":
        return base | {"subtype": "informational", "level": "info"}
    message = base["message"] = {"role": kind}
    if kind == "assistant":
        counts = about.get("usage", {})
        usage = {key: counts[name] for name, key in _USAGE.items() if counts.get(name) is not None}
        message |= {
            "id": f"msg_{said.get('id')}",
            "type": "message",
            "model": said.get("model", "<synthetic>"),
            "stop_reason": "tool_use" if _calls(said) else "end_turn",
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0} | usage,
        }
    return base


class ClaudeMessage:
    """A message, of one record or, if it is an answer, of several.

    Attributes:
        said: The message.
        name: The id of the answer, which its records share.
        parent: The record that it answers.
        last: The record that the next message answers: its own, or that of its last result.
        results: The calls of it that have a result.
    """

    __slots__ = (
        "_blocks",
        "_is_common",
        "_records",
        "before",
        "last",
        "name",
        "parent",
        "results",
        "said",
    )

    def __init__(self, record: Fields, before: list[Fields], *, is_common: bool) -> None:
        kind = record["type"]
        self.said: Fields = {"role": kind, "content": ""}
        self.before, self.parent = before, record.get("parentUuid")
        self._records: list[Fields] = []
        self._blocks: list[Any] = []
        self._is_common = True
        self.name = record["message"].get("id") if kind == "assistant" else None
        self.results: set[Any] = set()
        self.add(record, is_common=is_common)
        said = self.said
        if "toolCallId" in said:
            said["role"] = "tool"
        if isinstance(record.get("uuid"), str):
            said["id"] = record["uuid"]
        if time := record.get("timestamp"):
            said["timestamp"] = moment(time) or time
        if record.get("isMeta") is True or record.get("isVisibleInTranscriptOnly") is True:
            said["metadata"] = said.get("metadata", {}) | {"hidden": True}
        self.last = said.get("id")

    def add(self, record: Fields, *, is_common: bool) -> None:
        """Take one more record; `is_common` is whether it says what all records of the
        session say.
        """
        content = record["message"].get("content") if "message" in record else record["content"]
        if isinstance(content, str):
            self.said["content"], content = content, ""
        elif isinstance(content, list):
            content = [_split_block(block, self.said) for block in content]
        self._blocks.append(content)
        self._records.append(record)
        self._is_common = self._is_common and is_common

    def _describe(self, message: Fields) -> None:
        if isinstance(message.get("model"), str):
            self.said["model"] = message["model"]
        if usage := counts_of(message.get("usage"), _USAGE):
            self.said["metadata"] = self.said.get("metadata", {}) | {"usage": usage}

    def entry(self, common: Fields, apart: frozenset[str], ends: dict[Any, str]) -> Fields:
        """The message with what its records have besides.

        `common` is what all records of the session say, `apart` the names of it and of what is
        apart in each record, and `ends` are the last records of messages.
        """
        said, records, blocks = self.said, self._records, self._blocks
        if said["role"] == "assistant":
            self._describe(records[-1]["message"])
        rests = [_rest(record, apart if self._is_common else APART) for record in records]
        source = difference(rests[0], _default_record(said, {} if self._is_common else common))
        if self.parent != ends.get(said["parent"]):
            source["parentUuid"] = self.parent
        if len(rests) > 1 or blocks[0] != _default_blocks(said):
            source["blocks"] = blocks[0]
        if len(rests) > 1:
            for rest, record in zip(rests, records, strict=True):
                rest["parentUuid"] = record.get("parentUuid")
            source["records"] = [
                {**difference(rest, before | {"parentUuid": before.get("uuid")}), "blocks": left}
                for before, rest, left in zip(rests, rests[1:], blocks[1:], strict=False)
            ]
        if self.before:
            source["before"] = self.before
        return with_source(said, source)


def _rest(record: Fields, apart: frozenset[str]) -> Fields:
    """A record without its place, its content and what is apart."""
    rest = {key: value for key, value in record.items() if key not in apart}
    message = record.get("message")
    if message is None:
        rest.pop("content")
        return rest
    rest["message"] = {key: value for key, value in message.items() if key != "content"}
    if "toolUseResult" in record:
        rest["toolUseResult"] = _folded(record["toolUseResult"], _result(message.get("content")))
    return rest


def _result(content: Any) -> Any:
    """The content of the result in a content; None: there is none."""
    block = content[0] if isinstance(content, list) and content else None
    return block.get("content") if isinstance(block, dict) else None


def _folded(result: Any, content: Any) -> Any:
    """A structured result without what repeats the content."""
    if not content or not isinstance(result, dict):
        return _SAME if content and result == content else result
    return {key: _SAME if value == content else value for key, value in result.items()}


def _unfolded(result: Any, content: Any) -> Any:
    if result == _SAME:
        return content
    if not isinstance(result, dict):
        return result
    return {key: content if value == _SAME else value for key, value in result.items()}


def records_of(said: Fields, source: Fields, common: Fields) -> list[Fields]:
    """The records of a message, the first of them without its parent."""
    apart = ("blocks", "records", "before", "parentUuid")
    records = [
        apply_difference(
            _default_record(said, common),
            {key: value for key, value in source.items() if key not in apart},
        )
    ]
    blocks = [source.get("blocks", _default_blocks(said))]
    for more in source.get("records", ()):
        before = records[-1] | {"parentUuid": records[-1].get("uuid")}
        records.append(
            apply_difference(before, {key: value for key, value in more.items() if key != "blocks"})
        )
        blocks.append(more["blocks"])
    left = {
        **said,
        "toolCalls": [*said.get("toolCalls", ())],
        "attachments": [*said.get("attachments", ())],
    }
    for record, kept in zip(reversed(records), reversed(blocks), strict=True):
        content = _restore_content(kept, left)
        if "message" not in record:
            record["content"] = content
            continue
        record["message"] = record["message"] | {"content": content}
        if "toolUseResult" in record:
            record["toolUseResult"] = _unfolded(record["toolUseResult"], _result(content))
    return records


#: What all records of a session say, and what they say if nothing else is known.
_COMMON = (
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
_DEFAULT = {
    "isSidechain": False,
    "userType": "external",
    "cwd": "/",
    "version": "2.1.0",
    "gitBranch": "",
}
#: The fields that a block of each type has at least.
_OF_A_BLOCK: dict[str, set[str]] = {
    "text": {"text"},
    "thinking": {"thinking"},
    "tool_use": {"id", "name", "input"},
    "tool_result": {"tool_use_id"},
}
#: What stands for the result of a call that has none.
_NO_RESULT = "not recorded"
#: From this length on, the name of the folder of a project ends with a hash.
_LONGEST_KEY = 200
_TITLES = ("summary", "aiTitle", "customTitle")
#: How a result begins that was too large, and the name of the file that has it.
_MOVED = r"(?s)<persisted-output>.{,1000}?tool-results[/\\]([\w-]+\.\w+)"
_ABOUT = {
    "summary",
    "file-history-snapshot",
    "queue-operation",
    "last-prompt",
    "mode",
    "ai-title",
    "custom-title",
}


class _TranscriptReader:
    """The records of one conversation, as they come."""

    def __init__(self, tell: Callable[[str, int | None], None]) -> None:
        self._tell = tell
        self.messages, self.pending = list[ClaudeMessage](), list[Fields]()
        self.common, self.note = Fields(), Fields()
        self.lines: dict[str, int] = {}
        self.sessions, self._titles = Counter[str](), dict[str, str]()
        self._current: str | None = None
        self._forked: Any = None
        #: The message of each record, and past progress the record before it.
        self._owner: dict[Any, Any] = {}
        self._past: dict[Any, Any] = {}
        self._records: dict[Any, Fields] = {}
        #: The last record of each message.
        self._ends: dict[Any, Any] = {}
        #: The answer that a message is, or is a result of.
        self._turns: dict[Any, ClaudeMessage] = {}

    def add(self, record: Fields, line: int | None) -> None:
        """Take the next record."""
        kind, uuid, parent = record.get("type"), record.get("uuid"), record.get("parentUuid")
        self.sessions[record.get("sessionId") or ""] += 1
        if kind == "progress" or _is_filler(record):
            self._past[uuid] = self._past.get(parent, parent)
            self._owner[uuid] = self._owner.get(parent, parent)
            return
        if parent in self._past:
            parent = self._past[parent]
            record = record | {"parentUuid": parent}
        if isinstance(
            record.get("message") if kind != "system" else record.get("content"),
            _TALKS.get(kind, ()),
        ):
            if record.get("timestamp") is None:
                self._tell("a message without its time", line)
            if kind != "system" and "content" not in record["message"]:
                self._tell("a message without content", line)
            if not self.messages:
                self.common = {key: record[key] for key in _COMMON if key in record}
                self._forked = record.get("forkedFrom")
            if any(
                not _OF_A_BLOCK.get(str(block.get("type")), {"type"}) <= block.keys()
                for block in _blocks(record)
            ):
                self._tell("a part of a message that is not understood", line)
            is_common = self.common.items() <= record.items()
            if line is not None:
                self.lines[str(uuid)] = line
            for piece in _pieces(record):
                self._add(piece, is_common=is_common)
            self._current = None
            return
        if kind in _TALKS and kind != "system":
            self._tell("a message without content", line)
        elif kind is None and "message" in record:
            self._tell("a message that says not whose it is", line)
        if isinstance(uuid, str):
            self._owner[uuid] = self._owner.get(parent, parent)
        self._add_about(record)

    def _add(self, record: Fields, *, is_common: bool) -> None:
        uuid, parent = record.get("uuid"), record.get("parentUuid")
        is_seen = uuid in self._records
        if is_seen and self._records[uuid] == record:
            return
        self._records[uuid] = record
        logical = record.get("logicalParentUuid") if parent is None else None
        above = self._owner.get(parent, parent) if logical is None else self._owner.get(logical)
        turn = self._turns.get(above)
        name = record["message"].get("id") if record["type"] == "assistant" else None
        if turn and name and turn.name == name and not is_seen:
            turn.add(record, is_common=is_common)
            self._owner[uuid] = (
                above  # A result that came before this record counts as one before it.
            )
            self._ends[turn.said["id"]] = uuid
            return
        message = ClaudeMessage(record, self.pending, is_common=is_common)
        self.pending = []
        self.messages.append(message)
        said = message.said
        if turn and (said["role"] == "tool" or above != turn.said["id"]):
            if said["role"] != "tool":
                above = turn.last
            elif said["toolCallId"] not in turn.results:
                turn.results.add(said["toolCallId"])
                above, turn.last = turn.last, uuid
        said["parent"] = above
        if not isinstance(uuid, str):
            return
        self._owner[uuid] = self._ends[uuid] = uuid
        if said["role"] == "assistant":
            self._turns[uuid] = message
        elif turn and turn.last == uuid:
            self._turns[uuid] = turn

    def _add_about(self, record: Fields) -> None:
        kind = record.get("type")
        for name in _TITLES:
            if isinstance(title := record.get(name), str) and (
                name != "summary" or "leafUuid" in record
            ):
                self._titles[name if name != "summary" else f"{record['leafUuid']}"] = title
        if kind == "last-prompt" and record.get("explicit") is True:
            self._current = record.get("leafUuid")
        elif kind == CAPSULE_KEY and isinstance(record.get(CAPSULE_KEY), dict):
            self.note = record[CAPSULE_KEY]
        else:
            self.pending.append(record)

    def draft(self, agent: str, session: str, title: str) -> Draft:
        """The conversation of the session, or of its subagent `agent` if that is not empty."""
        common = _common(session, agent)
        summaries = [title for leaf, title in self._titles.items() if leaf in self._owner]
        titles = [
            *(self._titles.get(name) for name in reversed(_TITLES)),
            *reversed(summaries),
            title,
        ]
        head: Fields = {"id": f"{session}:{agent}" if agent else session}
        head |= {"title": chosen} if (chosen := next(filter(None, titles), None)) else {}
        metadata = {"sourceConversationId": session} if agent else {}
        if isinstance(self._forked, dict) and isinstance(self._forked.get("sessionId"), str):
            metadata["forkedFrom"] = self._forked["sessionId"]
        apart = APART.union(self.common)
        history = [message.entry(self.common, apart, self._ends) for message in self.messages]
        ids = {
            message.said.get("id"): entry.get("id")
            for message, entry in zip(self.messages, history, strict=True)
        }
        if current := ids.get(self._owner.get(self._current)):
            metadata["currentNode"] = current
        head |= {"metadata": metadata} if metadata else {}
        after = [record for record in self.pending if record != _title(chosen, session, agent)]
        is_own = isinstance(self.note.get("id"), str)
        source: Fields = {}
        if not is_own:
            source = difference(self.common, common) if self.common else {}
            source |= {"records": after} if after else {}
        head = with_source(head, source)
        return Draft(head, history, 1, is_own, lines=self.lines, export_note=self.note)


_TALKS: dict[Any, Any] = {"user": dict, "assistant": dict, "system": str}


def _common(session: str, agent: str) -> Fields:
    return _DEFAULT | _about(session, agent)


def _about(session: str, agent: str) -> Fields:
    return {"sessionId": session} | ({"isSidechain": True, "agentId": agent} if agent else {})


def _title(title: str | None, session: str, agent: str) -> Fields:
    return {"type": "custom-title", "customTitle": title, **_about(session, agent)}


def _pieces(record: Fields) -> Iterable[Fields]:
    """A record as several, if it has a result and something else: each result is a message."""
    content = record["message"].get("content") if record["type"] == "user" else None
    if not isinstance(content, list) or len(content) < 2:
        return (record,)
    runs: list[list[Any]] = []
    was_result = False
    for block in content:
        is_result = isinstance(block, dict) and block.get("type") == "tool_result"
        if is_result or not runs or was_result:
            runs.append([])
        runs[-1].append(block)
        was_result = is_result
    if len(runs) < 2:
        return (record,)
    whole = [record | {"message": record["message"] | {"content": run}} for run in runs]
    for nth, piece in enumerate(whole[:-1]):
        piece.pop("toolUseResult", None)
        piece["uuid"] = whole[nth + 1]["parentUuid"] = f"{record.get('uuid')}:{nth}"
    return whole


def _drafts(
    records: Iterable[tuple[int, Fields]],
    tell: Callable[[str, int | None], None],
    stem: str = "",
    title_of: Callable[[str], str] = lambda agent: "",
) -> list[Draft]:
    """The conversations of a file: that of the session, and those of subagents.

    The session is `stem`, if a record has it, else the one that most records have.
    """
    talks = {"": _TranscriptReader(tell)}
    agents: dict[Any, str] = {}
    for line, record in records:
        with reporting_damage(tell, "a record", line):
            agent = ""
            if record.get("isSidechain") is True:
                uuid = record.get("uuid")
                agent = str(record.get("agentId") or agents.get(record.get("parentUuid")) or uuid)
                agents[uuid] = agent
            talk = talks.get(agent) or talks.setdefault(agent, _TranscriptReader(tell))
            talk.add(record, line)
    sessions = sum((talk.sessions for talk in talks.values()), Counter[str]())
    sessions.pop("", None)
    session = stem if stem in sessions else next((name for name, _ in sessions.most_common(1)), "")
    return [
        talk.draft(agent, session, title_of(agent) if agent else "")
        for agent, talk in talks.items()
        if talk.messages or talk.note
    ]


def _read(source: Source) -> Iterator[Draft]:
    def title_of(agent: str) -> str:
        for file in source.near(f"agent-{agent}.meta.json"):
            about = json_of(read_text(file))
            return str(about.get("description") or "") if isinstance(about, dict) else ""
        return ""

    stem = source.name.rpartition("/")[2].removesuffix(".jsonl")
    for draft in _drafts(read_records(source), source.tell, stem, title_of):
        for entry in (entry for entry in draft.history if entry["role"] == "tool"):
            _attach_result(entry, source, stem, draft.lines.get(str(entry.get("id"))))
        yield draft


def _attach_result(entry: Fields, source: Source, stem: str, line: int | None) -> None:
    """Attach the whole result if the transcript has only its beginning."""
    moved, files = re.match(_MOVED, entry["content"]), entry.get("attachments", [])
    if moved is None or any(file.get("name") == moved[1] for file in files):
        return
    places = (f"{stem}/tool-results/{moved[1]}", f"../tool-results/{moved[1]}")
    if result := next((file for place in places for file in source.near(place)), None):
        entry["attachments"] = [{"name": moved[1], "type": "text/plain", "data": result}, *files]
    else:
        source.tell(f"the result that was moved to tool-results/{moved[1]} is not there", line)


def _groups(draft: Draft, common: Fields) -> tuple[list[list[Fields]], dict[Any, str]]:
    """The records of each message with those before it, and the last record of each message."""
    groups: list[list[Fields]] = []
    ends: dict[Any, Any] = {None: None}
    above: list[Any] = []
    last, time = None, draft.head.get("createdAt")
    for entry in draft.history:
        said, source = without_source(entry)
        time = said.get("timestamp") or time
        if draft.is_own:
            said |= {"id": uuid_of(said["id"])} | ({"timestamp": time} if time else {})
        if draft.is_own or entry.get("id") in draft.edited:
            said = acceptable(said)
        if entry.get("id") in draft.edited:
            source = {
                key: value for key, value in source.items() if key not in ("blocks", "records")
            }
        made = records_of(said, source, common)
        above.append(ends.get(entry["parent"]) if "parent" in entry else last)
        made[0]["parentUuid"] = source.get("parentUuid", above[-1])
        last = made[-1].get("uuid")
        if "id" in entry:
            ends[entry["id"]] = last
        groups.append([dict(earlier) for earlier in source.get("before", ())] + made)
    uuids = (record.get("uuid") for group in groups for record in group)
    known = {uuid for uuid in uuids if isinstance(uuid, str)}
    for group, parent in zip(groups, above, strict=True):
        for record in group:
            if isinstance(link := record.get("parentUuid"), str) and link not in known:
                record["parentUuid"] = parent
    return groups, ends


def _in_order(records: list[Fields]) -> list[Fields]:
    """Return the records in their order, but each after the record that it answers.

    Claude Code writes a result as soon as it has it, also between two records of one answer.
    """
    ids = {record["uuid"] for record in records if isinstance(record.get("uuid"), str)}
    result: list[Fields] = []
    written: set[Any] = set()
    waiting: dict[Any, list[Fields]] = {}
    for next_record in records:
        ready = [next_record]
        while ready:
            record = ready.pop()
            parent = record.get("parentUuid")
            if isinstance(parent, str) and parent in ids and parent not in written:
                waiting.setdefault(parent, []).append(record)
                continue
            result.append(record)
            if isinstance(uuid := record.get("uuid"), str):
                written.add(uuid)
                ready += reversed(waiting.pop(uuid, []))
    return result + [record for circle in waiting.values() for record in circle]


def _is_filler(record: Fields) -> bool:
    """Whether a record has the results that `_with_results` put in place of those that were not
    recorded.
    """
    parent = record.get("parentUuid")
    return isinstance(parent, str) and record.get("uuid") == _filler_id(parent)


def _filler_id(parent: str) -> str:
    return uuid_of(f"{parent}:{_NO_RESULT}")


def _with_results(records: list[Fields], after: list[Fields]) -> list[Fields]:
    """Return all records, and a result for each call that has none: Claude Code resumes no answer
    with an open call.

    The record of the result is told by its id. It stands behind the last record of the answer, and
    what answered that one answers it.
    """
    blocks = [(record, block) for record in records for block in _blocks(record)]
    known = [block.get("tool_use_id") for _, block in blocks if block.get("type") == "tool_result"]
    resolved = set(filter(is_text, known))
    calls: dict[str, list[str]] = {}
    for record, block in blocks:
        id = block.get("id")
        if block.get("type") == "tool_use" and isinstance(id, str) and id not in resolved:
            calls.setdefault(_answer_of(record), []).append(id)
    ends = {answer: record for record in records if (answer := _answer_of(record))}
    moved: dict[str, str] = {}
    result: list[Fields] = []
    for record in records:
        result.append(_relinked(record, "parentUuid", moved))
        answer, uuid = _answer_of(record), record.get("uuid")
        if answer in calls and record is ends[answer] and isinstance(uuid, str):
            moved[uuid] = _filler_id(uuid)
            content = [
                {"type": "tool_result", "tool_use_id": id, "content": _NO_RESULT}
                for id in calls[answer]
            ]
            about = {name: record[name] for name in (*_COMMON, "timestamp") if name in record}
            links = {"uuid": moved[uuid], "parentUuid": uuid}
            result.append(
                {**about, "type": "user", "message": {"role": "user", "content": content}, **links}
            )
    return result + [_relinked(record, "leafUuid", moved) for record in after]


def _relinked(record: Fields, key: str, moved: dict[str, str]) -> Fields:
    """A record that names the moved end of an answer, if it named its end."""
    link = record.get(key)
    return record | {key: moved[link]} if isinstance(link, str) and link in moved else record


def _blocks(record: Fields) -> list[Fields]:
    """The blocks of the content of a record."""
    return (
        objects_of(record["message"].get("content"))
        if isinstance(record.get("message"), dict)
        else []
    )


def _answer_of(record: Fields) -> str:
    """What the records of one answer share. Empty: it is no answer."""
    message = record.get("message")
    if record.get("type") != "assistant" or not isinstance(message, dict):
        return ""
    return str(message.get("id") or record.get("uuid"))


def _write(draft: Draft) -> bytes:
    head, source = without_source(draft.head)
    session, agent = (
        (uuid_of(draft.id), "")
        if draft.is_own
        else draft.id.split(":")[:2] + [""] * (":" not in draft.id)
    )
    common = _common(session, agent) | (
        {"cwd": draft.folder} if draft.is_own and draft.folder else {}
    )
    rest = {name: value for name, value in source.items() if name != "records"}
    groups, ends = _groups(draft, apply_difference(common, rest))
    after = list(source.get("records", ()))
    records = _in_order([record for group in groups for record in group])
    current = draft.metadata.get("currentNode")
    if draft.history and current is not None and current != draft.history[-1].get("id"):
        after.append(
            {
                "type": "last-prompt",
                "leafUuid": ends.get(current),
                "explicit": True,
                **_about(session, agent),
            }
        )
    again = next(
        iter(_drafts(enumerate(records + after), lambda reason, line: None)), Draft({}, [])
    )
    if "title" in head and again.head.get("title") != head["title"]:
        after.append(_title(head["title"], session, agent))
        again.head["title"] = head["title"]
    marker = []
    if draft.export_note:
        marker.append(draft.with_note({"type": CAPSULE_KEY, **_about(session, agent)}))
    return encoded_lines(marker + _with_results(records, after))


def _file_name(draft: Draft) -> str:
    """Its place below `~/.claude/projects`, as far as the folder is known in which the
    session was.
    """
    session, _, agent = draft.id.partition(":")
    path = f"{session}/subagents/agent-{agent}.jsonl" if agent else f"{uuid_of(session)}.jsonl"
    return f"{_key_of(draft.folder)}/{path}" if draft.folder else path


def _key_of(folder: str) -> str:
    """Return the name that Claude Code gives to the folder of a project. It counts in UTF-16, as
    JavaScript does.
    """
    data = folder.encode("utf-16-le", "surrogatepass")
    units = [int.from_bytes(data[at : at + 2], "little") for at in range(0, len(data), 2)]
    key = "".join(chr(unit) if unit < 128 and chr(unit).isalnum() else "-" for unit in units)
    if len(key) <= _LONGEST_KEY:
        return key
    hash = 0
    for unit in units:
        hash = (hash * 31 + unit) % (1 << 32)
    if hash >= 1 << 31:  # It has a sign there, which is left out.
        hash = (1 << 32) - hash
    return f"{key[:_LONGEST_KEY]}-{_base36(hash)}"


def _base36(number: int) -> str:
    digits = ""
    while number or not digits:
        number, digit = divmod(number, 36)
        digits = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + digits
    return digits


def _is_ours(record: Fields) -> bool:
    if "sessionId" in record:
        return "parentUuid" in record or record.get("type") in (*_ABOUT, CAPSULE_KEY)
    return record.get("type") in _ABOUT and ("leafUuid" in record or "messageId" in record)


def _is_part(source: Source) -> bool:
    """Whether it says what a subagent is, or lists the sessions."""
    return any(
        "agentType" in record or ("entries" in record and "originalPath" in record)
        for record in first(source)[:1]
    )


_PLACES = tuple(
    f"{folder}/projects/{files}"
    for folder in ("~/.claude", "~/.config/claude")
    for files in ("*/*.jsonl", "*/*/subagents/*.jsonl")
)
_MORE: Fields = {
    "is_part": _is_part,
    "file_name": _file_name,
    "embeds_files": True,
    "is_portable": False,
    "places": _PLACES,
}
FORMATS = [
    Format("claude-code", "Claude Code", by_record(_is_ours), _read, _write, ".jsonl", **_MORE)
]
