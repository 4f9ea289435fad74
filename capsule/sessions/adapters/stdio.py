"""The adapter of messages as lines of JSON, in and out: for tests, and for a program that runs a
host as its child.

Each line that comes in is one message. It is answered by a line with its id, or with an error. A
message that goes out is one line too. The module gets both streams from its caller, and knows
neither sessions nor the standard streams.

What must stay true:
- A line is answered with its id when its message is durable, and not before.
- The same line again changes nothing if it has an `id`. Another content under the id is an error.
- A line that cannot be taken is answered with an error, and the next one is read.
"""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import CapsuleError, InvalidInput
from capsule.ids import new_message_id
from capsule.sessions.adapters.interface import Adapter, OutgoingMessage, ReceivedMessage, Receiver

#: The fields of a message that must be texts if they exist.
_TEXT_FIELDS = ("id", "place", "thread", "from", "text", "title", "inReplyTo", "at")
#: Messages may come through fewer agents than this.
_MAX_HOPS = 1000


class StdioAdapter(Adapter):
    """The adapter of the channel `stdio`. A line names its place, or else its place is `stdio`.

    Args:
        lines: Gives the lines that come in. It ends when no more will come.
        write: Writes a line with its newline.
        on_end: Called when no more lines will come.
    """

    name = "stdio"

    def __init__(
        self, lines: Iterable[bytes], write: Callable[[bytes], object], on_end: Callable[[], object]
    ) -> None:
        self._lines = lines
        self._write = write
        self._on_end = on_end
        self._lock = threading.Lock()

    def start(self, receiver: Receiver) -> None:
        """Read lines until their end, in a thread of its own. Raises nothing."""
        # A read cannot be interrupted, so the thread must not keep the process alive.
        threading.Thread(
            target=self._read_lines, args=(receiver,), name="stdio", daemon=True
        ).start()

    def deliver(self, out: OutgoingMessage) -> str:
        """Write a message as a line, and return its id. The reader drops an id that comes again.

        Raises OSError.
        """
        self._write_line(as_json(out))
        return out.id

    def stop(self) -> None:
        """Do nothing. The thread ends with its stream."""

    def _read_lines(self, receiver: Receiver) -> None:
        try:
            for line in filter(bytes.strip, self._lines):
                self._write_line(self._answer_line(receiver, line))
        except OSError:
            pass  # Nobody reads the answers any more, so nobody sends lines either.
        finally:
            self._on_end()

    def _answer_line(self, receiver: Receiver, line: bytes) -> dict[str, Any]:
        """Give the message of a line to the host, and return the answer to the line."""
        try:
            received = parse_message(line, channel=self.name, place=self.name, id=new_message_id())
            receiver.receive([received])
        except CapsuleError as error:
            return {"error": error.message, "code": error.exit_code}
        return {"received": received.id}

    def _write_line(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            self._write(orjson.dumps(value) + b"\n")


def parse_message(data: bytes, *, channel: str, place: str, id: str) -> ReceivedMessage:
    """Return the message of a JSON object.

    The object has a `text`, and perhaps `id`, `place`, `thread`, `from`, `title`, `inReplyTo`,
    `at`, `group`, `mentions`, `hops`, and `known` (false: the sender is a stranger).

    Args:
        data: The object, encoded.
        channel: The channel of the message.
        place: The place of a message that has none.
        id: The id of a message that has none.

    Raises InvalidInput if it is no such object.
    """
    try:
        fields = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"this is not valid JSON: {error}") from None
    if not isinstance(fields, dict) or not isinstance(fields.get("text"), str):
        raise InvalidInput('a message is a JSON object with a text, such as {"text": "Hello."}')
    wrong_names = _wrong_fields(fields)
    if wrong_names:
        raise InvalidInput(f"{', '.join(wrong_names)}: not of the type that a message needs")
    return ReceivedMessage(
        id=fields.get("id") or id,
        channel=channel,
        place=fields.get("place") or place,
        thread=fields.get("thread", ""),
        sender=fields.get("from") or channel,
        text=fields["text"],
        at=fields.get("at") or timestamps.now(),
        title=fields.get("title", ""),
        is_group=fields.get("group") is True,
        mentions=frozenset(fields.get("mentions", [])),
        reply_to=fields.get("inReplyTo", ""),
        hops=fields.get("hops", 0),
        known=fields.get("known") is not False,
    )


def _wrong_fields(fields: Mapping[str, Any]) -> list[str]:
    """Return the names of the fields whose values have a wrong type."""
    wrong_names = [name for name in _TEXT_FIELDS if not isinstance(fields.get(name, ""), str)]
    mentions = fields.get("mentions", [])
    is_list = isinstance(mentions, list)
    if not is_list or not all(isinstance(name, str) for name in mentions):
        wrong_names.append("mentions")
    hops = fields.get("hops", 0)
    if not isinstance(hops, int) or not 0 <= hops < _MAX_HOPS:
        wrong_names.append("hops")
    return wrong_names


def as_json(out: OutgoingMessage) -> dict[str, Any]:
    """Return an outgoing message as JSON, without empty fields."""
    files = [{"name": file.name, "data": b64encode(file.read()).decode()} for file in out.files]
    fields = {
        "id": out.id,
        "kind": out.kind,
        "place": out.place,
        "thread": out.thread,
        "from": out.agent,
        "text": out.text,
        "inReplyTo": out.reply_to,
        "target": out.target,
        "emoji": out.emoji,
        "options": [dict(option) for option in out.options],
        "files": files,
        "hops": out.hops,
    }
    return {name: value for name, value in fields.items() if value}
