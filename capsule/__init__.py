"""Capsule: conversations of people and AI agents as plain files, safe for many writers.

from capsule import Store

with Store.open("path") as store:
    conversation = store.create(title="Plan")
    store.append(conversation.id, role="user", content="hello")
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from capsule.engines.changes import Change as Change
    from capsule.engines.changes import Changes as Changes
    from capsule.engines.interface import Trashed as Trashed
    from capsule.engines.queries import Facets as Facets
    from capsule.engines.queries import Filter as Filter
    from capsule.engines.queries import Found as Found
    from capsule.engines.queries import Hit as Hit
    from capsule.engines.queries import Listed as Listed
    from capsule.engines.queries import Stats as Stats
    from capsule.errors import CapsuleError as CapsuleError
    from capsule.errors import GitFailed as GitFailed
    from capsule.errors import InvalidDocument as InvalidDocument
    from capsule.errors import InvalidInput as InvalidInput
    from capsule.errors import Locked as Locked
    from capsule.errors import LockLost as LockLost
    from capsule.errors import NotFound as NotFound
    from capsule.errors import Problem as Problem
    from capsule.errors import Refused as Refused
    from capsule.errors import Remedy as Remedy
    from capsule.errors import StorageFailed as StorageFailed
    from capsule.errors import StoreBusy as StoreBusy
    from capsule.format.documents.head import Head as Head
    from capsule.format.models import Capsule as Capsule
    from capsule.format.models import Message as Message
    from capsule.format.tree.branches import Alternatives as Alternatives
    from capsule.format.tree.branches import Removal as Removal
    from capsule.format.tree.branches import Slot as Slot
    from capsule.format.tree.branches import Switched as Switched
    from capsule.locks.instance_locks import HeldLock as HeldLock
    from capsule.locks.locks import LockState as LockState
    from capsule.messaging.configuration import Action as Action
    from capsule.messaging.configuration import Plan as Plan
    from capsule.messaging.contacts import Agent as Agent
    from capsule.messaging.contacts import Contact as Contact
    from capsule.messaging.mail import Heard as Heard
    from capsule.messaging.mail import History as History
    from capsule.messaging.mail import Inbox as Inbox
    from capsule.messaging.mail import InboxItem as InboxItem
    from capsule.messaging.mail import Mail as Mail
    from capsule.messaging.mail import Mention as Mention
    from capsule.messaging.mail import Sent as Sent
    from capsule.messaging.projects import Project as Project
    from capsule.public import Store as Store
    from capsule.store.objects.summaries import Mark as Mark
    from capsule.store.objects.summaries import Standing as Standing
    from capsule.store.objects.summaries import Summary as Summary
    from capsule.store.objects.trash import Restored as Restored
    from capsule.store.pages import Page as Page

__version__ = "0.1.0"

#: The public names, by module. A module is imported on first use: the validation library alone
#: takes 50 ms to import.
_MODULES = {
    "capsule.engines.changes": "Change Changes",
    "capsule.engines.queries": "Facets Filter Found Hit Listed Stats",
    "capsule.engines.interface": "Trashed",
    "capsule.errors": "CapsuleError GitFailed InvalidDocument InvalidInput LockLost Locked "
    "NotFound Problem Refused Remedy StorageFailed StoreBusy",
    "capsule.format.documents.head": "Head",
    "capsule.format.models": "Capsule Message",
    "capsule.format.tree.branches": "Alternatives Removal Slot Switched",
    "capsule.locks.instance_locks": "HeldLock",
    "capsule.locks.locks": "LockState",
    "capsule.messaging.configuration": "Action Plan",
    "capsule.messaging.mail": "Heard History Inbox InboxItem Mail Mention Sent",
    "capsule.messaging.contacts": "Agent Contact",
    "capsule.messaging.projects": "Project",
    "capsule.store.pages": "Page",
    "capsule.public": "Store",
    "capsule.store.objects.summaries": "Mark Standing Summary",
    "capsule.store.objects.trash": "Restored",
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
