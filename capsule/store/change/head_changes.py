"""Changes of a head that need only the head: its title, tags, flags, and switches of MCP servers.

`Store.update` passes what `head_change` returns to `Inner.change_head`, which writes it. The
functions change a parsed head in place, and touch no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from capsule.errors import InvalidInput
from capsule.format.documents.servers import with_switches
from capsule.format.merge.annotations import remove_conflict
from capsule.format.text.titles import check_tags, check_title
from capsule.store.change.pending_overrides import (
    Overrides,
)


def set_title(head: dict[str, Any], title: str, by: str) -> None:
    """Set the title in a head with its new `updatedAt`. A person's title is dated, and settles a
    conflict about it.

    Args:
        head: The head, changed in place.
        title: The title, checked.
        by: `user` or `auto`.
    """
    metadata = head["metadata"]
    head["title"] = title
    metadata["titleSetBy"] = by
    metadata.pop("titleSetAt", None)
    if by == "user":
        metadata["titleSetAt"] = head["updatedAt"]
        remove_conflict(metadata, "title")


def head_change(
    title: str | None,
    by: str,
    instead_of: str | None,
    tags: Iterable[str] | None,
    tagged: Iterable[str],
    untagged: Iterable[str],
    flags: Mapping[str, bool | None],
    mcp_servers: Mapping[str, bool | None] | None,
) -> Callable[[dict[str, Any]], None]:
    """The function that makes these changes to a head. The arguments are those of `Store.update`.

    Raises:
        InvalidInput: A value can't be accepted, or nothing is to be changed.
    """
    if title is not None:
        title = check_title(title)
    wanted = None if tags is None else check_tags(tags)
    added, removed = check_tags(tagged), frozenset(untagged)
    with_switches({}, mcp_servers or {})  # Checked before any file is opened.
    flags = {name: on for name, on in flags.items() if on is not None}
    if title is None and wanted is None and not (added or removed or flags or mcp_servers):
        raise InvalidInput(
            "there is nothing to change; give a title, tags, pinned, archived or mcpServers"
        )

    def change(head: dict[str, Any]) -> None:
        metadata = head["metadata"]
        if title is not None:
            named = head["title"] and metadata.get("titleSetBy") != "auto"
            if instead_of is not None and named and head["title"] not in (instead_of, title):
                raise InvalidInput(
                    f"nothing was changed: the conversation was renamed to {head['title']!r} "
                    "meanwhile"
                )
            was_open = by == "user" and remove_conflict(metadata, "title")
            if was_open or (head["title"], metadata.get("titleSetBy")) != (title, by):
                set_title(head, title, by)
        if wanted is not None:
            metadata["tags"] = wanted
        present = metadata.get("tags") or []
        if added or removed & set(present):
            kept = [tag for tag in present if tag not in removed]
            metadata["tags"] = [*kept, *(tag for tag in added if tag not in kept)]
        if mcp_servers:
            set_overrides(metadata, with_switches(metadata.get("mcpServers"), mcp_servers))
        for name, on in flags.items():
            if on or name in metadata:  # A flag that is off is not added.
                metadata[name] = on

    return change


def set_overrides(metadata: dict[str, Any], overrides: Overrides) -> None:
    """Set the overrides of MCP servers in the metadata of a head; an empty set removes
    the field.
    """
    metadata["mcpServers"] = overrides
    if not overrides:
        del metadata["mcpServers"]
