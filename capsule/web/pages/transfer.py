"""Files in and out: what is dropped is imported, a conversation is exported, and attachments are
given out.

What must stay true: a file of a stranger is never shown as a page of ours: only images that say so
in their first bytes are shown, and all else is saved. What comes in lies in a folder of its own,
which is gone when it was imported.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from tempfile import TemporaryDirectory, TemporaryFile
from typing import IO, Final
from urllib.parse import quote

from starlette.datastructures import UploadFile
from starlette.responses import Response, StreamingResponse

from capsule.errors import InvalidInput, NotFound
from capsule.web.view import View, get, post

_PIECE: Final = 1 << 16
#: How many conversations and remarks of a report are shown.
_SHOWN: Final = 200
#: Images by their first bytes; an SVG could hold a script.
_IMAGES: Final = {
    "png": rb"\x89PNG\r\n\x1a\n",
    "jpeg": rb"\xff\xd8\xff",
    "gif": rb"GIF8",
    "webp": rb"RIFF.{4}WEBP",
}


def _import(view: View) -> Response:
    files = [
        each
        for each in view.form.getlist("files")
        if isinstance(each, UploadFile) and each.filename
    ]
    if not files:
        raise InvalidInput("choose a file to import")
    with TemporaryDirectory(prefix="capsule-import-") as folder:
        paths: list[str] = []
        for place, file in enumerate(files):
            # The names matter: some formats read files beside each other. None of them leads out of
            # the folder.
            name = os.path.basename(str(file.filename).replace("\\", "/")).replace("\0", "")[-100:]
            path = os.path.join(folder, name.lstrip(".") or "file")
            paths.append(f"{path}-{place}" if path in paths else path)
            with open(paths[-1], "wb") as copy:
                shutil.copyfileobj(file.file, copy)
        report = view.store.import_(*paths, on_conflict=view.sent("on_conflict") or "skip")  # type: ignore[arg-type]
    if view.wants_json:
        return view.json(report.as_json())
    return view.page("import.html", report=report, most=_SHOWN, folder=folder + os.sep)


def _export(view: View) -> Response:
    from capsule.transfer.registry import formats

    id, format = view.at(), view.asked("format")
    head = view.store.head(id)
    if not format:
        return view.page(
            "export.html", head=head, formats=[each for each in formats().values() if each.write]
        )
    with ExitStack() as stack:
        file = stack.enter_context(TemporaryFile())
        view.store.export([head.id], file, format=format, is_redacted=bool(view.asked("redacted")))
        headers = _saved(head.id + formats()[format].extension) | {
            "content-length": str(file.tell())
        }
        file.seek(0)
        pieces = _pieces(file, stack.pop_all())
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def _pieces(file: IO[bytes], stack: ExitStack) -> Iterator[bytes]:
    with stack:
        yield from iter(partial(file.read, _PIECE), b"")


def _saved(name: str) -> dict[str, str]:
    """The header of what a browser saves under a name, and does not show."""
    return {"content-disposition": f"attachment; filename*=UTF-8''{quote(name, safe='')}"}


def _file(view: View) -> Response:
    """An attachment of a message that the visitor reads."""
    id, digest = view.at(), view.at("digest")
    entries = view.store.document(id)["history"]
    attached = (each for entry in entries for each in entry.get("attachments") or ())
    about = next(
        (each for each in attached if isinstance(each, dict) and each.get("sha256") == digest), None
    )
    if about is None:
        raise NotFound(f"conversation {id} has no such attachment", id=digest)
    data = view.store.inner.whole_engine.files.read("attachments", digest, digest)
    if kind := next(
        (kind for kind, first in _IMAGES.items() if re.match(first, data, re.DOTALL)), ""
    ):
        return Response(data, media_type=f"image/{kind}")
    return Response(
        data,
        media_type="application/octet-stream",
        headers=_saved(str(about.get("name") or digest)),
    )


ROUTES = [
    get("/import", lambda view: view.page("import.html", report=None)),
    post("/import", _import, scope="admin", files=1000),
    get("/c/{id}/export", _export),
    get("/c/{id}/files/{digest}", _file),
]
