"""The program as a whole: its options, its errors, its start, its completion, its documentation."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import platform
import re
import shlex
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, get_args

import pytest
import typer
from typer.testing import CliRunner

import capsule as package
from capsule import Store, errors, settings
from capsule.format import fields
from capsule_cli.app import app, help_by_topic, installed_parts, program
from capsule_cli.command_names import expand
from capsule_cli.shared import options
from tests.core.cli.conftest import completed
from tests.processes import ROOT, Child

COMMANDS = {name: part.command(name) for part in installed_parts() for name in part.command_names()}
GROUPS = [group for part in installed_parts() for group in part.groups]
TOP = sorted({name for part in installed_parts() for name in part.names_in()})


def command_of(words: str) -> Any:
    """The command or the group of these words, as typer has it."""
    command: Any = program()
    for word in words.split():
        command = command.get_command(typer.Context(command, info_name="capsule"), word)
    return command


def test_the_commands_are_those_that_the_modules_declare() -> None:
    for part in installed_parts():
        for names, load_functions in part.commands.items():
            assert list(load_functions()) == names.split(", ")
    for module in {function.__module__ for function in COMMANDS.values()}:
        # What takes options, and no table names, is a command that nobody can give.
        taking = {
            function
            for function in vars(importlib.import_module(module)).values()
            if inspect.isfunction(function) and _takes_options(function)
        }
        assert taking <= set(COMMANDS.values()), module


def _takes_options(function: Any) -> bool:
    try:
        parameters = inspect.signature(function, eval_str=True).parameters.values()
    except (NameError, TypeError, ValueError):  # Typer could not read its types either.
        return False
    said = [part for each in parameters for part in (each.default, *get_args(each.annotation))]
    return any(isinstance(part, options.ParameterSpec) for part in said)


def test_every_command_takes_json_store_agent_and_instance_and_says_so(capsule: Any) -> None:
    for name in [*COMMANDS, *GROUPS]:
        told = capsule(*name.split(), "--help").stdout
        assert all(
            option in told
            for option in ("--json", "--store DIR", "--as AGENT", "--instance NAME", "-h, --help")
        )


def test_options_stand_anywhere_in_the_words(capsule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    id = capsule.new("Here")
    monkeypatch.delenv("CAPSULE_STORE")
    root = str(capsule.root)
    for words in (("--store", root, "--json", "list"), ("list", "--json", "--store", root)):
        assert [head["id"] for head in json.loads(capsule(*words).stdout)] == [id]
    for words in (
        ("--instance", "me", "lock", "take", id, "--store", root),
        ("--store", root, "lock", "--instance", "me", "take", id),
    ):
        capsule(*words)
    capsule("--store", root, "append", id, "no", expect=4)
    capsule("--store", root, "--json", "mcp", "tokens", "add", "anna")
    for words in (
        ("mcp", "tokens", "--store", root, "list", "--json"),
        ("mcp", "--json", "tokens", "list", "--store", root),
    ):
        assert [one["name"] for one in json.loads(capsule(*words).stdout)] == ["anna"]


def test_the_help_fits_one_screen_and_says_of_every_command_what_it_does(capsule: Any) -> None:
    told = capsule("--help").stdout
    assert len(told.splitlines()) <= 40 and max(map(len, told.splitlines())) <= 80
    named = [
        name
        for lines in help_by_topic().values()
        for names, _ in lines
        for name in re.findall(r"(?<!\()\b\w+", names)
    ]
    assert sorted([*named, "help"]) == TOP and len(TOP) <= 37
    for lines in help_by_topic().values():
        assert all(re.fullmatch(r"[A-Z][a-z]+\b.*\w\.", says) for _, says in lines)
    for group in GROUPS:
        told = capsule(*group.split(), "--help").stdout
        assert all(
            re.search(rf"^  {name} ", told, re.M)
            for part in installed_parts()
            for name in part.names_in(group)
        )
    assert capsule("help").stdout == capsule("-h").stdout == capsule("--help").stdout
    assert capsule("help", "mcp", "install").stdout == capsule("mcp", "install", "--help").stdout
    assert "lisst" in capsule("help", "lisst", expect=2).stderr
    assert "there is no command" in capsule("help", "list", "x", expect=2).stderr


def test_a_command_is_one_word_or_a_noun_and_a_verb() -> None:
    for name in COMMANDS:
        group = name.rpartition(" ")[0]
        assert not group or group in GROUPS, name
        assert name not in GROUPS, name


def _said(repository: Path) -> Iterator[tuple[str, str]]:
    """All that the program says, and what its pages do: where, and the text."""
    for path in [*repository.glob("capsule/**/*.py"), *repository.glob("cli/**/*.py")]:
        nodes = list(ast.walk(ast.parse(path.read_text("utf-8"))))
        parts = {
            id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values
        }
        for node in nodes:
            place = f"{path}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.JoinedStr):
                yield (
                    place,
                    "".join(
                        str(part.value) if isinstance(part, ast.Constant) else "X"
                        for part in node.values
                    ),
                )
            elif (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in parts
            ):
                yield place, node.value
    for path in [
        *repository.glob("docs/**/*.md"),
        repository / "README.md",
        repository / "CHANGELOG.md",
    ]:
        yield str(path), path.read_text("utf-8")


@pytest.mark.slow
def test_whatever_names_a_command_names_one_that_exists_with_its_options(repository: Path) -> None:
    wrong = []
    for place, text in _said(repository):
        # The longest run of words, up to what ends a command in a sentence.
        for words in re.findall(
            r"(?:run: |it: |with: |`|\$ |: )capsule ([a-z]+(?: (?!capsule )[^\s`,;:()#|>]+)*)", text
        ):
            given = re.sub(
                r"""'[^']*('|$)|"[^"]*("|$)""", "X", words
            ).split()  # An argument may hold anything.
            given = [
                word.rstrip(".") for word in given[: given.index("--") if "--" in given else None]
            ]
            is_group = " ".join(given) in GROUPS
            names = given if is_group else expand(given)
            command: Any = program()
            for name in names:
                if not (below := getattr(command, "commands", {}).get(name)):
                    break
                command = below
            known = {"--help", "-h"} | {
                name for param in command.params for name in (*param.opts, *param.secondary_opts)
            }
            options = {
                word.strip(".'\"").partition("=")[0] for word in names if word.startswith("-")
            }
            if not options <= known or (hasattr(command, "commands") and not is_group):
                wrong.append((place, words))
    assert not wrong, "\n".join(map(str, wrong))


