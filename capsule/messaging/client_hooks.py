"""The hooks that Claude Code, Codex and Gemini CLI run at the events of a session.

A hook reports how many messages are unread. At the start of a session of Codex it registers a target
for the doorbell. At the end of a turn of Claude Code its process waits for messages, and rings by
ending.

What must stay true: one process waits for each session, however many the client starts. It ends with
its session and holds nothing that outlives it. A hook with nothing to report prints nothing and ends
with exit code 0. Another one answers in the format of its client, which ignores other formats
silently. No text of a message is reported. This module imports nothing that a hook with nothing to
report does not need.

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


#: The seconds after which a waiting process checks whether its session has ended, and whether a ring
#: is due again.
_CHECK_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class HookOutput:
    """The result of a hook's process: its standard output and error, and its exit code."""

    out: str = ""
    err: str = ""
    code: int = 0


def run_hook(
    store: CoreStore,
    agent: str,
    client: str,
    event: str,
    hook_input: Mapping[str, Any],
    has_ended: Callable[[], bool],
) -> HookOutput:
    """Run a hook.

    Args:
        store: The store, open for this hook alone.
        agent: The agent that the client's session acts for.
        client: One of `doorbells.HOOK_EVENTS`.
        event: One of its events.
        hook_input: The client's JSON on standard input. For Codex, the caller may add `home` and
            `program`.
        has_ended: Returns whether the client has ended.

    Raises NotFound, Refused, StorageFailed. Cost: as `Messages.pointer`. After a turn of Claude
    Code it waits.
    """
    session = hook_input.get("session_id")
    is_subagent = bool(hook_input.get("agent_id"))  # It has no messages of its own.
    if not isinstance(session, str) or is_subagent:
        return HookOutput()
    store.inner.object_of(StoreAgents).documents.ensure_exists(agent)
    address = {"session": session}
    for name in ("home", "program"):
        if hook_input.get(name):
            address[name] = hook_input[name]
    target = DoorbellTarget(client, address)
    if event == "SessionEnd":
        doorbells.forget(store, agent, target)
        return HookOutput()
    if client == "codex":
        doorbells.register(store, agent, target)
    if event == "Stop":
        pointer = _wait_for_ring(store, agent, target, has_ended, HOOK_WAIT_S - 60)
        if not pointer:
            return HookOutput()
        return HookOutput(err=ring_text(agent, pointer) + "\n", code=2)
    pointer = store.inner.store_for(None).inner.object_of(UnreadTracker).pointer(agent)
    if not pointer:
        return HookOutput()
    output = {"hookEventName": event, "additionalContext": ring_text(agent, pointer)}
    return HookOutput(out=orjson.dumps({"hookSpecificOutput": output}).decode() + "\n")


def _wait_for_ring(
    store: CoreStore,
    agent: str,
    target: DoorbellTarget,
    has_ended: Callable[[], bool],
    timeout_s: float,
) -> str:
    """Wait until a target is to be rung.

    Args:
        store, agent, has_ended: As `run_hook` takes them.
        target: The target of the session.
        timeout_s: How long to wait at most, in seconds.

    Returns: How many messages are unread, and from whom. Empty: the session has ended, another
        process waits for it, or the time is over.

    Cost: while it waits, a look at the inbox with every change and every five seconds.
    """
    own_target = doorbells.claim(store, agent, target)
    if own_target is None:
        return ""
    deadline = time.monotonic() + timeout_s
    cursor = store.changes().cursor
    while not has_ended():
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            return ""
        registered = doorbells.load_targets(store, agent).find(own_target)
        if registered is None or registered.target != own_target:
            return ""  # It was removed, or another process has it now.
        pointer = store.inner.store_for(None).inner.object_of(UnreadTracker).pointer(agent)
        if registered.test_requested:
            pointer = pointer or doorbells.TEST_POINTER
        elif pointer and store.inner.object_of(StoreAgents).online().get(agent):
            pointer = ""  # The agent listens elsewhere.
        if pointer and doorbells.record_ring_if_due(store, agent, own_target):
            return pointer
        wait_s = min(_CHECK_INTERVAL_S, left_s)
        cursor = store.wait_for_changes(cursor, timeout_s=wait_s).cursor
    return ""
