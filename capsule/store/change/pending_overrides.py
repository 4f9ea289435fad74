"""The switches of MCP servers that were set while there was no conversation, for the next new one.

They are one document (`overrides/next`). The next new conversation gets them, and then they are
cleared. Two processes that make a conversation take turns by a lease, so only one of the two
conversations gets them. If the file can't be parsed, no conversation is made until it is corrected
or removed.

What must stay true: the switches are written into the new conversation before they are cleared. A
crash in between gives them to two conversations, and loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.engines.interface import edit_document
from capsule.errors import CapsuleError, InvalidDocument, Problem
from capsule.format import migrations
from capsule.format.documents import creation
from capsule.format.documents.servers import overrides_in
from capsule.format.fields import PARTS
from capsule.format.json import codec, locations
from capsule.format.validation import problem_with

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.format.documents.head import Head


KIND_OF_OVERRIDES = "overrides"
_NEXT = "next"
#: How long a new conversation waits for another one that takes them, in seconds.
_PATIENCE_S = 10.0
_FIELD = next(field for field in PARTS["metadata"] if field.name == "mcpServers")
_log = logging.getLogger("capsule")
Overrides = dict[str, Any]


def _path(engine: Engine) -> str:
    return engine.name(KIND_OF_OVERRIDES, _NEXT)


def pending_overrides(engine: Engine) -> Overrides:
    """Return the overrides for the next new conversation."""
    if not engine.exists(KIND_OF_OVERRIDES, _NEXT):
        return {}
    document = _decoded(engine.read(KIND_OF_OVERRIDES, _NEXT), _path(engine))
    return overrides_in(document["mcpServers"])


def change_pending_overrides(engine: Engine, change: Callable[[Overrides], Overrides]) -> Overrides:
    """Change the pending overrides, and return them. `change` runs again if another program wrote
    them meanwhile.
    """
    new_overrides: Overrides = {}

    def edit(data: bytes | None) -> bytes | None:
        nonlocal new_overrides
        if data is None:
            document = {"version": creation.FORMAT_VERSION, "mcpServers": {}}
        else:
            document = _decoded(data, _path(engine))
        old_overrides = overrides_in(document["mcpServers"])
        new_overrides = change(old_overrides)
        if new_overrides == old_overrides:
            return None
        return codec.encode(document | {"mcpServers": new_overrides})

    edit_document(engine, KIND_OF_OVERRIDES, _NEXT, edit)
    return new_overrides


def create_with_pending_overrides(engine: Engine, make: Callable[[Overrides | None], Head]) -> Head:
    """Make a conversation with the pending overrides, and clear them. Another process that makes a
    conversation waits meanwhile, and gets none.

    Args:
        engine: The engine.
        make: Makes the conversation. Gets the overrides, or None if there are none.
    """
    if not pending_overrides(engine):
        return make(None)

    with engine.leases.acquire(KIND_OF_OVERRIDES, timeout_s=_PATIENCE_S):
        applied = pending_overrides(engine)
        head = make(applied or None)

        def without_applied(overrides: Overrides) -> Overrides:
            return {name: is_on for name, is_on in overrides.items() if applied.get(name) != is_on}

        try:
            change_pending_overrides(engine, without_applied)
        except CapsuleError as error:
            # The conversation exists: after an error the caller would make it again.
            _log.warning(
                "the overrides of MCP servers in %s are in the new conversation and could not be "
                "cleared, so the next "
                "one gets them too: %s",
                _path(engine),
                error,
            )
    return head


def pending_override_problems(engine: Engine) -> list[Problem]:
    """Return the problems of the document of pending overrides. Without a document there are
    none.
    """
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
    """Return the problems of a file of pending overrides."""
    try:
        _decoded(data, path)
    except InvalidDocument as error:
        return list(error.problems)
    return []


def _decoded(data: bytes, path: str) -> dict[str, Any]:
    """Return the document, with `mcpServers`. Raises InvalidDocument, which says what to do."""
    try:
        document = codec.decode(data, path)
        for field, reason in _field_problems(document):
            line, column = locations.locate(data, (field,))
            raise InvalidDocument.of([Problem(path, line, column, field, reason)])
    except InvalidDocument as error:
        problem = error.problems[0]
        advice = (
            "correct the file or remove it: it holds the MCP switches of the next new conversation"
        )
        raise InvalidDocument.of(
            [replace(problem, path=path, what=f"{problem.what}; {advice}")]
        ) from None
    return document


def _field_problems(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield each problem, as the field and the reason, and add a missing `mcpServers`."""
    version = document.get("version", creation.FORMAT_VERSION)
    parsed = migrations.parse_version(version)
    if parsed is None:
        yield "version", f'must be a text like "2.1", is {codec.kind_of(version)}'
    elif parsed[0] != migrations.LATEST_VERSION[0]:
        if parsed > migrations.LATEST_VERSION:
            yield "version", migrations.newer_version_message(version)
        else:
            yield "version", "must be 2.1"
    servers = document.setdefault("mcpServers", {})
    if servers is None:
        reason = f"must be an object, is {codec.kind_of(servers)}"
    else:
        reason = problem_with(_FIELD, servers)
    if reason:
        yield "mcpServers", reason
