"""Every block of the README runs, and gives what stands there.

`console` blocks run in one shell, in a copy of this repository's store, which they leave as it is; a UUID, a time or a
host stands for any other, and `...` for the store's directory. The `python` block runs there too, and prints the `text`
block behind it. The targets in `sh` blocks exist.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```$", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
DONE = "--- done"


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the store that this repository is, in a git repository of its own."""
    store = tmp_path / "capsule"
    store.mkdir()
    shutil.copy(ROOT / "capsule.toml", store)
    shutil.copytree(ROOT / "conversations", store / "conversations")
    monkeypatch.chdir(store)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("USER", "LOGNAME"):
        monkeypatch.setenv(name, "anna")
    subprocess.run(["git", "init", "-q"], check=True)
    subprocess.run(["git", "add", "."], check=True)
    subprocess.run(["git", "commit", "-q", "-m", "the samples"], check=True)
    return store


def commands_of(kind: str) -> list[tuple[str, str]]:
    """The commands of the blocks of a kind, each with the output that stands below it."""
    found = []
    for language, block in BLOCKS:
        if language == kind:
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, _, output = part.partition("\n")
                found.append((command, output))
    return found


def run(commands: list[str]) -> list[str]:
    """What each command says, run one after the other in one shell."""
    script = "\n".join(f"{command}\nprintf '%s\\n' '{DONE}'" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True
    )
    return done.stdout.split(f"{DONE}\n")[:-1]


VARYING = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "<id>",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{3})?)?": "<time>",
    r"^index [0-9a-f]+\.\.[0-9a-f]+": "index <blobs>",
    r"^committed [0-9a-f]+": "committed <commit>",
    r"\bon \S+ since\b": "on <host> since",
}


def normal(output: str) -> str:
    """`output` without what differs from run to run; `...` is the store's directory."""
    output = output.replace(f"{os.getcwd()}-tour", "...").replace(os.getcwd(), "...")
    for pattern, name in VARYING.items():
        output = re.sub(pattern, name, output, flags=re.M)
    return output


@pytest.mark.slow
def test_the_tour_says_what_the_commands_say(store: Path) -> None:
    tour = commands_of("console")
    said = run([command for command, _ in tour])
    assert len(said) == len(tour)
    for (command, expected), output in zip(tour, said, strict=True):
        assert normal(output) == normal(expected), f"$ {command}"
    left = subprocess.run(["git", "status", "--porcelain", "--ignored"], capture_output=True, text=True, check=True)
    assert left.stdout == ""


def test_the_python_example_prints_what_it_says(store: Path) -> None:
    kinds = [kind for kind, _ in BLOCKS]
    at = kinds.index("python")
    assert kinds[at + 1] == "text"
    done = subprocess.run([sys.executable, "-c", BLOCKS[at][1]], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert normal(done.stdout) == normal(BLOCKS[at + 1][1])


def test_the_targets_of_the_readme_exist() -> None:
    targets = [
        target for kind, block in BLOCKS if kind == "sh" for target in re.findall(r"^make ([a-z-]+)", block, re.M)
    ]
    assert targets
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


def test_no_block_of_the_readme_is_left_out() -> None:
    assert {kind for kind, _ in BLOCKS} <= {"console", "python", "text", "sh"}
    assert [kind for kind, _ in BLOCKS].count("python") == 1


def test_links_of_the_documentation_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            assert (page.parent / link).exists(), f"{page.name}: {link}"
