"""Read and write trajectories of agents, ATIF 1.7 and earlier: a JSON object with steps.

A step of an agent has its message, its tool calls, and the results that it observed. It becomes a
message and one for each result. Embedded trajectories of subagents are conversations of their own,
and so is a file that continues this one. A deviation from the format is reported, and a step that
can't be read is left out.

A written file has the active branch as steps. The note of an export is under `extra.capsule`, since
readers accept no other keys. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import orjson

from capsule.transfer.drafts.conversion import active_path
from capsule.transfer.interface import (
    Draft,
    Format,
    Source,
    first_records,
    read_records,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records import turns
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    Column,
    Fields,
    counts_of,
    json_of,
    moment,
    object_of,
    objects_of,
    pair_of,
    text_of,
    with_nonempty,
    without,
)
from capsule.transfer.records.turns import TurnPair

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_SOURCES = {"system": "system", "user": "user", "assistant": "agent", "tool": "system"}
_TOKENS = {
    "inputTokens": "prompt_tokens",
    "outputTokens": "completion_tokens",
    "cachedTokens": "cached_tokens",
}
_VERSION = "ATIF-v1.7"
_KNOWN_VERSIONS = {f"ATIF-v1.{minor}" for minor in range(8)}
#: The fields of embedded trajectories, and of the path of the file that continues this one.
_SUBAGENTS = "subagent_trajectories"
_CONTINUATION = "continued_trajectory_ref"
_Report = Callable[..., None]


def _read_content(content: Any) -> Fields:
    """Return text and attachments of a content."""
    if not isinstance(content, list):
        return {"content": text_of(content)}
    parts = objects_of(content)
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    files = [part["source"] for part in parts if isinstance(part.get("source"), dict)]
    return with_nonempty({"content": "\n\n".join(texts)}, attachments=[*map(_read_file, files)])


def _read_file(file: Fields) -> Fields:
    path = text_of(file.get("path"))
    return {
        "name": path.rpartition("/")[2] or "file",
        "type": text_of(file.get("media_type")) or "file",
        "url" if "://" in path else "reference": path,
    }


def _write_content(entry: Fields) -> Any:
    images = []
    for attachment in entry.get("attachments", ()):
        path = attachment.get("url") or attachment.get("reference") or attachment.get("path")
        media_type = attachment.get("type")
        if path and text_of(media_type).startswith("image/"):
            source = {"media_type": media_type, "path": text_of(path)}
            images.append({"type": "image", "source": source})
    if not images:
        return entry["content"]
    if not entry["content"]:
        return images
    return [{"type": "text", "text": entry["content"]}, *images]


def _read_call(call: Fields) -> Fields:
    fields = {"name": text_of(call.get("function_name"))}
    fields = with_nonempty(fields, id=text_of(call.get("tool_call_id")))
    return fields | {"arguments": json_of(call.get("arguments"))}


def _read(step: Fields) -> list[Fields]:
    """Return the messages of a step: its message, and each result of its observation."""
    entry = {
        "role": _ROLES.get(text_of(step.get("source")), "assistant"),
        **_read_content(step.get("message")),
    }
    entry = with_nonempty(
        entry,
        model=text_of(step.get("model_name")),
        reasoning=text_of(step.get("reasoning_content")),
        toolCalls=[_read_call(call) for call in objects_of(step.get("tool_calls"))],
        metadata=with_nonempty({}, usage=counts_of(step.get("metrics"), _TOKENS)),
    )
    entries = [entry]
    for result in objects_of(object_of(step.get("observation")).get("results")):
        result_entry = {"role": "tool", **_read_content(result.get("content"))}
        call_id = text_of(result.get("source_call_id"))
        entries.append(with_nonempty(result_entry, toolCallId=call_id))
    if len(entries) > 1 and entry == {"role": "system", "content": ""}:
        del entries[0]  # The step has an observation and no message.
    time = moment(step.get("timestamp"))
    if time:
        for message in entries:
            message["timestamp"] = time
    id = text_of(step.get("step_id"))
    if id:
        entries[-1]["id"] = id
    return entries


def _write(entries: list[Fields]) -> Fields:
    """Return the step for a message and the results of its calls."""
    head = entries[0]
    step: Fields = {}
    id = text_of(entries[-1].get("id"))
    if id.isascii() and id.isdigit():
        step["step_id"] = int(id)
    if "timestamp" in head:
        step["timestamp"] = head["timestamp"]
    step["source"] = _SOURCES[head["role"]]
    step["message"] = "" if head["role"] == "tool" else _write_content(head)
    calls: dict[Any, Fields] = {}
    for number, call in enumerate(head.get("toolCalls", ()), 1):
        calls[call.get("id") or f"call_{number}"] = call
    if head["role"] == "assistant":
        usage = head.get("metadata", {}).get("usage", {})
        metrics = {key: usage[name] for name, key in _TOKENS.items() if name in usage}
        step |= with_nonempty(
            {},
            model_name=head.get("model"),
            reasoning_content=head.get("reasoning"),
            tool_calls=[_write_call(call_id, call) for call_id, call in calls.items()],
            metrics=metrics,
        )
    results = []
    for entry in entries:
        if entry["role"] != "tool":
            continue
        result: Fields = {}
        if entry.get("toolCallId") in calls:
            result["source_call_id"] = entry["toolCallId"]
        result["content"] = _write_content(entry)
        results.append(result)
    if results:
        step["observation"] = {"results": results}
    return step


def _write_call(id: str, call: Fields) -> Fields:
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        arguments = {"input": arguments}
    return {"tool_call_id": id, "function_name": text_of(call.get("name")), "arguments": arguments}


_HEAD = pair_of(
    Column("schema_version", default=_VERSION),
    Column("trajectory_id", "id", text_of),
    Column("session_id", "id", text_of),
    Column("agent", default={"name": "capsule", "version": "2.1"}),
)
_STEP = TurnPair(read=_read, write=_write, from_source=dict, to_source=dict)


def _plain_draft(
    record: Fields, report_problem: _Report = lambda *damage: None, line: int | None = None
) -> Draft:
    """Return the draft of a trajectory, without the fields under `extra.capsule`."""
    steps = record["steps"] if isinstance(record.get("steps"), list) else []
    history: list[Fields] = []
    ids: set[Any] = set()
    for number, step in enumerate(steps, 1):
        if not isinstance(step, dict):
            report_problem(f"entry {number} of the steps is not a step", line)
            continue
        entries: list[Fields] = []
        with reporting_damage(report_problem, f"step {number}", line):
            entries = _STEP.to_capsule(step)
        if entries and len(ids) == len(history):
            # All ids differ so far. Otherwise the order of the steps is the parent.
            entries[0]["parent"] = history[-1]["id"] if history else None
        history += entries
        ids.update(entry["id"] for entry in entries if "id" in entry)
    head = _HEAD.to_capsule(without(record, "steps", _SUBAGENTS))
    if history and "id" in history[-1]:
        head["metadata"] = head.get("metadata", {}) | {"currentNode": history[-1]["id"]}
    return Draft(head, history, line)


def _check(record: Fields, report_problem: _Report, line: int) -> None:
    """Report all deviations of a trajectory from its format."""
    version = text_of(record.get("schema_version"))
    if version not in _KNOWN_VERSIONS:
        report_problem(f"the version {version!r:.60} is unknown", line)
    if not _HEAD.read(record):
        report_problem("a trajectory without an id", line)
    if not isinstance(record.get("steps"), list):
        report_problem("a trajectory without steps", line)
        return
    expected_number = 1
    for position, step in enumerate(record["steps"], 1):
        if not isinstance(step, dict):
            continue
        for problem in _step_problems(step, expected_number):
            report_problem(f"step {position} {problem}", line)
        number = step.get("step_id")
        if type(number) is int:
            expected_number = number
        expected_number += 1


def _step_problems(step: Fields, expected_number: int) -> Iterator[str]:
    """Return the deviations of a step from its format, as ends of a sentence."""
    number = step.get("step_id")
    source = text_of(step.get("source"))
    calls = objects_of(step.get("tool_calls"))
    call_ids = {
        call.get("tool_call_id") for call in calls if isinstance(call.get("tool_call_id"), str)
    }
    results = object_of(step.get("observation")).get("results", [])
    answered_ids = [text_of(result.get("source_call_id")) for result in objects_of(results)]
    unknown_ids = set(answered_ids) - call_ids - {""}
    if number != expected_number:
        yield f"has the number {text_of(number)!r:.30}"
    if source not in _ROLES:
        yield f"is of {source!r:.30}"
    if not isinstance(step.get("message"), str | list):
        yield "has no message"
    if step.get("timestamp") is not None and moment(step["timestamp"]) is None:
        yield "has an invalid time"
    yield from _call_problems(step, calls)
    if type(step.get("observation") or {}) is not dict:
        yield "has an invalid observation"
    if not isinstance(results, list) or len(answered_ids) != len(results):
        yield "has invalid results"
    if unknown_ids:
        yield "has a result without a call"


def _call_problems(step: Fields, calls: list[Fields]) -> Iterator[str]:
    """Return the deviations of the calls of a step. `calls` are those that are objects."""
    if calls != (step.get("tool_calls") or []):
        yield "has invalid calls"
    if any(type(call.get("arguments")) is not dict for call in calls):
        yield "has a call whose arguments are not an object"


def _drafts(record: Fields, line: int, source: Source, **links: str) -> Iterator[Draft]:
    """Return the drafts of a trajectory, its subagents, and the file that continues it.

    `links` are fields of the metadata that name a conversation of the same source.
    """
    extra = object_of(record.get("extra"))
    note = extra.get(CAPSULE_KEY)
    if isinstance(note, dict):
        extra = without(extra, CAPSULE_KEY)
        record = without(record, "extra")
        if extra:
            record["extra"] = extra
    _check(record, source.tell, line)
    draft = _plain_draft(record, source.tell, line)
    draft.head |= with_nonempty({}, metadata=draft.metadata | links)
    draft.export_note = object_of(note)
    draft.is_own = isinstance(draft.export_note.get("id"), str)
    _attach_files(draft, source)
    yield draft
    subagents = record.get(_SUBAGENTS)
    for number, trajectory in enumerate(subagents if isinstance(subagents, list) else (), 1):
        if isinstance(trajectory, dict):
            id = text_of(trajectory.get("trajectory_id")) or str(number)
            subagent = {**trajectory, "trajectory_id": f"{draft.id}/{id}"}
            yield from _drafts(subagent, line, source, sourceConversationId=draft.id)
        else:
            source.tell(f"trajectory {number} of a subagent is invalid", line)
    reference = text_of(record.get(_CONTINUATION))
    if not reference:
        return
    for file in source.near(reference):
        for next_line, next_record in read_records(file):
            continuation = {"trajectory_id": f"{draft.id}/{reference}", **next_record}
            yield from _drafts(continuation, next_line, file, forkedFrom=draft.id)


def _attach_files(draft: Draft, source: Source) -> None:
    """Give the attachments of a draft the files that they refer to, as their data."""
    for entry in draft.history:
        for attachment in entry.get("attachments", ()):
            reference = text_of(attachment.get("reference"))
            if "sha256" in attachment or not reference:
                continue
            for file in source.near(reference):
                attachment["data"] = file


def _read_file_of(source: Source) -> Iterator[Draft]:
    for line, record in read_records(source):
        with reporting_damage(source.tell, "a trajectory", line):
            yield from _drafts(record, line, source)


def _write_file_of(draft: Draft) -> bytes:
    branch = active_path(draft.head, draft.history)
    steps, _ = turns.records_of(replace(draft, history=branch), _STEP, _is_step)
    for number, step in enumerate(steps, 1):
        step.setdefault("step_id", number)
    record = _HEAD.to_record(draft.head, is_edited=draft.is_edited)
    record["steps"] = steps
    if draft.export_note:
        record["extra"] = draft.with_note(object_of(record.get("extra")))
    return orjson.dumps(record)


def _is_step(entries: list[Fields]) -> bool:
    """Return whether messages go into one step: an answer, and results of its calls."""
    answer, *results = entries
    call_ids = [call.get("id") for call in answer.get("toolCalls", ())]
    return answer["role"] == "assistant" and all(
        entry["role"] == "tool" and entry.get("toolCallId") in call_ids for entry in results
    )


def _is_trajectory(record: Fields) -> bool:
    return text_of(record.get("schema_version")).startswith("ATIF-")


_recognizes = recognizes_record(_is_trajectory)


def _is_part(source: Source) -> bool:
    """Return whether another file names this one as its continuation."""
    if not _recognizes(source):
        return False
    name = source.name.rpartition("/")[2]
    for file in source.near("*.json"):
        if file.name == source.name:
            continue
        for record in first_records(file):
            continuation = text_of(record.get(_CONTINUATION)).rpartition("/")[2]
            if _is_trajectory(record) and continuation == name:
                return True
    return False


FORMATS = [
    Format(
        "atif",
        "ATIF trajectory",
        recognizes=_recognizes,
        read=_read_file_of,
        write=_write_file_of,
        is_part=_is_part,
        is_portable=False,
    )
]
