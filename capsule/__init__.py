"""Capsule: conversations of people and AI agents as plain files, safe for many writers.

from capsule import Store

with Store.open("path") as store:
    conversation = store.create(title="Plan")
    store.append(conversation.id, role="user", content="hello")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsule.engines.changes import Change, Changes
    from capsule.engines.files.protocols import Trashed
    from capsule.engines.index.pages import Listed
    from capsule.engines.index.search.hits import Found, Hit
    from capsule.engines.index.stats import Stats
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
        Remedy,
        StorageFailed,
        StoreBusy,
    )
    from capsule.format.head import Head
    from capsule.format.models import Capsule, Message
    from capsule.format.tree.branches import Alternatives, Removal, Slot, Switched
    from capsule.locks.holder import HeldLock
    from capsule.locks.locks import LockState
    from capsule.messaging.configuration.plans import Action, Plan
    from capsule.messaging.mail.mail import Heard, History, Inbox, InboxItem, Mail, Mention, Sent
    from capsule.messaging.people.contacts import Agent, Contact
    from capsule.messaging.people.projects import Project
    from capsule.store.pages import Filter, Page
    from capsule.store.store import Store
    from capsule.store.summaries import Mark, Standing, Summary
    from capsule.store.trash import Restored

__version__ = "0.1.0"

#: The module of each public name, imported on first use: the validation library alone takes 50 ms to import.
_HOMES = {
    "Action": "capsule.messaging.configuration.plans",
    "Agent": "capsule.messaging.people.contacts",
    "Alternatives": "capsule.format.tree.branches",
    "Capsule": "capsule.format.models",
    "CapsuleError": "capsule.errors",
    "Change": "capsule.engines.changes",
    "Changes": "capsule.engines.changes",
    "Contact": "capsule.messaging.people.contacts",
    "Filter": "capsule.store.pages",
    "Found": "capsule.engines.index.search.hits",
    "GitFailed": "capsule.errors",
    "Head": "capsule.format.head",
    "Heard": "capsule.messaging.mail.mail",
    "HeldLock": "capsule.locks.holder",
    "History": "capsule.messaging.mail.mail",
    "Hit": "capsule.engines.index.search.hits",
    "Inbox": "capsule.messaging.mail.mail",
    "InboxItem": "capsule.messaging.mail.mail",
    "InvalidDocument": "capsule.errors",
    "InvalidInput": "capsule.errors",
    "Listed": "capsule.engines.index.pages",
    "LockLost": "capsule.errors",
    "LockState": "capsule.locks.locks",
    "Locked": "capsule.errors",
    "Mail": "capsule.messaging.mail.mail",
    "Mark": "capsule.store.summaries",
    "Mention": "capsule.messaging.mail.mail",
    "Message": "capsule.format.models",
    "NotFound": "capsule.errors",
    "Page": "capsule.store.pages",
    "Plan": "capsule.messaging.configuration.plans",
    "Problem": "capsule.errors",
    "Project": "capsule.messaging.people.projects",
    "Refused": "capsule.errors",
    "Remedy": "capsule.errors",
    "Removal": "capsule.format.tree.branches",
    "Restored": "capsule.store.trash",
    "Sent": "capsule.messaging.mail.mail",
    "Slot": "capsule.format.tree.branches",
    "Standing": "capsule.store.summaries",
    "Stats": "capsule.engines.index.stats",
    "StorageFailed": "capsule.errors",
    "Store": "capsule.store.store",
    "StoreBusy": "capsule.errors",
    "Summary": "capsule.store.summaries",
    "Switched": "capsule.format.tree.branches",
    "Trashed": "capsule.engines.files.protocols",
}

__all__ = [
    "Action",
    "Agent",
    "Alternatives",
    "Capsule",
    "CapsuleError",
    "Change",
    "Changes",
    "Contact",
    "Filter",
    "Found",
    "GitFailed",
    "Head",
    "Heard",
    "HeldLock",
    "History",
    "Hit",
    "Inbox",
    "InboxItem",
    "InvalidDocument",
    "InvalidInput",
    "Listed",
    "LockLost",
    "LockState",
    "Locked",
    "Mail",
    "Mark",
    "Mention",
    "Message",
    "NotFound",
    "Page",
    "Plan",
    "Problem",
    "Project",
    "Refused",
    "Remedy",
    "Removal",
    "Restored",
    "Sent",
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
