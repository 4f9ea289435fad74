"""Files that a person, an editor or git changed are read, or reported and left alone."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import orjson
import pytest

from capsule import Store
from capsule.errors import InvalidDocument, NotFound
from capsule.format.json import codec
from tests.core.store.files import contents, file_of, is_canonical, put_over, quarantined

SAVES = pytest.mark.parametrize("save", [Path.write_bytes, put_over])


@SAVES
def test_a_hand_edit_is_read_without_a_command(root: Path, store: Store, save) -> None:  # type: ignore[no-untyped-def]
    id = store.create(title="Plan", messages=[{"role": "user", "content": "hello"}]).id
    path = file_of(root, id)
    save(
        path, path.read_bytes().replace(b"hello", b"good morning").replace(b'"Plan"', b'"Renamed"')
    )
    assert store.head(id).title == "Renamed"
    assert contents(store, id) == ["good morning"]
    assert [message.content for message in store.tail(id, 1)] == ["good morning"]
    assert [head.title for head in store.heads()] == ["Renamed"]
    store.append(id, content="x")
    assert contents(store, id) == ["good morning", "x"] and store.head(id).title == "Renamed"


@SAVES
def test_a_file_that_does_not_parse_is_reported_with_its_position_and_left(
    root: Path, save
) -> None:  # type: ignore[no-untyped-def]
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan", messages=[{"role": "user", "content": "hello"}]).id
        other = store.create(title="Other").id
        path = file_of(root, id)
        broken = path.read_bytes().replace(b'"title": "Plan",', b'"title": "Plan"')
        line = broken[: broken.index(b'"Plan"')].count(b"\n") + 1
        save(path, broken)
        os.utime(path, (1, 1))
        for use in (
            lambda: store.append(id, content="x"),
            lambda: store.load(id),
            lambda: store.read(id),
            lambda: store.tail(id, 1),
            lambda: store.head(id),
            lambda: store.rename(id, "x"),
            lambda: store.locks.release(id),
        ):
            with pytest.raises(InvalidDocument) as refused:
                use()
            assert (
                refused.value.problems[0].line in (line, line + 1)
                and refused.value.problems[0].column > 0
            )
            assert str(path) in str(refused.value)
            assert path.read_bytes() == broken
        damaged = {head.id: head.damaged for head in store.heads()}
        assert f"{path}:" in damaged[id] and damaged[other] == ""
        assert not (root / ".capsule" / "quarantine").exists()
        store.append(other, content="still works")


@pytest.mark.parametrize("sample", ["550e8400", "7d444840"])
@pytest.mark.parametrize(
    "write",
    [
        lambda store, id: store.append(id, content="new"),
        lambda store, id: store.rename(id, "new"),
        lambda store, id: store.edits.migrate(id),
    ],
)
def test_a_foreign_capsule_is_read_as_it_is_and_made_canonical_by_the_first_write(  # type: ignore[no-untyped-def]
    root: Path, store: Store, samples: Path, sample: str, write
) -> None:
    source = next(samples.glob(f"{sample}*.json"))
    path = shutil.copy(source, root / "conversations")
    id = source.stem
    had = codec.decode(source.read_bytes(), "sample")
    assert len(store.load(id).history) == len(had["history"])
    assert Path(path).read_bytes() == source.read_bytes()
    write(store, id)
    data = Path(path).read_bytes()
    now = codec.decode(data, "written")
    assert codec.encode(store.document(id)) == data
    assert now["version"] == "2.1"

    def inside(old: object, new: object, where: str = "") -> None:
        if isinstance(old, dict):
            assert isinstance(new, dict)
            for key in old:
                if key not in {
                    "updatedAt",
                    "version",
                    "lock",
                    "title",
                    "titleSetBy",
                    "timestamp",
                    "createdAt",
                }:
                    inside(old[key], new[key], f"{where}.{key}")
        elif isinstance(old, list):
            assert isinstance(new, list)
            for one, other in zip(old, new, strict=False):
                inside(one, other, where)
        else:
            assert codec.encode({"v": old}) == codec.encode({"v": new}), where

    inside(had, now)


@pytest.mark.parametrize(
    "mangle",
    [
        lambda data: b"\xef\xbb\xbf" + data,
        lambda data: data.replace(b"\n", b"\r\n"),
        lambda data: orjson.dumps(orjson.loads(data)),
        lambda data: orjson.dumps(dict(reversed(orjson.loads(data).items()))),
        lambda data: data + b"\n\n  \n",
        lambda data: data.rstrip(b"\n"),
        lambda data: data.replace(b"  ", b"\t"),
    ],
    ids=["bom", "crlf", "compact", "other order", "more white space", "no newline", "tabs"],
)
def test_any_layout_is_read_and_made_canonical_by_the_next_write(
    root: Path, store: Store, mangle
) -> None:  # type: ignore[no-untyped-def]
    id = store.create(title="Plan", messages=[{"role": "user", "content": "hello"}]).id
    path = file_of(root, id)
    path.write_bytes(mangle(path.read_bytes()))
    assert contents(store, id) == ["hello"] and store.head(id).title == "Plan"
    assert [head.damaged for head in store.heads()] == [""]
    for n in range(3):
        assert store.append(id, content=str(n)).at == n + 1
    assert is_canonical(store, id)
    assert contents(store, id) == ["hello", "0", "1", "2"]


def test_a_file_removed_by_hand_is_gone_until_it_is_put_back(root: Path, store: Store) -> None:
    id = store.create(messages=[{"role": "user", "content": "hello"}]).id
    path = file_of(root, id)
    data = path.read_bytes()
    path.unlink()
    for use in (
        lambda: store.load(id),
        lambda: store.append(id, content="x"),
        lambda: store.tail(id, 1),
    ):
        with pytest.raises(NotFound):
            use()
    assert list(store.heads()) == []
    path.write_bytes(data)
    store.append(id, content="x")
    assert contents(store, id) == ["hello", "x"]


def test_the_next_read_mends_a_torn_tail_logs_it_and_keeps_a_copy(
    root: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    id = store.create(
        messages=[{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    ).id
    path = file_of(root, id)
    torn = path.read_bytes()[:-7] + b',\n    {\n      "role": "user",\n      "content": "th'
    path.write_bytes(torn)
    os.utime(path, (1, 1))
    with caplog.at_level(logging.WARNING, "capsule"):
        assert contents(store, id) == ["one", "two"]
    assert "quarantine" in caplog.text
    assert quarantined(root) == [torn]
    store.append(id, content="three")
    assert contents(store, id) == ["one", "two", "three"]


@pytest.mark.parametrize(
    "wrong",
    [
        b"",
        b"null",
        b"[]",
        b"{}",
        b'"text"',
        b"{",
        b"\0" * 100,
        b"\xff\xfe{\x00}\x00",
        b'{"id": 1}',
        b"\xc3\x28",
    ],
)
def test_a_file_that_is_no_capsule_is_refused_by_name_and_left(
    root: Path, store: Store, wrong: bytes
) -> None:
    good = store.create(title="Good").id
    path = file_of(root, "wrong")
    path.write_bytes(wrong)
    os.utime(path, (1, 1))
    for use in (
        lambda: store.append("wrong", content="x"),
        lambda: store.load("wrong"),
        lambda: store.head("wrong"),
    ):
        with pytest.raises(InvalidDocument, match=r"wrong\.json"):
            use()
    assert path.read_bytes() == wrong
    assert {head.id: bool(head.damaged) for head in store.heads()} == {good: False, "wrong": True}
    store.delete("wrong")
    assert store.trash.head(store.trash.list()[0]).damaged
    assert Path(store.trash.list()[0].path).read_bytes() == wrong
