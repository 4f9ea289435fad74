"""Import one module of a library without the rest of its package.

For two libraries the rest costs a quick command as much as starting Python does. The package of
portalocker reads its version from the installed metadata and makes classes for semaphores and
Redis. That of watchfiles loads asyncio. Both are kept below their next major version, since nobody
promises where their modules are.
"""

from __future__ import annotations

import os
import sys
import threading
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType


def import_submodule(name: str) -> ModuleType:
    """Import a module of a package, but not the package itself.

    Args:
        name: The full name of the module, such as `portalocker.portalocker`.

    Returns:
        The module. A later import of the package finds it, and adds the rest.
    """
    package = name.partition(".")[0]
    with _loading:
        if package in sys.modules or (spec := find_spec(package)) is None:
            return import_module(name)
        stand_in = ModuleType(package)
        stand_in.__path__ = spec.submodule_search_locations or []
        sys.modules[package] = stand_in
        try:
            return import_module(name)
        finally:
            del sys.modules[package]


def _in_forked_child() -> None:
    global _loading
    _loading = threading.Lock()


#: One thread at a time, since another one would find the stand-in, or miss it.
_loading = threading.Lock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_forked_child)
