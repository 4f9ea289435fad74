"""Decide who may do what with a conversation: one rule for every door.

`decide` is the entry. The subject is the agent that acts, or None: the owner of the store. The
target is a conversation, or another agent. The inputs (`PolicyInputs`) are all else that a decision
reads.

A direct, a group with participants and a channel are closed: the tables below list who may do what
there, and docs/messaging.md shows the same tables. All other conversations are open to everybody.
If an agent does not find a conversation, the answer is the same as if there were none.

`Viewer` has the condition of every list, search and count: the time from which an agent reads a
conversation. It depends only on the viewer and the head, so an engine may cache it, or express it
in its own query language.

What must stay true: a decision depends on the subject, the action, the target and the inputs, and
on nothing else. An agent whose profile the inputs do not contain counts as closed and private.
Nothing here touches a file. Who holds a lock is another rule (`capsule.rules.locking`), and a write
must pass both.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from capsule.errors import NotFound, Refused, Remedy
from capsule.format.documents.agents import GLOBAL
from capsule.format.documents.channels import Channel, channel_in, notes_id
from capsule.format.documents.members import Member, members_in
from capsule.rules.consent import (
    PolicyInputs,
    dm_availability,
    in_scope,
    is_agent_visible,
)
from capsule.rules.locking import EXCLUSIVE
from capsule.timestamps import ms_of, sortable

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
    "join",  # Enter a channel by oneself.
    "invite",  # Let others into a channel.
    "readmit",  # Let an agent into a channel that it left by itself.
    "leave",
    "remove",  # Remove another participant.
    "change",  # Change tags, the pin, the context or another field of the head.
    "manage",  # Change the fields of a channel, or the permissions of its members.
    "default",  # Make a global channel a default one, into which every later agent is put.
    "lock",  # Keep all others from writing.
    # Change anything else: the order or the senders of messages, the type, who reads from when. See
    # `capsule.rules.write_actions`.
    "rewrite",
    "delete",
    "link",  # Link two projects.
    "move",  # Move an agent into a project.
]

# --- Directs and groups ---

#: "owner": a person without an agent's name. "left": an agent that took part once.
Relation = Literal["owner", "member", "left", "stranger"]

_PARTICIPANT_ACTIONS: tuple[Action, ...] = (
    "find",
    "read",
    "append",
    "edit",
    "create",
    "message",
    "change",
)
_OWNER_ACTIONS: tuple[Action, ...] = ("moderate", "rewrite", "delete", "lock")
_OWNER_AND_MEMBERS: frozenset[Relation] = frozenset({"owner", "member"})
_OWNER: frozenset[Relation] = frozenset({"owner"})
_DIRECT_RULES: dict[Action, frozenset[Relation]] = {
    **dict.fromkeys(_PARTICIPANT_ACTIONS, _OWNER_AND_MEMBERS),
    **dict.fromkeys(_OWNER_ACTIONS, _OWNER),
}
#: By type and action, who may do it. Nobody may do an action that is not listed.
RULES: dict[str, dict[Action, frozenset[Relation]]] = {
    "direct": _DIRECT_RULES,
    "group": {
        **_DIRECT_RULES,
        "rename": _OWNER_AND_MEMBERS,
        "add": _OWNER_AND_MEMBERS,
        "leave": _OWNER_AND_MEMBERS,
        "archive": _OWNER,
        "remove": _OWNER,
    },
}

# --- Channels ---

#: How an agent stands to a channel; see `_channel_standing`.
ChannelStanding = Literal[
    "member",
    "reader",  # It is no member, and reads an open channel.
    "returner",  # It left by itself, and may join again.
    "observer",  # It finds the channel, and does not read it.
    "outsider",  # It must not learn that the channel exists.
]

#: What an agent may do in a channel without a permission. Everything else needs a member with one.
_FREE_ACTIONS: dict[ChannelStanding, frozenset[Action]] = {
    "member": frozenset({"find", "read", "join"}),
    "reader": frozenset({"find", "read", "join"}),
    "returner": frozenset({"find", "join"}),
    "observer": frozenset({"find"}),
    "outsider": frozenset(),
}
#: The permission that a member needs for an action. An action that is not listed is the owner's.
REQUIRED_PERMISSIONS: dict[Action, str] = {
    "append": "can_send",
    "edit": "can_send",
    "change": "can_send",
    "leave": "can_leave",
    "invite": "can_invite",
    "readmit": "can_invite",
    "rename": "can_manage",
    "archive": "can_manage",
    "remove": "can_manage",
    "manage": "can_manage",
}
#: By the access of a channel, the permissions of a member whose item does not name them.
DEFAULT_PERMISSIONS: dict[str, frozenset[str]] = {
    "open": frozenset({"can_leave", "can_send", "can_invite"}),
    "members": frozenset({"can_leave", "can_send"}),
    "private": frozenset({"can_leave", "can_send"}),
}

# --- Ids and words ---

_DIRECT_ID = re.compile("direct_([a-z0-9-]+)_([a-z0-9-]+)")
#: How an id begins that says what its conversation is and whose it is. No other conversation may
#: have such an id.
OWN_ID_PREFIX = re.compile("(direct|channel|notes)_")
#: As `OWN_ID_PREFIX`, and `group_`, in any case, because some file systems ignore case. No imported
#: chat gets such an id.
RESERVED_ID_PREFIX = re.compile("(direct|group|channel|notes)_", re.IGNORECASE)
#: The actions that add readers. A session that may send to a conversation may not do them.
_ADDS_READERS = frozenset({"add", "invite", "readmit"})
_MAX_NAMED_INVITERS = 5
#: What an agent is told about one that it can't add.
_UNAVAILABLE = "it accepts no messages, or does not exist"
_ACTION_PHRASES = {
    "append": "write to",
    "change": "change",
    "moderate": "change messages of others in",
    "rewrite": "change messages of others or the permissions of",
    "remove": "remove others from",
    "invite": "invite to",
    "readmit": "invite to",
    "manage": "manage",
    "default": "add all agents to",
}

#: Reads the inputs of a decision about a target, and about other agents; see
#: `AgentDirectory.state`.
InputsFor = Callable[["PolicyTarget | None", Iterable[str]], PolicyInputs]


@lru_cache(maxsize=4096)
def _direct_pair(id: str) -> frozenset[str]:
    """Return the two agents that the id of a direct names; empty if it is no such id."""
    pair = _DIRECT_ID.fullmatch(id)
    return frozenset(pair.groups()) if pair else frozenset()


class PolicyDecision(NamedTuple):
    """The answer of the policy.

    As a tuple it is always true: ask `allowed`.

    Attributes:
        reason: Why it is not allowed.
        hint: What could be done instead; empty: nothing. A function if the hint names members:
            that takes long and needs more inputs, so it runs only when the hint is shown.
        hidden: Whether the subject must not learn that the target exists.
        asks: The agents that could still allow it. Each of them gets a request for permission.
    """

    allowed: bool
    reason: str = ""
    hint: str | Callable[[InputsFor], str] = ""
    hidden: bool = False
    asks: tuple[str, ...] = ()


def _denied(reason: str, hint: str | Callable[[InputsFor], str] = "") -> PolicyDecision:
    return PolicyDecision(False, reason, hint)


def _not_found(target: PolicyTarget) -> PolicyDecision:
    """Return the answer of an engine about a conversation that does not exist."""
    return PolicyDecision(False, f"no conversation {target.id}", hidden=True)


@dataclass(frozen=True, slots=True)
class PolicyTarget:
    """The fields of a conversation that a decision depends on; or an agent (type "agent").

    Attributes:
        members: The participants of a direct or group, or the members of a channel, also those that
            left.
        archived: Whether it is archived. `decide` does not ask for this.
        history: What a participant of a group reads: `all` messages, or those since it `joined`.
        channel: The fields of the channel; None: it is no channel.
        created_by: The agent that created it; empty: it does not say.
        members_by_id: The members by their ids.
    """

    id: str
    type: str = "chat"
    members: tuple[Member, ...] = ()
    archived: bool = False
    history: str = "joined"
    channel: Channel | None = None
    created_by: str = ""
    members_by_id: Mapping[str, Member] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        members_by_id = {member.id: member for member in self.members}
        object.__setattr__(self, "members_by_id", members_by_id)

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> PolicyTarget:
        """Return the target in a document or in its head."""
        metadata = document["metadata"]
        created_by = metadata.get("createdBy")
        return cls(
            id=document["id"],
            type=metadata.get("type") or "chat",
            members=members_in(metadata.get("participants")),
            archived=metadata.get("archived") is True,
            history=metadata.get("history") or "joined",
            channel=channel_in(metadata),
            created_by=created_by if isinstance(created_by, str) else "",
        )

    @classmethod
    def from_head(cls, head: Head) -> PolicyTarget:
        """Return the target in a head as lists have it."""
        return cls(
            id=head.id,
            type=head.type,
            members=head.participants,
            archived=head.archived,
            history=head.history or "joined",
            channel=head.channel,
            created_by=head.created_by or "",
        )

    @classmethod
    def from_parsed_head(cls, head: ParsedHead) -> PolicyTarget:
        """Return the target in a parsed head. The head keeps it: it may have thousands
        of members.
        """
        if head.policy_target is None:
            head.policy_target = cls.from_document(head.document)
        target: PolicyTarget = head.policy_target
        return target

    @property
    def is_closed(self) -> bool:
        """Whether only its participants or members take part."""
        return self.channel is not None or (bool(self.members) and self.type in RULES)

    @property
    def is_empty(self) -> bool:
        """Whether all its participants have left."""
        return self.is_closed and not self.present_ids

    @property
    def present_ids(self) -> frozenset[str]:
        """The ids of the agents that take part now."""
        if self.type == "direct":
            return _direct_pair(self.id) or frozenset(self.members_by_id)
        return frozenset(member.id for member in self.members if member.is_in)

    def grants(self, member: Member, permission: str) -> bool:
        """Return whether a member of this channel has a permission: its own, or the default."""
        assert self.channel is not None
        own_permission: bool | None = getattr(member, permission)
        if own_permission is not None:
            return own_permission
        return permission in DEFAULT_PERMISSIONS[self.channel.access]


_ALLOWED = PolicyDecision(True)
_NO_INPUTS = PolicyInputs()


def decide(
    subject: str | None, action: Action, target: PolicyTarget, inputs: PolicyInputs = _NO_INPUTS
) -> PolicyDecision:
    """Decide whether `subject` may do something with a conversation.

    Args:
        subject: An agent's id; None: the owner of the store.
        action: The action.
        target: The conversation as it is; for `create` and `message`, as it would be.
        inputs: What else the decision depends on. For `add`, `invite` and `readmit` its `profiles`
            also say whom the action adds: all agents there but `subject`.
    """
    decision = _decide_outside_session(subject, action, target, inputs)
    if not decision.allowed and not decision.asks:
        return decision
    # A decision that only waits for a permission is checked too: a session must not make requests.
    if inputs.session_targets is None:
        return decision
    if _stays_in_session(subject, action, target, inputs.session_targets):
        return decision
    phrase = f"{_ACTION_PHRASES.get(action, action)} {target.type} {target.id}"
    hint = ""
    if action == "append" or target.type == "direct":
        hint = "a person can allow it to send there"
    return _denied(f"{subject} may not {phrase} in its session: it is not a destination", hint)


def _stays_in_session(
    subject: str | None, action: Action, target: PolicyTarget, session_targets: Set[str]
) -> bool:
    """Return whether the session in which `subject` acts allows the action.

    Reading is always allowed. A write is allowed if the session may send to the target, or if
    nobody else can read it. Adding readers is never allowed.
    """
    if action in ("find", "read"):
        return True
    if action in _ADDS_READERS:
        return False
    if target.id in session_targets:
        return True
    if not target.is_closed:
        return False
    if target.channel is not None and target.channel.access != "private":
        return False
    return target.present_ids <= {subject}


def _decide_outside_session(
    subject: str | None, action: Action, target: PolicyTarget, inputs: PolicyInputs
) -> PolicyDecision:
    """Decide as `decide`, without the limits of a session."""
    if subject is not None:
        decision = _refusal_for_agents(subject, action, target, inputs)
        if decision is not None:
            return decision
    if target.type == "agent" and action in ("find", "manage", "delete", "move"):
        return _decide_about_agent(subject, action, target.id, inputs)
    if not target.is_closed:
        return _decide_in_open(subject, action, target)
    if target.channel is not None:
        return _decide_in_channel(subject, action, target, target.channel, inputs)
    return _decide_by_relation(subject, action, target, inputs)


def _refusal_for_agents(
    subject: str, action: Action, target: PolicyTarget, inputs: PolicyInputs
) -> PolicyDecision | None:
    """Return why no agent may do the action; None if the type of the target decides."""
    if not inputs.is_guarded and (target.is_closed or target.type == "agent"):
        return _denied(
            f"agents may not use {target.type} {target.id}: the part that decides about it is "
            "not installed"
        )
    if action == "link":
        return _denied(f"only a person may link projects, not agent {subject}")
    if action == "create" and _uses_reserved_id(target):
        return _denied(f"the id {target.id} is reserved for another conversation")
    return None


def _uses_reserved_id(target: PolicyTarget) -> bool:
    """Return whether a new conversation has an id that names another conversation."""
    if not OWN_ID_PREFIX.match(target.id):
        return False
    if not target.is_closed:
        return True
    if target.channel is None:
        return target.type != "direct"
    return target.id != target.channel.id and not target.channel.is_apart(target.id)


def _decide_about_agent(
    subject: str | None, action: Action, id: str, inputs: PolicyInputs
) -> PolicyDecision:
    """Decide whether `subject` finds an agent, changes its policies, forgets it or moves it."""
    if subject is None:
        return _ALLOWED
    if action == "manage":
        if subject == id:
            return _ALLOWED
        return _denied(f"only {id} or a person may choose who may write to {id}")
    # An agent that is forgotten could register again, and say that it belongs to another project.
    if action == "delete":
        return _denied(f"only a person may forget agent {id}")
    if action == "move":
        return _denied(f"only a person may move agent {id}")
    if is_agent_visible(inputs.profile(subject), inputs.profile(id), inputs):
        return _ALLOWED
    return PolicyDecision(False, f"there is no agent {id!r}", hidden=True)


def _decide_in_open(subject: str | None, action: Action, target: PolicyTarget) -> PolicyDecision:
    """Decide about a conversation that is open to everybody."""
    if subject is None:
        return _ALLOWED
    if action == "lock" and target.type != EXCLUSIVE:
        return _denied(f"only a person may lock {target.type} {target.id}: it has several writers")
    if action == "moderate":
        hint = "add your own version beside it, as a branch"
        phrase = _ACTION_PHRASES[action]
        return _denied(f"only a person may {phrase} conversation {target.id}", hint)
    return _ALLOWED


def relation(subject: str | None, target: PolicyTarget) -> Relation:
    """Return the relation of `subject` to a direct or a group."""
    if subject is None:
        return "owner"
    if target.type == "direct":
        return "member" if subject in target.present_ids else "stranger"
    member = target.members_by_id.get(subject)
    if member is None:
        return "stranger"
    return "member" if member.is_in else "left"


def _decide_by_relation(
    subject: str | None, action: Action, target: PolicyTarget, inputs: PolicyInputs
) -> PolicyDecision:
    """Decide about a direct or a group by `RULES`, and by consent for an agent that takes part."""
    begins = action in ("create", "message")
    if begins and target.type == "direct" and len(target.present_ids) != 2:
        return _denied("a direct conversation has two participants", "name one other agent")
    allowed_relations = RULES[target.type].get(action, frozenset())
    subject_relation = relation(subject, target)
    if subject_relation in allowed_relations:
        if subject is None:
            return _ALLOWED
        return _decide_by_consent(subject, action, target, inputs)
    if subject_relation in ("left", "stranger"):
        if begins:
            return _denied(f"{subject} is not a participant of conversation {target.id}")
        return _not_found(target)
    if not allowed_relations:
        return _denied(f"{target.type} conversation {target.id} never permits this: {action}")
    phrase = _ACTION_PHRASES.get(action, action)
    return _denied(f"only a person may {phrase} conversation {target.id}")


def _decide_by_consent(
    subject: str, action: Action, target: PolicyTarget, inputs: PolicyInputs
) -> PolicyDecision:
    """Decide by the consent of the agents that an action of a participant reaches.

    - "add": the agents that it adds.
    - "create": everybody else in it.
    - Every action but "find" and "read" in a direct: the other agent.
    """
    other_agents: Set[str] = frozenset()
    if action == "add":
        other_agents = _added_agents(subject, inputs)
    elif action == "create" or (target.type == "direct" and action not in ("find", "read")):
        other_agents = target.present_ids - {subject}
    return _check_consent(subject, other_agents, target, inputs)


def _added_agents(subject: str, inputs: PolicyInputs) -> Set[str]:
    """Return the agents that an action adds: see `inputs` of `decide`."""
    return inputs.profiles.keys() - {subject}


def _check_consent(
    subject: str, other_agents: Set[str], target: PolicyTarget, inputs: PolicyInputs
) -> PolicyDecision:
    """Decide whether the subject and each of the other agents may write to each other.

    An agent that is not public is refused like one that does not exist, so that the answer does not
    reveal it. In their own direct the two know each other, so there the true reason is given.
    """
    profile = inputs.profile(subject)
    undecided = []
    for other_id in sorted(other_agents):
        other_profile = inputs.profile(other_id)
        availability = dm_availability(profile, other_profile)
        if availability == "available":
            continue
        if availability == "requires permission":
            undecided.append(other_profile)
            continue
        is_secret = availability == "unavailable" or other_profile.discoverable != "public"
        if is_secret and target.type != "direct":
            return _denied(f"{subject} may not write to {other_id}: unavailable", _UNAVAILABLE)
        return _denied(f"{subject} may not write to {other_id}: {availability}")
    if not undecided:
        return _ALLOWED
    ids = [other_profile.id for other_profile in undecided]
    can_be_asked = [
        other_profile.id
        for other_profile in undecided
        if other_profile.dm == "restricted" and subject not in other_profile.dm_entries
    ]
    return PolicyDecision(
        False,
        f"{subject} may not write to {', '.join(ids)}: requires permission",
        f"{subject} or {' and '.join(ids)} would have to allow it",
        asks=tuple(can_be_asked),
    )


def _decide_in_channel(
    subject: str | None,
    action: Action,
    target: PolicyTarget,
    channel: Channel,
    inputs: PolicyInputs,
) -> PolicyDecision:
    """Decide what `subject` may do in a channel. The first case that applies counts."""
    if action == "readmit" and channel.access != "private":
        return _denied(
            f"an agent that left conversation {target.id} can come back only by joining again"
        )
    if subject is None:
        return _ALLOWED
    standing = _channel_standing(subject, target, channel, inputs)
    if action == "create":
        return _decide_channel_creation(subject, target, channel, inputs, standing)
    if standing == "outsider":
        return _not_found(target)
    if action in _FREE_ACTIONS[standing]:
        return _ALLOWED
    if standing != "member":
        reason = f"{subject} is not a member of conversation {target.id}"
        if standing == "reader":
            return _denied(reason, "join it first")
        return _denied(reason, partial(_who_may_invite, subject, target))
    if action == "leave" and subject == channel.owner:
        return _denied(f"{subject} stays in conversation {target.id}: it holds its own notes")
    if not _has_channel_permission(subject, action, target, channel):
        can_be_granted = action in REQUIRED_PERMISSIONS and channel.access != "private"
        needed = "a member with that right" if can_be_granted else "a person"
        phrase = _ACTION_PHRASES.get(action, action)
        return _denied(f"only {needed} may {phrase} conversation {target.id}")
    if action in _ADDS_READERS:
        return _check_consent(subject, _added_agents(subject, inputs), target, inputs)
    return _ALLOWED


def _channel_standing(
    subject: str, target: PolicyTarget, channel: Channel, inputs: PolicyInputs
) -> ChannelStanding:
    """Return how an agent stands to a channel. The first line that applies counts."""
    member = target.members_by_id.get(subject)
    is_in_scope = in_scope(inputs.profile(subject), channel.scope, inputs.visible_projects)
    if member is not None and member.is_in and (is_in_scope or member.is_invited):
        return "member"
    if is_in_scope and channel.access == "open":
        return "reader"
    if channel.access == "private":
        return "outsider"
    if member is not None and member.opted_out_at and member.is_invited:
        return "returner"  # An agent that somebody removed has no `opted_out_at`.
    return "observer" if is_in_scope else "outsider"


def _has_channel_permission(
    subject: str, action: Action, target: PolicyTarget, channel: Channel
) -> bool:
    """Return whether a member has the permission that an action needs."""
    if channel.access == "private" and action in ("invite", "remove"):
        return subject == channel.owner  # An agent chooses who reads its notes, and nobody else.
    if action in ("invite", "readmit") and subject == target.created_by:
        return True
    permission = REQUIRED_PERMISSIONS.get(action)
    return permission is not None and target.grants(target.members_by_id[subject], permission)


def _decide_channel_creation(
    subject: str,
    target: PolicyTarget,
    channel: Channel,
    inputs: PolicyInputs,
    standing: ChannelStanding,
) -> PolicyDecision:
    """Decide whether an agent may create a channel.

    It must be a member and the creator, the scope must be its project or `global`, and the other
    members must consent.
    """
    is_its_own = target.created_by == subject and channel.owner in ("", subject)
    if standing != "member" or not is_its_own:
        return _denied(f"{subject} may only make a channel as its own, with itself as a member")
    if channel.scope not in (GLOBAL, inputs.profile(subject).project):
        return _denied(f"{subject} may only make a channel of its own project, or a global one")
    if channel.is_global_default:
        phrase = _ACTION_PHRASES["default"]
        return _denied(f"only a person may {phrase} conversation {target.id}")
    return _check_consent(subject, target.present_ids - {subject}, target, inputs)


def _who_may_invite(subject: str, target: PolicyTarget, inputs_for: InputsFor) -> str:
    """Return the hint that names the members who may invite, if the subject finds them."""
    inviters = []
    for member in target.members:
        if not member.is_in or member.id == subject:
            continue
        if member.id == target.created_by or target.grants(member, "can_invite"):
            inviters.append(member.id)
    if not inviters:
        return "who may invite: a person"
    visible_inviters = (
        id
        for id in inviters
        if decide(subject, "find", PolicyTarget(id, "agent"), inputs_for(None, (id,))).allowed
    )
    names = ", ".join(islice(visible_inviters, _MAX_NAMED_INVITERS))
    return f"who may invite: {names or 'a member that you do not find'}"


def _no_inputs(target: PolicyTarget | None, others: Iterable[str]) -> PolicyInputs:
    return _NO_INPUTS


def raise_if_denied(decision: PolicyDecision, id: str, inputs_for: InputsFor = _no_inputs) -> None:
    """Raise an error if a decision about conversation `id` is no.

    Raises:
        NotFound: The subject must not learn that the conversation exists.
        Refused: The subject may not do it.
    """
    if decision.hidden:
        raise NotFound(decision.reason, remedy=Remedy("list"), id=id)
    if decision.allowed:
        return
    hint = decision.hint if isinstance(decision.hint, str) else decision.hint(inputs_for)
    message = decision.reason
    if hint:
        message += f"; {hint}"
    fields: dict[str, Any] = {}
    if decision.asks:
        fields["asks"] = decision.asks
    raise Refused(message, id=id, path="", **fields)


def hides_damaged_file(subject: str, id: str) -> bool:
    """Return whether an agent must not learn of a damaged conversation.

    Its participants cannot be read, so only an id that names the agent shows that it takes part.
    """
    if not RESERVED_ID_PREFIX.match(id):
        return False
    return subject not in _direct_pair(id) and id != notes_id(subject)


def readable_from(subject: str | None, target: PolicyTarget) -> str:
    """Return the time from which `subject` reads a conversation. Empty: it reads all of it.

    Only a group can hide what was written before an agent joined. Whether `subject` may read the
    conversation at all, `decide` says.
    """
    if subject is None or target.type != "group" or target.history == "all":
        return ""
    member = target.members_by_id.get(subject)
    if member is None or not member.is_in:
        return ""
    return member.joined_at


def first_readable_time(subject: str, target: PolicyTarget, created_at: str) -> str:
    """Return the time as `readable_from`, but empty if no message can be earlier.

    That is so if the time is not after `created_at`, when the conversation was created.
    """
    since = readable_from(subject, target)
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
        """Return from when on the agent reads a conversation.

        Returns:
            None: the agent may not read it. 0: it reads all of it. Otherwise the time of the first
            message that it may read, in milliseconds since 1970.
        """
        if head.participants or head.channel is not None:
            target = PolicyTarget.from_head(head)
            return self._readable_from_ms(target, head.created_at)
        if head.damaged and hides_damaged_file(self.agent, head.id):
            return None
        return 0

    def readable_from_ms_in(self, document: Mapping[str, Any]) -> int | None:
        """Return the same as `readable_from_ms`, for a stored document or its head."""
        target = PolicyTarget.from_document(document)
        return self._readable_from_ms(target, document["createdAt"])

    def _readable_from_ms(self, target: PolicyTarget, created_at: str) -> int | None:
        if not decide(self.agent, "read", target, self.inputs).allowed:
            return None
        since = first_readable_time(self.agent, target, created_at)
        return ms_of(since) if since else 0
