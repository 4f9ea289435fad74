"""A new version of a file keeps the owner, the group and the permissions of the old one."""

from __future__ import annotations

import errno
import os
import stat
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from capsule import Store
from capsule.disk.syscalls import Syscalls
from tests.core.storage.faults import lay_out, stale_save, store_on, tear

ACL = "system.posix_acl_access"
#: The writes that replace the file.
WRITES: dict[str, Callable[[Store, Path], object]] = {
    "rename": lambda store, root: store.rename("plan", "Named"),
    "edit": lambda store, root: store.edits.message("plan", "@0", "edited"),
    "append to another layout": lambda store, root: (
        lay_out(root, "plan"),
        store.append("plan", content="x"),
    ),
    "repair": lambda store, root: (tear(root, "plan"), store.load("plan")),
}


def acl(user: int) -> bytes:
    """An ACL: rw for the owner, the group and this user, and nothing for others."""
    entries = ((1, 6, -1), (2, 6, user), (4, 6, -1), (16, 6, -1), (32, 0, -1))
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHi", *entry) for entry in entries)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    Store.init(tmp_path)
    with Store.open(tmp_path) as store:
        store.create(
            id="plan",
            type="group",
            messages=[{"role": "user", "content": text} for text in ("one", "two")],
        )
    return tmp_path


def attributes(path: Path) -> dict[str, bytes]:
    return {
        name: os.getxattr(path, name)
        for name in os.listxattr(path)
        if not name.startswith("security.")
    }


def stat_after_write(root: Path, name: str, sys: Syscalls | None = None) -> os.stat_result:
    """The status of the file after a write that gave it another inode."""
    path = root / "conversations" / "plan.json"
    before = path.stat().st_ino
    with store_on(root, sys or Syscalls()) as store:
        WRITES[name](store, root)
    assert path.stat().st_ino != before
    return path.stat()


@pytest.mark.parametrize("name", WRITES)
@pytest.mark.skipif(not hasattr(os, "setxattr"), reason="no extended attributes on this platform")
def test_a_new_version_keeps_mode_and_attributes(root: Path, name: str) -> None:
    path = root / "conversations" / "plan.json"
    path.chmod(0o640)
    try:
        os.setxattr(path, "user.origin", b"import")
        os.setxattr(path, ACL, acl(12345))
    except OSError:
        pytest.skip("the file system has no attributes")
    before = attributes(path)
    assert set(before) == {"user.origin", ACL}
    assert stat.S_IMODE(stat_after_write(root, name).st_mode) == 0o660
    assert attributes(path) == before


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_a_new_version_written_by_root_keeps_its_owner(root: Path) -> None:
    path = root / "conversations" / "plan.json"
    for name in WRITES:
        os.chown(path, 1234, 5678)
        path.chmod(0o600)
        found = stat_after_write(root, name)
        assert (found.st_uid, found.st_gid, stat.S_IMODE(found.st_mode)) == (1234, 5678, 0o600), (
            name
        )


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_another_group_does_not_get_the_rights_of_a_group_that_cannot_be_kept(root: Path) -> None:
    path = root / "conversations" / "plan.json"

    class Bound(Syscalls):
        """The system for a user who may not change the owner of a file."""

        def fchown(self, fd: int, uid: int, gid: int) -> None:  # type: ignore[override]
            raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    os.chown(path, 1234, 5678)
    path.chmod(0o664)
    assert stat.S_IMODE(stat_after_write(root, "rename", Bound()).st_mode) == 0o644


def test_a_merged_stale_save_keeps_the_mode_that_the_editor_set(root: Path) -> None:
    stale_save(root, "plan")
    path = root / "conversations" / "plan.json"
    path.chmod(0o604)
    with Store.open(root) as store:
        store.rename("plan", "Named")
    assert stat.S_IMODE(path.stat().st_mode) == 0o604
