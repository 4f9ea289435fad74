"""Overrides of MCP servers: of a conversation, and those that wait for the next new one.

What must stay true: what waits is copied into a new conversation before it is cleared, so that a crash in between
has it apply twice and never not at all; two conversations that are made at once don't both get it. It stands in a
document of the store's own, `overrides/next.json`, as a person's choice is nothing that could be derived.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from capsule.errors import CapsuleError, InvalidDocument, Problem, StoreBusy
from capsule.format import codec, migrations
from capsule.format.fields import PARTS
from capsule.format.servers import check_server, overrides_in, switched, switches_in
from capsule.format.values import fault, kind_of
from capsule.storage.interface import Held, Interfered
from capsule.updating import Updating

if TYPE_CHECKING:
    from capsule.reading import Reading

__all__ = ["KIND_OF_OVERRIDES", "Overriding", "pending_problems", "problems_of"]

KIND_OF_OVERRIDES = "overrides"
_NEXT = "next"
_TRIES = 50
_FIELD = next(field for field in PARTS["metadata"] if field.name == "mcpServers")
_log = logging.getLogger("capsule")

Overrides = dict[str, Any]


class Overriding(Updating):
    """What an open store does with overrides of MCP servers. A base of `Store`, which knows how to write.

    Where an `id` is None, the overrides are meant that wait for the next new conversation.
    """

    def mcp_servers(self, id: str | None) -> dict[str, bool]:
        """The MCP servers that are on (True) or off there, other than by default. Raises and costs as `head`."""
        if id is not None:
            return self.head(id).mcp_servers
        got = self.storage.read(KIND_OF_OVERRIDES, _NEXT)
        return switches_in(_decoded(got[0], self._pending_path)["mcpServers"]) if got else {}

    def set_mcp_servers(self, id: str | None, switches: Mapping[str, bool | None]) -> dict[str, bool]:
        """Switch MCP servers on (True), off (False), or back to the default (None); the others stay as they are.

        Returns:
            All overrides there are then.

        Raises as `append`; also
            InvalidInput: A name can't be one.
        """
        return self._override(id, lambda there: switched(there, switches))

    def toggle_mcp_server(self, id: str | None, name: str) -> dict[str, bool]:
        """Switch an MCP server off that is on, and on that is off; one without an override counts as on.

        Returns and raises as `set_mcp_servers`.
        """
        check_server(name)
        return self._override(id, lambda there: switched(there, {name: not switches_in(there).get(name, True)}))

    def _override(self, id: str | None, change: Callable[[Any], Overrides]) -> dict[str, bool]:
        if id is None:
            return switches_in(self._change_pending(change))
        after: Overrides = {}

        def act(head: dict[str, Any]) -> None:
            after.clear()
            after.update(change(head["metadata"].get("mcpServers")))
            head["metadata"]["mcpServers"] = dict(after)
            if not after:
                del head["metadata"]["mcpServers"]

        self._change_head(id, act)
        return switches_in(after)

    # -- What waits for the next new conversation --------------------------------------------------------------------

    @property
    def _pending_path(self) -> str:
        return self.storage.path(KIND_OF_OVERRIDES, _NEXT)

    def _change_pending(self, change: Callable[[Any], Overrides]) -> Overrides:
        for _ in range(_TRIES):
            try:
                with self.storage.mutex(KIND_OF_OVERRIDES, _NEXT) as held:
                    return _write(held, change)
            except Interfered:
                continue
        raise StoreBusy(
            f"{self._pending_path} keeps being rewritten by another program; try again when it is done",
            id=_NEXT,
            holder="another program",
        )

    @contextmanager
    def _pending_overrides(self) -> Iterator[Overrides | None]:
        """What a new conversation is to begin with; cleared when the body has made it, and kept when it raised.

        Costs a look for the file when nothing waits. The document's mutex is held meanwhile when something does.
        """
        got = None
        if self.storage.exists(KIND_OF_OVERRIDES, _NEXT):
            got = self.storage.read(KIND_OF_OVERRIDES, _NEXT)
        if got is None or not _decoded(got[0], self._pending_path)["mcpServers"]:
            yield None
            return
        with self.storage.mutex(KIND_OF_OVERRIDES, _NEXT) as held:
            got = held.read()
            pending = overrides_in(_decoded(got[0], held.path)["mcpServers"]) if got else {}
            yield pending or None
            try:
                self._clear(held, pending)
            except CapsuleError as error:
                # The conversation is there: an error would have it made again.
                _log.warning(
                    "the overrides of MCP servers in %s are in the new conversation and could not be cleared, so the "
                    "next one gets them too: %s",
                    held.path,
                    error.message,
                )

    def _clear(self, held: Held, pending: Overrides) -> None:
        """Take out what went into a conversation; what a person wrote there meanwhile stays."""

        def without(there: Any) -> Overrides:
            return {name: override for name, override in overrides_in(there).items() if pending.get(name) != override}

        for _ in range(_TRIES):
            try:
                _write(held, without)
                return
            except Interfered:
                continue
        raise StoreBusy(f"{held.path} keeps being rewritten", id=_NEXT, holder="another program")


def pending_problems(reading: Reading) -> list[Problem]:
    """What is wrong with the document of the overrides that wait; nothing, when there is none."""
    path = reading.storage.path(KIND_OF_OVERRIDES, _NEXT)
    try:
        if not reading.storage.exists(KIND_OF_OVERRIDES, _NEXT):
            return []
        got = reading.storage.read(KIND_OF_OVERRIDES, _NEXT)
    except InvalidDocument as error:
        return list(error.problems)
    except CapsuleError as error:
        return [Problem(path, 0, 0, "", error.message.removeprefix(f"{path}: "))]
    return problems_of(got[0], path) if got is not None else []


def problems_of(data: bytes, path: str) -> list[Problem]:
    """What is wrong with a file of overrides that wait; nothing when all is well."""
    try:
        _decoded(data, path)
    except InvalidDocument as error:
        return list(error.problems)
    return []


def _write(held: Held, change: Callable[[Any], Overrides]) -> Overrides:
    got = held.read()
    document = _decoded(got[0], held.path) if got else {"version": migrations.CURRENT, "mcpServers": {}}
    after = change(document["mcpServers"])
    if got is None and not after:
        return after
    document["mcpServers"] = after
    held.replace(got[1] if got else None, codec.encode(document), None, [])
    return after


def _decoded(data: bytes, path: str) -> dict[str, Any]:
    """The document, `mcpServers` in it. Raises InvalidDocument, which says the way out."""
    try:
        document = codec.decode(data, path)
        for where, wrong in _wrong(document):
            raise InvalidDocument.of([Problem(path, *codec.locate(data, (where,)), where, wrong)])
    except InvalidDocument as error:
        problem = error.problems[0]
        what = f"{problem.what}; correct the file or remove it: it holds what the next new conversation begins with"
        told = Problem(path, problem.line, problem.column, problem.where, what)
        raise InvalidDocument.of([told]) from None
    return document


def _wrong(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    had = document.get("version", migrations.CURRENT)
    version = migrations.parse_version(had)
    if version is None:
        yield "version", f'must be a text like "2.1", is {kind_of(had)}'
    elif version[0] != migrations.KNOWN[0]:
        yield "version", migrations.too_new(had) if version > migrations.KNOWN else "must be 2.1"
    servers = document.setdefault("mcpServers", {})
    if wrong := fault(_FIELD, servers) if servers is not None else f"must be an object, is {kind_of(servers)}":
        yield "mcpServers", wrong
