"""A fault at any call of any operation: the operation raises, the file is old or new, the store
goes on working.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest

from capsule import Store
from capsule.errors import CapsuleError, NotFound, Refused, StorageFailed
from capsule.format.json import codec
from capsule.maintenance.doctor import examine
from tests.core.storage.faults import ERRORS, OPERATIONS, Faulty, store_on
from tests.processes import Child

pytestmark = pytest.mark.slow

LONG = bool(os.environ.get("CAPSULE_TORTURE"))
Sweep = Callable[..., int]


def texts_in(path: Path) -> list[str]:
    return [message["content"] for message in orjson.loads(path.read_bytes())["history"]]


class Trial:
    """One operation on a fresh store, with one fault."""

    def __init__(self, template: Path, root: Path, operation: str) -> None:
        self.root = Path(shutil.copytree(template, root))
        self.path = root / "conversations" / "plan.json"
        self.before, self.act, self.after = OPERATIONS[operation]
        self.before(root, "plan")
        self.sys = Faulty()
        name = "desk" if operation == "refresh a lock" else None
        self.store = store_on(root, self.sys, instance=name)
        self.failed: CapsuleError | None = None

    def run(self, at: int, error: int, *, lasting: bool = False) -> bool:
        """Run the operation. Returns: whether it came to the call that fails."""
        self.sys.arm(at, error, lasting=lasting)
        try:
            self.act(self.store, "plan")
        except CapsuleError as failed:
            self.failed = failed
        self.sys.disarm()
        return bool(self.sys.hit)

    def check(self) -> None:
        """Assert that nothing acknowledged is lost, and that this store and a new one go on
        working.
        """
        if not self.path.exists():  # It was deleted, and the fault was in restoring it.
            self.store.trash.restore("plan")
        texts = [message.content for message in self.store.load("plan").history]
        assert texts in (["one", "two"], self.after)
        assert self.failed or texts == self.after
        self.store.append("plan", content="next")
        if self.before is OPERATIONS["refresh a lock"][0]:
            self.store.locks.release("plan")
        self.store.close()
        with Store.open(self.root) as again:
            assert [message.content for message in again.load("plan").history] == [*texts, "next"]
            again.append("plan", content="and on")
            data = again.read("plan")
            assert codec.encode(again.document("plan")) == data
            if "second" in again.ids():
                again.append("second", content="works")
            list(examine(again, repair=True))
            left = [str(finding) for finding in examine(again) if finding.kind != "settings"]
            assert left == []
        assert texts_in(self.path) == [*texts, "next", "and on"]


@pytest.fixture
def template(memory: Path) -> Path:
    root = memory / "template"
    Store.init(root)
    with Store.open(root, keep_locks=False) as store:
        store.create(
            id="plan", title="Plan", type="group", messages=[{"role": "user", "content": "one"}]
        )
        store.append("plan", content="two")
        store.create(id="old", title="Old")
        store.delete("old")
    return root


@pytest.fixture
def sweep(memory: Path, template: Path) -> Sweep:
    """Runs an operation with a fault at its first call, its second, and so on. Returns: the number
    of runs.
    """

    def sweep(
        operation: str,
        *errors: int,
        lasting: bool = False,
        may_fail: bool = True,
        swaps: bool = True,
    ) -> int:
        trials = 0
        while True:
            trials += 1
            for error in errors if LONG else errors[trials % len(errors) :][:1]:
                trial = Trial(template, memory / "store", operation)
                if not swaps:
                    trial.sys.exchange = lambda one, other: False  # type: ignore[method-assign]
                hit = trial.run(trials, error, lasting=lasting)
                try:
                    assert may_fail or trial.failed is None
                    trial.check()
                except BaseException as failure:
                    fault = f"{operation}: call {trials} ({trial.sys.hit}): {os.strerror(error)}"
                    failure.add_note(f"{fault}; said: {trial.failed}")
                    raise
                shutil.rmtree(trial.root)
            if not hit:
                return trials

    return sweep


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_fault_at_any_call_raises_and_leaves_the_file_old_or_new(
    sweep: Sweep, operation: str
) -> None:
    assert sweep(operation, *ERRORS) > 3


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_disk_full_from_any_call_on_loses_nothing(sweep: Sweep, operation: str) -> None:
    sweep(operation, errno.ENOSPC, lasting=True)


@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_short_write_at_any_call_is_continued(sweep: Sweep, operation: str) -> None:
    sweep(operation, 0, may_fail=False)


@pytest.mark.parametrize("operation", ["rename", "edit", "append after a stale save"])
def test_a_fault_without_an_atomic_swap_raises_and_leaves_the_file_old_or_new(
    sweep: Sweep, operation: str
) -> None:
    sweep(operation, errno.EIO, swaps=False)


@pytest.mark.parametrize("call", ["fdatasync", "fsync"])
@pytest.mark.parametrize(
    "operation", ["append", "rename", "edit", "create", "refresh a lock", "delete and restore"]
)
def test_a_failed_flush_raises_and_is_not_repeated(
    memory: Path, template: Path, operation: str, call: str
) -> None:
    trial = Trial(template, memory / "store", operation)
    flushed: list[tuple[int, bool]] = []
    fail = [True]
    real = {name: getattr(trial.sys, name) for name in ("fdatasync", "fsync")}

    def wrapped(name: str) -> Callable[[int], None]:
        def flush(fd: int) -> None:
            failing = fail[0] and name == call
            flushed.append((os.fstat(fd).st_ino, failing))
            if failing:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            real[name](fd)

        return flush

    for name in real:
        setattr(trial.sys, name, wrapped(name))
    try:
        trial.act(trial.store, "plan")
    except CapsuleError as failed:
        trial.failed = failed
    failed_inodes = {inode for inode, failed in flushed if failed}
    assert bool(trial.failed) == bool(failed_inodes)
    if trial.failed:
        assert isinstance(trial.failed, StorageFailed) and trial.failed.errno == errno.EIO
    fail[0] = False
    flushed.clear()
    if trial.path.exists() and operation in ("append", "rename", "edit"):
        trial.store.append("plan", content="next")
        directories = {place.stat().st_ino for place in trial.root.rglob("*") if place.is_dir()}
        assert not {inode for inode, _ in flushed} & (failed_inodes - directories)
        assert texts_in(trial.path)[-1] == "next"
        flushed.clear()
        trial.store.append("plan", content="and on")
        log = trial.root / ".capsule" / "logs" / "conversations-plan"
        assert log.stat().st_ino in {inode for inode, _ in flushed}
        trial.store.close()
        assert trial.path.stat().st_ino in {inode for inode, _ in flushed}
    trial.store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A separate disk of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m,nr_inodes=200", "tmpfs", str(place)], capture_output=True, check=False
    ) if shutil.which("mount") and os.getuid() == 0 else None  # fmt: skip
    if mounted is None or mounted.returncode:
        pytest.skip("no small disk can be mounted here (it takes root)")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.parametrize("append", ["splice", "replace"])
def test_a_full_disk_loses_nothing_and_the_store_works_when_there_is_space(
    small_disk: Path, append: str
) -> None:
    root = small_disk / "store"
    Store.init(root)
    (root / "capsule.toml").write_text(f'[storage]\nappend = "{append}"\n')
    acknowledged: list[str] = []
    refused: list[CapsuleError] = []
    with Store.open(root, keep_locks=False) as store:
        id = store.create(title="Plan").id
        for n in range(2000):
            text = f"{n} " + "x" * 20_000
            try:
                store.append(id, content=text)
                acknowledged.append(text)
            except CapsuleError as error:
                refused.append(error)
                if len(refused) > 5:
                    break
        assert all(
            getattr(error, "errno", None) == errno.ENOSPC and "space" in str(error)
            for error in refused
        )
        for write in (
            lambda: store.create(title="x", messages=[{"role": "user", "content": "x" * 100_000}]),
            lambda: store.rename(id, "Renamed"),
            lambda: store.edits.message(id, "@0", "edited"),
        ):
            try:
                write()
            except CapsuleError as error:
                refused.append(error)
        assert len(refused) > 5
        texts = [message.content for message in store.load(id).history]
        assert texts[1:] == acknowledged[1:] and texts[0] in (acknowledged[0], "edited")
        for other in store.ids():
            if other != id:
                store.delete(other)
        store.trash.purge()
    subprocess.run(["mount", "-o", "remount,size=8m", str(small_disk)], check=True)
    with Store.open(root, keep_locks=False) as store:
        store.append(id, content="next")
        assert [message.content for message in store.load(id).history] == [*texts, "next"]
        assert [str(finding) for finding in examine(store)] == []


def test_a_file_size_limit_refuses_writes_and_keeps_the_file_whole(tmp_path: Path) -> None:
    child = Child(
        """
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        Store.init(sys.argv[1])
        with Store.open(sys.argv[1]) as store:
            id = store.create(type="group").id
            store.append(id, content="x" * 10_000)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, resource.RLIM_INFINITY))
            kept, refused = ["x" * 10_000], 0
            for n in range(20):
                try:
                    store.append(id, content=str(n) + "y" * 2000)
                    kept.append(str(n) + "y" * 2000)
                except CapsuleError as error:
                    refused += 1
            try:
                store.create(messages=[{"role": "user", "content": "x" * 50_000}])
            except CapsuleError as error:
                refused += 100
            assert [m.content for m in store.load(id).history] == kept
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            store.append(id, content="next")
            assert [m.content for m in store.load(id).history] == [*kept, "next"]
            assert store.ids() == [id]
            say(refused)
        """,
        str(tmp_path / "store"),
    )
    try:
        assert child.hear() > 100
        assert child.end() == 0
    finally:
        child.close()


@pytest.fixture
def read_only(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A store on a disk that is mounted read-only, and its conversation."""
    place = tmp_path / "disk"
    place.mkdir()
    if os.getuid() or not shutil.which("mount"):
        pytest.skip("mounting read-only takes root; the permissions' test runs elsewhere")
    if subprocess.run(
        ["mount", "-t", "tmpfs", "tmpfs", str(place)], capture_output=True, check=False
    ).returncode:
        pytest.skip("nothing can be mounted here")
    Store.init(place / "store")
    with Store.open(place / "store", keep_locks=False) as store:
        id = store.create(title="Plan", messages=[{"role": "user", "content": "one"}]).id
    subprocess.run(["mount", "-o", "remount,ro", str(place)], check=True)
    yield place / "store", id
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_store_on_a_read_only_disk_can_be_read_and_refuses_writes(
    read_only: tuple[Path, str],
) -> None:
    root, id = read_only
    with Store.open(root) as store:
        assert store.load(id).history[0].content == "one" and store.tail(id, 1)[0].content == "one"
        assert [head.title for head in store.heads()] == ["Plan"] == [store.head(id).title]
        for write in (
            lambda: store.append(id, content="x"),
            lambda: store.create(title="x"),
            lambda: store.rename(id, "x"),
            lambda: store.edits.message(id, "@0", "x"),
            lambda: store.locks.take(id),
            lambda: store.delete(id),
        ):
            with pytest.raises(Refused):
                write()
        with pytest.raises(NotFound):
            store.trash.restore(id)
