"""`edit`: a conversation or a message in the person's own editor, as visudo does it.

What must stay true: nothing is written before it is valid, and what the person typed is never thrown away: when it
can't be saved, the copy stays and its path is told.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from capsule.errors import InvalidDocument, InvalidInput
from capsule_cli.boundary import report_error
from capsule_cli.shared.asked import asked
from capsule_cli.shared.inputs import decoded, message_text, read_file
from capsule_cli.shared.opening import conversation
from capsule_cli.shared.options import Id, argument, flag, option, usage
from capsule_cli.shared.output import Stopped, answer, out, out_json, say

if TYPE_CHECKING:
    from capsule import Store
    from capsule.format.head import Head
    from capsule.format.models import Message

commands = typer.Typer()

T = TypeVar("T")


@commands.command("edit")
def edit(
    id: Id,
    text: str | None = argument("TEXT", "With --which: the new text. Without it: standard input, or the editor."),
    message: str | None = option("--which MESSAGE", "Edit one message: its id, @N (its place) or @last."),
    beside: bool = flag("--beside", "With --which: keep the message, and put the new text beside it."),
) -> None:
    """Open a conversation in $VISUAL or $EDITOR under its lock, and save it when it is valid."""
    with conversation(id) as (store, id):
        if message is not None:
            changed = _edit_message(store, id, message, text, beside=beside)
            _tell_message(id, changed, "added" if beside else "changed")
        elif beside:
            raise usage("say which message gets another one beside it: --which MESSAGE", "--beside")
        elif text is not None:
            raise usage("a text changes a message: say which with --which MESSAGE", "TEXT")
        else:
            with _held(store, id):
                head = _edit_capsule(store, id)
            _tell_head(store, id, head)


def _edit_capsule(store: Store, id: str) -> Head | None:
    """The conversation through the editor, until it is valid or given up. Returns: None when nothing changed."""
    read = store.read(id)
    with _copy(read, f"-{id}.json") as path:

        def save(data: bytes) -> Head:
            try:
                return store.rewrite(id, data, read)
            except InvalidDocument as error:
                raise InvalidDocument.of([replace(problem, path=path) for problem in error.problems]) from error

        return _until_saved(path, read, save)


def _edit_message(store: Store, id: str, message_id: str, text: str | None, *, beside: bool) -> Message | None:
    """One message changed, or another put beside it. Returns: None when nothing changed."""
    change = store.branch if beside else store.edit_message
    if text is not None or not sys.stdin.isatty():
        wanted = message_text(text, None)
        if not beside and store.find_message(id, message_id).content == wanted:
            return None
        return change(id, message_id, wanted)
    with _held(store, id):
        message = store.find_message(id, message_id)
        before = f"{message.content}\n".encode()
        with _copy(before, f"-{id}.md") as path:

            def save(data: bytes) -> Message | None:
                text = decoded(data, path)
                if not text.strip():
                    raise InvalidInput("the message is empty; to remove it: capsule delete ID --which MESSAGE")
                return change(id, str(message.id), text)

            return _until_saved(path, before, save)


def _until_saved(path: str, before: bytes, save: Callable[[bytes], T | None]) -> T | None:
    """Open the editor until what it leaves can be saved, or the person gives up. Returns: None for no change."""
    while True:
        _run_editor(path)
        data = read_file(path)
        if data == before:
            return None
        try:
            return save(data)
        except (InvalidDocument, InvalidInput) as error:
            if not _again(error):
                raise


@contextmanager
def _held(store: Store, id: str) -> Iterator[None]:
    """The lock, for the body; a lock that the named instance held before is left to it."""
    lock = store.head(id).lock
    held = store.lock(id)
    if lock is not None and lock.get("instanceId") == store.instance_id:
        yield
    else:
        with held:
            yield


@contextmanager
def _copy(data: bytes, suffix: str) -> Iterator[str]:
    """A copy to edit, readable for its owner alone; it goes when all is well, and stays with what was typed."""
    fd, path = tempfile.mkstemp(prefix="capsule-", suffix=suffix)
    with open(fd, "wb") as file:
        file.write(data)
    try:
        yield path
    except BaseException:
        if _differs(path, data):
            say(f"what you typed is kept in {path}")
        raise
    else:
        os.unlink(path)


def _differs(path: str, data: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            if file.read() != data:
                return True
        os.unlink(path)
    except OSError:
        pass
    return False


def _run_editor(path: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        words = shlex.split(editor)
        code = subprocess.run([*words, path], check=False).returncode
    except (OSError, ValueError) as error:
        raise Stopped(f"the editor {editor!r} can't be started: {error}; set VISUAL or EDITOR to yours") from None
    if code:
        raise Stopped(f"the editor {editor!r} ended with exit code {code}; nothing was changed")


def _again(error: InvalidDocument | InvalidInput) -> bool:
    """Show what is wrong, and offer a person to go on editing; False where there is nobody to ask."""
    if not sys.stdin.isatty():
        return False
    report_error(error)
    answer = typer.prompt("(e)dit again, or (q)uit and keep your copy", default="e", err=True)
    return not str(answer).strip().lower().startswith("q")


def _tell_message(id: str, message: Message | None, done: str) -> None:
    answer(
        {"changed": message is not None, **({"id": message.id, "at": message.at} if message else {})},
        f"{id}: " + (f"message {message.id} {done}" if message else "nothing changed"),
        line=True,
    )


def _tell_head(store: Store, id: str, head: Head | None) -> None:
    if asked.json:
        told: dict[str, Any] = (head or store.head(id)).as_json()
        out_json({"changed": head is not None, **told})
    else:
        out(f"{id}: " + ("saved" if head else "nothing changed"))
