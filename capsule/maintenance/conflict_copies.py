"""Merge conflict copies: files that synchronizers leave beside a conversation changed in two
places.

`find_conflict_copy` recognizes a copy by its name and its id. `ConflictCopy.merge` merges it into
its conversation like a version from another clone, and then moves it to the quarantine.

What must stay true: a copy is moved only after it was merged, and stays whole. A locked
conversation is not changed, and neither is a copy that does not parse or belongs to another
conversation. Without `repair` nothing is changed.

This module does not know the common ancestor of both files. A caller may
(`capsule/git/history.py`). Without it, the messages of both sides are kept, including those that
one side deleted.
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

#: Takes the id of a conversation and two versions of it in the clean form (as git stores it).
#: Returns their common ancestor in the clean form, or None.
Ancestor = Callable[[str, bytes, bytes], "bytes | None"]


class ConflictCopy:
    """One conflict copy.

    Attributes:
        id: The document that it is a copy of.
        text: A description, in words.
        line: The line where it does not parse, from 1, otherwise 0.
        column: The column, likewise.
        repaired: The repair, in words. None: it was not repaired.
    """

    def __init__(
        self,
        kind: str,
        id: str,
        text: str,
        data: bytes,
        name: str,
        error_place: tuple[int, int] | None,
    ) -> None:
        self.id = id
        self.text = text
        self.line, self.column = error_place or (0, 0)
        self.repaired: str | None = None
        self._kind = kind
        self._noun = KINDS[kind].noun
        self._data = data
        self._name = name
        self._is_mergeable = error_place is None

    def merge(self, store: CoreStore, ancestor: Ancestor | None) -> None:
        """Merge it into its document and move it to the quarantine, or add the reason to `text`."""
        if not self._is_mergeable:
            return
        try:
            theirs = clean(self._data, f"{self._name}.json", self._kind)
            self.repaired = self._merge_version(store, theirs, ancestor)
        except CapsuleError as error:
            self.text += f"; not merged: {error.message}"

    def _merge_version(
        self, store: CoreStore, theirs: bytes, ancestor: Ancestor | None
    ) -> str | None:
        """Merge the copy in the clean form. Return the repair in words. None:
        it was not repaired.
        """
        files = store.engine.external_edits()
        ours = self._current_version(store)
        holder = "" if ours is None else self._lock_holder(store)
        if holder:
            self.text += f"; not merged, because the conversation is locked by {holder}"
            return None
        base = None
        if ancestor is not None and ours is not None and self._kind == CONVERSATIONS:
            base = ancestor(self.id, ours, theirs)
        if base is not None and ours not in (base, theirs):
            with files.hold(self._kind, self.id) as held_file:
                # With an ancestor, the merge removes messages that one side deleted. The quarantine
                # keeps them.
                content = held_file.read()
                if content is not None:
                    held_file.quarantine(content[0], "merged")
        result = store.incoming.bring_in(self._kind, self.id, base, theirs)
        if files.read_stray(self._kind, self._name) != self._data:
            self.text += "; it was changed meanwhile, and stays until the next time"
            return None
        quarantine_path = files.quarantine_file(self._kind, self._name, self.id, "copy")
        description = self._outcome(ours, self._current_version(store))
        for note in result.notes:
            description += f"; {note}"
        if result.conflicts:
            description += "; both changed the same field, and a person must resolve the conflict"
        return f"{description}; the copy is kept as {quarantine_path}"

    def _outcome(self, old: bytes | None, new: bytes | None) -> str:
        """Return in words what the merge changed, from the document before and after it."""
        if old is None:
            return f"is now the {self._noun}, which was missing"
        if old == new or new is None:
            return f"had nothing new for the {self._noun}"
        if self._kind != CONVERSATIONS:
            return f"merged into the {self._noun}"
        name = f"{self.id}.json"
        changes = compare(codec.decode(old, name), codec.decode(new, name)).words()
        return f"merged into the {self._noun}: {', '.join(changes) or 'no visible change'}"

    def _current_version(self, store: CoreStore) -> bytes | None:
        """Return the document in the clean form. None: it does not exist.
        Raises InvalidDocument.
        """
        data = store.incoming.version(self._kind, self.id)
        return data and clean(data, store.engine.name(self._kind, self.id), self._kind)

    def _lock_holder(self, store: CoreStore) -> str:
        """Return in words which other instance locked the conversation. Empty: none."""
        if self._kind != CONVERSATIONS:
            return ""
        head = store.head(self.id)
        state = store.locks.state(head)
        if state is None or state.state == "orphaned" or state.instance == store.instance_id:
            return ""
        return describe(head.lock or {})


def find_conflict_copy(
    store: CoreStore, file: ScannedFile, kind: str = CONVERSATIONS
) -> ConflictCopy | None:
    """Return the conflict copy in a file. None: it is no copy, or can't be read.

    Args:
        store: The store.
        file: The file.
        kind: The kind of the documents in its directory, by the name in `KINDS`.

    Cost: reading and parsing the file, if its name can be that of a copy.
    """
    original = original_of(file.id)
    if not file.is_regular:
        return None
    if original is None and not _may_end_with_computer_name(file.id):
        return None
    data = store.engine.external_edits().read_stray(kind, file.id)
    if data is None:
        return None
    noun = KINDS[kind].noun
    try:
        if kind == CONVERSATIONS:
            document = decode_checked(data, file.path, None)
        else:
            document = codec.decode(data, file.path)
    except InvalidDocument as error:
        if original is None:
            return None
        problem = error.problems[0]
        text = (
            f"a conflict copy of {noun} {original} that does not parse: {problem.what}; correct it, "
            "or move it away"
        )
        place = (problem.line, problem.column)
        return ConflictCopy(kind, original, text, data, file.id, error_place=place)
    id = str(document.get("id"))
    if id == file.id or (original is None and not may_be_copy_of(file.id, id)):
        return None
    if original is not None and original != id:
        text = (
            f"has the name of a conflict copy of {original}, but its id is {id!r}; give it a name "
            "or an id that fits"
        )
        place = locations.locate(data, ("id",))
        return ConflictCopy(kind, original, text, data, file.id, error_place=place)
    text = f"a conflict copy of {noun} {id}"
    return ConflictCopy(kind, id, text, data, file.id, error_place=None)


def _may_end_with_computer_name(name: str) -> bool:
    """Return whether a name can be an id, a hyphen and the name of a computer."""
    for index, character in enumerate(name):
        if index and character == "-" and may_be_copy_of(name, name[:index]):
            return True
    return False
