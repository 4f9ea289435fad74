"""The source keeps the rules of docs/architecture.md, and of docs/design.md, "Rules across the
code".
"""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import capsule
from capsule.rooms import BUILT_IN

ROOT = Path(__file__).resolve().parents[1]

#: The layers from the bottom to the top, by prefixes of module names; the longest match decides. A
#: module imports from its own layer and those below, at load time, later and for types. Each room
#: is one layer.
LAYERS = (
    (
        "capsule",
        "capsule.errors",
        "capsule.process_forks",
        "capsule.ids",
        "capsule.timestamps",
        "capsule.settings",
        "capsule.git_program",
        "capsule.rooms",
    ),
    ("capsule.format",),
    ("capsule.disk",),
    ("capsule.rules",),
    (
        "capsule.engines.files.disk",
        "capsule.engines.files.state",
        "capsule.engines.entries",
        "capsule.engines.interface",
        "capsule.engines.local_documents",
        "capsule.engines.queries",
        "capsule.engines.changes",
        "capsule.engines.read_marks",
    ),
    ("capsule.engines.questions",),
    ("capsule.engines",),
    ("capsule.locate",),
    ("capsule.watch",),
    ("capsule.store.change",),
    ("capsule.locks",),
    ("capsule.store",),
    ("capsule.maintenance",),
    ("capsule.mcp_server",),
    ("capsule_cli",),
    ("capsule.context",),
    ("capsule.git",),
    ("capsule.messaging",),
    ("capsule.transfer",),
    ("capsule.sessions",),
    ("capsule.public", "capsule_cli.public"),
    ("capsule.messaging.tools",),
    ("capsule.transfer.resources",),
    ("capsule.sessions.mcp_tools",),
    ("capsule.web",),
    *((f"capsule_cli.commands.{room}",) for room in BUILT_IN),
    ("capsule_cli.commands.demo", "capsule_cli.drivers"),
    # They name the commands, and what rooms add. Each function there imports what it names.
    ("capsule_cli.core_commands", *(f"capsule.{room}.room" for room in BUILT_IN)),
    ("capsule_cli.app", "capsule_cli.fast_path", "capsule_cli.__main__"),
)
#: The doors, with what rooms add to them.
DOORS = (
    "capsule.mcp_server",
    "capsule_cli",
    "capsule.messaging.tools",
    "capsule.transfer.resources",
)
DOORS += ("capsule.sessions.mcp_tools", "capsule.web")
DOORS += tuple(f"capsule.{room}.room" for room in BUILT_IN)
#: The rooms, with what they add to the doors; the demo shows them all.
ROOMS = (
    *(f"{place}.{room}" for room in BUILT_IN for place in ("capsule", "capsule_cli.commands")),
    "capsule_cli.drivers",
)
ROOMS += ("capsule_cli.commands.demo", "capsule_cli.public")
#: The circles of imports that stay, each inside one package, and why.
CIRCLES = {
    "a document is opened by its storage, knows it, and takes in what others wrote": (
        "capsule.engines.files.document",
        "capsule.engines.files.logged_document",
        "capsule.engines.files.external_edits",
        "capsule.engines.files.storage",
    ),
    "the engine of PostgreSQL opens its transactions, which ask it": (
        "capsule.engines.postgres.engine",
        "capsule.engines.postgres.transaction",
    ),
    "the engine of memory fills its index and opens its transactions": (
        "capsule.engines.memory.engine",
        "capsule.engines.memory.index",
        "capsule.engines.memory.engine",
    ),
}
#: Runs git, and imports errors only; every module that uses git imports this one.
RUNS_GIT = "capsule.git_program"
#: The rooms above the engines: they reach documents through an engine, and never use files or
#: processes themselves.
ABOVE_ENGINES = (
    "capsule.store",
    "capsule.locks",
    "capsule.messaging",
    "capsule.watch",
    "capsule.maintenance",
)
#: These reach other programs and the folders of projects, and no document.
BEYOND_THE_STORE = (
    "capsule.messaging.doorbells",
    "capsule.messaging.agent_files",
    "capsule.messaging.notices",
)
#: Modules that they never import, not even in functions.
OF_THE_MACHINE = {"io", "mmap", "pathlib", "shutil", "sqlite3", "stat", "subprocess", "tempfile"}
#: A reader of a longer module begins to scroll.
MAX_LINES = 1000

