"""Merging two versions of a capsule by meaning, three ways; docs/format.md, "Merging", has the laws and the rules.

What must stay true besides: what decides is what the versions say of their ancestor, never what an earlier merge made
of it. What a merged capsule could not show otherwise is noted in it: the deleted message that a message answered
(`metadata.originalParent` of the message), and the message that a version switched to (`metadata.currentWanted`).

The steps: what each version says, with the same ids for what was typed (`side`); the messages by id (`history`) and
their order (`order`); the active branch (below); the head field by field (`head`). `values` merges single values, and
`conflicts` holds what a person has to settle. The three ways are those of diff3 (Khanna, Kunal, Pierce: A Formal
Investigation of Diff3, 2007). Pure: no clock, no chance, no file.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice, takewhile, zip_longest
from typing import Any, NamedTuple

import orjson

from capsule.errors import InvalidDocument, Problem
from capsule.format.documents.new import CURRENT
from capsule.format.json.canonical import in_order
from capsule.format.merge.clean_form import cleaned, is_clean_message
from capsule.format.merge.head import Heads
from capsule.format.merge.history import Histories
from capsule.format.merge.notes import Merged, wanted_in
from capsule.format.merge.side import Renamed, Side, renamed_in, same_ids
from capsule.format.merge.values import ABSENT, bytes_of, same
from capsule.format.text.shown import one_line
from capsule.format.tree.pruning import kept_current

Document = dict[str, Any]
_NODE, _WANTED = "currentNode", "currentWanted"
_TEXTS = frozenset({str})
_EMPTY: Document = {"metadata": {}, "context": {}, "history": []}


def merge(base: Document | None, ours: Document, theirs: Document, path: str = "") -> Merged:
    """Merge two versions of a capsule, as `codec.decode` gave them and `validation.check` accepts them.

    `base` is the version that both began from; None: there is none. `path` names the file in the error.

    Raises:
        InvalidDocument: They are not versions of one conversation, or one is of a newer major version.

    Cost: less than parsing the three; nothing is compared twice.
    """
    was = _Version(b"", [], _EMPTY)
    was = was if base is None else _Version.of(base, path, was)
    mine = _Version.of(ours, path, was)
    yours = _Version.of(theirs, path, mine)
    ids = dict.fromkeys(side.document["id"] for side in (was, mine, yours) if side.document is not _EMPTY)
    if len(ids) > 1:
        reason = f"these are versions of different conversations: {', '.join(map(one_line, ids))}"
        raise InvalidDocument.of([Problem(path, 0, 0, "id", reason)])
    if mine.is_like(yours) or yours.is_like(was):
        return Merged(mine.document)
    if mine.is_like(was):
        return Merged(yours.document)
    names = same_ids(was.document["history"], mine.document["history"], yours.document["history"])
    mine, yours = mine.renamed(names[0]), yours.renamed(names[1])
    ours, theirs = mine.document, yours.document
    began = was.document
    heads = Heads(began, ours, theirs)
    document = heads.merged()
    is_line = document["metadata"].get("type", "chat") != "chat"
    side = partial(Side, conversation=ours["id"], is_line=is_line)
    first = side(was.document["history"], was.written)
    sides = [side(each.document["history"], each.written, base=first) for each in (mine, yours)]
    histories = Histories(first, sides[0], sides[1], ours["id"])
    history, notes = histories.merged()
    document["metadata"] |= _merged_current(began, ours, theirs, histories, history)
    # The messages are as they should be by now.
    document = cleaned(in_order({**document, "history": []}), path) | {"history": history}
    conflicts = tuple(sorted(heads.conflicts, key=lambda each: each.field))
    return Merged(document, conflicts, (*sorted(heads.notes), *notes))


class _Version(NamedTuple):
    """A version in its clean form, and what is written for it: the head, and each message."""

    head: bytes
    written: list[bytes]
    document: Document

    def is_like(self, other: _Version) -> bool:
        """Whether both are written alike."""
        return self.head == other.head and self.written == other.written

    def renamed(self, names: Renamed) -> _Version:
        """The version with other ids for some messages."""
        if not names:
            return self
        history = renamed_in(self.document["history"], names)
        about = self.document["metadata"]
        if about.get("currentNode") in names:
            about = {**about, "currentNode": names[about["currentNode"]]}
        document = {**self.document, "metadata": about, "history": history}
        return _Version(self.head, list(map(orjson.dumps, history)), document)

    @classmethod
    def of(cls, document: Document, path: str, known: _Version) -> _Version:
        """The version that `document` is; what `known` has in the same place, which is nearly all, is taken from it."""
        if document.get("version") == CURRENT:
            written, is_clean = [], True
            places = zip_longest(document["history"], known.document["history"], known.written)
            for entry, other, line in islice(places, len(document["history"])):
                if _is_alike(entry, other):
                    written.append(line)
                else:
                    written.append(orjson.dumps(entry))
                    is_clean = is_clean and is_clean_message(entry)
            if is_clean:
                head = cleaned({**document, "history": []}, path)
                return cls(orjson.dumps(head), written, head | {"history": document["history"]})
        document = cleaned(document, path)
        written = list(map(orjson.dumps, document["history"]))
        return cls(orjson.dumps({**document, "history": []}), written, document)


def _is_alike(left: Document, right: Document | None) -> bool:
    """Whether two messages are surely written alike: all fields are texts, for which Python's equality will do."""
    return left == right and list(left) == list(right) and _TEXTS.issuperset(map(type, left.values()))


