"""`append`: add one message, or a stream of messages.

A stream has one JSON object in each line. The lines that are read at once are appended with one
flush, and their answers are printed together. If a line is wrong, the lines before it are appended.

What must stay true: an answer is printed only after the store has acknowledged its message. An
acknowledged message stays, whatever the next line contains. Only with `--no-wait` is a message
acknowledged before it is on the disk.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, BinaryIO

import orjson

from capsule.errors import InvalidDocument, InvalidInput
from capsule_cli.shared.inputs import STDIN, message_text
from capsule_cli.shared.options import File, From, Id, Role, argument, flag, option, refuse_if
from capsule_cli.shared.output import print_answer, print_stored_bytes
from capsule_cli.shared.stores import open_conversation, open_core_store

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


#: Most bytes that are read from the stream at once.
CHUNK = 1 << 18

#: The number of a line, and its message.
_Line = tuple[int, dict[str, Any]]


def append(
    id: Id,
    text: str | None = argument(
        "TEXT", "The text. Without it: the text of --file, or of standard input."
    ),
    role: Role = option("--role", "Set the role of the message.", "user"),
    from_: From = None,
    parent: str | None = option(
        "--parent MESSAGE",
        "Answer this message: its id, @N or @last; none: answer no message. Default: the end of "
        "the active branch.",
    ),
    file: File = None,
    jsonl: bool = flag(
        "--jsonl",
        'Read messages from standard input, one JSON object a line ({"role":..., "content":...}). '
        "Print a line "
        '{"id":..., "at":...} for each message as soon as it is safe on the disk.',
    ),
    no_wait: bool = flag(
        "--no-wait",
        "Do not wait for the disk: a message is acknowledged when every reader sees it, and is on "
        "the disk within a "
        "second. For output that comes in many small pieces.",
    ),
) -> None:
    """Add a message to a conversation and print its id. When the id is printed, the message is on
    the disk.
    """
    defaults: dict[str, Any] = {"role": role}
    if from_ is not None:
        defaults["from"] = from_
    if jsonl:
        refuse_if(
            text is not None or file is not None or parent is not None,
            "the messages come from standard input; give no text, no --file and no --parent",
            "--jsonl",
        )
        from capsule_cli.exits import SignalGuard

        with open_core_store(keep_locks=True) as store, SignalGuard():
            conversation_id = store.resolve(id)
            stream = sys.stdin.buffer
            for answers in append_stream(
                store, conversation_id, defaults, stream, wait=not no_wait
            ):
                print_stored_bytes(answers)
        return
    content = message_text(text, file)
    with open_conversation(id) as (store, conversation_id):
        if parent is not None:
            defaults["parent"] = _parent_id(store, conversation_id, parent)
        position, (message,) = store.append_entries(
            conversation_id, [{**defaults, "content": content}], wait=not no_wait
        )
    print_answer({"id": message["id"], "at": position}, message["id"], line=True)


def _parent_id(store: CoreStore, id: str, parent: str) -> str | None:
    """Return the id of the message that `--parent` names. None: the new message answers none."""
    if len(parent) == 36:
        return parent  # A complete id, which the append looks up itself.
    if parent == "none":
        return None
    return store.find_message(id, parent).id


def append_stream(
    store: CoreStore, id: str, defaults: Mapping[str, Any], source: BinaryIO, *, wait: bool = True
) -> Iterator[bytes]:
    """Append the messages of a stream. Yield the answers in batches, each after its messages are
    durable.

    Args:
        store: The store.
        id: The id of the conversation.
        defaults: The fields of messages that do not have them.
        source: The stream of lines.
        wait: Whether to wait until the messages are on the disk. If not, they can be read by then.

    Raises:
        InvalidInput: A line is not a message. The error has its number. The lines before it are
            appended.
    """
    for lines in _batches(source):
        messages: list[_Line] = []
        failure: InvalidInput | None = None
        for number, line in lines:
            try:
                messages.append((number, _message(line, number, defaults)))
            except InvalidInput as error:
                failure = error
                break
        if messages:
            yield from _append(store, id, messages, wait=wait)
        if failure:
            raise failure


def _append(store: CoreStore, id: str, messages: list[_Line], *, wait: bool) -> Iterator[bytes]:
    """Append messages, and yield their answers as lines of JSON."""
    try:
        first, entries = store.append_entries(id, [message for _, message in messages], wait=wait)
    except InvalidInput as error:
        if len(messages) == 1:
            raise _error_in_line(messages[0][0], error.message) from error
        # One of them is not accepted, so none was appended. One by one, those before it are.
        for line in messages:
            yield from _append(store, id, [line], wait=wait)
        return
    answers = ({"id": entry["id"], "at": position} for position, entry in enumerate(entries, first))
    yield b"".join(orjson.dumps(answer, option=orjson.OPT_APPEND_NEWLINE) for answer in answers)


def _batches(source: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """Yield the lines of a stream with their numbers, in batches as they arrive, without blank
    lines.
    """
    line_count = 0
    incomplete = bytearray()
    read = getattr(source, "read1", source.read)
    while chunk := read(CHUNK):
        incomplete += chunk
        if b"\n" not in chunk:
            continue
        *lines, incomplete = incomplete.split(b"\n")
        numbered = enumerate(lines, line_count + 1)
        yield [(number, bytes(line)) for number, line in numbered if line.strip()]
        line_count += len(lines)
    if incomplete.strip():
        yield [(line_count + 1, bytes(incomplete))]


def _message(line: bytes, number: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the message of a line, with the defaults. Raises InvalidInput: it is not a message."""
    from capsule.format.documents.message import check_message
    from capsule.format.json.codec import decode

    try:
        return check_message({**defaults, **decode(line, STDIN)})
    except InvalidDocument as error:
        problem = error.problems[0]
        raise _error_in_line(number, problem.what, f", column {problem.column}") from None
    except InvalidInput as error:
        raise _error_in_line(number, error.message) from None


def _error_in_line(number: int, reason: str, column: str = "") -> InvalidInput:
    return InvalidInput(
        f"{STDIN}, line {number}{column}: {reason}; this line was not appended; the lines "
        "before it were",
        line=number,
    )
