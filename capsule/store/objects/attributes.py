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

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from capsule.engines.retrying import edited
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, Problem
from capsule.format import migrations
from capsule.format.documents import new
from capsule.format.documents.servers import check_server, overrides_in, switched, switches_in
from capsule.format.fields import PARTS
from capsule.format.json import codec, places
from capsule.format.merge.notes import take_out
from capsule.format.text.titles import check_tags, check_title, title_by_rule
from capsule.format.values import fault

if TYPE_CHECKING:
    from capsule.engines.interface import Engine
    from capsule.format.documents.head import Head
    from capsule.store.reading import Reading

KIND_OF_OVERRIDES = "overrides"
_NEXT = "next"
#: How long a new conversation waits for another one that takes them, in seconds.
_PATIENCE_S = 10.0
_FIELD = next(field for field in PARTS["metadata"] if field.name == "mcpServers")
_log = logging.getLogger("capsule")

Overrides = dict[str, Any]


class _NamedByAPerson(Exception):
    """A person gave the title, so it stays. The exception never leaves this module."""


class Titles:
    """Titles suggested by a model or by rule."""

    def __init__(self, store: Reading) -> None:
        self._store = store

    def by_rule(self, id: str) -> str:
        """Make a title from the first user message that contains a word. Empty: there is no such
        message.

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
                    raise _NamedByAPerson
                entitle(head, title, "user")
            else:
                entitle(head, title, "auto")

        try:
            return self._store.inner.change_head(id, change)
        except _NamedByAPerson:
            return None


def entitle(head: dict[str, Any], title: str, by: str) -> None:
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
        take_out(metadata, "title")


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
            was_open = by == "user" and take_out(metadata, "title")
            if was_open or (head["title"], metadata.get("titleSetBy")) != (title, by):
                entitle(head, title, by)
        if wanted is not None:
            metadata["tags"] = wanted
        present = metadata.get("tags") or []
        if added or removed & set(present):
            kept = [tag for tag in present if tag not in removed]
            metadata["tags"] = [*kept, *(tag for tag in added if tag not in kept)]
        if mcp_servers:
            _override(metadata, switched(metadata.get("mcpServers"), mcp_servers))
        for name, on in flags.items():
            if on or name in metadata:  # A flag that is off is not added.
                metadata[name] = on

    return change


class Servers:
    """The MCP servers that are switched on or off for a conversation, or for the next new one (an
    `id` of None).
    """

    def __init__(self, store: Reading) -> None:
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
        return self._override(id, lambda there: switched(there, switches))

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
            id, lambda there: switched(there, {name: not switches_in(there).get(name, True)})
        )

    def _override(self, id: str | None, change: Callable[[Any], Overrides]) -> dict[str, bool]:
        if id is None:
            return switches_in(_change_waiting(self._store.engine, change))

        def act(head: dict[str, Any]) -> None:
            _override(head["metadata"], change(head["metadata"].get("mcpServers")))

        return self._store.inner.change_head(id, act).mcp_servers


def _override(metadata: dict[str, Any], overrides: Overrides) -> None:
    """Set the overrides of MCP servers in the metadata of a head; an empty set removes
    the field.
    """
    metadata["mcpServers"] = overrides
    if not overrides:
        del metadata["mcpServers"]


def _path(engine: Engine) -> str:
    return engine.name(KIND_OF_OVERRIDES, _NEXT)


def _waiting(engine: Engine) -> Overrides:
    """The overrides that wait."""
    if not engine.exists(KIND_OF_OVERRIDES, _NEXT):
        return {}
    return overrides_in(
        _decoded(engine.read(KIND_OF_OVERRIDES, _NEXT), _path(engine))["mcpServers"]
    )


def _change_waiting(engine: Engine, change: Callable[[Overrides], Overrides]) -> Overrides:
    """Change the overrides that wait, and return them. `change` runs again if another program wrote
    them meanwhile.
    """
    after: Overrides = {}

    def edit(data: bytes | None) -> bytes | None:
        nonlocal after
        document = (
            {"version": new.CURRENT, "mcpServers": {}}
            if data is None
            else _decoded(data, _path(engine))
        )
        there = overrides_in(document["mcpServers"])
        after = change(there)
        return None if after == there else codec.encode(document | {"mcpServers": after})

    edited(engine, KIND_OF_OVERRIDES, _NEXT, edit)
    return after


def with_waiting(engine: Engine, make: Callable[[Overrides | None], Head]) -> Head:
    """Make a conversation with the overrides that wait, and clear them. Another one waits
    meanwhile, and gets none.
    """
    if not _waiting(engine):
        return make(None)
    with engine.leases.take(KIND_OF_OVERRIDES, timeout_s=_PATIENCE_S):
        taken = _waiting(engine)
        head = make(taken or None)
        try:
            _change_waiting(
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
        advice = (
            "correct the file or remove it: it holds the MCP switches of the next new conversation"
        )
        raise InvalidDocument.of(
            [replace(problem, path=path, what=f"{problem.what}; {advice}")]
        ) from None
    return document


def _wrong(document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    had = document.get("version", new.CURRENT)
    version = migrations.parse_version(had)
    if version is None:
        yield "version", f'must be a text like "2.1", is {codec.kind_of(had)}'
    elif version[0] != migrations.KNOWN[0]:
        yield "version", migrations.too_new(had) if version > migrations.KNOWN else "must be 2.1"
    servers = document.setdefault("mcpServers", {})
    if (
        wrong := fault(_FIELD, servers)
        if servers is not None
        else f"must be an object, is {codec.kind_of(servers)}"
    ):
        yield "mcpServers", wrong
