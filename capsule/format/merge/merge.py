"""Merging: two versions of a document that began as one, made one again, as a person would who has the time.

What must stay true, for all that is a capsule (the tests have it as properties):

- merging a document with itself gives it, and with a side that changed nothing the other one;
- the answer is the same, byte for byte, when the sides change places;
- every message of either side that the other didn't delete is in the result, with its content; and every value that
  had to give way without a rule of the format is in `metadata.conflicts`;
- the result is a valid capsule, canonical, of the version that is written, locked by nobody;
- three versions of one ancestor, merged two by two in any order, end as the same bytes.

The last holds, heads, branches and deletions included, for what stores do: append, branch, edit, delete with and
without children, prune, switch, rename, tag. So that it does, what decides is what the versions say of their ancestor,
never what an earlier merge made of it; where that can't be seen in a merged capsule it is noted there: whom a message
answered that is gone (`metadata.originalParent` of the message), and which message was gone to
(`metadata.currentWanted`). It doesn't always hold for deletions without an ancestor; when different fields of one
message, or keys of one unknown object, are changed in three versions; when messages are moved or typed by hand, or an
id stands twice. And it is of one common ancestor: clones that merge each other's merges crosswise, with another
ancestor each time, can differ in whom the answer to a deleted message answers and in the active branch, until one takes
the other's result. The first four laws hold there too, and git merges two by two: who has merged has the same bytes as
who takes the merge.

How it goes, three ways and by meaning: what each version says (`merging_side`), with the same ids for what was typed
(`merging_typed`); messages by id (`merging_history`), their order (`merging_order`), the active branch
(`merging_node`), the head field by field (`merging_head`). What they ask of values is in `merging_values`, what is left
to be settled in `conflicting`. Three ways is what diff3 does with lines (Khanna, Kunal, Pierce: A Formal Investigation
of Diff3, 2007); that a union of messages with ids converges is known of grow-only sets. Pure: no clock, no chance, no
file.
"""

from __future__ import annotations

from functools import partial
from itertools import islice, zip_longest
from typing import Any, NamedTuple

import orjson

from capsule.errors import InvalidDocument, Problem
from capsule.format.canonical import in_order
from capsule.format.merge.clean_form import cleaned, is_clean_message
from capsule.format.merge.conflicts import Merged
from capsule.format.merge.current_node import merged_current
from capsule.format.merge.head import Heads
from capsule.format.merge.history import Histories
from capsule.format.merge.side import Side
from capsule.format.merge.typed import Renamed, renamed_in, same_ids
from capsule.format.new import CURRENT
from capsule.format.text.shown import one_line

Document = dict[str, Any]
_TEXTS = frozenset({str})
_EMPTY: Document = {"metadata": {}, "context": {}, "history": []}


def merge(base: Document | None, ours: Document, theirs: Document, path: str = "") -> Merged:
    """Merge two versions of a capsule.

    Args:
        base: The version that both began from; None: there is none.
        ours: One version, as `codec.decode` gave it and `validation.check` accepts it; neither side comes first.
        theirs: The other.
        path: The file's name, for the error.

    Raises:
        InvalidDocument: They are not versions of one conversation, or one is of a newer major version.

    Cost: less than parsing the three; nothing is compared twice.
    """
    was = _Version(b"", [], _EMPTY)
    was = was if base is None else _Version.of(base, path, was)
    mine = _Version.of(ours, path, was)
    yours = _Version.of(theirs, path, mine)
    _check_ids(None if base is None else was.document, mine.document, yours.document, path)
    if mine.is_like(yours) or yours.is_like(was):
        return Merged(mine.document)
    if mine.is_like(was):
        return Merged(yours.document)
    names = same_ids(was.document["history"], mine.document["history"], yours.document["history"])
    mine, yours = mine.renamed(names[0]), yours.renamed(names[1])
    ours, theirs = mine.document, yours.document
    began = _EMPTY if base is None else was.document
    heads = Heads(began, ours, theirs)
    document = heads.merged()
    is_line = document["metadata"].get("type", "chat") != "chat"
    side = partial(Side, conversation=ours["id"], is_line=is_line)
    first = side(was.document["history"], was.written)
    sides = [side(one.document["history"], one.written, base=first) for one in (mine, yours)]
    histories = Histories(first, sides[0], sides[1], ours["id"])
    history, notes = histories.merged()
    document["metadata"] |= merged_current(began, ours, theirs, histories, history)
    # The messages are as they should be by now.
    document = cleaned(in_order({**document, "history": []}), path) | {"history": history}
    conflicts = tuple(sorted(heads.conflicts, key=lambda one: one.field))
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


def _is_alike(one: Document, other: Document | None) -> bool:
    """Whether two messages are surely written alike: all fields are texts, for which Python's equality will do."""
    return one == other and list(one) == list(other) and _TEXTS.issuperset(map(type, one.values()))


def _check_ids(base: Document | None, ours: Document, theirs: Document, path: str) -> None:
    ids = dict.fromkeys(one["id"] for one in (base, ours, theirs) if one is not None)
    if len(ids) > 1:
        what = f"these are versions of different conversations: {', '.join(map(one_line, ids))}"
        raise InvalidDocument.of([Problem(path, 0, 0, "id", what)])
