"""`append`: one message, or a stream of them.

What must stay true: a line of the answer is written only when the store has acknowledged its
message, and every message that was acknowledged stays, whatever the next line holds. Only with
`--no-wait` is it acknowledged before it is on the disk.
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


#: Bytes taken from a stream at once; what is already there goes to the disk with one flush.
CHUNK = 1 << 18

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
    defaults: dict[str, Any] = {"role": role} if from_ is None else {"role": role, "from": from_}
    if jsonl:
        other = text is not None or file is not None or parent is not None
        refuse_if(
            other,
            "the messages come from standard input; give no text, no --file and no --parent",
            "--jsonl",
        )
        from capsule_cli.signals import SignalGuard

        with open_core_store(keep_locks=True) as store, SignalGuard():
            for batch in appended(
                store, store.resolve(id), defaults, sys.stdin.buffer, wait=not no_wait
            ):
                print_stored_bytes(batch)
        return
    content = message_text(text, file)
    with open_conversation(id) as (store, id):
        if parent is not None:
            # A full id is left to the append to look for.
            known = len(parent) == 36
            defaults["parent"] = (
                parent if known else None if parent == "none" else store.find_message(id, parent).id
            )
        at, (message,) = store.append_entries(
            id, [{**defaults, "content": content}], wait=not no_wait
        )
    print_answer({"id": message["id"], "at": at}, message["id"], line=True)


def appended(
    store: CoreStore, id: str, defaults: Mapping[str, Any], source: BinaryIO, *, wait: bool = True
) -> Iterator[bytes]:
    """Append the messages in `source` to the conversation; give the answers in batches, each once
    it is durable, or unless it is to `wait`, once it is there to be read.

    Raises:
        InvalidInput: A line is no message, by its number; what stood before it is appended.
    """
    for lines in _batches(source):
        messages: list[_Line] = []
        wrong: InvalidInput | None = None
        for number, line in lines:
            try:
                messages.append((number, _message(line, number, defaults)))
            except InvalidInput as error:
                wrong = error
                break
        if messages:
            yield from _append(store, id, messages, wait=wait)
        if wrong:
            raise wrong


def _append(store: CoreStore, id: str, messages: list[_Line], *, wait: bool) -> Iterator[bytes]:
    try:
        at, entries = store.append_entries(id, [message for _, message in messages], wait=wait)
    except InvalidInput as error:
        if len(messages) == 1:
            raise _at_line(messages[0][0], error.message) from error
        # One of them can't be accepted, so none was appended: one by one, those before it are.
        for line in messages:
            yield from _append(store, id, [line], wait=wait)
        return
    answers = ({"id": entry["id"], "at": place} for place, entry in enumerate(entries, at))
    yield b"".join(orjson.dumps(reply, option=orjson.OPT_APPEND_NEWLINE) for reply in answers)


def _batches(source: BinaryIO) -> Iterator[list[tuple[int, bytes]]]:
    """The lines of `source` with their numbers, as they come; blank ones are left out."""
    number, begun = 0, bytearray()
    read = getattr(source, "read1", source.read)
    while chunk := read(CHUNK):
        begun += chunk
        if b"\n" not in chunk:
            continue
        *lines, last = begun.split(b"\n")
        yield [(number + at, bytes(line)) for at, line in enumerate(lines, 1) if line.strip()]
        number, begun = number + len(lines), last
    if begun.strip():
        yield [(number + 1, bytes(begun))]


def _message(line: bytes, number: int, defaults: Mapping[str, Any]) -> dict[str, Any]:
    from capsule.format.documents.message import check_message
    from capsule.format.json.codec import decode

    try:
        return check_message({**defaults, **decode(line, STDIN)})
    except InvalidDocument as error:
        problem = error.problems[0]
        raise _at_line(number, problem.what, f", column {problem.column}") from None
    except InvalidInput as error:
        raise _at_line(number, error.message) from None


def _at_line(number: int, reason: str, column: str = "") -> InvalidInput:
    return InvalidInput(
        f"{STDIN}, line {number}{column}: {reason}; this line was not appended; the lines "
        "before it were",
        line=number,
    )
