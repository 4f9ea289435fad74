"""Read and change the members of a conversation: the list `metadata.participants`.

An item of the list is a text, the id of an agent that was there from the start, or an object with
`id` and perhaps times, origin and permissions. `Member` has the same as a typed value.

What must stay true: unknown fields of an object are kept. An agent that left comes back under the
same item, so an id occurs once. If it occurs twice, its items count as one. Pure; no pydantic.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from capsule.timestamps import sortable

Item = str | dict[str, Any]


class Member(NamedTuple):
    """An agent in a conversation, or one that was.

    Attributes:
        id: The agent's id.
        joined_at: When it joined, as the format writes times; empty: it was there from the start.
        left_at: When it left; empty: it takes part. The later of leaving and joining counts; of
            equal times, leaving.
        opted_out_at: When it left by itself; empty: it did not, or joined later.
        invited_by: The agent that let it in, or `self` or `system`; empty: it does not say.
        source: Why it is there: `manual`, `frontmatter`, `default` or `system`; empty: it does not
            say.
        can_leave, can_send, can_invite, can_manage: What it may do there; None: what the
            conversation grants.
    """

    id: str
    joined_at: str = ""
    left_at: str = ""
    opted_out_at: str = ""
    invited_by: str = ""
    source: str = ""
    can_leave: bool | None = None
    can_send: bool | None = None
    can_invite: bool | None = None
    can_manage: bool | None = None

    @property
    def is_in(self) -> bool:
        """Whether it takes part now."""
        return not self.left_at

    @property
    def is_invited(self) -> bool:
        """Whether another agent let it in. False: it joined by itself or by a rule of its project."""
        return self.invited_by != "self" and self.source not in _RULE_SOURCES


#: The sources of members that joined by a rule.
_RULE_SOURCES = frozenset({"frontmatter", "default"})
_TIMES = ("joinedAt", "leftAt", "optedOutAt")
_PERMISSIONS = ("canLeave", "canSend", "canInvite", "canManage")
#: The fields of an item in the order of `Member`.
_FIELDS = ("id", *_TIMES, "invitedBy", "source", *_PERMISSIONS)
_TYPES = dict.fromkeys(_FIELDS, str) | dict.fromkeys(_PERMISSIONS, bool)


# --- Reading ---


def are_members(value: Any) -> bool:
    """Return whether `value` is a list of valid items."""
    return type(value) is list and all(_is_member(item) for item in value)


def _is_member(item: Any) -> bool:
    if type(item) is not dict:
        return type(item) is str
    for name, value in item.items():
        expected_type = _TYPES.get(name)
        if value is not None and expected_type is not None and type(value) is not expected_type:
            return False
    return type(item.get("id")) is str


def members_in(value: Any) -> tuple[Member, ...]:
    """Return the members in a `participants`, in their order. Invalid items are skipped.

    If an id occurs twice, its items are merged. The last lists are cached, because a list of
    thousands is read with every message.
    """
    if not isinstance(value, list):
        return ()
    try:
        return _cached_members(orjson.dumps(value))
    except orjson.JSONEncodeError:  # It is nested too deeply, and its file is refused elsewhere.
        return _parse_members(value)


@lru_cache(maxsize=64)
def _cached_members(encoded: bytes) -> tuple[Member, ...]:
    return _parse_members(orjson.loads(encoded))


def _parse_members(items: list[Any]) -> tuple[Member, ...]:
    members: dict[str, Member] = {}
    for item in items:
        if not _is_member(item):
            continue
        member = _parse_member(item)
        earlier = members.get(member.id)
        if earlier is not None:
            member = _merge_duplicates(earlier, member)
        members[member.id] = member
    return tuple(members.values())


def _parse_member(item: Item) -> Member:
    if isinstance(item, str):
        return Member(item)
    times = [sortable(item[name]) if item.get(name) else "" for name in _TIMES]
    permissions = [item.get(name) for name in _PERMISSIONS]
    return _member_with_valid_times(
        item["id"], *times, item.get("invitedBy") or "", item.get("source") or "", *permissions
    )


def _merge_duplicates(a: Member, b: Member) -> Member:
    """Return one member from two items of the same id. Of each field the greater value counts."""
    values: list[Any] = []
    for name, value_of_a, value_of_b in zip(_FIELDS, a, b, strict=True):
        a_wins = merge_rank(name, value_of_a) >= merge_rank(name, value_of_b)
        values.append(value_of_a if a_wins else value_of_b)
    return _member_with_valid_times(*values)


def _member_with_valid_times(
    id: str, joined_at: str, left_at: str, opted_out_at: str, *other_fields: Any
) -> Member:
    """Return a member. Times of leaving before the time of joining count no longer."""
    left_later = left_at >= joined_at
    opted_out_later = opted_out_at >= joined_at
    return Member(
        id,
        joined_at,
        left_at if left_later else "",
        opted_out_at if opted_out_later else "",
        *other_fields,
    )


def merge_rank(name: str, value: Any) -> tuple[int, str]:
    """Return a sort key for merging a field of a member. The greater value wins.

    Of two times the later is greater, of two permissions or origins the stricter.
    """
    if name in _PERMISSIONS:
        if value is False:
            return 2, ""
        return 0 if value is True else 1, ""  # An absent permission is between the two.
    is_stricter = False
    if name == "invitedBy":
        is_stricter = value == "self"
    elif name == "source":
        is_stricter = value in _RULE_SOURCES
    return int(is_stricter), sortable(value) if isinstance(value, str) else ""


def id_of(item: Item) -> str:
    """Return the id of the agent of an item."""
    return item if isinstance(item, str) else str(item["id"])


# --- Writing ---


def as_json(members: Iterable[Member]) -> list[Item]:
    """Return members as the format writes them.

    To change the list of a file use `with_joined` and `with_left`, which keep unknown fields.
    """
    result: list[Item] = []
    for member in members:
        item = {}
        for name, value in zip(_FIELDS, member, strict=True):
            if name == "id" or value not in ("", None):
                item[name] = value
        result.append(item if len(item) > 1 else member.id)
    return result


def with_joined(value: Any, ids: Iterable[str], time: str, **fields: Any) -> list[Item]:
    """Return a valid `participants` after these agents have joined.

    An agent that takes part already stays unchanged. An agent that was removed comes back without
    the permissions that it had been given, and keeps the refusals.

    Args:
        value: The list.
        ids: The agents.
        time: When they join.
        fields: More fields of their items, by their names in the format. None removes one.
    """
    new_fields = {"leftAt": None, "optedOutAt": None, **fields, "joinedAt": time}
    return _with_changed(value, ids, new_fields, are_in=False)


def with_left(value: Any, ids: Iterable[str], time: str, **fields: Any) -> list[Item]:
    """Return the same after these agents have left. Agents that are not in stay unchanged."""
    return _with_changed(value, ids, {**fields, "leftAt": time}, are_in=True)


def with_permissions(value: Any, ids: Iterable[str], permissions: dict[str, Any]) -> list[Item]:
    """Return the same with these permissions for those of the agents that are in."""
    return _with_changed(value, ids, permissions, are_in=True)


def _with_changed(
    value: Any, ids: Iterable[str], fields: dict[str, Any], *, are_in: bool
) -> list[Item]:
    """Return the list with new fields for some agents.

    Args:
        value: The list.
        ids: The agents.
        fields: Their new fields. None removes one.
        are_in: True: only agents that are in get the fields. False: only agents that are not in
            get them, and those that are no members are added.
    """
    is_in = {member.id: member.is_in for member in members_in(value)}
    pending = dict.fromkeys(id for id in ids if is_in.get(id, False) is are_in)
    new_ids = [id for id in pending if id not in is_in]
    result: list[Item] = []
    for item in (*(value or ()), *new_ids):
        id = id_of(item)
        if id not in pending:
            result.append(item)
            continue
        del pending[id]
        old_fields = {"id": item} if isinstance(item, str) else item
        if not are_in and "optedOutAt" not in old_fields:
            old_fields = _without_given_permissions(old_fields)
        changed = {**old_fields, **fields}
        for name, field in fields.items():
            if field is None:
                del changed[name]
        result.append(changed)
    return result


def _without_given_permissions(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: field for name, field in fields.items() if not (name in _PERMISSIONS and field)}
