"""Bad input raises a clear error of the right kind and changes nothing."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from capsule import Store
from capsule.errors import CapsuleError, InvalidDocument, InvalidInput, Locked, NotFound
from capsule.maintenance.doctor import examine
from tests.core.store.doors import BY_ID, WRITES
from tests.processes import Child

BAD_IDS = [
    *("", ".", "..", "../x", "a/b", "/etc/passwd", "x" * 300, "x" * 129),
    *("a\0b", "a b", "ä", "-x", ".x", "a\n", "~"),
]
#: What takes the id of a conversation, besides.
MORE_BY_ID: dict[str, Callable[[Store, str], object]] = {
    "create": lambda store, id: store.create(id=id),
    "edits.rewrite": lambda store, id: store.edits.rewrite(id, b"{}", b"{}"),
    "trash.restore": lambda store, id: store.trash.restore(id),
    "resolve": lambda store, id: store.resolve(id),
}


def test_an_id_that_is_no_file_stem_is_refused_by_every_method(root: Path, store: Store) -> None:
    before = sorted(root.rglob("*"))
    for id in BAD_IDS:
        for use in (*BY_ID.values(), *WRITES.values(), *MORE_BY_ID.values()):
            with pytest.raises((InvalidInput, NotFound, InvalidDocument)):
                use(store, id)
        assert sorted(root.rglob("*")) == before


def test_an_invalid_message_is_refused_before_anything_is_written(store: Store) -> None:
    id = store.create(type="group").id
    before, ids = store.read(id), store.ids()
    for message in [
        {"content": "\ud800"},
        {"content": 7},
        {"content": None},
        {"role": "wizard", "content": "x"},
        {"role": "user"},
        {"content": "x", "timestamp": "yesterday"},
        {"content": "x", "timestamp": 5},
        {"content": "x", "weight": float("nan")},
        {"content": "x", "weight": float("inf")},
        {"content": "x", "weight": 2**64},
        {"content": "x", "more": {1: 2}},
        {"content": "x", "more": {1, 2}},
        {"content": "x", "more": b"bytes"},
        {"content": "x", "from": "a/b"},
        {"content": "x", "\ud800": 1},
    ]:
        with pytest.raises(InvalidInput):
            store.append_many(id, [{"role": "user", "content": "x"}, {"role": "user"} | message])
        with pytest.raises(InvalidInput):
            store.create(id="new", messages=[{"role": "user"} | message])
        assert store.read(id) == before and store.ids() == ids


def test_a_keyword_that_is_no_field_is_refused_and_a_field_of_ones_own_is_given_as_extra(
    store: Store,
) -> None:
    id = store.create(messages=[{"role": "assistant", "content": "hi"}]).id
    before = store.read(id)
    calls: list[Callable[..., Any]] = [
        partial(store.append, id, content="x"),
        partial(store.append_once, id, "key", content="x"),
        partial(store.branches.revise, id, "@0", "x"),
        partial(store.branches.regenerate, id, "x"),
    ]
    for call in calls:
        for wrong in ({"modle": "m"}, {"extra": {"model": "m"}}, {"extra": {"reply_to": "m"}}):
            with pytest.raises(TypeError, match=r"modle|model|reply_to"):
                call(**wrong)
    assert store.read(id) == before
    for call in calls:
        call(model="m", extra={"modle": "x"})
    assert [entry["modle"] for entry in store.document(id)["history"][1:]] == ["x"] * 4


def test_a_message_beyond_the_limit_is_refused_before_anything_is_written(store: Store) -> None:
    id = store.create().id
    before = store.read(id)
    for use in (
        lambda: store.append(id, content="x" * 100_000_000),
        lambda: store.append(id, content="€" * 4_000_000),
        lambda: store.append(id, content="x", extra={"more": "y" * 11_000_000}),
        lambda: store.create(id="new", messages=[{"role": "user", "content": "x" * 10_000_001}]),
        lambda: store.create(
            id="new", messages=[{"role": "user", "content": "x", "more": "y" * 11_000_000}]
        ),
    ):
        with pytest.raises(InvalidInput, match=r"10,000,000"):
            use()
    assert store.read(id) == before and store.ids() == [id]
    store.append(id, content="x" * 9_000_000)
    with pytest.raises(InvalidInput):
        store.edits.message(id, "@0", "y" * 10_000_001)
    assert len(store.tail(id, 1)[0].content) == 9_000_000


def test_create_and_rename_refuse_invalid_fields(store: Store) -> None:
    for arguments in [
        {"title": ""},
        {"title": " "},
        {"title": "a\nb"},
        {"title": "x" * 201},
        {"title": "\ud800"},
        {"mode": "fast"},
        {"type": "crowd"},
        {"tags": "work"},
        {"tags": [""]},
        {"tags": ["a\nb"]},
        {"tags": ["\ud800"]},
        {"tags": [7]},
        {"created_by": 7},
    ]:
        with pytest.raises(InvalidInput):
            store.create(**arguments)
        assert store.ids() == []
    id = store.create(title="Plan").id
    for title in ("", "a\nb", "x" * 201, "\x1b[31m"):
        with pytest.raises(InvalidInput):
            store.rename(id, title)
        assert store.head(id).title == "Plan"


def test_a_directory_that_is_no_store_is_not_opened(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as refused:
        Store.open(tmp_path)
    assert refused.value.remedy is not None and refused.value.remedy.action == "init"


def test_invalid_settings_are_refused_by_name(root: Path) -> None:
    for text, place in [
        ("shared = 1", ":1:1: shared: "),
        ("[limits]\nmessage_bytes = -1", ":2:1: limits.message_bytes: "),
        ("[lock]\nttl = 30", ":2:1: lock.ttl: "),
        ("= x", ":1:"),
        (
            "[channels.a]\naccess = 'open'\n[channels.b]\naccess = 'opn'",
            ":4:1: channels.b.access: ",
        ),
        ("[links]\n'my.app' = 'web'", ":2:1: links.my.app: "),
        ("agents.bob = 1", ":1:1: agents.bob: "),
        ("[notifications]\nfiles = 'CLAUDE.md'", ":2:1: notifications.files: "),
        ("[" * 100_000, ":1:"),
        ("a = " + "[" * 100_000, ": its tables and lists are nested too deep"),
        (".".join("a" * 2_000) + " = 1", ": its tables and lists are nested too deep"),
        ("a = " + "1" * 100_000, ": is not valid TOML: "),
    ]:
        (root / "capsule.toml").write_text(text)
        with pytest.raises(InvalidDocument, match=re.escape(f"capsule.toml{place}")):
            Store.open(root)


def test_a_misspelt_setting_is_named_with_its_line_and_the_closest_name(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for text, expected in [
        ("[lock]\nttI = '1h'", r"capsule\.toml:2:1: lock\.ttI: .*lock\.ttl"),
        (
            "[limit]\nmessage_bytes = 9",
            r"capsule\.toml:2:1: limit\.message_bytes: .*limits\.message_bytes",
        ),
        ("mutex_timeout = '1s'", r"capsule\.toml:1:1: mutex_timeout: .*storage\.mutex_timeout"),
        ("storage.colour = 1", r"capsule\.toml:1:1: storage\.colour: .*storage\.append"),
        (
            "[channels.a]\n[channels.'b c']\nacess = 1",
            r"capsule\.toml:3:1: channels\.b c\.acess: .*NAME\.access",
        ),
        ("links = 1", r"capsule\.toml:1:1: links: "),
    ]:
        (root / "capsule.toml").write_text(text)
        Store.open(root).close()
        assert re.search(expected, caplog.text)


def test_a_file_too_large_to_be_read_damages_no_other_conversation(
    root: Path, store: Store
) -> None:
    good, large = (
        store.create(title="Good", type="group").id,
        store.create(title="Large", type="group").id,
    )
    (root / "capsule.toml").write_text("[limits]\ndocument_bytes = 100_000\n")
    os.truncate(root / "conversations" / f"{large}.json", 8 << 30)
    with Store.open(root) as store:
        damaged = {head.id: head.damaged for head in store.heads()}
        assert damaged[good] == "" and "limits.document_bytes" in damaged[large]
        assert [finding.id for finding in examine(store)] == [large]
        assert [hit.id for hit in store.search("good").hits] == [good]
        for act in (
            store.load,
            store.read,
            store.head,
            lambda id: store.append(id, content="x"),
            store.tail,
        ):
            with pytest.raises(InvalidDocument, match=r"limits\.document_bytes"):
                act(*(large, 1)[: 2 if act == store.tail else 1])
        store.delete(large)
        assert "limits.document_bytes" in store.trash.head(store.trash.list()[0]).damaged
        with pytest.raises(InvalidInput, match=r"limits\.document_bytes"):
            store.append(good, content="x" * 100_000)


def test_a_write_through_a_mapping_is_read_or_reported_as_damage(root: Path, store: Store) -> None:
    """Such a write may leave the signature unchanged."""
    id = store.create(
        title="Plan", type="group", messages=[{"role": "user", "content": "hello"}]
    ).id
    path = root / "conversations" / f"{id}.json"
    whole = path.read_bytes()
    reads = (store.load, store.read, store.document, store.head, lambda id: store.tail(id, 1),
             lambda id: store.tail_entries(id, 1))  # fmt: skip

    def through_a_mapping(old: bytes, new: bytes) -> None:
        """Write as `mmap` does, before the system updates the time of the file."""
        found = path.stat()
        with path.open("r+b") as file:
            file.write(whole.replace(old, new))
        os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))
        header = store.engine.storage.recorded_header("conversations", id)
        assert header is not None
        signature = header.signature._replace(ctime_ns=path.stat().st_ctime_ns)
        with store.engine.storage.hold("conversations", id) as held:
            held.commit_write(header._replace(signature=signature))

    for read in reads[:-2]:
        through_a_mapping(b'"title": "Plan"', b'"title": 123456')
        if read != store.document:
            with pytest.raises(InvalidDocument, match="title"):
                read(id)
    for read in reads:
        if read == store.head:
            continue  # This one reads no message.
        through_a_mapping(b'"content": "hello"', b'"content": "hello,')
        with pytest.raises(InvalidDocument):
            read(id)
    for read in reads:
        through_a_mapping(b"hello", b"HELLO")
        read(id)
    assert store.load(id).history[0].content == "HELLO"


def test_a_damaged_file_that_another_instance_holds_is_not_deleted(
    root: Path, store: Store
) -> None:
    id = store.create(title="Plan").id
    path = root / "conversations" / f"{id}.json"
    store.append(id, content="x")
    path.write_bytes(path.read_bytes().replace(b'"content": "x"', b'"content": "x'))
    with Store.open(root) as other, pytest.raises(Locked):
        other.delete(id)
    assert path.exists()
    store.delete(id)
    assert not path.exists()


def _symlink(path: Path) -> None:
    target = path.with_name("target")  # This name is not that of a document.
    target.write_bytes(b"{}")
    path.symlink_to(target)


PLACES: list[Callable[[Path], None]] = [
    _symlink,
    lambda path: path.symlink_to("nowhere"),
    os.mkfifo,
    Path.mkdir,
]


def test_a_document_that_is_no_regular_file_is_refused_and_left(root: Path, store: Store) -> None:
    good = store.create(title="Good").id
    for number, make in enumerate(PLACES):
        id = f"odd{number}"
        path = root / "conversations" / f"{id}.json"
        make(path)
        kind = stat.S_IFMT(path.lstat().st_mode)
        for use in (store.load, store.head, lambda id: store.append(id, content="x"), lambda id: store.tail(id, 1),
                    lambda id: store.rename(id, "x"), lambda id: store.create(id=id)):  # fmt: skip
            with pytest.raises((InvalidDocument, InvalidInput)):
                use(id)
        assert stat.S_IFMT(path.lstat().st_mode) == kind
        heads = {head.id: head for head in store.heads()}
        assert heads[id].damaged and not heads[good].damaged
        store.append(good, content="still works")


def test_a_symlink_in_place_of_a_mutex_is_not_followed(root: Path, store: Store) -> None:
    id = store.create(type="group").id
    store.close()
    mutex = root / ".capsule" / "mutex" / f"conversations-{id}"
    mutex.unlink()
    victim = root / "victim"
    victim.write_bytes(b"mine")
    mutex.symlink_to(victim)
    with Store.open(root) as again, pytest.raises(CapsuleError):
        again.append(id, content="x")
    assert victim.read_bytes() == b"mine"


def test_a_file_whose_name_differs_from_its_id_is_damaged_and_hides_no_other(
    root: Path, store: Store
) -> None:
    id = store.create(title="Good", type="group").id
    shutil.copy(root / "conversations" / f"{id}.json", root / "conversations" / "copy.json")
    with pytest.raises(InvalidDocument, match="file's name"):
        store.append("copy", content="x")
    assert {head.id: bool(head.damaged) for head in store.heads()} == {id: False, "copy": True}
    store.append(id, content="x")


def test_files_whose_names_are_no_ids_are_listed_as_damaged(root: Path, store: Store) -> None:
    id = store.create(title="Good").id
    (root / "conversations" / "no id.json").write_bytes(b"{}")
    (root / "conversations" / "notes.txt").write_bytes(b"mine")
    (root / "conversations" / ".hidden.json").write_bytes(b"mine")
    assert {head.id: bool(head.damaged) for head in store.heads()} == {id: False, "no id": True}


#: Become an ordinary user. All modules are loaded before, as only root may be able to read the
#: interpreter.
DROP = """
def drop():
    import tempfile, encodings.ascii
    with tempfile.TemporaryDirectory() as directory:
        Store.init(directory)
        with Store.open(directory) as store:
            id = store.create().id
            store.append(id, content="x")
            store.load(id), store.tail(id, 1), list(store.heads())
            open(f"{directory}/conversations/{id}.json", "a").write(" ")
            store.load(id), store.head(id), store.rename(id, "y")
            store.delete(id), store.trash.restore(id)
    if os.getuid() == 0:
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
"""
AS_USER = """
drop()
store = Store.open(sys.argv[1])
say(sorted(head.title for head in store.heads()))
id = sys.argv[2]
say([message.content for message in store.load(id).history])
say([message.content for message in store.tail(id, 1)])
say(store.head(id).title)
errors = []
for write in (lambda: store.append(id, content="x"), lambda: store.rename(id, "x"), lambda: store.create(title="x"),
              lambda: store.delete(id), lambda: store.locks.take(id)):
    try:
        write()
    except CapsuleError as error:
        errors.append(type(error).__name__)
