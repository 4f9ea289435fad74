"""Which actions a write consists of: the actions that `capsule.rules.policy` decides about.

What must stay true: a write is judged only by the difference between the conversation before and
after it. So the rule is asked about the same actions whichever door makes the write. A difference
that is none of the other actions is a "rewrite". Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from capsule.format.documents.channels import Channel
from capsule.format.documents.members import Member
from capsule.format.tree.branches import current_after_removal, remove_messages
from capsule.format.tree.tree import Tree
from capsule.rules.policy import Action, PolicyTarget
from capsule.timestamps import sortable

#: Fields of the metadata that decide who reads and does what. Another active branch hides what
#: others said.
_ACCESS_FIELDS = frozenset({"type", "history", "currentNode", "createdBy"})
#: Fields of the metadata that only the managers of a channel change.
_CHANNEL_FIELDS = frozenset({"channel", "description"})
#: Fields of the metadata that another function judges, so that they are no "change".
_JUDGED_ELSEWHERE = (
    frozenset({"archived", "lock", "participants", "titleSetAt", "titleSetBy", "channel"})
    | _ACCESS_FIELDS
)
_PERMISSIONS = ("can_leave", "can_send", "can_invite", "can_manage")
_permissions_of = attrgetter(*_PERMISSIONS)
_origin_of = attrgetter("invited_by", "source")
_times_of = attrgetter("joined_at", "left_at", "opted_out_at")

_Entries = Sequence[Mapping[str, Any]]


def actions_of_write(
    subject: str | None, before: Mapping[str, Any], after: Mapping[str, Any]
) -> set[Action]:
    """Return the actions that a write by `subject` consists of.

    Args:
        subject: An agent's id; None: the owner of the store.
        before, after: The conversation before and after the write, or its heads, which have no
            `history`.
    """
    target_before = PolicyTarget.from_document(before)
    target_after = PolicyTarget.from_document(after)
    changed = _changed_fields(before["metadata"], after["metadata"])
    message_actions = _message_actions(subject, before, after)
    actions = _member_list_actions(
        subject, target_before, target_after, sortable(before.get("updatedAt") or "")
    )
    actions |= _channel_actions(target_before.channel, target_after.channel, changed)
    actions |= message_actions
    if _changes_access(before, after, changed):
        actions.add("rewrite")
    if _changes_head(before, after, target_before, changed):
        actions.add("change")
    if _archives(target_before, target_after):
        actions.add("archive")
    if _renames(before, after, changed, changes_messages=bool(message_actions)):
        actions.add("rename")
    return actions


def added_agents(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> frozenset[str]:
    """Return the agents that take part after a write, and did not before it.

    `before` is None if the write created the conversation.
    """
    present_after = PolicyTarget.from_document(after).present_ids
    if before is None:
        return present_after
    return present_after - PolicyTarget.from_document(before).present_ids


def changes_others(subject: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether a write by an agent touches messages of others.

    It does if it changes, moves or removes some, or adds some in the names of others.
    """
    return not _message_actions(subject, before, after) <= {"edit"}


# --- The fields of the head ---


def _changed_fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> frozenset[str]:
    names = before.keys() | after.keys()
    return frozenset(name for name in names if before.get(name) != after.get(name))


def _channel_actions(
    before: Channel | None, after: Channel | None, changed: frozenset[str]
) -> set[Action]:
    """Return the actions that a change of the channel's fields amounts to."""
    if before is None:  # A conversation that becomes a channel gets other readers.
        return {"rewrite"} if "channel" in changed else set()
    if not changed & _CHANNEL_FIELDS:
        return set()
    if after is None:
        return {"rewrite"}
    actions: set[Action] = {"manage"} if _stays_in_place(before, after) else {"rewrite"}
    if after.is_global_default and not before.is_global_default:
        actions.add("default")
    return actions


def _stays_in_place(before: Channel, after: Channel) -> bool:
    """Return whether a channel keeps its name and scope, and stays private if it was."""
    if (before.name, before.scope, before.owner) != (after.name, after.scope, after.owner):
        return False
    return before.access != "private" or after.access == "private"


def _changes_access(
    before: Mapping[str, Any], after: Mapping[str, Any], changed: frozenset[str]
) -> bool:
    """Return whether a write changes who reads what. To remove one message may move the branch."""
    access_fields = changed & _ACCESS_FIELDS
    if not access_fields:
        return False
    return access_fields != {"currentNode"} or not _follows_from_one_removal(before, after)


