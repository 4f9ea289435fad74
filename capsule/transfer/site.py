"""Conversations as static pages: one for each, an index of them, and a search that needs no server.

What must stay true: a page loads nothing but files of the site, and whatever a conversation says is
text there. The same conversations give the same bytes, and a file that is as it should be is not
written. In the folder only what the site's own list names is replaced or removed, and an attachment
has no ending that a browser runs. It knows no store.
"""

from __future__ import annotations

import json
import os
import re
import unicodedata
from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import Any

from capsule.disk.whole_files import read_if_exists, replace_file
from capsule.errors import Refused
from capsule.format.documents.head import Head
from capsule.ids import slug
from capsule.transfer.drafts.conversion import draft_of
from capsule.transfer.formats.plain.html import SCRIPT, SITE_POLICY, STYLE, drawing, page
from capsule.transfer.interface import Fields
from capsule.transfer.records.coercion import json_of, objects_of

_LIST = ".capsule-site.json"
_OWN = re.compile(
    r"(?:c|attachments)/[a-z0-9][a-z0-9.-]*|(?:index\.html|search\.js|script\.js|style\.css)"
)
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_ENDINGS = {"image/jpeg": "jpg", "application/pdf": "pdf"} | {
    f"image/{kind}": kind for kind in ("png", "gif", "webp")
}
#: Characters of scripts without spaces, which are words of their own. `site.js` folds as `_words`
#: does.
_ALONE = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_WORD, _MOST_LETTERS = re.compile(rf"[{_ALONE}]|[^\W_{_ALONE}]+"), 40
#: How many times a message has a word, over the whole index: it makes a script of about 10 MB.
_MOST_PLACES = 4_000_000
_SIGNS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@dataclass(frozen=True, slots=True)
class HtmlSite:
    """What was written: how many of each.

    Attributes:
        written: The files that are new or changed.
        removed: Those of an earlier export that are gone.
        left: The conversations of which the search has not all messages.
    """

    conversations: int
    messages: int
    written: int
    removed: int
    left: int

    def as_json(self) -> dict[str, int]:
        """What `--json` prints."""
        return asdict(self)


class _SiteFolder:
    """The folder of a site. Raises Refused: something else is in it."""

    def __init__(self, path: str) -> None:
        self.path, self.names, self.written, self.removed = path, set[str](), 0, 0
        for place in (path, os.path.join(path, "c"), os.path.join(path, "attachments")):
            is_folder = os.path.isdir(place) and (place == path or not os.path.islink(place))
            if os.path.lexists(place) and not is_folder:
                raise Refused(f"{place} is not a folder; give a new or an empty one", path=place)
        listed = json_of(
            (read_if_exists(os.path.join(path, _LIST), 1 << 30) or b"").decode("utf-8", "replace")
        )
        names = listed.get("files") if isinstance(listed, dict) else None
        if not isinstance(names, list):
            if os.path.isdir(path) and os.listdir(path):
                raise Refused(
                    f"{path} has files, and is not a site of an earlier export; give a new folder",
                    path=path,
                )
            names = []
        self._before = {name for name in names if isinstance(name, str) and _OWN.fullmatch(name)}

    def put(self, name: str, data: bytes) -> None:
        """Write a file, unless it is so already."""
        path = os.path.join(self.path, name)
        there = read_if_exists(path, 1 << 40)
        if there not in (None, data) and name not in {*self._before, _LIST}:
            raise Refused(f"{path} is not a file of this site; move it out of the way", path=path)
        if name != _LIST:
            self.names.add(name)
        if there != data:
            replace_file(path, there, data, mode=0o666)
            self.written += name != _LIST

    def begin(self, names: Iterable[str]) -> None:
        """List what will be written beside what was: a crash may come between."""
        new = {*names}
        for name in new - self._before:
            if os.path.lexists(path := os.path.join(self.path, name)):
                raise Refused(
                    f"{path} is not a file of this site; move it out of the way", path=path
                )
        self._before |= new
        self._list(self._before)

    def _list(self, names: set[str]) -> None:
        self.put(_LIST, json.dumps({"files": sorted(names)}, indent=0).encode())

    def end(self) -> None:
        """Remove what is gone."""
        for name in sorted(self._before - self.names):
            path = os.path.join(self.path, name)
            if (there := read_if_exists(path, 1 << 40)) is not None:
                replace_file(path, there, None)
                self.removed += 1
        self._list(self.names)


