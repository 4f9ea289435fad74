"""Makes settings files as people write them: JSON with comments, in any layout."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

NAMES = ["mcpServers", "capsule", "other", "a", "", 'quo"te', "käse", "//", "/*", "servers", "\\u", "😀"]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(["// no comment", "/* nor this */", "}", '"', "\\", ","]),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=12,
)
comment_words = st.text(st.characters(blacklist_characters="\r\n*/", blacklist_categories=("Cs", "Cc")), max_size=6)


@st.composite
def gaps(draw: st.DrawFn, newline: str, comments: bool) -> str:
    """What may stand between two tokens."""
    parts = []
    for kind in draw(st.lists(st.sampled_from(["", " ", "  ", "\t", "line", "//", "/*"]), max_size=3)):
        if kind == "line":
            parts.append(newline)
        elif kind == "//" and comments:
            parts.append("//" + draw(comment_words) + newline)
        elif kind == "/*" and comments:
            parts.append("/*" + draw(comment_words) + draw(st.sampled_from(["", newline])) + "*/")
        elif kind not in ("//", "/*"):
            parts.append(kind)
    return "".join(parts)


def tokens(value: Any, draw: st.DrawFn, trailing: bool) -> list[str]:
    """The tokens of a value, as texts."""
    if isinstance(value, dict):
        found = ["{"]
        for at, (key, one) in enumerate(value.items()):
            found += [json.dumps(key, ensure_ascii=draw(st.booleans())), ":", *tokens(one, draw, trailing)]
            if at < len(value) - 1 or (trailing and draw(st.booleans())):
                found.append(",")
        return [*found, "}"]
    if isinstance(value, list):
        found = ["["]
        for at, one in enumerate(value):
            found += tokens(one, draw, trailing)
            if at < len(value) - 1 or (trailing and draw(st.booleans())):
                found.append(",")
        return [*found, "]"]
    return [json.dumps(value, ensure_ascii=draw(st.booleans()))]


@st.composite
def documents(draw: st.DrawFn, value: st.SearchStrategy[Any] = values, *, plain: bool = False) -> tuple[str, Any]:
    """A document, and what it says; with comments and trailing commas unless `plain`."""
    said = draw(value)
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    layout = draw(st.sampled_from(["free", "pretty", "one line"]))
    if layout == "pretty":
        text = json.dumps(said, indent=draw(st.sampled_from([1, 2, 4, "\t"])), ensure_ascii=draw(st.booleans()))
        return text.replace("\n", newline) + draw(st.sampled_from(["", newline])), said
    if layout == "one line":
        return json.dumps(said, separators=draw(st.sampled_from([(",", ":"), (", ", ": ")]))), said
    gap = gaps(newline, not plain)
    parts = [draw(gap)]
    for token in tokens(said, draw, not plain):
        parts += [token, draw(gap)]
    return "".join(parts), said
