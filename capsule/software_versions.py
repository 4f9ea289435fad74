"""The versions of Capsule, and of the software that it runs on, for a bug report.

What must stay true: no library is imported to find its version. The result names no machine, user
or path.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import capsule
from capsule.errors import GitFailed, Refused

#: The libraries whose versions have mattered for a bug.
LIBRARIES = ("mcp", "orjson", "portalocker", "pydantic", "pydantic_core", "typer", "watchfiles")
#: The time limit of git, in seconds.
_GIT_TIMEOUT_S = 10


def versions() -> dict[str, Any]:
    """Return the versions by name. None: the software is not installed. Cost: starting git once."""
    import sqlite3

    return {
        "version": capsule.__version__,
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "platform": {
            "os": platform.system(),
            "release": platform.release(),
            "machine": platform.machine(),
        },
        "libraries": {name: _library(name) for name in LIBRARIES},
        "sqlite": sqlite3.sqlite_version,
        "git": _git(),
    }


def _library(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _git() -> str | None:
    from capsule.git_program import Git

    root = os.path.abspath(os.sep)  # A directory that certainly exists.
    try:
        output = Git(root).run("version", timeout_s=_GIT_TIMEOUT_S)
        return output.text.removeprefix("git version ")
    except (GitFailed, Refused):
        return None
