"""Trajectories of agents, ATIF 1.7 and before: steps with tool calls, and what was observed after
them.

A step of an agent is a message and those of its observation; embedded trajectories of subagents are
conversations of their own. A file that is written has the active branch as steps, and what they
can't say under `extra.capsule`, since readers accept no other keys. Pure.
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
    by_record,
    first,
    read_records,
    reporting_damage,
)
from capsule.transfer.records import turns
from capsule.transfer.records.coercion import (
    counts_of,
    filled,
    json_of,
    moment,
    object_of,
    objects_of,
    rest,
    text_of,
)
from capsule.transfer.records.round_trip import CAPSULE_KEY, Column, Fields, pair_of
from capsule.transfer.records.turns import TurnPair

_ROLES = {"system": "system", "user": "user", "agent": "assistant"}
_SOURCES = {"system": "system", "user": "user", "assistant": "agent", "tool": "system"}
_TOKENS = {
    "inputTokens": "prompt_tokens",
    "outputTokens": "completion_tokens",
    "cachedTokens": "cached_tokens",
}
_VERSION = "ATIF-v1.7"
_KNOWN = {f"ATIF-v1.{n}" for n in range(8)}
_BELOW, _CONTINUED = "subagent_trajectories", "continued_trajectory_ref"


def _read_content(content: Any) -> Fields:
    if not isinstance(content, list):
        return {"content": text_of(content)}
    texts = [part["text"] for part in objects_of(content) if isinstance(part.get("text"), str)]
    files = [
        object_of(part["source"])
        for part in objects_of(content)
        if isinstance(part.get("source"), dict)
    ]
    return filled({"content": "\n\n".join(texts)}, attachments=[_read_file(file) for file in files])


def _read_file(file: Fields) -> Fields:
    path = text_of(file.get("path"))
    made = {
        "name": path.rpartition("/")[2] or "file",
        "type": text_of(file.get("media_type")) or "file",
    }
    return made | {"url" if "://" in path else "reference": path}


def _write_content(entry: Fields) -> Any:
    images = [
        {"type": "image", "source": {"media_type": file["type"], "path": text_of(path)}}
        for file in entry.get("attachments", ())
        if text_of(file.get("type")).startswith("image/")
        and (path := file.get("url") or file.get("reference") or file.get("path"))
    ]
    text = [{"type": "text", "text": entry["content"]}] if entry["content"] else []
    return [*text, *images] if images else entry["content"]


def _read_call(call: Fields) -> Fields:
    made = filled(
        {"name": text_of(call.get("function_name"))}, id=text_of(call.get("tool_call_id"))
    )
    return made | {"arguments": json_of(call.get("arguments"))}


def _read(step: Fields) -> list[Fields]:
    """The messages of a step: what was said, and each result of its observation."""
    results = objects_of(object_of(step.get("observation")).get("results"))
    time = moment(step.get("timestamp"))
    usage = counts_of(step.get("metrics"), _TOKENS)
    entries = [
        filled(
            {
                "role": _ROLES.get(text_of(step.get("source")), "assistant"),
                **_read_content(step.get("message")),
            },
            model=text_of(step.get("model_name")),
            reasoning=text_of(step.get("reasoning_content")),
            toolCalls=[_read_call(call) for call in objects_of(step.get("tool_calls"))],
            metadata=filled({}, usage=usage),
        )
    ]
    for result in results:
        said = {"role": "tool", **_read_content(result.get("content"))}
        entries.append(filled(said, toolCallId=text_of(result.get("source_call_id"))))
    if len(entries) > 1 and entries[0] == {"role": "system", "content": ""}:
        del entries[0]  # Something was observed, and nothing said.
    for entry in entries:
        if time:
            entry["timestamp"] = time
    if id := text_of(step.get("step_id")):
        entries[-1]["id"] = id
    return entries


def _write(entries: list[Fields]) -> Fields:
    said, id = entries[0], text_of(entries[-1].get("id"))
    step: Fields = {"step_id": int(id)} if id.isascii() and id.isdigit() else {}
    if "timestamp" in said:
        step["timestamp"] = said["timestamp"]
    step |= {
        "source": _SOURCES[said["role"]],
        "message": "" if said["role"] == "tool" else _write_content(said),
    }
    calls = {
        call.get("id") or f"call_{n}": call for n, call in enumerate(said.get("toolCalls", ()), 1)
    }
    if said["role"] == "assistant":
        usage = said.get("metadata", {}).get("usage", {})
        step |= filled({}, model_name=said.get("model"), reasoning_content=said.get("reasoning"))
        made = [_write_call(id, call) for id, call in calls.items()]
        counts = {name: usage[ours] for ours, name in _TOKENS.items() if ours in usage}
        step |= filled({}, tool_calls=made, metrics=counts)
    results = [
        ({"source_call_id": entry["toolCallId"]} if entry.get("toolCallId") in calls else {})
        | {"content": _write_content(entry)}
        for entry in entries
        if entry["role"] == "tool"
    ]
    return step | ({"observation": {"results": results}} if results else {})


def _write_call(id: str, call: Fields) -> Fields:
    arguments = call.get("arguments", {})
    arguments = arguments if isinstance(arguments, dict) else {"input": arguments}
    return {"tool_call_id": id, "function_name": text_of(call.get("name")), "arguments": arguments}


_HEAD = pair_of(
    Column("schema_version", default=_VERSION),
    Column("trajectory_id", "id", text_of),
    Column("session_id", "id", text_of),
    Column("agent", default={"name": "capsule", "version": "2.1"}),
)
_STEP = TurnPair(_read, _write, dict, dict)


def _plain_draft(
    record: Fields, tell: Callable[..., None] = lambda *damage: None, line: int | None = None
) -> Draft:
    """The draft of a trajectory, without what is under `extra.capsule`."""
    steps = record["steps"] if isinstance(record.get("steps"), list) else []
    history: list[Fields] = []
    ids: dict[Any, None] = {}
    for place, step in enumerate(steps, 1):
        if not isinstance(step, dict):
            tell(f"step {place} is none", line)
            continue
        entries: list[Fields] = []
        with reporting_damage(tell, f"step {place}", line):
            entries = _STEP.to_capsule(step)
        if entries and len(ids) == len(
            history
        ):  # So far each has its own; else the order is the line.
            entries[0]["parent"] = history[-1]["id"] if history else None
        history += entries
        ids |= {entry["id"]: None for entry in entries if "id" in entry}
    head = _HEAD.to_capsule(rest(record, "steps", _BELOW))
    if history and "id" in history[-1]:
        head["metadata"] = head.get("metadata", {}) | {"currentNode": history[-1]["id"]}
    return Draft(head, history, line)


def _check(record: Fields, tell: Callable[..., None], line: int) -> None:
    """Tell what of a trajectory is not as its format says."""
    if text_of(record.get("schema_version")) not in _KNOWN:
        tell(f"the version {text_of(record.get('schema_version'))!r:.60} is unknown", line)
    if not _HEAD.read(record):
        tell("a trajectory without an id", line)
    if not isinstance(record.get("steps"), list):
        tell("a trajectory without steps", line)
        return
    expected = 1
    for place, step in enumerate(record["steps"], 1):
        if not isinstance(step, dict):
            continue
        calls = objects_of(step.get("tool_calls"))
        results = object_of(step.get("observation")).get("results", [])
        called = {
            call.get("tool_call_id") for call in calls if isinstance(call.get("tool_call_id"), str)
        }
        answered = [text_of(result.get("source_call_id")) for result in objects_of(results)]
        odd = {
            f"has the number {text_of(step.get('step_id'))!r:.30}": step.get("step_id") != expected,
            f"is of {text_of(step.get('source'))!r:.30}": text_of(step.get("source")) not in _ROLES,
            "has no message": not isinstance(step.get("message"), str | list),
            "has a time that is none": step.get("timestamp") is not None
            and moment(step["timestamp"]) is None,
            "has calls that are none": calls != (step.get("tool_calls") or []),
            "has a call whose arguments are no object": any(
                type(call.get("arguments")) is not dict for call in calls
            ),
            "has an observation that is none": type(step.get("observation") or {}) is not dict,
            "has results that are none": not isinstance(results, list)
            or len(answered) != len(results),
            "has a result of no call": any(id and id not in called for id in answered),
        }
        for problem in (problem for problem, is_so in odd.items() if is_so):
            tell(f"step {place} {problem}", line)
        expected = step["step_id"] + 1 if type(step.get("step_id")) is int else expected + 1


def _drafts(record: Fields, line: int, source: Source, **related: str) -> Iterator[Draft]:
    """The draft of a trajectory, and those of its subagents and of the file that continues it."""
    extra = object_of(record.get("extra"))
    own = extra.get(CAPSULE_KEY)
    if isinstance(own, dict):
        extra = rest(extra, CAPSULE_KEY)
        record = rest(record, "extra") | ({"extra": extra} if extra else {})
    _check(record, source.tell, line)
    draft = _plain_draft(record, source.tell, line)
    draft.head |= filled({}, metadata=draft.metadata | related)
    draft.export_note = object_of(own)
    draft.is_own = isinstance(draft.export_note.get("id"), str)
    for file in (
        file
        for entry in draft.history
        for file in entry.get("attachments", ())
        if "sha256" not in file
    ):
        for content in (
            source.near(text_of(file.get("reference"))) if text_of(file.get("reference")) else ()
        ):
            file["data"] = content
    yield draft
    below = record.get(_BELOW)
    for nth, trajectory in enumerate(below if isinstance(below, list) else (), 1):
        if isinstance(trajectory, dict):
            id = text_of(trajectory.get("trajectory_id")) or str(nth)
            inner = {**trajectory, "trajectory_id": f"{draft.id}/{id}"}
            yield from _drafts(inner, line, source, sourceConversationId=draft.id)
        else:
            source.tell(f"trajectory {nth} of a subagent is none", line)
    if reference := text_of(record.get(_CONTINUED)):
        for file in source.near(reference):
            for at, more in read_records(file):
                more = {"trajectory_id": f"{draft.id}/{reference}", **more}
                yield from _drafts(more, at, file, forkedFrom=draft.id)


def _read_file_of(source: Source) -> Iterator[Draft]:
    for line, record in read_records(source):
        with reporting_damage(source.tell, "a trajectory", line):
            yield from _drafts(record, line, source)


def _write_file_of(draft: Draft) -> bytes:
    line = active_path(draft.head, draft.history)
    records, _ = turns.records_of(replace(draft, history=line), _STEP, _is_step)
    for place, step in enumerate(records, 1):
        step.setdefault("step_id", place)
    record = _HEAD.to_record(draft.head, is_edited=draft.is_edited)
    record = record | {"steps": records}
    if draft.export_note:
        record["extra"] = draft.with_note(object_of(record.get("extra")))
    return orjson.dumps(record)


def _is_step(entries: list[Fields]) -> bool:
    """Whether messages go into one step: an agent, and results of its calls."""
    said, *results = entries
    ids = [call.get("id") for call in said.get("toolCalls", ())]
    are_results = all(
        entry["role"] == "tool" and entry.get("toolCallId") in ids for entry in results
    )
    return said["role"] == "assistant" and are_results


def _is_ours(record: Fields) -> bool:
    return text_of(record.get("schema_version")).startswith("ATIF-")


_recognizes = by_record(_is_ours)


def _is_part(source: Source) -> bool:
    """Whether another file names this one as its continuation."""
    name = source.name.rpartition("/")[2]
    return _recognizes(source) and any(
        _is_ours(record) and text_of(record.get(_CONTINUED)).rpartition("/")[2] == name
        for other in source.near("*.json")
        if other.name != source.name
        for record in first(other)
    )


FORMATS = [
    Format(
        "atif",
        "ATIF trajectory",
        _recognizes,
        _read_file_of,
        _write_file_of,
        is_part=_is_part,
        is_portable=False,
    )
]
