"""How git starts the drivers that belong to this program."""

from __future__ import annotations

import sys


def driver_program() -> list[str]:
    """How git starts the drivers; `-P` because it does so in a directory whose files must not be imported."""
    return [sys.executable, "-P", "-m", "capsule_cli.drivers"]
