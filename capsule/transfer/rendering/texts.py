"""Draw texts of messages as HTML: Markdown, code in colours, diffs.

Invariants: for any text, the result has only the elements, attributes and addresses of `_CLEANER`,
and loads nothing. Two independent steps ensure this: markdown-it escapes HTML in a text, and nh3
removes everything that is not on the list. A large text is only escaped, and a window has a limit
of lines that get colours. Pure.
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

#: The largest text that is drawn as Markdown, in characters.
MAX_MARKDOWN_CHARS = 1_000_000
#: The largest code that gets colours, and the largest texts that are compared, in characters.
MAX_CODE_CHARS = 200_000
#: The same in lines.
MAX_CODE_LINES = 2_000
_MAX_NESTING = 60
_LINK = re.compile(r"(?i)(?:https?|mailto):")
#: Characters that no page shows. Characters that change the direction of writing are not among
#: them, since their effect ends with their block.
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ELEMENTS = (
    "p br hr em strong s a h3 h4 h5 h6 ul ol li blockquote pre code span table thead tbody tr "
    "th td ins del"
)
_CLEANER = Cleaner(
    tags=set(_ELEMENTS.split()),
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
    """A cache of HTML by the digest of its text. The HTML that was not used for longest is removed.

    Any thread may use it.

    Args:
        max_chars: The size of the cache, in characters of HTML.
    """

    def __init__(self, max_chars: int) -> None:
        self._free_chars = max_chars
        self._lock = Lock()
        self._html_by_key: OrderedDict[bytes, str] = OrderedDict()

    def get(self, key: bytes) -> str | None:
        """Return the HTML. None: it is not in the cache."""
        with self._lock:
            if key in self._html_by_key:
                self._html_by_key.move_to_end(key)
            return self._html_by_key.get(key)

    def put(self, key: bytes, html: str) -> None:
        """Add some HTML."""
        with self._lock:
            self._free_chars += len(self._html_by_key.pop(key, "")) - len(html)
            self._html_by_key[key] = html
            while self._free_chars < 0:
                _, removed_html = self._html_by_key.popitem(last=False)
                self._free_chars += len(removed_html)


_CACHE = HtmlCache(16_000_000)


class TextRenderer:
    """Draws the texts of one window.

    Args:
        lines: The number of lines of code that get colours. Code in the cache does not count.
    """

    def __init__(self, lines: int) -> None:
        self._remaining_lines = lines

    def markdown(self, text: str) -> Markup:
        """Return a text of Markdown as HTML."""
        plain_text = _CONTROL.sub(lambda sign: escape_controls(sign[0]), valid(text))
        if len(plain_text) > MAX_MARKDOWN_CHARS:
            return _element("pre", plain_text)
        return self._cached("", plain_text, self._markdown)

    def code(self, text: str, language: str = "") -> Markup:
        """Return code, or a `diff`, as a block of HTML.

        It has colours if the language is known and the code is not large.
        """
        plain_text = escape_controls(valid(text))
        language_name = next(iter(language.lower().split()), "")
        if len(plain_text) > MAX_CODE_CHARS or plain_text.count("\n") >= MAX_CODE_LINES:
            return _element("pre", plain_text)
        if language_name == "diff":
            return _diff(plain_text)
        if language_name not in _languages()[0]:
            return _element("pre", plain_text)
        return self._cached(language_name, plain_text, self._coloured)

    def _cached(self, language: str, text: str, make: Callable[[str, str], str]) -> Markup:
        """Return the HTML of a text from the cache, or make it."""
        key = sha256(f"{language}\0{text}".encode()).digest()
        html = _CACHE.get(key)
        if html is None:
            html = make(text, language)
            if self._remaining_lines:  # Otherwise another window may have lines for it.
                _CACHE.put(key, html)
        return Markup(html)

    def _markdown(self, text: str, _: str) -> str:
        environment = {"texts": self}
        tokens = _markdown().parse(text, environment)
        # The parser leaves out what is nested deeper.
        if any(token.level >= _MAX_NESTING - 1 for token in tokens):
            return _element("pre", text)
        html = _markdown().renderer.render(tokens, _markdown().options, environment)
        return _CLEANER.clean(html)

    def _coloured(self, code: str, language: str) -> str:
        line_count = code.count("\n") + 1
        if line_count > self._remaining_lines:
            self._remaining_lines = 0
            return _element("pre", code)
        self._remaining_lines -= line_count
        html = highlight(code, get_lexer_by_name(language, stripnl=False), _FORMATTER)
        return _CLEANER.clean(f"<pre><code>{html}</code></pre>")


def valid(text: str) -> str:
    """Return a text that UTF-8 can represent, with lines that end with a newline."""
    if not text.isascii():
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def difference(old: str, new: str) -> str:
    """Return the lines of a diff of two texts, without the names of files.

    For large texts, these are all old lines and then all new lines.
    """
    old_lines = valid(old).split("\n") if old else []
    new_lines = valid(new).split("\n") if new else []
    is_large = len(old_lines) + len(new_lines) > MAX_CODE_LINES
    if is_large or len(old) + len(new) > MAX_CODE_CHARS:
        removed = [f"-{line}" for line in old_lines]
        added = [f"+{line}" for line in new_lines]
        return "\n".join([*removed, *added])
    diff = list(difflib.unified_diff(old_lines, new_lines, lineterm="", n=3))
    return "\n".join(diff[2:])


def language_of(path: str) -> str:
    """Return the language of a file, by its name. Empty: it is not known."""
    name = path.rpartition("/")[2]
    patterns = _languages()[1]
    return patterns.get(name) or patterns.get(f"*.{name.rpartition('.')[2]}", "")


def _diff(text: str) -> Markup:
    """Return a diff as HTML. Lines that begin with `+` or `-` are marked."""
    kinds = {"+": "ins", "-": "del", "@": "span", "*": "span"}
    lines = (
        _element(kinds[line[0]], line) if line[:1] in kinds else escape(line)
        for line in text.split("\n")
    )
    return Markup('<pre class="diff">{}</pre>').format(Markup("\n").join(lines))


@cache
def _languages() -> tuple[frozenset[str], dict[str, str]]:
    """Return the names of all languages, and one for each pattern of file names.

    Pygments' own look-up reads all packages each time.
    """
    languages = [
        (aliases, patterns) for _, aliases, patterns, _ in get_all_lexers(plugins=False) if aliases
    ]
    # Of several languages, the one with the shortest name comes last, so that it counts.
    languages.sort(key=lambda language: -len(language[0][0]))
    names: set[str] = set()
    name_by_pattern: dict[str, str] = {}
    for aliases, patterns in languages:
        names.update(alias.lower() for alias in aliases)
        name_by_pattern.update((pattern, aliases[0]) for pattern in patterns)
    return frozenset(names), name_by_pattern


def _element(name: str, text: str) -> Markup:
    return Markup("<{0}>{1}</{0}>").format(name, text)


@cache
def _markdown() -> Any:
    """Return the parser of Markdown, without HTML and with tables.

    Images become links, and headings come below those of the page.
    """
    parser = MarkdownIt("commonmark", {"html": False, "maxNesting": _MAX_NESTING})
    parser.enable(["table", "strikethrough"])
    parser.validateLink = lambda url: _LINK.match(url) is not None  # type: ignore[method-assign]
    parser.core.ruler.push("of_messages", _adapt)
    parser.add_render_rule("fence", _fence)
    parser.add_render_rule("image", _image)
    return parser


def _adapt(state: Any) -> None:
    """Change the tokens of a text: headings, tables, and images in links."""
    for token in state.tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = f"h{min(int(token.tag[1]) + 2, 6)}"
        style = token.attrs.pop("style", None)
        if isinstance(style, str):
            token.attrs["align"] = style.removeprefix("text-align:")
        if token.type == "table_open":  # A wide one is scrolled, by the keyboard too.
            token.attrs["tabindex"] = "0"
        link_depth = 0
        for child in token.children or ():
            if child.type.startswith("link_"):
                link_depth += child.nesting
            if child.type == "image" and link_depth:  # A link can't be inside another one.
                child.attrs["src"] = ""


def _fence(renderer: Any, tokens: Any, position: int, options: Any, env: Any) -> str:
    token = tokens[position]
    return str(env["texts"].code(token.content.removesuffix("\n"), token.info))


def _image(renderer: Any, tokens: Any, position: int, options: Any, env: Any) -> str:
    url = tokens[position].attrs["src"]
    description = tokens[position].content
    name = f"[image: {description}]" if description else "[image]"
    return Markup('<a href="{}">{}</a>').format(url, name) if url else escape(name)
