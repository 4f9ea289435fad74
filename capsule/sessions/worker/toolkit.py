"""What an agent does in its session besides answering: what its tools call.

What must stay true: it writes to its own session only, and to whom the map of destinations names,
as does a store that acts for it (`restrict_to_destinations`). What it says has an id made of the
message that is being answered and of its number in this try: when a try is repeated, what the one
before has said is not said again, and the agent is told what that was.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

from capsule import timestamps
from capsule.errors import InvalidInput, NotFound, Refused
from capsule.ids import check_id, new_message_id
from capsule.sessions.events import (
    RECURRENCE_FIELDS,
    cleared_event,
    outbound_message,
    reply_id,
    state_event,
)
from capsule.sessions.registry import Registry
from capsule.sessions.rules import schedules
from capsule.sessions.rules.deliveries import number_replies, writable_conversations
from capsule.sessions.rules.messages import complete_for_tool
from capsule.sessions.session import Session

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.rules.consent import PolicyInputs
    from capsule.rules.policy import PolicyTarget
    from capsule.sessions.events import Event, TaskAction
    from capsule.sessions.session_state import OutboundMessage, SessionState
    from capsule.store.store import CoreStore


#: Bytes of the keys and texts that a session keeps for its later runs.
MAX_STATE_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class SendResult:
    """What was said."""

    id: str
    #: None: it was said now. Else nothing was, as an earlier try said something with this number:
    #: this text.
    earlier: str | None = None


def restrict_to_destinations(store: CoreStore, session: str) -> None:
    """Let a store that acts for an agent write only where the agent may send in a session.

    Args:
        store: The store. Whatever it does reads the files of the session from then on.
        session: The session's id.

    Raises Refused: it is no session of this agent.
    """
    engine, state_of = store.inner.whole_engine, store.inner.inputs_for
    row = Registry(engine).read().sessions.get(session)
    if row is None or row.agent != store.agent:
        whose = f"is {row.agent}'s" if row else "is not in this store"
        raise Refused(
            f"session {session[:80]} {whose}, so it can't act for {store.agent or 'the owner'}",
            path="",
        )

    def within(object: PolicyTarget | None, others: Iterable[str]) -> PolicyInputs:
        return replace(
            state_of(object, others),
            session_targets=writable_conversations(Session(engine, session).read()),
        )

    store.inner.inputs_for = within


class Toolkit:
    """The tools of an agent in one session, for one batch of messages. Several threads may use it.

    What is said is durable when a method returns. All of them raise Refused for a destination that
    is not in the map, and InvalidInput for a time that can't be read or a text that is too long.
    Raises Refused for a session of another agent than the one that the store acts for.

    Args:
        store: The store; also one that acts for the agent.
        session: The session's id.
        message: The message that the batch is named after; empty: there is none, so a repeated call
            says a thing again.
        folder: The folder whose files may be sent; None: none.
    """

    def __init__(
        self, store: CoreStore, session: str, message: str = "", folder: str | None = None
    ) -> None:
        self.engine: Engine = store.inner.whole_engine
        self.session = check_id(session)
        row = Registry(self.engine).read().sessions.get(session)
        if store.agent not in (None, row and row.agent):
            raise Refused(f"session {session} does not belong to {store.agent}", path="")
        self._instance = store.instance_id
        self._message = message
        self._folder = folder
        self._most = store.settings.message_bytes
        self._numbers = count(1)

    @property
    def _session(self) -> Session:
        return Session(self.engine, self.session)  # Of one thread.

    def send_message(
        self, text: str, *, to: str = "", thread: str = "", deliver_after: str = ""
    ) -> SendResult:
        """Send a message.

        Args:
            text: The text.
            to: The name of a destination; empty: where the message being answered came from.
            thread: The thread there; empty: that of the message being answered.
            deliver_after: From when on it is delivered (ISO 8601); empty: at once.
        """
        return self._say(
            content=text, to=to or None, thread=thread or None, deliver_after=deliver_after or None
        )

    def send_file(self, path: str, *, text: str = "", to: str = "") -> SendResult:
        """Send a file of the folder. No link leads out of it. Raises NotFound, Refused. Args: as
        `send_message`.
        """
        data, name = self._content(path), os.path.basename(path)
        kept = f"{sha256(data).hexdigest()[:16]}-{name}"
        files = [{"name": name, "path": kept}]
        return self._say({kept: data}, kind="file", content=text, to=to or None, attachments=files)

    def edit_message(self, message: str, text: str) -> SendResult:
        """Change a message that was sent before. Raises NotFound."""
        return self._say(kind="edit", content=text, target=message, **self._where(message))

    def add_reaction(self, message: str, emoji: str) -> SendResult:
        """React to a message of the session, in or out. Raises NotFound."""
        inbound = self._session.read().inbound
        is_in = message in inbound.messages or message in inbound.compacted_digests
        where = {"in_reply_to": message} if is_in else self._where(message)
        return self._say(kind="reaction", emoji=emoji, target=message, **where)

    def ask_question(
        self, text: str, options: Sequence[Mapping[str, str]], *, limit_s: float, to: str = ""
    ) -> SendResult:
        """Ask people a question; `answer` has what they say.

        Args:
            text: The question.
            options: What it may be answered with, each with `label` and `value`.
            limit_s: Seconds after which an answer comes too late.
            to: As `send_message`.
        """
        if not options or not all(
            option.get("label") and option.get("value") for option in options
        ):
            raise InvalidInput("options: each has a label and a value, and there is at least one")
        ends = timestamps.canonical(
            (timestamps.parse(timestamps.now()) + timedelta(seconds=limit_s)).isoformat()
        )
        return self._say(
            kind="question", content=text, options=options, expires_at=ends, to=to or None
        )

    def answer(self, question: str) -> Event | None:
        """The answer to a question, with its `value` and whom it is `from`; None: there is none
        yet.

        An answer that is not taken so wakes the session once its worker is at rest.

        Raises NotFound; Refused: its time is over, or it was withdrawn. Cost: a look at each
        message of the session, and an append, the first time.
        """
        session = self._session
        ends = _own_message(session, question).event.get("expiresAt")
        if ends is None:
            raise NotFound(f"message {question} is not a question", id=question)
        messages = session.read().inbound.messages.values()
        answers = [message for message in messages if message.event.get("question") == question]
        for message in answers:
            if message.wakes:  # Others came too late, or after this one.
                session.write_outbound(
                    partial(complete_for_tool, id=message.id, instance=self._instance)
                )
                return message.event
        if timestamps.now() > ends or any("value" not in message.event for message in answers):
            raise Refused(
                f"question {question}: nobody answered in time, or it was withdrawn", path=""
            )
        return None

    def schedule(self, action: TaskAction, series: str = "", **fields: str) -> SendResult:
        """Ask the host to make, update, cancel, pause or resume a task.

        Args:
            action: What to do.
            series: The task's id; for `make` none: it is the id of what is returned.
            fields: Of `prompt`, `cron`, `timeZone`, `catchUp`, `processAfter` those that it is to
                have.

        Raises NotFound; InvalidInput: cron or a time zone can't be read, or a new task has no
        prompt or no time.
        """
        if action == "make" and not fields.get("prompt"):
            raise InvalidInput("a task needs a prompt")
        return self._say(
            kind="task", task={"action": action, **({"series": series} if series else {}), **fields}
        )

    def scheduled(self) -> list[dict[str, Any]]:
        """The tasks of the session that are not over: `series`, `prompt`, `next`, `paused` and when
        they recur.
        """
        session = self._session
        session_state = session.read()
        return [
            {
                "series": id,
                "prompt": row.event["content"],
                "next": row.due,
                "paused": id in session_state.inbound.paused,
            }
            | {
                name: value
                for name, value in (row.event.get("recurrence") or {}).items()
                if name in RECURRENCE_FIELDS
            }
            for id, row in schedules.live_occurrences(session_state).items()
        ]

    def kept(self) -> dict[str, Any]:
        """What this session keeps for its later runs, by key; another provider keeps its own."""
        return dict(self._session.read().outbound.state.get(self._provider, {}))

    def keep(self, key: str, value: str = "") -> None:
        """Keep a text under a key for later runs; empty: nothing any more. Raises InvalidInput:
        that is too much.
        """
        if (
            value
            and sum(
                len(f"{name}{text}".encode()) for name, text in {**self.kept(), key: value}.items()
            )
            > MAX_STATE_BYTES
        ):
            raise InvalidInput(f"a session keeps at most {MAX_STATE_BYTES} bytes")
        self._session.write_outbound(
            lambda session_state: [
                state_event(key=key, value=value or None, provider=self._provider)
            ]
        )

    def clear(self) -> None:
        """Keep nothing any more, also not what the command goes on with."""
        self._session.write_outbound(lambda session_state: [cleared_event(provider=self._provider)])

    @property
    def _provider(self) -> str:
        return Registry(self.engine).read().provider(self.session)

    def _say(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        content: str = "",
        task: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> SendResult:
        if len(content.encode("utf-8", "replace")) > self._most:
            raise InvalidInput(f"the text has more than {self._most} bytes; send it as a file")
        number = next(self._numbers) if self._message else None
        id = reply_id(self.session, self._message, number) if number else new_message_id()
        fields = {"in_reply_to": self._message or None, "number": number, "task": task} | fields
        session = self._session

        def say(session_state: SessionState) -> list[Event]:
            answered = session_state.inbound.messages.get(self._message)
            hops = 1 + (answered.event.get("hops", 0) if answered else 0)
            said = number_replies(
                session_state, [outbound_message(id=id, content=content, hops=hops, **fields)]
            )
            if said and task:
                schedules.apply_task(
                    session_state, task, id, timestamps.now()
                )  # The host does it: here it is checked.
            return said

        if session.write_outbound(say, files):
            return SendResult(id)
        before = session.read().outbound.messages.get(id)
        words = (
            (before.event.get(name) for name in ("content", "prompt", "emoji", "action"))
            if before
            else ()
        )
        return SendResult(id, str(next(filter(None, words), "")))

    def _where(self, sent: str) -> dict[str, Any]:
        """Where a message went, for what follows it; also if a compaction took it out."""
        outbound = self._session.read().outbound
        answered, to, thread = (
            outbound.compacted_routes.get(sent) or _own_message(self._session, sent).route_fields
        )
        return {"to": to or None, "thread": thread or None, "in_reply_to": answered or None}

    def _content(self, path: str) -> bytes:
        folder = os.path.realpath(self._folder or os.devnull)
        real = os.path.realpath(os.path.join(folder, path))
        if not real.startswith(f"{folder}{os.sep}"):
            raise Refused(
                f"{path}: only files of {self._folder or 'a folder'} can be sent", path=path
            )
        try:
            with open(real, "rb", opener=_open_no_follow) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > self._most:
                    raise Refused(
                        f"{path} can't be sent: it is not a file, or has over {self._most} bytes",
                        path=path,
                    )
                return file.read()
        except OSError as error:
            raise NotFound(f"{path} can't be read: {error.strerror}", id=path) from error


def _open_no_follow(path: str, flags: int) -> int:
    """A file, opened without following a link that came there meanwhile, or waiting for the other
    end of a pipe.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _own_message(session: Session, id: str) -> OutboundMessage:
    message = session.read().outbound.messages.get(id)
    if message is None:
        raise NotFound(
            f"you sent no message {id[:80]!r} in this session, or it was finished long ago", id=id
        )
    return message
