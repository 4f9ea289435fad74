"""Changes of the head of a conversation: title, tags, flags.

What must stay true: only the given fields change. A suggestion replaces a person's title only if that person agreed,
and only the title that the person was shown. `capsule.format.text.titles` has the rules for titles and tags.
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
    """A person gave the title, so it stays. The exception never leaves this module."""


class Titles:
    """Titles suggested by a model or by rule."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def by_rule(self, id: str) -> str:
        """Make a title from the first user message that contains a word. Empty: there is no such message.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        return title_by_rule(self._store.document(id)["history"])

    def suggest(self, id: str, title: str, *, instead_of: str = "") -> Head | None:
        """Give a conversation a title, unless it has one from a person.

        Args:
            id: The conversation.
            title: The title.
            instead_of: A person's title that this person agreed to replace. It is replaced if it is still the title.

        Returns:
            The head. None: the conversation has another title from a person, and nothing was changed.

        Raises the errors of `append`. Cost: copying the file.
        """
        title = check_title(title)

        def change(head: dict[str, Any]) -> None:
            metadata, present = head["metadata"], head["title"]
            if present and metadata.get("titleSetBy") != "auto":
                if present != instead_of:
                    raise _NamedByAPerson
                entitle(head, title, "user")
            else:
                entitle(head, title, "auto")

        try:
            return self._store._change_head(id, change)
        except _NamedByAPerson:
            return None


def entitle(head: dict[str, Any], title: str, by: str) -> None:
    """Set the title in a head with its new `updatedAt`. A person's title is dated, and settles a conflict about it.

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
    """The function that makes these changes to a head. The arguments are those of `Store.update`.

    Raises:
        InvalidInput: A value can't be accepted, or nothing is to be changed.
    """
    if title is not None:
        title = check_title(title)
    wanted = None if tags is None else check_tags(tags)
    added, removed = check_tags(tagged), frozenset(untagged)
    switched({}, mcp_servers or {})  # Checked before any file is opened.
    flags = {name: on for name, on in flags.items() if on is not None}
    if title is None and wanted is None and not (added or removed or flags or mcp_servers):
        raise InvalidInput("there is nothing to change; give a title, tags, pinned, archived or mcpServers")

    def change(head: dict[str, Any]) -> None:
        metadata = head["metadata"]
        if title is not None:
            named = head["title"] and metadata.get("titleSetBy") != "auto"
            if instead_of is not None and named and head["title"] not in (instead_of, title):
                raise InvalidInput(f"nothing was changed: the conversation was renamed to {head['title']!r} meanwhile")
            was_open = by == "user" and settled(metadata, "title")
            if was_open or (head["title"], metadata.get("titleSetBy")) != (title, by):
                entitle(head, title, by)
        if wanted is not None:
            metadata["tags"] = wanted
        present = metadata.get("tags") or []
        if added or removed & set(present):
            kept = [tag for tag in present if tag not in removed]
            metadata["tags"] = [*kept, *(tag for tag in added if tag not in kept)]
        if mcp_servers:
            override(metadata, switched(metadata.get("mcpServers"), mcp_servers))
        for name, on in flags.items():
            if on or name in metadata:  # A flag that is off is not added.
                metadata[name] = on

    return change


def override(metadata: dict[str, Any], overrides: dict[str, Any]) -> None:
    """Set the overrides of MCP servers in the metadata of a head; an empty set removes the field."""
    metadata["mcpServers"] = overrides
    if not overrides:
        del metadata["mcpServers"]
