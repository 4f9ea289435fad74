"""The text of a context: no content can close its fence, and its parts can be read back."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from capsule.context.capture import ContextSection, block_around, heading, parse_sections

#: Texts similar to the document's own headings and fences.
_PIECES = [
    "`",
    "``",
    "```",
    "````",
    "\n",
    "\r\n",
    "\r",
    "## a\n\n```\n",
    "```\n\n## b\n\n```python\n",
    "text",
    " ",
]
_NASTY = st.lists(st.sampled_from([*_PIECES, "\\", "~~~", "> ```\n"]), max_size=25).map("".join)
TEXTS = st.one_of(_NASTY, st.text(st.characters(exclude_categories=["Cs"])))
PATHS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1)
PARTS = st.lists(
    st.tuples(PATHS, TEXTS.map(str.encode)).map(lambda pair: ContextSection(*pair)), max_size=6
)


def compose(name: str, parts: list[ContextSection], tokens: int) -> bytes:
    blocks = [(block_around(part.path, part.data), part.data) for part in parts]
    return heading(name, len(parts), tokens) + b"".join(
        around[0] + data + around[1] for around, data in blocks
    )


@given(PATHS, PARTS)
@example("p", [ContextSection("a", b""), ContextSection("b", b""), ContextSection("c", b"```\n")])
@example(
    "p",
    [
        ContextSection("\U0001d173f", b"x"),
        ContextSection("\\u{1d173}", b"y"),
        ContextSection("\u1d173", b"z"),
        ContextSection("a\nb", b""),
    ],
)
def test_the_parts_of_a_document_can_be_read_back(name: str, parts: list[ContextSection]) -> None:
    document = compose(name, parts, 7)
    assert parse_sections(document.decode()) == parts
    assert compose(name, parts, 7) == document


@given(PARTS, TEXTS)
def test_no_content_closes_its_fence(parts: list[ContextSection], text: str) -> None:
    """By CommonMark's rule, a line of at least as many backticks closes a fence, at any indent."""
    document = compose("p", [*parts, ContextSection("last", text.encode())], 0).decode()
    begin = document.rindex("\n## last\n\n") + len("\n## last\n\n")
    fence = document[begin : len(document) - len(document[begin:].lstrip("`"))]
    inside = document[document.index("\n", begin) + 1 :].removesuffix(f"{fence}\n")
    assert len(fence) >= 3 and fence not in inside


def test_a_document_looks_as_in_the_docstring() -> None:
    parts = [
        ContextSection("README.md", b"Use:\n\n```sh\nmake\n```\n"),
        ContextSection("src/app.py", b"print()"),
        ContextSection("Makefile", b""),
    ]
    assert compose("shop", parts, 12).decode() == (
        "# Context: shop\n\n3 files, about 12 tokens.\n"
        "\n## README.md\n\n````markdown\nUse:\n\n```sh\nmake\n```\n````\n"
        "\n## src/app.py\n\n```python no-newline-at-end\nprint()\n```\n"
        "\n## Makefile\n\n```\n```\n"
    )


@given(PARTS, st.integers(0, 200), TEXTS)
def test_an_edited_document_does_not_crash(parts: list[ContextSection], at: int, text: str) -> None:
    document = compose("p", parts, 0).decode()
    found = parse_sections(document[:at] + text + document[at:])
    assert found is None or all(isinstance(part.data, bytes) for part in found)
    assert parse_sections(document[:at]) is None or at >= len("# Context: p\n\n")
