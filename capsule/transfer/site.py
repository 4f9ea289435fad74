"""Write conversations as static pages: one for each, an index of them, and a search without a server.

The search is a script with all words and the positions of the messages that have them. A list in
the folder names the files of the site, so that a later export replaces or removes only these.

Invariants: a page loads nothing but files of the site, and texts of conversations are never markup.
The same conversations give the same bytes, and an unchanged file is not written. An attachment has
no extension that a browser runs. This module knows no store.
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
from typing import Any, NoReturn

from capsule.disk.whole_files import read_if_exists, replace_file
from capsule.errors import Refused
from capsule.format.documents.head import Head
from capsule.ids import slug
from capsule.transfer.drafts.conversion import draft_of
from capsule.transfer.formats.plain.html import SCRIPT, SITE_POLICY, STYLE, drawing, page
from capsule.transfer.interface import Draft, Fields
from capsule.transfer.records.mapping import json_of, objects_of

#: The file that lists the files of the site.
_LIST = ".capsule-site.json"
_SITE_FILE = re.compile(
    r"(?:c|attachments)/[a-z0-9][a-z0-9.-]*|(?:index\.html|search\.js|script\.js|style\.css)"
)
_UUID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
#: The extensions of attachments. Other types get `bin`.
_EXTENSIONS = {
    "image/jpeg": "jpg",
    "application/pdf": "pdf",
    "image/png": "png",
    "image/gif": "gif",
    "image/webp": "webp",
}
#: Characters of scripts without spaces, which are words of their own. `site.js` splits as `_words`
#: does.
_WORD_CHARACTERS = "\u0e00-\u109f\u1780-\u17ff\u3040-\u30ff\u3400-\u9fff\U00020000-\U0003ffff"
_WORD = re.compile(rf"[{_WORD_CHARACTERS}]|[^\W_{_WORD_CHARACTERS}]+")
_MAX_WORD_CHARS = 40
#: The positions of all words in the index. They make a script of about 10 MB.
_MAX_POSITIONS = 4_000_000
#: The largest file of a site that is read to compare it, in bytes.
_MAX_FILE_BYTES = 1 << 40
#: The fields of a message that the search finds.
_SEARCHED_FIELDS = ("content", "reasoning", "toolCalls", "from", "topic")
#: The digits of six bits in the index.
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"


@dataclass(frozen=True, slots=True)
class HtmlSite:
    """The result of writing a site, in numbers.

    Attributes:
        conversations: The conversations.
        messages: The messages.
        written: The files that are new or changed.
        removed: The files of an earlier export that were removed.
        left: The conversations with messages that the search does not find, since it is full.
    """

    conversations: int
    messages: int
    written: int
    removed: int
    left: int

    def as_json(self) -> dict[str, int]:
        """Return the output of `--json`."""
        return asdict(self)


class _SiteFolder:
    """The folder of a site.

    Attributes:
        names: The files of the site that were written or are unchanged.
        written: The number of files that are new or changed.
        removed: The number of files that were removed.

    Raises:
        Refused: Something else is in the folder.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self.names: set[str] = set()
        self.written = 0
        self.removed = 0
        for folder in (path, os.path.join(path, "c"), os.path.join(path, "attachments")):
            is_folder = os.path.isdir(folder) and (folder == path or not os.path.islink(folder))
            if os.path.lexists(folder) and not is_folder:
                raise Refused(f"{folder} is not a folder; give a new or an empty one", path=folder)
        list_bytes = read_if_exists(os.path.join(path, _LIST), 1 << 30) or b""
        site_list = json_of(list_bytes.decode("utf-8", "replace"))
        names = site_list.get("files") if isinstance(site_list, dict) else None
        if not isinstance(names, list):
            if os.path.isdir(path) and os.listdir(path):
                raise Refused(
                    f"{path} has files, and is not a site of an earlier export; give a new folder",
                    path=path,
                )
            names = []
        #: The files of an earlier export, and those that this one may have begun to write.
        self._old_names = {
            name for name in names if isinstance(name, str) and _SITE_FILE.fullmatch(name)
        }

    def write(self, name: str, data: bytes) -> None:
        """Write a file, unless it has this content."""
        path = os.path.join(self._path, name)
        file_bytes = read_if_exists(path, _MAX_FILE_BYTES)
        is_known = name == _LIST or name in self._old_names
        if file_bytes not in (None, data) and not is_known:
            self._refuse(path)
        if name != _LIST:
            self.names.add(name)
        if file_bytes != data:
            replace_file(path, file_bytes, data, mode=0o666)
            self.written += name != _LIST

    @staticmethod
    def _refuse(path: str) -> NoReturn:
        raise Refused(f"{path} is not a file of this site; move it out of the way", path=path)

    def announce(self, names: Iterable[str]) -> None:
        """List the files that will be written, before the first: the export may be killed."""
        new_names = {*names}
        for name in new_names - self._old_names:
            path = os.path.join(self._path, name)
            if os.path.lexists(path):
                self._refuse(path)
        self._old_names |= new_names
        self._write_list(self._old_names)

    def _write_list(self, names: set[str]) -> None:
        self.write(_LIST, json.dumps({"files": sorted(names)}, indent=0).encode())

    def remove_obsolete(self) -> None:
        """Remove the files of an earlier export that this one did not write."""
        for name in sorted(self._old_names - self.names):
            path = os.path.join(self._path, name)
            file_bytes = read_if_exists(path, _MAX_FILE_BYTES)
            if file_bytes is not None:
                replace_file(path, file_bytes, None)
                self.removed += 1
        self._write_list(self.names)


