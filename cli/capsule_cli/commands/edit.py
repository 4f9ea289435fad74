"""`edit`: a conversation or a message in the person's own editor, as visudo does it.

What must stay true: nothing is written before it is valid, and what the person typed is never
thrown away: when it can't be saved, the copy stays and its path is printed.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

import typer

from capsule.errors import InvalidDocument, InvalidInput
from capsule_cli.error_output import report_error
from capsule_cli.shared.inputs import decode_text, message_text, read_file
from capsule_cli.shared.options import Id, argument, flag, option, refuse_if
from capsule_cli.shared.output import CommandStopped, exit_reason, print_answer, print_notice
from capsule_cli.shared.stores import open_conversation

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.models import Message
    from capsule.store.store import CoreStore


T = TypeVar("T")


def edit(
    id: Id,
    text: str | None = argument(
        "TEXT", "With --which: the new text. Without it: standard input, or the editor."
    ),
    message: str | None = option(
        "--which MESSAGE", "Edit one message: its id, @N (its place) or @last."
    ),
    beside: bool = flag(
        "--beside", "With --which: keep the message, and add the new text as an alternative."
    ),
) -> None:
    """Open a conversation in $VISUAL or $EDITOR under its lock, and save it when it is valid."""
    refuse_if(
        beside and message is None,
        "say which message gets another one beside it: --which MESSAGE",
        "--beside",
    )
    refuse_if(
        text is not None and message is None,
        "a text changes a message: say which with --which MESSAGE",
        "TEXT",
    )
    with open_conversation(id) as (store, id):
        if message is None:
            with _held(store, id):
                head = _edit_capsule(store, id)
            value = {"changed": head is not None, **(head or store.head(id)).as_json()}
            print_answer(value, f"{id}: " + ("saved" if head else "nothing changed"))
        else:
            made = _edit_message(store, id, message, text, beside=beside)
            facts = {"id": made.id, "at": made.at} if made else {}
            said = (
                f"message {made.id} {'added' if beside else 'changed'}"
                if made
                else "nothing changed"
            )
            print_answer({"changed": made is not None, **facts}, f"{id}: {said}", line=True)


def _edit_capsule(store: CoreStore, id: str) -> Head | None:
    """The conversation through the editor, until it is valid or given up. Returns: None when
    nothing changed.
    """
    read = store.read(id)

    def save(data: bytes, path: str) -> Head:
        try:
            return store.edits.rewrite(id, data, read)
        except InvalidDocument as error:
            raise InvalidDocument.of(
                [replace(problem, path=path) for problem in error.problems]
            ) from error

    return through_editor(read, f"-{id}.json", save)


def _edit_message(
    store: CoreStore, id: str, message_id: str, text: str | None, *, beside: bool
) -> Message | None:
    """One message changed, or another put beside it. Returns: None when nothing changed."""
    change = store.branches.revise if beside else store.edits.message
    if text is not None or not sys.stdin.isatty():
        wanted = message_text(text, None)
        if not beside and store.find_message(id, message_id).content == wanted:
            return None
        return change(id, message_id, wanted)
    with _held(store, id):
        message = store.find_message(id, message_id)

        def save(data: bytes, path: str) -> Message:
            text = decode_text(data, path)
            if not text.strip():
                raise InvalidInput(
                    "the message is empty; to remove it: capsule delete ID --which MESSAGE"
                )
            return change(id, str(message.id), text)

        return through_editor(f"{message.content}\n".encode(), f"-{id}.md", save)


def through_editor(before: bytes, suffix: str, save: Callable[[bytes, str], T]) -> T | None:
    """Let a person edit a copy until it can be saved, or they give up. Returns: None for no change.

    The copy is readable for its owner alone. It goes when all is well, and stays with what was
    typed when it is not.
    """
    fd, path = tempfile.mkstemp(prefix="capsule-", suffix=suffix)
    with open(fd, "wb") as file:
        file.write(before)
    try:
        while True:
            _run_editor(path)
            data = read_file(path)
            try:
                saved = None if data == before else save(data, path)
                break
            except (InvalidDocument, InvalidInput) as error:
                if not _again(error):
                    raise
    except BaseException:
        if os.path.isfile(path) and read_file(path) != before:
            print_notice(f"what you typed is kept in {path}")
        else:
            with suppress(OSError):
                os.unlink(path)
        raise
    os.unlink(path)
    return saved


@contextmanager
def _held(store: CoreStore, id: str) -> Iterator[None]:
    """The lock, for the body; a lock that the named instance held before is left to it."""
    lock = store.head(id).lock
    held = store.locks.take(id)
    if lock is not None and lock.get("instanceId") == store.instance_id:
        yield
    else:
        with held:
            yield


def _run_editor(path: str) -> None:
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        words = shlex.split(editor)
        code = subprocess.run([*words, path], check=False).returncode
    except (OSError, ValueError) as error:
        raise CommandStopped(
            f"the editor {editor!r} can't be started: {error}; set VISUAL or EDITOR to yours"
        ) from None
    if code:
        raise CommandStopped(
            f"the editor {editor!r} failed with {exit_reason(code)}; nothing was changed"
        )


def _again(error: InvalidDocument | InvalidInput) -> bool:
    """Show what is wrong, and offer a person to go on editing; False where there is nobody
    to ask.
    """
    if not sys.stdin.isatty():
        return False
    report_error(error)
    chosen = typer.prompt("(e)dit again, or (q)uit and keep your copy", default="e", err=True)
    return not str(chosen).strip().lower().startswith("q")
