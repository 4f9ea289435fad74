"""Files that are replaced as a whole, or removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from capsule.disk.whole_files import replace_file
from capsule.errors import StoreBusy


def test_a_file_is_removed_only_if_it_holds_what_was_read(tmp_path: Path) -> None:
    path = tmp_path / "CLAUDE.md"
    path.write_bytes(b"saved meanwhile")
    with pytest.raises(StoreBusy):
        replace_file(str(path), b"read before", None)
    assert path.read_bytes() == b"saved meanwhile" and os.listdir(tmp_path) == [path.name]
    replace_file(str(path), b"saved meanwhile", None)
    assert os.listdir(tmp_path) == []
    with pytest.raises(StoreBusy):
        replace_file(str(path), b"saved meanwhile", None)
