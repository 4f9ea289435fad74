"""`show`: print a conversation for a person or a program."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from capsule_cli.commands.reading.drawing import Form, MessageAt, render
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
    selects_messages = last is not None or around is not None
    _check_options(
        forms=raw + markdown + rendered + for_model,
        raw=raw,
        all_=all_,
        for_model=for_model,
        last=last,
        around=around,
    )
    refuse_if(
        follow and any((raw, markdown, rendered, for_model, all_, around, at)),
        "it goes with --last and --json only",
        "--follow",
    )
    has_model_options = budget is not None or context
    refuse_if(has_model_options and not for_model, "--budget and --context are for --for-model")
    refuse_if(last == 0 and not follow, "--last 0 needs --follow", "--last")
    if follow:
        from capsule_cli.commands.reading.watch import follow_conversation

        follow_conversation(id, 10 if last is None else last)
    elif for_model:
        from capsule_cli.commands.reading.summaries import print_transcript

        refuse_if(
            selects_messages or all_,
            "it prints as many messages as --budget allows",
            "--for-model",
        )
        print_transcript(id, at, budget, context=context)
    else:
        form: Form = "plain"
        if markdown:
            form = "markdown"
        elif rendered:
            form = "rendered"
        announce = not (raw or global_options.json)
        with open_version(id, at, announce=announce) as (store, conversation_id), paged():
            if raw:
                print_stored_bytes(store.read(conversation_id))
            elif global_options.json and not selects_messages:
                _print_document(store, conversation_id, is_past=at is not None)
            else:
                messages, tree = _selected(store, conversation_id, last, around, span, all_=all_)
                _print_messages(
                    store, conversation_id, messages, tree, form, is_past=at is not None, all_=all_
                )


def _print_messages(
    store: CoreStore,
    id: str,
    messages: list[MessageAt],
    tree: Tree | None,
    form: Form,
    *,
    is_past: bool,
    all_: bool,
) -> None:
    """Print messages in a form, or as a JSON array. For a present summary the state of its source is
    printed on stderr.
    """
    if global_options.json:
        print_json_bytes(encoded([message for _, message in messages]))
        return
    if not is_past:
        from capsule_cli.commands.reading.summaries import print_standing

        print_standing(store, id)
    render(store.head(id), messages, tree, form=form, all_=all_)


def _check_options(
    *, forms: int, raw: bool, all_: bool, for_model: bool, last: int | None, around: str | None
) -> None:
    """Raise a usage error if options exclude each other. `forms` is the number of forms that were
    asked for.
    """
    # --json goes with --for-model, and with no other form.
    most_forms = 2 if for_model else 1
    refuse_if(
        forms + global_options.json > most_forms
        or (raw and (last is not None or around is not None)),
        "give one of --raw, --markdown, --rendered, --for-model and --json; --raw excludes --last "
        "and --around",
    )
    refuse_if(
        all_ + raw + (last is not None) + (around is not None) > 1,
        "--all, --raw, --last and --around exclude each other",
    )


def _print_document(store: CoreStore, id: str, *, is_past: bool) -> None:
    """Print a conversation as JSON. A present summary has the state of its source."""
    from capsule.format.json.codec import encode
    from capsule_cli.commands.reading.summaries import with_standing

    print_json_bytes(encode(store.document(id) if is_past else with_standing(store, id)))


def _selected(
    store: CoreStore, id: str, last: int | None, around: str | None, span: int, *, all_: bool
) -> tuple[list[MessageAt], Tree | None]:
    """Return the messages to print with their positions, and the tree if other branches may exist.

    Args:
        store: The store.
        id: The id of the conversation.
        last: The number of messages from the end. None: all.
        around: The message to print with its neighbours. None: the newest messages.
        span: How many messages to print on either side of it.
        all_: Whether to return the messages of all branches.
    """
    if all_:
        history, tree, _ = store.branches.tree(id)
        return list(enumerate(history)), tree
    if around:
        page = store.page(id, last or 2 * span + 1, around=around)
        first = max(page.at - span, 0)
        return page.entries[first : page.at + span + 1], page.tree
    page = store.page(id, last or sys.maxsize, around=around)
    return page.entries, page.tree


def encoded(messages: list[Mapping[str, Any]]) -> bytes:
    """Return a JSON array of messages in the layout of the store's files, with their numbers
    unchanged.
    """
    from capsule.format.json.codec import encode_entry

    if not messages:
        return b"[]\n"
    block = b",\n".join(map(encode_entry, messages)).replace(b"\n  ", b"\n").removeprefix(b"  ")
    return b"[\n" + block + b"\n]\n"
