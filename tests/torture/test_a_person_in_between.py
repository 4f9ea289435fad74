"""A person edits the file with an editor while programs write to it.

The promises are in docs/guarantees.md, "A person in between": no save loses an acknowledged
message; a message that the person read and removed stays removed; their edits, messages and tags
are kept; and so are the changes of the head that programs made meanwhile.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import orjson
import pytest

from capsule import Store
from tests.torture.editors import SAVES, Editing, Person
from tests.torture.writers import LONG, Plan, Writers, acknowledged, assert_clean, make

pytestmark = pytest.mark.slow


def run(
    tmp_path: Path, rng: random.Random, persons: list[str], **how: object
) -> tuple[dict[str, Any], list[list]]:
    """Let persons edit while writers append. Returns: the document at the end, and the saves of
    each person.
    """
    root, acks = tmp_path / "store", tmp_path / "acks"
    acks.mkdir()
    (id,) = make(root, ["group"])
    path = root / "conversations" / f"{id}.json"
    with Store.open(root) as store:
        store.append_many(id, [{"role": "user", "content": f"before {n}"} for n in range(30)])
    count = 1500 if LONG else 150
    plans = [
        Plan(
            str(root),
            str(acks / f"w{i}"),
            f"w{i}",
            rng.getrandbits(32),
            [id],
            count,
            tag_every=20,
            **how,
        )
        for i in range(3)
    ]
    with ExitStack() as stack:
        writers = stack.enter_context(Writers(plans))
        editing = [
            stack.enter_context(
                Editing(
                    Person(
                        str(path),
                        f"p{i}",
                        save,
                        rng.getrandbits(32),
                        str(tmp_path / f"journal{i}"),
                        str(acks),
                    )
                )
            )
            for i, save in enumerate(persons)
        ]
        writers.begin()
        while writers.running():
            for one in editing:
                assert one.running()
            time.sleep(0.01)
        did = [one.finish() for one in editing]
        writers.finish()
    with Store.open(root) as store:
        store.append(id, content="after")
    assert_clean(root)
    return orjson.loads(path.read_bytes()), did


def assert_kept(tmp_path: Path, document: dict[str, Any], deleted: set[str]) -> int:
    """Assert that each acknowledged message is there once, or was deleted. Returns:
    their number.
    """
    ids = Counter(entry["id"] for entry in document["history"])
    assert max(ids.values()) == 1
    acked = list(acknowledged(tmp_path / "acks"))
    messages = {message: (writer, n) for _, writer, n, message in acked if message}
    assert [messages[id] for id in messages if id not in ids and id not in deleted] == []
    tags = {f"{writer}-{n}" for _, writer, n, message in acked if not message}
    assert tags - set(document["metadata"]["tags"]) == set()
    assert sum(entry["content"].startswith("before ") for entry in document["history"]) >= 30 - len(
        deleted
    ) - len([1 for entry in document["history"] if entry["content"].startswith("edited")])
    return len(messages)


@pytest.mark.parametrize("save", [*SAVES, "sed"])
def test_an_editor_loses_nothing_acknowledged_and_writers_lose_nothing_of_the_person(
    tmp_path: Path, rng: random.Random, save: str
) -> None:
    document, (did,) = run(tmp_path, rng, [save])
    deleted = {done["deleted"] for done in did if "deleted" in done}
    acked = assert_kept(tmp_path, document, deleted)
    history = {entry["id"]: entry for entry in document["history"]}
    assert not deleted & history.keys()
    assert [document["title"]] == [done["title"] for done in did if "title" in done][-1:]
    assert {done["tag"] for done in did if "tag" in done} <= set(document["metadata"]["tags"])
    contents = Counter(entry["content"] for entry in document["history"])
    typed = {done["typed"] for done in did if "typed" in done}
    assert {contents[text] for text in typed} <= {1}
    edited = dict(done["edited"] for done in did if "edited" in done)
    assert {id: history[id]["content"] for id in edited if id in history} == {
        id: text for id, text in edited.items() if id in history
    }
    again = sum("again" in done for done in did)
    print(
        f"{save}: {len(did)} saves, {again} again, {acked} acknowledged and kept, {len(deleted)} "
        "deleted by hand"
    )


def test_two_editors_that_overwrite_each_other_lose_nothing_acknowledged(
    tmp_path: Path, rng: random.Random
) -> None:
    document, did = run(tmp_path, rng, ["rename", "in-place"])
    deleted = {done["deleted"] for one in did for done in one if "deleted" in done}
    acked = assert_kept(tmp_path, document, deleted)
    print(f"two editors: {sum(map(len, did))} saves, {acked} acknowledged and kept")
