"""Every state that a power cut can leave after any call of any write path: a store opens it without
a loss.

The model of the file system, and what it assumes, is in `tests/torture/filesystem.py`. In each
state:

- whoever loads the conversation gets every message that was acknowledged before, in the order of
  their writes, and of the others a beginning;
- where an editor was saving in place when the power went, and left no conversation, the error says
  so, and an older version put in its place gets the acknowledged messages back;
- every operation works from then on.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import orjson
import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from capsule.engines.files.disk import log
from capsule.errors import InvalidDocument, NotFound, StorageFailed
from capsule.format.documents import creation
from capsule.format.json import codec, layout
from capsule.format.recovery import torn_files
from capsule.format.validation import decode_checked
from capsule.maintenance.doctor import examine
from tests.core.storage.faults import lock_by_name, nothing, stale_save, store_on, tear
from tests.torture.filesystem import (
    Disk,
    Rebooted,
    Recorder,
    Remounted,
    contents_after_cut,
    materialise,
)

LONG = bool(os.environ.get("CAPSULE_TORTURE"))
STAMP = "2025-01-12T10:30:00.000Z"

pytestmark = pytest.mark.slow


def save_by_rename(sys: Syscalls, root: Path) -> None:
    """Save as an editor does, which flushes the file and not the directory."""
    path = root / "conversations" / "plan.json"
    data = path.read_bytes().replace(b'"one"', b'"by hand"')
    fd = sys.open(f"{path}~", os.O_RDWR | os.O_CREAT, 0o600)
    sys.pwrite(fd, data, 0)
    sys.fsync(fd)
    sys.close(fd)
    sys.rename(f"{path}~", str(path))


def hand_edited_append(store: Store) -> None:
    save_by_rename(store.engine.storage.sys, Path(store.root))  # type: ignore[attr-defined]
    store.append("plan", content="new")


def system_of(store: Store) -> Recorder:
    system = store.engine.storage.sys  # type: ignore[attr-defined]
    assert isinstance(system, Recorder)
    return system


def saying(store: Store, *texts: str) -> None:
    """Append texts, each acknowledged before the next one."""
    for text in texts:
        store.append("plan", content=text)
        system_of(store).events.append(("acknowledged", text))


def save_in_place(sys: Syscalls, root: Path) -> None:
    """Save as an editor does that writes the file in place, and flushes nothing."""
    path = root / "conversations" / "plan.json"
    data = path.read_bytes().replace(b'"one"', b'"by hand, in place"')
    fd = sys.open(str(path), os.O_RDWR | os.O_TRUNC)
    sys.pwrite(fd, data, 0)
    sys.close(fd)


def save_stale(sys: Syscalls, root: Path) -> None:
    """Save by rename what was read before the last message; as `save_by_rename` does."""
    path = root / "conversations" / "plan.json"
    document = orjson.loads(path.read_bytes())
    document["history"].pop()
    document["updatedAt"] = document["createdAt"]
    fd = sys.open(f"{path}~", os.O_RDWR | os.O_CREAT, 0o600)
    sys.pwrite(fd, orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n", 0)
    sys.fsync(fd)
    sys.close(fd)
    sys.rename(f"{path}~", str(path))


def saved_between(save: Callable[[Syscalls, Path], None]) -> Callable[[Store], None]:
    """Splices before and after an editor's save, none of them flushed by then."""

    def act(store: Store) -> None:
        saying(store, "a", "b")
        save(system_of(store), Path(store.root))
        saying(store, "c", "d" * 600)

    return act


def two_writers(store: Store) -> None:
    """The second writer appends while the first one flushes the log."""
    system = system_of(store)
    with store_on(Path(store.root), system, keep_locks=False) as other:
        for mine, theirs in (("a", "b"), ("c", "d" * 600)):
            if (
                store.settings.append == "replace"
            ):  # It flushes under the mutex: the second one comes after it.
                saying(store, mine)
                saying(other, theirs)
                continue
            system.before_flush = lambda text=theirs: saying(other, text)  # type: ignore[misc]
            saying(store, mine)
            assert system.before_flush is None


def small_logs(store: Store) -> None:
    """Splices whose log is written anew on the way, since it is full."""
    kept = log.MESSAGE_BYTES, log._LARGEST
    log.MESSAGE_BYTES, log._LARGEST = 1000, 4096
    try:
        saying(store, *(letter * 900 for letter in "abcdef"))
    finally:
        log.MESSAGE_BYTES, log._LARGEST = kept


