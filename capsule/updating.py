"""Several changes to a conversation's head in one write."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from capsule.errors import InvalidInput
from capsule.format.servers import switched
from capsule.format.titles import check_tags, check_title

__all__ = ["head_change"]


def head_change(
    *,
    title: str | None = None,
    by: str = "user",
    instead_of: str | None = None,
    tags: Iterable[str] | None = None,
    pinned: bool | None = None,
    archived: bool | None = None,
    mcp_servers: Mapping[str, bool | None] | None = None,
) -> Callable[[dict[str, Any]], None]:
    """What makes these changes to a head; what is None stays as it is.

    Raises:
        InvalidInput: One can't be accepted, or there is none.
    """
    metadata: dict[str, Any] = {}
    if title is not None:
        title = check_title(title)
        metadata["titleSetBy"] = by
    if tags is not None:
        metadata["tags"] = check_tags(tags)
    switched({}, mcp_servers or {})  # Checked before a file is asked for.
    flags = {name: on for name, on in (("pinned", pinned), ("archived", archived)) if on is not None}
    if not metadata and not flags and not mcp_servers:
        raise InvalidInput("nothing to change was given: a title, tags, pinned, archived or mcpServers")

    def change(head: dict[str, Any]) -> None:
        if title is not None:
            named = head["title"] and head["metadata"].get("titleSetBy") != "auto"
            if instead_of is not None and named and head["title"] not in (instead_of, title):
                raise InvalidInput(
                    f"nothing was changed: the title is {head['title']!r} by now, which somebody gave it meanwhile"
                )
            head["title"] = title
        head["metadata"].update(metadata)
        if mcp_servers:
            overrides = switched(head["metadata"].get("mcpServers"), mcp_servers)
            head["metadata"]["mcpServers"] = overrides
            if not overrides:
                del head["metadata"]["mcpServers"]
        for name, on in flags.items():
            if on or name in head["metadata"]:  # A flag that is off is left out, unless it is there already.
                head["metadata"][name] = on

    return change
