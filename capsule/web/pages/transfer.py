"""Imports uploaded files, exports a conversation, and returns attachments.

Uploaded files are in a temporary folder of their own until they are imported.

What must stay true: a browser never shows an attachment as a page of this site. It shows images that
are recognized by their first bytes, and saves all other files.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Any, Final
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.responses import Response, StreamingResponse

from capsule.errors import InvalidInput, NotFound
from capsule.web.view import View, get, post

_PIECE_BYTES: Final = 1 << 16
#: The greatest number of conversations and of remarks of a report that the page shows.
_MAX_REPORTED: Final = 200
#: The first bytes of images. SVG is not among them, as it can contain scripts.
_IMAGES: Final = {
    "png": rb"\x89PNG\r\n\x1a\n",
    "jpeg": rb"\xff\xd8\xff",
    "gif": rb"GIF8",
    "webp": rb"RIFF.{4}WEBP",
}


def _import(view: View) -> Response:
    files = [
        file
        for file in view.form.getlist("files")
        if isinstance(file, UploadFile) and file.filename
    ]
    if not files:
        raise InvalidInput("choose a file to import")
    with TemporaryDirectory(prefix="capsule-import-") as folder:
        paths: list[str] = []
        for index, file in enumerate(files):
            # The names are kept, as some formats read several files together. None leads out of the
            # folder.
            name = os.path.basename(str(file.filename).replace("\\", "/")).replace("\0", "")[-100:]
            path = os.path.join(folder, name.lstrip(".") or "file")
            paths.append(f"{path}-{index}" if path in paths else path)
            with open(paths[-1], "wb") as copy:
                shutil.copyfileobj(file.file, copy)
        report = view.store.import_(*paths, on_conflict=view.field("on_conflict") or "skip")  # type: ignore[arg-type]
    if view.wants_json:
        return view.json(report.as_json())
    return view.page("import.html", report=report, most=_MAX_REPORTED, folder=folder + os.sep)


def _export(view: View) -> Response:
    from capsule.transfer.registry import formats

    """Return a conversation in a format. Without one: show the list of formats."""
    format = view.parameter("format")
    head = view.store.head(view.path_part())
    if not format:
        writable_formats = [listed for listed in formats().values() if listed.write]
        return view.page("export.html", head=head, formats=writable_formats)
    with ExitStack() as stack:
        file = stack.enter_context(TemporaryFile())
        view.store.export(
            [head.id], file, format=format, is_redacted=bool(view.parameter("redacted"))
        )
        headers = _download_header(head.id + formats()[format].extension)
        headers["content-length"] = str(file.tell())
        file.seek(0)
        pieces = _pieces(file, stack.pop_all())
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def _pieces(file: IO[bytes], stack: ExitStack) -> Iterator[bytes]:
    with stack:
        yield from iter(partial(file.read, _PIECE_BYTES), b"")


def _download_header(name: str) -> dict[str, str]:
    """Return the header of an answer that a browser saves under a name, and does not show."""
    return {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}


def _file(view: View) -> Response:
    """Return an attachment of a message that the visitor may read."""
    id = view.path_part()
    digest = view.path_part("digest")
    attachment = _find_attachment(view.store.document(id)["history"], digest)
    if attachment is None:
        raise NotFound(f"conversation {id} has no such attachment", id=digest)
    data = view.store.inner.whole_engine.files.read("attachments", digest, digest)
    for kind, first_bytes in _IMAGES.items():
        if re.match(first_bytes, data, re.DOTALL):
            return Response(data, media_type=f"image/{kind}")
    headers = _download_header(str(attachment.get("name") or digest))
    return Response(data, media_type="application/octet-stream", headers=headers)


def _find_attachment(entries: Iterable[dict[str, Any]], digest: str) -> dict[str, Any] | None:
    """Return the first description of the attachment with a digest."""
    for entry in entries:
        for attachment in entry.get("attachments") or ():
            if isinstance(attachment, dict) and attachment.get("sha256") == digest:
                return attachment
    return None


ROUTES = [
    get("/import", lambda view: view.page("import.html", report=None)),
    post("/import", _import, scope="admin", files=1000),
    get("/c/{id}/export", _export),
    get("/c/{id}/files/{digest}", _file),
]
