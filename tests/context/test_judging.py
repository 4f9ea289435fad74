"""Judging a file: a text is taken unchanged; another file is skipped or reported."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from capsule.context.capture import CapturedFile, block_around, read_candidate
from capsule.context.files import ExcludedFile, FileSelection, ProjectFiles
from capsule.format.text.tokens import estimate
from tests.context.projects import lay_out

CONTENTS = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(
        [b"", b"\n", b"a\0b", b"\xc3", b"\xff\xfea\0", b"```\n````", b"`a`", b"x" * 60_000]
    ),
)


@given(CONTENTS)
def test_texts_alone_are_taken_and_unchanged(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as root:
        Path(root, "f.py").write_bytes(data)
        judged = read_candidate(ProjectFiles(root), "f.py", FileSelection(file_bytes=59_000))
    if is_text(data) and len(data) <= 59_000:
        expected = (hashlib.sha256(data).hexdigest(), estimate(data), *block_around("f.py", data))
        assert judged == CapturedFile("f.py", data, *expected)
    else:
        assert isinstance(judged, ExcludedFile)


def is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def test_paths_that_are_no_file_are_skipped_and_large_files_are_reported(tmp_path: Path) -> None:
    lay_out(
        tmp_path, {"a.txt": b"a", "large.txt": b"x" * 11, "directory/c": b"", "real/b.txt": b"b"}
    )
    for link, to in (("link", "a.txt"), ("led", "real")):
        (tmp_path / link).symlink_to(to)
    names = [
        "a.txt",
        "directory",
        "gone.txt",
        "large.txt",
        "led/b.txt",
        "link",
        "real/b.txt",
        "real/gone/c.txt",
    ]
    judged = [
        read_candidate(ProjectFiles(str(tmp_path)), name, FileSelection(file_bytes=10))
        for name in names
    ]
    assert [one.path for one in judged if isinstance(one, CapturedFile)] == ["a.txt", "real/b.txt"]
    assert [one for one in judged if isinstance(one, ExcludedFile)] == [
        ExcludedFile("large.txt", "11 bytes, more than 10")
    ]
