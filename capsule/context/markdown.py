"""Make the Markdown document of a context from files, and split it into files again.

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

_BACKTICKS = re.compile(rb"`{3,}")
_TITLE = re.compile(r"# Context: [^\n]*\n\n[0-9]+ files?, about [0-9]+ tokens\.\n")
_SECTION = re.compile(r"\n## ([^\n]+)\n\n(`{3,})([^`\n]*)\n")
_ESCAPE = re.compile(r"\\u\{([0-9a-f]{1,6})\}")
_NO_FINAL_NEWLINE = " no-newline-at-end"
_FENCE = b"```"

#: The languages with the name of their extension, and other extensions with their language.
_NAMED_LIKE_EXTENSION = "bash c cpp css go html java json jsx php scala sql swift toml tsx xml yaml"
_NAMED_OTHERWISE = (
    "cc=cpp cs=csharp h=c hpp=cpp js=javascript kt=kotlin md=markdown mjs=javascript "
    "py=python pyi=python rb=ruby"
)
_LANGUAGES = {name: name for name in _NAMED_LIKE_EXTENSION.split()} | dict(
    pair.split("=") for pair in _NAMED_OTHERWISE.split()
)
_LANGUAGES |= {"rs": "rust", "sh": "bash", "ts": "typescript", "yml": "yaml"}


class ContextSection(NamedTuple):
    """One file in the document: its path below the project, and its text as UTF-8."""

    path: str
    data: bytes


def heading(name: str, files: int, tokens: int) -> bytes:
    """Return the beginning of the document.

    Args:
        name: The project's name.
        files: The number of files.
        tokens: The estimated number of tokens.
    """
    count = "1 file" if files == 1 else f"{files} files"
    return f"# Context: {_one_line(name)}\n\n{count}, about {tokens} tokens.\n".encode()


def block_around(path: str, data: bytes) -> tuple[bytes, bytes]:
    """Return the text before a file in the document, and the text after it.

    Args:
        path: The path of the file.
        data: Its text, as UTF-8.
    """
    fence = _FENCE
    if b"`" in data and _FENCE in data:  # The first search is the faster one.
        # Longer than any run of backticks in the text, also within a line: viewers differ on where
        # a line begins.
        fence = b"`" * (max(map(len, _BACKTICKS.findall(data))) + 1)
    name = path.rpartition("/")[2]
    info = ""
    if "." in name:
        info = _LANGUAGES.get(name.rpartition(".")[2].lower(), "")
    closing = fence + b"\n"
    if data and not data.endswith(b"\n"):
        info += _NO_FINAL_NEWLINE
        closing = b"\n" + closing
    section_heading = b"\n## %s\n\n%s%s\n" % (_one_line(path).encode(), fence, info.encode())
    return section_heading, closing


def parse_sections(document: str) -> list[ContextSection] | None:
    """Split the document of a context into its files. None: the text is no such document."""
    title = _TITLE.match(document)
    if title is None:
        return None
    sections = []
    position = title.end()
    while position < len(document):
        begin = _SECTION.match(document, position)
        if begin is None:
            return None
        path, fence, info = begin.groups()
        start = begin.end()
        # One character earlier: an empty file's closing fence directly follows the opening one.
        end = document.find(f"\n{fence}\n", start - 1)
        if end < 0:
            return None
        text = document[start : end + 1]
        if info.endswith(_NO_FINAL_NEWLINE):
            text = text[:-1]
        sections.append(ContextSection(_unescape(path), text.encode()))
        position = end + len(fence) + 2
    return sections


def _one_line(text: str) -> str:
    r"""Return a name in one line. Control characters and backslashes are escaped as `\u{1b}`."""
    if text.isprintable() and "\\" not in text:
        return text
    escaped = []
    for character in text:
        if character.isprintable() and character != "\\":
            escaped.append(character)
        else:
            escaped.append(f"\\u{{{ord(character):x}}}")
    return "".join(escaped)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda match: chr(min(int(match[1], 16), 0x10FFFF)), text)
