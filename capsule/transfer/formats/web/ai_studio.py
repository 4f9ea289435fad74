"""The prompts of Google AI Studio, which it keeps in Google Drive: a file of JSON for each chat,
called by its title.

A chat is a line of chunks. A thought is a chunk before the answer that it belongs to. Neither
chunks nor chats have ids: the place of a message counts, and the time at which a chat began, if it
says that. Pure, and read-only.
"""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from capsule.transfer.interface import (
    Draft,
    Fields,
    Format,
    Source,
    reader_of_items,
    recognizes_record,
)
from capsule.transfer.records.coercion import (
    counts_of,
    moment,
    object_of,
    objects_of,
    text_of,
    text_of_part,
    with_nonempty,
    without,
)

#: Files in a chunk, and those of Google Drive and YouTube, of which it has the id.
_INLINE = ("inlineData", "inlineImage", "inlineFile", "inlineAudio")
_ELSEWHERE = ("driveDocument", "driveImage", "driveVideo", "driveAudio", "youtubeVideo")
_OF_A_CHUNK = (
    "role",
    "text",
    "parts",
    "isThought",
    "createTime",
    "tokenCount",
    *_INLINE,
    *_ELSEWHERE,
)


def _text(value: Any) -> str:
    """The text of a chunk or of instructions: its own, or that of its parts."""
    fields = object_of(value)
    return text_of(fields.get("text")) or "".join(
        filter(None, map(text_of_part, fields.get("parts") or ()))
    )


def _files(chunk: Fields) -> Iterator[Fields]:
    for holder in (chunk, *objects_of(chunk.get("parts"))):
        for kind in _INLINE:
            if file := object_of(holder.get(kind)):
                made = {
                    "name": text_of(file.get("fileName")) or kind,
                    "type": text_of(file.get("mimeType")) or "file",
                }
                with suppress(ValueError):
                    yield made | {"data": b64decode(text_of(file.get("data")))}
    for kind in _ELSEWHERE:
        if file := object_of(chunk.get(kind)):
            yield {"name": kind, "type": "file", "reference": text_of(file.get("id"))}


def _entry(chunk: Fields, model: str) -> Fields:
    is_thought, is_answer = chunk.get("isThought") is True, chunk.get("role") == "model"
    count = "reasoningTokens" if is_thought else "outputTokens" if is_answer else "inputTokens"
    entry = {
        "role": "assistant" if is_answer else "user",
        "content": "" if is_thought else _text(chunk),
    }
    about = with_nonempty(
        {},
        usage=counts_of(chunk, {count: "tokenCount"}),
        source=with_nonempty({}, **without(chunk, *_OF_A_CHUNK)),
    )
    entry = with_nonempty(
        entry, timestamp=moment(chunk.get("createTime")), model=is_answer and model, metadata=about
    )
    return with_nonempty(entry, reasoning=is_thought and _text(chunk), attachments=[*_files(chunk)])


def _joined(thought: Fields, answer: Fields) -> Fields:
    """A thought with what follows it: an answer, or more thoughts."""
    reasoning = "\n\n".join(filter(None, (thought.get("reasoning"), answer.get("reasoning"))))
    files = [*thought.get("attachments", ()), *answer.get("attachments", ())]
    before, after = thought.get("metadata", {}), answer.get("metadata", {})
    about = with_nonempty(
        {}, **{name: before.get(name, {}) | after.get(name, {}) for name in ("usage", "source")}
    )
    return with_nonempty(thought | answer, reasoning=reasoning, attachments=files, metadata=about)


def _draft(record: Fields, line: int, source: Source) -> Draft:
    chunks = objects_of(object_of(record["chunkedPrompt"]).get("chunks"))
    model = text_of(object_of(record.get("runSettings")).get("model")).removeprefix("models/")
    history: list[Fields] = []
    was_thought = False
    for chunk in chunks:
        entry = _entry(chunk, model)
        if was_thought and entry["role"] == "assistant":
            entry = _joined(history.pop(), entry)
        history.append(entry)
        was_thought = chunk.get("isThought") is True
    # A branch begins as a copy of another chat, at the same time.
    is_branch = any("branchParent" in chunk for chunk in chunks)
    id = "" if is_branch or not chunks else text_of(chunks[0].get("createTime"))
    left = with_nonempty({}, **without(record, "chunkedPrompt", "systemInstruction"))
    title, system = (
        source.name.rpartition("/")[2].removesuffix(".json"),
        _text(record.get("systemInstruction")),
    )
    head = with_nonempty(
        {}, id=id, title="" if title == "-" else title, metadata=with_nonempty({}, source=left)
    )
    return Draft(
        with_nonempty(head, context={"fullContext": system} if system else {}), history, line
    )


_recognizes = recognizes_record(
    lambda record: isinstance(object_of(record.get("chunkedPrompt")).get("chunks"), list)
)
FORMATS = [Format("ai-studio", "Google AI Studio", _recognizes, reader_of_items(_draft))]
