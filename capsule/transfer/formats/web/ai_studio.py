"""Read the prompts of Google AI Studio, which it keeps in Google Drive: a JSON file for each chat.

The name of the file is the title of the chat. A chat is a line of chunks. A thought is a chunk
before its answer, and is joined with it. Neither chunks nor chats have ids: the position of a
message is its id, and the start time of a chat, if it has one. Pure, and read-only.
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
from capsule.transfer.records.mapping import (
    counts_of,
    moment,
    object_of,
    objects_of,
    text_of,
    text_of_part,
    with_nonempty,
    without,
)

#: The fields of a chunk with a file in them, and those with the id of a file in Google Drive or of
#: a video of YouTube.
_INLINE_FILES = ("inlineData", "inlineImage", "inlineFile", "inlineAudio")
_LINKED_FILES = ("driveDocument", "driveImage", "driveVideo", "driveAudio", "youtubeVideo")
#: The fields of a chunk with a field of ours.
_CHUNK_FIELDS = (
    "role",
    "text",
    "parts",
    "isThought",
    "createTime",
    "tokenCount",
    *_INLINE_FILES,
    *_LINKED_FILES,
)


def _text(value: Any) -> str:
    """Return the text of a chunk or of instructions: its own, or that of its parts."""
    fields = object_of(value)
    texts = map(text_of_part, fields.get("parts") or ())
    return text_of(fields.get("text")) or "".join(filter(None, texts))


def _files(chunk: Fields) -> Iterator[Fields]:
    """Return the attachments of a chunk and its parts. Damaged data is left out."""
    for holder in (chunk, *objects_of(chunk.get("parts"))):
        for kind in _INLINE_FILES:
            file = object_of(holder.get(kind))
            if not file:
                continue
            name = text_of(file.get("fileName")) or kind
            media_type = text_of(file.get("mimeType")) or "file"
            with suppress(ValueError):
                data = b64decode(text_of(file.get("data")))
                yield {"name": name, "type": media_type, "data": data}
    for kind in _LINKED_FILES:
        file = object_of(chunk.get(kind))
        if file:
            yield {"name": kind, "type": "file", "reference": text_of(file.get("id"))}


def _entry(chunk: Fields, model: str) -> Fields:
    """Return the message of a chunk. `model` is the model of the chat."""
    is_thought = chunk.get("isThought") is True
    is_answer = chunk.get("role") == "model"
    if is_thought:
        count_name = "reasoningTokens"
    elif is_answer:
        count_name = "outputTokens"
    else:
        count_name = "inputTokens"
    text = _text(chunk)
    unmapped = with_nonempty({}, **without(chunk, *_CHUNK_FIELDS))
    usage = counts_of(chunk, {count_name: "tokenCount"})
    return with_nonempty(
        {"role": "assistant" if is_answer else "user", "content": "" if is_thought else text},
        timestamp=moment(chunk.get("createTime")),
        model=model if is_answer else "",
        metadata=with_nonempty({}, usage=usage, source=unmapped),
        reasoning=text if is_thought else "",
        attachments=[*_files(chunk)],
    )


def _joined(thought: Fields, answer: Fields) -> Fields:
    """Return a thought joined with the next message: an answer, or one more thought."""
    reasoning = [thought.get("reasoning"), answer.get("reasoning")]
    thought_metadata = thought.get("metadata", {})
    answer_metadata = answer.get("metadata", {})
    metadata = {
        name: thought_metadata.get(name, {}) | answer_metadata.get(name, {})
        for name in ("usage", "source")
    }
    return with_nonempty(
        thought | answer,
        reasoning="\n\n".join(filter(None, reasoning)),
        attachments=[*thought.get("attachments", ()), *answer.get("attachments", ())],
        metadata=with_nonempty({}, **metadata),
    )


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
    id = ""
    if chunks and not is_branch:
        id = text_of(chunks[0].get("createTime"))
    title = source.name.rpartition("/")[2].removesuffix(".json")
    if title == "-":
        title = ""
    unmapped = with_nonempty({}, **without(record, "chunkedPrompt", "systemInstruction"))
    instructions = _text(record.get("systemInstruction"))
    head = with_nonempty(
        {},
        id=id,
        title=title,
        metadata=with_nonempty({}, source=unmapped),
        context={"fullContext": instructions} if instructions else {},
    )
    return Draft(head, history, line)


def _is_chat(record: Fields) -> bool:
    return isinstance(object_of(record.get("chunkedPrompt")).get("chunks"), list)


FORMATS = [
    Format(
        "ai-studio",
        "Google AI Studio",
        recognizes=recognizes_record(_is_chat),
        read=reader_of_items(_draft),
    )
]