# -- The active branch -----------------------------------------------------------------------------------------------


def _merged_current(
    base: Document, ours: Document, theirs: Document, histories: Histories, history: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """`currentNode` and `currentWanted` of the merged capsule, as far as it needs them.

    The side that switched to another branch wins, and of two the one that switched to the later message. If that
    message is gone, the node is set as after a deletion in the store.
    """
    was = base.get("metadata", {})
    # Later is what the message says itself: the leaf under it may have grown on either side since.
    went = [_went(was, side["metadata"]) for side in (ours, theirs) if _has_gone(was, side["metadata"])]
    wanted, instead = was.get(_NODE, ABSENT), ABSENT
    if went:
        wanted, instead = max(went, key=lambda each: (_lateness(each[0], histories), bytes_of(each[1])))
    if not isinstance(wanted, str):
        return {}
    there = {message["id"] for message in history}
    known = histories.base.entries
    if wanted in there or (wanted not in known and instead is ABSENT):
        return {_NODE: wanted}
    now: str | None = wanted if wanted in known else instead
    if now is not None and now not in there:
        now = _made_good(now, histories.base, there, history) if now in known else None
    current = {} if now is None else {_NODE: now}
    return {**current, _WANTED: {"message": wanted, "instead": now}} if went else current


def _has_gone(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a version went to another branch than the ancestor."""
    return not same(now.get(_NODE, ABSENT), was.get(_NODE, ABSENT)) or wanted_in(now) != wanted_in(was)


def _went(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[Any, Any]:
    """Where a version went; and what took the place of that message if it was deleted since."""
    wanted = wanted_in(now)
    return (now.get(_NODE, ABSENT), ABSENT) if wanted is None or wanted == wanted_in(was) else wanted


def _lateness(current: Any, histories: Histories) -> tuple[bool, str, bytes]:
    sides = (histories.base, histories.ours, histories.theirs)
    message = next((side.entries[current] for side in sides if current in side.entries), {})
    return isinstance(current, str), message.get("timestamp") or "", bytes_of(current)


def _made_good(current: str, base: Side, there: set[str], history: Sequence[Mapping[str, Any]]) -> str | None:
    """The message that takes the place of a deleted one, as in the store."""
    gone = {at for at, id in enumerate(base.ids) if id not in there}
    path = base.tree.path_to(base.tree.active_leaf(current))
    removed = [*takewhile(gone.__contains__, reversed(path))]
    return kept_current(base.tree, current, gone, removed[-1] if removed else None, history)
