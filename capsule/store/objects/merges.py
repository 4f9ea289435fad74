"""Versions from other clones, merged into the local files, and the conflicts that a merge leaves to
a person.

A version is the bytes of a document in the clean form: the canonical layout with an inactive lock,
as git stores it. `capsule.format.merge` merges three versions: the base (the common ancestor), ours
(the local file) and theirs (from the other clone). This module reads ours, and writes the result,
under the mutex of the document. It knows no git.

What must stay true: everything written locally stays, also if it is written meanwhile. The lock in
a file does not change. A merge needs no lock, and changes a locked conversation too. A file that
does not parse is never overwritten. Bringing in the same version twice changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.interface import CONVERSATIONS, retry
from capsule.errors import CapsuleError, ConcurrentWrite, InvalidDocument, Locked, NotFound, Remedy
from capsule.format import migrations, validation
from capsule.format.json import codec
from capsule.format.merge.annotations import conflicts_in, remove_conflict, resolve
from capsule.format.merge.clean_form import clean, clean_document
from capsule.format.text.titles import check_title
from capsule.format.validation import KINDS, DocumentKind
from capsule.ids import check_id
from capsule.rules.locking import describe
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
        what: "created", "updated" (there were no local changes), "merged", "deleted", "kept"
            (not deleted, for a reason) or "same".
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
            Its bytes, or None if it does not exist. A document of a newer major version is returned
            too.

        Raises:
            InvalidDocument: It does not parse, or is no document of its kind.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write.

        Cost: reading the file.
        """

        def read(held_file: HeldFile) -> bytes | None:
            try:
                signature = held_file.reconcile_external_edit() if kind == CONVERSATIONS else None
            except NotFound:
                return None
            except InvalidDocument:
                content = held_file.read()
                if content is None or not _is_newer(content[0]):
                    raise
                return content[0]
            content = held_file.read()
            if content is None:
                return None
            data, data_signature = content
            if signature is not None and data_signature != signature:
                raise ConcurrentWrite
            return data

        data = self._under_mutex(kind, id, read)
        if data is not None and kind != CONVERSATIONS:
            clean(data, self._store.engine.name(kind, id), kind)
        return data

    def bring_in(
        self, kind: str, id: str, base: bytes | None, theirs: bytes | None
    ) -> IncomingResult:
        """Merge a version of a document from another clone into its file. It needs no lock.

        Args:
            kind: Its kind, by the name in `KINDS`.
            id: Its id.
            base: The common ancestor of both versions, in the clean form, or None.
            theirs: The other version, in the clean form. None: it was deleted in the other clone.

        Raises:
            InvalidDocument: The local file does not parse, or a version can't be merged. Nothing
                was changed.
            StoreBusy: Another writer held the document for longer than storage.mutex_timeout.
            Refused, StorageFailed: The system refused a read or a write. Nothing was changed.

        Cost: reading and writing the whole file, under its mutex.
        """
        check_id(id)
        # Refused to an agent: the result would reveal what others wrote.
        self._store.engine.external_edits("merging a version from elsewhere")
        if not KINDS[kind].has_entries:
            return self._under_mutex(
                kind, id, lambda held_file: _merge_plain(held_file, KINDS[kind], base, theirs)
            )
        if theirs is None:
            return self._delete_if_unchanged(id, base)

        def merge_or_create() -> IncomingResult:
            try:
                return self._merge_theirs(id, base, theirs)
            except NotFound:
                self._create_theirs(id, theirs)
                return IncomingResult("created")

        return retry(merge_or_create, id, id, TRIES)

    def _merge_theirs(self, id: str, base: bytes | None, theirs: bytes) -> IncomingResult:
        """Merge their version into a conversation. Raises NotFound if it does not exist."""
        if _is_newer(theirs):
            return self._under_mutex(
                CONVERSATIONS, id, lambda held_file: _replace_by_newer(held_file, base, theirs)
            )

        def merge_into(conversation: Conversation) -> IncomingResult:
            from capsule.format.merge.merge import merge

            present = conversation.document()
            name = conversation.name
            ours = codec.encode(clean_document(present, name))
            document, result = _merged(ours, base, theirs, name, partial(merge, path=name))
            if result.what != "same":
                # A lock in their version does not apply here. The local lock stays with its holder.
                metadata = document["metadata"] | {"lock": present["metadata"]["lock"]}
                merged = document | {"metadata": metadata}
                conversation.rewrite(lambda _: merged, keeps_time=True)
            return result

        return self._store.inner.change(id, merge_into, admit_any_instance)

    def _create_theirs(self, id: str, theirs: bytes) -> None:
        """Make the file from their version. Raises ConcurrentWrite if it exists by now."""
        data = clean(theirs, f"{id}.json", CONVERSATIONS)
        inner = self._store.inner
        with (
            inner.engine.external_edits().hold(CONVERSATIONS, id) as held_file,
            inner.hold_reports(id),
        ):
            tag = held_file.put(None, data, [], canonical=not _is_newer(data))
            if inner.own_writes is not None:
                entries = codec.decode(data, id).get("history", [])
                inner.remember_own_write(id, "created", tag, entries=entries)

    def _delete_if_unchanged(self, id: str, base: bytes | None) -> IncomingResult:
        """Move the conversation to the trash if it equals `base`, which was deleted in the other
        clone, and no instance holds its lock.
        """

        def delete(conversation: Conversation) -> IncomingResult:
            if codec.encode(clean_document(conversation.document(), conversation.name)) != base:
                return IncomingResult("kept", "it was changed here")
            self._store.inner.instance_locks.delete(conversation)
            self._store.inner.remember_own_write(id, "deleted")
            return IncomingResult("deleted")

        try:
            return self._store.inner.change(id, delete, admit_any_instance)
        except NotFound:
            return IncomingResult("same")
        except Locked as error:
            return IncomingResult("kept", f"it is locked by {describe(error.holder)}")
        except InvalidDocument as error:
            return IncomingResult("kept", error.message)

    def _under_mutex(self, kind: str, id: str, operation: Callable[[HeldFile], T]) -> T:
        """Return the result of `operation` under the mutex of a document. It runs again if another
        program writes the file meanwhile.
        """

        def hold_and_run() -> T:
            files = self._store.engine.external_edits("merging a version from elsewhere")
            with files.hold(kind, id) as held_file:
                return operation(held_file)

        return retry(hold_and_run, id, id, TRIES)


