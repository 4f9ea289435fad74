"""`summarize`, and `show --for-model`: a conversation for a model to read, and what somebody made
of it.

What must stay true: a summary is never made up here; the text comes from a person, a file or a
program, or there is none. How far the conversation went is noted before that text is waited for.
"""

from __future__ import annotations

import subprocess
import tempfile
from typing import TYPE_CHECKING

from capsule.errors import InvalidInput
from capsule.format.text.escaping import escape_controls, one_line
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.inputs import decode_text, message_text
from capsule_cli.shared.options import Budget, File, Id, argument, flag, option, refuse_if
from capsule_cli.shared.output import (
    CommandStopped,
    exit_reason,
    in_terminal,
    print_answer,
    print_json,
    print_notice,
    print_stored_bytes,
)
from capsule_cli.shared.stores import open_conversation, open_version
from capsule_cli.signals import SignalGuard

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from capsule.format.documents.head import Head
    from capsule.format.text.transcript import Transcript
    from capsule.store.store import CoreStore


_FROM_A_PROGRAM = "what --command wrote"


def summarize(
    id: Id,
    text: str | None = argument("TEXT", "The summary; - takes it from standard input."),
    file: File = None,
    command: str | None = option(
        "--command LINE",
        "Take the summary from a program: the shell runs this line, with the transcript on its "
        "standard "
        "input, as in --command 'llm -m MODEL -s \"Sum this up\"'.",
    ),
    title: str | None = option(
        "--title TITLE", 'The title. Without it: "Summary: " and the title of the source.'
    ),
    up_to: str | None = option(
        "--up-to MESSAGE",
        "Sum up the messages up to this one: its id or @N. Without it: up to the last.",
    ),
    budget: Budget = None,
    context: bool = flag(
        "--context", "With --command: let it read the beginning of the project's context too."
    ),
) -> None:
    """Make a summary of a conversation, and print its id. You give the text, or a program writes
    it.
    """
    ways = sum(way is not None for way in (text, file, command))
    refuse_if(
        not ways,
        "no summary was given, and Capsule writes none itself: give --file, - for standard input, "
        "or a program "
        "that writes one, with --command",
    )
    refuse_if(ways > 1, "give the text, --file or --command, and one of them only")
    read = budget is not None or context
    refuse_if(
        command is None and read,
        "--budget and --context say what --command gets to read; there is none",
    )
    refuse_if(
        command is not None and up_to,
        "--command reads up to the last message; give no --up-to",
        "--up-to",
    )
    with open_conversation(id) as (store, id):
        if command is not None:
            head = _by_program(store, id, command, title, budget, context=context)
        else:
            # Before a pipe is read, whose writer may have read the conversation by now.
            mark = store.summaries.mark(id, up_to)
            head = store.summaries.add(id, message_text(text, file), title=title, of=mark)
    made = f"Made {one_line(head.title)!r}\n" if in_terminal() else ""
    print_answer(head.as_json(), made + head.id)


def _by_program(
    store: CoreStore, id: str, command: str, title: str | None, budget: int | None, *, context: bool
) -> Head:
    from capsule.store.objects.summaries import Mark

    refuse_if(not command.strip(), "the command line is empty", "--command")
    document = store.document(id)
    read = _transcript(document, budget, context=context)
    if read.left_out:
        print_notice(
            f"the {read.left_out} oldest messages don't fit into the budget, and are left out of "
            "what it reads"
        )
    given = escape_controls(read.text).encode("utf-8", "backslashreplace")
    text = decode_text(_written_by(command, given, store.settings.message_bytes), _FROM_A_PROGRAM)
    refuse_if(
        not text.strip(),
        "it wrote nothing, and ended as if all were well; nothing was made",
        "--command",
    )
    return store.summaries.add(id, text, title=title, of=Mark.of(document))


def _written_by(command: str, given: bytes, limit: int) -> bytes:
    """What a command line writes to its standard output, where it finds `given` on its standard
    input.

    The shell runs it in the same group of processes as this one, so that Ctrl-C ends both; what it
    says on stderr, and asks on the terminal, reaches the person. What it writes counts only when it
    ended well.

    Raises:
        Stopped: It failed.
        InvalidInput: It wrote more than `limit` bytes.
    """
    with tempfile.TemporaryFile() as source, SignalGuard():
        source.write(given)
        source.seek(0)
        with subprocess.Popen(command, shell=True, stdin=source, stdout=subprocess.PIPE) as program:
            try:
                assert program.stdout is not None
                written = program.stdout.read(limit + 1)
                if len(written) > limit:
                    raise InvalidInput(
                        f"--command wrote more than {limit:,} bytes, the largest message that the "
                        "store takes "
                        "(limits.message_bytes in capsule.toml); nothing was made"
                    )
                code = program.wait()
            except BaseException:
                program.terminate()
                raise
    if code:
        raise CommandStopped(
            f"--command failed with {exit_reason(code)}; nothing was made. It was: {command}"
        )
    return written


def print_transcript(id: str, at: str | None, budget: int | None, *, context: bool) -> None:
    """Print the active branch as plain text for a model; with --json also what it counts."""
    with open_version(id, at, tell=not global_options.json) as (store, id):
        made = _transcript(store.document(id), budget, context=context)
    if global_options.json:
        counts = {"tokens": made.tokens, "messages": made.messages, "leftOut": made.left_out}
        print_json({"id": id, "text": made.text, **counts})
    else:
        print_stored_bytes(escape_controls(made.text).encode("utf-8", "backslashreplace"))


def _transcript(document: Mapping[str, Any], budget: int | None, *, context: bool) -> Transcript:
    from capsule.format.text.tokens import estimate
    from capsule.format.text.transcript import transcript

    rest = f"all of it: capsule show {document['id']} --around {{}} -C 0"
    return transcript(document, estimate, budget=budget, context=context, rest=rest)


def with_standing(store: CoreStore, id: str) -> dict[str, Any]:
    """A conversation for a program; beside a summary stands what became of its source,
    as `source`.
    """
    document = store.document(id)
    standing = (
        store.summaries.standing(id) if document["metadata"].get("isSummary") is True else None
    )
    return document | {"source": standing.as_json()} if standing is not None else document


def tell_standing(store: CoreStore, id: str) -> None:
    """Say what became of the source, on stderr, when the conversation is a summary."""
    head = store.head(id)
    standing = store.summaries.standing(id) if head.is_summary else None
    if standing is not None:
        of = f" of {head.source_conversation_id}" if head.source_conversation_id else ""
        print_notice(one_line(f"a summary{of}; {standing}"))
