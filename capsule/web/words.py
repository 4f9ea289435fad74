"""Filters and functions of the templates: times, sizes, counts, addresses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from markupsafe import Markup

from capsule.timestamps import blank_if_unknown

if TYPE_CHECKING:
    from capsule.engines.queries import Snippet


def when(stamp: Any) -> Markup:
    """Return a time in UTC as HTML. A script of the page shows it in the reader's time zone.

    Returns nothing if the time is unknown.
    """
    text = blank_if_unknown(stamp if isinstance(stamp, str) else "")
    if not text:
        return Markup()
    return Markup('<time datetime="{}">{} UTC</time>').format(text, text[:16].replace("T", " "))


def address(*parts: str, **parameters: Any) -> str:
    """Return an address of a page, from the parts of its path and its parameters that are not empty."""
    path = "/" + "/".join(quote(part, safe="@") for part in parts)
    present = {name: value for name, value in parameters.items() if value not in (None, "", (), [])}
    query = urlencode(present, doseq=True)
    return f"{path}?{query}" if query else path


def count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: `1 message`, `2 messages`."""
    if number == 1:
        return f"{number:,} {singular}"
    return f"{number:,} {plural or singular + 's'}"


def size(bytes: int) -> str:
    """Return a number of bytes with a unit."""
    value = float(bytes)
    for unit in ("bytes", "kB", "MB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "bytes" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} GB"


def marked(snippet: Snippet) -> Markup:
    """Return a snippet as HTML in which the matches are marked."""
    html = Markup()
    end_of_last = 0
    for start, end in snippet.marks:
        html += Markup("{}<mark>{}</mark>").format(
            snippet.text[end_of_last:start], snippet.text[start:end]
        )
        end_of_last = end
    return html + snippet.text[end_of_last:]


FILTERS = {"when": when, "count": count, "size": size, "marked": marked}
