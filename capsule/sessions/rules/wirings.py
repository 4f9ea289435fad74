"""The rules of wirings: which agents a message wakes, in which sessions, and why not the others.

For each agent that a message could be meant for, there is one decision: the message wakes the
agent, accumulates in its session until another message wakes it, or is ignored. The wiring of the
agent in the place of the message decides, or a default wiring if it has none.

What must stay true:
- A decision depends only on the message, the registry, and whether a session was woken before.
- A message that may not wake an agent, because of its sender or its hops, does not accumulate
  either.

No file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from capsule.errors import InvalidInput
from capsule.format.filters import compile_pattern
from capsule.sessions.adapters.interface import ReceivedMessage
from capsule.sessions.events import Outcome
from capsule.sessions.registry import MATCH_ALL, RegistryState, SessionKey, Wiring

#: The number of agents that a message may come through, each of which answered the one before. The
#: setting `maxHops` of an agent replaces it.
MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """What becomes of a message for one agent.

    Attributes:
        agent: The agent.
        session_key: What the session for the message serves.
        outcome: Whether the message wakes the agent, accumulates, or is ignored.
        reason: Why, in words.
        wiring: The id of the wiring that decided. Empty: the default wiring.
    """

    agent: str
    session_key: SessionKey
    outcome: Outcome
    reason: str
    wiring: str = ""


def route(
    received: ReceivedMessage,
    registry_state: RegistryState,
    was_woken: Callable[[SessionKey], bool],
) -> list[RoutingDecision]:
    """Decide for each agent that a message could be meant for.

    The default wiring wakes an agent by every message if nobody else is in the place, and else by
    mentions.

    Args:
        received: The message.
        registry_state: The registry.
        was_woken: Tells whether a session was woken before, for `mention-sticky`.
    """
    place_wirings = registry_state.wirings_by_place.get((received.channel, received.place), ())
    wirings = {wiring.agent: wiring for wiring in place_wirings}
    decisions = []
    for agent, wiring in wirings.items():
        if not received.to or agent in received.to:
            decisions.append(
                _decide(received, wiring, registry_state, was_woken, wiring_id=wiring.id)
            )
    for agent in sorted(received.to - wirings.keys()):
        wiring = _default_wiring(received, agent)
        decisions.append(_decide(received, wiring, registry_state, was_woken, wiring_id=""))
    return decisions


def _default_wiring(received: ReceivedMessage, agent: str) -> Wiring:
    engage: Literal["pattern", "mention"] = "mention" if received.is_group else "pattern"
    return Wiring(
        channel=received.channel,
        place=received.place,
        agent=agent,
        engage=engage,
        pattern=MATCH_ALL,
    )


def _decide(
    received: ReceivedMessage,
    wiring: Wiring,
    registry_state: RegistryState,
    was_woken: Callable[[SessionKey], bool],
    *,
    wiring_id: str,
) -> RoutingDecision:
    """Decide about a message for one agent by its wiring."""
    session_key = _session_key(received, wiring)
    outcome: Outcome = "ignored"
    reason = _reason_to_ignore(received, wiring, registry_state)
    if not reason:
        wakes, reason = _wakes_agent(received, wiring, session_key, was_woken)
        # A sticky wiring has a session for each thread. None is made for a message that is in no
        # thread and wakes nobody.
        has_session = bool(received.thread) or wiring.engage != "mention-sticky"
        if wakes:
            outcome = "wake"
        elif wiring.ignored == "accumulate" and has_session:
            outcome = "accumulate"
    return RoutingDecision(
        agent=wiring.agent,
        session_key=session_key,
        outcome=outcome,
        reason=reason,
        wiring=wiring_id,
    )


def _reason_to_ignore(
    received: ReceivedMessage, wiring: Wiring, registry_state: RegistryState
) -> str:
    """Return why a message is not for an agent, whatever its text is. Empty: it may be."""
    agent_setup = registry_state.agents.get(wiring.agent)
    if agent_setup is None:
        return "no workers are set up for the agent"
    if received.sender == wiring.agent:
        return "the agent itself wrote it"
    max_hops = agent_setup.settings.get("maxHops", MAX_HOPS)
    if not isinstance(max_hops, int):
        max_hops = MAX_HOPS
    if received.hops > max_hops:
        return f"it came through {received.hops} agents that answered each other"
    if wiring.senders == "known" and not received.known:
        return "the sender is not known"
    return ""


def _wakes_agent(
    received: ReceivedMessage,
    wiring: Wiring,
    session_key: SessionKey,
    was_woken: Callable[[SessionKey], bool],
) -> tuple[bool, str]:
    """Return whether the text of a message wakes an agent, and why."""
    if wiring.engage == "pattern":
        try:
            matches = wiring.pattern == MATCH_ALL or compile_pattern(wiring.pattern)(received.text)
        except InvalidInput:
            return False, f"the pattern {wiring.pattern!r} can't be read"
        verb = "fits" if matches else "does not fit"
        return matches, f"it {verb} the pattern {wiring.pattern!r}"
    if wiring.agent in received.mentions:
        return True, "it mentions the agent"
    if wiring.engage == "mention-sticky" and received.thread and was_woken(session_key):
        return True, "its thread has mentioned the agent"
    return False, "it does not mention the agent"


def _session_key(received: ReceivedMessage, wiring: Wiring) -> SessionKey:
    if wiring.engage == "mention-sticky":  # A message in no thread begins one.
        return wiring.agent, received.channel, received.place, received.thread or received.id
    if wiring.session == "agent-shared":
        return wiring.agent, "", "", ""
    thread = received.thread if wiring.session == "per-thread" else ""
    return wiring.agent, received.channel, received.place, thread
