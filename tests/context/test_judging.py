"""Judging files some at a time: what is said of each is what would be said of it alone."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from capsule.context.document import block_around
from capsule.context.files import Inside, LeftOut, Selection
from capsule.context.judging import Taken, examine, judge
from capsule.context.tokens import estimate

TOKEN = b"ghp_" + b"a1B2" * 9
#: Texts and what is none, among them what is one only together with what stands behind it.
CONTENTS = st.one_of(
    st.binary(max_size=12),
    st.text(max_size=12).map(lambda text: text.encode("utf-8", "replace")),
    st.sampled_from(
        [
            b"",
            b"\n",
            b"a\0b",
            b"\xc3",
            b"\xa9",
            b"\xe2\x82",
            b"\xac",
            b"\xff\xfea\0",
            b"```\n````",
            b"`a`",
            b"x" * 60_000,
        ]
    ),
    st.just(b"t = '" + TOKEN + b"'\n"),
)


def judged(root: Path, paths: list[str], selection: Selection) -> tuple[list[Taken], list[LeftOut], bool]:
    all_of_them = list(judge(Inside(str(root)), paths, selection))
    assert sum(one.done for one in all_of_them) == len(paths)
    return (
        [file for one in all_of_them for file in one.taken],
        [file for one in all_of_them for file in one.left_out],
        any(one.has_sign for one in all_of_them),
    )


@given(st.lists(CONTENTS, max_size=12))
@example([b"\xc3", b"\xa9"])
@example([b"a", b"\0"])
@example([b"``", b"`"])
def test_files_are_judged_together_as_each_is_alone(contents: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root, names = Path(directory), [f"f{n:02}.py" for n in range(len(contents))]
        for name, data in zip(names, contents, strict=True):
            (root / name).write_bytes(data)
        taken, left_out, has_sign = judged(root, names, Selection(file_bytes=59_000))
        alone = [examine(directory, name, 59_000) for name in names]
        assert taken == [file for file in alone if file is not None]
        assert [one.path for one in left_out] == [name for name, file in zip(names, alone, strict=True) if file is None]
        texts = {
            name: data for name, data in zip(names, contents, strict=True) if is_text(data) and len(data) <= 59_000
        }
        assert [(file.path, file.data) for file in taken] == list(texts.items())
        for file in taken:
            assert file.sha256 == hashlib.sha256(file.data).hexdigest() and file.tokens == estimate(file.data)
            assert (file.before, file.behind) == block_around(file.path, file.data)
        assert has_sign or not any(TOKEN in data for data in texts.values())


def is_text(data: bytes) -> bool:
    try:
        return "\0" not in data.decode()
    except UnicodeDecodeError:
        return False


def test_what_is_no_file_is_passed_over_and_what_is_too_large_is_told(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "large.txt").write_text("x" * 11)
    (tmp_path / "directory").mkdir()
    (tmp_path / "link").symlink_to("a.txt")
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "b.txt").write_text("b")
    (tmp_path / "led").symlink_to("real")
    names = ["a.txt", "directory", "gone.txt", "large.txt", "led/b.txt", "link", "real/b.txt", "real/gone/c.txt"]
    taken, left_out, _ = judged(tmp_path, names, Selection(file_bytes=10))
    assert [file.path for file in taken] == ["a.txt", "real/b.txt"]
    assert left_out == [LeftOut("large.txt", "11 bytes, more than 10")]
