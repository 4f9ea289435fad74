"""Who may do what with a conversation: one rule for every door.

What must stay true: a decision depends on who asks, on the action and on the conversation as it stands, and on nothing
else. Nothing here touches a file. Who holds a lock is another rule (`capsule.locks.policy`), and a write needs both.

A direct or a group with participants is closed: the tables below say who may do what there. All other conversations
are open to everybody.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from capsule.errors import Refused
from capsule.format.members import Member, members_in

Action = Literal[
    "read",
    "append",
    "edit",  # Change or remove one's own message.
    "create",
    "message",  # Begin a direct with somebody.
    "rename",
    "archive",
    "add",  # Add a participant, or let one come back.
    "leave",
    "remove",  # Remove another participant.
    "change",  # Change tags, the pin, the context or another field of the head.
    "rewrite",  # Change anything else: messages of others, the type, who reads from when.
    "delete",
]
#: The project of an agent that works in none.
GLOBAL = "global"
#: "owner": a person without an agent's name. "left": an agent that took part once.
Relation = Literal["owner", "member", "left", "stranger"]

_EVERYBODY_IN: frozenset[Relation] = frozenset({"owner", "member"})
_OWNER: frozenset[Relation] = frozenset({"owner"})
_NOBODY: frozenset[Relation] = frozenset()
#: Who may do what, by type.
RULES: dict[str, dict[Action, frozenset[Relation]]] = {
    "direct": {
        "read": _EVERYBODY_IN,
        "append": _EVERYBODY_IN,
        "edit": _EVERYBODY_IN,
        "create": _EVERYBODY_IN,
        "message": _EVERYBODY_IN,
        "change": _EVERYBODY_IN,
        "rename": _NOBODY,
        "archive": _NOBODY,
        "add": _NOBODY,
        "leave": _NOBODY,
        "remove": _NOBODY,
        "rewrite": _OWNER,
        "delete": _OWNER,
    },
    "group": {
        "read": _EVERYBODY_IN,
        "append": _EVERYBODY_IN,
        "edit": _EVERYBODY_IN,
        "create": _EVERYBODY_IN,
        "message": _EVERYBODY_IN,
        "change": _EVERYBODY_IN,
        "rename": _EVERYBODY_IN,
        "archive": _OWNER,
        "add": _EVERYBODY_IN,
        "leave": _EVERYBODY_IN,
        "remove": _OWNER,
        "rewrite": _OWNER,
        "delete": _OWNER,
    },
}
_PAIR = re.compile("direct_([a-z0-9-]+)_([a-z0-9-]+)")
#: Fields of the metadata that decide who reads what. Another active branch hides what others said.
_DECIDING = frozenset({"type", "history", "currentNode"})
#: Fields that are judged otherwise, or by another rule.
_PASSED_OVER = frozenset({"archived", "lock", "participants", "titleSetAt", "titleSetBy"}) | _DECIDING


@dataclass(frozen=True, slots=True)
class Decision:
    """The answer to a question.

    Attributes:
        reason: Why it is not allowed.
        hint: What could be done instead; empty: nothing.
    """

    allowed: bool
    reason: str = ""
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Object:
    """A conversation, as far as a decision depends on it."""

    id: str
    type: str = "chat"
    members: tuple[Member, ...] = ()
    archived: bool = False
    history: str = "joined"

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Object:
        """The object in a document or in its head."""
        about = document["metadata"]
        return cls(
            document["id"],
            about.get("type") or "chat",
            members_in(about.get("participants")),
            about.get("archived") is True,
            about.get("history") or "joined",
        )

    @property
    def is_closed(self) -> bool:
        """Whether only its participants take part."""
        return bool(self.members) and self.type in RULES

    @property
    def is_empty(self) -> bool:
        """Whether all its participants have left."""
        return self.is_closed and not self.present

    @property
    def present(self) -> frozenset[str]:
        """The ids of those who take part now."""
        if self.type == "direct":
            pair = _PAIR.fullmatch(self.id)
            return frozenset(pair.groups() if pair else (member.id for member in self.members))
        return frozenset(member.id for member in self.members if member.is_in)


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent, as far as decisions depend on it.

    Attributes:
        name: What people call it.
        project: Its project, or "global"; empty: it is not registered.
        dm: Who may write to it: open, restricted or closed.
        discoverable: Who finds it: public, project or private.
        entries: What it says of other agents, by their ids: "allow" or "block".
    """

    id: str
    name: str = ""
    project: str = ""
    dm: str = "open"
    discoverable: str = "public"
    entries: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Profile:
        """The profile in a document. A policy that is no known word is the strictest one."""
        dm, discoverable = document.get("dmPolicy") or "open", document.get("discoverable") or "public"
        entries = document.get("dm")
        return cls(
            document["id"],
            document.get("name") or document["id"],
            document.get("project") or GLOBAL,
            dm if dm in ("open", "restricted") else "closed",
            discoverable if discoverable in ("public", "project") else "private",
            {id: "allow" if entry.get("permission") == "allow" else "block" for id, entry in (entries or {}).items()},
        )