say(errors)
store.close()
"""


@pytest.mark.parametrize(("mutexes", "layout"), [("there", "canonical"), ("gone", "other")])
def test_a_store_without_write_permission_can_be_read(
    tmp_path: Path, child: Callable[..., Child], mutexes: str, layout: str
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        root = Path(directory) / "store"
        Store.init(root)
        with Store.open(root, keep_locks=False) as store:
            id = store.create(title="Plan", messages=[{"role": "user", "content": "hello"}]).id
            store.append(id, content="two")
        path = root / "conversations" / f"{id}.json"
        if layout == "other":
            path.write_bytes(path.read_bytes().replace(b"  ", b" "))
        if mutexes == "gone":
            shutil.rmtree(root / ".capsule")
        before = path.read_bytes()
        for place in [root, *root.rglob("*")]:
            place.chmod(0o555 if place.is_dir() else 0o444)
        try:
            process = child(DROP + AS_USER, root, id)
            assert process.hear() == ["Plan"]
            assert process.hear() == ["hello", "two"]
            assert process.hear() == ["two"]
            assert process.hear() == "Plan"
            assert process.hear() == ["Refused"] * 5
            assert process.end() == 0
            assert path.read_bytes() == before
        finally:
            for place in [root, *root.rglob("*")]:
                place.chmod(0o755)


def test_a_file_without_read_permission_is_refused_and_hides_no_other(
    child: Callable[..., Child],
) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        os.chmod(directory, 0o777)
        process = child(
            DROP
            + """
drop()
Store.init(sys.argv[1] + "/store")
with Store.open(sys.argv[1] + "/store", keep_locks=False) as store:
    secret, good = store.create(title="Secret").id, store.create(title="Good").id
    os.chmod(f"{sys.argv[1]}/store/conversations/{secret}.json", 0)
    say(sorted((head.title, bool(head.damaged)) for head in store.heads()))
    for use in (store.load, store.head, lambda id: store.append(id, content="x")):
        try:
            use(secret)
        except CapsuleError as error:
            say(type(error).__name__)
    store.append(good, content="x")
""",
            directory,
        )
        assert process.hear() == [["", True], ["Good", False]]
        assert [process.hear() for _ in range(3)] == ["Refused"] * 3
        assert process.end() == 0


def test_init_without_write_permission_is_refused(child: Callable[..., Child]) -> None:
    process = child(
        """
        if os.getuid() == 0:
            os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try:
            Store.init("/proc/store")
        except CapsuleError as error:
            say(type(error).__name__)
        """
    )
    assert process.hear() in ("Refused", "StorageFailed")
    assert process.end() == 0
