"""What a forked child of this process does first: it shares no thread, no lock and no descriptor
with its parent.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_methods: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def call_in_child(owner: T, method: Callable[[T], None]) -> None:
    """Have a method of an object called in every forked child, as long as the object lives."""
    _methods[owner] = method


def _in_child() -> None:
    for owner, method in list(_methods.items()):
        method(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
