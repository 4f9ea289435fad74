"""Texts of messages as HTML: Markdown, code in colours, diffs.

What must stay true: whatever a text says, the result has only the elements, attributes and
addresses of `_CLEANER`, and loads nothing. There are two walls: markdown-it makes no HTML of HTML,
and nh3 removes what is not on the list. What is large is escaped and nothing else, and a window has
a number of lines that get colours. Pure.
"""

from __future__ import annotations

import difflib
import re
from collections import OrderedDict
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from threading import Lock
from typing import Any

from markdown_it import MarkdownIt
from markupsafe import Markup, escape
from nh3 import Cleaner
from pygments import highlight
from pygments.formatters.html import HtmlFormatter
from pygments.lexers import get_all_lexers, get_lexer_by_name
from pygments.token import STANDARD_TYPES

from capsule.format.text.escaping import escape_controls

#: Larger texts are not drawn as Markdown, larger code gets no colours, and longer texts are not
#: compared.
MOST_TEXT, MOST_CODE, MOST_LINES = 1_000_000, 200_000, 2_000
_MOST_NESTED = 60
_LINK = re.compile(r"(?i)(?:https?|mailto):")
#: What no page shows. Signs that turn the direction of writing end with the block that they stand
#: in.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_TAGS = (
    "p br hr em strong s a h3 h4 h5 h6 ul ol li blockquote pre code span table thead tbody tr "
    "th td ins del"
)
_CLEANER = Cleaner(
    tags=set(_TAGS.split()),
    attributes={
        "a": {"href", "title"},
        "ol": {"start"},
        "table": {"tabindex"},
        "th": {"align"},
        "td": {"align"},
    },
    allowed_classes={"span": {name for name in STANDARD_TYPES.values() if name}, "pre": {"diff"}},
    url_schemes={"http", "https", "mailto"},
    link_rel="noopener noreferrer nofollow",
    attribute_filter=lambda tag, name, value: (
        value if name != "href" or _LINK.match(value) else None
    ),
)
_FORMATTER = HtmlFormatter(nowrap=True)


class HtmlCache:
    """HTML by the digest of what it was made of, `most` characters of it; what was not used for
    longest leaves first.

    Any thread may use it.
    """

    def __init__(self, most: int) -> None:
        self._left, self._lock = most, Lock()
        self._kept: OrderedDict[bytes, str] = OrderedDict()

    def get(self, key: bytes) -> str | None:
        """The HTML; None: it is not kept."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: bytes, html: str) -> None:
        """Keep some HTML."""
        with self._lock:
            self._left += len(self._kept.pop(key, "")) - len(html)
            self._kept[key] = html
            while self._left < 0:
                self._left += len(self._kept.popitem(last=False)[1])


_CACHE = HtmlCache(16_000_000)


class TextRenderer:
    """Draws the texts of one window, in which `lines` lines of code get colours that are not in the
    cache yet.
    """

    def __init__(self, lines: int) -> None:
        self._left = lines

    def markdown(self, text: str) -> Markup:
        """A text that is Markdown."""
        text = _CONTROL.sub(lambda sign: escape_controls(sign[0]), valid(text))
        return (
            self._made("", text, self._markdown)
            if len(text) <= MOST_TEXT
            else _element("pre", text)
        )

    def code(self, text: str, language: str = "") -> Markup:
        """Code as a block, in colours if the language is known and the code is not large; also a
        `diff`.
        """
        text, language = escape_controls(valid(text)), (language.lower().split() or [""])[0]
        if len(text) > MOST_CODE or text.count("\n") >= MOST_LINES:
            return _element("pre", text)
        if language == "diff":
            return _diff(text)
        return (
            self._made(language, text, self._coloured)
            if language in _languages()[0]
            else _element("pre", text)
        )

    def _made(self, language: str, text: str, make: Callable[[str, str], str]) -> Markup:
        key = sha256(f"{language}\0{text}".encode()).digest()
        if (kept := _CACHE.get(key)) is None:
            kept = make(text, language)
            if self._left:  # Else another window may have lines for it.
                _CACHE.put(key, kept)
        return Markup(kept)

    def _markdown(self, text: str, _: str) -> str:
        tokens = _markdown().parse(text, env := {"texts": self})
        if any(
            token.level >= _MOST_NESTED - 1 for token in tokens
        ):  # What is deeper would be left out.
            return _element("pre", text)
        return _CLEANER.clean(_markdown().renderer.render(tokens, _markdown().options, env))

    def _coloured(self, code: str, language: str) -> str:
        lines = code.count("\n") + 1
        if lines > self._left:
            self._left = 0
            return _element("pre", code)
        self._left -= lines
        html = highlight(code, get_lexer_by_name(language, stripnl=False), _FORMATTER)
        return _CLEANER.clean(f"<pre><code>{html}</code></pre>")


def valid(text: str) -> str:
    """A text that UTF-8 can hold, with lines that end with a newline."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def difference(old: str, new: str) -> str:
    """The lines of a diff of two texts, without the names of files; large texts one after the
    other.
    """
    before, after = (text.split("\n") if text else [] for text in (valid(old), valid(new)))
    if len(old) + len(new) > MOST_CODE or len(before) + len(after) > MOST_LINES:
        return "\n".join([*(f"-{line}" for line in before), *(f"+{line}" for line in after)])
    return "\n".join([*difflib.unified_diff(before, after, lineterm="", n=3)][2:])


