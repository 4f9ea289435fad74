"""What comes from npm comes in the versions that are written down, and from wherever the user's npm
gets it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

TESTS = Path(__file__).resolve().parents[1]
PACKAGES = sorted(path.parent for path in TESTS.rglob("package.json"))


def read(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    return found


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_every_version_is_pinned_exactly(folder: Path) -> None:
    wanted = read(folder / "package.json")["dependencies"]
    assert wanted
    for name, version in wanted.items():
        assert re.fullmatch(r"(npm:@?[\w/-]+@)?\d+\.\d+\.\d+(-[\w.]+)?", version), (
            f"{name}: {version}"
        )
    assert read(folder / "package-lock.json")["packages"][""]["dependencies"] == wanted


@pytest.mark.parametrize("folder", PACKAGES, ids=lambda folder: folder.name)
def test_no_registry_is_named(folder: Path) -> None:
    locked = read(folder / "package-lock.json")["packages"]
    assert len(locked) > 1
    for name, package in locked.items():
        assert "resolved" not in package, name
    settings = (folder / ".npmrc").read_text()
    assert "omit-lockfile-registry-resolved=true" in settings
    assert "registry=" not in settings
    assert "//" not in settings
