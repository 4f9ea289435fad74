"""A person at an editor, as a process: reads a capsule, thinks, changes it, saves it the way real
editors do.

Each finished save is noted in a journal, so that the test knows what the person did.
What must stay true: the editor knows nothing of the store, of its mutexes or its notes; it opens
the file by its name and reads it as bytes. A person who sees half a document reads it again, and so
does this editor. `sed` can't: what it read while others appended, and saved half, the person saves
again.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from tests.processes import PATIENCE_S, Child
from tests.torture.writers import noted

#: A command reports a file that is not whole for longer than this, in seconds.
_REPORTED_S = 0.5
#: The layout that the store writes, and `sed` needs.
_LAYOUT = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE


def _write(fd: int, data: bytes) -> None:
    while data:
        data = data[os.write(fd, data) :]


def _new(path: str, data: bytes, flags: int = os.O_EXCL) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o600)
    _write(fd, data)
    os.fsync(fd)
    os.close(fd)


def rename_over(path: str, data: bytes) -> None:
    """Most editors: a new file is renamed over the old one."""
    _new(path + ".new", data)
    os.rename(path + ".new", path)


def vim(path: str, data: bytes) -> None:
    """vim, `backupcopy=no`: the old file is moved away, and a new one is written in its place."""
    os.rename(path, path + "~")
    _new(path, data, 0)
    os.unlink(path + "~")


def vim_copy(path: str, data: bytes) -> None:
    """vim, `backupcopy=yes`: the file is copied, and then written in place."""
    _new(path + "~", Path(path).read_bytes(), os.O_TRUNC)
    in_place(path, data)
    os.unlink(path + "~")


def in_place(path: str, data: bytes) -> None:
    """VS Code, nano: the file is truncated and written in place."""
    _new(path, data, os.O_TRUNC)


def in_pieces(path: str, data: bytes) -> None:
    """The same in several writes, by an editor with a small buffer."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for start in range(0, len(data), 4096):
        _write(fd, data[start : start + 4096])
        os.sched_yield()
    os.close(fd)


SAVES: dict[str, Callable[[str, bytes], None]] = {
    "rename": rename_over,
    "vim": vim,
    "vim-copy": vim_copy,
    "in-place": in_place,
    "in-pieces": in_pieces,
}


@dataclass
class Person:
    """A person, and how they edit.

    Attributes:
        path: The capsule.
        name: The person's name; all their texts have it.
        save: A name of `SAVES`, or `sed`.
        seed: The seed of their random choices.
        journal: The file that has a line for each save.
        watched: The directory of acknowledgements; the person thinks until a few more are there.
    """

    path: str
    name: str
    save: str
    seed: int
    journal: str
    watched: str


def _read(path: str, save_again: Callable[[], None]) -> dict[str, Any]:
    """The document, read again until it is whole; if it stays torn, as a save met an append, the
    person saves again.
    """
    began = time.monotonic()
    while True:
        try:
            return orjson.loads(Path(path).read_bytes())
        except (orjson.JSONDecodeError, FileNotFoundError):
            waited = time.monotonic() - began
            if waited > PATIENCE_S:
                raise
            if waited > _REPORTED_S:
                save_again()
            time.sleep(_REPORTED_S / 5 if waited > _REPORTED_S else 0.001)


def _think(person: Person, stopped: Callable[[], bool], acknowledgements: int) -> None:
    """Wait for about so many acknowledgements, or until none has come for a while."""
    wanted = noted(person.watched) + acknowledgements * 90  # One has 90 bytes.
    deadline = time.monotonic() + _REPORTED_S
    while noted(person.watched) < wanted and not stopped() and time.monotonic() < deadline:
        time.sleep(0.001)


def _changed(
    document: dict[str, Any], person: Person, n: int, rng: random.Random
) -> dict[str, Any]:
    """Change the document in place. Returns: the changes."""
    history = document["history"]
    # The person has not read the newest messages yet, and leaves typed ones alone, as the test
    # searches for their text.
    old = [
        entry
        for entry in history[:-8]
        if "id" in entry and not entry["content"].startswith("typed")
    ]
    done: dict[str, Any] = {}
    if rng.random() < 0.5:
        done["title"] = document["title"] = f"{person.name} {n}"
    if rng.random() < 0.5:
        done["tag"] = f"{person.name}-{n}"
        document["metadata"]["tags"].append(done["tag"])
    if old and rng.random() < 0.6:
        entry = rng.choice(old)
        entry["content"] = f"edited by {person.name} {n}"
        done["edited"] = [entry["id"], entry["content"]]
    if rng.random() < 0.4:
        done["typed"] = f"typed by {person.name} {n}"
        at = rng.choice((len(history), rng.randint(0, len(history))))
        history.insert(at, {"role": "user", "content": done["typed"]})
    if old and rng.random() < 0.4:
        entry = rng.choice(old)
        history.remove(entry)
        done["deleted"] = entry["id"]
    return done


def _sed(person: Person, n: int) -> dict[str, Any]:
    """Change the title with the real `sed -i`."""
    title = f"{person.name} {n}"
    script = f's/^  "title": ".*",$/  "title": "{title}",/'
    subprocess.run(["sed", "-i", "-e", script, person.path], check=True)
    return {"title": title}


def edit(person: Person, stopped: Callable[[], bool]) -> None:
    """Edit again and again until `stopped` says so."""
    rng = random.Random(person.seed)
    journal = os.open(person.journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    n = 0

    def save_again() -> None:
        if text:  # Who has saved nothing yet reads again until the other person has.
            os.write(journal, b'{"again": true}\n')
            SAVES.get(person.save, rename_over)(person.path, text)

    text = b""
    while not stopped():
        document = _read(person.path, save_again)
        if person.save == "sed":
            done = _sed(person, n)
            text = orjson.dumps(document | done, option=_LAYOUT)
        else:
            _think(person, stopped, rng.choice((0, 0, 1, 2, 5, 20)))
            done = _changed(document, person, n, rng)
            text = orjson.dumps(document, option=rng.choice((_LAYOUT, orjson.OPT_INDENT_2, 0)))
            SAVES[person.save](person.path, text)
        os.write(journal, json.dumps(done).encode() + b"\n")
        n += 1
        _think(
            person, stopped, rng.choice((0, 1, 1, 2, 5))
        )  # Without a pause it would read only its own save.
    _read(person.path, save_again)


def main() -> None:
    person = Person(**json.loads(sys.argv[1]))
    print("true", flush=True)
    edit(person, Path(person.journal + ".stop").exists)


class Editing:
    """A person who edits in a process of their own, from `with` to the end of its block, or
    `finish`.
    """

    def __init__(self, person: Person) -> None:
        self._person = person
        self._editor = Child(
            "from tests.torture.editors import main; main()", json.dumps(asdict(person))
        )
        self._editor.hear()

    def __enter__(self) -> Editing:
        return self

    def running(self) -> bool:
        return self._editor.is_running

    def finish(self) -> list[dict[str, Any]]:
        """Let the person finish. Returns: the changes of each save."""
        Path(self._person.journal + ".stop").touch()
        code, words = self._editor.ended()
        assert code == 0, words
        journal = Path(self._person.journal)
        return (
            [json.loads(line) for line in journal.read_bytes().splitlines()]
            if journal.exists()
            else []
        )

    def __exit__(self, *_: object) -> None:
        self._editor.close()