class _WordIndex:
    """By each word, the places that have it: of each conversation its head,
    and then its messages.
    """

    def __init__(self) -> None:
        self._places: dict[str, array[int]] = {}
        self.starts, self._count = [0], 0

    def add(self, head: Head, history: Iterable[Fields]) -> bool:
        """Add a conversation. Returns: whether all of it."""
        at = self.starts[-1]
        self._put(at, _words(head.title, *head.tags))
        is_whole = True
        for entry in history:
            at += 1
            if is_whole := is_whole and self._count < _MOST_PLACES:
                files = [
                    [file.get("name"), file.get("text")]
                    for file in objects_of(entry.get("attachments"))
                ]
                said = [
                    entry.get(name)
                    for name in ("content", "reasoning", "toolCalls", "from", "topic")
                ]
                self._put(at, _words(*_texts([*said, files])))
        self.starts.append(at + 1)
        return is_whole

    def _put(self, at: int, words: Iterable[str]) -> None:
        for word in words:
            self._places.setdefault(word, array("I")).append(at)
            self._count += 1

    def script(self) -> bytes:
        """The script that has the index; texts in it are no markup, and no ends of lines."""
        words = sorted(self._places)
        steps = " ".join("".join(_steps(self._places[word])) for word in words)
        index = {"starts": self.starts, "words": " ".join(words), "places": steps}
        return f"var capsuleIndex={json.dumps(index, separators=(',', ':'))};\n".replace(
            "<", "\\u003c"
        ).encode()


def _words(*texts: str) -> set[str]:
    found = set[str]()
    for text in texts:
        if not text.isascii():
            text = "".join(
                sign
                for sign in unicodedata.normalize("NFKD", text)
                if unicodedata.category(sign)[0] != "M"
            )
        found.update(word[:_MOST_LETTERS] for word in _WORD.findall(text.lower()))
    return found


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        if value[:1] in "{[" and not isinstance(made := json_of(value), str):
            yield from _texts(made)
        else:
            yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _steps(places: Iterable[int]) -> Iterator[str]:
    """The differences of places, in digits of five bits, the lowest first."""
    before = 0
    for place in places:
        step, before = place - before, place
        while step > 31:
            yield _SIGNS[32 | step & 31]
            step >>= 5
        yield _SIGNS[step]


def _name(id: str) -> str:
    """The file of a conversation: on no file system that of another one, nor a name that is
    reserved.
    """
    plain = (
        id
        if _UUID.fullmatch(id)
        else f"{slug(id)[:40].strip('-')}-{sha256(id.encode()).hexdigest()[:16]}"
    )
    return f"{plain}.html"


def write(
    directory: str,
    ids: list[str],
    document: Callable[[str], Fields],
    file: Callable[[str], bytes | None],
    progress: Callable[[int, int], None] | None,
) -> HtmlSite:
    """Write a site; `document` gives a conversation, `file` an attachment by its SHA-256. As
    `Export.site`.
    """
    with drawing():
        from capsule.transfer.rendering.messages import ENVIRONMENT, STYLES
    folder, index, rows, left, static = (
        _SiteFolder(directory),
        _WordIndex(),
        list[tuple[str, Head, int]](),
        0,
        STYLES.parent,
    )
    shared = {
        "style.css": f"{STYLES.read_text('utf-8')}{STYLE}{(static / 'site.css').read_text('utf-8')}".encode(),
        "script.js": f"{SCRIPT}{(static / 'site.js').read_text('utf-8')}".encode(),
    }
    folder.begin([*shared, "search.js", "index.html", *(f"c/{_name(id)}" for id in ids)])
    for place, id in enumerate(ids):
        if progress is not None:
            progress(place, len(ids))
        made = document(id)
        draft, head = draft_of(made, "html"), Head.of(made, "", 0) or Head(id)
        attached = [
            each for entry in draft.history for each in objects_of(entry.get("attachments"))
        ]
        kinds = {
            str(each.get("sha256")): _ENDINGS.get(str(each.get("type")), "bin") for each in attached
        }

        def address(digest: str, kinds: dict[str, str] = kinds) -> str:
            if (data := file(digest)) is None:
                return ""
            folder.put(name := f"attachments/{digest}.{kinds[digest]}", data)
            return f"../{name}"

        folder.put(f"c/{_name(id)}", page(draft, address))
        left += not index.add(head, draft.history)
        rows.append((_name(id), head, len(draft.history)))
    for name, data in shared.items():
        folder.put(name, data)
    folder.put("search.js", index.script())
    listed = ENVIRONMENT.get_template("site.html").render(rows=rows, left=left, policy=SITE_POLICY)
    folder.put("index.html", listed.encode("utf-8", "replace"))
    folder.end()
    return HtmlSite(len(ids), sum(row[2] for row in rows), folder.written, folder.removed, left)
