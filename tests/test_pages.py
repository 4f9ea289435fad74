"""Every block of the README and of the pages in docs/ runs, and prints the output on the page.

The blocks of a page run in one shell, one after the other. Those of the README run in a copy of
this repository's store, which they leave unchanged; those of another page start in an empty
directory. A UUID, a time or a host stands for any other, and `...` for the directory. A `python`
block prints the `text` block behind it. The targets in `sh` blocks exist.
"""

from __future__ import annotations

import builtins
import collections.abc
import contextlib
import importlib
import inspect
import os
import re
import shlex
import shutil
import subprocess
import sys
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import capsule
from capsule import Store, errors
from capsule.locks.locks import Locks
from capsule.store.store import StoreAttribute
from capsule_cli.app import choices_of, global_parameters, installed_parts
from tests.core.cli.test_program import command_of

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").rglob("*.md"))]
#: With those for contributors, which have no tour.
ALL_PAGES = [*PAGES, *sorted(set(ROOT.glob("*.md")) - {README})]
API = "\n".join(page.read_text(encoding="utf-8") for page in PAGES if page.parent.name == "api")
DONE = "--- done"


def blocks_of(page: Path) -> list[tuple[str, str]]:
    """The fenced blocks of a page that name a language, each with its text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)


TYPED = [
    page for page in PAGES if page.parent.name != "api"
]  # The others have signatures, and no examples.
TOURS = [page for page in PAGES if any(kind == "console" for kind, _ in blocks_of(page))]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty directory, with this program as `capsule` and `python`."""
    place = tmp_path / "capsule"
    place.mkdir()
    monkeypatch.chdir(place)
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    for name in ("USER", "LOGNAME", "GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"):
        monkeypatch.setenv(name, "anna")
    return place


@pytest.fixture
def cli_page(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module that makes the pages of the commands."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    return importlib.import_module("cli_page")


def copy_store(place: Path) -> None:
    """Copy the store that this repository is, and put it into a git repository of its own."""
    shutil.copy(ROOT / "capsule.toml", place)
    shutil.copytree(ROOT / "conversations", place / "conversations")
    for command in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "the samples"]):
        subprocess.run(["git", *command], check=True)


def steps_of(page: Path) -> list[tuple[str, str]]:
    """The commands of a page, each with the output below it."""
    steps = []
    blocks = blocks_of(page)
    for (kind, block), (_, after) in zip(blocks, [*blocks[1:], ("", "")], strict=True):
        if kind == "console":
            for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
                command, _, output = part.partition("\n")
                steps.append((command, output))
        elif kind == "python":
            steps.append((f"python -c {shlex.quote(block)}", after))
    return steps


def run(commands: list[str]) -> list[str]:
    """Run the commands one after the other in one shell, and return the output of each."""
    script = "\n".join(f"{command}\nprintf '%s\\n' '{DONE}'" for command in commands)
    done = subprocess.run(
        ["bash", "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
    )
    return done.stdout.split(f"{DONE}\n")[:-1]


VARYING = {
    r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}": "<id>",
    r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d{3})?)?": "<time>",
    r"^index [0-9a-f]+\.\.[0-9a-f]+": "index <blobs>",
    r"^committed [0-9a-f]+": "committed <commit>",
    r"\bcommit [0-9a-f]{7,}": "commit <commit>",
    r"^[0-9a-f]{7,}\t": "<commit>\t",
    r"\bon \S+ since\b": "on <host> since",
}


def normal(output: str) -> str:
    """`output` with placeholders for the parts that differ from run to run; `...` is
    the directory.
    """
    output = output.replace(f"{os.getcwd()}-tour", "...").replace(os.getcwd(), "...")
    for pattern, name in VARYING.items():
        output = re.sub(pattern, name, output, flags=re.M)
    return output


@pytest.mark.slow
@pytest.mark.parametrize("page", TOURS, ids=lambda page: page.stem)
def test_a_page_has_the_output_of_its_commands(page: Path, place: Path) -> None:
    if page == README:
        copy_store(place)
    steps = steps_of(page)
    printed = run([command for command, _ in steps])
    assert len(printed) == len(steps)
    for (command, expected), output in zip(steps, printed, strict=True):
        assert normal(output) == normal(expected), f"$ {command}"
    if page == README:
        left = subprocess.run(
            ["git", "status", "--porcelain", "--ignored"],
            capture_output=True,
            text=True,
            check=True,
        )
        assert left.stdout == "", "the tour changed the store that it is taken in"


def test_every_block_of_a_page_runs() -> None:
    assert {page.stem for page in TOURS} >= {"README", "quickstart", "howto"}
    for page in TOURS:
        kinds = [kind for kind, _ in blocks_of(page)]
        # `test_rooms` runs the last two of the how-tos; a type checker reads the others.
        assert set(kinds) <= {"console", "python", "text", "sh", "py", "toml"}, page.name
        for at, kind in enumerate(kinds):
            assert kind != "python" or kinds[at + 1] == "text", (
                f"{page.name}: a python block without its output"
            )


