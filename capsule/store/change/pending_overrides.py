"""The switches of MCP servers that were set before there is a conversation, for the next new one.

They are one document (`overrides/next`). The next conversation that is made gets them, and then
they are cleared. Two processes that make a conversation take turns by a lease, so only one of the
two conversations gets them.

What must stay true: the switches are written into the new conversation before they are cleared, so
a crash in between gives them to two conversations, and loses none.
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
    """The overrides that wait."""
    if not engine.exists(KIND_OF_OVERRIDES, _NEXT):
        return {}
    return overrides_in(
        _decoded(engine.read(KIND_OF_OVERRIDES, _NEXT), _path(engine))["mcpServers"]
    )


def change_pending_overrides(engine: Engine, change: Callable[[Overrides], Overrides]) -> Overrides:
    """Change the overrides that wait, and return them. `change` runs again if another program wrote
    them meanwhile.
    """
    after: Overrides = {}

    def edit(data: bytes | None) -> bytes | None:
        nonlocal after
        document = (
            {"version": creation.CURRENT, "mcpServers": {}}
            if data is None
            else _decoded(data, _path(engine))
        )
        there = overrides_in(document["mcpServers"])
        after = change(there)
        return None if after == there else codec.encode(document | {"mcpServers": after})

    edit_document(engine, KIND_OF_OVERRIDES, _NEXT, edit)
    return after


def create_with_pending_overrides(engine: Engine, make: Callable[[Overrides | None], Head]) -> Head:
    """Make a conversation with the overrides that wait, and clear them. Another one waits
    meanwhile, and gets none.
    """
    if not pending_overrides(engine):
        return make(None)
    with engine.leases.acquire(KIND_OF_OVERRIDES, timeout_s=_PATIENCE_S):
        taken = pending_overrides(engine)
        head = make(taken or None)
        try:
            change_pending_overrides(
                engine,
                lambda there: {name: on for name, on in there.items() if taken.get(name) != on},
            )
        except (
            CapsuleError
        ) as error:  # The conversation exists: after an error the caller would make it again.
            _log.warning(
                "the overrides of MCP servers in %s are in the new conversation and could not be "
                "cleared, so the next "
                "one gets them too: %s",
                _path(engine),
                error,
            )
    return head


def pending_override_problems(engine: Engine) -> list[Problem]:
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
            raise InvalidDocument.of(
                [Problem(path, *locations.locate(data, (where,)), where, wrong)]
            )
    except InvalidDocument as error:
        problem = error.problems[0]
        advice = (
            "correct the file or remove it: it holds the MCP switches of the next new conversation"
        )
        raise InvalidDocument.of(
            [replace(problem, path=path, what=f"{problem.what}; {advice}")]
        ) from None
    return document


def _wrong(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    had = document.get("version", creation.CURRENT)
    version = migrations.parse_version(had)
    if version is None:
        yield "version", f'must be a text like "2.1", is {codec.kind_of(had)}'
    elif version[0] != migrations.LATEST_VERSION[0]:
        yield (
            "version",
            migrations.newer_version_message(had)
            if version > migrations.LATEST_VERSION
            else "must be 2.1",
        )
    servers = document.setdefault("mcpServers", {})
    if (
        wrong := problem_with(_FIELD, servers)
        if servers is not None
        else f"must be an object, is {codec.kind_of(servers)}"
    ):
        yield "mcpServers", wrong
