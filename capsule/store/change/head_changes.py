"""Changes of a head that need only the head: its title, tags, flags, and switches of MCP servers.

`Store.update` passes the result of `head_change` to `StoreInternals.change_head`, which writes the
head. The functions here change a parsed head in place, and touch no file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from capsule.errors import InvalidInput
from capsule.format.documents.servers import with_switches
from capsule.format.merge.annotations import remove_conflict
from capsule.format.text.titles import check_tags, check_title
from capsule.store.change.pending_overrides import Overrides

Head = dict[str, Any]


def set_title(head: Head, title: str, by: str) -> None:
    """Set the title in a head that has its new `updatedAt`. A person's title gets this time, and
    settles a conflict about the title.

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
) -> Callable[[Head], None]:
    """Return a function that makes these changes to a head. The arguments are those of
    `Store.update`.

    Raises:
        InvalidInput: A value can't be accepted, or there is nothing to change.
    """
    new_title = None if title is None else check_title(title)
    new_tags = None if tags is None else check_tags(tags)
    added_tags = check_tags(tagged)
    removed_tags = frozenset(untagged)
    with_switches({}, mcp_servers or {})  # Checked before any file is opened.
    new_flags = {name: is_on for name, is_on in flags.items() if is_on is not None}
    changes_other_fields = any([added_tags, removed_tags, new_flags, mcp_servers])
    if new_title is None and new_tags is None and not changes_other_fields:
        raise InvalidInput(
            "there is nothing to change; give a title, tags, pinned, archived or mcpServers"
        )

    def change(head: Head) -> None:
        metadata = head["metadata"]
        if new_title is not None:
            _change_title(head, new_title, by, instead_of)
        if new_tags is not None:
            metadata["tags"] = new_tags
        _change_tags(metadata, added_tags, removed_tags)
        if mcp_servers:
            set_overrides(metadata, with_switches(metadata.get("mcpServers"), mcp_servers))
        _set_flags(metadata, new_flags)

    return change


def _change_title(head: Head, title: str, by: str, instead_of: str | None) -> None:
    """Give a head a title, unless it has this title from the same origin.

    Raises InvalidInput: a person's title is neither the new one nor `instead_of`, the one that the
    new title replaces.
    """
    metadata = head["metadata"]
    is_persons_title = head["title"] and metadata.get("titleSetBy") != "auto"
    if instead_of is not None and is_persons_title and head["title"] not in (instead_of, title):
        raise InvalidInput(
            f"nothing was changed: the conversation was renamed to {head['title']!r} meanwhile"
        )
    settles_conflict = by == "user" and remove_conflict(metadata, "title")
    if settles_conflict or (head["title"], metadata.get("titleSetBy")) != (title, by):
        set_title(head, title, by)


def _change_tags(metadata: Head, added: list[str], removed: frozenset[str]) -> None:
    """Add and remove tags. Added ones come last, and a tag is never there twice."""
    present = metadata.get("tags") or []
    if added or removed & set(present):
        remaining = [tag for tag in present if tag not in removed]
        new = [tag for tag in added if tag not in remaining]
        metadata["tags"] = remaining + new


def _set_flags(metadata: Head, flags: Mapping[str, bool]) -> None:
    """Set flags. A flag that is off is not added."""
    for name, is_on in flags.items():
        if is_on or name in metadata:
            metadata[name] = is_on


def set_overrides(metadata: Head, overrides: Overrides) -> None:
    """Set the overrides of MCP servers in the metadata of a head. An empty set removes
    the field.
    """
    metadata["mcpServers"] = overrides
    if not overrides:
        del metadata["mcpServers"]
