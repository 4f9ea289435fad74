"""A conversation from the bytes of a file that anybody may have written. Pure."""

from __future__ import annotations

from typing import Any

from capsule.errors import InvalidDocument, Problem
from capsule.format import codec, validation
from capsule.format.text import places


def decoded(data: bytes, path: str, id: str | None) -> dict[str, Any]:
    """The document in `data`, checked, as its file has it.

    Args:
        data: The file's bytes.
        path: The file, for the errors.
        id: The id that the file's name gives it; None: any.

    Raises:
        InvalidDocument: It is no capsule, or the capsule of another id.
    """
    document = codec.decode(data, path)
    validation.check(document, data, path)
    if id is not None and document["id"] != id:
        line, column = places.locate(data, ("id",))
        what = f"is {document['id']!r}, but the file's name says {id!r}; rename the file, or correct the id"
        raise InvalidDocument.of([Problem(path, line, column, "id", what)])
    return document
