"""The core works without its rooms, and with those of other packages."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from capsule import rooms
from capsule.errors import Refused
from capsule.format.validation import KINDS
from tests.core.cli.conftest import capsule as capsule
from tests.core.mcp_server.serving import environment, over_stdio

ROOT = Path(__file__).resolve().parents[1]
#: Takes the way to the installed source, which would find there what was deleted here.
NO_OTHER_SOURCE = (
    'import sys; sys.meta_path[:] = [each for each in sys.meta_path if "ditable" '
    "not in repr(each)]\n"
)
#: Runs the commands that it is told, one after the other.
COMMANDS = """
import json, sys
from typer.testing import CliRunner
from capsule_cli.app import app
for line in sys.stdin:
    result = CliRunner().invoke(app, json.loads(line))
    print(json.dumps([result.exit_code, result.stdout, result.stderr or repr(result.exception)]), flush=True)
"""
#: What of the core asks for rooms; below it, where tests/test_source.py allows no import of one,
#: nothing is otherwise.
ABOVE = ["cli", "mcp_server", "store", "watch"]
PIPES: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}


def test_the_table_and_the_rooms_say_the_same() -> None:
    found = rooms.installed()
    assert [room.name for room in found] == list(rooms.BUILT_IN)
    for room in found:
        commands = room.command_names()
        first = {
            name
            for command in commands
            for name in rooms.BUILT_IN[room.name]
            if f"{command} ".startswith(f"{name} ")
        }
        assert first == set(rooms.BUILT_IN[room.name])
        assert all(rooms.of_command(command) is room for command in [*commands, *room.groups])
        assert all(load() for load in [*room.objects.values(), *room.tools.values()])
    kinds = [kind for room in found for kind in room.kinds]
    assert sorted(kinds) == sorted({*KINDS, "sessions"} - {"conversations"})


def test_nothing_is_scanned_for_a_store_that_names_no_room(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
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
    (about / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: capsule-words\nVersion: 1.0\n", "utf-8"
    )
    place = entry.splitlines()[1].replace('"', "")
    (about / "entry_points.txt").write_text(f"[{rooms.GROUP}]\n{place}\n", "utf-8")
    monkeypatch.syspath_prepend(site)
    (tmp_path / "rooms").write_text(settings, "utf-8")
    yield tmp_path / "rooms"
    for name in [name for name in sys.modules if name.partition(".")[0] == "capsule_words"]:
        del sys.modules[name]


def test_a_room_of_another_package_adds_a_command_a_tool_and_an_object(
    capsule: Any, words: Path, tmp_path: Path
) -> None:
    id = capsule.new("Plan", "-m", "two words")
    assert "No such command 'words'" in capsule("words", id, expect=2).stderr
    with pytest.raises(Refused):
        rooms.of_others("other")
    (capsule.root / "capsule.toml").write_bytes(words.read_bytes())
    assert capsule("words", id).line == "2"
    assert "Count the words of a conversation." in capsule("--help").stdout
    other = tmp_path / "without rooms"
    capsule("init", str(other))
    with pytest.MonkeyPatch.context() as environment_of_other:
        environment_of_other.setenv("CAPSULE_STORE", str(other))
        for option in (["--store", str(capsule.root)], [f"--store={capsule.root}"]):
            assert capsule("words", id, *option).line == "2"
    paths = os.pathsep.join([str(words.parent / "site"), environment()["PYTHONPATH"]])
    with over_stdio(capsule.root, env=environment(PYTHONPATH=paths)) as client:
        assert "2" in json.dumps(client.call("count_words", id=id))


@pytest.fixture(scope="module")
def core(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The two packages without their rooms, and the tests of the core."""
    place = tmp_path_factory.mktemp("core")
    pages = (
        "pyproject.toml",
        "README.md",
        "capsule.toml",
        "tests/conftest.py",
        "tests/processes.py",
    )
    folders = (
        "capsule",
        "cli/capsule_cli",
        "tests/core",
        "tests/postgres",
        "tests/data",
        "tests/torture",
        "docs",
        "schemas",
        "conversations",
    )
    for name in folders:
        shutil.copytree(ROOT / name, place / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in pages:
        shutil.copy(ROOT / name, place / name)
    for room in rooms.BUILT_IN:
        shutil.rmtree(place / "capsule" / room)
        shutil.rmtree(place / "cli" / "capsule_cli" / "commands" / room)
    (place / "cli" / "capsule_cli" / "drivers.py").unlink()  # Git's way in.
    (place / "sitecustomize.py").write_text(NO_OTHER_SOURCE, "utf-8")
    return place


def alone(core: Path) -> dict[str, str]:
    """The environment in which the core is alone."""
    paths = os.pathsep.join([str(core), str(core / "cli")])
    return {**os.environ, "PYTHONPATH": paths, "PYTHONDONTWRITEBYTECODE": ""}


@pytest.mark.slow
@pytest.mark.sample
def test_the_core_works_alone_and_says_which_room_is_missing(core: Path, tmp_path: Path) -> None:
    root = tmp_path / "store"
    process = subprocess.Popen(
        [sys.executable, "-c", COMMANDS], **PIPES, env=alone(core), cwd=tmp_path
    )
    assert process.stdin is not None and process.stdout is not None

    def capsule(*words: str, expect: int = 0) -> str:
        print(json.dumps(words), file=process.stdin, flush=True)
        code, out, said = json.loads(process.stdout.readline())
        assert code == expect, said
        return str(out if expect == 0 else said)

    capsule("init", str(root))
    at = ("--store", str(root))
    id = capsule("new", "Plan", "-m", "hello", *at).strip()
    cursor = capsule("watch", "--print-cursor", *at).strip()
    capsule("append", id, "world", *at)
    assert (
        "world" in capsule("show", id, *at)
        and id in capsule("list", *at)
        and id in capsule("search", "wor*", *at)
    )
    watch = [sys.executable, "-m", "capsule_cli", "watch", "--after", cursor, *at]
    with subprocess.Popen(watch, **PIPES, env=alone(core)) as watching:
        assert watching.stdout is not None and "appended" in watching.stdout.readline()
        watching.terminate()
    capsule("delete", id, *at)
    capsule("restore", id, *at)
    assert "all is well" in capsule("doctor", "--repair", *at)
    capsule("trash", "list", *at), capsule("trash", "purge", "--yes", *at)
    with over_stdio(root, env=alone(core)) as client:
        assert client.call("read_conversation", id=id)["title"] == "Plan"
    words = {
        "send": "messaging",
        "git": "git",
        "import": "transfer",
        "context": "context",
        "worker": "sessions",
    }
    for command, room in words.items():
        assert f"{room} is not installed here" in capsule(
            command, "x", *at, expect=Refused.exit_code
        )
        assert command not in re.findall(r"\w+", capsule("--help").replace("with git", ""))
    assert "git is not installed" in capsule("show", id, "--at", "HEAD", *at, expect=6)
    tools = [sys.executable, "-m", "capsule_cli", "mcp", "--tools", "messaging", *at]
    served = subprocess.run(
        tools, capture_output=True, text=True, env=alone(core), stdin=subprocess.DEVNULL
    )
    assert served.returncode == 6 and "installed" in served.stderr
    assert "No such command" in capsule("sendd", *at, expect=2)
    process.communicate()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    "tests", [pytest.param(["store/test_store_basics.py"], marks=pytest.mark.sample), ABOVE]
)
def test_the_cores_own_tests_pass_without_the_rooms(core: Path, tests: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", "not slow", "-p", "no:cacheprovider"]
    command += [f"tests/core/{name}" for name in tests] + (["-n", "auto"] if tests is ABOVE else [])
    done = subprocess.run(command, capture_output=True, text=True, env=alone(core), cwd=core)
    assert done.returncode == 0, done.stdout[-5000:]
