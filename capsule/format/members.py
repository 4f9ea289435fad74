"""Who takes part in a conversation: `metadata.participants`.

What must stay true: an item is a text, the id of an agent that was there from the start, or an object with `id`,
`joinedAt` and `leftAt`; what else stands in an object is kept; and one who left comes back under the same item, so that
an id stands there once. Pure; no pydantic.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from capsule.timestamps import sortable

Item = str | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """An agent in a conversation, or one that was.

    Attributes:
        id: The agent's id.
        joined_at: When it joined, as the format writes times; empty: it was there from the start.
        left_at: When it left; empty: it takes part. Of leaving and joining the later counts; at one time, leaving.
    """

    id: str
    joined_at: str = ""
    left_at: str = ""

    @property
    def is_in(self) -> bool:
        """Whether it takes part now."""
        return not self.left_at


_NOBODY = Member("")


def are_members(value: Any) -> bool:
    """Whether `value` is a list of texts, and of objects with an `id` and times."""
    return type(value) is list and all(_is_member(item) for item in value)


def members_in(value: Any) -> tuple[Member, ...]:
    """The members in a `participants`, in their order; what is none is passed over. Times are in canonical form.

    If an id stands there twice, its items are taken as one, as if two versions with one each were merged.
    """
    members: dict[str, Member] = {}
    for item in value if isinstance(value, list) else ():
        if _is_member(item):
            id, *times = (item, "", "") if isinstance(item, str) else (item["id"], *map(_time, _times(item)))
            other = members.get(id, _NOBODY)
            joined_at, left_at = max(times[0], other.joined_at), max(times[1], other.left_at)
            members[id] = Member(id, joined_at, left_at if left_at >= joined_at else "")
    return tuple(members.values())


def as_json(members: Iterable[Member]) -> list[Item]:
    """Members as the format writes them. To change a list of a file use `joined` and `left`, which keep the rest."""
    return [_item(member) for member in members]


def joined(value: Any, ids: Iterable[str], at: str, **fields: Any) -> list[Item]:
    """A valid `participants` after these agents have joined; who takes part already stays as it is.

    Args:
        value: The list as it stands in the file; None: there is none. It stays as it is.
        ids: The agents.
        at: When, as the format writes times.
        fields: More fields of those who join, by their names in the format; None removes one.
    """
    return _changed(value, ids, {"leftAt": None, "optedOutAt": None, **fields, "joinedAt": at}, was_in=False)


def left(value: Any, ids: Iterable[str], at: str, **fields: Any) -> list[Item]:
    """As `joined`, after these agents have left."""
    return _changed(value, ids, {**fields, "leftAt": at}, was_in=True)


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
            item = {**({"id": item} if isinstance(item, str) else item), **fields}
            item = {name: field for name, field in item.items() if field is not None or name not in fields}
        result.append(item)
    return result


def _is_member(item: Any) -> bool:
    if type(item) is dict:
        return type(item.get("id")) is str and all(time is None or type(time) is str for time in _times(item))
    return type(item) is str


def _times(item: dict[str, Any]) -> tuple[Any, Any]:
    return item.get("joinedAt"), item.get("leftAt")


def _time(text: str | None) -> str:
    return sortable(text) if text else ""


def _item(member: Member) -> Item:
    times = {name: time for name, time in (("joinedAt", member.joined_at), ("leftAt", member.left_at)) if time}
    return {"id": member.id, **times} if times else member.id
