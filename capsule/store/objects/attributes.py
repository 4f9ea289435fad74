"""Suggested titles of conversations, and the MCP servers that are switched on or off in them.

Both are fields of the head. `capsule.format.text.titles` makes titles by rule. The *overrides* of a
conversation are the whole value of `metadata.mcpServers`. Its *switches* are the part of them that
switches servers on or off, as a dict of booleans. Switches can be set before there is a
conversation. `capsule.store.change.pending_overrides` stores the overrides for the next new one.

What must stay true: only the given fields change. A suggestion replaces a person's title only if
that person agreed, and only the title that the person was shown.
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
    """Ends a write that would replace a person's title. The exception never leaves this module."""


class Titles:
    """Titles suggested by a model or by rule."""

    def __init__(self, store: BaseStore) -> None:
        self._store = store

    def by_rule(self, id: str) -> str:
        """Make a title from the first user message that contains a word. Empty if no message does.

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

        Raises the errors of `append`, and InvalidInput if the title is not valid. Cost: copying the
        file.
        """
        title = check_title(title)

        def change(head: dict[str, Any]) -> None:
            is_persons_title = head["title"] and head["metadata"].get("titleSetBy") != "auto"
            if not is_persons_title:
                set_title(head, title, "auto")
            elif head["title"] == instead_of:
                # The person agreed to it, so from now on it counts as this person's title.
                set_title(head, title, "user")
            else:
                raise _TitleSetByPerson

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
        """Switch MCP servers on or off for a conversation. Servers that are not named do not
        change.

        Args:
            id: The conversation. None: the next one that is made.
            switches: By the server's name: True for on, False for off, None for the default.

        Returns:
            All switches that the conversation then has.

        Raises the errors of `append`, and InvalidInput if a name is not valid for a server.

        Cost: copying the file. Without a conversation: writing a small file.
        """
        return self._override(id, lambda overrides: with_switches(overrides, switches))

    def toggle(self, id: str | None, name: str) -> dict[str, bool]:
        """Switch an MCP server off if it is on, and on if it is off. A server without a switch
        counts as on.

        Args:
            id: The conversation. None: the next one that is made.
            name: The server.

        Returns all switches. Raises the errors of `set`. Cost: as `set`.
        """
        check_server(name)

        def toggled(overrides: Any) -> Overrides:
            is_on = switches_in(overrides).get(name, True)
            return with_switches(overrides, {name: not is_on})

        return self._override(id, toggled)

    def _override(self, id: str | None, change: Callable[[Any], Overrides]) -> dict[str, bool]:
        """Change the overrides of a conversation, or the pending ones, and return the switches.

        `change` takes the present overrides, which may be missing or of any type. It runs again if
        another program wrote meanwhile.
        """
        if id is None:
            return switches_in(change_pending_overrides(self._store.engine, change))

        def change_overrides(head: dict[str, Any]) -> None:
            set_overrides(head["metadata"], change(head["metadata"].get("mcpServers")))

        return self._store.inner.change_head(id, change_overrides).mcp_servers
