"""The JSON Schemas: what is committed is what the models say, and real files agree with it."""

from __future__ import annotations

from pathlib import Path

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule import overrides
from capsule.errors import NotFound
from capsule.format import codec, schema
from capsule.format.migrations import CURRENT, current
from capsule.format.new import new_capsule

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((Path(__file__).parents[1] / "data" / "capsules").glob("*.json"))
ALL = [(kind, version) for kind in schema.kinds() for version in schema.versions(kind)]


@pytest.mark.parametrize(("kind", "version"), ALL)
def test_the_committed_schema_is_that_of_the_models(kind: str, version: str) -> None:
    committed = (ROOT / "schemas" / schema.file_name(kind, version)).read_text(encoding="utf-8")
    assert committed == schema.text(kind, version), "run: python -m capsule.format.schema"


def test_no_schema_is_committed_that_the_models_do_not_have() -> None:
    files = {path.name for path in (ROOT / "schemas").glob("*.json")}
    assert files == {schema.file_name(kind, version) for kind, version in ALL}


@pytest.mark.parametrize(("kind", "version"), ALL)
def test_a_schema_is_one_of_draft_2020_12(kind: str, version: str) -> None:
    made = schema.schema(kind, version)
    jsonschema.Draft202012Validator.check_schema(made)
    assert made["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert made["$id"] == f"urn:capsule-conversations:schema:{kind}:{version}"


@pytest.mark.parametrize("version", ["2.0", "2.1"])
@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.name)
def test_the_samples_agree_with_the_schemas(path: Path, version: str) -> None:
    document = codec.decode(path.read_bytes(), path.name)
    if "champInconnu" in document:
        del document["champInconnu"]  # holds a number kept as its digits, which jsonschema can't look into
    jsonschema.validate(document, schema.schema("capsule", version), cls=jsonschema.Draft202012Validator)
    made, _ = current(document)
    jsonschema.validate(made, schema.schema("capsule"), cls=jsonschema.Draft202012Validator)


def test_a_new_capsule_agrees_with_the_newest_schema() -> None:
    made = new_capsule("c", "", "2025-01-12T10:00:00.000Z", messages=[{"role": "user", "content": "x"}])
    jsonschema.validate(made, schema.schema("capsule"), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("field", "value"), [("id", "../x"), ("version", "3.0"), ("history", {}), ("metadata", {"mode": "x"}), ("title", 1)]
)
def test_the_schema_refuses_what_is_no_capsule(field: str, value: object) -> None:
    made = new_capsule("c", "", "2025-01-12T10:00:00.000Z") | {field: value}
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(made, schema.schema("capsule"), cls=jsonschema.Draft202012Validator)


@pytest.mark.parametrize(
    ("document", "valid"),
    [
        ({"version": "2.1", "mcpServers": {"git": {"enabled": False, "why": "mine"}}, "note": "mine"}, True),
        ({"mcpServers": {}}, True),
        ({"mcpServers": ["git"]}, True),
        ({}, True),
        ({"mcpServers": {"git": True}}, False),
        ({"mcpServers": {"git": {}}}, False),
        ({"version": "3.0", "mcpServers": {}}, False),
        ({"version": 2}, False),
        ({"mcpServers": "git"}, False),
        ({"mcpServers": None}, False),
    ],
)
def test_the_schema_of_the_overrides_that_wait_accepts_what_the_store_does(
    document: dict[str, object], valid: bool
) -> None:
    accepted = jsonschema.Draft202012Validator(schema.schema("overrides")).is_valid(document)
    assert accepted == (not overrides.problems_of(codec.encode(document), "next.json")) == valid


def test_the_newest_version_is_the_default_and_the_current_one() -> None:
    assert schema.versions("capsule")[-1] == CURRENT
    assert schema.schema("capsule") == schema.schema("capsule", CURRENT)


def test_an_unknown_kind_or_version_says_what_there_is() -> None:
    with pytest.raises(NotFound, match="there is: capsule"):
        schema.schema("parrot")
    with pytest.raises(NotFound, match="there is: capsule"):
        schema.versions("parrot")
    with pytest.raises(NotFound, match=r"there is: 2\.0, 2\.1"):
        schema.schema("capsule", "9.9")


def test_main_writes_every_schema(tmp_path: Path) -> None:
    schema.main(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {schema.file_name(kind, version) for kind, version in ALL}