def failed_flush(store: Store) -> None:
    """The flush of the log fails; the client sends the message again under its id."""
    system = system_of(store)

    def fail() -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    saying(store, "a")
    system.before_flush = fail
    with pytest.raises(StorageFailed):
        store.append_once("plan", "b", content="b")
    store.append_once("plan", "b", content="b")
    system.events.append(("acknowledged", "b"))
    saying(store, "c")


LETTERS = ["a", "b", "c", "d" * 600]


def prefixes(*texts: str) -> list[list[str]]:
    return [list(texts[:n]) for n in range(1, len(texts) + 1)]


def not_waited_for(store: Store) -> None:
    store.append("plan", content="a", wait=False)
    store.flush()
    system_of(store).events.append(("acknowledged", "a"))
    saying(store, "b")


BATCH = [{"role": "user", "content": text * 700} for text in "abc"]
#: The texts at the start, the preparation of the file, the operation on the store, and the lists of
#: texts that a power cut during it may leave; once the call has returned, only the last of these.
PATHS: dict[str, tuple[list[str], Callable[[Path, str], None], Callable[[Store], object], list[list[str]]]] = {
    "create": (
        ["one"], nothing, lambda store: store.create(id="second", messages=[{"role": "user", "content": "x"}]),
        [["one"]]),
    "splice": (
        ["one", "two"], nothing, lambda store: store.append("plan", content="new"),
        [["one", "two"], ["one", "two", "new"]]),
    "splice a large one": (
        ["one"], nothing, lambda store: store.append("plan", content="x" * 6000), [["one"], ["one", "x" * 6000]]),
    "splice many": (
        ["one"], nothing, lambda store: store.append_many("plan", BATCH),
        [["one", *(m["content"] for m in BATCH[:n])] for n in range(4)]),
    "splice to an empty history": (
        [], nothing, lambda store: store.append("plan", content="new"), [[], ["new"]]),
    "two splices": (
        ["one"], nothing, lambda store: (store.append("plan", content="a"), store.append("plan", content="b")),
        [["one"], ["one", "a"], ["one", "a", "b"]]),
    "many splices": (
        ["one"], nothing, lambda store: saying(store, "a", "b" * 700, "c", "d" * 5000, "e"),
        prefixes("one", "a", "b" * 700, "c", "d" * 5000, "e")),
    "two writers": (["one"], nothing, two_writers, prefixes("one", "a", "b", "c", "d" * 600)),
    "small logs": (["one"], nothing, small_logs, prefixes("one", *(letter * 900 for letter in "abcdef"))),
    "a failed flush": (["one"], nothing, failed_flush, prefixes("one", "a", "b", "c")),
    "splices not waited for": (
        ["one"], nothing, not_waited_for, prefixes("one", "a", "b")),
    "splices and a flush": (
        ["one"], nothing, lambda store: (saying(store, "a", "b" * 600), store.flush(), saying(store, "c", "d")),
        prefixes("one", "a", "b" * 600, "c", "d")),
    "splices and a rename": (
        ["one"], nothing, lambda store: (saying(store, "a", "b" * 600), store.rename("plan", "x"), saying(store, "c")),
        prefixes("one", "a", "b" * 600, "c")),
    "splices and an edit": (
        ["one"], nothing,
        lambda store: (saying(store, "a"), store.edits.message("plan", "@0", "new"), saying(store, "c")),
        [*prefixes("one", "a"), *prefixes("new", "a", "c")[1:]]),
    "splices and a save by rename": (
        ["one"], nothing, saved_between(save_by_rename),
        [*prefixes("one", *LETTERS), *prefixes("by hand", *LETTERS)]),
    "splices and a stale save": (["one"], nothing, saved_between(save_stale), prefixes("one", *LETTERS)),
    "splices and a save in place": (
        ["one"], nothing, saved_between(save_in_place),
        [*prefixes("one", *LETTERS), *prefixes("by hand, in place", *LETTERS)]),
    "splices and delete": (
        ["one"], nothing, lambda store: (saying(store, "a", "b" * 600), store.delete("plan")),
        prefixes("one", "a", "b" * 600)),
    "append after a hand edit": (
        ["one"], nothing, hand_edited_append, [["one"], ["by hand"], ["one", "new"], ["by hand", "new"]]),
    "append after a stale save": (
        ["one", "two"], stale_save, lambda store: store.append("plan", content="new"),
        [["one"], ["one", "two"], ["one", "two", "new"]]),
    "rename": (["one"], nothing, lambda store: store.rename("plan", "New"), [["one"]]),
    "set a context": (
        ["one"], nothing, lambda store: store.context.set("plan", {"fullContext": "x" * 6000}), [["one"]]),
    "edit": (["one"], nothing, lambda store: store.edits.message("plan", "@0", "new"), [["one"], ["new"]]),
    "repair": (
        ["one", "two"], tear, lambda store: store.append("plan", content="new"),
        [["one", "two"], ["one", "two", "new"]]),
    "lock": (["one"], nothing, lambda store: store.locks.take("plan"), [["one"]]),
    "refresh a lock": (["one"], lock_by_name, lambda store: store.locks.take("plan"), [["one"]]),
    "delete": (["one"], nothing, lambda store: store.delete("plan"), [["one"]]),
    "delete and restore": (
        ["one"], nothing, lambda store: (store.delete("plan"), store.trash.restore("plan")), [["one"]]),
}  # fmt: skip


