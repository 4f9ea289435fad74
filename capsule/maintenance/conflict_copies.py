"""Conflict copies: files that synchronizers leave beside a conversation that was written to in two
places.

What must stay true: a copy is merged into its conversation as a version from another clone is, and
only then moved to the quarantine, where it stays whole. A locked conversation stays as it is, and
so does a copy that doesn't parse or belongs to another conversation. Without `repair` nothing is
changed.

This module does not know the common ancestor; a caller may (`capsule/git/history.py`).
Without it, the messages of both sides are kept, including those that one side deleted.
"""

from __future__ import annotations

from collections.abc import Callable

from capsule.engines.interface import CONVERSATIONS, ScannedFile
from capsule.errors import CapsuleError, InvalidDocument
from capsule.format.json import codec, locations
from capsule.format.merge.clean_form import clean
from capsule.format.merge.comparison import compare
from capsule.format.merge.copy_names import may_be_copy_of, original_of
from capsule.format.validation import KINDS, decode_checked
from capsule.rules.locking import describe
from capsule.store.store import CoreStore

#: Gives the common ancestor of two versions of a conversation, in the clean form; None: there is
#: none. Takes the conversation's id and both versions, in the clean form.
Ancestor = Callable[[str, bytes, bytes], "bytes | None"]


class ConflictCopy:
    """One conflict copy.

    Attributes:
        id: The document that it is a copy of.
        text: A description, in words.
        line: The line at which it doesn't parse, from 1; else 0.
        column: The column, likewise.
        repaired: The repair, in words; None: it was not repaired.
    """

    def __init__(
        self, kind: str, id: str, text: str, data: bytes, name: str, at: tuple[int, int] | None
    ) -> None:
        self.id, self.text = id, text
        self.line, self.column = at or (0, 0)
        self.repaired: str | None = None
        self._kind, self._called, self._data, self._name = kind, KINDS[kind].noun, data, name
        self._is_whole = at is None

    def merge(self, store: CoreStore, ancestor: Ancestor | None) -> None:
        """Merge it into its document, and move it to the quarantine; a reason not to is added to
        `text`.
        """
        if not self._is_whole:
            return
        try:
            theirs = clean(self._data, f"{self._name}.json", self._kind)
            self.repaired = self._merged(store, theirs, ancestor)
        except CapsuleError as error:
            self.text += f"; not merged: {error.message}"

    def _merged(self, store: CoreStore, theirs: bytes, ancestor: Ancestor | None) -> str | None:
        ours = self._ours(store)
        if ours is not None and (held_by := self._holder(store)):
            self.text += f"; not merged, because the conversation is locked by {held_by}"
            return None
        base = None
        if ancestor is not None and ours is not None and self._kind == CONVERSATIONS:
            base = ancestor(self.id, ours, theirs)
        if base is not None and ours not in (base, theirs):
            with store.engine.external_edits().hold(self._kind, self.id) as held:
                # With an ancestor, the merge removes messages that one side deleted; they stay in
                # the quarantine.
                got = held.read()
                if got is not None:
                    held.quarantine(got[0], "merged")
        brought = store.incoming.bring_in(self._kind, self.id, base, theirs)
        if store.engine.external_edits().read_stray(self._kind, self._name) != self._data:
            self.text += "; it was changed meanwhile, and stays until the next time"
            return None
        kept = store.engine.external_edits().quarantine_file(
            self._kind, self._name, self.id, "copy"
        )
        outcome = self._outcome(ours, self._ours(store))
        notes = "".join(f"; {note}" for note in brought.notes)
        settle = (
            "; both changed the same field, and a person must resolve the conflict"
            if brought.conflicts
            else ""
        )
        return f"{outcome}{notes}{settle}; the copy is kept as {kept}"

    def _outcome(self, before: bytes | None, after: bytes | None) -> str:
        if before is None:
            return f"is now the {self._called}, which was missing"
        if before == after or after is None:
            return f"had nothing new for the {self._called}"
        if self._kind != CONVERSATIONS:
            return f"merged into the {self._called}"
        changes = compare(
            *(codec.decode(data, f"{self.id}.json") for data in (before, after))
        ).words()
        return f"merged into the {self._called}: {', '.join(changes) or 'no visible change'}"

    def _ours(self, store: CoreStore) -> bytes | None:
        """The document in the clean form; None: it does not exist. Raises InvalidDocument."""
        data = store.incoming.version(self._kind, self.id)
        return data and clean(data, store.engine.name(self._kind, self.id), self._kind)

    def _holder(self, store: CoreStore) -> str:
        """The other instance that holds the conversation, in words; empty: there is none."""
        if self._kind != CONVERSATIONS:
            return ""
        head = store.head(self.id)
        state = store.locks.state(head)
        if state is None or state.state == "orphaned" or state.instance == store.instance_id:
            return ""
        return describe(head.lock or {})


def copy_in(store: CoreStore, file: ScannedFile, kind: str = CONVERSATIONS) -> ConflictCopy | None:
    """The conflict copy in a file; None: the file is no copy, or can't be read.

    Args:
        file: The file, as scanned.
        kind: The kind of the documents in its directory, by the name in `KINDS`.

    Cost: reading and parsing the file, if its name may be a copy's.
    """
    named = original_of(file.id)
    # The name may end with a computer's name.
    beginnings = (file.id[:at] for at, letter in enumerate(file.id) if letter == "-" and at)
    if not file.is_regular or (
        named is None and not any(may_be_copy_of(file.id, name) for name in beginnings)
    ):
        return None
    data = store.engine.external_edits().read_stray(kind, file.id)
    if data is None:
        return None
    called = KINDS[kind].noun
    try:
        id = str(
            (
                decode_checked(data, file.path, None)
                if kind == CONVERSATIONS
                else codec.decode(data, file.path)
            ).get("id")
        )
    except InvalidDocument as error:
        if named is None:
            return None
        at = error.problems[0]
        text = (
            f"a conflict copy of {called} {named} that does not parse: {at.what}; correct it, "
            "or move it away"
        )
        return ConflictCopy(kind, named, text, data, file.id, (at.line, at.column))
    if id == file.id or (named is None and not may_be_copy_of(file.id, id)):
        return None
    if named is not None and named != id:
        text = (
            f"has the name of a conflict copy of {named}, but its id is {id!r}; give it a name "
            "or an id that fits"
        )
        return ConflictCopy(kind, named, text, data, file.id, locations.locate(data, ("id",)))
    return ConflictCopy(kind, id, f"a conflict copy of {called} {id}", data, file.id, None)