#: The names of `os` that the rooms above the engines use; none of them touches a file.
HARMLESS = {
    "os.getpid",
    "os.getuid",
    "os.uname",
    "os.urandom",
    "os.register_at_fork",
    "os.fspath",
    "os.PathLike",
}
HARMLESS |= {"os.path", "os.path.abspath", "os.path.join", "os.path.basename", "os.path.dirname"}
READS_OR_WRITES = {"read_text", "read_bytes", "write_text", "write_bytes", "unlink", "touch"}
#: A method of the store with such a name.
OF_THE_STORE = "projects.unlink"
#: Finds the store's directory before there is an engine.
FINDS_THE_STORE = "capsule.locate"
#: Programs that git runs or has in its configuration, the notice for an agent, and the notice of a
#: message that failed: their readers have a shell, or know a person who has one.
READ_IN_A_SHELL = (
    "capsule.git.attributes",
    "capsule.git.clone_setup",
    "capsule.git.drivers",
    "capsule.messaging.notices",
    "capsule.sessions.rules.messages",
)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts[1:] if parts[0] == "cli" else parts
    return ".".join(parts).removesuffix(".__init__")


MODULES = {
    module_name(path): path
    for folder in ("capsule", "cli/capsule_cli")
    for path in sorted((ROOT / folder).rglob("*.py"))
}
#: The module of each public name.
PUBLIC: dict[str, str] = vars(capsule)["_HOMES"]


def is_in(module: str, package: str) -> bool:
    return module == package or module.startswith(f"{package}.")


def layer(module: str) -> int:
    fits = [
        (len(name), number)
        for number, names in enumerate(LAYERS)
        for name in names
        if is_in(module, name)
    ]
    return max(fits)[1]


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def nodes(module: str, *, running: bool = False, loading: bool = False) -> Sequence[ast.AST]:
    """The nodes of a module: all, without `if TYPE_CHECKING` (running), or what runs on import only
    (loading).
    """
    nodes, left = [], list(ast.iter_child_nodes(tree(module)))
    while left:
        node = left.pop()
        typing_only = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        if (running or loading) and typing_only:
            continue
        if loading and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        nodes.append(node)
        left += ast.iter_child_nodes(node)
    return nodes


@cache
def imports(module: str, *, loading: bool = False) -> set[str]:
    """The modules of this project that `module` imports: when it is loaded, or whenever and for
    types too.
    """
    found = set()
    for node in nodes(module, loading=loading):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name in MODULES}
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module in MODULES:
            below = {f"{node.module}.{alias.name}" for alias in node.names} & set(MODULES)
            found |= below if len(below) == len(node.names) else below | {node.module}
            if node.module == "capsule":  # It loads a public name from where it is.
                found |= {PUBLIC[alias.name] for alias in node.names if alias.name in PUBLIC}
    return found


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


def test_imports_point_downwards_only() -> None:
    # The package itself loads the names of upper layers on demand, and imports none of them.
    assert not imports("capsule", loading=True)
    for module in MODULES.keys() - {"capsule"}:
        upwards = {other for other in imports(module) - {"capsule"} if layer(other) > layer(module)}
        assert not upwards, f"{module} imports {upwards}"


def test_the_core_imports_no_room() -> None:
    for module in (name for name in MODULES if not any(is_in(name, room) for room in ROOMS)):
        rooms = {other for other in imports(module) if any(is_in(other, room) for room in ROOMS)}
        # The demo is a command of the core that shows all rooms.
        rooms -= (
            {"capsule_cli.commands.demo.demo"} if module == "capsule_cli.core_commands" else set()
        )
        # These have typed names for what rooms have, and load it on demand.
        assert not rooms or module in ("capsule", "capsule.public"), f"{module} imports {rooms}"


def test_the_rooms_import_the_doors_only_in_what_they_add_to_them() -> None:
    for module in (name for name in MODULES if not any(is_in(name, door) for door in DOORS)):
        doors = {other for other in imports(module) if any(is_in(other, door) for door in DOORS)}
        assert not doors, f"{module} imports {doors}"


def test_nothing_above_the_engines_imports_from_a_kind_of_engine() -> None:
    of_a_kind = re.compile(r"capsule\.engines\.(files|index|memory|postgres|questions)\b")
    for module in (module for module in MODULES if not is_in(module, "capsule.engines")):
        assert not [other for other in imports(module) if of_a_kind.match(other)], module


