"""The core works without its rooms, and with those of other packages."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsule import rooms
from capsule.errors import Refused
from capsule.format.kinds import KINDS
from tests.core.cli.conftest import capsule as capsule
from tests.core.mcp_server.serving import environment, over_stdio

ROOT = Path(__file__).resolve().parents[1]
#: Takes the way to the installed source, which would find there what was deleted here.
NO_OTHER_SOURCE = 'import sys; sys.meta_path[:] = [each for each in sys.meta_path if "ditable" not in repr(each)]\n'


def test_the_table_and_the_rooms_say_the_same() -> None:
    found = rooms.installed()
    assert [room.name for room in found] == list(rooms.BUILT_IN)
    for room in found:
        assert sorted(room.modules()) == sorted(rooms.BUILT_IN[room.name].split())
        places = [*room.objects.values(), *room.quick.values(), *room.tools.values(), room.resources]
        assert all(map(rooms.load, filter(None, places)))
    kinds = [kind for room in found for kind in room.kinds]
    assert sorted(kinds) == sorted({*KINDS, "sessions"} - {"conversations"})


def test_nothing_is_scanned_for_a_store_that_names_no_room(capsule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "importlib.metadata", None)  # Its import fails.
    capsule.new("Plan")
    capsule("--help")
    capsule("listt", expect=2)


@pytest.fixture
def words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The package of docs/howto.md, installed; what its `capsule.toml` says."""
    page = (ROOT / "docs" / "howto.md").read_text("utf-8").partition("## A room of your own")[2]
    site = tmp_path / "site"
    (site / "capsule_words").mkdir(parents=True)
    (site / "capsule_words" / "__init__.py").touch()
    for name, code in re.findall(r"```py\n# (\S+)\n(.*?)```", page, re.S):
        (site / name).write_text(code, "utf-8")
    entry, settings = re.findall(r"```toml\n(.*?)```", page, re.S)
    about = site / "capsule_words-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: capsule-words\nVersion: 1.0\n", "utf-8")
    place = entry.splitlines()[1].replace('"', "")
    (about / "entry_points.txt").write_text(f"[{rooms.GROUP}]\n{place}\n", "utf-8")
    monkeypatch.syspath_prepend(site)
    (tmp_path / "rooms").write_text(settings, "utf-8")
    yield tmp_path / "rooms"
    for name in [name for name in sys.modules if name.partition(".")[0] == "capsule_words"]:
        del sys.modules[name]


def test_a_room_of_another_package_adds_a_command_a_tool_and_an_object(capsule: Any, words: Path) -> None:
    id = capsule.new("Plan", "-m", "two words")
    assert "No such command 'words'" in capsule("words", id, expect=2).stderr
    with pytest.raises(Refused):
        rooms.of_others("other")
    (capsule.root / "capsule.toml").write_bytes(words.read_bytes())
    assert capsule("words", id).line == "2"
    assert "Count the words of a conversation." in capsule("--help").stdout
    paths = os.pathsep.join([str(words.parent / "site"), environment()["PYTHONPATH"]])
    with over_stdio(capsule.root, env=environment(PYTHONPATH=paths)) as client:
        assert "2" in json.dumps(client.call("count_words", id=id))
