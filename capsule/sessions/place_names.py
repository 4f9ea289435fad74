"""Find the places of an agent by the names that people use: of conversations, channels, other agents
and webhooks.

What must stay true: a place that is found is one that messages of the agent can come from, or go
to. The module changes nothing.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from capsule.engines.interface import CONVERSATIONS as CONVERSATION_KIND
from capsule.errors import InvalidInput, NotFound, Remedy
from capsule.format.documents.agents import direct_id
from capsule.ids import is_id
from capsule.messaging.channels import Channels
from capsule.messaging.directory import StoreAgents
from capsule.rules.policy import PolicyTarget
from capsule.sessions.rules.deliveries import CONVERSATIONS

if TYPE_CHECKING:
    from capsule.store.store import CoreStore


def place_of(store: CoreStore, text: str, agent: str) -> tuple[str, str, str]:
    """Return the place that a text names: its channel, its id there, and its title.

    Args:
        store: The owner's store.
        text: A conversation, a channel as `Channels` takes it, another agent (for the direct with
            `agent`, which need not exist), or `channel:place`.
        agent: The id of the agent that answers there, or sends there.

    Raises NotFound, InvalidInput. Cost: as `Channels.get`, and a look at each agent.
    """
    channel, colon, place = text.partition(":")
    if colon:
        if not channel or not place:
            raise InvalidInput(
                f"{text[:80]!r} is not a place: name a conversation or an agent, or write "
                "CHANNEL:PLACE"
            )
        return channel, place, place
    if not (is_id(text) and store.engine.exists(CONVERSATION_KIND, text)):
        with suppress(NotFound):
            return CONVERSATIONS, store.inner.object_of(Channels).resolve(text), text
        with suppress(NotFound):
            other_agent = store.inner.object_of(StoreAgents).directory.resolve(text, agent)
            if other_agent == agent:
                raise InvalidInput(
                    f"{agent} does not write to itself; name another agent or a conversation"
                )
            return CONVERSATIONS, direct_id(agent, other_agent), other_agent
    id = store.resolve(text)
    return CONVERSATIONS, id, store.head(id).title or id


def ensure_receives(store: CoreStore, channel: str, place: str, agent: str) -> None:
    """Check that an agent gets the messages of a place.

    Args:
        store: The owner's store.
        channel: The channel of the place.
        place: Its id there.
        agent: The agent's id.

    Raises:
        NotFound: It is a webhook that does not exist on this machine.
        InvalidInput: The agent is not a member. The error has the way to make it one.

    Cost: reading the beginning of a file.
    """
    from capsule.sessions.adapters.webhook import WebhookAdapter, Webhooks

    if channel == WebhookAdapter.name:
        try:
            Webhooks(store.engine.local).get(place)
        except NotFound as error:
            remedy = Remedy("webhook", place)
            raise NotFound(f"{error.message} on this machine", id=place, remedy=remedy) from None
    if channel != CONVERSATIONS or not store.engine.exists(CONVERSATION_KIND, place):
        return
    target = PolicyTarget.from_head(store.head(place))
    if target.type == "chat" or agent not in target.present_ids:
        hint = "name a channel, a group, or a direct of its own"
        if target.type == "channel":
            hint = "invite it, or let it join"
        elif target.type == "group":
            hint = "a participant can add it"
        raise InvalidInput(
            f"{agent} is not a member of {target.type} {place}, and gets no messages of it: {hint}",
            id=place,
        )
