"""Capsule: conversations of people and AI agents as plain files, written by many, lost by none.

from capsule import Store

with Store.open("path") as store:
    conversation = store.create(title="Plan")
    store.append(conversation.id, role="user", content="hello")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsule.branches import Alternatives, Removal, Slot, Switched
    from capsule.changes import Change, Changes
    from capsule.errors import (
        CapsuleError,
        GitFailed,
        InvalidDocument,
        InvalidInput,
        Locked,
        LockLost,
        NotFound,
        Problem,
        Refused,
        StorageFailed,
        StoreBusy,
    )
    from capsule.format.models import Capsule, Message
    from capsule.head import Head
    from capsule.holding import HeldLock
    from capsule.index.hits import Found, Hit
    from capsule.index.stats import Stats
    from capsule.locks import LockState
    from capsule.restoring import Restored
    from capsule.standing import Mark, Standing, Summary
    from capsule.storage.interface import Trashed
    from capsule.store import Store

__version__ = "0.1.0"

#: Where each public name lives. Loaded when asked for: the validation library alone takes 50 ms to import.
_HOMES = {
    "Alternatives": "capsule.branches",
    "Capsule": "capsule.format.models",
    "CapsuleError": "capsule.errors",
    "Change": "capsule.changes",
    "Changes": "capsule.changes",
    "Found": "capsule.index.hits",
    "GitFailed": "capsule.errors",
    "Head": "capsule.head",
    "HeldLock": "capsule.holding",
    "Hit": "capsule.index.hits",
    "InvalidDocument": "capsule.errors",
    "InvalidInput": "capsule.errors",
    "LockLost": "capsule.errors",
    "LockState": "capsule.locks",
    "Locked": "capsule.errors",
    "Mark": "capsule.standing",
    "Message": "capsule.format.models",
    "NotFound": "capsule.errors",
    "Problem": "capsule.errors",
    "Refused": "capsule.errors",
    "Removal": "capsule.branches",
    "Restored": "capsule.restoring",
    "Slot": "capsule.branches",
    "Standing": "capsule.standing",
    "Stats": "capsule.index.stats",
    "StorageFailed": "capsule.errors",
    "Store": "capsule.store",
    "StoreBusy": "capsule.errors",
    "Summary": "capsule.standing",
    "Switched": "capsule.branches",
    "Trashed": "capsule.storage.interface",
}

__all__ = [
    "Alternatives",
    "Capsule",
    "CapsuleError",
    "Change",
    "Changes",
    "Found",
    "GitFailed",
    "Head",
    "HeldLock",
    "Hit",
    "InvalidDocument",
    "InvalidInput",
    "LockLost",
    "LockState",
    "Locked",
    "Mark",
    "Message",
    "NotFound",
    "Problem",
    "Refused",
    "Removal",
    "Restored",
    "Slot",
    "Standing",
    "Stats",
    "StorageFailed",
    "Store",
    "StoreBusy",
    "Summary",
    "Switched",
    "Trashed",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
