"""The models, and that the table of fields says the same as they do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import orjson
import pytest
from pydantic import BaseModel, ValidationError

from capsule.errors import InvalidDocument
from capsule.format import models, schema, validation
from capsule.format.fields import PARTS
from capsule.format.json import codec
from capsule.format.validation import problem_with

MODELS: dict[str, type[BaseModel]] = {
    "": models.Capsule,
    "metadata": models.Metadata,
    "metadata.lock": models.Lock,
    "metadata.participants": models.MemberModel,
    "metadata.channel": models.ChannelModel,
    "metadata.summaryOf": models.SummaryOf,
    "context": models.Context,
    "context.metadata": models.ContextMetadata,
    "context.metadata.files": models.ContextFile,
    "history": models.Message,
}
FIELDS = [(part, field) for part in MODELS for field in PARTS[part]]
#: A value of every kind that JSON has; the text is a time, so that it will do for all texts.
VALUES: list[Any] = [
    *(None, True, 1, 0, 1.0, 2.5, 10**30, "2025-01-12T10:00:00Z"),
    *([], ["a"], ["a", 1], ["a", None], [{}], [{}, 1], ["a", {"id": "b", "more": 1}], [{"id": 1}]),
    *({}, {"a": 1}, {"a": {"enabled": True, "more": 1}}, {"a": {"enabled": "yes"}}, {"a": {}}),
    *({"valid": ["a"], "kinds": {"a": "review"}}, {"valid": [1]}, {"kinds": {"a": 1}}),
]


def _aliases(model: type[BaseModel]) -> list[str]:
    return [
        info.serialization_alias or info.alias or name for name, info in model.model_fields.items()
    ]


def _accepts(model: type[BaseModel], document: bytes) -> bool:
    try:
        model.model_validate_json(document)
    except ValidationError:
        return False
    return True


def _is_item(part: str, item: Any, *, texts: bool) -> bool:
    if not isinstance(item, dict):
        return texts and isinstance(item, str)
    fields = [field for field in PARTS[part] if field.required or field.name in item]
    return all(field.name in item and not problem_with(field, item[field.name]) for field in fields)


def test_the_table_has_the_fields_of_the_models_in_their_order() -> None:
    for part, model in MODELS.items():
        assert [field.name for field in PARTS[part]] == _aliases(model)
        required = [
            info.alias or name for name, info in model.model_fields.items() if info.is_required()
        ]
        assert [field.name for field in PARTS[part] if field.required] == required


def test_the_table_takes_the_values_that_the_models_take() -> None:
    for part, field in FIELDS:
        rest: dict[str, Any] = {
            other.name: [] if other.kind == "parts" else "2025-01-12T10:00:00Z"
            for other in PARTS[part]
            if other.required
        }
        for value in VALUES:
            data = orjson.dumps(
                rest | {field.name: orjson.Fragment(str(value)) if value == 10**30 else value}
            )
            decoded = codec.decode(data, "x")[field.name]
            taken = problem_with(field, decoded, any_choice=True) == ""
            inside = f"{part}.{field.name}".lstrip(".")
            if taken and value and field.kind in ("parts", "members"):
                taken = all(_is_item(inside, item, texts=field.kind == "members") for item in value)
            assert _accepts(MODELS[part], data) == taken, (part, field.name, value)


@pytest.mark.parametrize("kind", ["agent", "project", "overrides", "registry"])
def test_the_schema_takes_the_values_that_the_check_takes(kind: str) -> None:
    validator = jsonschema.Draft202012Validator(schema.schema(kind))
    for field in PARTS[kind]:
        for value in VALUES if field.name != "id" else ():
            document = {"id": "a-123456", field.name: value}
            try:
                validation.check(document, b"", "x", kind, lambda id: None)
                taken = True
            except InvalidDocument:
                taken = False
            assert validator.is_valid(document) == taken, (field.name, value)


def test_fields_populate_by_both_names_and_dump_by_that_of_the_file() -> None:
    one = models.Message(role="user", content="x", from_="ann", edited_at="2025-01-12T10:00:00Z")
    other = models.Message.model_validate(
        {"role": "user", "content": "x", "from": "ann", "editedAt": "2025-01-12T10:00:00Z"}
    )
    assert one == other
    assert one.model_dump(by_alias=True, exclude_unset=True)["from"] == "ann"


def test_an_absent_parent_and_a_null_one_differ() -> None:
    assert "parent" not in models.Message(role="user", content="").model_fields_set
    assert (
        "parent"
        in models.Message.model_validate_json(
            b'{"role":"user","content":"","parent":null}'
        ).model_fields_set
    )


def test_a_message_knows_its_place_only_when_told_and_never_writes_it() -> None:
    message = models.Message(role="user", content="x")
    assert message.at is None
    assert message.placed(7).at == 7
    assert message.model_dump(by_alias=True, exclude_unset=True) == {"role": "user", "content": "x"}
    assert message == models.Message(role="user", content="x")
    with pytest.raises(AttributeError):
        message.at = 3  # type: ignore[misc]


def test_modules_that_start_fast_do_not_import_pydantic() -> None:
    names = (
        "json.codec json.canonical json.locations text.titles migrations documents.creation "
        "documents.message validation"
    )
    for module in names.split():
        code = f"import sys, capsule.format.{module}; sys.exit('pydantic' in sys.modules)"
        root = Path(__file__).parents[3]
        assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0
