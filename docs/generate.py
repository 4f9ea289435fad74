"""Writes what is generated in this repository, or says what of it isn't up to date: `make docs`,
`make docs-check`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import api_reference
import cli_page
import draw
import figures
import mcp_page

from capsule.format import schema

ROOT = Path(__file__).resolve().parents[1]


def generated() -> Iterator[tuple[Path, str]]:
    """Each generated file, and what it should hold."""
    for kind in schema.kinds():
        for version in schema.versions(kind):
            yield ROOT / "schemas" / schema.file_name(kind, version), schema.text(kind, version)
    for name, page in cli_page.pages():
        yield ROOT / "docs" / name, page
    yield ROOT / "docs" / "mcp.md", mcp_page.text()
    for name, text in api_reference.pages():
        yield ROOT / "docs" / "api" / name, text
    for page in figures.PAGES:
        yield page, figures.filled(page.read_text(encoding="utf-8"))
    drawing = (ROOT / "docs" / "drawing.txt").read_text(encoding="utf-8")
    yield ROOT / "docs" / "architecture.svg", draw.svg(drawing)


def main(check: bool) -> int:
    """Write the files, or (`check`) only say which differ; the exit code."""
    stale = []
    for path, text in generated():
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            stale.append(path.relative_to(ROOT))
            if not check:
                path.write_text(text, encoding="utf-8")
    for name in stale:
        print(
            f"{name}: "
            f"{'is not what `make docs` makes of it; run that, and commit' if check else 'written'}"
        )
    return 1 if stale and check else 0


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
