"""`notifications`: the block in a project's CLAUDE.md is switched on and off,
listed and removed.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def claude(capsule: Any, tmp_path: Path) -> Path:
    """The CLAUDE.md of bob's project, for whom a message waits."""
    project = tmp_path / "project"
    project.mkdir()
    capsule("agent", "register", "--as", "anna")
    capsule("agent", "register", "--as", "bob", "--project", str(project))
    capsule("send", "--as", "anna", "--to", "bob", "Secret words")
    return project / "CLAUDE.md"


def test_a_message_to_an_agent_that_is_away_makes_a_block_that_says_how_to_read_it(
    capsule: Any, claude: Path
) -> None:
    text = claude.read_text()
    command = next(line.strip() for line in text.splitlines() if line.startswith("    capsule "))
    assert "1 from anna" in text and "Secret" not in text
    assert "Secret words" in capsule(*shlex.split(command)[1:]).stdout
    assert not claude.exists()


def test_the_block_is_switched_off_and_on(capsule: Any, claude: Path) -> None:
    said = capsule.json("agent", "notify", "off", "--as", "bob")
    assert said == {"agent": "bob", "notifications": False, "files": []} and not claude.exists()
    assert capsule("agent", "notify", "status", "--as", "bob").stdout == "bob\toff\t\n"
    said = capsule.json("agent", "notify", "on", "--as", "bob")
    assert (
        said == {"agent": "bob", "notifications": True, "files": [str(claude)]} and claude.exists()
    )


def test_the_blocks_of_all_agents_are_listed_and_removed(capsule: Any, claude: Path) -> None:
    claude.write_text("# Rules\n" + claude.read_text())
    assert [(one["agent"], one["files"]) for one in capsule.json("agent", "notify", "status")] == [
        ("anna", []),
        ("bob", [str(claude)]),
    ]
    assert capsule.json("agent", "notify", "clean") == {"cleaned": [str(claude)]}
    assert capsule("agent", "notify", "clean").stdout == "there was no block\n"
    assert claude.read_text() == "# Rules\n"


def test_a_broken_block_is_named_and_stays(capsule: Any, claude: Path) -> None:
    claude.write_text(claude.read_text() * 2)
    assert f"{claude}:1:1" in capsule("agent", "notify", "clean", expect=5).stderr
    assert f"{claude}:1:1" in capsule("send", "--as", "anna", "--to", "bob", "More").stderr


def test_a_block_that_could_not_be_written_is_an_error(capsule: Any, tmp_path: Path) -> None:
    too_long = (
        "A" * 250
    )  # As a file it would do, but the temporary one beside it has a longer name.
    settings = tmp_path / "settings.toml"
    settings.write_text(f'[notifications]\nfiles = ["{too_long}"]\n')
    capsule("store", "settings", "--set", str(settings))
    capsule("agent", "register", "--as", "anna")
    capsule("agent", "register", "--as", "bob", "--project", str(tmp_path))
    assert too_long in capsule("send", "--as", "anna", "--to", "bob", "Hello").stderr
    failed = capsule("agent", "notify", "on", "--as", "bob", expect=1)
    assert too_long in failed.stderr and "File name too long" in failed.stderr and not failed.stdout
