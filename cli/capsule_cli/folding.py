"""Long lines, folded to the width of a terminal.

What must stay true: nothing but white space at a fold is left out.
"""

from __future__ import annotations

import re

__all__ = ["folded"]

_WORD = re.compile(r"\s*\S+|\s+$")
_TAB = 8


def folded(text: str, width: int, indent: str) -> str:
    """`text` with `indent` before its lines, none of them wider than `width` columns; lines break between words."""
    room = max(width - len(indent), 16)
    lines = (part for line in text.split("\n") for part in _parts(line, room))
    return "\n".join(indent + line if line else "" for line in lines)


def _parts(line: str, room: int) -> list[str]:
    if len(line) <= room // 2 and "\t" not in line:
        return [line]  # However wide its characters are.
    from rich.cells import cell_len, chop_cells

    measured = line.expandtabs(_TAB)
    if cell_len(measured) <= room:
        return [measured]
    parts, used = [""], 0
    for word in _WORD.findall(measured):
        wide = cell_len(word)
        if used + wide > room and used:
            word = word.lstrip()
            wide = cell_len(word)
            parts.append("")
            used = 0
        *whole, rest = chop_cells(word, room) if wide > room else [word]
        parts[-1:] = [parts[-1] + piece for piece in whole[:1]] + whole[1:] + ([rest] if whole else [parts[-1] + rest])
        used = used + wide if not whole else cell_len(rest)
    return parts
