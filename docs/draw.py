"""docs/architecture.svg, drawn from docs/drawing.txt: `make docs`.

What must stay true: arrows point downwards and cross no box, and every text fits its box; else
nothing is drawn.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from textwrap import wrap
from xml.sax.saxutils import escape

#: In pixels: a column, and what lies between two boxes, between a box and its text, and between two
#: rows.
COLUMN, GAP, PAD, ROW_GAP = 43, 12, 10, 38
#: For each style of text: the height of a line, and the width that a character takes at most, on
#: average.
LINES = {"name": (21, 8.6), "path": (18, 7.0), "text": (17, 6.7)}
#: The boxes of each row, of the side, and within others: fill and line on a light page, and on a
#: dark one.
COLORS = {
    "row1": "#dbeafe #3b82f6 #172f55 #60a5fa",
    "row2": "#ede9fe #8b5cf6 #2e2352 #a78bfa",
    "row3": "#dcfce7 #22a355 #12351f #4ade80",
    "row4": "#fef3c7 #d99a06 #3a2c07 #fbbf24",
    "row5": "#ffe4e6 #e4576b #431a22 #fb7185",
    "row6": "#e0f2f1 #14998c #0f3431 #2dd4bf",
    "side": "#f1f5f9 #94a3b8 #1e2733 #64748b",
    "inner": "#ffffff #9ca3af #0d1117 #6b7280",
    "page": "#ffffff none #0d1117 none",
    "name,.path": "#1f2937 none #e6edf3 none",
    "text": "#4b5563 none #a3b1c2 none",
    "arrow": "#4b5563 #4b5563 #a3b1c2 #a3b1c2",
}
SANS = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', 'DejaVu Sans', Arial, sans-serif"
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace"


@dataclass
class Box:
    """A box: its columns, its colour, what it says, the boxes in it, and where it is."""

    first: int
    last: int
    color: str
    name: str
    path: str
    text: str
    inner: list[Box] = field(default_factory=list)
    x: float = 0
    y: float = 0
    width: float = 0
    height: float = 0

    def lines(self) -> list[tuple[str, str]]:
        """The lines of text in it, each with its style. Raises ValueError when a word is
        too long.
        """
        room = self.width - 2 * PAD
        wrapped = wrap(self.text, int(room / LINES["text"][1]), break_long_words=False)
        lines = [("name", self.name), ("path", self.path), *(("text", line) for line in wrapped)]
        for style, text in lines:
            if len(text) * LINES[style][1] > room:
                raise ValueError(f"{self.name}: {text!r} does not fit")
        return [(style, text) for style, text in lines if text]

    def place(self, y: float, left: float, right: float) -> None:
        """Place it and what is in it at `y`, between `left` and `right`."""
        self.x, self.y = max(left, (self.first - 1) * COLUMN + GAP), y
        self.width = min(right, self.last * COLUMN) - self.x
        self.height = 2 * PAD + sum(LINES[style][0] for style, _ in self.lines())
        for row in [[box] for box in self.inner] if self.color == "side" else [self.inner]:
            self.height += (
                placed(row, y + self.height, self.x + PAD, self.x + self.width - PAD) + PAD
                if row
                else 0
            )

    def svg(self) -> str:
        """It, its text, and what is in it."""
        size = f'width="{self.width:g}" height="{self.height:g}" rx="9"'
        parts, y = (
            [f'<rect class="{self.color}" x="{self.x:g}" y="{self.y:g}" {size}/>'],
            self.y + PAD - 4,
        )
        for style, text in self.lines():
            y += LINES[style][0]
            parts.append(
                f'<text class="{style}" x="{self.x + PAD:g}" y="{y:g}">{escape(text)}</text>'
            )
        return "\n".join([*parts, *(box.svg() for box in self.inner)])


def placed(row: list[Box], y: float, left: float = 0, right: float = 1e6) -> float:
    """Place the boxes of a row, all as high as the highest; that height."""
    for box in row:
        box.place(y, left, right)
    for box in row:
        box.height = max(other.height for other in row)
    return row[0].height


def read(drawing: str) -> tuple[list[list[Box]], list[tuple[str, str]]]:
    """The rows, the side among them, and the arrows, by the names of their boxes."""
    rows, arrows = list[list[Box]]([[]]), list[tuple[str, str]]()
    for line in [line for line in drawing.splitlines() if not line.startswith("#")]:
        if not line:
            rows += [[]] if rows[-1] else []
        elif found := re.fullmatch(r"( *)(side)? *(\d+)-(\d+) +([^|]+)\|([^|]*)\|(.*)", line):
            indent, side, first, last, name, path, text = found.groups()
            color = "inner" if indent else side or f"row{len(rows)}"
            row = rows[-1][-1].inner if indent else rows[-1]
            row.append(Box(int(first), int(last), color, name.strip(), path.strip(), text.strip()))
        else:
            source, targets = line.split(" -> ")
            arrows += [(source, target) for target in targets.split(", ")]
    return [row for row in rows if row], arrows


def way_down(source: Box, target: Box, others: list[Box]) -> float:
    """Where a line straight down from one box to another crosses no other. Raises ValueError:
    nowhere.
    """
    top, at = source.y + source.height, max(source.x, target.x)
    right, free = min(source.x + source.width, target.x + target.width), list[tuple[float, float]]()
    between = sorted(
        (box.x - GAP / 2, box.x + box.width + GAP / 2) for box in others if top <= box.y < target.y
    )
    for begin, end in [*between, (right, right)]:
        free.append((min(begin, right) - at, at))
        at = max(at, end)
    width, at = max(free)
    if top >= target.y or width < GAP:
        raise ValueError(f"there is no way down from {source.name} to {target.name}")
    return at + width / 2


def css(page: int) -> str:
    """The colours on a light page (0) or a dark one (1)."""
    pairs = {name: color.split()[2 * page : 2 * page + 2] for name, color in COLORS.items()}
    return "".join(f".{name}{{fill:{fill};stroke:{line}}}" for name, (fill, line) in pairs.items())


def svg(drawing: str) -> str:
    """The picture of a drawing. Raises ValueError when a text or an arrow has no place."""
    rows, arrows = read(drawing)
    (side,) = (row for row in rows if row[0].color == "side")
    y, lines = float(GAP), []
    for row in rows:
        y += placed(row, y) + ROW_GAP if row is not side else 0
    height, boxes = y - ROW_GAP + GAP, [box for row in rows for box in row]
    placed(side, GAP)
    side[0].height, named = height - 2 * GAP, {box.name: box for box in boxes}
    for source, target in ((named[one], named[other]) for one, other in arrows):
        x, end = way_down(source, target, boxes), target.y - 8
        path = f"M{x:g} {source.y + source.height + 3:g}V{end:g}M{x - 4:g} {end - 1:g}h8l-4 7z"
        lines.append(
            f'<path class="arrow" d="{path}"><title>{source.name} to {target.name}</title></path>'
        )
    width = max(box.x + box.width for box in boxes) + GAP
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">
<title>The rooms of Capsule</title>
<style>rect,path{{stroke-width:1.4}}.inner{{fill-opacity:.6}}
.name{{font:600 15px {SANS}}}.path{{font:11.5px {MONO}}}.text{{font:12.5px {SANS}}}
{css(0)}
@media (prefers-color-scheme: dark){{{css(1)}}}</style>
<rect class="page" width="{width:g}" height="{height:g}" rx="12"/>
{chr(10).join([*lines, *(box.svg() for box in boxes)])}
</svg>
"""
