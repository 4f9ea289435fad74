"""Changes of the head of a conversation: title, tags, flags, and which MCP servers are switched on
or off.

What must stay true: only the given fields change. A suggestion replaces a person's title only if
that person agreed, and only the title that the person was shown. `capsule.format.text.titles` has
the rules for titles and tags.

Overrides of MCP servers can wait for the next new conversation. They are copied into it before they
are cleared, so that after a crash they apply twice rather than not at all. Of two conversations
made at once, only one gets them. They are in a document, `overrides/next.json`, because a person's
choice can't be derived from other data.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capsule.format.documents.servers import check_server, switches_in, with_switches
from capsule.format.text.titles import automatic_title, check_title
from capsule.store.change.head_changes import set_overrides, set_title
from capsule.store.change.pending_overrides import (
    Overrides,
    change_pending_overrides,
    pending_overrides,
)

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.store.base import BaseStore


class _TitleSetByPerson(Exception):
    """A person gave the title, so it stays. The exception never leaves this module."""


class Titles:
    """Titles suggested by a model or by rule."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def by_rule(self, id: str) -> str:
        """Make a title from the first user message that contains a word. Empty: there is no such
        message.

        Args:
            id: The conversation.

        Raises NotFound, InvalidDocument. Cost: reading the file.
        """
        return automatic_title(self._store.document(id)["history"])

    def suggest(self, id: str, title: str, *, instead_of: str = "") -> Head | None:
        """Give a conversation a title, unless it has one from a person.

        Args:
            id: The conversation.
            title: The title.
            instead_of: A person's title that this person agreed to replace. It is replaced if it is
                still the title.

        Returns:
            The head. None: the conversation has another title from a person, and nothing was
            changed.

        Raises the errors of `append`. Cost: copying the file.
        """
        title = check_title(title)

        def change(head: dict[str, Any]) -> None:
            metadata, present = head["metadata"], head["title"]
            if present and metadata.get("titleSetBy") != "auto":
                if present != instead_of:
                    raise _TitleSetByPerson
                set_title(head, title, "user")
            else:
                set_title(head, title, "auto")

        try:
            return self._store.inner.change_head(id, change)
        except _TitleSetByPerson:
            return None


class McpServerSwitches:
    """The MCP servers that are switched on or off for a conversation, or for the next new one (an
    `id` of None).
    """

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def get(self, id: str | None) -> dict[str, bool]:
        """List the MCP servers that are switched on (True) or off (False) for a conversation.

        Args:
            id: The conversation. None: the next one that is made.

        Raises NotFound, InvalidDocument. Cost: reading the beginning of the file.
        """
        if id is not None:
            return self._store.head(id).mcp_servers
        return switches_in(pending_overrides(self._store.engine))

    def set(self, id: str | None, switches: Mapping[str, bool | None]) -> dict[str, bool]:
        """Switch MCP servers on or off for a conversation. Servers that are not named stay as they
        are.

        Args:
            id: The conversation. None: the next one that is made.
            switches: By the server's name: True for on, False for off, None for the default.

        Returns:
            All switches that the conversation then has.

        Raises the errors of `append`; InvalidInput if a name is not valid for a server. Cost:
        copying the file.
        """
        return self._override(id, lambda there: with_switches(there, switches))

    def toggle(self, id: str | None, name: str) -> dict[str, bool]:
        """Switch an MCP server off if it is on, and on if it is off. A server without a switch
        counts as on.

        Args:
            id: The conversation. None: the next one that is made.
            name: The server.

        Returns all switches. Raises the errors of `set`. Cost: copying the file.
        """
        check_server(name)
        return self._override(
            id, lambda there: with_switches(there, {name: not switches_in(there).get(name, True)})
        )

    def _override(self, id: str | None, change: Callable[[Any], Overrides]) -> dict[str, bool]:
        if id is None:
            return switches_in(change_pending_overrides(self._store.engine, change))

        def act(head: dict[str, Any]) -> None:
            set_overrides(head["metadata"], change(head["metadata"].get("mcpServers")))

        return self._store.inner.change_head(id, act).mcp_servers
