"""Overrides of MCP servers: of a conversation, and those that wait for the next new one.

What must stay true: waiting overrides are copied into a new conversation before they are cleared, so that after a crash
they apply twice rather than not at all. Of two conversations made at once, only one gets them. They are in a document,
`overrides/next.json`, because a person's choice can't be derived from other data.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.engines.files.engine import again
from capsule.errors import CapsuleError, InvalidDocument, Problem
from capsule.format import codec, migrations, new
from capsule.format.fields import PARTS
from capsule.format.servers import check_server, overrides_in, switched, switches_in
from capsule.format.text import places
from capsule.format.values import fault, kind_of
from capsule.store.attributes import override

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.format.head import Head
    from capsule.store.store import Store

KIND_OF_OVERRIDES = "overrides"
_NEXT = "next"
_TRIES = 50
_FIELD = next(field for field in PARTS["metadata"] if field.name == "mcpServers")
_log = logging.getLogger("capsule")

Overrides = dict[str, Any]


class Servers:
    """The MCP servers that are switched on or off for a conversation, or for the next new one (an `id` of None)."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def get(self, id: str | None) -> dict[str, bool]:
        """List the MCP servers that are switched on (True) or off (False) for a conversation.

        Args:
            id: The conversation. None: the next one that is made.

        Raises NotFound, InvalidDocument. Cost: reading the beginning of the file.
        """
        if id is not None:
            return self._store.head(id).mcp_servers
        return switches_in(_waiting(self._store.engine))

    def set(self, id: str | None, switches: Mapping[str, bool | None]) -> dict[str, bool]:
        """Switch MCP servers on or off for a conversation. Servers that are not named stay as they are.

        Args:
            id: The conversation. None: the next one that is made.
            switches: By the server's name: True for on, False for off, None for the default.

        Returns:
            All switches that the conversation then has.

        Raises the errors of `append`; InvalidInput if a name is not valid for a server. Cost: copying the file.
        """
        return self._override(id, lambda there: switched(there, switches))

    def toggle(self, id: str | None, name: str) -> dict[str, bool]:
        """Switch an MCP server off if it is on, and on if it is off. A server without a switch counts as on.

        Args:
            id: The conversation. None: the next one that is made.
            name: The server.

        Returns all switches. Raises the errors of `set`. Cost: copying the file.
        """
        check_server(name)
        return self._override(id, lambda there: switched(there, {name: not switches_in(there).get(name, True)}))

    def _override(self, id: str | None, change: Callable[[Any], Overrides]) -> dict[str, bool]:
        if id is None:
            return switches_in(_change_waiting(self._store.engine, change))

        def act(head: dict[str, Any]) -> None:
            override(head["metadata"], change(head["metadata"].get("mcpServers")))

        return self._store._change_head(id, act).mcp_servers


def _path(engine: Engine) -> str:
    return engine.name(KIND_OF_OVERRIDES, _NEXT)


def _waiting(engine: Engine) -> Overrides:
    """The overrides that wait."""
    if not engine.exists(KIND_OF_OVERRIDES, _NEXT):
        return {}
    return overrides_in(_decoded(engine.read(KIND_OF_OVERRIDES, _NEXT), _path(engine))["mcpServers"])


def _change_waiting(engine: Engine, change: Callable[[Overrides], Overrides]) -> Overrides:
    """Change the overrides that wait, and return them. `change` runs again if another program wrote them meanwhile."""
    after: Overrides = {}

    def edit(data: bytes | None) -> bytes | None:
        nonlocal after
        document = _nothing() if data is None else _decoded(data, _path(engine))
        there = overrides_in(document["mcpServers"])
        after = change(there)
        return None if after == there else codec.encode(document | {"mcpServers": after})

    again(lambda: engine.edit(KIND_OF_OVERRIDES, _NEXT, edit), _path(engine), _NEXT, _TRIES)
    return after


def with_waiting(engine: Engine, make: Callable[[Overrides | None], Head]) -> Head:
    """Make a conversation with the overrides that wait, and clear them. Their document is held meanwhile."""
    if not _waiting(engine):
        return make(None)
    made: list[Head] = []
    taken: Overrides = {}

    def take(there: Overrides) -> Overrides:
        nonlocal taken
        if not made:  # Else another program wrote the document meanwhile: its overrides stay.
            taken = there
            made.append(make(taken or None))
        return {name: value for name, value in there.items() if taken.get(name) != value}

    try:
        _change_waiting(engine, take)
    except CapsuleError as error:
        if not made:
            raise
        # The conversation exists: after an error the caller would make it again.
        _log.warning(
            "the overrides of MCP servers in %s are in the new conversation and could not be cleared, so the next one "
            "gets them too: %s",
            _path(engine),
            error,
        )
    return made[0]


def _nothing() -> dict[str, Any]:
    return {"version": new.CURRENT, "mcpServers": {}}


def waiting_problems(engine: Engine) -> list[Problem]:
    """The problems of the document of waiting overrides; empty if there is no document."""
    path = _path(engine)
    try:
        if not engine.exists(KIND_OF_OVERRIDES, _NEXT):
            return []
        return problems_of(engine.read(KIND_OF_OVERRIDES, _NEXT), path)
    except InvalidDocument as error:
        return list(error.problems)
    except CapsuleError as error:
        return [Problem(path, 0, 0, "", error.message.removeprefix(f"{path}: "))]


def problems_of(data: bytes, path: str) -> list[Problem]:
    """The problems of a file of waiting overrides."""
    try:
        _decoded(data, path)
    except InvalidDocument as error:
        return list(error.problems)
    return []


def _decoded(data: bytes, path: str) -> dict[str, Any]:
    """The document, with `mcpServers`. Raises InvalidDocument, which says what to do."""
    try:
        document = codec.decode(data, path)
        for where, wrong in _wrong(document):
            raise InvalidDocument.of([Problem(path, *places.locate(data, (where,)), where, wrong)])
    except InvalidDocument as error:
        problem = error.problems[0]
        advice = "correct the file or remove it: it holds the MCP switches of the next new conversation"
        raise InvalidDocument.of([replace(problem, path=path, what=f"{problem.what}; {advice}")]) from None
    return document


def _wrong(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    had = document.get("version", new.CURRENT)
    version = migrations.parse_version(had)
    if version is None:
        yield "version", f'must be a text like "2.1", is {kind_of(had)}'
    elif version[0] != migrations.KNOWN[0]:
        yield "version", migrations.too_new(had) if version > migrations.KNOWN else "must be 2.1"
    servers = document.setdefault("mcpServers", {})
    if wrong := fault(_FIELD, servers) if servers is not None else f"must be an object, is {kind_of(servers)}":
        yield "mcpServers", wrong
