"""Make the JSON Schema of each kind of documents and version from the table of fields.

What must stay true: the files in `schemas/` are those that `text` returns. `make docs` writes them,
and a test compares.
"""

from __future__ import annotations

import json
from typing import Any

from capsule.errors import NotFound
from capsule.format.documents.agents import AGENT_ID, MAX_AGENT_ID, MAX_PROJECT_ID, PROJECT_ID
from capsule.format.fields import PARTS, Field

Schema = dict[str, Any]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_KINDS = {"capsule": ("2.0", "2.1")} | dict.fromkeys(
    ("agent", "project", "overrides", "registry"), ("2.1",)
)
_DESCRIPTIONS = {
    "capsule": "A conversation.",
    "agent": "A person or a program that sends and gets messages. `agents/{id}.json` of a store.",
    "project": "A working folder of agents. `projects/{id}.json` of a store.",
    "overrides": "The switches for the next new conversation: `overrides/next.json` of a store.",
    "registry": "The agents, places, wirings, sessions and questions of `sessions/registry.json`.",
}
_IDS: dict[str, Schema] = {
    "capsule": {"pattern": "^[A-Za-z0-9][A-Za-z0-9._@-]*$", "maxLength": 128},
    "agent": {"pattern": f"^{AGENT_ID}$", "maxLength": MAX_AGENT_ID},
    "project": {"pattern": f"^{PROJECT_ID}$", "maxLength": MAX_PROJECT_ID},
}
_TEXT, _OBJECT = {"type": "string"}, {"type": "object"}
_TEXTS = {"type": "array", "items": _TEXT}
_SWITCH = _OBJECT | {"properties": {"enabled": {"type": "boolean"}}, "required": ["enabled"]}
_MENTIONS: Schema = dict.fromkeys(("valid", "invalid", "unknown"), _TEXTS)
_MENTIONS["kinds"] = _OBJECT | {"additionalProperties": _TEXT}
#: The schemas of fields by their kind, without those that have fields of their own.
_VALUE_SCHEMAS: dict[str, Schema] = {
    "text": _TEXT,
    "time": _TEXT | {"format": "date-time"},
    "whole": {"type": "integer"},
    "share": {"type": "number", "minimum": 0, "maximum": 1},
    "yes or no": {"type": "boolean"},
    "texts": _TEXTS,
    "object": _OBJECT,
    "objects": {"type": "array", "items": _OBJECT},
    "mentions": _OBJECT | {"properties": _MENTIONS},
    "switches": {"anyOf": [_OBJECT | {"additionalProperties": _SWITCH}, _TEXTS]},
}


def kinds() -> list[str]:
    """Return the kinds of documents that have a schema."""
    return list(_KINDS)


def versions(kind: str) -> list[str]:
    """Return the versions of `kind` that have a schema, the oldest first. Raises NotFound."""
    if kind not in _KINDS:
        raise NotFound(f"no schema of kind {kind!r}; there is: {', '.join(kinds())}", id=kind)
    return list(_KINDS[kind])


def schema(kind: str, version: str | None = None) -> Schema:
    """Return the JSON Schema (draft 2020-12) of a kind of documents. Raises NotFound.

    `version` is by default the newest.
    """
    known_versions = versions(kind)
    chosen = known_versions[-1] if version is None else version
    if chosen not in known_versions:
        raise NotFound(
            f"no schema of {kind} {chosen}; there is: {', '.join(known_versions)}",
            id=f"{kind} {chosen}",
        )
    object_schema = _part_schema("" if kind == "capsule" else kind, chosen)
    fields = object_schema["properties"]
    if chosen == "2.0":
        fields["version"] |= {"const": chosen}
    else:
        fields["version"] |= {"pattern": r"^2\.[0-9]+$"}
    if kind in _IDS:
        fields["id"] |= _IDS[kind]
    name = "Overrides for the next conversation" if kind == "overrides" else kind.capitalize()
    return {
        "$schema": _DIALECT,
        "$id": f"urn:capsule-conversations:schema:{kind}:{chosen}",
        "title": f"{name} {chosen}",
        "description": _DESCRIPTIONS[kind],
        **object_schema,
    }


def _part_schema(part: str, version: str) -> Schema:
    """Return the schema of an object with the fields of a part that a version has."""
    fields = [field for field in PARTS[part] if field.since_version <= version]
    properties = {field.name: _field_schema(part, field, version) for field in fields}
    result: Schema = _OBJECT | {"properties": properties}
    required = [field.name for field in fields if field.required]
    if required:
        result["required"] = required
    return result


def _field_schema(part: str, field: Field, version: str) -> Schema:
    """Return the schema of the value of a field."""
    child_part = f"{part}.{field.name}".lstrip(".")
    item = _part_schema(child_part, version) if child_part in PARTS else _OBJECT
    match field.kind:
        case "part":
            value = item
        case "parts":
            value = {"type": "array", "items": item}
        case "members":
            value = {"type": "array", "items": {"anyOf": [_TEXT, item]}}
        case "entries":
            value = _OBJECT | {"additionalProperties": item}
        case kind:
            value = _VALUE_SCHEMAS[kind]
    if field.choices:
        # Version 2.0 had only the first two roles.
        is_old_role = (part, field.name, version) == ("history", "role", "2.0")
        choices = field.choices[:2] if is_old_role else field.choices
        value = value | {"enum": list(choices)}
    if field.null:
        value = {"anyOf": [value, {"type": "null"}]}
    return {"description": field.description} | value


def file_name(kind: str, version: str) -> str:
    """Return the name of a schema's file in `schemas/`."""
    return f"{kind}-{version}.json"


def text(kind: str, version: str | None = None) -> str:
    """Return the text of a schema's file. Raises NotFound."""
    return json.dumps(schema(kind, version), indent=2, ensure_ascii=False) + "\n"