def _follows_from_one_removal(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether `currentNode` is the one that the removal of one message leads to."""
    old = before.get("history") or ()
    new = after.get("history") or ()
    remaining_ids = {entry.get("id") for entry in new}
    removed = [index for index, entry in enumerate(old) if entry.get("id") not in remaining_ids]
    if len(removed) != 1:
        return False
    old_current = before["metadata"].get("currentNode")
    expected = current_after_removal(Tree(old), old_current, set(removed), removed[0], new)
    return bool(after["metadata"].get("currentNode") == expected)


def _changes_head(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    target_before: PolicyTarget,
    changed: frozenset[str],
) -> bool:
    """Return whether a write changes tags, the pin, the context or another field of the head."""
    judged = _JUDGED_ELSEWHERE
    if target_before.channel is not None:
        judged = judged | _CHANNEL_FIELDS
    return bool(changed - judged) or before.get("context") != after.get("context")


def _archives(before: PolicyTarget, after: PolicyTarget) -> bool:
    """Return whether a write archives a conversation or brings it back.

    A group that the last participant leaves is archived by that, and comes back with the first one
    who is added. That is no action of its own.
    """
    if before.archived == after.archived:
        return False
    is_by_members = before.is_empty == before.archived and after.is_empty == after.archived
    return not is_by_members


def _renames(
    before: Mapping[str, Any],
    after: Mapping[str, Any],
    changed: frozenset[str],
    *,
    changes_messages: bool,
) -> bool:
    """Return whether a write changes the title. An automatic title follows the messages."""
    if "titleSetBy" in changed:
        return True
    if before["title"] == after["title"]:
        return False
    return not (changes_messages and before["metadata"].get("titleSetBy") == "auto")


# --- The members ---


def _member_list_actions(
    subject: str | None, before: PolicyTarget, after: PolicyTarget, updated_at: str
) -> set[Action]:
    """Return the actions that a change of the member list amounts to.

    Args:
        subject: The agent that writes; None: the owner.
        before, after: The conversation before and after the write.
        updated_at: The time of the last write before this one, in sortable form.
    """
    actions: set[Action] = set()
    for id in before.members_by_id.keys() | after.members_by_id.keys():
        old = before.members_by_id.get(id)
        new = after.members_by_id.get(id)
        if old == new:
            continue
        if before.channel is not None:
            actions |= _channel_member_actions(subject, before, old, new)
        else:
            actions |= _participant_actions(subject, old, new, updated_at)
    return actions


def _participant_actions(
    subject: str | None, old: Member | None, new: Member | None, updated_at: str
) -> set[Action]:
    """Return the actions that a change of one participant of a group amounts to.

    | before | after | action |
    | --- | --- | --- |
    | in | out, and it is the subject | leave |
    | in | out, and it is another agent | remove |
    | out | in, joined now | add |
    | out | in, joined before the last write: it reads older messages | add, rewrite |
    | any other change | | rewrite |
    """
    if old is not None and old.is_in and (new is None or not new.is_in):
        return {"leave"} if old.id == subject else {"remove"}
    if new is not None and new.is_in and (old is None or not old.is_in):
        return {"add", "rewrite"} if new.joined_at < updated_at else {"add"}
    return {"rewrite"}


def _channel_member_actions(
    subject: str | None, channel: PolicyTarget, old: Member | None, new: Member | None
) -> set[Action]:
    """Return the actions that a change of one member of a channel amounts to.

    `old` is None if the member is new, `new` is None if it was removed from the file.
    """
    if new is None:
        return {"rewrite"}
    before = old or Member(new.id, left_at="-", invited_by="self")
    action, is_truthful = _transition(subject, before, new)
    actions: set[Action] = set()
    if action is not None:
        actions.add(action)
    if _changes_permissions(channel, before, new):
        actions.add("manage")
    if not is_truthful:
        actions.add("rewrite")
    return actions


def _transition(subject: str | None, before: Member, after: Member) -> tuple[Action | None, bool]:
    """Return what happened to a member, and whether its item says truthfully who did it.

    The first row that applies counts:

    | before | after | who | action | truthful if |
    | --- | --- | --- | --- | --- |
    | out | in | itself | join | it is not invited, or it comes back to where it had opted out |
    | opted out | in | another | readmit | `invitedBy` is the subject |
    | out | in | another | invite | `invitedBy` is the subject |
    | in | out | itself | leave | the origin is the same |
    | in | out | another | remove | the origin is the same, and it has not opted out |
    | out | opted out | itself | join | it is not invited: it stays out of where it could join |
    | any | any | | none | the origin and all times are the same |
    """
    same_origin = _origin_of(before) == _origin_of(after)
    is_self = after.id == subject
    if after.is_in and not before.is_in:
        if is_self:
            returns = same_origin and before.opted_out_at != ""
            return "join", returns or not after.is_invited
        return "readmit" if before.opted_out_at else "invite", after.invited_by == subject
    if before.is_in and not after.is_in:
        if is_self:
            return "leave", same_origin
        return "remove", same_origin and not after.opted_out_at
    if is_self and after.opted_out_at and not after.is_in:
        return "join", not after.is_invited
    return None, same_origin and _times_of(before) == _times_of(after)


def _changes_permissions(channel: PolicyTarget, before: Member, after: Member) -> bool:
    """Return whether a member's permissions change.

    A member that enters may come with fewer permissions, but not with more. An agent that was
    removed has lost the permissions that it had been given, and keeps the refusals.
    """
    if before.is_in or not after.is_in:
        return bool(_permissions_of(before) != _permissions_of(after))
    if not before.opted_out_at:
        given: dict[str, Any] = {name: None for name in _PERMISSIONS if getattr(before, name)}
        before = before._replace(**given)
    if channel.grants(before, "can_leave") != channel.grants(after, "can_leave"):
        return True
    return any(
        channel.grants(after, name) and not channel.grants(before, name) for name in _PERMISSIONS
    )


# --- The messages ---


def _message_actions(
    subject: str | None, before: Mapping[str, Any], after: Mapping[str, Any]
) -> set[Action]:
    """Return the action that a write does to messages.

    The first row that applies counts:

    | the write | action |
    | --- | --- |
    | leaves the messages as they are | none |
    | gives a message a time after `updatedAt`: agents that join later would read it | rewrite |
    | changes the order | rewrite |
    | changes only messages of the subject | edit |
    | changes or removes messages of others | moderate |
    | adds messages of others, or gives a message another sender | rewrite |
    """
    old = before.get("history")
    new = after.get("history")
    if old is None or new is None or old == new:
        return set()
    if _has_late_time(old, new, after.get("updatedAt")) or _is_reordered(old, new):
        return {"rewrite"}
    others_before = _entries_of_others(subject, _without_own_removed(subject, old, new))
    others_after = _entries_of_others(subject, new)
    if others_before == others_after:
        return {"edit"}
    if _senders(others_after) <= _senders(others_before):
        return {"moderate"}
    return {"rewrite"}


def _has_late_time(old: _Entries, new: _Entries, updated_at: str | None) -> bool:
    """Return whether a message gets a time that is later than `updatedAt`."""
    if updated_at is None:
        return False
    old_times = {(entry.get("id"), entry.get("timestamp")) for entry in old}
    new_times = {(entry.get("id"), entry.get("timestamp")) for entry in new}
    limit = sortable(updated_at)
    return any(sortable(str(time)) > limit for _, time in new_times - old_times)


def _is_reordered(old: _Entries, new: _Entries) -> bool:
    """Return whether the messages of both versions are in different orders."""
    old_ids = [entry.get("id") for entry in old]
    new_ids = [entry.get("id") for entry in new]
    common_ids = set(old_ids) & set(new_ids)
    old_order = [id for id in old_ids if id in common_ids]
    new_order = [id for id in new_ids if id in common_ids]
    return old_order != new_order


def _without_own_removed(subject: str | None, old: list[dict[str, Any]], new: _Entries) -> _Entries:
    """Return the old messages without those of the subject that the write removed.

    The answers to a removed message get another parent. That changes nothing that others said.
    """
    new_ids = {entry.get("id") for entry in new}
    own_removed = set()
    for index, entry in enumerate(old):
        if entry.get("from") == subject and entry.get("id") not in new_ids:
            own_removed.add(index)
    if not own_removed:
        return old
    return remove_messages(old, Tree(old), own_removed)


def _entries_of_others(subject: str | None, entries: _Entries) -> list[Mapping[str, Any]]:
    return [entry for entry in entries if entry.get("from") != subject]


def _senders(entries: Iterable[Mapping[str, Any]]) -> set[tuple[Any, Any]]:
    return {(entry.get("id"), entry.get("from")) for entry in entries}
