"""What both files of a session add up to, and what of it a compacted file keeps.

What must stay true: the events of a compacted file fold to a state that answers every question as
before, and no more of them stay than there is unfinished work, and windows of a fixed size. No
file, no clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from hashlib import blake2b
from typing import Any, Literal, NamedTuple, TypeVar

import orjson

from capsule.errors import NotFound
from capsule.sessions.events import Event
from capsule.sessions.inbound import Fold, Inbound, InMessage, Notice
from capsule.sessions.outbound import Outbound, OutMessage

#: The last three are final.
Status = Literal["pending", "processing", "released", "completed", "failed", "cancelled"]
FINAL = frozenset({"completed", "failed", "cancelled"})
#: How many messages that are done keep their ids in a compacted file, so that none is taken for a
#: new one.
WINDOW = 1000
#: How many messages that nothing picks, and how many events that are only read by people, a
#: compacted file keeps.
KEPT = 100
_T = TypeVar("_T")


class Folds(NamedTuple):
    """The folds of both files of a session. Attributes: that of the host's, and that of the
    worker's.
    """

    inbound: Inbound
    outbound: Outbound

    @property
    def session(self) -> str:
        """The session's id."""
        return self.inbound.session

    @property
    def highest(self) -> int:
        """The highest number of a message."""
        return max(self.inbound.highest, self.outbound.highest)

    def status(self, id: str) -> Status:
        """What became of a message for the worker. Raises NotFound: there is none, or it is long
        gone.
        """
        inbound, ack = self.inbound, self.outbound.acks.get(id)
        message, ended = inbound.messages.get(id), inbound.ended.get(id)
        if message is None and id not in inbound.left:
            raise NotFound(f"no message {id} in session {inbound.session}", id=id)
        if ack is not None and ack.state == "completed":
            return "completed"  # Also if it was cancelled at the same time: its answer is there.
        if message is None or ended == "cancelled":
            return "cancelled" if ended == "cancelled" else "failed" if ended else "completed"
        if ended or (
            ack is not None and ack.state == "failed" and ack.tries >= message.event.get("again", 0)
        ):
            return "failed"
        if ack is None or ack.tries < message.tries:
            return "pending"
        return "processing" if ack.state == "processing" else "released"

    def unfinished(self) -> Iterator[InMessage]:
        """The messages in that are not finished, oldest first. Forgets those that are: final stays
        final.
        """
        for id in list(self.inbound.open):
            if self.status(id) in FINAL:
                self.inbound.open.pop(id, None)
            else:
                yield self.inbound.messages[id]

    def undelivered(self) -> Iterator[OutMessage]:
        """The messages out that are neither delivered nor given up, oldest first. Forgets the
        others.
        """
        inbound, outbound = self
        for id in [
            *outbound.open,
            *(inbound.again.keys() - outbound.open.keys() & outbound.messages.keys()),
        ]:
            message = outbound.messages[id]
            is_settled = id in inbound.delivered or id in inbound.undeliverable
            is_settled |= 0 < message.seq <= inbound.settled and id not in inbound.again
            if is_settled or inbound.ended.get(id) == "cancelled":
                outbound.open.pop(id, None)
            else:
                yield message

    def notices(self) -> dict[str, Notice]:
        """Return the notices to senders that are not delivered, by their ids.

        They leave out messages that were answered after all.
        """
        notices = {}
        for id, notice in self.inbound.notices.items():
            known = [message for message in notice.messages if message in self.inbound.messages]
            failed = tuple(message for message in known if self.status(message) == "failed")
            if failed:
                notices[id] = notice._replace(messages=failed)
        return notices

    def compacted_inbound(self, now: str) -> list[Event]:
        """The events that a compacted inbound file has at a time. Cost: proportional to
        the file.
        """
        inbound, outbound = self
        undelivered = list(self.undelivered())
        settled = min((message.seq - 1 for message in undelivered), default=outbound.highest)
        ahead = {message.id for message in outbound.messages.values() if message.seq > settled}
        heads, said = set(inbound.series.values()), {message.in_reply_to for message in undelivered}
        notices = self.notices()
        telling = {id for notice in notices.values() for id in notice.messages}
        kept: list[InMessage] = []
        gone: list[InMessage] = []
        ended, idle = dict(inbound.ended), 0
        for message in reversed(inbound.messages.values()):
            state, stays = self.status(message.id), True
            if state in FINAL:
                recurs = message.id in heads and "recurrence" in message.event
                recurs &= ended.get(message.id) != "cancelled"
                is_noted = state != "failed" or message.id in inbound.ended
                stays = recurs or not is_noted or message.id in said or message.id in telling
            elif state == "pending" and message.is_idle:
                idle, state = idle + 1, "cancelled"
                stays = idle <= KEPT
            (kept if stays else gone).append(message)
            if not stays and state == "completed":
                ended.pop(message.id, None)
            elif not stays:
                ended[message.id] = state
        left = _windowed(
            inbound.left | {message.id: digest(message.event) for message in reversed(gone)}, ()
        )
        known = left.keys() | {message.id for message in kept} | ahead
        snapshot = _snapshot(
            inbound,
            now,
            left=left,
            ended={id: state for id, state in ended.items() if id in known},
            settled=max(settled, inbound.settled),
            delivered=_windowed(inbound.delivered, ahead),
            undeliverable=_windowed(inbound.undeliverable, ahead),
            again=list(inbound.again),
            attempts={
                id: list(tried)
                for id, tried in inbound.attempts.items()
                if id in outbound.messages or id in inbound.notices
            },
            notices={
                id: [notice.sender, list(notice.messages), notice.reason]
                for id, notice in notices.items()
            },
            failures={
                sender: list(counts) for sender, counts in _windowed(inbound.failures, ()).items()
            },
            destinations=inbound.destinations,
            route=inbound.route.written() if inbound.route else None,
            paused=sorted(inbound.paused & ({""} | inbound.series.keys())),
        )
        return [snapshot, *(message.event for message in reversed(kept)), *inbound.others[-KEPT:]]

    def compacted_outbound(self, now: str) -> list[Event]:
        """As `compacted_inbound`, of the outbound file: an ack leaves if its message left the
        inbound.
        """
        inbound, outbound = self
        kept = {message.id: message for message in self.undelivered()}
        said = {id: message.where for id, message in outbound.messages.items() if id not in kept}
        said = outbound.said | said
        snapshot = _snapshot(
            outbound,
            now,
            said=_windowed(
                said, [id for id, where in said.items() if where[0] in inbound.messages]
            ),
            acks={id: list(ack) for id, ack in outbound.acks.items() if id in inbound.messages},
            tool=list(outbound.tool) if outbound.tool else None,
            state=outbound.state,
        )
        return [snapshot, *(message.event for message in kept.values()), *outbound.others[-KEPT:]]


def digest(event: Event) -> str:
    """The digest of what a message says."""
    said = [event.get(name) for name in ("content", "attachments", "question", "value")]
    return blake2b(orjson.dumps(said, option=orjson.OPT_SORT_KEYS), digest_size=8).hexdigest()


def _snapshot(fold: Fold, now: str, **fields: Any) -> Event:
    begin = {
        "role": "system",
        "content": "",
        "event": "compacted",
        "timestamp": now,
        "seq": fold.highest,
    }
    return begin | fields


def _windowed(values: dict[str, _T], live: Iterable[str]) -> dict[str, _T]:
    """The last of some values, and those whose keys are `live`."""
    cut, live = len(values) - WINDOW, frozenset(live)
    return {id: value for at, (id, value) in enumerate(values.items()) if at >= cut or id in live}
