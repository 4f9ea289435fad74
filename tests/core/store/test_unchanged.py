"""A write that changes nothing leaves the file, and the place of the conversation in the list."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from capsule import Store

Act = Callable[[Store], object]

#: Writes that are made twice; the second one changes nothing.
TWICE: dict[str, Act] = {
    "tag": lambda store: store.tag("plan", "x"),
    "untag": lambda store: store.untag("plan", "x"),
    "rename": lambda store: store.rename("plan", "Named"),
    "rename by rule": lambda store: store.rename("plan", "Named", by="auto"),
    "pin": lambda store: store.pin("plan"),
    "unpin": lambda store: store.pin("plan", False),
    "archive": lambda store: store.archive("plan"),
    "update": lambda store: store.update(
        "plan", title="Named", tags=["x"], pinned=True, mcp_servers={"git": False}
    ),
    "edit a message": lambda store: store.edits.message("plan", "@0", "edited"),
    "edit the file": lambda store: store.edits.rewrite(
        "plan", store.read("plan"), store.read("plan")
    ),
    "set the context": lambda store: store.context.set(
        "plan", {"fullContext": "a\nb", "metadata": {"x": 1.50}}
    ),
    "clear the context": lambda store: store.context.clear("plan"),
    "switch": lambda store: store.branches.switch("plan", "m-1"),
    "unlock": lambda store: store.locks.release("plan"),
}


@pytest.fixture(params=["canonical", "another layout"])
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        messages = [
            {"role": "user", "content": text, "id": f"m-{n}"}
            for n, text in enumerate(("one", "two"))
        ]
        store.create(id="plan", type="group", messages=messages)
        store.append("plan", content="three")
    return tmp_path


def test_a_repeated_write_leaves_the_file(root: Path, request: pytest.FixtureRequest) -> None:
    for name in TWICE:
        path = root / "conversations" / "plan.json"
        with Store.open(root) as store:
            TWICE[name](store)
            if "another" in request.node.name:
                path.write_bytes(orjson.dumps(orjson.loads(path.read_bytes())))
                store.load("plan")
            before, found = path.read_bytes(), path.stat()
            TWICE[name](store)
            assert path.read_bytes() == before
            assert (path.stat().st_ino, path.stat().st_mtime_ns) == (
                found.st_ino,
                found.st_mtime_ns,
            )


def test_a_save_that_changes_the_lock_alone_keeps_updated_at(tmp_path: Path) -> None:
    Store.init(tmp_path)
    with Store.open(tmp_path, keep_locks=False) as store:
        before = store.create(id="chat", tags=["x"])
    with Store.open(tmp_path) as store:
        after = store.tag("chat", "x")
        assert after.lock is not None and after.updated_at == before.updated_at
        assert store.tag("chat", "y").updated_at >= before.updated_at
        assert store.head("chat").lock == after.lock


def test_an_edit_from_1_to_true_is_written(tmp_path: Path) -> None:
    """Python's `==` finds 1 and true equal."""
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.create(id="plan", type="group")
        document = store.document("plan")
        store.edits.rewrite("plan", orjson.dumps(document | {"x": 1}), store.read("plan"))
        store.edits.rewrite("plan", orjson.dumps(document | {"x": True}), store.read("plan"))
        assert store.document("plan")["x"] is True


def test_the_cache_of_heads_drops_the_least_recently_used() -> None:
    from capsule.format.documents.head import HeadCache

    heads = HeadCache()
    for n in range(1025):
        heads.put(str(n), "tag", {})
        heads.put("0", "tag", {})
    assert heads.get("1", "tag") is None
    assert all(heads.get(str(n), "tag") for n in (0, 2, 1024))
