"""Whether two agents may write to each other, and who finds whom: decided by what is known of the
two.

What must stay true: the function that decides a send is the one that discovery shows; it asks both
sides alike; and a word that is not understood counts as the strictest. Nothing here touches a file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from capsule.format.documents.agents import GLOBAL

Availability = Literal["available", "requires permission", "blocked", "unavailable"]

#: What an agent says of direct messages, and of who finds it; the strictest last.
DM_POLICIES = ("open", "restricted", "closed")
DISCOVERABLE = ("public", "project", "private")


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent, as far as decisions depend on it.

    Attributes:
        project: The id of its project, or `global`; empty: it is not registered, and in no scope
            but the global one.
        dm: Who may write to it directly: `open`, `restricted` (whom it allowed) or `closed`.
        discoverable: Who finds it: `public`, `project` or `private` (who has a direct with it).
        entries: By the id of another agent, `allow` or `block`.
        version: The version of its document, as an engine gives it.
    """

    id: str
    name: str = ""
    project: str = ""
    dm: str = "open"
    discoverable: str = "public"
    entries: Mapping[str, str] = field(default_factory=dict)
    version: Any = field(default=None, compare=False, repr=False)

    @classmethod
    def of(cls, document: Mapping[str, Any], version: Any = None) -> Profile:
        """The profile in the document of an agent."""
        from capsule.format.documents.agents import (
            project_of,
        )  # It brings the validation of documents with it.

        dm, entries = document.get("dmPolicy") or "open", document.get("dm") or {}
        discoverable = document.get("discoverable") or "public"
        return cls(
            document["id"],
            document.get("name") or document["id"],
            project_of(dict(document)),
            dm if dm in DM_POLICIES else "closed",
            discoverable if discoverable in DISCOVERABLE else "private",
            {
                other: "allow" if entry.get("permission") == "allow" else "block"
                for other, entry in entries.items()
            },
            version,
        )


@dataclass(frozen=True, slots=True)
class State:
    """What a decision depends on besides the object.

    Attributes:
        profiles: The subject, and the agents that the action is about: the other of a direct, who
            is added, who is looked for.
        sight: The projects whose agents and channels those of the subject's project see, itself
            included.
        met: The agents with whom the subject has a direct.
        reach: The conversations that the subject may send to in the session that it acts in; None:
            it acts in none.
        reads: The documents that this was read from, by kind and id, each with its version.
        is_guarded: Whether a guard says so. If not, an agent may do nothing with agents and closed
            conversations.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    sight: frozenset[str] = frozenset()
    met: frozenset[str] = frozenset()
    reach: frozenset[str] | None = None
    reads: Mapping[tuple[str, str], Any] = field(default_factory=dict, compare=False, repr=False)
    is_guarded: bool = True

    def profile(self, id: str) -> Profile:
        """The profile of an agent; the strictest one if nothing is known of it."""
        return self.profiles.get(id) or Profile(id, dm="closed", discoverable="private")


def consent(a: Profile, b: Profile) -> Availability:
    """Whether two agents may write to each other; the same whichever of them asks."""
    mine, theirs = a.entries.get(b.id), b.entries.get(a.id)
    if mine == "block" or theirs == "block":
        return "blocked"
    if a.dm == "closed" or b.dm == "closed":
        return "unavailable"
    if (a.dm == "restricted" and mine != "allow") or (b.dm == "restricted" and theirs != "allow"):
        return "requires permission"
    return "available"


def in_scope(subject: Profile, scope: str, sight: frozenset[str]) -> bool:
    """Whether something of this scope, a project or `global`, is in reach of an agent."""
    return GLOBAL in (scope, subject.project) or (
        bool(scope) and (scope == subject.project or scope in sight)
    )


def finds(a: Profile, b: Profile, state: State) -> bool:
    """Whether `a`, the subject of the state, finds `b`."""
    if a.id == b.id:
        return False
    if b.discoverable == "project":
        return a.project == GLOBAL or (
            bool(b.project) and (b.project == a.project or b.project in state.sight)
        )
    return b.discoverable == "public" or b.id in state.met
