"""From which time on an agent reads a conversation: the condition of every list, search and count.

What must stay true: a viewer is plain data, and its answer depends only on the head of the
conversation. So an engine may keep the answer while viewer and head are the same, or express the
condition in its own query language.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from capsule.rules import policy
from capsule.rules.consent import PolicyInputs
from capsule.timestamps import ms_of, sortable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from capsule.format.documents.head import Head


def first_readable_time(subject: str, target: policy.PolicyTarget, created_at: str) -> str:
    """Return the time from which `subject` reads a conversation that it may read; empty: all of it.

    A time before the conversation was created counts as empty: there are no earlier messages.
    """
    since = policy.readable_from(subject, target)
    return since if since > sortable(created_at) else ""


class Viewer(NamedTuple):
    """An agent for which a list, search or count is made.

    Where a `Viewer` is optional, None means the owner of the store, who reads everything.

    Attributes:
        agent: The agent's id.
        inputs: What decisions about it depend on besides a conversation.
    """

    agent: str
    inputs: PolicyInputs

    def readable_from_ms(self, head: Head) -> int | None:
        """Return the time from which the agent reads a conversation, in milliseconds since 1970.

        Returns:
            0 if it reads all of it, None if it may not read it.
        """
        if head.participants or head.channel is not None:
            target = policy.PolicyTarget.from_head(head)
            return self._readable_from_ms(target, head.created_at)
        if head.damaged and policy.hides_damaged_file(self.agent, head.id):
            return None
        return 0

    def readable_from_ms_in(self, document: Mapping[str, Any]) -> int | None:
        """Return the same for a conversation, or its head, as it is stored."""
        target = policy.PolicyTarget.from_document(document)
        return self._readable_from_ms(target, document["createdAt"])

    def _readable_from_ms(self, target: policy.PolicyTarget, created_at: str) -> int | None:
        if not policy.decide(self.agent, "read", target, self.inputs).allowed:
            return None
        since = first_readable_time(self.agent, target, created_at)
        return ms_of(since) if since else 0
