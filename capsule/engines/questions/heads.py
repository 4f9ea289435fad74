"""Convert heads of conversations to and from the rows of the index, and cache them in memory.

What must stay true: a list imports nothing that only reading messages needs, so that it starts
quickly.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import orjson

from capsule.format.documents.channels import Channel
from capsule.format.documents.head import Head
from capsule.format.documents.members import as_json, members_in

if TYPE_CHECKING:
    from capsule.engines.queries import Order
    from capsule.rules.policy import Viewer

#: The number of agents for which the cache remembers what they may not read.
_MAX_AGENTS = 1000
#: If more heads changed, sorting them again is quicker than replacing each.
MAX_REPLACED = 1000
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


class HeadCache:
    """The heads of all conversations, also of damaged ones, and what each agent may not read.

    The owner of the cache brings it up to date, within the transaction whose rows it reads.

    Attributes:
        heads: The heads by id. Do not change it.
        nums: The row number of each conversation. A conversation keeps its number.
    """

    def __init__(self, heads: Iterable[tuple[int, Head]]) -> None:
        self.heads: dict[str, Head] = {}
        self.nums: dict[str, int] = {}
        for num, head in heads:
            self.heads[head.id] = head
            self.nums[head.id] = num
        self._orders: dict[str, SortedHeads] = {}
        #: By agent: the `Viewer` it was asked for, and the result of `hidden`.
        self._visibilities: dict[str, tuple[Viewer, dict[str, int | None]]] = {}

    def forget_orders(self) -> None:
        """Sort again when an order is needed. For many changed heads that is quicker."""
        self._orders = {}

    def replace(self, id: str, num: int, head: Head | None) -> None:
        """Replace a head, and update everything that depends on it. None: it is gone."""
        for order in self._orders.values():
            order.replace(self.heads.get(id), head)
        if head is None:
            self.heads.pop(id, None)
        else:
            self.nums[id] = num
            self.heads[id] = head
        for viewer, hidden in self._visibilities.values():
            hidden.pop(id, None)
            if head is not None:
                visible_from_ms = viewer.readable_from_ms(head)
                if visible_from_ms != 0:
                    hidden[id] = visible_from_ms

    def sorted(self, order: Order) -> Iterable[Head]:
        """Return the heads in an order.

        Cost: sorting them the first time, and little when some changed since.
        """
        if order not in self._orders:
            self._orders[order] = SortedHeads(order, self.heads.values())
        return self._orders[order]

    def hidden(self, asker: Viewer) -> dict[str, int | None]:
        """Return the conversations that an agent may not read, by id. Do not change it.

        None: it may read nothing of the conversation. Otherwise the time from which on it may read,
        in milliseconds since 1970.
        """
        viewer, hidden = self._visibilities.get(asker.agent, (None, {}))
        if viewer is asker or viewer == asker:
            return hidden
        hidden = {}
        for id, head in self.heads.items():
            visible_from_ms = asker.readable_from_ms(head)
            if visible_from_ms != 0:
                hidden[id] = visible_from_ms
        # Removed first, so that the newest agent is the last of the dict.
        self._visibilities.pop(asker.agent, None)
        if len(self._visibilities) == _MAX_AGENTS:
            oldest = next(iter(self._visibilities))
            del self._visibilities[oldest]
        self._visibilities[asker.agent] = asker, hidden
        return hidden


def visible_heads(heads: Iterable[Head], hidden: Mapping[str, int | None]) -> Iterable[Head]:
    """Return the heads that an agent may read. `hidden`: as `HeadCache.hidden`."""
    if not hidden:
        return heads
    return [head for head in heads if hidden.get(head.id, 0) is not None]


def without_partial_sizes(
    heads: Iterable[Head], hidden: Mapping[str, int | None]
) -> Iterable[Head]:
    """Return the heads that an agent may read, without the sizes of files that it reads in part."""
    visible = visible_heads(heads, hidden)
    if not hidden:
        return visible
    return [replace(head, bytes=0) if head.id in hidden else head for head in visible]
