"""Wirings: which agents a message wakes, in which sessions, and why it does not wake the others.

What must stay true: a decision depends on the message, the registry, and whether a session was
woken before, and on nothing else. What an agent may not be woken by, because of who sent it or how
far it came, it does not keep either. No file, no clock.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from capsule.errors import InvalidInput
from capsule.format.filters import compile_pattern
from capsule.sessions.adapters.interface import Arrived
from capsule.sessions.events import Outcome
from capsule.sessions.registry import EVERY, RegistryState, SessionKey, Wiring

#: Through how many agents a message may come, one answering the other, unless the agent's `maxHops`
#: says otherwise.
MAX_HOPS = 8


@dataclass(frozen=True, slots=True)
class RoutingDecision:
    """What becomes of a message for one agent."""

    agent: str
    serves: SessionKey  # What its session for the message serves.
    outcome: Outcome  # Whether it wakes the agent, waits in its session, or is none of it.
    reason: str  # In words.
    wiring: str = ""  # The wiring that says so; empty: that of a place without one.


def route(
    arrived: Arrived, state: RegistryState, engaged: Callable[[SessionKey], bool]
) -> list[RoutingDecision]:
    """Decide for each agent that a message could be meant for.

    An agent without a wiring in the place is woken by everything if it is alone there, else by
    mentions.

    For `mention-sticky`, `engaged` says whether the session that serves this was woken before.
    """
    wired = {
        wiring.agent: wiring for wiring in state.wired.get((arrived.channel, arrived.place), ())
    }
    agents = [agent for agent in wired if agent in (arrived.to or wired)]
    agents += sorted(arrived.to - wired.keys())
    return [
        _decide(arrived, wired.get(agent) or _default_wiring(arrived, agent), state, engaged, wired)
        for agent in agents
    ]


def _default_wiring(arrived: Arrived, agent: str) -> Wiring:
    mode: Literal["pattern", "mention"] = "mention" if arrived.is_group else "pattern"
    return Wiring(arrived.channel, arrived.place, agent, mode, EVERY)


def _decide(
    arrived: Arrived,
    wiring: Wiring,
    state: RegistryState,
    engaged: Callable[[SessionKey], bool],
    wired: dict[str, Wiring],
) -> RoutingDecision:
    serves, named = _session_key(arrived, wiring), wiring.id if wiring.agent in wired else ""
    if refused := _reason_to_ignore(arrived, wiring, state):
        return RoutingDecision(wiring.agent, serves, "ignored", refused, named)
    wakes, reason = _wakes_agent(arrived, wiring, serves, engaged)
    # A sticky wiring has a session for each thread: none is made for a message that is in no thread
    # and wakes nobody.
    is_kept = wiring.ignored == "accumulate" and bool(
        arrived.thread or wiring.engage != "mention-sticky"
    )
    return RoutingDecision(
        wiring.agent,
        serves,
        "wake" if wakes else "accumulate" if is_kept else "ignored",
        reason,
        named,
    )


def _reason_to_ignore(arrived: Arrived, wiring: Wiring, state: RegistryState) -> str:
    """Why a message is not for an agent, whatever it says; empty: it may be."""
    group = state.agents.get(wiring.agent)
    if group is None:
        return "no workers are set up for the agent"
    if arrived.sender == wiring.agent:
        return "the agent said it itself"
    most = group.settings.get("maxHops", MAX_HOPS)
    if arrived.hops > (most if isinstance(most, int) else MAX_HOPS):
        return f"it came through {arrived.hops} agents that answered each other"
    return "the sender is not known" if wiring.senders == "known" and not arrived.known else ""


def _wakes_agent(
    arrived: Arrived, wiring: Wiring, serves: SessionKey, engaged: Callable[[SessionKey], bool]
) -> tuple[bool, str]:
    if wiring.engage == "pattern":
        try:
            fits = wiring.pattern == EVERY or compile_pattern(wiring.pattern)(arrived.text)
        except InvalidInput:
            return False, f"the pattern {wiring.pattern!r} can't be read"
        return fits, f"it {'fits' if fits else 'does not fit'} the pattern {wiring.pattern!r}"
    if wiring.agent in arrived.mentions:
        return True, "it mentions the agent"
    if wiring.engage == "mention-sticky" and arrived.thread and engaged(serves):
        return True, "its thread has mentioned the agent"
    return False, "it does not mention the agent"


def _session_key(arrived: Arrived, wiring: Wiring) -> SessionKey:
    if wiring.engage == "mention-sticky":  # A message in no thread begins one.
        return wiring.agent, arrived.channel, arrived.place, arrived.thread or arrived.id
    if wiring.session == "agent-shared":
        return wiring.agent, "", "", ""
    return (
        wiring.agent,
        arrived.channel,
        arrived.place,
        arrived.thread if wiring.session == "per-thread" else "",
    )
