"""The JSON Schema of each document kind and version, generated from the models.

What must stay true: `schemas/` holds what `schema` gives; `make docs` writes it, and a test compares.
"""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, JsonSchemaValue
from pydantic_core import CoreSchema

from capsule.errors import NotFound
from capsule.format.fields import PARTS
from capsule.format.models import Agent, Capsule, NextOverrides, Project, Registry

_MODELS: dict[str, dict[str, type[BaseModel]]] = {
    "capsule": {"2.0": Capsule, "2.1": Capsule},
    "agent": {"2.1": Agent},
    "project": {"2.1": Project},
    "overrides": {"2.1": NextOverrides},
    "registry": {"2.1": Registry},
}
_TITLES = {"overrides": "Overrides for the next conversation"}


class _Generator(GenerateJsonSchema):
    """Draft 2020-12, without a title on every field."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def generate(self, schema: CoreSchema, mode: JsonSchemaMode = "validation") -> JsonSchemaValue:
        made = super().generate(schema, mode)
        for part in made.get("$defs", {}).values():
            part.pop("title", None)
        return made


def kinds() -> list[str]:
    """The kinds of documents that have a schema."""
    return list(_MODELS)


def versions(kind: str) -> list[str]:
    """The versions of `kind` that have a schema, oldest first. Raises NotFound when there is no such kind."""
    if kind not in _MODELS:
        raise NotFound(f"no schema of kind {kind!r}; there is: {', '.join(kinds())}", id=kind)
    return list(_MODELS[kind])


def schema(kind: str, version: str | None = None) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of `kind`.

    Args:
        kind: The kind of document, as `kinds` lists them.
        version: A version of it, as `versions` lists them; the newest by default.

    Raises:
        NotFound: There is no such kind, or no such version of it.
    """
    known = versions(kind)
    version = known[-1] if version is None else version
    if version not in known:
        raise NotFound(f"no schema of {kind} {version}; there is: {', '.join(known)}", id=f"{kind} {version}")
    model = _MODELS[kind][version]
    made = model.model_json_schema(by_alias=True, schema_generator=_Generator, ref_template="#/$defs/{model}")
    if (kind, version) == ("capsule", "2.0"):
        _make_2_0(made)
    return {
        "$schema": GenerateJsonSchema.schema_dialect,
        "$id": f"urn:capsule-conversations:schema:{kind}:{version}",
        "title": f"{_TITLES.get(kind, kind.capitalize())} {version}",
        **{key: value for key, value in made.items() if key != "title"},
    }


def _make_2_0(made: dict[str, Any]) -> None:
    """Take out of the schema of 2.1 what `PARTS` says is new in it."""
    parts: dict[str, dict[str, Any]] = {"": made}
    for part, fields in PARTS.items():
        if (inside := parts.get(part)) is None:
            continue
        for field in fields:
            about = inside["properties"][field.name]
            if field.since != "2.0":
                del inside["properties"][field.name]
            elif field.kind in ("part", "parts"):
                name = about.get("items", about)["$ref"].rpartition("/")[2]
                parts[f"{part}.{field.name}".lstrip(".")] = made["$defs"][name]
    made["$defs"] = {name: one for name, one in made["$defs"].items() if any(one is part for part in parts.values())}
    made["properties"]["version"] = {"const": "2.0", **made["properties"]["version"]}
    del made["properties"]["version"]["pattern"]
    parts["history"]["properties"]["role"]["enum"] = ["user", "assistant"]


def file_name(kind: str, version: str) -> str:
    """The name of the schema's file in `schemas/`."""
    return f"{kind}-{version}.json"


def text(kind: str, version: str | None = None) -> str:
    """The schema as it stands in its file. Raises NotFound as `schema` does."""
    return json.dumps(schema(kind, version), indent=2, ensure_ascii=False) + "\n"
