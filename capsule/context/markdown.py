"""The Markdown document of a context: making it from files, and splitting it into files again.

What must stay true: the same files give the same bytes. No content can close its fence, so that the
document can be split exactly. It reads well in any Markdown viewer.

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

#: The language that a fence names for a file, by the extension; `_SAME` are the languages named
#: like their extension.
_SAME = "bash c cpp css go html java json jsx php scala sql swift toml tsx xml yaml"
_OTHER = (
    "cc=cpp cs=csharp h=c hpp=cpp js=javascript kt=kotlin md=markdown mjs=javascript "
    "py=python pyi=python rb=ruby"
)
_LANGUAGES = {name: name for name in _SAME.split()} | dict(
    pair.split("=") for pair in _OTHER.split()
)
_LANGUAGES |= {"rs": "rust", "sh": "bash", "ts": "typescript", "yml": "yaml"}


class ContextSection(NamedTuple):
    """One file in the document: its path below the project, and its text as UTF-8."""

    path: str
    data: bytes


def heading(name: str, files: int, tokens: int) -> bytes:
    """The beginning of the document: the project's name, the number of files, and the estimated
    number of tokens.
    """
    count = f"{files} file" + ("" if files == 1 else "s")
    return f"# Context: {_one_line(name)}\n\n{count}, about {tokens} tokens.\n".encode()


def block_around(path: str, data: bytes) -> tuple[bytes, bytes]:
    """The text before the file `path` in the document, and the text after it; `data` is its text,
    as UTF-8.
    """
    fence = _FENCE
    if b"`" in data and _FENCE in data:  # The first search is the faster one.
        # Longer than any run of backticks in the text, also within a line: viewers differ on what
        # begins a line.
        fence = b"`" * (max(map(len, _RUN.findall(data))) + 1)
    name = path.rpartition("/")[2]
    info = _LANGUAGES.get(name.rpartition(".")[2].lower(), "") if "." in name else ""
    behind = fence + b"\n"
    if data and not data.endswith(b"\n"):
        info += _CUT_SHORT
        behind = b"\n" + behind
    return b"\n## %s\n\n%s%s\n" % (_one_line(path).encode(), fence, info.encode()), behind


def take_apart(document: str) -> list[ContextSection] | None:
    """The files in the document of a context, in its order; None: the text is no such document."""
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
        # One character earlier: an empty file's closing fence directly follows the opening one.
        end = document.find(f"\n{fence}\n", start - 1)
        if end < 0:
            return None
        text = document[start : end + 1]
        parts.append(
            ContextSection(
                _unescaped(path), (text[:-1] if info.endswith(_CUT_SHORT) else text).encode()
            )
        )
        at = end + len(fence) + 2
    return parts


def _one_line(text: str) -> str:
    r"""A name in one line: control characters and backslashes are escaped as `\u{1b}`."""
    if text.isprintable() and "\\" not in text:
        return text
    return "".join(
        char if char.isprintable() and char != "\\" else f"\\u{{{ord(char):x}}}" for char in text
    )


def _unescaped(text: str) -> str:
    return (
        _ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text)
        if "\\" in text
        else text
    )
