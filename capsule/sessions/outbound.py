"""The fold of a session's outbound file: what the worker said, and what it did with the messages it
got.

What must stay true: as for `Inbound`. What is final stays final, whatever comes later. No file, no
clock.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from capsule import timestamps
from capsule.sessions import fields
from capsule.sessions.cron import next_at
from capsule.sessions.events import Event
from capsule.sessions.inbound import Fold, Handler


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
        """Return the message of an event that passes `fields.OUT_MESSAGE`, or
        of `events.outgoing`.
        """
        after = event.get("deliverAfter", "")
        if not after and "recurrence" in event:
            after = next_at(event["recurrence"], event["timestamp"])
        return cls(
            event=event,
            id=event["id"],
            seq=event.get("seq", 0),
            kind=event.get("kind", "chat"),
            in_reply_to=event.get("inReplyTo", ""),
            due=timestamps.sortable(after),
            target=event.get("target", ""),
        )

    @property
    def where(self) -> list[str]:
        """What tells where it went: the message that it answers, its destination and its thread;
        empty ones: none.
        """
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

    messages: dict[str, OutMessage] = field(
        default_factory=dict
    )  # Of the file, by id, oldest first.
    #: Where each of the last messages went that a compaction took out, as `OutMessage.where`.
    said: dict[str, list[str]] = field(default_factory=dict)
    acks: dict[str, Ack] = field(
        default_factory=dict
    )  # The last one for each message that the worker got.
    claims: dict[str, Ack] = field(default_factory=dict)  # Those of them that are not `completed`.
    tool: Tool | None = None
    state: dict[str, dict[str, Any]] = field(
        default_factory=dict
    )  # What the worker keeps, by provider and key.

    def _apply_message(self, event: Event) -> None:
        message = OutMessage.of(event)
        if message.id not in self.messages and message.id not in self.said:
            self.messages[message.id] = message
            self.open[message.id] = None
            self.highest = max(self.highest, message.seq)

    def _put(self, id: str, ack: Ack) -> None:
        before = self.acks.get(id)
        # A message that failed is claimed again only at a person's word, and has more tries then.
        is_final = before is not None and before.state in ("completed", "failed")
        if (
            before is None
            or not is_final
            or (before.state == "failed" and ack.tries > before.tries)
        ):
            self.acks[id] = self.claims[id] = ack
            if ack.state == "completed":
                del self.claims[id]

    def _apply_ack(self, event: Event) -> None:
        for id, tries in event["messages"].items():
            batch = event.get("batch", "")
            if not batch:
                before = self.acks.get(id)
                batch = before.batch if before else id
            self._put(
                id,
                Ack(
                    state=event["state"],
                    tries=tries,
                    instance=event.get("instance", ""),
                    at=event.get("timestamp", ""),
                    batch=batch,
                    error=event.get("error", ""),
                ),
            )

    def _apply_tool(self, event: Event) -> None:
        name = event.get("tool")
        self.tool = Tool(name, event.get("limitS", 0)) if name else None

    def _apply_state(self, event: Event) -> None:
        kept = self.state.setdefault(event.get("provider", ""), {})
        if event.get("value") is None:
            kept.pop(event["key"], None)
        else:
            kept[event["key"]] = event["value"]

    def _apply_cleared(self, event: Event) -> None:
        self.state.pop(event.get("provider", ""), None)

    def _apply_compacted(self, event: Event) -> None:
        self.highest = max(self.highest, event["seq"])
        self.said.update(event["said"])
        for id, ack in event["acks"].items():
            self._put(id, Ack(*ack))
        self.tool = Tool(*event["tool"]) if event["tool"] else None
        self.state = {provider: dict(kept) for provider, kept in event["state"].items()}

    handlers: ClassVar[Mapping[str, Handler]] = {
        "message": Handler(fields.OUT_MESSAGE, _apply_message),
        "ack": Handler(fields.ACK, _apply_ack),
        "tool": Handler(fields.TOOL, _apply_tool),
        "state": Handler(fields.STATE, _apply_state),
        "cleared": Handler(fields.CLEARED, _apply_cleared),
        "compacted": Handler(fields.OUT_COMPACTED, _apply_compacted),
    }
