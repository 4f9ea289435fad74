"""`edit`: change a conversation or a message in the person's own editor, as visudo does.

The editor gets a temporary copy. After the editor has ended, the copy is saved through the store.
If it is invalid, the person may edit it again.

What must stay true: nothing is written before it is valid. The typed text is never lost: if it
can't be saved, the copy stays and its path is printed.
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
    keep_original: bool = flag(
        "--beside", "With --which: keep the message, and add the new text as an alternative."
    ),
) -> None:
    """Open a conversation in $VISUAL or $EDITOR under its lock, and save it when it is valid."""
    refuse_if(
        keep_original and message is None,
        "name the message to add the text beside: --which MESSAGE",
        "--beside",
    )
    refuse_if(
        text is not None and message is None,
        "a text changes one message: name it with --which MESSAGE",
        "TEXT",
    )
    with open_conversation(id) as (store, conversation_id):
        if message is None:
            with _locked(store, conversation_id):
                head = _edit_capsule(store, conversation_id)
            value = {"changed": head is not None, **(head or store.head(conversation_id)).as_json()}
            outcome = "saved" if head else "nothing changed"
            print_answer(value, f"{conversation_id}: {outcome}")
            return
        edited = _edit_message(store, conversation_id, message, text, keep_original=keep_original)
        value = {"changed": edited is not None}
        outcome = "nothing changed"
        if edited:
            value |= {"id": edited.id, "at": edited.at}
            outcome = f"message {edited.id} {'added' if keep_original else 'changed'}"
        print_answer(value, f"{conversation_id}: {outcome}", line=True)


def _edit_capsule(store: CoreStore, id: str) -> Head | None:
    """Open a conversation in the editor until it is valid or the person gives up. Return None if
    nothing changed.
    """
    original = store.read(id)

    def save(data: bytes, path: str) -> Head:
        try:
            return store.edits.rewrite(id, data, original)
        except InvalidDocument as error:
            problems = [replace(problem, path=path) for problem in error.problems]
            raise InvalidDocument.of(problems) from error

    return through_editor(original, f"-{id}.json", save)


def _edit_message(
    store: CoreStore, id: str, message_id: str, text: str | None, *, keep_original: bool
) -> Message | None:
    """Change a message, or add an alternative to it. Return None if nothing changed.

    Without a text, it is read from standard input, or typed in the editor.
    """
    change = store.branches.revise if keep_original else store.edits.message
    if text is not None or not sys.stdin.isatty():
        content = message_text(text, None)
        if not keep_original and store.find_message(id, message_id).content == content:
            return None
        return change(id, message_id, content)
    with _locked(store, id):
        message = store.find_message(id, message_id)

        def save(data: bytes, path: str) -> Message:
            typed = decode_text(data, path)
            if not typed.strip():
                raise InvalidInput(
                    "the message is empty; to remove it: capsule delete ID --which MESSAGE"
                )
            return change(id, str(message.id), typed)

        return through_editor(f"{message.content}\n".encode(), f"-{id}.md", save)


def through_editor(original: bytes, suffix: str, save: Callable[[bytes, str], T]) -> T | None:
    """Let a person edit a copy until it can be saved, or they give up. Return None if they changed
    nothing.

    Only its owner can read the copy. It is removed after it was saved, and stays if it has text
    that was not saved.

    Args:
        original: The content to edit.
        suffix: The end of the copy's name, from which an editor learns the type.
        save: Saves the new content, and returns the result. The second argument is the path of the
            copy, for errors. Raises InvalidDocument or InvalidInput: it is invalid.
    """
    fd, path = tempfile.mkstemp(prefix="capsule-", suffix=suffix)
    with open(fd, "wb") as file:
        file.write(original)
    try:
        while True:
            _run_editor(path)
            data = read_file(path)
            try:
                saved = None if data == original else save(data, path)
                break
            except (InvalidDocument, InvalidInput) as error:
                if not _wants_to_go_on(error):
                    raise
    except BaseException:
        if os.path.isfile(path) and read_file(path) != original:
            print_notice(f"your text is kept in {path}")
        else:
            with suppress(OSError):
                os.unlink(path)
        raise
    os.unlink(path)
    return saved


@contextmanager
def _locked(store: CoreStore, id: str) -> Iterator[None]:
    """Hold the lock during the body. If the named instance held it before, it keeps it afterwards."""
    old_lock = store.head(id).lock
    lock = store.locks.take(id)
    if old_lock is not None and old_lock.get("instanceId") == store.instance_id:
        yield
    else:
        with lock:
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


def _wants_to_go_on(error: InvalidDocument | InvalidInput) -> bool:
    """Print an error, and ask the person whether to edit again. Return False if there is nobody to
    ask.
    """
    if not sys.stdin.isatty():
        return False
    report_error(error)
    choice = typer.prompt("(e)dit again, or (q)uit and keep your copy", default="e", err=True)
    return not str(choice).strip().lower().startswith("q")
