"""The tracker reports at once which documents were written, or that it cannot know."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from capsule.disk import directory_tracker
from capsule.disk.directory_tracker import InotifyTracker, mount_by_longest_point, open_tracker
from tests.processes import Child

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="inotify is Linux's")


@pytest.fixture
def tracked(tmp_path: Path) -> Iterator[InotifyTracker]:
    found = InotifyTracker(str(tmp_path), ".json")
    yield found
    found.close()


def test_notices_end_where_the_tracker_does(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    found = directory_tracker.DirectoryTracker(str(tmp_path / "d"), ".json")
    (tmp_path / "d").rename(tmp_path / "aside")
    (tmp_path / "aside").rename(tmp_path / "d")
    assert found.changed_ids() is None and not found.is_open


TOUCHES: dict[str, Callable[[Path], object]] = {
    "written": lambda path: path.write_bytes(b"other"),
    "written at the same size": lambda path: path.write_bytes(b"more"),
    "appended to": lambda path: os.write(os.open(path, os.O_WRONLY | os.O_APPEND), b"x"),
    "truncated": lambda path: os.truncate(path, 1),
    "replaced": lambda path: os.replace(_copy(path), path),
    "removed": lambda path: path.unlink(),
    "moved away": lambda path: path.rename(path.parent.parent / "elsewhere"),
    "touched": lambda path: os.utime(path, ns=(1, 1)),
    "made again": lambda path: _made_again(path),
}


def _made_again(path: Path) -> None:
    path.unlink()
    path.write_bytes(b"")


def _copy(path: Path) -> Path:
    copy = path.with_suffix(".swp")
    copy.write_bytes(b"copy")
    return copy


@pytest.mark.parametrize("how", TOUCHES)
def test_a_write_is_reported_once(tmp_path: Path, how: str) -> None:
    path = tmp_path / "d" / "plan.json"
    path.parent.mkdir()
    path.write_bytes(b"some")
    tracked = InotifyTracker(str(path.parent), ".json")
    assert tracked.changed_ids() == set()
    TOUCHES[how](path)
    assert tracked.changed_ids() == {"plan"}
    assert tracked.changed_ids() == set()
    tracked.close()


def test_names_that_are_no_document_are_not_reported(
    tmp_path: Path, tracked: InotifyTracker
) -> None:
    for name in (".plan.json", "plan.json~", "plan.swp", ".tmp"):
        (tmp_path / name).write_bytes(b"")
    assert tracked.changed_ids() == set()


def test_writes_through_a_temporary_name_are_reported(
    tmp_path: Path, tracked: InotifyTracker
) -> None:
    temporary, path = tmp_path / ".plan.tmp", tmp_path / "plan.json"
    with temporary.open("wb", buffering=0) as file:
        path.hardlink_to(temporary)
        temporary.unlink()
        assert tracked.changed_ids() == {"plan"}
        file.write(b"x")
        assert tracked.changed_ids() == {"plan"}


def test_a_read_is_not_reported(tmp_path: Path, tracked: InotifyTracker) -> None:
    (tmp_path / "plan.json").write_bytes(b"x")
    assert tracked.changed_ids() == {"plan"}
    (tmp_path / "plan.json").read_bytes()
    assert tracked.changed_ids() == set()


def test_an_acknowledged_write_is_reported_at_once(
    tmp_path: Path, tracked: InotifyTracker, child: Callable[..., Child]
) -> None:
    writer = child(
        """
        while True:
            name = hear()
            if name is None: break
            with open(sys.argv[1] + "/" + name, "wb") as file: file.write(b"x")
            say()
        """,
        tmp_path,
    )
    for number in range(500):
        writer.say(f"c{number}.json")
        writer.hear()
        assert tracked.changed_ids() == {f"c{number}"}
    writer.say(None)


def test_the_tracker_reports_an_overflow_and_then_works_again(
    tmp_path: Path, tracked: InotifyTracker
) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    paths = [tmp_path / f"{number}.json" for number in range(2)]
    for number in range(most + 10):
        paths[number % 2].write_bytes(b"")
    assert tracked.changed_ids() is None and tracked.is_open
    paths[0].write_bytes(b"x")
    assert tracked.changed_ids() == {"0"}


@pytest.mark.parametrize("how", ["moved", "removed"])
def test_a_removed_directory_ends_its_tracker(tmp_path: Path, how: str) -> None:
    directory = tmp_path / "d"
    directory.mkdir()
    tracked = InotifyTracker(str(directory), ".json")
    directory.rename(tmp_path / "e") if how == "moved" else directory.rmdir()
    assert tracked.changed_ids() is None and not tracked.is_open
    assert tracked.changed_ids() is None
    tracked.close()


def test_a_forked_child_takes_no_event_of_its_parent(
    tmp_path: Path, tracked: InotifyTracker
) -> None:
    (tmp_path / "plan.json").write_bytes(b"x")
    child = os.fork()
    if not child:
        changed = tracked.changed_ids()
        tracked.close()
        os._exit(0 if changed is None else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert tracked.changed_ids() == {"plan"}


def test_a_tracker_uses_one_descriptor_until_it_is_closed(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    tracked = InotifyTracker(str(tmp_path), ".json")
    assert len(os.listdir("/proc/self/fd")) == before + 1
    tracked.close()
    tracked.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_no_tracker_opens_without_a_free_descriptor(
    tmp_path: Path, child: Callable[..., Child]
) -> None:
    taker = child(
        """
        import resource
        from capsule.disk.directory_tracker import open_tracker
        resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
        kept = []
        while (tracker := open_tracker(sys.argv[1], ".json")) is not None: kept.append(tracker)
        say(len(kept))
        """,
        tmp_path,
    )
    assert 0 < taker.hear() < 40


def test_a_file_system_without_reliable_notices_has_no_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_tracker("/proc", ".json") is None
    assert open_tracker(str(tmp_path / "nowhere" / "at all"), ".json") is None
    monkeypatch.setattr(directory_tracker, "_LOCAL", frozenset({"nfs4"}))
    assert open_tracker(str(tmp_path), ".json") is None


def test_the_file_system_of_a_path_is_that_of_its_longest_mount() -> None:
    lines = [
        b"1 0 0:20 / / rw - ext4 /dev/a rw",
        b"2 1 0:31 /home /mnt/some\\040disk rw shared:1 - btrfs /dev/b rw",
        b"3 2 0:40 / /mnt/some\\040disk/net rw - nfs4 host:/x rw",
    ]
    assert mount_by_longest_point("/mnt/some disk/x", lines).kind == "btrfs"
    assert mount_by_longest_point("/mnt/some disk/net/x", lines).kind == "nfs4"
    assert mount_by_longest_point("/mnt/some diskette", lines).kind == "ext4"
    assert mount_by_longest_point("/", []).kind == ""


def test_the_options_of_a_mount_name_no_machine_no_person_and_no_path() -> None:
    line = (
        b"1 0 0:20 / / rw,noatime - nfs4 server:/home/anna "
        b"rw,vers=4.2,addr=10.0.0.1,username=anna,subvol=/home/anna"
    )
    assert mount_by_longest_point("/x", [line]).options == ("rw", "noatime", "vers=4.2")


def test_a_tracker_of_a_missing_directory_ends_when_it_is_made(tmp_path: Path) -> None:
    later = tmp_path / "later"
    early = InotifyTracker(str(later), ".json")
    (tmp_path / "other").mkdir()
    assert early.changed_ids() == set()
    later.mkdir()
    assert early.changed_ids() is None and not early.is_open
