"""Who takes part in a conversation: `metadata.participants`.

What must stay true: an item is a text, the id of an agent that was there from the start, or an
object with `id` and perhaps the times, the origin and the rights of the membership; what else
stands in an object is kept; and one who left comes back under the same item, so that an id stands
there once. Pure; no pydantic.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache, partial
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
        """Whether somebody else let it in; not, if it joined by itself or by a rule of
        its project.
        """
        return self.invited_by != "self" and self.source not in _BY_RULE


_BY_RULE = frozenset({"frontmatter", "default"})
_TIMES = ("joinedAt", "leftAt", "optedOutAt")
_RIGHTS = ("canLeave", "canSend", "canInvite", "canManage")
#: The fields of an item in the order of `Member`.
_FIELDS = ("id", *_TIMES, "invitedBy", "source", *_RIGHTS)
_TYPES = dict.fromkeys(_FIELDS, str) | dict.fromkeys(_RIGHTS, bool)


def are_members(value: Any) -> bool:
    """Whether `value` is a list of texts, and of objects with an `id` and times."""
    return type(value) is list and all(_is_member(item) for item in value)


def members_in(value: Any) -> tuple[Member, ...]:
    """The members in a `participants`, in their order; what is none is passed over. Times are in
    canonical form.

    If an id stands there twice, its items are taken as one, as if two versions with one each were
    merged. The last lists are remembered: one of thousands is read again with every message.
    """
    if not isinstance(value, list):
        return ()
    try:
        return _last_members(orjson.dumps(value))
    except orjson.JSONEncodeError:  # It is nested too deeply, and its file is refused elsewhere.
        return _members(value)


@lru_cache(maxsize=64)
def _last_members(encoded: bytes) -> tuple[Member, ...]:
    return _members(orjson.loads(encoded))


def _members(items: list[Any]) -> tuple[Member, ...]:
    members: dict[str, Member] = {}
    for item in items:
        if _is_member(item):
            member = _member(item)
            other = members.get(member.id)
            members[member.id] = member if other is None else _both(other, member)
    return tuple(members.values())


def merge_rank(name: str, value: Any) -> tuple[int, str]:
    """Which value of a field of an item stands where two versions differ, the greater one: the
    later time, and what grants less."""
    if name in _RIGHTS:
        return 2 if value is False else 0 if value is True else 1, ""
    is_less = value == "self" if name == "invitedBy" else name == "source" and value in _BY_RULE
    return int(is_less), sortable(value) if isinstance(value, str) else ""


def as_json(members: Iterable[Member]) -> list[Item]:
    """Members as the format writes them. To change a list of a file use `with_joined` and `with_left`, which
    keep the rest.
    """
    items: Iterable[dict[str, Any]] = (
        {
            name: value
            for name, value in zip(_FIELDS, member, strict=True)
            if name == "id" or value not in ("", None)
        }
        for member in members
    )
    return [item if len(item) > 1 else str(item["id"]) for item in items]


def with_joined(value: Any, ids: Iterable[str], at: str, **fields: Any) -> list[Item]:
    """A valid `participants` after these agents have joined; who takes part already stays as it is.

    Whom somebody took out comes back without the rights that it had been given; what it may not do
    stays so. `fields` are more fields of those who join, by their names in the format; None removes
    one.
    """
    return _changed(
        value, ids, {"leftAt": None, "optedOutAt": None, **fields, "joinedAt": at}, was_in=False
    )


def with_left(value: Any, ids: Iterable[str], at: str, **fields: Any) -> list[Item]:
    """As `with_joined`, after these agents have left."""
    return _changed(value, ids, {**fields, "leftAt": at}, was_in=True)


def with_permissions(value: Any, ids: Iterable[str], rights: dict[str, Any]) -> list[Item]:
    """As `with_joined`, after those of these agents that take part were given or refused
    these rights.
    """
    return _changed(value, ids, rights, was_in=True)


def id_of(item: Item) -> str:
    """The id of the agent that an item is about."""
    return item if isinstance(item, str) else str(item["id"])


def _changed(value: Any, ids: Iterable[str], fields: dict[str, Any], *, was_in: bool) -> list[Item]:
    now = {member.id: member.is_in for member in members_in(value)}
    waiting = dict.fromkeys(id for id in ids if now.get(id, False) is was_in)
    result: list[Item] = []
    for item in (*(value or ()), *(id for id in waiting if id not in now)):
        if (id := id_of(item)) in waiting:
            del waiting[id]
            kept = {"id": item} if isinstance(item, str) else item
            if not was_in and "optedOutAt" not in kept:
                kept = {
                    name: field for name, field in kept.items() if not (name in _RIGHTS and field)
                }
            item = {
                name: field
                for name, field in {**kept, **fields}.items()
                if field is not None or name not in fields
            }
        result.append(item)
    return result


def _is_member(item: Any) -> bool:
    if type(item) is not dict:
        return type(item) is str
    for name, value in item.items():
        if value is not None and type(value) is not _TYPES.get(name, type(value)):
            return False
    return type(item.get("id")) is str


def _member(item: Item) -> Member:
    if isinstance(item, str):
        return Member(item)
    get = item.get
    times = [sortable(time) if (time := get(name)) else "" for name in _TIMES]
    return _sound(
        item["id"], *times, get("invitedBy") or "", get("source") or "", *map(get, _RIGHTS)
    )


def _both(member: Member, other: Member) -> Member:
    pairs: Iterable[tuple[Any, ...]] = zip(_FIELDS, member, other, strict=True)
    return _sound(*(max(pair, key=partial(merge_rank, name)) for name, *pair in pairs))


def _sound(id: str, joined_at: str, left_at: str, opted_out_at: str, *rest: Any) -> Member:
    """A member without the times of leaving that a later time of joining made void."""
    if joined_at:
        left_at, opted_out_at = (
            time if time >= joined_at else "" for time in (left_at, opted_out_at)
        )
    return Member(id, joined_at, left_at, opted_out_at, *rest)