def test_no_imports_form_a_circle_but_those_with_a_reason() -> None:
    TopologicalSorter(
        {module: imports(module, loading=True) - {"capsule"} for module in MODULES}
    ).prepare()
    reasons = {module: reason for reason, modules in CIRCLES.items() for module in modules}
    picture: dict[str, set[str]] = {}
    for module in MODULES:
        node = reasons.get(module, module)
        there = {reasons.get(other, other) for other in imports(module) - {"capsule", module}}
        picture[node] = picture.get(node, set()) | there - {node}
    TopologicalSorter(picture).prepare()


def test_only_a_store_uses_its_private_names() -> None:
    stores = {"store", "acting", "owner", "copy", "main", "inner"}
    for module, node in ((name, node) for name in MODULES for node in nodes(name)):
        if (
            isinstance(node, ast.Attribute)
            and node.attr.startswith("_")
            and not node.attr.startswith("__")
        ):
            owner = dotted(node.value).rpartition(".")[2].lstrip("_")
            assert owner not in stores, (
                f"{module}:{node.lineno}: use {owner}.inner, not {node.attr}"
            )


def test_imports_are_absolute() -> None:
    for module in MODULES:
        relative = [
            node.lineno for node in nodes(module) if isinstance(node, ast.ImportFrom) and node.level
        ]
        assert not relative


def test_the_rooms_above_the_engines_use_no_files_and_no_processes() -> None:
    above = [name for name in MODULES if any(is_in(name, room) for room in ABOVE_ENGINES)]
    above = [name for name in above if not any(is_in(name, room) for room in BEYOND_THE_STORE)]
    assert above
    for module, node in ((name, node) for name in above for node in nodes(name, running=True)):
        place = f"{module}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Attribute) and dotted(node).startswith("os."):
            assert dotted(node) in HARMLESS, place
        if isinstance(node, ast.Attribute):
            assert node.attr not in READS_OR_WRITES or dotted(node) == OF_THE_STORE, place
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id != "open", place
        if isinstance(node, ast.ImportFrom):
            assert node.module not in OF_THE_MACHINE | {"os"}, place
        if isinstance(node, ast.Import):
            assert not {alias.name for alias in node.names} & OF_THE_MACHINE, place


def test_one_module_takes_kernel_locks_and_portalocker_takes_them() -> None:
    found = [(module, node) for module in MODULES for node in nodes(module)]
    named = {
        (module, alias.name)
        for module, node in found
        if isinstance(node, ast.Import)
        for alias in node.names
    }
    named |= {
        (module, str(node.module)) for module, node in found if isinstance(node, ast.ImportFrom)
    }
    takers = {
        module for module, name in named if name.partition(".")[0] in ("msvcrt", "portalocker")
    }
    assert takers == {"capsule.disk.kernel_locks"}
    # F_FULLFSYNC of macOS, which is no lock.
    assert {module for module, name in named if name == "fcntl"} == {"capsule.disk.syscalls"}


def test_only_the_doors_use_standard_streams_and_the_environment() -> None:
    below = [name for name in MODULES if not any(is_in(name, door) for door in DOORS)]
    for module, node in ((name, node) for name in below for node in nodes(name)):
        place = f"{module}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            assert node.func.id not in {"print", "input"}, place
        if isinstance(node, ast.Attribute):
            assert dotted(node) not in {"sys.stdout", "sys.stderr", "sys.stdin"}, place
            if module not in (FINDS_THE_STORE, RUNS_GIT):
                assert dotted(node) not in {"os.environ", "os.getenv", "os.environb"}, place


def test_no_text_below_the_doors_names_a_command() -> None:
    """A remedy is data (`capsule.errors.Remedy`): a model has tools, and a Python program has
    methods, not commands.
    """
    import typer.main

    from capsule_cli.app import app

    commands = "|".join(vars(typer.main.get_command(app))["commands"])
    for module in MODULES:
        if any(is_in(module, room) for room in (*READ_IN_A_SHELL, *DOORS)):
            continue
        docs = {id(node.value) for node in nodes(module) if isinstance(node, ast.Expr)}
        for node in nodes(module):
            if (
                isinstance(node, ast.Constant)
                and isinstance(node.value, str)
                and id(node) not in docs
            ):
                found = re.search(rf"capsule ({commands})\b", node.value)
                assert not found, f"{module}:{node.lineno}: {node.value!r}"