@dataclass(frozen=True, slots=True)
class State:
    """What a decision depends on besides the object.

    Attributes:
        profiles: The subject, and the agents that the object names.
        sight: The projects that the subject's project sees, its own included.
        met: The agents with whom the subject has a direct.
    """

    profiles: Mapping[str, Profile] = field(default_factory=dict)
    sight: frozenset[str] = frozenset()
    met: frozenset[str] = frozenset()


_ALLOWED = Decision(True)
_EMPTY = State()


def relation(subject: str | None, object: Object) -> Relation:
    """What `subject` is to a closed conversation."""
    if subject is None:
        return "owner"
    if subject in object.present:
        return "member"
    return "left" if object.type == "group" and any(member.id == subject for member in object.members) else "stranger"


def may(subject: str | None, action: Action, object: Object, state: State = _EMPTY) -> Decision:
    """Decide whether `subject` may do something with a conversation.

    Args:
        subject: An agent's id; None: the store's owner.
        action: The action.
        object: The conversation as it stands; for `create` and `message`, as it would be.
        state: What else counts.
    """
    if not object.is_closed:
        return _ALLOWED
    if action in ("create", "message") and object.type == "direct" and len(object.present) != 2:
        return Decision(False, "a direct conversation has two participants", "name one other agent")
    allowed, who = RULES[object.type][action], relation(subject, object)
    if who in allowed:
        return _ALLOWED
    if not allowed:
        return Decision(False, f"direct conversation {object.id} has its two participants and its name for ever")
    if who in ("left", "stranger"):
        is_in = "has left" if who == "left" else "is not a participant of"
        hint = f"a participant can add {subject}" if object.type == "group" else ""
        return Decision(False, f"{subject} {is_in} conversation {object.id}", hint)
    return Decision(False, f"only a person may {_SAID.get(action, action)} conversation {object.id}")


_SAID = {"remove": "remove others from", "rewrite": "change what others wrote or how it is read in"}


def ensure(decision: Decision, id: str) -> None:
    """Raise `Refused` if a decision about conversation `id` is no."""
    if not decision.allowed:
        raise Refused("; ".join(filter(None, (decision.reason, decision.hint))), id=id, path="")


def seen_from(subject: str | None, object: Object) -> str:
    """The time from which `subject` reads a conversation that it may read; empty: all of it."""
    if subject is None or object.type != "group" or object.history == "all":
        return ""
    return max((member.joined_at for member in object.members if member.id == subject and member.is_in), default="")


def actions_in(subject: str | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> set[Action]:
    """The actions that a write by `subject` consists of.

    Args:
        subject: An agent's id; None: the store's owner.
        before, after: The conversation before and after the write, or its heads, which have no `history`.
    """
    was, now = Object.of(before), Object.of(after)
    there, then = before["metadata"], after["metadata"]
    changed = {name for name in there.keys() | then.keys() if there.get(name) != then.get(name)}
    actions = _memberships(subject, was, now)
    if changed & _DECIDING:
        actions.add("rewrite")
    if changed - _PASSED_OVER or before.get("context") != after.get("context"):
        actions.add("change")
    # A group that the last one leaves is archived by that, and comes back with the first one who is added.
    if was.archived != now.archived and (was.is_empty, now.is_empty) != (was.archived, now.archived):
        actions.add("archive")
    said = _said(subject, before, after)
    if before["title"] != after["title"] and (not said or then.get("titleSetBy") != "auto"):
        actions.add("rename")
    return actions | said


def _memberships(subject: str | None, was: Object, now: Object) -> set[Action]:
    actions: set[Action] = set()
    before, after = ({member.id: member for member in each.members} for each in (was, now))
    for id in before.keys() | after.keys():
        old, new = before.get(id), after.get(id)
        was_in, is_in = old is not None and old.is_in, new is not None and new.is_in
        if was_in and not is_in:
            actions.add("leave" if id == subject else "remove")
        elif is_in and not was_in:
            actions.add("add")
        elif old != new:
            actions.add("rewrite")
    return actions


def _said(subject: str | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> set[Action]:
    """What a write does to messages: nothing; "edit"; or "rewrite" if it moves some, or changes one of others."""
    old, new = before.get("history"), after.get("history")
    if old is None or new is None or old == new:
        return set()
    others = [[entry for entry in each if entry.get("from") != subject] for each in (old, new)]
    there, now = ([entry.get("id") for entry in each] for each in (old, new))
    kept = set(there) & set(now)
    is_in_order = [id for id in there if id in kept] == [id for id in now if id in kept]
    return {"edit"} if others[0] == others[1] and is_in_order else {"rewrite"}
