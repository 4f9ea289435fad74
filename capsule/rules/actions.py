"""What a write does to a conversation, by what it changes: the actions that `capsule.rules.policy`
decides about.

What must stay true: a write is judged by its difference alone, so that whichever door makes it, the
rule asks about the same actions; and a difference that is none of the others is a "rewrite". Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from operator import attrgetter
from typing import Any

from capsule.format.documents.channels import Channel
from capsule.format.documents.members import Member
from capsule.format.tree.pruning import kept_current, without
from capsule.format.tree.tree import Tree
from capsule.rules.policy import Action, Object
from capsule.timestamps import sortable

#: Fields of the metadata that decide who reads and does what. Another active branch hides what
#: others said.
_DECIDING = frozenset({"type", "history", "currentNode", "createdBy"})
#: Fields of the metadata that only the managers of a channel change.
_OF_A_CHANNEL = frozenset({"channel", "description"})
#: Fields that are judged otherwise, or by another rule.
_PASSED_OVER = (
    frozenset({"archived", "lock", "participants", "titleSetAt", "titleSetBy", "channel"})
    | _DECIDING
)
_RIGHTS = ("can_leave", "can_send", "can_invite", "can_manage")
_rights, _origin = attrgetter(*_RIGHTS), attrgetter("invited_by", "source")
_times = attrgetter("joined_at", "left_at", "opted_out_at")


def actions_in(
    subject: str | None, before: Mapping[str, Any], after: Mapping[str, Any]
) -> set[Action]:
    """The actions that a write by `subject` consists of.

    Args:
        subject: An agent's id; None: the store's owner.
        before, after: The conversation before and after the write, or its heads, which have no
            `history`.
    """
    was, now = Object.of(before), Object.of(after)
    there, then = before["metadata"], after["metadata"]
    changed = {name for name in there.keys() | then.keys() if there.get(name) != then.get(name)}
    actions = _memberships(subject, was, now, sortable(before.get("updatedAt") or ""))
    if was.channel is not None and changed & _OF_A_CHANNEL:
        actions.add(
            "manage" if now.channel is not None and _stays(was.channel, now.channel) else "rewrite"
        )
        if (
            now.channel is not None
            and now.channel.is_global_default
            and not was.channel.is_global_default
        ):
            actions.add("default")
        changed -= _OF_A_CHANNEL
    elif "channel" in changed:
        actions.add("rewrite")
    if changed & _DECIDING and not (
        changed & _DECIDING == {"currentNode"} and _is_left(before, after)
    ):
        actions.add("rewrite")
    if changed - _PASSED_OVER or before.get("context") != after.get("context"):
        actions.add("change")
    # A group that the last one leaves is archived by that, and comes back with the first one who is
    # added.
    if was.archived != now.archived and (was.is_empty, now.is_empty) != (
        was.archived,
        now.archived,
    ):
        actions.add("archive")
    said = _said(subject, before, after)
    is_by_rule = said and there.get("titleSetBy") == "auto"
    if "titleSetBy" in changed or (before["title"] != after["title"] and not is_by_rule):
        actions.add("rename")
    return actions | said


def _is_left(before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Whether `currentNode` is what the removal of one message leaves it."""
    old, new = before.get("history") or (), after.get("history") or ()
    kept = {entry.get("id") for entry in new}
    gone = [at for at, entry in enumerate(old) if entry.get("id") not in kept]
    was, now = (each["metadata"].get("currentNode") for each in (before, after))
    return len(gone) == 1 and now == kept_current(Tree(old), was, set(gone), gone[0], new)


def _stays(was: Channel, now: Channel) -> bool:
    """Whether a channel keeps its place, and does not open what was said in private."""
    is_same = (was.name, was.scope, was.owner) == (now.name, now.scope, now.owner)
    return is_same and (was.access != "private" or now.access == "private")


def added(before: Mapping[str, Any] | None, after: Mapping[str, Any]) -> frozenset[str]:
    """The agents that take part after a write, and did not before it; None: there was no
    conversation.
    """
    return Object.of(after).present - (frozenset() if before is None else Object.of(before).present)


