"""Who may do what with a conversation: one rule for every door.

What must stay true: a decision depends on who asks, on the action, on the conversation as it stands
and on the state that is given, and on nothing else; what the state does not say counts as the
strictest. Nothing here touches a file. Who holds a lock is another rule (`capsule.rules.locking`),
and a write needs both.

A direct, a group with participants and a channel are closed: the tables below say who may do what
there. All other conversations are open to everybody. For an agent that does not find a channel, the
channel does not exist.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from capsule.errors import NotFound, Refused, Remedy
from capsule.format.documents.agents import GLOBAL as GLOBAL
from capsule.format.documents.channels import Channel, channel_in, notes_id
from capsule.format.documents.members import Member, members_in
from capsule.rules.consent import Profile as Profile
from capsule.rules.consent import State as State
from capsule.rules.consent import consent as consent
from capsule.rules.consent import finds
from capsule.rules.consent import in_scope as in_scope
from capsule.rules.locking import EXCLUSIVE

if TYPE_CHECKING:
    from capsule.format.documents.head import Head, ParsedHead

Action = Literal[
    "find",  # See that it exists.
    "read",
    "append",
    "edit",  # Change or remove one's own message.
    "moderate",  # Change or remove messages of others.
    "create",
    "message",  # Begin a direct with somebody.
    "rename",
    "archive",
    "add",  # Add a participant of a group, or let one come back.
    "join",  # Come into a channel by oneself.
    "invite",  # Let others into a channel.
    "readmit",  # Let one into a channel who left it by itself.
    "leave",
    "remove",  # Remove another participant.
    "change",  # Change tags, the pin, the context or another field of the head.
    "manage",  # Change what a channel says of itself, or what its members may do.
    "default",  # Make a global channel a default one, into which every later agent is put.
    "lock",  # Keep all others from writing.
    "rewrite",  # Change anything else: messages of others, the type, who reads from when.
    "delete",
    "link",  # Link two projects.
    "move",  # Move an agent into a project.
]
#: "owner": a person without an agent's name. "left": an agent that took part once.
Relation = Literal["owner", "member", "left", "stranger"]

_EVERYBODY_IN: frozenset[Relation] = frozenset({"owner", "member"})
_OWNER: frozenset[Relation] = frozenset({"owner"})
_TAKING_PART: tuple[Action, ...] = ("find", "read", "append", "edit", "create", "message", "change")
_OF_THE_OWNER: tuple[Action, ...] = ("moderate", "rewrite", "delete", "lock")
_DIRECT = dict.fromkeys(_TAKING_PART, _EVERYBODY_IN) | dict.fromkeys(_OF_THE_OWNER, _OWNER)
#: Who may do what in a direct and in a group; nobody may do what is not named.
RULES: dict[str, dict[Action, frozenset[Relation]]] = {
    "direct": _DIRECT,
    "group": _DIRECT
    | dict.fromkeys(("rename", "add", "leave"), _EVERYBODY_IN)
    | dict.fromkeys(("archive", "remove"), _OWNER),
}
#: The right that a member of a channel needs; `_in_channel` decides the others, or only the owner
#: may.
RIGHTS: dict[Action, str] = {
    **dict.fromkeys(("append", "edit", "change"), "can_send"),
    **dict.fromkeys(("moderate", "rename", "archive", "remove", "manage"), "can_manage"),
    "leave": "can_leave",
    **dict.fromkeys(("invite", "readmit"), "can_invite"),
}
#: By the access of a channel, the rights of a member whose item does not say.
GRANTED: dict[str, frozenset[str]] = {
    "open": frozenset({"can_leave", "can_send", "can_invite"}),
    "members": frozenset({"can_leave", "can_send"}),
    "private": frozenset({"can_leave", "can_send"}),
}
_PAIR = re.compile("direct_([a-z0-9-]+)_([a-z0-9-]+)")
#: Ids that say what a conversation is and whose it is. No other conversation may have one.
TELLING = re.compile("(direct|channel|notes)_")
#: Ids that say or seem to say so, in any case, as some file systems ignore it. No imported chat
#: gets one.
RESERVED = re.compile("(direct|group|channel|notes)_", re.IGNORECASE)
#: The actions that choose who reads: the right to send does not include them.
_BRINGING_IN = frozenset({"add", "invite", "readmit"})
_MOST_NAMED = 5


#: What else an agent is told of one that it can't bring in.
_UNAVAILABLE = "it lets nobody write to it, or there is no such agent"
#: Gives what a decision depends on besides a conversation, about other agents too; see
#: `Directory.state`.
StateOf = Callable[["Object | None", Iterable[str]], State]


@lru_cache(maxsize=4096)
def _pair(id: str) -> frozenset[str]:
    """The two agents in the id of a direct; empty: it has none."""
    pair = _PAIR.fullmatch(id)
    return frozenset(pair.groups() if pair else ())


class Decision(NamedTuple):
    """The answer to a question.

    Attributes:
        reason: Why it is not allowed.
        hint: What could be done instead; empty: nothing. To name members takes long and needs more
            state, so it is done only when the hint is shown.
        hidden: Whether the subject is not to learn that there is such a conversation.
        asks: The agents that could still allow it: each is asked for its permission.
    """

    allowed: bool
    reason: str = ""
    hint: str | Callable[[StateOf], str] = ""
    hidden: bool = False
    asks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Object:
    """A conversation, as far as a decision depends on it; or an agent (type "agent") that is to be
    found.

    Attributes:
        channel: What makes it a channel; None: it is none of ours.
        made_by: The agent that made it; empty: it does not say.
        by_id: The members by their ids.
    """

    id: str
    type: str = "chat"
    members: tuple[Member, ...] = ()
    archived: bool = False
    history: str = "joined"
    channel: Channel | None = None
    made_by: str = ""
    by_id: Mapping[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_id", {member.id: member for member in self.members})

    @classmethod
    def of(cls, document: Mapping[str, Any]) -> Object:
        """The object in a document or in its head."""
        about = document["metadata"]
        made_by = about.get("createdBy")
        return cls(
            document["id"],
            about.get("type") or "chat",
            members_in(about.get("participants")),
            about.get("archived") is True,
            about.get("history") or "joined",
            channel_in(about),
            made_by if isinstance(made_by, str) else "",
        )

    @classmethod
    def listed(cls, head: Head) -> Object:
        """The object in a head as lists have it."""
        about = (
            head.participants,
            head.archived,
            head.history or "joined",
            head.channel,
            head.created_by or "",
        )
        return cls(head.id, head.type, *about)

    @classmethod
    def at(cls, head: ParsedHead) -> Object:
        """The object in a parsed head, worked out once for each head: it may have thousands of
        members.
        """
        if head.object is None:
            head.object = cls.of(head.document)
        known: Object = head.object
        return known

    @property
    def is_closed(self) -> bool:
        """Whether not everybody takes part."""
        return self.channel is not None or (bool(self.members) and self.type in RULES)

    @property
    def is_empty(self) -> bool:
        """Whether all its participants have left."""
        return self.is_closed and not self.present

    @property
    def present(self) -> frozenset[str]:
        """The ids of those who take part now."""
        if self.type == "direct":
            return _pair(self.id) or frozenset(self.by_id)
        return frozenset(member.id for member in self.members if member.is_in)

    def has(self, member: Member, right: str) -> bool:
        """Whether a member of a channel has a right, as far as its item and the channel's access
        say.
        """
        assert self.channel is not None
        said: bool | None = getattr(member, right)
        return right in GRANTED[self.channel.access] if said is None else said


_ALLOWED = Decision(True)
_EMPTY = State()


def relation(subject: str | None, object: Object) -> Relation:
    """What `subject` is to a direct or a group."""
    if subject is None:
        return "owner"
    if object.type == "direct":
        return "member" if subject in object.present else "stranger"
    member = object.by_id.get(subject)
    return "stranger" if member is None else "member" if member.is_in else "left"


def may(subject: str | None, action: Action, object: Object, state: State = _EMPTY) -> Decision:
    """Decide whether `subject` may do something with a conversation.

    Args:
        subject: An agent's id; None: the store's owner.
        action: The action.
        object: The conversation as it stands; for `create` and `message`, as it would be.
        state: What else counts.
    """
    decision = _decided(subject, action, object, state)
    is_no = not (
        decision.allowed or decision.asks
    )  # Nobody outside of a session learns that it was to be asked.
    if is_no or state.reach is None or _is_in_reach(subject, action, object, state.reach):
        return decision
    about = f"{_SAID.get(action, action)} {object.type} {object.id}"
    hint = (
        "a person can allow it to send there"
        if action == "append" or object.type == "direct"
        else ""
    )
    return Decision(False, f"{subject} may not {about} in its session: it is no destination", hint)


def _is_in_reach(subject: str | None, action: Action, object: Object, reach: Set[str]) -> bool:
    """Whether an action stays within the session that it is done in: it lets nobody else read what
    the session says.
    """
    if action in ("find", "read"):
        return True
    is_listed = object.channel is not None and object.channel.access != "private"
    is_alone = object.is_closed and not is_listed and object.present <= {subject}
    return action not in _BRINGING_IN and (is_alone or object.id in reach)


def _decided(subject: str | None, action: Action, object: Object, state: State) -> Decision:
    """As `may`, wherever the subject acts."""
    if (
        not state.is_guarded
        and subject is not None
        and (object.is_closed or object.type == "agent")
    ):
        return Decision(
            False,
            f"what agents may do with {object.type} {object.id} is judged by a part not installed",
        )
    if action == "link" and subject is not None:
        return Decision(False, f"only a person may link projects, not agent {subject}")
    if object.type == "agent" and action in ("find", "manage", "delete", "move"):
        return _about_agent(subject, action, object.id, state)
    if action == "create" and subject is not None and _takes_id(object):
        return Decision(False, f"the id {object.id} is kept for another conversation")
    if not object.is_closed:
        return _in_open(subject, action, object)
    if object.channel is not None:
        return _in_channel(subject, action, object, object.channel, state)
    if action in ("create", "message") and object.type == "direct" and len(object.present) != 2:
        return Decision(False, "a direct conversation has two participants", "name one other agent")
    allowed, who = RULES[object.type].get(action, frozenset()), relation(subject, object)
    if who in allowed:
        return _ALLOWED if subject is None else _agreed(subject, action, object, state)
    if who in ("left", "stranger"):
        if action not in ("create", "message"):
            return _hidden(object)
        return Decision(False, f"{subject} is not a participant of conversation {object.id}")
    if not allowed:
        return Decision(
            False,
            f"{object.type} conversation {object.id} stays as it is there: nobody may {action}",
        )
    return Decision(
        False, f"only a person may {_SAID.get(action, action)} conversation {object.id}"
    )


def _in_open(subject: str | None, action: Action, object: Object) -> Decision:
    """Decide about a conversation that everybody takes part in: there an agent changes its own
    messages only.
    """
    if action == "lock" and subject is not None and object.type != EXCLUSIVE:
        return Decision(
            False, f"only a person may lock {object.type} {object.id}: it has several writers"
        )
    if subject is None or action != "moderate":
        return _ALLOWED
    hint = "put a version of your own beside it, as a branch"
    return Decision(False, f"only a person may {_SAID[action]} conversation {object.id}", hint)


def _about_agent(subject: str | None, action: Action, id: str, state: State) -> Decision:
    """Whether an agent is found, its policies and entries are changed (by itself), or a person
    forgets or moves it.
    """
    if subject is None or (action == "manage" and subject == id):
        return _ALLOWED
    if action in (
        "delete",
        "move",
    ):  # Forgotten, it could register again, and say that it belongs elsewhere.
        return Decision(
            False, f"only a person may {'move' if action == 'move' else 'forget'} agent {id}"
        )
    if action == "find" and finds(state.profile(subject), state.profile(id), state):
        return _ALLOWED
    is_hidden = action == "find"
    reason = (
        f"there is no agent {id!r}"
        if is_hidden
        else f"only {id} or a person may say who may write to {id}"
    )
    return Decision(False, reason, hidden=is_hidden)


_SAID = {
    "append": "write to",
    "change": "change",
    "moderate": "change what others wrote in",
    "rewrite": "change what others wrote or how it is read in",
    "remove": "remove others from",
    "invite": "invite to",
    "readmit": "invite to",
    "manage": "manage",
    "default": "put all agents into",
}


def _hidden(object: Object) -> Decision:
    """The answer about a conversation that the subject may not find: that of the engine about one
    that is not there.
    """
    return Decision(False, f"no conversation {object.id}", hidden=True)


def _takes_id(object: Object) -> bool:
    """Whether a new conversation has an id that tells of another one."""
    own = (
        object.channel.id
        if object.channel is not None
        else object.id
        if object.type == "direct"
        else ""
    )
    is_own = object.is_closed and (
        object.id == own or (object.channel and object.channel.is_apart(object.id))
    )
    return TELLING.match(object.id) is not None and not is_own


def _agreed(subject: str, action: Action, object: Object, state: State) -> Decision:
    """Whether those whose consent an action of a participant needs give it."""
    others: Set[str] = frozenset()
    if action == "add":
        others = state.profiles.keys() - {subject}
    elif action == "create" or (object.type == "direct" and action not in ("read", "find")):
        others = object.present - {subject}
    return _consented(state.profile(subject), others, object, state)


def _consented(me: Profile, others: Set[str], object: Object, state: State) -> Decision:
    """Whether each of these agents and `me` may write to each other.

    Whoever is not to be found publicly is refused like an agent that does not exist, but in the
    direct of the two.
    """
    asks = []
    for other in sorted(others):
        profile = state.profile(other)
        availability = consent(me, profile)
        if availability in ("blocked", "unavailable"):
            may_be_none = object.type != "direct" and (
                availability == "unavailable" or profile.discoverable != "public"
            )
            word, hint = ("unavailable", _UNAVAILABLE) if may_be_none else (availability, "")
            return Decision(False, f"{me.id} may not write to {other}: {word}", hint)
        if availability == "requires permission":
            asks.append(profile)
    if not asks:
        return _ALLOWED
    names = [each.id for each in asks]
    undecided = tuple(
        each.id for each in asks if each.dm == "restricted" and me.id not in each.entries
    )
    return Decision(
        False,
        f"{me.id} may not write to {', '.join(names)}: requires permission",
        f"{me.id} or {' and '.join(names)} would have to allow it",
        asks=undecided,
    )


def _in_channel(
    subject: str | None, action: Action, object: Object, channel: Channel, state: State
) -> Decision:
    if action == "readmit" and channel.access != "private":
        return Decision(
            False, f"who left conversation {object.id} comes back by itself, and by nobody else"
        )
    if subject is None:
        return _ALLOWED
    me, mine = state.profile(subject), object.by_id.get(subject)
    reaches = in_scope(me, channel.scope, state.sight)
    is_in = mine is not None and mine.is_in and (reaches or mine.is_invited)
    if action == "create":
        return _creates(me, object, channel, state, is_in=is_in)
    is_open, is_private = (
        is_in or (reaches and channel.access == "open"),
        channel.access == "private",
    )
    # Who was invited and left by itself may come back; whom somebody removed may not.
    returns = mine is not None and bool(mine.opted_out_at) and mine.is_invited and not is_private
    if not (is_open or returns or (reaches and not is_private)):
        return _hidden(object)
    if (
        action == "find"
        or (action == "read" and is_open)
        or (action == "join" and (is_open or returns))
    ):
        return _ALLOWED
    if mine is None or not is_in:
        hint = "join it first" if is_open else partial(_inviting, subject, object)
        return Decision(False, f"{subject} is not a member of conversation {object.id}", hint)
    if action == "leave" and subject == channel.owner:
        return Decision(
            False, f"{subject} stays in conversation {object.id}: it holds its own notes"
        )
    right = RIGHTS.get(action, "")
    has_right = bool(right) and object.has(mine, right)
    if action in ("invite", "remove") and is_private:
        has_right = (
            subject == channel.owner
        )  # Nobody comes in later, but who may look into one's notes.
    elif action in ("invite", "readmit"):
        has_right = has_right or subject == object.made_by
    if not has_right:
        who = "a member with that right" if right and not is_private else "a person"
        return Decision(
            False, f"only {who} may {_SAID.get(action, action)} conversation {object.id}"
        )
    if action in ("invite", "readmit"):
        return _consented(me, state.profiles.keys() - {me.id}, object, state)
    return _ALLOWED


def _creates(
    me: Profile, object: Object, channel: Channel, state: State, *, is_in: bool
) -> Decision:
    """Whether an agent may make a channel: one of its own, in its project or for all, which it
    takes part in.
    """
    if not is_in or object.made_by != me.id or channel.owner not in ("", me.id):
        return Decision(False, f"{me.id} may only make a channel of its own that it takes part in")
    if channel.scope not in (GLOBAL, me.project):
        return Decision(
            False, f"{me.id} may only make a channel of its own project, or a global one"
        )
    if channel.is_global_default:
        return Decision(False, f"only a person may {_SAID['default']} conversation {object.id}")
    return _consented(me, object.present - {me.id}, object, state)


def _inviting(subject: str, object: Object, state_of: StateOf) -> str:
    """Who may invite, of those that the subject finds."""
    there = (member for member in object.members if member.is_in and member.id != subject)
    who = [
        member.id
        for member in there
        if member.id == object.made_by or object.has(member, "can_invite")
    ]
    inviters = (
        id for id in who if may(subject, "find", Object(id, "agent"), state_of(None, (id,))).allowed
    )
    hidden = "a member that you do not find" if who else "a person"
    return f"who may invite: {', '.join(islice(inviters, _MOST_NAMED)) or hidden}"


def _nothing(object: Object | None, others: Iterable[str]) -> State:
    return _EMPTY


def ensure(decision: Decision, id: str, state_of: StateOf = _nothing) -> None:
    """Raise `Refused`, or `NotFound` where `id` is hidden, if a decision about conversation `id` is
    no.
    """
    if decision.hidden:
        raise NotFound(decision.reason, remedy=Remedy("list"), id=id)
    if not decision.allowed:
        hint = decision.hint if isinstance(decision.hint, str) else decision.hint(state_of)
        message = "; ".join(filter(None, (decision.reason, hint)))
        fields: dict[str, Any] = {"asks": decision.asks} if decision.asks else {}
        raise Refused(message, id=id, path="", **fields)


def is_hidden_damaged(subject: str, id: str) -> bool:
    """Whether an agent is not to learn of a damaged conversation: who takes part is known only
    where the id says it.
    """
    return RESERVED.match(id) is not None and subject not in _pair(id) and id != notes_id(subject)


def seen_from(subject: str | None, object: Object) -> str:
    """The time from which `subject` reads a conversation that it may read; empty: all of it."""
    if subject is None or object.type != "group" or object.history == "all":
        return ""
    member = object.by_id.get(subject)
    return member.joined_at if member is not None and member.is_in else ""
