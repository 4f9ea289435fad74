"""The heads of conversations as the index stores them, and their order in a list.

What must stay true: a list imports nothing that only reading messages needs, so that it starts
quickly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import fields
from typing import TYPE_CHECKING, Any

import orjson

from capsule.format.documents.channels import Channel
from capsule.format.documents.head import Head
from capsule.format.documents.members import as_json, members_in

if TYPE_CHECKING:
    from capsule.engines.queries import (
        Order,
    )
    from capsule.format.documents.head import Head


#: What `head_of` makes a head of, in its order.
HEAD_COLUMNS = "id, updated_at, size, damaged, lock, head"


#: The fields of a `Head` in the JSON array of the column `head`.
HEAD_FIELDS = tuple(
    field.name
    for field in fields(Head)
    if field.name not in ("id", "updated_at", "lock", "path", "bytes", "damaged")
)


def head_of(row: tuple[Any, ...], prefix: str) -> Head:
    """The head in a row of `HEAD_COLUMNS`.

    Args:
        row: The row.
        prefix: What stands before the id in the path of a file.
    """
    id, updated_at, size, damaged, lock, head = row
    path = f"{prefix}{id}.json"
    if damaged or head is None:
        return Head(id=id, path=path, bytes=size, damaged=damaged)
    title, version, created_at, mode, type, tags, *rest = orjson.loads(head)
    *more, conflicts, members, history, maker, about, channel, source, folder = rest
    whose = (
        members_in(members),
        history,
        maker,
        about,
        channel and Channel(**channel),
        source,
        folder,
    )
    behind = (
        tuple(tags),
        *more,
        tuple(conflicts),
        *whose,
        orjson.loads(lock) if lock else None,
        path,
        size,
    )
    return Head(*(id, title, version, created_at, updated_at, mode, type, *behind))


def fields_of(head: Head) -> bytes:
    """The JSON array of the column `head`: members as the format writes them, and a channel by its
    attributes.
    """
    plain = {
        "participants": as_json(head.participants),
        "channel": head.channel and head.channel._asdict(),
    }
    values = [plain[name] if name in plain else getattr(head, name) for name in HEAD_FIELDS]
    return orjson.dumps(values)


class SortedHeads:
    """All heads in one order, which is repaired where one changes: sorting 100,000 takes longer
    than showing a page.

    Args:
        order: The order.
        heads: The heads, in any order.
    """

    def __init__(self, order: Order, heads: Iterable[Head]) -> None:
        from capsule.engines.queries import key_of

        self._key, self._is_reversed = key_of(order), order != "title"
        keyed = sorted(
            (self._key(head), head) for head in heads
        )  # No two keys are the same: no head is compared.
        self._keys, self._heads = [key for key, _ in keyed], [head for _, head in keyed]

    def __iter__(self) -> Iterator[Head]:
        return reversed(self._heads) if self._is_reversed else iter(self._heads)

    def change(self, old: Head | None, new: Head | None) -> None:
        """Put a head in the place of another one. Costs moving pointers, and no comparison of most
        heads.
        """
        if old is not None:
            at = bisect_left(self._keys, self._key(old))
            del self._keys[at], self._heads[at]
        if new is not None:
            key = self._key(new)
            at = bisect_left(self._keys, key)
            self._keys.insert(at, key)
            self._heads.insert(at, new)