def language_of(path: str) -> str:
    """The language of a file, by its name; empty: it is not known."""
    name = path.rpartition("/")[2]
    patterns = _languages()[1]
    return patterns.get(name) or patterns.get(f"*.{name.rpartition('.')[2]}", "")


def _diff(text: str) -> Markup:
    """Lines of a diff: those that begin with `+` or `-` are marked."""
    kinds = {"+": "ins", "-": "del", "@": "span", "*": "span"}
    lines = (
        _element(kinds[line[0]], line) if line[:1] in kinds else escape(line)
        for line in text.split("\n")
    )
    return Markup('<pre class="diff">{}</pre>').format(Markup("\n").join(lines))


@cache
def _languages() -> tuple[frozenset[str], dict[str, str]]:
    """The names of languages, and one for each pattern of files. Pygments' own look-up reads all
    packages each time.
    """
    known = [
        (aliases, patterns) for _, aliases, patterns, _ in get_all_lexers(plugins=False) if aliases
    ]
    known.sort(
        key=lambda found: -len(found[0][0])
    )  # Of several languages, that with the shortest name.
    by_pattern = {pattern: aliases[0] for aliases, patterns in known for pattern in patterns}
    return frozenset(alias.lower() for aliases, _ in known for alias in aliases), by_pattern


def _element(name: str, text: str) -> Markup:
    return Markup("<{0}>{1}</{0}>").format(name, text)


@cache
def _markdown() -> Any:
    """Markdown without HTML, with tables; images are links, and headings are below those of the
    page.
    """
    made = MarkdownIt("commonmark", {"html": False, "maxNesting": _MOST_NESTED}).enable(
        ["table", "strikethrough"]
    )
    made.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]
    made.core.ruler.push("of_messages", _adapt)
    made.add_render_rule("fence", _fence)
    made.add_render_rule("image", _image)
    return made


def _adapt(state: Any) -> None:
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
        if isinstance(style := token.attrs.pop("style", None), str):
            token.attrs["align"] = style.removeprefix("text-align:")
        if token.type == "table_open":  # A wide one is scrolled, by the keyboard too.
            token.attrs["tabindex"] = "0"
        depth = 0
        for child in token.children or ():
            depth += child.nesting * child.type.startswith("link_")
            if child.type == "image" and depth:  # A link can't stand in another one.
                child.attrs["src"] = ""


def _fence(renderer: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    return str(env["texts"].code(tokens[place].content.removesuffix("\n"), tokens[place].info))


def _image(renderer: Any, tokens: Any, place: int, options: Any, env: Any) -> str:
    url, about = tokens[place].attrs["src"], tokens[place].content
    name = f"[image: {about}]" if about else "[image]"
    return Markup('<a href="{}">{}</a>').format(url, name) if url else escape(name)
