"""The content of the wheel, and the names of the package."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import capsule

pytestmark = pytest.mark.slow

BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "capsule", "cli")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel, built without a network from a copy of the source, so that no build files remain
    in the source.
    """
    root = Path(__file__).resolve().parents[1]
    source, target = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in BUILT_FROM:
        if (root / name).is_dir():
            shutil.copytree(
                root / name,
                source / name,
                ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"),
            )
        else:
            shutil.copy(root / name, source / name)
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--no-deps",
        "--no-build-isolation",
        "--no-index",
        "-q",
    ]
    done = subprocess.run(
        [*command, "--disable-pip-version-check", "-w", str(target), str(source)],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (made,) = target.glob("*.whl")
    return zipfile.ZipFile(made)


def test_the_wheel_installs_two_packages_and_nothing_else(wheel: zipfile.ZipFile) -> None:
    tops = {name.split("/")[0] for name in wheel.namelist()}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"capsule", "capsule_cli"}


def test_the_wheel_has_every_file_of_the_packages(wheel: zipfile.ZipFile, repository: Path) -> None:
    packages = {
        "capsule": repository / "capsule",
        "capsule_cli": repository / "cli" / "capsule_cli",
    }
    source = {
        (Path(name) / path.relative_to(folder)).as_posix()
        for name, folder in packages.items()
        for path in folder.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and not path.name.startswith(".")
    }
    assert {name for name in wheel.namelist() if ".dist-info/" not in name} == source


def test_the_packages_are_marked_as_typed(wheel: zipfile.ZipFile) -> None:
    assert {"capsule/py.typed", "capsule_cli/py.typed"} <= set(wheel.namelist())


def test_the_wheel_has_the_version_of_the_package(wheel: zipfile.ZipFile) -> None:
    assert wheel.filename and f"-{capsule.__version__}-" in Path(wheel.filename).name
    assert metadata.version("capsule-conversations") == capsule.__version__


def test_every_requirement_has_a_lower_bound_and_is_in_the_lock(repository: Path) -> None:
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(one for extra in project["optional-dependencies"].values() for one in extra),
    ]
    lines = (repository / "constraints.txt").read_text().splitlines()
    locked = {line.split("==")[0].lower() for line in lines if line and not line.startswith("#")}
    assert {re.split(r"\[|>=", one)[0].lower() for one in wanted} <= locked
    assert all(">=" in one for one in wanted), "each requirement has a lower bound"


def test_every_public_name_can_be_imported() -> None:
    for name in capsule.__all__:
        assert getattr(capsule, name) is not None
    assert sorted(capsule.__all__) == list(capsule.__all__)
    assert set(capsule.__all__) <= set(dir(capsule))


def test_importing_capsule_loads_nothing_heavy() -> None:
    script = "import sys, capsule; print(*sorted({name.split('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-c", script]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    assert not {
        "pydantic",
        "orjson",
        "typer",
        "rich",
        "platformdirs",
        "portalocker",
        "asyncio",
    } & set(loaded)
