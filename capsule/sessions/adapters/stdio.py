"""Messages as lines of JSON, in and out: for tests, and for a program that has a host run inside
it.

What must stay true: a line is acknowledged when its message is durable, and not before; the same
line again changes nothing if it has an `id`, and other content under that is an error; a line that
can't be taken is answered with an error, and the next one is read. The module is given both streams
and knows neither sessions nor which standard streams there are.
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

#: The fields of a message that must be texts if they are there.
_TEXTS = ("id", "place", "thread", "from", "text", "title", "inReplyTo", "at")


class StdioAdapter(Adapter):
    """See the module. The channel: `stdio`; a place: what a line says, else `stdio`.

    Args:
        lines: Gives the lines that come in, and ends when no more will come.
        write: Takes a line that goes out, with its newline.
        ended: Called when no more lines will come.
    """

    name = "stdio"

    def __init__(
        self, lines: Iterable[bytes], write: Callable[[bytes], object], ended: Callable[[], object]
    ) -> None:
        self._lines = lines
        self._write = write
        self._ended = ended
        self._guard = threading.Lock()

    def start(self, receiver: Receiver) -> None:
        """Read lines until there are no more, in a thread of its own. Raises nothing."""
        # A read can't be interrupted, so the thread must not keep the process alive.
        threading.Thread(target=self._read, args=(receiver,), name="stdio", daemon=True).start()

    def deliver(self, out: OutgoingMessage) -> str:
        """Write a message as a line; its id. Raises OSError. The reader drops an id that comes
        again.
        """
        self._tell(as_json(out))
        return out.id

    def stop(self) -> None:
        """Raises nothing. The thread ends with its stream."""

    def _read(self, receiver: Receiver) -> None:
        try:
            for line in filter(bytes.strip, self._lines):
                self._tell(self._taken(receiver, line))
        except OSError:
            pass  # Nobody reads the answers any more, which is an end too.
        finally:
            self._ended()

    def _taken(self, receiver: Receiver, line: bytes) -> dict[str, Any]:
        """The answer to a line."""
        try:
            arrived = arrived_from(line, channel=self.name, place=self.name, id=new_message_id())
            receiver.receive([arrived])
        except CapsuleError as error:
            return {"error": error.message, "code": error.exit_code}
        return {"received": arrived.id}

    def _tell(self, value: Mapping[str, Any]) -> None:
        with self._guard:
            self._write(orjson.dumps(value) + b"\n")


def arrived_from(data: bytes, *, channel: str, place: str, id: str) -> ReceivedMessage:
    """The message that a JSON object is: `text`, and if given `id`, `place`, `thread`, `from`,
    `title`, `inReplyTo`, `at`, `group`, `mentions`, `hops`, and `known` (false: the sender is a
    stranger).

    Args:
        data: The object.
        channel, place, id: What it is by itself; the object's own `place` and `id` come before
            these.

    Raises InvalidInput: it is no such object.
    """
    try:
        said = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"this is not valid JSON: {error}") from None
    if not isinstance(said, dict) or not isinstance(said.get("text"), str):
        raise InvalidInput('a message is a JSON object with a text, such as {"text": "Hello."}')
    wrong = [name for name in _TEXTS if not isinstance(said.get(name, ""), str)]
    mentions, hops = said.get("mentions", []), said.get("hops", 0)
    wrong += (
        []
        if isinstance(mentions, list) and all(isinstance(name, str) for name in mentions)
        else ["mentions"]
    )
    wrong += [] if isinstance(hops, int) and 0 <= hops < 1000 else ["hops"]
    if wrong:
        raise InvalidInput(f"{', '.join(wrong)}: not of the type that a message needs")
    return ReceivedMessage(
        id=said.get("id") or id,
        channel=channel,
        place=said.get("place") or place,
        thread=said.get("thread", ""),
        sender=said.get("from") or channel,
        text=said["text"],
        at=said.get("at") or timestamps.now(),
        title=said.get("title", ""),
        is_group=said.get("group") is True,
        mentions=frozenset(mentions),
        reply_to=said.get("inReplyTo", ""),
        hops=hops,
        known=said.get("known") is not False,
    )


def as_json(out: OutgoingMessage) -> dict[str, Any]:
    """A message that goes out, without the fields that it does not have."""
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
        "files": [
            {"name": file.name, "data": b64encode(file.read()).decode()} for file in out.files
        ],
        "hops": out.hops,
    }
    return {name: value for name, value in fields.items() if value}
