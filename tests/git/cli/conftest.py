"""The fixtures of the core's tests of the command line, for those of this room's commands."""

from tests.core.cli.conftest import capsule, editor

__all__ = ["capsule", "editor"]
