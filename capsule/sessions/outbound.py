"""The fold of a session's outbound file: what the worker said, and what it did with the messages it got.

What must stay true: as for `Inbound`. What is final stays final, whatever comes later. No file, no clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from capsule import timestamps
from capsule.sessions.cron import next_at
from capsule.sessions.events import Event
from capsule.sessions.inbound import Fold


@dataclass(frozen=True, slots=True)
class OutMessage:
    """What the worker said."""

    event: Event = field(repr=False)  # It as it stands in the file.
    id: str
    seq: int  # Its place in the order of both files.
    kind: str
    in_reply_to: str  # The message that it answers; empty: none.
    due: str  # From when on it is due; empty: at once. One that recurs is due at its first time.
    target: str  # The message that it changes or reacts to; empty: none.

    @classmethod
    def of(cls, event: Event) -> OutMessage:
        """The message of an event. Raises KeyError or TypeError if it is none."""
        get = event.get
        after = get("deliverAfter")
        if not after and get("recurrence"):
            after = next_at(event["recurrence"], event["timestamp"])
        due = timestamps.sortable(after) if after else ""
        id, seq, kind = str(event["id"]), int(get("seq", 0)), str(get("kind", "chat"))
        return cls(event, id, seq, kind, str(get("inReplyTo", "")), due, str(get("target", "")))

    @property
    def where(self) -> list[str]:
        """What tells where it went: the message that it answers, its destination and its thread; empty ones: none."""
        return [self.in_reply_to, str(self.event.get("to", "")), str(self.event.get("thread", ""))]


class Ack(NamedTuple):
    """The last word of a worker about a message."""

    state: str  # As in the event.
    tries: int  # The tries of the message at that time.
    instance: str  # The worker.
    at: str  # When it said so.
    batch: str  # The message that names the batch in which it was claimed.
    error: str = ""  # What failed; empty: nothing, or it is unknown.


class Tool(NamedTuple):
    """The tool that the agent uses now."""

    name: str
    limit_s: float = 0  # 0: none.


@dataclass
class Outbound(Fold):
    """What the events of an outbound file say."""

    messages: dict[str, OutMessage] = field(default_factory=dict)  # Of the file, by id, oldest first.
    #: Where each of the last messages went that a compaction took out, as `OutMessage.where`.
    said: dict[str, list[str]] = field(default_factory=dict)
    acks: dict[str, Ack] = field(default_factory=dict)  # The last one for each message that the worker got.
    claims: dict[str, Ack] = field(default_factory=dict)  # Those of them that are not `completed`.
    tool: Tool | None = None
    state: dict[str, dict[str, Any]] = field(default_factory=dict)  # What the worker keeps, by provider and key.

    def _take_message(self, event: Event) -> None:
        message = OutMessage.of(event)
        if message.id not in self.messages and message.id not in self.said:
            self.messages[message.id] = message
            self.open[message.id] = None
            self.highest = max(self.highest, message.seq)

    def _put(self, id: str, ack: Ack) -> None:
        before = self.acks.get(id)
        # A message that failed is claimed again only at a person's word, and has more tries then.
        is_final = before is not None and before.state in ("completed", "failed")
        if before is None or not is_final or (before.state == "failed" and ack.tries > before.tries):
            self.acks[id] = self.claims[id] = ack
            if ack.state == "completed":
                del self.claims[id]

    def _take_ack(self, event: Event) -> None:
        state, instance, at = event["state"], str(event.get("instance", "")), event.get("timestamp", "")
        batch, error = event.get("batch", ""), event.get("error", "")
        for id, tries in event["messages"].items():
            before = self.acks.get(id)
            self._put(id, Ack(state, int(tries), instance, at, batch or (before.batch if before else id), error))

    def _take_tool(self, event: Event) -> None:
        name = event.get("tool")
        self.tool = Tool(name, float(event.get("limitS") or 0)) if name else None

    def _take_state(self, event: Event) -> None:
        kept = self.state.setdefault(event.get("provider", ""), {})
        if event.get("value") is None:
            kept.pop(event["key"], None)
        else:
            kept[event["key"]] = event["value"]

    def _take_cleared(self, event: Event) -> None:
        self.state.pop(event.get("provider", ""), None)

    def _take_compacted(self, event: Event) -> None:
        self.highest = max(self.highest, int(event["seq"]))
        for id, where in event["said"].items():  # Older files have the answered message alone.
            self.said[id] = [where, "", ""] if isinstance(where, str) else where
        for id, ack in event["acks"].items():
            self._put(id, Ack(*ack))
        self.tool = Tool(*event["tool"]) if event.get("tool") else None
        self.state = {provider: dict(kept) for provider, kept in event["state"].items()}
