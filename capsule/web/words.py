"""Small texts of the templates: times, sizes, counts. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from capsule.timestamps import blank_if_unknown

if TYPE_CHECKING:
    from capsule.engines.queries import Snippet


def when(stamp: Any) -> Markup:
    """A time as the page has it: in UTC, until the script writes it in the reader's zone; nothing
    if it is unknown.
    """
    text = blank_if_unknown(stamp if isinstance(stamp, str) else "")
    if not text:
        return Markup()
    return Markup('<time datetime="{}">{} UTC</time>').format(text, text[:16].replace("T", " "))


def address(*parts: str, **asked: Any) -> str:
    """An address of the page: the parts of the path, quoted, and what is asked of it; what is empty
    is left out.
    """
    path = "/" + "/".join(quote(part, safe="@") for part in parts)
    query = urlencode(
        {name: value for name, value in asked.items() if value not in (None, "", (), [])},
        doseq=True,
    )
    return f"{path}?{query}" if query else path


def count(number: int, one: str, many: str = "") -> str:
    """A number of things: `1 message`, `2 messages`."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def size(bytes: int) -> str:
    """A number of bytes, for people."""
    value = float(bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def marked(snippet: Snippet) -> Markup:
    """A piece of a text in which what was looked for is marked."""
    made, at = Markup(), 0
    for begin, end in snippet.marks:
        made += Markup("{}<mark>{}</mark>").format(snippet.text[at:begin], snippet.text[begin:end])
        at = end
    return made + snippet.text[at:]


FILTERS = {"when": when, "count": count, "size": size, "marked": marked}