def test_every_door_has_a_text_for_every_remedy() -> None:
    from typing import get_args

    from capsule.errors import Action
    from capsule.mcp_server.errors import REMEDIES as calls
    from capsule.web.remedies import REMEDIES as links
    from capsule_cli.exits import REMEDIES as commands

    assert set(calls) == set(commands) == set(links) == set(get_args(Action))


def test_every_module_is_short_and_has_a_docstring() -> None:
    for module in MODULES:
        lines = MODULES[module].read_text(encoding="utf-8").count("\n")
        assert lines <= MAX_LINES, (
            f"{module} has {lines} lines; split it where a reader may want one part alone"
        )
        assert ast.get_docstring(tree(module)), f"{module} has no docstring"


def test_every_except_names_its_errors() -> None:
    for module in MODULES:
        for node in nodes(module):
            assert not (isinstance(node, ast.ExceptHandler) and node.type is None), (
                f"{module}:{node.lineno}"
            )


def test_private_interfaces_of_the_sdk_are_used_in_one_module() -> None:
    from mcp.server.connection import Connection
    from mcp.server.lowlevel.server import Server
    from mcp.server.mcpserver import MCPServer
    from mcp.server.mcpserver.context import Context
    from mcp.server.session import ServerSession

    server = MCPServer("any")
    private = {
        name
        for kind in (Connection, Server, MCPServer, Context, ServerSession)
        for name in vars(kind)
    }
    private |= {*vars(server), *vars(server._lowlevel_server), "_connection", "_server_instances"}
    private = {name for name in private if name.startswith("_") and not name.startswith("__")}
    assert "_lowlevel_server" in private
    for module in MODULES:
        # Attributes that our classes set themselves are not the SDK's.
        attributes = [node for node in nodes(module) if isinstance(node, ast.Attribute)]
        own = {node.attr for node in attributes if isinstance(node.ctx, ast.Store)}
        own |= {
            node.name
            for node in nodes(module)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }
        found = {node.attr for node in attributes} & private - own
        imported = {
            node.module or ""
            for node in nodes(module)
            if isinstance(node, ast.ImportFrom)
            and (node.module or "").split(".")[0] in ("mcp", "mcp_types")
        }
        found |= {name for name in imported if "._" in name}
        if module.startswith("capsule.mcp_server") and module != "capsule.mcp_server.sdk":
            assert not found, f"{module} uses {found}; use capsule.mcp_server.sdk"


def test_private_interfaces_of_typer_are_used_in_one_module() -> None:
    import typer
    from typer.core import TyperCommand, TyperGroup
    from typer.main import Typer

    command = TyperCommand("any", params=[])
    private = {name for kind in (Typer, TyperCommand, TyperGroup) for name in vars(kind)} | set(
        vars(command)
    )
    private = {name for name in private if name.startswith("_") and not name.startswith("__")}
    private |= {"registered_commands", "registered_groups", "registered_callback"}
    private |= {"type_descriptor", "get_runtime_param"}
    for module in MODULES:
        if module == "capsule_cli.app" or not module.startswith("capsule_cli"):
            continue
        for node in nodes(module):
            place = f"{module}:{getattr(node, 'lineno', 0)}; use capsule_cli.app"
            if isinstance(node, ast.ImportFrom):
                assert not (node.module or "").startswith("typer."), place
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("typer.") for alias in node.names), place
            elif isinstance(node, ast.Attribute) and dotted(node).startswith("typer."):
                assert not isinstance(getattr(typer, node.attr, None), type(ast)), place
            elif isinstance(node, ast.Attribute) and dotted(node.value) != "self":
                assert node.attr not in private, place


def test_one_module_starts_git() -> None:
    for module in MODULES:
        for node in nodes(module):
            started = (
                isinstance(node, ast.List | ast.Tuple)
                and len(node.elts) > 1
                and ast.unparse(node.elts[0]) == "'git'"
            )
            # The demo runs git's commands as a person does, in a separate repository.
            assert not started or module in (RUNS_GIT, "capsule_cli.commands.demo.demo"), (
                f"{module}:{getattr(node, 'lineno', 0)}"
            )