def test_the_make_targets_that_pages_name_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [
        target
        for page in ALL_PAGES
        for kind, block in blocks_of(page)
        if kind == "sh"
        for targets in re.findall(r"^make ([a-z -]+)", block, re.M)
        for target in targets.split()
    ]
    assert targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.M), target


def anchors_of(page: Path) -> set[str]:
    """The names under which a link leads to a heading of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_link_of_the_documentation_leads_to_a_file_and_a_heading() -> None:
    for page in ALL_PAGES:
        for link, anchor in re.findall(
            r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8")
        ):
            target = page.parent / link if link else page
            assert target.exists(), f"{page.name}: {link}"
            assert not anchor or anchor in anchors_of(target), f"{page.name}: {link}#{anchor}"


def test_every_path_that_the_page_for_contributors_names_is_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    paths = [
        path
        for path in re.findall(r"`([\w.]+/[\w./]*)`", text)
        if not re.search("ROOM|FORMAT", path)
    ]
    assert len(paths) > 10
    for path in paths:
        assert (ROOT / path).exists(), path
    for room in re.findall(r"ROOM=(\S+)", text):
        assert (ROOT / "tests" / room).is_dir(), room


def test_the_hooks_and_the_forms_for_contributors_call_what_there_is() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][
        0
    ]["hooks"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for hook in hooks:
        program = " ".join(hook["entry"].split()[:2]).removeprefix(".venv/bin/")
        assert f"@$(BIN)/{program}" in makefile, hook["id"]
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").iterdir():
        assert {"name", "description", "body"} <= yaml.safe_load(
            form.read_text(encoding="utf-8")
        ).keys()
    bug = (ROOT / ".github" / "ISSUE_TEMPLATE" / "bug.yml").read_text(encoding="utf-8")
    assert "`capsule --version --json`" in bug and "`capsule doctor --report`" in bug


def test_every_link_to_a_heading_of_the_library_leads_there() -> None:
    for page in (ROOT / "docs" / "api").glob("*.md"):
        for link, anchor in re.findall(
            r"\]\(([\w-]+\.md)#([^)]*)\)", page.read_text(encoding="utf-8")
        ):
            headings = re.findall(
                r"^#+ `?([^`\n]*)", (page.parent / link).read_text(encoding="utf-8"), re.M
            )
            assert [re.sub(r"[^\w-]", "", text).lower() for text in headings].count(anchor) == 1, (
                f"{page.name}: {anchor}"
            )


def test_every_page_is_in_the_navigation_of_the_site() -> None:
    named = re.findall(
        r": (\w[\w/-]*\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.M
    )
    assert sorted(named) == sorted(
        str(page.relative_to(ROOT / "docs")) for page in PAGES if page != README
    )


def _options() -> Iterator[tuple[str, str, str]]:
    """Each option of each command: its name, its value as the pages show it (empty: none), and the
    command.
    """
    for words in (words for part in installed_parts() for words in part.command_names()):
        for param in command_of(words).params:
            value = (
                ""
                if getattr(param, "is_flag", True)
                else "|".join(choices_of(param)) or str(param.metavar)
            )
            for name in (
                (*param.opts, *param.secondary_opts) if param.param_type_name == "option" else ()
            ):
                yield name, value, words


def test_an_option_means_one_thing_everywhere(cli_page: Any) -> None:
    """It has the same value in all commands, and a page says what it means if several have it."""
    values: dict[str, dict[str, list[str]]] = {}
    for name, value, words in _options():
        values.setdefault(name, {}).setdefault(value, []).append(words)
    assert {name: kinds for name, kinds in values.items() if len(kinds) > 1} == {}
    table = {name: value for name, (value, _) in cli_page.OPTIONS.items()}
    assert table == {name: next(iter(values[name])) for name in table}
    alone = {name for name, kinds in values.items() if sum(map(len, kinds.values())) == 1}
    of_every_command = {name for param in global_parameters() for name in param.opts}
    shared = {
        name for name in values.keys() - alone - of_every_command if re.match("--(?!no-)", name)
    }
    assert shared <= table.keys()


def test_every_command_is_on_one_page(cli_page: Any) -> None:
    pages = "".join(page for _, page in cli_page.pages())
    commands = [
        words for part in installed_parts() for words in [*part.command_names(), *part.groups]
    ]
    assert sorted(re.findall(r"^##+ capsule (.+)$", pages, re.M)) == sorted(commands)


def test_troubleshooting_has_a_part_for_every_error() -> None:
    text = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    described = re.findall(r"^## Exit code (\d+): `(\w+)`", text, re.M)
    raised = errors.CapsuleError.__subclasses__()
    assert described == sorted((str(kind.exit_code), kind.__name__) for kind in raised)


def test_all_that_a_store_offers_is_in_the_reference_of_the_library() -> None:
    parts = dict(re.findall(r"^#+ `(?i:store)\.([^`]*)`\n(.*?)(?=^#|\Z)", API, re.M | re.S))
    fields = re.findall(
        r"^- `(\w+): ", re.findall(r"^## `Store`\n(.*?)^#", API, re.M | re.S)[0], re.M
    )
    missing = []
    with Store.in_memory() as store:
        for name in public_names(store):
            part = getattr(store, name)
            if not inspect.ismethod(part) and name in fields:
                within = public_names(part) if name in parts else ()
                missing += [
                    f"{name}.{each}"
                    for each in within
                    if f"{name}.{each}" not in parts and f"- `{each}: " not in parts[name]
                ]
            elif name not in parts:
                missing.append(name)
    assert len(parts) > 150 and not missing


def public_names(thing: object) -> list[str]:
    """The public names of a store, or of an object that it offers."""
    return [
        name for name in dir(thing) if name[0] != "_" and name not in ("inner", "engine", "queries")
    ]


def test_every_public_type_is_in_the_reference_of_the_library() -> None:
    assert set(capsule.__all__) <= set(re.findall(r"^## `(\w+)`$", API, re.M))


def test_every_type_in_a_signature_is_in_the_reference_of_the_library() -> None:
    signatures = [
        *re.findall(r"^```python\n(.*?)^```$", API, re.M | re.S),
        *re.findall(r"^- `([^`]*)`", API, re.M),
    ]
    named = {
        name
        for text in signatures
        for name in re.findall(r"\b[A-Z]\w*[a-z]\w*", re.sub(r'"[^"]*"', "", text))
    }
    others = {
        *vars(builtins),
        *typing.__all__,
        *collections.abc.__all__,
        *contextlib.__all__,
        "Connection",
        "Path",
        "PathLike",
        "Popen",
    }
    described = {*re.findall(r"^## `(\w+)`$", API, re.M), *re.findall(r"\[`(\w+)`\]\(", API)}
    assert named - others <= described


def test_the_reference_of_the_library_shows_nothing_private() -> None:
    assert not re.findall(r"(?<![\w/])_[a-z]\w*|<[\w.]+ object|0x[0-9a-f]+", API)


def test_every_method_of_a_store_documents_its_arguments_errors_and_cost() -> None:
    with Store.in_memory() as store:
        members = [
            (name, member) for owner in Store.__mro__ for name, member in vars(owner).items()
        ]
        parts = [
            type(getattr(store, name))
            for name, member in members
            if isinstance(member, StoreAttribute)
        ] + [Locks]
    owners = [
        owner for owner in (*Store.__mro__, *parts) if owner.__module__.startswith("capsule.")
    ]
    public = [(owner, name) for owner in owners for name in vars(owner) if not name.startswith("_")]
    missing = []
    for owner, name in public:
        function = getattr(vars(owner)[name], "__func__", vars(owner)[name])
        text = inspect.getdoc(getattr(owner, name)) or ""
        if inspect.isfunction(function):
            wanted = [*inspect.signature(function).parameters, "(?i:raises)", "(?i:costs?)"]
            missing += [
                f"{owner.__name__}.{name}: {word}"
                for word in wanted
                if word not in ("self", "cls") and not re.search(rf"\b{word}\b", text)
            ]
    assert not missing


@pytest.mark.slow
def test_examples_have_the_right_types_in_a_project_that_installed_this_package(
    tmp_path: Path,
) -> None:
    settings = (
        "[mypy]\nstrict = true\nexplicit_package_bases = true\n"
        "[mypy-agents,claude_agent_sdk]\nignore_missing_imports = true\n"
    )
    (tmp_path / "mypy.ini").write_text(settings, encoding="utf-8")
    examples = [
        block for page in TYPED for kind, block in blocks_of(page) if kind in ("py", "python")
    ]
    for number, block in enumerate(examples):
        named = re.match(r"# (\w+/\w+\.py)\n", block)
        path = tmp_path / (named[1] if named else f"example_{number}.py")
        path.parent.mkdir(exist_ok=True)
        path.write_text(block, encoding="utf-8")
    outside = {
        name: value for name, value in os.environ.items() if name not in ("MYPYPATH", "PYTHONPATH")
    }
    command = [sys.executable, "-m", "mypy", "."]
    done = subprocess.run(command, cwd=tmp_path, env=outside, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"no issues found in {len(examples)} source files" in done.stdout


def test_recordings_load_no_other_resource() -> None:
    recorded = (ROOT / "docs" / "tour.svg").read_text(encoding="utf-8")
    assert "@import" not in recorded
    assert set(re.findall(r"https?://[^\"' )<]+", recorded)) <= {"http://www.w3.org/2000/svg"}
