"""docs/architecture.md and its picture agree with the code."""

from __future__ import annotations

import ast
import re
import runpy
from itertools import combinations
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
DRAWING = (ROOT / "docs" / "drawing.txt").read_text(encoding="utf-8")
TOPS = ("capsule", "cli/capsule_cli")


def in_code(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


def is_path(word: str) -> bool:
    return "/" in word or word.endswith(".py")


def rooms() -> dict[str, list[str]]:
    """The rows of the table of rooms: each room, and the paths in it that its row names."""
    rows = [
        in_code(line)
        for line in PAGE.splitlines()
        if re.match(r"\| `(capsule|cli)[^`]*/` \|", line)
    ]
    return {
        room: [word for word in rest if is_path(word)] for room, *rest in rows if room.endswith("/")
    }


def names_in(module: str) -> set[str]:
    """The functions of a module, and the methods of its classes as `Class.method`."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    names = {node.name for node in tree.body if isinstance(node, functions)}
    for kind in [node for node in tree.body if isinstance(node, ast.ClassDef)]:
        names |= {f"{kind.name}.{node.name}" for node in kind.body if isinstance(node, functions)}
    return names


def test_every_path_on_the_page_exists() -> None:
    in_rooms = [f"{room}{path}" for room, paths in rooms().items() for path in paths]
    elsewhere = [
        word
        for word in in_code(PAGE)
        if is_path(word) and word.startswith(("capsule/", "cli/", "tests/"))
    ]
    elsewhere = [word for word in elsewhere if "NAME" not in word]
    assert len(elsewhere) > 100
    assert [path for path in in_rooms + elsewhere if not (ROOT / path).exists()] == []


def test_every_module_that_a_page_names_exists() -> None:
    modules = [
        f"/{path.relative_to(ROOT)}"
        for top in (*TOPS, "docs", "tests")
        for path in (ROOT / top).rglob("*.py")
    ]
    for page in [*(ROOT / "docs").glob("*.md"), *ROOT.glob("*.md")]:
        for word in in_code(page.read_text(encoding="utf-8")):
            is_module = re.fullmatch(r"[\w/]+\.py", word)
            assert not is_module or any(path.endswith(f"/{word}") for path in modules), (
                f"{page.name}: {word}"
            )


def test_every_named_function_is_in_the_module_named_before_it() -> None:
    module, functions = "", 0
    for word in in_code(PAGE):
        module = word if word.endswith(".py") else module
        if word.endswith("()"):
            functions += 1
            assert word.removesuffix("()") in names_in(module), f"{module}: {word}"
    assert functions > 30


def test_every_room_is_on_the_page() -> None:
    named = {f"{room}{path}" for room, paths in rooms().items() for path in ["", *paths]}
    packages = [package.parent for top in TOPS for package in (ROOT / top).rglob("__init__.py")]
    assert {f"{package.relative_to(ROOT).as_posix()}/" for package in packages} - named == set()


def test_every_row_of_changes_names_modules_and_tests() -> None:
    rows = [
        row.split("|")[1:4]
        for row in PAGE.splitlines()
        if row.startswith("| ") and row.count(" | ") == 2 and "`" in row
    ]
    assert len(rows) >= 25
    for what, modules, tests in rows:
        assert any(path.startswith(("capsule/", "cli/")) for path in in_code(modules)), what
        assert all(path.startswith("tests/") for path in in_code(tests)), what
        assert in_code(tests), what


def picture() -> Any:
    return runpy.run_path(str(ROOT / "docs" / "draw.py"))


def test_the_boxes_of_the_picture_are_rooms_and_its_arrows_are_imports() -> None:
    rows, arrows = picture()["read"](DRAWING)
    paths = {box.name: box.path for row in rows for outer in row for box in (outer, *outer.inner)}
    assert [path for path in paths.values() if not (ROOT / path).exists()] == []
    for above, below in arrows:
        # An engine imports the interface that it implements.
        source, target = (below, above) if above == "Engine interface" else (above, below)
        place = ROOT / paths[source]
        code = "".join(
            path.read_text("utf-8")
            for path in ([place] if place.is_file() else place.rglob("*.py"))
        )
        imported = paths[target].removesuffix("/").removesuffix(".py").replace("/", ".")
        assert f"from {imported}" in code, f"{source} imports nothing of {target}"


#: Each kind of engine, with the other packages in `engines/` that it is built on. The index in SQLite
#: belongs to the side of files, and the engine in memory uses it too.
KINDS = {
    "files": {"index", "questions"},
    "memory": {"index", "questions"},
    "index": {"files", "questions"},
    "postgres": {"questions"},
    "questions": set[str](),
}


def test_no_kind_of_engine_imports_another_and_they_share_only_what_is_pure() -> None:
    engines = ROOT / "capsule" / "engines"
    assert {path.parent.name for path in engines.glob("*/__init__.py")} == set(KINDS)
    for kind, allowed in KINDS.items():
        for path in (engines / kind).rglob("*.py"):
            text = path.read_text("utf-8")
            imported = set(re.findall(r"(?:from|import) capsule\.engines\.(\w+)", text))
            assert imported & set(KINDS) <= allowed | {kind}, path
    for path in (engines / "questions").rglob("*.py"):
        assert not re.search(
            r"^\s*(import|from) (sqlite3|psycopg|os)\b", path.read_text("utf-8"), re.M
        )


def test_no_box_of_the_picture_covers_another() -> None:
    drawn = picture()["svg"](DRAWING)
    sizes = re.findall(
        r'<rect class="\w+" x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', drawn
    )
    boxes = [(float(x), float(y), float(x) + float(w), float(y) + float(h)) for x, y, w, h in sizes]
    assert len(boxes) > 15
    for one, other in combinations(boxes, 2):
        outer, inner = sorted(
            (one, other), key=lambda box: (box[2] - box[0]) * (box[3] - box[1]), reverse=True
        )
        left, top, right, bottom = outer
        is_inside = left < inner[0] and top < inner[1] and inner[2] < right and inner[3] < bottom
        assert (
            is_inside or inner[0] > right or inner[2] < left or inner[1] > bottom or inner[3] < top
        )
