"""What the programs that a command starts find around them.

What must stay true: a git that a command starts works on the repository it is pointed at, also when the command
itself was started by a hook of another one.
"""

from __future__ import annotations

import os
import sys

__all__ = ["driver_program", "outside_hooks"]

#: What git tells its hooks and drivers of their repository: `git rev-parse --local-env-vars` (git 2.39). The settings
#: of `git -c` (GIT_CONFIG_*) pass, as they are the caller's.
_OF_HOOKS = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_INTERNAL_SUPER_PREFIX",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_WORK_TREE",
    }
)


def outside_hooks() -> dict[str, str]:
    """This process's environment without what a hook's git put there, and with git's messages in English."""
    kept = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    return {**kept, "LC_ALL": "C.UTF-8", "LANGUAGE": "C"}


def driver_program() -> list[str]:
    """How git starts the drivers; `-P` because it does so in a directory whose files must not be imported."""
    return [sys.executable, "-P", "-m", "capsule_cli.drivers"]
