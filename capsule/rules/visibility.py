"""Who asks, and from when on that agent reads a conversation: the one condition of every list,
search and count.

What must stay true: a sight is plain data, and its answer depends on the head of the conversation
and on nothing else; so an engine may keep the answer as long as both are the same, or decide in its
own language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.rules import policy
from capsule.timestamps import ms_of, sortable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capsule.format.documents.head import Head


def reads_from(subject: str, object: policy.Object, created_at: str) -> str:
    """The time from which `subject` reads a conversation that it may read; empty: all of it."""
    since = policy.seen_from(subject, object)
    return since if since > sortable(created_at) else ""  # Nothing was said before it was made.


class Sight(NamedTuple):
    """An agent that asks; in its place, None is the store's owner, who reads everything.

    Attributes:
        agent: The agent's id.
        state: What decisions about it depend on besides a conversation.
    """

    agent: str
    state: policy.State

    def since(self, head: Head) -> int | None:
        """From when on the agent reads a conversation, in milliseconds since 1970; 0: all of it,
        None: nothing.
        """
        if not head.participants and head.channel is None:
            return None if head.damaged and policy.is_hidden_damaged(self.agent, head.id) else 0
        return self._since(policy.Object.listed(head), head.created_at)

    def since_in(self, document: Mapping[str, Any]) -> int | None:
        """As `since`, of a conversation or its head as it is stored."""
        return self._since(policy.Object.of(document), document["createdAt"])

    def _since(self, object: policy.Object, created_at: str) -> int | None:
        if not policy.may(self.agent, "read", object, self.state).allowed:
            return None
        since = reads_from(self.agent, object, created_at)
        return ms_of(since) if since else 0
