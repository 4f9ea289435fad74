"""The JSON Schemas: what is committed is what the models say, and real files agree with it."""

from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule.errors import NotFound
from capsule.format import schema
from capsule.format.documents.creation import FORMAT_VERSION
from capsule.format.json import codec
from capsule.store.change import pending_overrides

ROOT = Path(__file__).parents[3]
ALL = [(kind, version) for kind in schema.kinds() for version in schema.versions(kind)]


def test_the_committed_schemas_are_those_of_the_models_and_of_draft_2020_12() -> None:
    files = {
        path.name: path.read_text(encoding="utf-8") for path in (ROOT / "schemas").glob("*.json")
    }
    assert files == {schema.file_name(*which): schema.text(*which) for which in ALL}, (
        "run: python docs/generate.py"
    )
    for kind, version in ALL:
        made = schema.schema(kind, version)
        jsonschema.Draft202012Validator.check_schema(made)
        assert made["$id"] == f"urn:capsule-conversations:schema:{kind}:{version}"
    assert schema.schema("capsule") == schema.schema("capsule", FORMAT_VERSION)


def test_the_schema_of_overrides_accepts_what_the_store_accepts() -> None:
    for document, valid in [
        (
            {
                "version": "2.1",
                "mcpServers": {"git": {"enabled": False, "why": "mine"}},
                "note": "mine",
            },
            True,
        ),
        ({}, True),
        ({"mcpServers": {"git": {}}}, False),
        ({"version": "3.0", "mcpServers": {}}, False),
    ]:
        accepted = jsonschema.Draft202012Validator(schema.schema("overrides")).is_valid(document)
        assert (
            accepted
            == (not pending_overrides.problems_of(codec.encode(document), "next.json"))
            == valid
        )


def test_the_error_for_an_unknown_kind_or_version_lists_the_known_ones() -> None:
    for ask, there in (
        (lambda: schema.schema("parrot"), "capsule"),
        (lambda: schema.versions("parrot"), "capsule"),
        (lambda: schema.schema("capsule", "9.9"), "2.1"),
    ):
        with pytest.raises(NotFound, match=there):
            ask()
