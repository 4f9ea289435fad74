"""What a bug report says of a store.

What must stay true: it has versions, kinds, counts, sizes and settings of the list below, and
nothing that a person or an agent wrote: no text, title, id, name or path.
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

#: The settings whose values are given; of those in which a person chooses names, how many there
#: are.
_VALUES = ("shared", "append", "mutex_timeout_s", "lock_ttl_s", "message_bytes", "document_bytes")
_COUNTED = ("rooms", "notification_files", "channels", "agents", "links", "unknown")


def report(store: CoreStore, progress: Progress | None = None) -> dict[str, Any]:
    """Collect what a bug report on a store of files needs.

    It completes what a power cut left incomplete, as the examination does.

    Args:
        progress: Called with the number of files examined so far, and of all files.

    Raises Refused: the engine keeps no files, or the store acts for an agent. Cost: as `examine`,
    and `stats`.
    """
    files = store.engine.external_edits()
    completed = _or_error(store.flush)
    kinds = dict.fromkeys((*WITH_ENTRIES, *KINDS))
    sizes = {kind: sorted(file.signature.size for file in files.scan(kind)) for kind in kinds}
    of_conversations = sizes[CONVERSATIONS]
    findings = list(examine(store, progress=progress))
    mount = mount_of(store.root)
    return {
        "versions": versions(),
        "engine": type(store.engine).__name__,
        "fileSystem": {"kind": mount.kind, "options": mount.options},
        "settings": {name: getattr(store.settings, name) for name in _VALUES},
        "named": {name: len(getattr(store.settings, name)) for name in _COUNTED},
        "documents": {kind: len(of_kind) for kind, of_kind in sizes.items()},
        "bytes": {
            "all": sum(of_conversations),
            "largest": max(of_conversations, default=0),
            "median": of_conversations[len(of_conversations) // 2] if of_conversations else 0,
        },
        "index": _or_error(lambda: _index(store)),
        "instances": _or_error(lambda: len(store.engine.leases.live_instances())),
        "locks": _or_error(lambda: Counter(lock.state for lock in store.locks.list())),
        "completed": completed,
        "findings": Counter(finding.kind for finding in findings),
        "failures": tuple(
            " < ".join(finding.traceback) for finding in findings if finding.traceback
        ),
        "exitCode": InvalidDocument.exit_code
        if any(finding.is_trouble for finding in findings)
        else 0,
    }


def _index(store: CoreStore) -> dict[str, Any]:
    stats = store.queries.stats()
    return {
        "kept": store.engine.external_edits().derived.has_index,
        "conversations": stats.conversations,
        "damaged": stats.damaged,
        "messages": stats.messages,
    }


def _or_error(ask: Callable[[], Any]) -> Any:
    """The answer, or the kind of the error: its words have names and paths in them."""
    try:
        return ask()
    except CapsuleError as error:
        return {"error": type(error).__name__}
