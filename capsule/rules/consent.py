"""Decide whether two agents may write to each other, and whether one finds the other.

What must stay true: a send and a list of agents ask the same function. It asks both sides alike.
A value that is not understood counts as the strictest one. Nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from capsule.format.documents.agents import GLOBAL, project_of

Availability = Literal["available", "requires permission", "blocked", "unavailable"]

#: The values of `dmPolicy` and of `discoverable` in the document of an agent, the strictest last.
DM_POLICIES = ("open", "restricted", "closed")
DISCOVERABLE = ("public", "project", "private")


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """The fields of an agent that decisions depend on.

    Attributes:
        project: The id of its project, or `global`. Empty: it is not registered, and is only in the
            global scope.
        dm: Who may write to it directly: `open`, `restricted` (agents that it allowed) or `closed`.
        discoverable: Who finds it: `public`, `project` or `private` (agents that have a direct
            conversation with it).
        dm_entries: By the id of another agent, `allow` or `block`.
        version: The version of its document, as an engine gives it.
    """

    id: str
    name: str = ""
    project: str = ""
    dm: str = "open"
    discoverable: str = "public"
    dm_entries: Mapping[str, str] = field(default_factory=dict)
    version: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def from_document(cls, document: Mapping[str, Any], version: Any = None) -> AgentProfile:
        """Return the profile in the document of an agent."""
        dm = document.get("dmPolicy") or "open"
        discoverable = document.get("discoverable") or "public"
        dm_entries = {}
        for other_id, entry in (document.get("dm") or {}).items():
            is_allowed = entry.get("permission") == "allow"
            dm_entries[other_id] = "allow" if is_allowed else "block"
        return cls(
            id=document["id"],
            name=document.get("name") or document["id"],
            project=project_of(dict(document)),
            dm=dm if dm in DM_POLICIES else "closed",
            discoverable=discoverable if discoverable in DISCOVERABLE else "private",
            dm_entries=dm_entries,
            version=version,
        )


@dataclass(frozen=True, slots=True)
class PolicyInputs:
    """Everything that a policy decision reads besides its target.

    Attributes:
        profiles: The profiles of the subject and of the agents that the action concerns: the other
            agent of a direct conversation, an agent that is looked for, the agents that are added.
            If agents are added, it has no profiles but theirs and the subject's.
        visible_projects: The projects whose agents and channels the subject's project sees,
            itself included.
        direct_contacts: The agents with which the subject has a direct conversation.
        session_targets: The conversations that the subject may send to in the session in which it
            acts. None: it acts in no session.
        read_versions: The documents that these inputs were read from, by kind and id, each with its
            version.
        is_guarded: Whether messaging is installed, which provides the other inputs. Without it an
            agent may do nothing with agents and closed conversations.
    """

    profiles: Mapping[str, AgentProfile] = field(default_factory=dict)
    visible_projects: frozenset[str] = frozenset()
    direct_contacts: frozenset[str] = frozenset()
    session_targets: frozenset[str] | None = None
    read_versions: Mapping[tuple[str, str], Any] = field(
        default_factory=dict, compare=False, repr=False
    )
    is_guarded: bool = True

    def profile(self, id: str) -> AgentProfile:
        """Return the profile of an agent. An agent that is not in `profiles` gets the strictest."""
        return self.profiles.get(id) or AgentProfile(id, dm="closed", discoverable="private")


def dm_availability(a: AgentProfile, b: AgentProfile) -> Availability:
    """Return whether two agents may write to each other. The order of the two does not matter."""
    entry_of_a = a.dm_entries.get(b.id)
    entry_of_b = b.dm_entries.get(a.id)
    if "block" in (entry_of_a, entry_of_b):
        return "blocked"
    if "closed" in (a.dm, b.dm):
        return "unavailable"
    if a.dm == "restricted" and entry_of_a != "allow":
        return "requires permission"
    if b.dm == "restricted" and entry_of_b != "allow":
        return "requires permission"
    return "available"


def in_scope(subject: AgentProfile, scope: str, visible_projects: frozenset[str]) -> bool:
    """Return whether a scope, which is a project's id or `global`, includes an agent."""
    if scope == GLOBAL or subject.project == GLOBAL:
        return True
    return scope != "" and (scope == subject.project or scope in visible_projects)


def is_agent_visible(viewer: AgentProfile, agent: AgentProfile, inputs: PolicyInputs) -> bool:
    """Return whether `viewer`, the subject of the inputs, finds another agent."""
    if viewer.id == agent.id:
        return False
    if agent.discoverable == "public":
        return True
    if agent.discoverable == "private":
        return agent.id in inputs.direct_contacts
    if viewer.project == GLOBAL:
        return True
    return agent.project != "" and (
        agent.project == viewer.project or agent.project in inputs.visible_projects
    )