class _WordIndex:
    """The words of all conversations, with the positions that have them.

    The positions count through all conversations. Each has one for its head, and then one for each
    message.
    """

    def __init__(self) -> None:
        self._positions: dict[str, array[int]] = {}
        #: The position of the head of each conversation, and the next one.
        self._starts = [0]
        self._count = 0

    def add(self, head: Head, history: Iterable[Fields]) -> bool:
        """Add a conversation. Return whether the index had room for all of it."""
        position = self._starts[-1]
        self._add_words(position, _words(head.title, *head.tags))
        is_whole = True
        for entry in history:
            position += 1
            is_whole = is_whole and self._count < _MAX_POSITIONS
            if is_whole:
                values = [entry.get(name) for name in _SEARCHED_FIELDS]
                for file in objects_of(entry.get("attachments")):
                    values += [file.get("name"), file.get("text")]
                self._add_words(position, _words(*_texts(values)))
        self._starts.append(position + 1)
        return is_whole

    def _add_words(self, position: int, words: Iterable[str]) -> None:
        for word in words:
            self._positions.setdefault(word, array("I")).append(position)
            self._count += 1

    def script(self) -> bytes:
        """Return the script with the index. Its texts can't be markup or ends of lines."""
        words = sorted(self._positions)
        positions = " ".join("".join(_encoded(self._positions[word])) for word in words)
        index = {"starts": self._starts, "words": " ".join(words), "places": positions}
        text = json.dumps(index, separators=(",", ":")).replace("<", "\\u003c")
        return f"var capsuleIndex={text};\n".encode()


def _words(*texts: str) -> set[str]:
    """Return the words of texts, without accents and in small letters."""
    words: set[str] = set()
    for text in texts:
        plain_text = text
        if not text.isascii():
            characters = unicodedata.normalize("NFKD", text)
            plain_text = "".join(
                sign for sign in characters if unicodedata.category(sign)[0] != "M"
            )
        words.update(word[:_MAX_WORD_CHARS] for word in _WORD.findall(plain_text.lower()))
    return words


def _texts(value: Any) -> Iterator[str]:
    """Return all texts in a value, also those in a text that is JSON."""
    if isinstance(value, str):
        inner = json_of(value) if value[:1] in "{[" else value
        if isinstance(inner, str):
            yield value
        else:
            yield from _texts(inner)
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _encoded(positions: Iterable[int]) -> Iterator[str]:
    """Return the differences of positions in digits of five bits, the lowest first.

    The sixth bit of a digit is set if another digit of the same number follows.
    """
    previous = 0
    for position in positions:
        step = position - previous
        previous = position
        while step > 31:
            yield _DIGITS[32 | step & 31]
            step >>= 5
        yield _DIGITS[step]


def _name(id: str) -> str:
    """Return the file name of a conversation.

    On no file system is it the name of another one, or a reserved name.
    """
    if _UUID.fullmatch(id):
        return f"{id}.html"
    return f"{slug(id)[:40].strip('-')}-{sha256(id.encode()).hexdigest()[:16]}.html"


def write(
    directory: str,
    ids: list[str],
    document: Callable[[str], Fields],
    file: Callable[[str], bytes | None],
    progress: Callable[[int, int], None] | None,
) -> HtmlSite:
    """Write a site. For errors and cost see `Export.site`.

    Args:
        directory: The folder.
        ids: The conversations, in the order of the index.
        document: Returns a conversation by its id.
        file: Returns an attachment by its SHA-256. None: it is missing.
        progress: Called with the number of written conversations, and of all.
    """
    with drawing():
        from capsule.transfer.rendering.messages import ENVIRONMENT, STYLES
    static = STYLES.parent
    styles = [STYLES.read_text("utf-8"), STYLE, (static / "site.css").read_text("utf-8")]
    scripts = [SCRIPT, (static / "site.js").read_text("utf-8")]
    shared_files = {
        "style.css": "".join(styles).encode(),
        "script.js": "".join(scripts).encode(),
    }
    folder = _SiteFolder(directory)
    index = _WordIndex()
    rows: list[tuple[str, Head, int]] = []
    unindexed = 0
    folder.announce([*shared_files, "search.js", "index.html", *(f"c/{_name(id)}" for id in ids)])
    for position, id in enumerate(ids):
        if progress is not None:
            progress(position, len(ids))
        conversation = document(id)
        draft = draft_of(conversation, "html")
        head = Head.of(conversation, "", 0) or Head(id)
        folder.write(f"c/{_name(id)}", page(draft, _attachment_writer(draft, folder, file)))
        unindexed += not index.add(head, draft.history)
        rows.append((_name(id), head, len(draft.history)))
    for name, data in shared_files.items():
        folder.write(name, data)
    folder.write("search.js", index.script())
    template = ENVIRONMENT.get_template("site.html")
    index_page = template.render(rows=rows, left=unindexed, policy=SITE_POLICY)
    folder.write("index.html", index_page.encode("utf-8", "replace"))
    folder.remove_obsolete()
    return HtmlSite(
        conversations=len(ids),
        messages=sum(count for _, _, count in rows),
        written=folder.written,
        removed=folder.removed,
        left=unindexed,
    )


def _attachment_writer(
    draft: Draft, folder: _SiteFolder, file: Callable[[str], bytes | None]
) -> Callable[[str], str]:
    """Return a function that writes an attachment of a draft, and returns its address."""
    extensions = {}
    for entry in draft.history:
        for attachment in objects_of(entry.get("attachments")):
            extension = _EXTENSIONS.get(str(attachment.get("type")), "bin")
            extensions[str(attachment.get("sha256"))] = extension

    def write_attachment(digest: str) -> str:
        data = file(digest)
        if data is None:
            return ""
        name = f"attachments/{digest}.{extensions[digest]}"
        folder.write(name, data)
        return f"../{name}"

    return write_attachment
