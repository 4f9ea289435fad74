"""Convert heads of conversations to and from the rows of the index, and keep them sorted.

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
    from capsule.engines.queries import Order

#: The columns that `head_of` needs, in its order.
HEAD_COLUMNS = "id, updated_at, size, damaged, lock, head"
#: The fields of a `Head` in the JSON array of the column `head`, in this order.
HEAD_FIELDS = tuple(
    field.name
    for field in fields(Head)
    if field.name not in ("id", "updated_at", "lock", "path", "bytes", "damaged")
)
_TAGS = HEAD_FIELDS.index("tags")
_CONFLICTS = HEAD_FIELDS.index("conflicts")
_PARTICIPANTS = HEAD_FIELDS.index("participants")
_CHANNEL = HEAD_FIELDS.index("channel")


def head_of(row: tuple[Any, ...], prefix: str) -> Head:
    """Return the head in a row of `HEAD_COLUMNS`.

    Args:
        row: The row.
        prefix: The part of a conversation's path before its id.
    """
    id, updated_at, size, damaged, lock, head = row
    path = f"{prefix}{id}.json"
    if damaged or head is None:
        return Head(id=id, path=path, bytes=size, damaged=damaged)
    values = orjson.loads(head)
    values[_TAGS] = tuple(values[_TAGS])
    values[_CONFLICTS] = tuple(values[_CONFLICTS])
    values[_PARTICIPANTS] = members_in(values[_PARTICIPANTS])
    if values[_CHANNEL]:
        values[_CHANNEL] = Channel(**values[_CHANNEL])
    title, version, created_at, *later_fields = values
    parsed_lock = orjson.loads(lock) if lock else None
    # By position, which is quicker: a list of 100,000 conversations waits for this.
    all_fields = (
        id,
        title,
        version,
        created_at,
        updated_at,
        *later_fields,
        parsed_lock,
        path,
        size,
    )
    return Head(*all_fields)


def encode_head(head: Head) -> bytes:
    """Return the JSON array of the column `head`.

    Members are encoded as in the document, and a channel by its attributes.
    """
    values = []
    for name in HEAD_FIELDS:
        value = getattr(head, name)
        if name == "participants":
            value = as_json(value)
        elif name == "channel" and value:
            value = value._asdict()
        values.append(value)
    return orjson.dumps(values)


class SortedHeads:
    """All heads in one order.

    A changed head is replaced by binary search, as sorting 100,000 heads takes longer than showing
    a page.

    Args:
        order: The order.
        heads: The heads, in any order.
    """

    def __init__(self, order: Order, heads: Iterable[Head]) -> None:
        from capsule.engines.queries import key_of

        self._key = key_of(order)
        self._is_reversed = order != "title"
        # All keys are different, so `sorted` compares no heads.
        keyed = sorted((self._key(head), head) for head in heads)
        self._keys = [key for key, _ in keyed]
        self._heads = [head for _, head in keyed]

    def __iter__(self) -> Iterator[Head]:
        return reversed(self._heads) if self._is_reversed else iter(self._heads)

    def replace(self, old: Head | None, new: Head | None) -> None:
        """Remove one head and insert another. Either may be None.

        `old` must be present, because it is removed by its place in the order.

        Cost: moving pointers, and few comparisons.
        """
        if old is not None:
            index = bisect_left(self._keys, self._key(old))
            del self._keys[index]
            del self._heads[index]
        if new is not None:
            key = self._key(new)
            index = bisect_left(self._keys, key)
            self._keys.insert(index, key)
            self._heads.insert(index, new)
