"""`show`: print a conversation for a person or a program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsule_cli.commands.reading.drawing import Form, Placed, render
from capsule_cli.shared.global_options import global_options
from capsule_cli.shared.options import At, Budget, Id, flag, option, refuse_if
from capsule_cli.shared.output import print_json_bytes, print_stored_bytes
from capsule_cli.shared.pager import paged
from capsule_cli.shared.stores import open_version

if TYPE_CHECKING:
    from capsule.format.tree.tree import Tree
    from capsule.store.store import CoreStore


def show(
    id: Id,
    last: int | None = option("--last -n N", "Print only the last N messages.", min=0),
    around: str | None = option(
        "--around MESSAGE", "Print this message and those around it: its id, @N or @last."
    ),
    span: int = option("--span -C N", "With --around: print N messages on either side.", 3, min=0),
    raw: bool = flag("--raw", "Print the file's bytes as they are."),
    markdown: bool = flag("--markdown", "Print a Markdown document."),
    rendered: bool = flag("--rendered", "Draw the Markdown of the messages; HTML stays text."),
    all_: bool = flag("--all", "Print every branch, in the order of the file."),
    follow: bool = flag(
        "--follow -f",
        "Continue with appended and edited messages, until the conversation is deleted.",
    ),
    for_model: bool = flag(
        "--for-model", "Print plain text for a model: the newest messages, as --budget allows."
    ),
    budget: Budget = None,
    context: bool = flag(
        "--context",
        "With --for-model: print the project's context first, in a quarter of --budget.",
    ),
    at: At = None,
) -> None:
    """Print the active branch of a conversation. 2/3 beside a message means that it is the second
    of three alternatives.

    With --json it prints the capsule, for a summary with the state of its source ("source"). With
    --last or --around it prints a list of messages.

    With --follow it begins with the last 10 messages, or the number given by --last. With --json
    each line is then an object, which has `kind`, and most have `at` (the place in the history) and
    `message`. The kinds: message (at the beginning), appended, edited, removed (`ids`), damaged
    (`damaged`), repaired, deleted.

    With --for-model a line that begins with === is a heading. Such a line in a message gets a > in
    front.
    """
    some = last is not None or around is not None
    text = (raw, markdown, rendered, for_model)
    refuse_if(
        sum(text) + global_options.json > 1 + for_model or (raw and some),
        "give one of --raw, --markdown, --rendered, --for-model and --json; --raw excludes --last "
        "and --around",
    )
    refuse_if(
        all_ + raw + (last is not None) + (around is not None) > 1,
        "--all, --raw, --last and --around exclude each other",
    )
    refuse_if(
        follow and (any(text) or all_ or around or at),
        "it goes with --last and --json alone",
        "--follow",
    )
    refuse_if(
        (budget is not None or context) and not for_model,
        "--budget and --context are for --for-model",
    )
    refuse_if(last == 0 and not follow, "0 messages to begin with are for --follow", "--last")
    if follow:
        from capsule_cli.commands.reading.watch import follow as follows

        follows(id, 10 if last is None else last)
        return
    if for_model:
        from capsule_cli.commands.reading.summaries import print_transcript

        refuse_if(some or all_, "it prints as many messages as --budget allows", "--for-model")
        print_transcript(id, at, budget, context=context)
        return
    with open_version(id, at, tell=not (raw or global_options.json)) as (store, id), paged():
        if raw:
            print_stored_bytes(store.read(id))
        elif global_options.json and not some:
            from capsule.format.json.codec import encode
            from capsule_cli.commands.reading.summaries import with_standing

            print_json_bytes(encode(with_standing(store, id) if at is None else store.document(id)))
        else:
            messages, tree = _chosen(store, id, last, around, span, all_=all_)
            if global_options.json:
                print_json_bytes(encoded([message for _, message in messages]))
                return
            if at is None:
                from capsule_cli.commands.reading.summaries import tell_standing

                tell_standing(store, id)
            form: Form = "markdown" if markdown else "rendered" if rendered else "plain"
            render(store.head(id), messages, tree, form=form, all_=all_)


def _chosen(
    source: CoreStore, id: str, last: int | None, around: str | None, span: int, *, all_: bool
) -> tuple[list[Placed], Tree | None]:
    """The messages that were asked for, and the tree, where other branches may be."""
    if all_:
        history, tree, _ = source.branches.tree(id)
        return list(enumerate(history)), tree
    page = source.page(id, last or (2 * span + 1 if around else sys.maxsize), around=around)
    near = slice(max(page.at - span, 0), page.at + span + 1) if around else slice(None)
    return page.entries[near], page.tree


def encoded(messages: list[Mapping[str, Any]]) -> bytes:
    """A JSON array of messages, in the layout of the store's files and with their very digits."""
    from capsule.format.json.codec import encode_entry

    if not messages:
        return b"[]\n"
    block = b",\n".join(map(encode_entry, messages)).replace(b"\n  ", b"\n").removeprefix(b"  ")
    return b"[\n" + block + b"\n]\n"
