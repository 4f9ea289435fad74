"""Changes of what stands in the head of a conversation: its title, its tags, what it is marked as.

What must stay true: what isn't asked to change stays as it is. A title that a person gave is never replaced by a
suggestion that they didn't agree to, however the two come together; and what they agreed to replace is what they were
shown. What a title or a tag may be is `capsule.format.text.titles`' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.format.merge.conflicts import settled
from capsule.format.servers import switched
from capsule.format.text.titles import check_tags, check_title, title_by_rule

if TYPE_CHECKING:
    from capsule.format.head import Head
    from capsule.store.store import Store


class _NamedByAPerson(Exception):
    """The title stays; it never leaves this module."""


class Titles:
    """Titles that are suggested, by a model or by rule."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_rule(self, id: str) -> str:
        """Make the title that the first user message with a word in it gives; else an empty text.

        Raises and costs as `load`.

        Args:
            id: The conversation.
        """
        return title_by_rule(self._store.document(id)["history"])

    def suggest(self, id: str, title: str, *, instead_of: str = "") -> Head | None:
        """Give a conversation a title, unless a person named it.

        Args:
            id: The conversation.
            title: The title.
            instead_of: The title that a person gave and agreed to replace. It is replaced if it is still that one.

        Returns:
            The head. None: a person gave another title, and nothing was changed.

        Raises and costs as `rename`.
        """
        title = check_title(title)

        def change(head: dict[str, Any]) -> None:
            metadata, standing = head["metadata"], head["title"]
            if standing and metadata.get("titleSetBy") != "auto":
                if standing != instead_of:
                    raise _NamedByAPerson
                entitle(head, title, "user")
            else:
                entitle(head, title, "auto")

        try:
            return self._store._change_head(id, change)
        except _NamedByAPerson:
            return None


def entitle(head: dict[str, Any], title: str, by: str) -> None:
    """Set the title in a head that has its new `updatedAt`; a person's has its time, and settles what was open.

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
        settled(metadata, "title")


def changed(
    title: str | None,
    by: str,
    instead_of: str | None,
    tags: Iterable[str] | None,
    tagged: Iterable[str],
    untagged: Iterable[str],
    flags: Mapping[str, bool | None],
    mcp_servers: Mapping[str, bool | None] | None,
) -> Callable[[dict[str, Any]], None]:
    """What makes these changes to a head; what is None stays as it is. `Store.update` says what they are.

    Raises:
        InvalidInput: One can't be accepted, or there is none.
    """
    if title is not None:
        title = check_title(title)
    wanted = None if tags is None else check_tags(tags)
    added, removed = check_tags(tagged), frozenset(untagged)
    switched({}, mcp_servers or {})  # Checked before a file is asked for.
    flags = {name: on for name, on in flags.items() if on is not None}
    if title is None and wanted is None and not (added or removed or flags or mcp_servers):
        raise InvalidInput("nothing to change was given: a title, tags, pinned, archived or mcpServers")

    def change(head: dict[str, Any]) -> None:
        metadata = head["metadata"]
        if title is not None:
            named = head["title"] and metadata.get("titleSetBy") != "auto"
            if instead_of is not None and named and head["title"] not in (instead_of, title):
                raise InvalidInput(
                    f"nothing was changed: the title is {head['title']!r} by now, which somebody gave it meanwhile"
                )
            was_open = by == "user" and settled(metadata, "title")
            if was_open or (head["title"], metadata.get("titleSetBy")) != (title, by):
                entitle(head, title, by)
        if wanted is not None:
            metadata["tags"] = wanted
        there = metadata.get("tags") or []
        if added or removed & set(there):
            kept = [tag for tag in there if tag not in removed]
            metadata["tags"] = [*kept, *(tag for tag in added if tag not in kept)]
        if mcp_servers:
            override(metadata, switched(metadata.get("mcpServers"), mcp_servers))
        for name, on in flags.items():
            if on or name in metadata:  # A flag that is off is left out, unless it is there already.
                metadata[name] = on

    return change


def override(metadata: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Set the overrides of MCP servers in the metadata of a head; no overrides are left out."""
    metadata["mcpServers"] = overrides
    if not overrides:
        del metadata["mcpServers"]
