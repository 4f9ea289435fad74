"""What a client's hook does: it reports what is unread, registers where its session can be rung, or
waits there to ring.

What must stay true: one process waits for each session, whatever the client starts. It ends with
its session and holds nothing that outlives it. A hook without news prints nothing and ends with
exit code 0. A hook with news answers in the format of its client, which ignores other formats
silently. No text of a message is reported. This module imports nothing that a hook without news
does not need.

Claude Code, Codex and Gemini CLI all take `hookSpecificOutput.additionalContext` at exit code 0,
with the name of the event beside it: https://code.claude.com/docs/en/hooks ("JSON output"),
https://developers.openai.com/codex/hooks (and
`codex-rs/hooks/schema/generated/session-start.command.output.schema.json`, which allows no other
field there), https://geminicli.com/docs/hooks/reference ("Common output fields").
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import orjson

from capsule.messaging import doorbells
from capsule.messaging.directory import StoreAgents
from capsule.messaging.doorbells import HOOK_WAIT_S, DoorbellTarget, ring_text
from capsule.messaging.unread import UnreadTracker

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


#: Seconds after which a process that waits looks whether its session is there still, and whether a
#: ring is due again.
_CHECK_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class HookOutput:
    """What a hook's process ends with: its standard output and error, and its exit code."""

    out: str = ""
    err: str = ""
    code: int = 0


def run_hook(
    store: CoreStore,
    agent: str,
    client: str,
    event: str,
    said: Mapping[str, Any],
    has_ended: Callable[[], bool],
) -> HookOutput:
    """Do what a hook is for.

    Args:
        store: The store, open for this alone.
        agent: The agent that the client's session acts for.
        client: One of `clients.EVENTS`.
        event: One of its events.
        said: What the client says on standard input; the caller may add `home` and `program` for
            Codex.
        has_ended: Whether the client is gone.

    Raises NotFound, Refused, StorageFailed. Cost: as `Messages.pointer`; after a turn of Claude
    Code it waits.
    """
    session = said.get("session_id")
    if not isinstance(session, str) or said.get(
        "agent_id"
    ):  # A part of a session has no mail of its own.
        return HookOutput()
    store.inner.object_of(StoreAgents).documents.ensure_exists(agent)
    target = DoorbellTarget(
        client,
        {"session": session} | {name: said[name] for name in ("home", "program") if said.get(name)},
    )
    if event == "SessionEnd":
        doorbells.forget(store, agent, target)
        return HookOutput()
    if client == "codex":
        doorbells.register(store, agent, target)
    if event == "Stop":
        if pointer := _wait_for_ring(store, agent, target, has_ended, HOOK_WAIT_S - 60):
            return HookOutput(err=ring_text(agent, pointer) + "\n", code=2)
    elif pointer := store.inner.store_for(None).inner.object_of(UnreadTracker).pointer(agent):
        output = {"hookEventName": event, "additionalContext": ring_text(agent, pointer)}
        return HookOutput(out=orjson.dumps({"hookSpecificOutput": output}).decode() + "\n")
    return HookOutput()


def _wait_for_ring(
    store: CoreStore,
    agent: str,
    target: DoorbellTarget,
    has_ended: Callable[[], bool],
    timeout_s: float,
) -> str:
    """Wait until a target is to be rung: how many messages wait, and from whom.

    Empty: the session has ended, another process waits for it, or the time is over (in seconds).
    Cost: while it waits, a look at the inbox with every change and every five seconds.
    """
    mine = doorbells.claim(store, agent, target)
    until, cursor = time.monotonic() + timeout_s, store.changes().cursor
    while mine is not None and not has_ended() and (left := until - time.monotonic()) > 0:
        bell = doorbells.load_targets(store, agent).at(mine)
        if bell is None or bell.target != mine:
            return ""
        pointer = store.inner.store_for(None).inner.object_of(UnreadTracker).pointer(agent)
        if bell.asked:
            pointer = pointer or doorbells.TEST_POINTER
        elif pointer and store.inner.object_of(StoreAgents).online().get(agent):
            pointer = ""
        if pointer and doorbells.record_ring_if_due(store, agent, mine):
            return pointer
        cursor = store.wait_for_changes(cursor, timeout_s=min(_CHECK_INTERVAL_S, left)).cursor
    return ""
