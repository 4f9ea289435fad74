"""basic-memory, through its MCP server, in a throwaway environment of its own.

This module runs in the environment of the benchmarks; `basic_memory_client.py` beside it runs in
the other.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

__all__ = ["measure"]

_CLIENT = Path(__file__).with_name("basic_memory_client.py")
#: Without semantic search: it fetches a model, and has no part in keeping what was written.
_SETTINGS = {"BASIC_MEMORY_SEMANTIC_SEARCH_ENABLED": "false", "PYTHONPATH": ""}
_PYTHONS = ("python3.12", "python3.13", "python3", "python3.14")


def _python() -> str:
    """A Python of version 3.12 or newer that runs (a name in PATH may be a shim with nothing behind
    it).
    """
    check = "import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 12))"
    for name in _PYTHONS:
        found = shutil.which(name)
        if (
            found
            and subprocess.run([found, "-c", check], capture_output=True, check=False).returncode
            == 0
        ):
            return found
    return ""


def measure(directory: Path, requirement: str, appends: int) -> dict[str, Any] | str:
    """Install it and let one and four processes append to one note.

    Args:
        directory: Where the environment and the project are made.
        requirement: What pip is to install.
        appends: How many each process appends.

    Returns:
        The figures, or why there are none.
    """
    python = _python()
    if not python:
        return "no Python 3.12 or newer with venv is in PATH"
    home = directory / "basic-memory"
    home.mkdir()
    environment = home / "venv"
    inside = environment / "bin" / "python"
    try:
        subprocess.run(
            [python, "-m", "venv", environment], check=True, capture_output=True, timeout=300
        )
        subprocess.run(
            [inside, "-m", "pip", "install", "-q", "--disable-pip-version-check", requirement],
            check=True,
            capture_output=True,
            text=True,
            timeout=1200,
        )
    except subprocess.CalledProcessError as error:
        said = (error.stderr or "").strip().splitlines() if isinstance(error.stderr, str) else []
        return f"{requirement} can't be installed: {said[-1] if said else error}"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{requirement} can't be installed: {error}"
    try:
        done = subprocess.run(
            [inside, _CLIENT, home, str(appends)],
            check=True,
            capture_output=True,
            text=True,
            timeout=1200,
            env=os.environ
            | _SETTINGS
            | {"HOME": str(home), "BASIC_MEMORY_HOME": str(home / "notes")},
        )
    except subprocess.CalledProcessError as error:
        return f"its server can't be used: {error.stderr.strip().splitlines()[-1:] or error}"
    except subprocess.TimeoutExpired:
        return "its server did not answer in 20 minutes"
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
