"""The rollouts of Codex: a file of JSON lines for each session.

Two streams are in it: what the model has (`response_item`), and what the screen shows
(`event_msg`), which mostly repeats it. Each message is taken once, and what only the screen has
too. What was undone (`thread_rolled_back`) is a branch. The items of one answer up to the next
result are one message.

What must stay true: the lines of a message are kept with it, in `metadata.source.lines`, without
the texts that it has; so what was read is written line for line. Messages have no ids there: their
places count, since a file only grows. A writer reads what it wrote, and keeps what is lost under
`capsule`, on the last line of the message. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import chain

from capsule.transfer.drafts.branches import active_line
from capsule.transfer.formats.agents.codex_lines import (
    EVENTS,
    Talk,
    parts_of,
    texts_of,
    unfolded,
    url_of,
)
from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    around,
    by_record,
    kept_of,
    read_records,
)
from capsule.transfer.records.calls import acceptable
from capsule.transfer.records.coercion import (
    UUID,
    encoded_lines,
    milliseconds,
    moment,
    objects_of,
    text_of,
    uuid_of,
)
from capsule.transfer.records.pairs import OWN, difference, without_source

Line = tuple[int | None, Fields]
#: The fields that an item of each type has at least.
_OF_AN_ITEM: dict[str, set[str]] = {
    "message": {"role", "content"},
    "function_call": {"name", "arguments", "call_id"},
    "function_call_output": {"call_id", "output"},
}
_KINDS = {"session_meta", "turn_context", "response_item", "event_msg", "compacted"}


def _draft(lines: list[Line], tell: Callable[[str, int | None], None], id: str) -> Draft | None:
    talk = Talk(
        text
        for _, line in lines
        for kind, said, _ in [parts_of(line)]
        if kind != "event_msg"
        for text in texts_of(kind, said)
    )
    for number, line in lines:
        with around(tell, "a line", number):
            kind, _, time = parts_of(line)
            if kind == "response_item" and "payload" in line and moment(time) is None:
                tell("a message without its time", number)
            if _is_odd(line):
                tell("a line that is not understood", number)
            talk.add(line)
    return talk.draft(id) if talk.entries or talk.own else None


def _is_odd(line: Fields) -> bool:
    """Whether a line lacks its kind, its payload, or a field that such an item has: then its
    message is not found.
    """
    kind, said, _ = parts_of(line)
    if "payload" not in line:  # The oldest lines have none.
        return line.get("type") in _KINDS or ("type" not in line and "role" in line)
    if kind not in ("response_item", "event_msg"):
        return "type" not in line
    return not _OF_AN_ITEM.get(str(said.get("type")), {"type"}) <= said.keys()


def _read(source: Source) -> Iterator[Draft]:
    lines: list[Line] = []
    for number, line in read_records(source):
        if isinstance(line.get("session"), dict) and isinstance(line.get("items"), list):
            lines += [(number, item) for item in [line["session"], *objects_of(line["items"])]]
        else:
            lines.append((number, line))
    named = re.findall(UUID, source.name)
    if (draft := _draft(lines, source.tell, named[-1] if named else "")) is not None:
        yield draft


def _made(said: Fields) -> Iterator[Fields]:
    """The payloads of the lines for a message that Codex did not write."""
    role, text, calls = said["role"], said["content"], said.get("toolCalls", ())
    if role == "tool" and isinstance(said.get("toolCallId"), str):
        yield {"type": "function_call_output", "call_id": said["toolCallId"], "output": text}
        return
    if role != "assistant":
        files = said.get("attachments", ()) if role == "user" else ()
        is_shown = all(
            "data" in file and str(file.get("type")).startswith("image/") for file in files
        )
        images = (
            [{"type": "input_image", "image_url": url_of(file)} for file in files]
            if is_shown
            else []
        )
        parts = [{"type": "input_text", "text": text}, *images]
        yield {
            "type": "message",
            "role": "developer" if role == "system" else "user",
            "content": parts,
        }
        if role == "user" and text.strip():
            yield {"type": "user_message", "message": text, "images": [], "kind": "plain"}
        return
    named = [
        call
        for call in calls
        if isinstance(call.get("id"), str) and isinstance(call.get("name"), str)
    ]
    if said.get("reasoning"):
        yield {"type": "agent_reasoning", "text": said["reasoning"]}
    if text:
        yield {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": text}],
        }
    if text or not (said.get("reasoning") or named):
        yield {"type": "agent_message", "message": text}
    for call in named:
        arguments = text_of(call.get("arguments", {}))
        yield {
            "type": "function_call",
            "name": call["name"],
            "arguments": arguments,
            "call_id": call["id"],
        }


def _lines(draft: Draft, history: list[Fields], clock: int) -> list[list[Fields]]:
    """The lines of each message. Those that Codex did not write end with a mark, so that nothing is
    joined to them.
    """
    made: list[list[Fields]] = []
    for entry in history:
        said, source = without_source(entry)
        clock = max(clock, milliseconds(said.get("timestamp")) or 0)
        if "lines" in source and entry.get("id") not in draft.edited:
            made.append([unfolded(line, said) for line in source["lines"]])
            continue
        made.append([])
        for payload in _made(acceptable(said)):
            kind = "event_msg" if payload["type"] in EVENTS else "response_item"
            made[-1].append({"timestamp": moment(clock), "type": kind, "payload": payload})
            clock += 1
        made[-1][-1][OWN] = {}
    return made


def _write(draft: Draft) -> bytes:
    history = active_line(draft.head, draft.history) if draft.is_own else draft.history
    _, source = without_source(draft.head)
    about = [dict(line) for line in source.get("lines", ())]
    made = _lines(draft, history, milliseconds(draft.head.get("createdAt")) or 0)
    if draft.id and not any(parts_of(line)[0] == "session_meta" for line in chain(about, *made)):
        about.insert(0, _meta(draft))
    again = _draft(
        [(None, line) for line in [*about, *chain(*made)]], lambda reason, line: None, ""
    ) or Draft({}, [])
    for lines, entry, reread in zip(made, history, again.history, strict=False):
        own = difference(without_source(entry)[0], without_source(reread)[0])
        if own or OWN in lines[-1]:
            lines[-1][OWN] = own
    last = (draft.history or [{}])[-1].get("id")
    own = difference(
        *(kept_of(head, lambda current: current != last) for head in (draft.head, again.head))
    )
    if draft.is_own:
        own["id"] = draft.id
    if len(history) < len(draft.history):
        line = {entry["id"] for entry in history}
        own["others"] = [entry for entry in draft.history if entry["id"] not in line]
        own["order"] = [entry["id"] for entry in draft.history]
    if own and about:
        about[0][OWN] = own
    return encoded_lines([*about, *chain(*made)])


def _began(draft: Draft) -> str:
    times = [entry["timestamp"] for entry in draft.history if "timestamp" in entry]
    return str(draft.head.get("createdAt") or min(times, default=moment(0)))


def _meta(draft: Draft) -> Fields:
    """The first line of a session, with what Codex needs to list it."""
    folder = draft.folder or "/"
    about = {
        "cwd": folder,
        "originator": "codex_cli_rs",
        "cli_version": "0.0.0",
        "instructions": None,
        "source": "cli",
    }
    payload = {"id": uuid_of(draft.id), "timestamp": _began(draft), **about}
    return {"timestamp": _began(draft), "type": "session_meta", "payload": payload}


def _file_name(draft: Draft) -> str:
    """Its place below `~/.codex`."""
    day, time = _began(draft)[:10], _began(draft)[:19].replace(":", "-")
    return f"sessions/{day.replace('-', '/')}/rollout-{time}-{uuid_of(draft.id)}.jsonl"


def _is_ours(line: Fields) -> bool:
    if isinstance(line.get("payload"), dict):
        return line.get("type") in _KINDS
    is_old = "timestamp" in line and ("instructions" in line or "git" in line)
    return ("id" in line and is_old) or (isinstance(line.get("session"), dict) and "items" in line)


_PLACES = (
    *(
        "~/.codex/sessions/*/*/*/*.jsonl",
        "~/.codex/archived_sessions/*.jsonl",
        "~/.codex/sessions/*.json",
    ),
    *("~/.codex/sessions/*/*/*/*.jsonl.zst", "~/.codex/archived_sessions/*.jsonl.zst"),
)
_ABOUT: Fields = {"file_name": _file_name, "embeds_files": True, "places": _PLACES}
FORMATS = [Format("codex", "Codex", by_record(_is_ours), _read, _write, ".jsonl", **_ABOUT)]