def reopened(
    root: Path,
    system: Syscalls,
    may_be: list[list[str]],
    acknowledged: list[str],
    older: bytes,
    *,
    closely: bool,
) -> None:
    """Open what a power cut left: the texts are one of `may_be`, with those acknowledged; and every
    operation works.
    """
    with store_on(root, system, instance="desk") as store:
        if not store.engine.storage.exists("conversations", "plan"):  # type: ignore[attr-defined]
            store.trash.restore("plan")
        try:
            texts = [message.content for message in store.load("plan").history]
            assert texts in may_be
        except InvalidDocument:
            assert "in place" in may_be[-1][0]
            (root / "conversations" / "plan.json").write_bytes(older)
            texts = [message.content for message in store.load("plan").history]
        assert set(acknowledged) <= set(texts) and len(set(texts)) == len(texts)
        store.append("plan", content="next")
        assert [message.content for message in store.load("plan").history] == [*texts, "next"]
        assert [message.content for message in store.tail("plan", 1)] == ["next"]
        data = store.read("plan")
        assert codec.encode(store.document("plan")) == data
        store.append("plan", content="and on")
        store.locks.release("plan")
        if closely:
            list(examine(store, repair=True))
            assert [str(finding) for finding in examine(store)] == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("append", "system"), [("splice", Rebooted), ("splice", Remounted), ("replace", Rebooted)]
)
def test_a_power_cut_at_any_call_loses_nothing_acknowledged(
    memory: Path, rng: random.Random, path: str, append: str, system: type[Syscalls]
) -> None:
    before, prepare, act, may_be = PATHS[path]
    root = memory / "store"
    Store.init(root)
    (root / "capsule.toml").write_text(f'[storage]\nappend = "{append}"\n')
    with Store.open(root, keep_locks=False) as store:
        store.create(id="plan", title="Plan", type="group")
        for text in before:
            store.append("plan", content=text)
    prepare(root, "plan")
    disk = Disk(root)
    recorder = Recorder(root)
    older = (root / "conversations" / "plan.json").read_bytes()
    with store_on(root, recorder, instance="desk") as store:
        act(store)
        returned = len(recorder.events)
    tried: set[int] = set()
    place = memory / "after"
    for number in range(len(recorder.events) + 1):
        if number:
            disk.play(recorder.events[number - 1])
        done = number >= returned
        acknowledged = [
            event[1] for event in recorder.events[:number] if event[0] == "acknowledged"
        ]
        trees = list(disk.trees(rng, long=LONG))
        for tree in (
            trees
            if LONG
            else rng.sample(trees, min(len(trees), max(8, 600 // len(recorder.events))))
        ):
            known = hash((done, len(acknowledged), tuple(sorted(tree.items()))))
            if known in tried:
                continue
            tried.add(known)
            materialise(tree, place)
            try:
                texts = may_be[-1:] if done else may_be
                reopened(place, system(), texts, acknowledged, older, closely=len(tried) % 10 == 0)
                if done and path == "create":
                    with Store.open(place) as store:
                        assert store.load("second").history[0].content == "x"
            except BaseException as failure:
                shutil.copytree(place, memory / "failed", dirs_exist_ok=True)
                failure.add_note(
                    f"{path}, {append}: after call {number} "
                    f"{recorder.events[max(number - 1, 0)]!r:.200}"
                )
                failure.add_note(repr(tree.get("conversations/plan.json"))[-700:])
                raise
    assert len(tried) > 2


def capsule_of(title: str, texts: list[str]) -> bytes:
    messages = [
        {"role": "user", "content": text, "timestamp": STAMP, "id": f"m{n}"}
        for n, text in enumerate(texts)
    ]
    return codec.encode(creation.new_capsule("plan", title, STAMP, messages=messages))


def spliced_versions(data: bytes, texts: list[str]) -> list[bytes]:
    """The versions of a file during a splice."""
    parts = layout.survey(data)
    assert parts is not None
    entries = [
        codec.encode_entry(
            {
                "role": "user",
                "content": text,
                "timestamp": "2025-12-31T23:59:59.999Z",
                "id": f"n{n}",
            }
        )
        for n, text in enumerate(texts)
    ]
    block, _ = layout.append_bytes(parts, entries)
    one = data[: parts.tail] + block
    at = parts.updated_at
    return [data, one, one[:at] + b"2025-12-31T23:59:59.999Z" + one[at + 24 :]]


ADDED = [["new"], ['a\n"\\ \u00e9\u20ac\U0001f600' * 20], ["x" * 500, "y" * 200]]


@pytest.mark.parametrize("added", ADDED, ids=["short", "special", "two"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_torn_splice_is_mended_at_any_position_in_its_sectors(
    rng: random.Random, count: int, added: list[str]
) -> None:
    """The tail, and the time in the head, at each relevant position in a sector; on bytes alone,
    and so thousands.
    """
    tried = 0
    shifts = range(512) if LONG else [*range(0, 512, 37), *range(500, 512)]
    base = layout.survey(capsule_of("", ["t"] * count))
    assert base is not None
    wanted = [(place, base.tail) for place in shifts]
    wanted += [(place, base.updated_at) for place in range(512 - 26, 512 + 2, 1 if LONG else 5)]
    for place, anchor in wanted:
        data = capsule_of("T" * ((place - anchor) % 512), ["t"] * count)
        versions = spliced_versions(data, added)
        for state in dict.fromkeys(
            contents_after_cut(versions, rng, long=LONG and len(added[0]) < 10)
        ):
            tried += 1
            try:
                document = decode_checked(state, "plan.json", "plan")
            except InvalidDocument:
                mended = torn_files.repair_torn(state)
                assert mended is not None, (place, state)
                document = decode_checked(mended.data, "plan.json", "plan")
                assert (
                    layout.survey(mended.data) is not None
                    and torn_files.repair_torn(mended.data) is None
                )
            texts = [message["content"] for message in document["history"]]
            assert texts[:count] == ["t"] * count and texts[count:] in [
                added[:n] for n in range(len(added) + 1)
            ]
    assert tried > 500


@pytest.mark.parametrize(
    "typed",
    [
        lambda data: data.replace(b'"content": "two",', b'"content": "two"'),
        lambda data: data.replace(b'"content": "two",', b'"content": "two,'),
        lambda data: data.replace(b"  ]\n}\n", b"  ]\n"),
        lambda data: data[:-4],
        lambda data: data.replace(b'"title": "Plan",', b'"title": "Plan"'),
        lambda data: data.replace(b"    },\n    {", b"    }\n    {"),
        lambda data: data.replace(b"    }\n  ]", b"    },\n  ]"),
        lambda data: data + b"}",
        lambda data: data[: data.index(b'"two"')] + data[data.index(b'"two"') + 5 :],
        lambda data: data.replace(STAMP.encode(), b"2025-13-12T10:30:00.000Z", 2),
        lambda data: data.replace(b'      "id": "m1"\n    }\n', b'      "id": "m1"\n'),
        lambda data: data.replace(b'"two"', b'"t\0wo"'),
    ],
)
def test_a_typing_mistake_is_not_mended_as_a_crash(typed: Callable[[bytes], bytes]) -> None:
    data = capsule_of("Plan", ["one", "two"])
    wrong = typed(data)
    assert wrong != data
    mended = torn_files.repair_torn(wrong)
    if mended is not None:
        # The mistake looks like a crash in the closing; then mending must keep all messages.
        assert [m["content"] for m in orjson.loads(mended.data)["history"]] == ["one", "two"]


def test_the_model_of_the_disk_keeps_what_was_flushed_and_may_lose_the_rest(
    tmp_path: Path, rng: random.Random
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    (root / "a").write_bytes(b"old")
    disk, recorder = Disk(root), Recorder(root)
    fd = recorder.open(str(root / "b"), os.O_RDWR | os.O_CREAT)
    recorder.pwrite(fd, b"new", 0)
    for event in recorder.events:
        disk.play(event)
    trees = list(disk.trees(rng, long=True))
    assert (
        {"a": b"old"} in trees
        and {"a": b"old", "b": b"new"} in trees
        and {"a": b"old", "b": b"n"} in trees
    )
    assert {"a": b"old", "b": b"\0\0\0"} in trees
    recorder.fsync(fd)
    disk.play(recorder.events[-1])
    recorder.exchange(str(root / "a"), str(root / "b"))
    disk.play(recorder.events[-1])
    found = list(disk.trees(rng, long=True))
    assert {"a": b"new", "b": b"old"} in found and {"a": b"old"} in found
    assert not any(tree.get("a") == tree.get("b") for tree in found)
    recorder.close(fd)
    with pytest.raises(NotFound):
        Store.open(root)
