"""The Markdown document of a context: made of files, and taken apart again.

What must stay true: the same files give the same bytes; no content can close its fence, so that the document can be
taken apart again exactly; and it reads well in any Markdown viewer.

    # Context: name

    3 files, about 1200 tokens.

    ## src/app.py

    ```python
    print("hello")
    ```
"""

from __future__ import annotations

import re
from typing import NamedTuple

_RUN = re.compile(rb"`{3,}")
_TITLE = re.compile(r"# Context: [^\n]*\n\n[0-9]+ files?, about [0-9]+ tokens\.\n")
_BEGIN = re.compile(r"\n## ([^\n]+)\n\n(`{3,})([^`\n]*)\n")
_ESCAPE = re.compile(r"\\u\{([0-9a-f]{1,6})\}")
_CUT_SHORT = " no-newline-at-end"
_FENCE = b"```"

#: What a fence says of the language of a file, by its name's ending, which may say the same; viewers colour it so.
_SAME = "bash c cpp css go html java json jsx php scala sql swift toml tsx xml yaml"
_LANGUAGES = {name: name for name in _SAME.split()} | {
    "cc": "cpp",
    "cs": "csharp",
    "h": "c",
    "hpp": "cpp",
    "js": "javascript",
    "kt": "kotlin",
    "md": "markdown",
    "mjs": "javascript",
    "py": "python",
    "pyi": "python",
    "rb": "ruby",
    "rs": "rust",
    "sh": "bash",
    "ts": "typescript",
    "yml": "yaml",
}


class Part(NamedTuple):
    """One file in the document: its path below the project, and its text as UTF-8."""

    path: str
    data: bytes


def heading(name: str, files: int, tokens: int) -> bytes:
    """The beginning of the document.

    Args:
        name: What the project is called.
        files: How many files follow.
        tokens: How many tokens they take, estimated.
    """
    count = f"{files} file" + ("" if files == 1 else "s")
    return f"# Context: {_one_line(name)}\n\n{count}, about {tokens} tokens.\n".encode()


def block_around(path: str, data: bytes) -> tuple[bytes, bytes]:
    """What stands before a file's text in the document, and behind it.

    Args:
        path: The file, below the project.
        data: Its text, as UTF-8.
    """
    fence = _FENCE
    if b"`" in data and _FENCE in data:  # The first is the faster to look for.
        # Longer than any run of backticks in the text, wherever that stands: what begins a line is not the same for
        # all viewers.
        fence = b"`" * (max(map(len, _RUN.findall(data))) + 1)
    name = path.rpartition("/")[2]
    info = _LANGUAGES.get(name.rpartition(".")[2].lower(), "") if "." in name else ""
    behind = fence + b"\n"
    if data and not data.endswith(b"\n"):
        info += _CUT_SHORT
        behind = b"\n" + behind
    return b"\n## %s\n\n%s%s\n" % (_one_line(path).encode(), fence, info.encode()), behind


def take_apart(document: str) -> list[Part] | None:
    """The files in a document of a context, in its order; None for any other text."""
    title = _TITLE.match(document)
    if title is None:
        return None
    parts, at = [], title.end()
    while at < len(document):
        begin = _BEGIN.match(document, at)
        if begin is None:
            return None
        path, fence, info = begin.groups()
        start = begin.end()
        # One character before: of an empty file the closing fence stands right behind the opening one.
        end = document.find(f"\n{fence}\n", start - 1)
        if end < 0:
            return None
        text = document[start : end + 1]
        parts.append(Part(_unescaped(path), (text[:-1] if info.endswith(_CUT_SHORT) else text).encode()))
        at = end + len(fence) + 2
    return parts


def _one_line(text: str) -> str:
    r"""A name in one line: a control character, which a file's name may hold, and a backslash as `\u{1b}`."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(one if one.isprintable() and one != "\\" else f"\\u{{{ord(one):x}}}" for one in text)


def _unescaped(text: str) -> str:
    return _ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text) if "\\" in text else text
