"""Every format keeps the promises of the interface, on its examples in data/{format}/.

A new format needs a module and examples, and no test here. An example whose name begins with
`damaged` is read, and must report something.
"""

from __future__ import annotations

from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from capsule.errors import CapsuleError
from capsule.format import validation
from capsule.format.json import codec
from capsule.format.validation import CONVERSATION
from capsule.transfer.drafts.conversion import document_of
from capsule.transfer.interface import Draft
from capsule.transfer.registry import formats
from tests.transfer.exchange import (
    DATA,
    EXAMPLES,
    STAMP,
    Shelf,
    changed_by_import,
    content,
    read,
    read_data,
    written,
)

FILES = [(format, path) for format, path in EXAMPLES if path.is_file()]
READ_AND_WRITTEN = [name for name, format in formats().items() if format.write and format.read]
BOTH = [(format, path) for format, path in EXAMPLES if formats()[format].write is not None]


def named(cases: list[tuple[str, Path]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("format", "path"), cases, ids=[f"{name}-{path.name}" for name, path in cases]
    )


@named(EXAMPLES)
def test_an_example_is_read_without_a_problem_as_valid_capsules(format: str, path: Path) -> None:
    documents, problems = read(path)

    assert not problems.first
    assert documents
    for document in documents:
        assert document["metadata"].get("imported", {}).get("format", format) == format
        data = codec.encode(document)
        validation.check(document, data, "x")
        assert not CONVERSATION.problems_of(data, "x")
    assert len({document["id"] for document in documents}) == len(documents)


@named(FILES)
def test_the_content_tells_the_format(format: str, path: Path) -> None:
    documents, _ = read(path)
    alone, _ = read_data(content(path))

    assert [document["id"] for document in alone] == [document["id"] for document in documents]


@named(BOTH)
def test_an_export_to_the_format_of_the_source_changes_nothing_when_it_is_imported(
    format: str, path: Path
) -> None:
    shelf = Shelf()
    documents, _ = read(path, shelf)

    seen = set()
    for document, data in zip(documents, written(documents, formats()[format], shelf), strict=True):
        origin = document["metadata"].get("imported", document)["id"]
        if origin in seen:  # Alone in a file, the second of two equal conversations is the first.
            continue
        seen.add(origin)
        assert changed_by_import(document, data, formats()[format], shelf) == []


@pytest.mark.parametrize("name", READ_AND_WRITTEN)
@named(EXAMPLES)
def test_an_export_to_any_format_changes_nothing_when_it_is_imported(
    format: str, path: Path, name: str
) -> None:
    if format == name:
        pytest.skip("the format of the source")
    shelf = Shelf()
    documents, _ = read(path, shelf)

    for document, data in zip(documents, written(documents, formats()[name], shelf), strict=True):
        assert changed_by_import(document, data, formats()[name], shelf) == []


@pytest.mark.parametrize("name", [name for name in READ_AND_WRITTEN if formats()[name].is_portable])
@named(EXAMPLES)
def test_a_capsule_from_elsewhere_comes_back_whole(format: str, path: Path, name: str) -> None:
    if format == name:
        pytest.skip("the format of the source")
    shelf = Shelf()
    documents, _ = read(path, shelf)

    for document, data in zip(documents, written(documents, formats()[name], shelf), strict=True):
        again, problems = read_data(data, shelf, formats()[name])
        assert not problems.first
        assert again == [document]


@pytest.mark.parametrize("name", READ_AND_WRITTEN)
def test_an_image_comes_back_whoever_sent_it(name: str) -> None:
    shelf = Shelf()
    call = {"id": "call_1", "name": "look", "arguments": {}}
    history: list[dict[str, Any]] = [
        {"role": "system", "content": "Be kind."},
        {"role": "user", "content": "What is it?"},
        {"role": "assistant", "content": "", "toolCalls": [call]},
        {"role": "tool", "content": "", "toolCallId": "call_1"},
        {"role": "assistant", "content": "An apple."},
        {"role": "user", "content": ""},
    ]
    for place, entry in enumerate(history):
        images = [b"\x89PNG" + bytes([place, nth]) for nth in range(2)]
        kinds = ("image/png", "image")
        entry |= {"id": f"00000000-0000-7000-8000-{place:012}", "timestamp": STAMP}
        entry["attachments"] = [
            {"name": f"{nth}.png", "type": kind, "data": image}
            for nth, (kind, image) in enumerate(zip(kinds, images, strict=True))
        ]
    head = {"id": "images", "title": "Images", "createdAt": STAMP, "updatedAt": STAMP}
    draft = Draft(head, history, is_own=True)
    document = document_of(draft, "capsule", STAMP, lambda reason, id: None, shelf.keep)

    (data,) = written([document], formats()[name], shelf)
    assert changed_by_import(document, data, formats()[name], shelf) == []
    if formats()[name].is_portable:
        assert read_data(data, shelf, formats()[name])[0] == [document]


@pytest.mark.parametrize("cuts", [40, pytest.param(150, marks=pytest.mark.slow)])
@named(FILES)
def test_a_file_that_is_cut_or_torn_is_read_around(format: str, path: Path, cuts: int) -> None:
    data = content(path)
    step = max(len(data) // cuts, 1)
    for at in range(0, len(data), step):
        for damaged in (data[:at], data[:at] + b"\0\0\xff{" + data[at + 3 :]):
            try:
                documents, _ = read_data(damaged, only=formats()[format])
            except CapsuleError:
                continue
            for document in documents:
                validation.check(document, codec.encode(document), "x")


#: What stands in place of a value, one after the other.
ODD: list[Any] = [None, ["x"], {"a": [1]}, 3, "x", True, "", [{}]]


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every list and object in a value, with each key of it."""
    items = (
        enumerate(value)
        if isinstance(value, list)
        else value.items()
        if isinstance(value, dict)
        else ()
    )
    for key, inner in list(items):
        yield value, key
        yield from places(inner)


@named([(format, path) for format, path in FILES if path.suffix in (".json", ".jsonl")])
def test_a_value_of_another_type_takes_no_other_conversation_away(format: str, path: Path) -> None:
    records = (
        [orjson.loads(line) for line in path.read_bytes().splitlines()]
        if path.suffix == ".jsonl"
        else []
    )
    records = records or [orjson.loads(path.read_bytes())]
    shelf, made = Shelf(), formats()[format]
    for nth, (home, key) in enumerate(list(places(records))):
        value, home[key] = home[key], ODD[nth % len(ODD)]
        documents, _ = read_data(b"\n".join(map(orjson.dumps, records)), shelf, made)
        home[key] = value
        if made.write is not None:
            for data in written(documents, made, shelf):
                read_data(data, shelf, made)


DAMAGED = [path for path in sorted(DATA.glob("*/damaged*")) if path.parent.name in formats()]


@pytest.mark.parametrize(
    "path", DAMAGED, ids=[f"{path.parent.name}-{path.name}" for path in DAMAGED]
)
def test_damage_is_reported(path: Path) -> None:
    _, problems = read(path)

    assert problems.first
    assert all(problem.reason for problem in problems.first)


@pytest.mark.parametrize(
    ("name", "texts", "lines", "count"),
    [
        ("atif/damaged.json", ["", "who?", "", "of no call"], {1}, 11),
        ("gemini/damaged.jsonl", ["one", ""], {2, 3, 4, 5, 6}, 5),
        ("librechat/damaged.json", ["own parent", "the same id", "", "circle", "circle"], {1}, 5),
        ("llama-webui/damaged.jsonl", ["before any session", "hm", ""], {1, 3, 4, 5}, 7),
        ("open-webui/damaged.json", ["no id", "circle", ""], {2, 41}, 6),
        ("specstory/damaged.md", ["No session", ""], {1, 9}, 2),
    ],
)
def test_damage_is_reported_by_line_and_no_message_is_lost(
    name: str, texts: list[str], lines: set[int], count: int
) -> None:
    documents, problems = read(DATA / name)

    assert [entry["content"] for document in documents for entry in document["history"]] == texts
    assert ({problem.line for problem in problems.first}, problems.count) == (lines, count)


#: The fields of a message that a format has no place for, and the fields of the head.
LOST_FIELDS = {
    "capsule-2.0": {"toolCalls", "toolCallId", "reasoning", "model", "topic", "role"},
    "chatgpt": {"toolCalls", "toolCallId", "reasoning", "topic", "tags", "context"},
    "claude-code": {"reasoning", "topic", "tags", "context"},
    "codex": {"topic", "tags", "context", "model", "timestamp"},
    "llama-webui": {"topic", "tags", "context"},
    "open-webui": {"topic", "timestamp"},
    "librechat": {"topic", "tags", "timestamp"},
    "atif": {"topic", "tags", "context", "timestamp"},
}


@pytest.mark.parametrize("name", READ_AND_WRITTEN)
def test_an_export_brings_back_what_the_documentation_says_in_another_store(name: str) -> None:
    call = {"id": "t1", "name": "Bash", "arguments": {"command": "ls"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "Look", "topic": "plans"},
        {"role": "assistant", "content": "I look", "model": "m", "reasoning": "Why not"},
        {"role": "assistant", "content": "", "toolCalls": [call]},
        {"role": "tool", "content": "a file", "toolCallId": "t1"},
        {"role": "assistant", "content": "A file"},
    ]
    for place, message in enumerate(messages):
        message["timestamp"] = f"2026-01-02T10:00:0{place}.000Z"
    with Store.in_memory() as store, Store.in_memory() as other:
        id = store.create(title="Files", tags=["red"], messages=messages).id
        store.context.set(id, {"fullContext": "Be kind"})
        store.export([id], file := BytesIO(), format=name)
        other.import_(stream=BytesIO(file.getvalue()))
        document, again = store.document(id), other.document(id)

    lost = set()
    for entry, entry_again in zip(document["history"], again["history"], strict=True):
        assert entry["id"] == entry_again["id"]
        lost |= {field for field in entry if entry_again.get(field) != entry[field]}
    if again["metadata"]["tags"] != ["red"]:
        lost.add("tags")
    if again["context"]["fullContext"] != "Be kind":
        lost.add("context")
    assert again["title"] == "Files"
    assert lost == LOST_FIELDS.get(name, set())
