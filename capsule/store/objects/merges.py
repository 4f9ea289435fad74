"""Versions from other clones, merged into the local files, and the conflicts that a merge leaves to
a person.

What must stay true: everything written locally stays, also by a writer that is active now. The lock
in a file stays as it is; a merge needs no lock and goes into a locked conversation too. A file that
does not parse is never overwritten. Bringing in the same version twice changes nothing. Settling a
conflict is one write, under the same rules as every other write. The module knows no git: versions
are bytes in the clean form. `capsule.format.merge.merge` decides.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.interface import retry
from capsule.errors import CapsuleError, ConcurrentWrite, InvalidDocument, Locked, NotFound, Remedy
from capsule.format import migrations, validation
from capsule.format.json import codec
from capsule.format.merge.annotations import conflicts_in, remove_conflict, resolve
from capsule.format.merge.clean_form import clean, clean_document
from capsule.format.text.titles import check_title
from capsule.format.validation import KINDS, DocumentKind
from capsule.ids import check_id
from capsule.rules.locking import describe
from capsule.store.base import KIND
from capsule.store.change.conversation import TRIES, admit_any_instance
from capsule.store.change.head_changes import set_title

if TYPE_CHECKING:
    from capsule.engines.interface import HeldFile
    from capsule.format.documents.head import Head
    from capsule.format.merge.annotations import Conflict, MergeResult
    from capsule.store.base import BaseStore
    from capsule.store.change.conversation import Conversation

T = TypeVar("T")
Document = dict[str, Any]


@dataclass(frozen=True, slots=True)
class IncomingResult:
    """The result of bringing in a version.

    Attributes:
        what: "created", "updated" (without local changes), "merged", "deleted", "kept" (not
            deleted, for a reason) or "same".
        why: The reason to keep it, in words.
        conflicts: The conflicts that a person has to settle.
        notes: Other decisions of the merge, in words.
    """

    what: str
    why: str = ""
    conflicts: tuple[Conflict, ...] = ()
    notes: tuple[str, ...] = ()


class IncomingVersions:
    """Versions of documents from other clones. It needs a store of files."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def version(self, kind: str, id: str) -> bytes | None:
        """Read a document under its mutex, between two writes, and check it.

        Args:
            kind: Its kind, by its name in `KINDS`.
            id: Its id.

        Returns:
            Its bytes; None if it does not exist. A document of a newer major version is returned
            too.

        Raises:
            InvalidDocument: It does not parse, or is no document of its kind.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: reading the file.
        """

        def look(held: HeldFile) -> bytes | None:
            try:
                signature = held.reconcile_external_edit() if kind == KIND else None
            except NotFound:
                return None
            except InvalidDocument:
                newer = held.read()
                if newer is None or not _is_newer(newer[0]):
                    raise
                return newer[0]
            version = held.read()
            if version is not None and signature is not None and version[1] != signature:
                raise ConcurrentWrite
            return version and version[0]

        data = self._under_mutex(kind, id, look)
        if data is not None and kind != KIND:
            clean(data, self._store.engine.name(kind, id), kind)
        return data

    def bring_in(
        self, kind: str, id: str, base: bytes | None, theirs: bytes | None
    ) -> IncomingResult:
        """Merge a version of a document from another clone into its file. It needs no lock.

        Args:
            kind: Its kind, by the name in `KINDS`.
            id: Its id.
            base: The common ancestor of both versions, in the clean form; None: there is none.
            theirs: The other version, in the clean form; None: it was deleted there.

        Raises:
            InvalidDocument: The local file does not parse, or a version can't be merged; nothing
                was changed.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write; nothing was changed.

        Cost: reading and writing the whole file, under its mutex.
        """
        check_id(id)
        self._store.engine.external_edits(
            "merging a version from elsewhere"
        )  # No agent may: it says what others wrote.
        if not KINDS[kind].has_entries:
            return self._under_mutex(
                kind, id, lambda held: _record(held, KINDS[kind], base, theirs)
            )
        if theirs is None:
            return self._take_away(id, base)

        def once() -> IncomingResult:
            try:
                return self._write_theirs(id, base, theirs)
            except NotFound:
                self._create_theirs(id, theirs)
                return IncomingResult("created")

        return retry(once, id, id, TRIES)

    def _write_theirs(self, id: str, base: bytes | None, theirs: bytes) -> IncomingResult:
        if _is_newer(theirs):
            return self._under_mutex(KIND, id, lambda held: _newer(held, base, theirs))

        def act(conversation: Conversation) -> IncomingResult:
            from capsule.format.merge.merge import merge

            here, name = conversation.document(), conversation.name
            mine = codec.encode(clean_document(here, name))
            after, brought = _merged(mine, base, theirs, name, partial(merge, path=name))
            if brought.what != "same":
                # A lock in their version does not apply here. The local lock stays with its holder.
                after = {
                    **after,
                    "metadata": {**after["metadata"], "lock": here["metadata"]["lock"]},
                }
                conversation.rewrite(lambda _: after, keeps_time=True)
            return brought

        return self._store.inner.change(id, act, admit_any_instance)

    def _create_theirs(self, id: str, theirs: bytes) -> None:
        """Make the file from their version. Raises Interfered if it exists by now."""
        data = clean(theirs, f"{id}.json", KIND)
        inner = self._store.inner
        with inner.engine.external_edits().hold(KIND, id) as held, inner.hold_reports(id):
            tag = held.put(None, data, [], canonical=not _is_newer(data))
            if inner.own_writes is not None:
                inner.remember_own_write(
                    id, "created", tag, entries=codec.decode(data, id).get("history", [])
                )

    def _take_away(self, id: str, base: bytes | None) -> IncomingResult:
        """Move the conversation to the trash if it equals `base`, the version deleted there, and
        nobody holds it.
        """

        def act(conversation: Conversation) -> IncomingResult:
            if codec.encode(clean_document(conversation.document(), conversation.name)) != base:
                return IncomingResult("kept", "it was changed here")
            self._store.inner.instance_locks.delete(conversation)
            self._store.inner.remember_own_write(id, "deleted")
            return IncomingResult("deleted")

        try:
            return self._store.inner.change(id, act, admit_any_instance)
        except NotFound:
            return IncomingResult("same")
        except Locked as error:
            return IncomingResult("kept", f"it is locked by {describe(error.holder)}")
        except InvalidDocument as error:
            return IncomingResult("kept", error.message)

    def _under_mutex(self, kind: str, id: str, act: Callable[[HeldFile], T]) -> T:
        """The result of `act` under the mutex; it starts over when another program writes
        meanwhile.
        """

        def once() -> T:
            with self._store.engine.external_edits("merging a version from elsewhere").hold(
                kind, id
            ) as held:
                return act(held)

        return retry(once, id, id, TRIES)


