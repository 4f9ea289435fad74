"""The versions of Capsule and of what it runs on, for a bug report.

What must stay true: no library is imported to tell its version, and nothing here names a machine, a
user or a path.
"""

from __future__ import annotations

import os
import platform
from importlib import metadata
from typing import Any

import capsule
from capsule.errors import GitFailed, Refused

#: The libraries of which a version has mattered for a bug.
LIBRARIES = ("mcp", "orjson", "portalocker", "pydantic", "pydantic_core", "typer", "watchfiles")
_GIT_S = 10


def versions() -> dict[str, Any]:
    """The versions, by name; None: it is not there. Cost: starting git once."""
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

    try:
        return (
            Git(os.path.abspath(os.sep))
            .run("version", timeout_s=_GIT_S)
            .text.removeprefix("git version ")
        )
    except (GitFailed, Refused):
        return None
