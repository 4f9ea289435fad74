"""The JSON Schema of each document kind and version, made of the table of fields.

What must stay true: `schemas/` holds what `schema` gives; `make docs` writes it, and a test
compares.
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
_ABOUT = {
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
#: What a value of a kind is that has no fields of its own.
_VALUES: dict[str, Schema] = {
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
    """The kinds of documents that have a schema."""
    return list(_KINDS)


def versions(kind: str) -> list[str]:
    """The versions of `kind` that have a schema, oldest first. Raises NotFound when there is no
    such kind.
    """
    if kind not in _KINDS:
        raise NotFound(f"no schema of kind {kind!r}; there is: {', '.join(kinds())}", id=kind)
    return list(_KINDS[kind])


def schema(kind: str, version: str | None = None) -> Schema:
    """The JSON Schema (draft 2020-12) of a kind of document, by default of its newest version.
    Raises NotFound.
    """
    known = versions(kind)
    version = known[-1] if version is None else version
    if version not in known:
        raise NotFound(
            f"no schema of {kind} {version}; there is: {', '.join(known)}", id=f"{kind} {version}"
        )
    made = _part("" if kind == "capsule" else kind, version)
    fields = made["properties"]
    fields["version"] |= {"const": version} if version == "2.0" else {"pattern": r"^2\.[0-9]+$"}
    if kind in _IDS:
        fields["id"] |= _IDS[kind]
    title = "Overrides for the next conversation" if kind == "overrides" else kind.capitalize()
    about = {"title": f"{title} {version}", "description": _ABOUT[kind]}
    return {
        "$schema": _DIALECT,
        "$id": f"urn:capsule-conversations:schema:{kind}:{version}",
        **about,
        **made,
    }


def _part(part: str, version: str) -> Schema:
    """What an object with the fields of a part is, as far as a version has them."""
    fields = [field for field in PARTS[part] if field.since <= version]
    required = [field.name for field in fields if field.required]
    values = {field.name: _value(part, field, version) for field in fields}
    return _OBJECT | {"properties": values} | ({"required": required} if required else {})


def _value(part: str, field: Field, version: str) -> Schema:
    inside = f"{part}.{field.name}".lstrip(".")
    item = _part(inside, version) if inside in PARTS else _OBJECT
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
            value = _VALUES[kind]
    if field.choices:
        is_old_role = (part, field.name, version) == ("history", "role", "2.0")
        value = value | {"enum": list(field.choices[:2] if is_old_role else field.choices)}
    value = {"anyOf": [value, {"type": "null"}]} if field.null else value
    return {"description": field.says} | value


def file_name(kind: str, version: str) -> str:
    """The name of the schema's file in `schemas/`."""
    return f"{kind}-{version}.json"


def text(kind: str, version: str | None = None) -> str:
    """The schema as it stands in its file. Raises NotFound."""
    return json.dumps(schema(kind, version), indent=2, ensure_ascii=False) + "\n"
