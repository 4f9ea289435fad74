"""What an agent does in its session besides answering. Its tools call this module.

A `Toolkit` belongs to one session and one batch of messages. Each of its methods appends events to
the outbound file of the session, and the host delivers or carries out what they ask for.

What must stay true:
- An agent writes only to its own session, and sends only to its destinations. A store that acts for
  the agent is restricted in the same way (`restrict_to_destinations`).
- The id of a message is made from the batch that is being answered and from the number of the
  message in this try. So a repeated try sends nothing again, and the agent learns what the earlier
  try sent.
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
from capsule.sessions.rules.messages import (
    complete_for_tool,
    number_replies,
    writable_conversations,
)
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
    """The result of sending a message.

    Attributes:
        id: The id of the message.
        earlier: None if the message was sent now. Otherwise nothing was sent, because an earlier
            try sent this text under the same number.
    """

    id: str
    earlier: str | None = None


def restrict_to_destinations(store: CoreStore, session: str) -> None:
    """Let a store that acts for an agent write only where the agent may send in a session.

    This replaces `store.inner.inputs_for`. Each later operation of the store reads the files of the
    session.

    Args:
        store: The store.
        session: The session's id.

    Raises Refused if it is not a session of this agent.
    """
    engine = store.inner.whole_engine
    unrestricted_inputs_for = store.inner.inputs_for
    record = Registry(engine).read().sessions.get(session)
    if record is None or record.agent != store.agent:
        problem = f"is {record.agent}'s" if record else "is not in this store"
        raise Refused(
            f"session {session[:80]} {problem}, so it can't act for {store.agent or 'the owner'}",
            path="",
        )

    def restricted_inputs_for(target: PolicyTarget | None, agents: Iterable[str]) -> PolicyInputs:
        inputs = unrestricted_inputs_for(target, agents)
        session_state = Session(engine, session).read()
        return replace(inputs, session_targets=writable_conversations(session_state))

    store.inner.inputs_for = restricted_inputs_for


class Toolkit:
    """The tools of an agent in one session, for one batch of messages. Several threads may use it.

    A message is durable when the method that sends it returns. These methods raise Refused for a
    name that is not a destination, and InvalidInput for a time that cannot be read or a text that
    is too long.

    Args:
        store: The store. It may act for the agent.
        session: The session's id.
        message: The message that the batch is named after. Empty: none, so a repeated call sends a
            message again.
        folder: The folder whose files may be sent. None: none.

    Raises Refused if the store acts for another agent than the session's.
    """

    def __init__(
        self, store: CoreStore, session: str, message: str = "", folder: str | None = None
    ) -> None:
        self.engine: Engine = store.inner.whole_engine
        self.session = check_id(session)
        record = Registry(self.engine).read().sessions.get(session)
        if store.agent not in (None, record and record.agent):
            raise Refused(f"session {session} does not belong to {store.agent}", path="")
        self._instance = store.instance_id
        self._message = message
        self._folder = folder
        self._max_bytes = store.settings.message_bytes
        self._numbers = count(1)

    @property
    def _session(self) -> Session:
        """A new object for each use, because a `Session` belongs to one thread."""
        return Session(self.engine, self.session)

    # -- Messages ----------------------------------------------------------------------------------

    def send_message(
        self, text: str, *, to: str = "", thread: str = "", deliver_after: str = ""
    ) -> SendResult:
        """Send a message.

        Args:
            text: The text.
            to: The name of a destination. Empty: the place that the answered message came from.
            thread: The thread there. Empty: the thread of the answered message.
            deliver_after: The earliest time of its delivery (ISO 8601). Empty: at once.
        """
        return self._send(
            content=text, to=to or None, thread=thread or None, deliver_after=deliver_after or None
        )

    def send_file(self, path: str, *, text: str = "", to: str = "") -> SendResult:
        """Send a file of the folder.

        Args:
            path: Its path in the folder. No link leads out of the folder.
            text: A text for the file.
            to: As for `send_message`.

        Raises NotFound, Refused.
        """
        data = self._read_file(path)
        name = os.path.basename(path)
        stored_name = f"{sha256(data).hexdigest()[:16]}-{name}"
        attachments = [{"name": name, "path": stored_name}]
        return self._send(
            {stored_name: data}, kind="file", content=text, to=to or None, attachments=attachments
        )

    def edit_message(self, message: str, text: str) -> SendResult:
        """Replace the text of a message that the agent sent. Raises NotFound."""
        return self._send(kind="edit", content=text, target=message, **self._route_fields(message))

    def add_reaction(self, message: str, emoji: str) -> SendResult:
        """React to a message of the session, inbound or outbound. Raises NotFound."""
        inbound = self._session.read().inbound
        if message in inbound.messages or message in inbound.compacted_digests:
            route_fields: dict[str, Any] = {"in_reply_to": message}
        else:
            route_fields = self._route_fields(message)
        return self._send(kind="reaction", emoji=emoji, target=message, **route_fields)

    def ask_question(
        self, text: str, options: Sequence[Mapping[str, str]], *, limit_s: float, to: str = ""
    ) -> SendResult:
        """Ask people a question. `answer` returns their answer.

        Args:
            text: The question.
            options: The possible answers, each with `label` and `value`.
            limit_s: Seconds after which an answer comes too late.
            to: As for `send_message`.
        """
        are_complete = all(option.get("label") and option.get("value") for option in options)
        if not options or not are_complete:
            raise InvalidInput("options: each has a label and a value, and there is at least one")
        end = timestamps.parse(timestamps.now()) + timedelta(seconds=limit_s)
        expires_at = timestamps.canonical(end.isoformat())
        return self._send(
            kind="question", content=text, options=options, expires_at=expires_at, to=to or None
        )

    def answer(self, question: str) -> Event | None:
        """Return the answer to a question, with its `value` and its sender in `from`. None: no
        answer has come yet.

        An answer that is not fetched in this way wakes the session when its worker is idle.

        Raises NotFound, and Refused if the time of the question is over or it was withdrawn.
        Cost: a look at each message of the session, and an append for the first result.
        """
        session = self._session
        expires_at = _own_message(session, question).event.get("expiresAt")
        if expires_at is None:
            raise NotFound(f"message {question} is not a question", id=question)
        messages = session.read().inbound.messages.values()
        answers = [message for message in messages if message.event.get("question") == question]
        for message in answers:
            if message.wakes:  # Only the answer that counts wakes.
                session.write_outbound(
                    partial(complete_for_tool, id=message.id, instance=self._instance)
                )
                return message.event
        is_closed = any("value" not in message.event for message in answers)
        if is_closed or timestamps.now() > expires_at:
            raise Refused(
                f"question {question}: nobody answered in time, or it was withdrawn", path=""
            )
        return None

    # -- Tasks -------------------------------------------------------------------------------------

    def schedule(self, action: TaskAction, series: str = "", **fields: str) -> SendResult:
        """Ask the host to make, update, cancel, pause or resume a task.

        Args:
            action: The action.
            series: The id of the task. For `make` none: the id of the result is its id.
            fields: New values for `prompt`, `cron`, `timeZone`, `catchUp` and `processAfter`.

        Raises NotFound, and InvalidInput if the cron expression or the time zone cannot be read, or
        a new task has no prompt or no time.
        """
        if action == "make" and not fields.get("prompt"):
            raise InvalidInput("a task needs a prompt")
        task: dict[str, str] = {"action": action}
        if series:
            task["series"] = series
        return self._send(kind="task", task={**task, **fields})

    def tasks(self) -> list[dict[str, Any]]:
        """Return the tasks of the session that are not over: `series`, `prompt`, `next`, `paused`
        and the fields of their recurrence.
        """
        session_state = self._session.read()
        tasks = []
        for series, head in schedules.live_occurrences(session_state).items():
            task = {
                "series": series,
                "prompt": head.event["content"],
                "next": head.due,
                "paused": series in session_state.inbound.paused,
            }
            recurrence = head.event.get("recurrence") or {}
            for name, value in recurrence.items():
                if name in RECURRENCE_FIELDS:
                    task[name] = value
            tasks.append(task)
        return tasks

    # -- Values ------------------------------------------------------------------------------------

    def values(self) -> dict[str, Any]:
        """Return the values that the session keeps for its later runs, by key. Each provider has
        its own.
        """
        return dict(self._session.read().outbound.state.get(self._provider, {}))

    def set_value(self, key: str, value: str = "") -> None:
        """Keep a text under a key for later runs. An empty one is removed.

        Raises InvalidInput if all texts together are too long.
        """
        if value:
            values = {**self.values(), key: value}
            size = sum(len(f"{name}{text}".encode()) for name, text in values.items())
            if size > MAX_STATE_BYTES:
                raise InvalidInput(f"a session keeps at most {MAX_STATE_BYTES} bytes")
        self._session.write_outbound(
            lambda session_state: [
                state_event(key=key, value=value or None, provider=self._provider)
            ]
        )

    def clear(self) -> None:
        """Remove all values, also the continuation of the command."""
        self._session.write_outbound(lambda session_state: [cleared_event(provider=self._provider)])

    @property
    def _provider(self) -> str:
        return Registry(self.engine).read().provider(self.session)

    # -- Sending -----------------------------------------------------------------------------------

    def _send(
        self,
        files: Mapping[str, bytes] | None = None,
        *,
        content: str = "",
        task: Mapping[str, Any] | None = None,
        **fields: Any,
    ) -> SendResult:
        """Append a message to the outbound file.

        Args:
            files: Its files, by stored name.
            content: Its text.
            task: Its request to the host.
            fields: Its other fields, as in `events.OutboundFields`.
        """
        if len(content.encode("utf-8", "replace")) > self._max_bytes:
            raise InvalidInput(f"the text has more than {self._max_bytes} bytes; send it as a file")
        number = next(self._numbers) if self._message else None
        id = reply_id(self.session, self._message, number) if number else new_message_id()
        all_fields = {
            "in_reply_to": self._message or None,
            "number": number,
            "task": task,
            **fields,
        }
        session = self._session

        def new_message(session_state: SessionState) -> list[Event]:
            answered = session_state.inbound.messages.get(self._message)
            hops = 1
            if answered:
                hops += answered.event.get("hops", 0)
            message = outbound_message(id=id, content=content, hops=hops, **all_fields)
            new_messages = number_replies(session_state, [message])
            if new_messages and task:
                # Only a check: the host carries the task out.
                schedules.apply_task(session_state, task, id, timestamps.now())
            return new_messages

        if session.write_outbound(new_message, files):
            return SendResult(id)
        earlier = session.read().outbound.messages.get(id)
        return SendResult(id, earlier=_text_of(earlier.event) if earlier else "")

    def _route_fields(self, message: str) -> dict[str, Any]:
        """Return the fields that send a message where an earlier one went, even if a compaction
        removed that one.
        """
        outbound = self._session.read().outbound
        route_fields = outbound.compacted_routes.get(message)
        if not route_fields:
            route_fields = _own_message(self._session, message).route_fields
        in_reply_to, to, thread = route_fields
        return {"to": to or None, "thread": thread or None, "in_reply_to": in_reply_to or None}

    def _read_file(self, path: str) -> bytes:
        """Return the bytes of a file of the folder. Raises NotFound, Refused."""
        folder = os.path.realpath(self._folder or os.devnull)
        real_path = os.path.realpath(os.path.join(folder, path))
        if not real_path.startswith(f"{folder}{os.sep}"):
            raise Refused(
                f"{path}: only files of {self._folder or 'a folder'} can be sent", path=path
            )
        try:
            with open(real_path, "rb", opener=_open_no_follow) as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode) or status.st_size > self._max_bytes:
                    raise Refused(
                        f"{path} can't be sent: it is not a file, or has over {self._max_bytes} bytes",
                        path=path,
                    )
                return file.read()
        except OSError as error:
            raise NotFound(f"{path} can't be read: {error.strerror}", id=path) from error


def _open_no_follow(path: str, flags: int) -> int:
    """Open a file. A link that was put there meanwhile is not followed, and a pipe does not wait for
    its other end.
    """
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _own_message(session: Session, id: str) -> OutboundMessage:
    """Return a message that the agent sent. Raises NotFound."""
    message = session.read().outbound.messages.get(id)
    if message is None:
        raise NotFound(
            f"you sent no message {id[:80]!r} in this session, or it was finished long ago", id=id
        )
    return message


def _text_of(event: Event) -> str:
    """Return what an outbound message says, in a word or a text."""
    for name in ("content", "prompt", "emoji", "action"):
        if event.get(name):
            return str(event[name])
    return ""
