"""Reset objects in a forked child of this process (`os.fork`).

A child has none of its parent's threads, a copy of a lock that one of them held is never released,
and descriptors are shared with the parent. An object with such state registers a method that makes
new state in the child.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")

_methods: weakref.WeakKeyDictionary[Any, Callable[[Any], None]] = weakref.WeakKeyDictionary()


def call_in_child(owner: T, method: Callable[[T], None]) -> None:
    """Call a method of an object in every forked child, before any other code runs there.

    Args:
        owner: The object. If it is deleted, its method is not called any more.
        method: The method, as a function that takes the object.
    """
    _methods[owner] = method


def _call_methods() -> None:
    for owner, method in list(_methods.items()):
        method(owner)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_call_methods)
