"""What an export puts into an archive, and what it keeps out."""

from __future__ import annotations

import io
import shutil
import zipfile
from hashlib import sha256
from pathlib import Path

import orjson
import pytest

from capsule import Store
from capsule.errors import InvalidInput
from tests.transfer.exchange import DATA, said, take


def exported(
    store: Store, format: str = "capsule", *, is_archive: bool = True, **options: object
) -> bytes:
    file = io.BytesIO()
    store.export(store.ids(), file, format=format, is_archive=is_archive, **options)  # type: ignore[arg-type]
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


@pytest.mark.parametrize("format", ["markdown", "jsonl", "sharegpt", "chatml"])
def test_a_plain_export_has_nothing_but_what_is_read_and_a_redacted_one_no_home_folder(
    store: Store, format: str
) -> None:
    secret = "ghp_" + "a1B2" * 9
    data = said(
        "Look into /root/a, C:\\Users\\Jo Roe\\b and /home/jo.", cwd="/home/jo/shop", key=secret
    )
    (taken,) = take(store, data).conversations
    whole, plain = (
        exported(store, format, is_archive=False, is_plain=is_plain) for is_plain in (False, True)
    )
    redacted = exported(store, format, is_archive=False, is_plain=False, is_redacted=True)

    assert b"/home/jo/shop" in whole and secret.encode() in whole
    for unseen in (b"/home/jo/shop", secret.encode(), taken.id.encode(), b"metadata", b"capsule"):
        assert unseen not in plain
    assert b"Look into /root/a" in plain
    for hidden in (b"/home", b"/root", b"Users", b"Roe", secret.encode()):
        assert hidden not in redacted
    with Store.in_memory(keep_locks=False) as other:
        take(other, whole, format=format)
        assert other.document(taken.id)["history"] == store.document(taken.id)["history"]


def test_a_form_that_a_format_does_not_have_is_refused(store: Store) -> None:
    with pytest.raises(InvalidInput, match="jsonl"):
        store.export([], io.BytesIO(), format="claude-ai")
    with pytest.raises(InvalidInput, match="sharegpt"):
        store.export([], io.BytesIO(), format="chatgpt", is_plain=True)


@pytest.mark.parametrize("format", ["claude-code", "codex"])
def test_conversations_with_the_same_id_in_their_source_are_files_of_their_own_in_an_archive(
    store: Store, tmp_path: Path, format: str
) -> None:
    session = "7cd9438e-7426-52e1-b47f-74b51b169e31"
    for text in ("one", "two", "three"):
        message: dict[str, object] = {"role": "user", "content": text}
        about: dict[str, object] = {
            "type": "user",
            "uuid": session,
            "parentUuid": None,
            "sessionId": session,
        }
        if format == "codex":
            message = {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": text}],
            }
            about = {"type": "response_item", "payload": message}
        record = {**about, "message": message, "timestamp": "2026-01-02T10:00:00.000Z"}
        meta = {
            "type": "session_meta",
            "timestamp": record["timestamp"],
            "payload": {"id": session},
        }
        records = [meta, record] if format == "codex" else [record]
        (tmp_path / f"{text}.jsonl").write_bytes(b"\n".join(map(orjson.dumps, records)))
    store.import_(tmp_path)

    with zipfile.ZipFile(io.BytesIO(exported(store, format))) as archive:
        names = archive.namelist()
        texts = {
            text
            for name in names
            for text in ("one", "two", "three")
            if text.encode() in archive.read(name)
        }
    assert len({*names}) == 3
    assert texts == {"one", "two", "three"}
