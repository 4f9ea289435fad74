"""Capsules of version 2.0 as other programs wrote them: every part of the format accepts them and
loses nothing.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped, unused-ignore]
import pytest

from capsule import timestamps
from capsule.format import schema
from capsule.format.documents.creation import inactive_lock
from capsule.format.json import codec
from capsule.format.json.canonical import in_order
from capsule.format.merge.clean_form import clean
from capsule.format.migrations import upgrade
from capsule.format.models import Capsule
from capsule.format.validation import check, oddities

SAMPLES = sorted((Path(__file__).parents[2] / "data" / "capsules").glob("*.json"))


@pytest.fixture(params=SAMPLES, ids=lambda path: path.stem)
def path(request: pytest.FixtureRequest) -> Path:
    found: Path = request.param
    return found


def decoded(path: Path) -> dict[str, Any]:
    return codec.decode(path.read_bytes(), path.name)


def test_a_sample_is_read_and_written_without_loss(path: Path) -> None:
    data, document = path.read_bytes(), decoded(path)
    exact = json.JSONDecoder(parse_int=str, parse_float=str)
    assert exact.decode(codec.encode(document).decode()) == exact.decode(data.decode())
    check(document, data, path.name)
    assert oddities(document, path.name, data) == []
    ordered = in_order(document)
    assert ordered == document and list(ordered)[-1] == "history" and in_order(ordered) == ordered


def test_a_sample_loads_with_its_unknown_fields(path: Path) -> None:
    capsule = Capsule.model_validate_json(path.read_bytes())
    assert capsule.model_dump(by_alias=True, exclude_unset=True) == json.loads(path.read_bytes())


def test_a_sample_migrates_once_the_same_in_every_layout(path: Path) -> None:
    before = decoded(path)
    kept = copy.copy(before)
    made, changes = upgrade(before)
    assert changes[0] == "version 2.0 -> 2.1" and before == kept
    assert upgrade(made) == (made, [])
    check(made, codec.encode(made), path.name)
    assert made["metadata"].get("couleur") == before["metadata"].get("couleur")
    assert made.get("champInconnu") == before.get("champInconnu")
    for entry, was in zip(made["history"], before["history"], strict=True):
        assert entry.get("tokens") == was.get("tokens") and timestamps.is_canonical(
            entry["timestamp"]
        )
    loose = (
        json.dumps(json.loads(path.read_bytes()), indent=7, sort_keys=True)
        .replace("\n", "\r\n")
        .encode()
    )
    assert upgrade(codec.decode(loose, "b"))[0] == made
    made["metadata"]["lock"] = inactive_lock()
    assert clean(path.read_bytes(), path.name, "conversations") == codec.encode(made)


def test_a_sample_agrees_with_the_schemas(path: Path) -> None:
    document = decoded(path)
    document.pop(
        "champInconnu", None
    )  # It holds a number kept as its digits, which jsonschema can't look into.
    for one, version in ((document, "2.0"), (document, "2.1"), (upgrade(document)[0], "2.1")):
        jsonschema.validate(
            one, schema.schema("capsule", version), cls=jsonschema.Draft202012Validator
        )