def _is_newer(data: bytes) -> bool:
    """Return whether this is a capsule of a newer major version, which can't be merged."""
    try:
        return migrations.is_newer(codec.decode(data, ""))
    except CapsuleError:
        return False


def _replace_by_newer(held_file: HeldFile, base: bytes | None, theirs: bytes) -> IncomingResult:
    """Replace the file by a version of a newer major version, if it has no local changes since
    `base`. Such a version can't be merged.

    Raises NotFound if there is no file, and InvalidDocument if it has local changes.
    """
    content = held_file.read()
    if content is None:
        raise NotFound(f"no conversation {held_file.id}", id=held_file.id)
    data, signature = content
    if data == theirs:
        return IncomingResult("same")
    if base is None or clean(data, held_file.path, CONVERSATIONS) != base:
        # Raises: the version is too new.
        migrations.upgrade(codec.decode(theirs, held_file.path), held_file.path)
    held_file.put(signature, theirs, [], canonical=False)
    return IncomingResult("updated")


def _merge_plain(
    held_file: HeldFile, kind: DocumentKind, base: bytes | None, theirs: bytes | None
) -> IncomingResult:
    """Merge a document without messages, such as an agent or a project."""
    content = held_file.read()
    if content is None:
        if theirs is None:
            return IncomingResult("same")
        held_file.put(None, clean(theirs, held_file.path, kind.name), [], canonical=False)
        return IncomingResult("created")
    data, signature = content
    ours = clean(data, held_file.path, kind.name)
    if theirs is None:
        if ours != base:
            return IncomingResult("kept", "it was changed here")
        held_file.delete()
        return IncomingResult("deleted")
    from capsule.format.merge.fields import merge_fields

    document, result = _merged(ours, base, theirs, held_file.path, partial(merge_fields, kind))
    if result.what != "same":
        held_file.put(signature, codec.encode(document), [], canonical=False)
    return result


def _merged(
    ours: bytes,
    base: bytes | None,
    theirs: bytes,
    name: str,
    merge: Callable[[Any, Document, Document], MergeResult],
) -> tuple[Document, IncomingResult]:
    """Return the document to write, and the result, for three versions in the clean form.

    Args:
        ours, base, theirs: The versions.
        name: The path of the document, for errors.
        merge: Merges the decode_checked versions: base, ours and theirs.
    """
    our_document = codec.decode(ours, name)
    if ours == theirs:
        return our_document, IncomingResult("same")
    their_document = codec.decode(theirs, name)
    if ours == base:
        return their_document, IncomingResult("updated")
    base_document = None if base is None else codec.decode(base, name)
    merged = merge(base_document, our_document, their_document)
    outcome = "same" if codec.encode(merged.document) == ours else "merged"
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
            value: The value, one of the candidates or another one. None: the field is removed.

        Returns:
            The head. Without further conflicts it has no `metadata.conflicts`.

        Raises the errors of `append`, and

            NotFound: The field has no conflict.
            InvalidInput: The field can't have this value. Nothing was changed.

        Cost: copying the file. For a field that is neither the title nor in `metadata`: writing the
        whole file.
        """
        if field == "title":
            value = check_title(value if isinstance(value, str) else "")

        def change(document: dict[str, Any]) -> None:
            if not remove_conflict(document["metadata"], field):
                raise NotFound(
                    f"conversation {id} has no conflict in {field[:100]!r}",
                    remedy=Remedy("conflicts"),
                    id=id,
                )
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
            id: The conversation. None: all conversations.

        Raises NotFound, InvalidDocument. Cost: as `heads`, and reading the conversations with
        conflicts.
        """
        if id is not None:
            return list(conflicts_in(self._store.document(id)))
        conflicts: list[Conflict] = []
        for conflicted_id in sorted(head.id for head in self._store.heads() if head.conflicts):
            conflicts += conflicts_in(self._store.document(conflicted_id))
        return conflicts
