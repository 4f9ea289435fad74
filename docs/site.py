"""A hook of mkdocs: on the site, a link to a file of the repository that is no page is
plain text.
"""

from __future__ import annotations

import re
from typing import Any


def on_page_markdown(markdown: str, **_: Any) -> str:
    """The text of a page as the site has it."""
    return re.sub(r"\[([^\]]+)\]\(\.\./[^)]*\)", r"\1", markdown)
