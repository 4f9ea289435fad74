"""The form in which a document enters git: canonical, of the version that is written, and locked by nobody.

What must stay true: cleaning a clean document changes no byte; a lock does not change the clean form, and nothing but
the lock is lost; what is no document is refused. A capsule of a newer major version is left alone. No clock, no
chance: two clones clean alike. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import orjson

from capsule.errors import InvalidDocument
from capsule.format import migrations, validation
from capsule.format.documents.new import CURRENT, inactive_lock
from capsule.format.fields import PARTS, ROLES, Field
from capsule.format.json import codec
from capsule.format.json.canonical import in_order, is_in_order
from capsule.format.kinds import KINDS
from capsule.format.values import fault
from capsule.timestamps import is_canonical

_FILE = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE
_FIELDS = {field.name: field for field in PARTS["history"]}
_LOOKED_AT = frozenset({"role", "content", "timestamp", "id"})


def clean(data: bytes, path: str, kind: str) -> bytes:
    """The clean form of the document in `data`: the whole file, of a kind by its name in `KINDS`.

    Raises:
        InvalidDocument: It is no document of its kind; with `path`, line and column.

    Cost: of a file that the store wrote, locked or not, orjson's reading and writing it, and a look at each message,
    which is a twentieth of a second for 10 MB; of any other a strict parse, some three times as much.
    """
    quick = _quick(data) if KINDS[kind].has_entries else None
    if quick is not None:
        return quick
    document = codec.decode(data, path)
    if migrations.is_newer(document):
        return data
    KINDS[kind].check(document, path, data)
    return codec.encode(cleaned(document, path) if KINDS[kind].has_entries else KINDS[kind].ordered(document))


def cleaned(document: dict[str, Any], path: str = "") -> dict[str, Any]:
    """As `clean`, of a capsule that `validation.check` accepts; it stays as it is. Raises InvalidDocument."""
    document = migrations.current(document, path)[0]
    about = document["metadata"]
    document = {**document, "metadata": {**about, "lock": inactive_lock()}}
    return document if "lock" in about else in_order(document)  # What came without a lock gets it where it belongs.


def _quick(data: bytes) -> bytes | None:
    """The clean form of a file in the layout of the store, of the version that is written; None: look closer.

    That orjson gives back the very bytes says as much as `codec.decode` would, so only the fields are left to check.
    """
    try:
        document = orjson.loads(data)
        if not isinstance(document, dict) or orjson.dumps(document, option=_FILE) != data:
            return None
    except (orjson.JSONDecodeError, TypeError):
        return None
    history = document.get("history")
    if document.get("version") != CURRENT or not isinstance(history, list):
        return None
    head = {**document, "history": []}
    try:
        validation.check(head, data, "")
    except InvalidDocument:
        return None
    if not all(map(is_clean_message, history)):
        return None
    return orjson.dumps({**cleaned(head), "history": history}, option=_FILE)


def is_clean_message(entry: Any) -> bool:
    """Whether an entry of `history` is a message as this version writes it, so that cleaning would leave it alone."""
    if type(entry) is not dict or (others := _others(tuple(entry))) is None:
        return False
    stamp, id = entry["timestamp"], entry["id"]
    return (
        (type(stamp) is str and is_canonical(stamp))
        and (type(id) is str and bool(id))
        and (type(entry["content"]) is str and entry["role"] in ROLES)
        and (not others or all(_is_clean_value(field, entry[field.name]) for field in others))
    )


def _is_clean_value(field: Field, value: Any) -> bool:
    return not fault(field, value) and (field.kind != "time" or not value or is_canonical(value))


@lru_cache(maxsize=1024)
def _others(keys: tuple[str, ...]) -> tuple[Field, ...] | None:
    """The known fields among the keys of a message besides those that all have; None when the keys can't be clean."""
    if not _LOOKED_AT.issubset(keys) or not is_in_order(keys):
        return None
    return tuple(_FIELDS[key] for key in keys if key in _FIELDS and key not in _LOOKED_AT)