def _is_newer(data: bytes) -> bool:
    """Whether this is a capsule of a newer major version, which can't be merged."""
    try:
        return migrations.is_newer(codec.decode(data, ""))
    except CapsuleError:
        return False


def _newer(held: HeldFile, base: bytes | None, theirs: bytes) -> IncomingResult:
    """Replace `base` by a version of a newer major version; there is nothing to merge."""
    got = held.read()
    if got is None:
        raise NotFound(f"no conversation {held.id}", id=held.id)
    if got[0] == theirs:
        return IncomingResult("same")
    if base is None or clean(got[0], held.path, KIND) != base:
        migrations.upgrade(
            codec.decode(theirs, held.path), held.path
        )  # Raises: the version is too new.
    held.put(got[1], theirs, [], canonical=False)
    return IncomingResult("updated")


def _record(
    held: HeldFile, kind: DocumentKind, base: bytes | None, theirs: bytes | None
) -> IncomingResult:
    got = held.read()
    if got is None:
        if theirs is None:
            return IncomingResult("same")
        held.put(None, clean(theirs, held.path, kind.name), [], canonical=False)
        return IncomingResult("created")
    mine = clean(got[0], held.path, kind.name)
    if theirs is None:
        if mine != base:
            return IncomingResult("kept", "it was changed here")
        held.delete()
        return IncomingResult("deleted")
    from capsule.format.merge.fields import merge_fields

    after, brought = _merged(mine, base, theirs, held.path, partial(merge_fields, kind))
    if brought.what != "same":
        held.put(got[1], codec.encode(after), [], canonical=False)
    return brought


def _merged(
    mine: bytes,
    base: bytes | None,
    theirs: bytes,
    name: str,
    merge: Callable[[Any, Document, Document], MergeResult],
) -> tuple[Document, IncomingResult]:
    """What becomes of two versions, mine the one that is here, and of base, all in the
    clean form.
    """
    here = codec.decode(mine, name)
    if mine == theirs:
        return here, IncomingResult("same")
    there = codec.decode(theirs, name)
    if mine == base:
        return there, IncomingResult("updated")
    merged = merge(None if base is None else codec.decode(base, name), here, there)
    outcome = "same" if codec.encode(merged.document) == mine else "merged"
    return merged.document, IncomingResult(outcome, "", merged.conflicts, merged.notes)


class Conflicts:
    """The conflicts in the conversations of a store."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def resolve(self, id: str, field: str, value: Any) -> Head:
        """Resolve a conflict: give a field its value.

        Args:
            id: The conversation.
            field: The field, as `list` names it.
            value: The value, one of the candidates or another one; None: the field is removed.

        Returns:
            The head. Without further conflicts it has no `metadata.conflicts`.

        Raises the errors of `append`; NotFound if the field has no conflict; InvalidInput if the
        field can't have this value, and nothing was changed.

        Cost: copying the file. For a field that is neither the title nor in `metadata`: writing the
        whole file.
        """
        if field == "title":
            value = check_title(value if isinstance(value, str) else "")

        def change(document: dict[str, Any]) -> None:
            if not remove_conflict(document["metadata"], field):
                nothing = f"conversation {id} has no conflict in {field[:100]!r}"
                raise NotFound(nothing, remedy=Remedy("conflicts"), id=id)
            if field == "title":
                set_title(document, value, "user")
            else:
                resolve(document, field, value)
            validation.check_arguments({**document, "history": []}, "; nothing was changed")

        inner = self._store.inner
        if field == "title" or field.startswith("metadata."):
            return inner.change_head(id, change)
        return inner.parsed_head(
            id, inner.change(id, lambda conversation: conversation.rewrite(change))
        )

    def list(self, id: str | None = None) -> list[Conflict]:
        """List conflicts, by conversation and field.

        Args:
            id: The conversation; None: all conversations.

        Raises NotFound, InvalidDocument. Cost: as `heads`, and reading the conversations with
        conflicts.
        """
        ids = (
            [id]
            if id is not None
            else sorted(head.id for head in self._store.heads() if head.conflicts)
        )
        return [conflict for id in ids for conflict in conflicts_in(self._store.document(id))]
