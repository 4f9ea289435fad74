"""`summarize` and `transcript`: a conversation for a model to read, and what somebody made of it.

What must stay true: a summary is never made up here; the text comes from a person, a file or a program, or there is
none. How far the conversation went is noted before that text is waited for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from capsule_cli.inputs import decoded, message_text
from capsule_cli.opening import store_of
from capsule_cli.options import Id, asked, usage
from capsule_cli.output import in_terminal, one_line, out, out_bytes, out_json, say, shown

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from capsule import Store
    from capsule.format.transcript import Transcript
    from capsule.head import Head

commands = typer.Typer()

_FROM_A_PROGRAM = "what --command wrote"

Budget = Annotated[
    int | None, typer.Option("--budget", min=1, metavar="N", help="So many tokens at most, estimated; else all.")
]


@commands.command("summarize")
def summarize(
    ctx: typer.Context,
    id: Id,
    text: Annotated[
        str | None, typer.Argument(metavar="TEXT", help="The summary; - takes it from standard input.")
    ] = None,
    file: Annotated[str | None, typer.Option("--file", "-F", metavar="FILE", help="Take the summary from it.")] = None,
    command: Annotated[
        str | None,
        typer.Option(
            "--command",
            metavar="LINE",
            help="Take the summary from a program: the shell runs this line, with the transcript on its standard "
            "input, as in --command 'llm -m MODEL -s \"Sum this up\"'.",
        ),
    ] = None,
    title: Annotated[
        str | None, typer.Option("--title", metavar="TITLE", help='Its title; else "Summary: " and the other\'s.')
    ] = None,
    up_to: Annotated[
        str | None,
        typer.Option("--up-to", metavar="MESSAGE", help="The last message it sums up: its id, @N; else the last."),
    ] = None,
    budget: Budget = None,
    context: Annotated[
        bool, typer.Option("--context", help="With --command: the project context's beginning too.")
    ] = False,
) -> None:
    """Make a conversation that sums up another one, and print its id. The text is yours, or a program's."""
    ways = sum(way is not None for way in (text, file, command))
    if not ways:
        raise usage(
            "no summary was given, and Capsule writes none itself: give --file, - for standard input, or a program "
            "that writes one, with --command"
        )
    if ways > 1:
        raise usage("give the text, --file or --command, and one of them only")
    if command is None and (budget is not None or context):
        raise usage("--budget and --context say what --command gets to read; there is none")
    if command is not None and up_to is not None:
        raise usage("--command reads up to the last message; give no --up-to", "--up-to")
    with store_of(ctx) as store:
        id = store.resolve(id)
        if command is not None:
            head = _by_program(store, id, command, title, budget, context=context)
        else:
            mark = store.mark(id, up_to)  # Before a pipe is read, whose writer may have read the conversation by now.
            head = store.summarize(id, message_text(text, file), title=title, of=mark)
    if asked(ctx).json:
        out_json(head.as_json())
        return
    if in_terminal():
        out(f"Made {one_line(head.title)!r}")
    out(head.id)


def _by_program(store: Store, id: str, command: str, title: str | None, budget: int | None, *, context: bool) -> Head:
    from capsule.standing import Mark
    from capsule_cli.programs import written_by

    if not command.strip():
        raise usage("the command line is empty", "--command")
    document = store.document(id)
    read = _transcript(document, budget, context=context)
    if read.left_out:
        say(f"the {read.left_out} oldest messages don't fit into the budget, and are left out of what it reads")
    given = shown(read.text).encode("utf-8", "backslashreplace")
    text = decoded(written_by(command, given, store.settings.message_bytes), _FROM_A_PROGRAM)
    if not text.strip():
        raise usage("it wrote nothing, and ended as if all were well; nothing was made", "--command")
    return store.summarize(id, text, title=title, of=Mark.of(document))


@commands.command("transcript")
def transcript(
    ctx: typer.Context,
    id: Id,
    budget: Budget = None,
    context: Annotated[
        bool, typer.Option("--context", help="The project context's beginning first, in a quarter of the budget.")
    ] = False,
) -> None:
    """Print the active branch as plain text for a model: the newest messages, as many as fit into the budget.

    A line that begins with === is a heading; such a line of a message has a > in front.
    """
    with store_of(ctx) as store:
        id = store.resolve(id)
        made = _transcript(store.document(id), budget, context=context)
    if asked(ctx).json:
        told = {"tokens": made.tokens, "messages": made.messages, "leftOut": made.left_out}
        out_json({"id": id, "text": made.text, **told})
    else:
        out_bytes(shown(made.text).encode("utf-8", "backslashreplace"))


def _transcript(document: Mapping[str, Any], budget: int | None, *, context: bool) -> Transcript:
    from capsule.context.tokens import estimate
    from capsule.format.transcript import transcript

    return transcript(document, estimate, budget=budget, context=context)


def with_standing(store: Store, id: str) -> dict[str, Any]:
    """A conversation for a program; beside a summary stands what became of its source, as `source`."""
    document = store.document(id)
    standing = store.standing(id) if document["metadata"].get("isSummary") is True else None
    return document | {"source": standing.as_json()} if standing is not None else document


def tell_standing(store: Store, id: str) -> None:
    """Say what became of the source, on stderr, when the conversation is a summary."""
    head = store.head(id)
    standing = store.standing(id) if head.is_summary else None
    if standing is not None:
        of = f" of {head.source_conversation_id}" if head.source_conversation_id else ""
        say(one_line(f"a summary{of}; {standing}"))
