"""Collect what a bug report needs to know of a store.

What must stay true: the report has versions, kinds, counts, sizes and the settings listed below. It
has nothing that a person or an agent wrote: no text, title, id, name or path.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from capsule.disk.directory_tracker import mount_of
from capsule.engines.interface import CONVERSATIONS, WITH_ENTRIES
from capsule.errors import CapsuleError, InvalidDocument
from capsule.format.validation import KINDS
from capsule.maintenance.doctor import Progress, examine
from capsule.software_versions import versions
from capsule.store.store import CoreStore

#: The settings whose values are reported.
_VALUES = ("shared", "append", "mutex_timeout_s", "lock_ttl_s", "message_bytes", "document_bytes")
#: The settings in which a person chooses names: only the number of these is reported.
_COUNTED = ("rooms", "notification_files", "channels", "agents", "links", "unknown")


def report(store: CoreStore, progress: Progress | None = None) -> dict[str, Any]:
    """Collect what a bug report on a store of files needs.

    It completes what a power cut left incomplete, as the examination does.

    Args:
        store: The store.
        progress: Called with the number of files examined so far, and of all files.

    Raises Refused: the engine has no files, or the store acts for an agent. Cost: as `examine` and
    `stats`.
    """
    file_storage = store.engine.external_edits()
    completed = _or_error(store.flush)
    kinds = dict.fromkeys((*WITH_ENTRIES, *KINDS))
    sizes = {
        kind: sorted(file.signature.size for file in file_storage.scan(kind)) for kind in kinds
    }
    conversation_sizes = sizes[CONVERSATIONS]
    findings = list(examine(store, progress=progress))
    mount = mount_of(store.root)
    has_trouble = any(finding.is_trouble for finding in findings)
    exit_code = InvalidDocument.exit_code if has_trouble else 0
    median = 0
    if conversation_sizes:
        median = conversation_sizes[len(conversation_sizes) // 2]
    return {
        "versions": versions(),
        "engine": type(store.engine).__name__,
        # `mount_of` leaves out the options that have paths.
        "fileSystem": {"kind": mount.kind, "options": mount.options},
        "settings": {name: getattr(store.settings, name) for name in _VALUES},
        # How many names the person has chosen.
        "named": {name: len(getattr(store.settings, name)) for name in _COUNTED},
        "documents": {kind: len(kind_sizes) for kind, kind_sizes in sizes.items()},
        # Of conversations, and not of other documents.
        "bytes": {
            "all": sum(conversation_sizes),
            "largest": max(conversation_sizes, default=0),
            "median": median,
        },
        "index": _or_error(lambda: _index(store)),
        "instances": _or_error(lambda: len(store.engine.leases.live_instances())),
        "locks": _or_error(lambda: Counter(lock.state for lock in store.locks.list())),
        # How many conversations a power cut had left incomplete.
        "completed": completed,
        "findings": Counter(finding.kind for finding in findings),
        "failures": tuple(
            " < ".join(finding.traceback) for finding in findings if finding.traceback
        ),
        "exitCode": exit_code,
    }


def _index(store: CoreStore) -> dict[str, Any]:
    stats = store.queries.stats()
    return {
        # Whether the index has a file, and is not only in memory.
        "kept": store.engine.external_edits().derived.has_index,
        "conversations": stats.conversations,
        "damaged": stats.damaged,
        "messages": stats.messages,
    }


def _or_error(operation: Callable[[], Any]) -> Any:
    """Return the result, or the class of the error, whose message can have names and paths."""
    try:
        return operation()
    except CapsuleError as error:
        return {"error": type(error).__name__}