def test_no_command_at_all_says_what_to_do_first(capsule: Any) -> None:
    answer = capsule(expect=2)
    assert answer.stdout == ""
    for words in ("capsule new", "capsule append @last", "capsule init", "capsule help"):
        assert words in answer.stderr


def test_the_version_is_that_of_the_package(capsule: Any) -> None:
    assert capsule("-V").stdout == capsule("--version").stdout == f"capsule {package.__version__}\n"


def test_the_version_as_json_names_what_a_bug_can_depend_on(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = json.loads(capsule("--version", "--json").stdout)
    assert names["version"] == package.__version__
    assert names["python"].endswith(platform.python_version())
    assert (names["platform"]["os"], names["platform"]["machine"]) == (
        platform.system(),
        platform.machine(),
    )
    for library in ("mcp", "orjson", "portalocker", "pydantic", "typer", "watchfiles"):
        assert names["libraries"][library] == metadata.version(library)
    assert names["sqlite"] == sqlite3.sqlite_version and names["git"][0].isdigit()
    monkeypatch.setenv("PATH", "/nowhere")
    assert json.loads(capsule("--json", "--version").stdout)["git"] is None


def test_the_version_as_json_imports_no_library_that_it_names(capsule: Any) -> None:
    loaded = modules_of(capsule, ["--version", "--json"])
    assert not loaded & {"mcp", "portalocker", "pydantic", "pydantic_core", "watchfiles"}


def test_an_error_is_words_on_stderr_or_with_json_an_object(capsule: Any) -> None:
    for words, code, kind in [
        (("show", "nobody-here"), 3, "NotFound"),
        (("list", "--bogus"), 2, "Usage"),
        (("lisst",), 2, "Usage"),
        (("show",), 2, "Usage"),
        (("new", "--mode", "loud"), 2, "Usage"),
        (("list", "--limit", "0"), 2, "Usage"),
        (("list", "--limit", "few"), 2, "Usage"),
        (("show", ""), 2, "InvalidInput"),
    ]:
        plain = capsule(*words, expect=code)
        assert plain.stdout == "" and ("capsule: " in plain.stderr or "Error: " in plain.stderr)
        for mixed in (("--json", *words), (*words, "--json")):
            answer = capsule(*mixed, expect=code)
            error = json.loads(answer.stderr)["error"]
            assert (
                answer.stdout == ""
                and (error["code"], error["kind"]) == (code, kind)
                and error["message"]
            )


def test_with_json_all_that_goes_to_stderr_is_json(capsule: Any) -> None:
    for words in (
        ("--bogus", "list"),
        ("--store",),
        ("mcp", "install", "--bogus"),
        ("mcp", "tokens"),
    ):
        told = capsule("--json", *words, expect=2)
        assert json.loads(told.stderr)["error"]["kind"] == "Usage" and not told.stdout
    (capsule.root / "capsule.toml").write_text("colour = 1\n")
    assert "colour" in json.loads(capsule("list", "--json").stderr)["warning"]


def test_a_file_in_a_stores_place_is_named_and_no_way_out_is_offered_that_fails(
    capsule: Any, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("x")
    assert "is a file" in capsule("init", str(tmp_path / "file"), expect=6).stderr
    assert "capsule init" not in capsule("--store", str(tmp_path / "file"), "list", expect=3).stderr


def test_the_store_must_be_one(capsule: Any, tmp_path: Path) -> None:
    answer = capsule("list", "--store", str(tmp_path / "nowhere"), expect=3)
    assert "capsule init" in answer.stderr


def test_on_a_fresh_machine_a_store_of_ones_own_is_made_and_in_a_project_the_projects_is_found(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    id = capsule.new("In the project")
    monkeypatch.delenv("CAPSULE_STORE")
    assert capsule.json("list") == []
    inside = capsule.root / "deep" / "down"
    inside.mkdir(parents=True)
    monkeypatch.chdir(inside)
    assert [head["id"] for head in capsule.json("list")] == [id]


def test_every_error_has_an_exit_code_of_its_own_and_stands_in_the_documented_table(
    repository: Path,
) -> None:
    kinds = [
        kind
        for kind in vars(errors).values()
        if inspect.isclass(kind)
        and issubclass(kind, errors.CapsuleError)
        and kind is not errors.CapsuleError
    ]
    codes = [kind.exit_code for kind in kinds]
    assert sorted(codes) == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    page = (repository / "docs" / "cli.md").read_text(encoding="utf-8")
    for kind in kinds:
        assert f"| {kind.exit_code} | {kind.meaning} | {kind.__name__} |" in page


def test_the_choices_are_those_of_the_format() -> None:
    assert get_args(options.Role) == fields.ROLES
    assert get_args(options.Mode) == fields.MODES
    assert get_args(options.Type) == fields.TYPES


def test_a_bug_stays_a_traceback(capsule: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("capsule.store.store.CoreStore.list", lambda self, *args, **options: 1 / 0)
    result = CliRunner().invoke(app, ["list"])
    assert isinstance(result.exception, ZeroDivisionError)


def test_an_argument_that_is_no_utf8_is_refused_by_its_place(capsule: Any) -> None:
    answer = capsule.process("new", b"caf\xe9", expect=2)
    assert "argument 2 is not valid UTF-8" in answer.stderr
    answer = capsule.process("--json", "new", b"caf\xe9", expect=2)
    assert json.loads(answer.stderr)["error"]["code"] == 2
    assert capsule.json("list") == []


def test_a_reader_that_leaves_ends_the_program_quietly(capsule: Any) -> None:
    capsule.new("A", "--message", "x" * 1_000_000)
    process = capsule.start("show", "@last")
    process.stdout.close()
    assert process.stderr.read() == b""
    assert process.wait(60) == 141


def test_ctrl_c_ends_the_program_with_130(capsule: Any) -> None:
    process = capsule.stream(capsule.new("A", "--type", "group"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 130
    assert b"Traceback" not in process.stderr.read()


def test_output_to_a_full_disk_is_no_success(capsule: Any) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    capsule.new("A")
    with open("/dev/full", "wb") as full:
        process = capsule.start("list", stdout=full)
        assert process.wait(60) == 1
    assert process.stderr.read().startswith(b"capsule: ")


#: Modules for what a list and an append of a sound conversation don't do.
OF_SOME_WRITES = {
    "capsule.format.merge.annotations",
    "capsule.format.tree.branches",
}
OF_SOME_WRITES |= {"capsule.store.change.head_changes", "capsule.store.creation"}
#: Modules for messages that the index does not know yet, and for questions about them.
OF_NEW_MESSAGES = {
    "capsule.engines.index.tables.filters",
    "capsule.engines.questions.parsing",
    "capsule.engines.index.tables.writer",
}
OF_NEW_MESSAGES |= {"capsule.format.facts", "capsule.format.filters"}


PLAIN = (
    ["--json", "list"],
    ["show", "@last"],
    ["append", "@last", "hello"],
    ["append", "@last", "--jsonl"],
)


@pytest.mark.parametrize("words", [["--version"], *PLAIN])
def test_starting_imports_nothing_heavy(capsule: Any, words: list[str]) -> None:
    capsule.new("A")
    ensure_light(capsule, words)


def modules_of(capsule: Any, words: list[str]) -> set[str]:
    """The modules that a run of the program has loaded at its end."""
    script = (
        "import sys; from capsule_cli.__main__ import main\n"
        f"sys.argv = ['capsule', *{words!r}]\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(*sorted(sys.modules), file=sys.stderr)"
    )
    command, environment = [sys.executable, "-c", script], capsule.environment()
    done = subprocess.run(
        command, input=b'{"content": "hello"}', capture_output=True, env=environment, check=True
    )
    return set(done.stderr.decode().split())


def ensure_light(capsule: Any, words: list[str]) -> set[str]:
    """Check what a command loads; the modules."""
    (capsule.root / "capsule.toml").write_text(
        settings.TEMPLATE, encoding="utf-8"
    )  # As `init` makes it.
    time.sleep(0.06)  # A file that is younger than 50 ms is read again by the next command.
    capsule("list")  # The index is built once, under a lock.
    loaded = modules_of(capsule, words)
    known = {*sys.stdlib_module_names, "capsule", "capsule_cli", "__main__"}
    foreign = {name.partition(".")[0] for name in loaded} - known
    allowed = {"orjson", "platformdirs", "portalocker", "sitecustomize"}
    if words == ["--version"]:
        allowed |= {"typer", "shellingham", "annotated_doc"}
    assert {name for name in foreign if not name.startswith("_")} <= allowed
    assert not loaded & {"portalocker", "asyncio", "capsule.maintenance.doctor"}
    assert not loaded & {"capsule.format.models", "capsule.format.schema"}
    if "list" in words or "append" in words:
        unused = {"hashlib", "socket", "tomllib", *OF_SOME_WRITES}
        unused |= {"capsule.messaging", *OF_NEW_MESSAGES} if "list" in words else set()
        assert not unused & {".".join(name.split(".")[:n]) for name in loaded for n in range(1, 6)}
    if words == ["--version"]:
        assert not loaded & {"orjson", "sqlite3"}
        own = {name for name in loaded if name.startswith("capsule.")}
        assert own <= {
            "capsule.errors",
            "capsule.timestamps",
            "capsule.format",
            "capsule.format.text",
            "capsule.format.text.escaping",
            "capsule.rooms",
        }
    return loaded


def test_the_shell_completes_ids_and_commands_and_choices(capsule: Any) -> None:
    for id in ("alpha-1", "alpha-2", "beta-1", "untitled-1"):
        capsule("new", "--id", id)
    capsule("delete", "beta-1")
    capsule("set", "alpha-1", "--add-tag", "design", "--add-tag", "deep")
    (capsule.root / "conversations" / "untold-1.json").write_text("{")
    for line, words in (
        ("show al", ["alpha-1", "alpha-2"]),
        (f"--store '{capsule.root}' delete alpha-1 alpha-2", ["alpha-2"]),
        ("show @l", ["@last"]),
        ("restore b", ["beta-1"]),
        ("tai", []),
        ("loc", ["lock"]),
        ("lock re", ["release"]),
        ("mcp tokens re", ["revoke"]),
        ("list --tag de", ["deep", "design"]),
        ("append alpha-1 --role as", ["assistant"]),
    ):
        assert sorted(completed(f"capsule {line}", len(shlex.split(line)))) == words
    assert "--json" in completed("capsule list --j", 2)
    assert "damaged" not in completed("capsule show unti", 2, "zsh")
    assert "damaged" in " ".join(completed("capsule show unto", 2, "zsh"))


def test_completion_in_no_store_offers_nothing_and_says_nothing(
    capsule: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CAPSULE_STORE", "/nowhere")
    assert completed("capsule show al", 2) == []


def test_a_signal_whose_exception_python_drops_is_raised_once_more(
    child: Callable[..., Child],
) -> None:
    process = child(
        """
        import signal, threading
        sys.path[:0] = [sys.argv[1]]
        from capsule_cli.exits import SignalGuard

        class Dropped:
            def __del__(self):
                os.kill(os.getpid(), signal.SIGTERM)  # The exception of its handler is dropped, as this is a callback.

        with SignalGuard():
            Dropped()
            say("still here")
            threading.Event().wait(60)
        """,
        ROOT / "cli",
    )
    assert process.hear() == "still here"
    assert process.end() == 143


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_a_program_without_standard_streams_does_its_work(capsule: Any, closed: str) -> None:
    """The first file that is opened must not become standard output, either."""
    id = capsule.new("Plan")
    for words in (f"append {id} hello", "list"):
        command = f"{shlex.quote(sys.executable)} -m capsule_cli {words} {closed}"
        done = subprocess.run(
            ["sh", "-c", command], capture_output=True, text=True, env=capsule.environment()
        )
        assert (done.returncode, done.stderr) == (0, "")
    assert [message["content"] for message in capsule.json("show", id)["history"]] == ["hello"]


def test_a_working_directory_that_was_deleted_is_an_error_in_words(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPSULE_STORE")
    for words in [
        ["list"],
        ["--store", "x", "list"],
        ["init", "x"],
    ]:
        (tmp_path / "gone").mkdir()
        monkeypatch.chdir(tmp_path / "gone")
        (tmp_path / "gone").rmdir()
        assert "working directory" in capsule(*words, expect=3).stderr
        monkeypatch.chdir(tmp_path)


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_store_of_another_user_is_used_only_when_it_is_named(
    capsule: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CAPSULE_STORE")
    below = tmp_path / "shared" / "project"
    below.mkdir(parents=True)
    Store.init(tmp_path / "shared")
    monkeypatch.chdir(below)
    assert capsule("list").stdout == ""
    for path in (tmp_path / "shared" / "capsule.toml", tmp_path / "shared"):
        os.chown(path, 12345, 12345)
        assert f"--store {tmp_path / 'shared'}" in capsule("list", expect=6).stderr
        assert capsule("--store", str(tmp_path / "shared"), "list").stdout == ""
        monkeypatch.setenv("SUDO_UID", "12345")
        capsule("list")
        monkeypatch.delenv("SUDO_UID")
        os.chown(path, 0, 0)
