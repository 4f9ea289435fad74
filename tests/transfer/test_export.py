"""What an export puts into an archive, and what it keeps out."""

from __future__ import annotations

import io
import shutil
import zipfile
from hashlib import sha256
from pathlib import Path

import pytest

from capsule import Store
from capsule.errors import InvalidInput
from tests.transfer.exchange import DATA, said, take


def exported(store: Store, **options: object) -> bytes:
    file = io.BytesIO()
    store.export(store.ids(), file, format="capsule", is_archive=True, **options)  # type: ignore[arg-type]
    return file.getvalue()


def test_an_archive_has_the_attachments_once_and_comes_back_whole(store: Store) -> None:
    store.import_(DATA / "chatgpt" / "modern")
    take(store, said("a", id="alone"))
    data = exported(store)

    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        names = archive.namelist()
    assert len(names) == len({*names}) > len(store.ids())
    with Store.in_memory(keep_locks=False) as other:
        take(other, data)
        assert sorted(other.ids()) == sorted(store.ids())
        for id in store.ids():
            assert other.document(id)["history"] == store.document(id)["history"]
        assert exported(other) == data


@pytest.mark.parametrize(("text", "is_kept"), [("Buy milk", True), ("ghp_" + "a1B2" * 9, False)])
def test_an_attachment_with_a_secret_is_left_out_of_a_redacted_archive(
    store: Store, tmp_path: Path, text: str, is_kept: bool
) -> None:
    shutil.copytree(DATA / "chatgpt" / "modern", tmp_path / "export")
    (tmp_path / "export" / "file-00bb-notes.txt").write_text(text)
    store.import_(tmp_path / "export")

    for is_redacted in (False, True):
        with zipfile.ZipFile(io.BytesIO(exported(store, is_redacted=is_redacted))) as archive:
            name = f"attachments/{sha256(text.encode()).hexdigest()}"
            assert (name in archive.namelist()) == (is_kept or not is_redacted)


def test_a_format_that_is_only_read_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="jsonl"):
        store.export([], io.BytesIO(), format="claude-ai")
