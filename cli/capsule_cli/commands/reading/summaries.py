"""`summarize`, and `show --for-model`: a conversation as text for a model, and summaries of it.

What must stay true: Capsule writes no summary itself. The text comes from a person, a file or a
program. A summary records the last message of the conversation at the time before its text was
awaited.
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


#: The name of a program's output in errors.
_PROGRAM_OUTPUT = "what --command wrote"


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
    text_sources = sum(source is not None for source in (text, file, command))
    refuse_if(
        not text_sources,
        "no summary was given, and Capsule writes none itself: give --file, - for standard input, "
        "or a program "
        "that writes one, with --command",
    )
    refuse_if(text_sources > 1, "give only one of the text, --file and --command")
    refuse_if(
        command is None and (budget is not None or context),
        "--budget and --context need --command",
    )
    refuse_if(
        command is not None and up_to,
        "--command reads up to the last message; give no --up-to",
        "--up-to",
    )
    with open_conversation(id) as (store, conversation_id):
        if command is not None:
            head = _summarize_by_program(
                store, conversation_id, command, title, budget, context=context
            )
        else:
            # Before standard input is read: its writer may read the conversation first, and new
            # messages may come in the meantime.
            mark = store.summaries.mark(conversation_id, up_to)
            summary = message_text(text, file)
            head = store.summaries.add(conversation_id, summary, title=title, of=mark)
    answer = head.id
    if in_terminal():
        answer = f"Made {one_line(head.title)!r}\n{answer}"
    print_answer(head.as_json(), answer)


def _summarize_by_program(
    store: CoreStore, id: str, command: str, title: str | None, budget: int | None, *, context: bool
) -> Head:
    """Give a program the transcript, store its output as the summary, and return the new head."""
    from capsule.store.objects.summaries import Mark

    refuse_if(not command.strip(), "the command line is empty", "--command")
    document = store.document(id)
    transcript = _transcript(document, budget, context=context)
    if transcript.left_out:
        print_notice(
            f"the {transcript.left_out} oldest messages don't fit into the budget, and are left out of "
            "what it reads"
        )
    input_bytes = escape_controls(transcript.text).encode("utf-8", "backslashreplace")
    output_bytes = _run_program(command, input_bytes, store.settings.message_bytes)
    text = decode_text(output_bytes, _PROGRAM_OUTPUT)
    refuse_if(
        not text.strip(),
        "it wrote nothing, although it ended without an error; nothing was made",
        "--command",
    )
    return store.summaries.add(id, text, title=title, of=Mark.of(document))


def _run_program(command: str, input_bytes: bytes, limit: int) -> bytes:
    """Run a command line, and return its standard output.

    It runs in the process group of this process, so that Ctrl-C ends both. Its stderr, and its
    questions on the terminal, reach the person. Its output counts only if it exits with 0.

    Args:
        command: The command line, for a shell.
        input_bytes: Its standard input.
        limit: The most bytes that it may write.

    Raises:
        CommandStopped: It failed.
        InvalidInput: It wrote more than `limit` bytes.
    """
    with tempfile.TemporaryFile() as source, SignalGuard():
        source.write(input_bytes)
        source.seek(0)
        with subprocess.Popen(command, shell=True, stdin=source, stdout=subprocess.PIPE) as program:
            try:
                assert program.stdout is not None
                output = program.stdout.read(limit + 1)
                if len(output) > limit:
                    raise InvalidInput(
                        f"--command wrote more than {limit:,} bytes, the largest message that the "
                        "store takes "
                        "(limits.message_bytes in capsule.toml); nothing was made"
                    )
                exit_code = program.wait()
            except BaseException:
                program.terminate()
                raise
    if exit_code:
        raise CommandStopped(
            f"--command failed with {exit_reason(exit_code)}; nothing was made. It was: {command}"
        )
    return output


def print_transcript(id: str, revision: str | None, budget: int | None, *, context: bool) -> None:
    """Print the active branch as plain text for a model. With --json, print also its counts.

    Args:
        id: The conversation, as the user named it.
        revision: The past version to print. None: the present one.
        budget: The most tokens. None: all messages.
        context: Whether to print the project's context first.
    """
    announce = not global_options.json
    with open_version(id, revision, announce=announce) as (store, conversation_id):
        transcript = _transcript(store.document(conversation_id), budget, context=context)
    if global_options.json:
        counts = {
            "tokens": transcript.tokens,
            "messages": transcript.messages,
            "leftOut": transcript.left_out,
        }
        print_json({"id": conversation_id, "text": transcript.text, **counts})
    else:
        print_stored_bytes(escape_controls(transcript.text).encode("utf-8", "backslashreplace"))


def _transcript(document: Mapping[str, Any], budget: int | None, *, context: bool) -> Transcript:
    from capsule.format.text.tokens import estimate
    from capsule.format.text.transcript import transcript

    rest = f"all of it: capsule show {document['id']} --around {{}} -C 0"
    return transcript(document, estimate, budget=budget, context=context, rest=rest)


def with_standing(store: CoreStore, id: str) -> dict[str, Any]:
    """Return a conversation as JSON. A summary has the state of its source as `source`."""
    document = store.document(id)
    if document["metadata"].get("isSummary") is not True:
        return document
    standing = store.summaries.standing(id)
    return document if standing is None else document | {"source": standing.as_json()}


def print_standing(store: CoreStore, id: str) -> None:
    """If the conversation is a summary, print the state of its source on stderr."""
    head = store.head(id)
    standing = store.summaries.standing(id) if head.is_summary else None
    if standing is None:
        return
    source = head.source_conversation_id
    subject = f"a summary of {source}" if source else "a summary"
    print_notice(one_line(f"{subject}; {standing}"))