def _memberships(subject: str | None, was: Object, now: Object, since: str) -> set[Action]:
    """What is done to the items; who is added to a group joins it now, and reads nothing that was
    said by `since`.
    """
    actions: set[Action] = set()
    for id in was.by_id.keys() | now.by_id.keys():
        old, new = was.by_id.get(id), now.by_id.get(id)
        if old == new:
            continue
        was_in, is_in = old is not None and old.is_in, new is not None and new.is_in
        if was.channel is not None:
            actions |= _membership(subject, was, old, new)
        elif was_in and not is_in:
            actions.add("leave" if id == subject else "remove")
        elif new is not None and is_in and not was_in:
            actions |= {"add", "rewrite"} if new.joined_at < since else {"add"}
        else:
            actions.add("rewrite")
    return actions


def _membership(
    subject: str | None, channel: Object, old: Member | None, new: Member | None
) -> set[Action]:
    """What the change of one item of a channel is; without `new`, its item is gone, and so is what
    it tells.
    """
    if new is None:
        return {"rewrite"}
    was, is_mine = old or Member(new.id, left_at="-", invited_by="self"), new.id == subject
    # Whom somebody took out has lost the rights that it had been given, but not what was withheld
    # from it.
    is_taken_out = not (was.is_in or was.opted_out_at)
    lost: dict[str, Any] = {
        right: None for right in _RIGHTS if is_taken_out and getattr(was, right)
    }
    had = was._replace(**lost)
    is_honest, gains = _origin(was) == _origin(new), _rights(was) != _rights(new)
    action: Action | None = None
    if new.is_in and not was.is_in:
        action = "join" if is_mine else "readmit" if was.opted_out_at else "invite"
        # Who comes by itself says so, unless it comes back to where it was invited; who invites
        # says who did.
        came_alone = not new.is_invited or (is_honest and bool(was.opted_out_at))
        is_honest = came_alone if is_mine else new.invited_by == subject
        gains = any(
            channel.has(new, right) and not channel.has(had, right) for right in _RIGHTS[1:]
        )
        gains = gains or channel.has(new, "can_leave") != channel.has(had, "can_leave")
    elif was.is_in and not new.is_in:
        action = "leave" if is_mine else "remove"
        is_honest = is_honest and (
            is_mine or not new.opted_out_at
        )  # It is for each to say that it stays out.
    elif is_mine and new.opted_out_at and not new.is_in:
        action, is_honest = (
            "join",
            not new.is_invited,
        )  # It says that it stays out of where it could join.
    else:
        is_honest = is_honest and _times(was) == _times(new)
    actions: dict[Action | None, bool] = {action: True, "manage": gains, "rewrite": not is_honest}
    return {each for each, is_so in actions.items() if is_so and each is not None}


def changes_others(subject: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> bool:
    """Return whether a write by an agent changes, moves or removes messages of others, or adds some
    in their names.
    """
    return not _said(subject, before, after) <= {"edit"}


def _said(subject: str | None, before: Mapping[str, Any], after: Mapping[str, Any]) -> set[Action]:
    """What a write does to messages: nothing; "edit"; "moderate" if it changes or removes some of
    others; or "rewrite" if it moves some, or has others say what they did not."""
    old, new = before.get("history"), after.get("history")
    if old is None or new is None or old == new:
        return set()
    there, now = ([entry.get("id") for entry in each] for each in (old, new))
    kept = set(there) & set(now)
    dated = {(entry.get("id"), entry.get("timestamp")) for entry in new if "updatedAt" in after}
    dated -= {(entry.get("id"), entry.get("timestamp")) for entry in old}
    if any(sortable(str(time)) > sortable(after["updatedAt"]) for _, time in dated):
        return {"rewrite"}  # Who reads from a later time on would read from there.
    if [id for id in there if id in kept] != [id for id in now if id in kept]:
        return {"rewrite"}
    # The answers to a message that went name another parent, and say the same.
    gone = {
        at
        for at, entry in enumerate(old)
        if entry.get("from") == subject and entry.get("id") not in kept
    }
    left = without(old, Tree(old), gone) if gone else old
    others = [[entry for entry in each if entry.get("from") != subject] for each in (left, new)]
    if others[0] == others[1]:
        return {"edit"}
    said = {(entry.get("id"), entry.get("from")) for entry in others[0]}
    is_theirs = all((entry.get("id"), entry.get("from")) in said for entry in others[1])
    return {"moderate"} if is_theirs else {"rewrite"}
