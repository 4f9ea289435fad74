"""`show`, `summarize` and `watch`: print a conversation, keep a summary of it, and follow changes as
they happen.

What must stay true:
- Capsule writes no summary itself. The text comes from a person, a file or a program. A summary
  records the last message of the conversation at the time before its text was awaited.
- `watch` and `show --follow` write a line as soon as its change is known, and the next change is
  read only after that. Both end at once at a signal, whatever they wait for. Stored text can't
  command the terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidDocument, InvalidInput, NotFound, Refused, StorageFailed
from capsule.format.text.escaping import escape_controls
from capsule_cli.commands.drawing import Form, MessageAt, render
from capsule_cli.exits import SignalGuard, end_at_once
from capsule_cli.shared.inputs import decode_text, message_text
from capsule_cli.shared.options import (
    At,
    Budget,
    File,
    Id,
    argument,
    complete_id,
    flag,
    option,
    refuse_if,
)
from capsule_cli.shared.output import (
    CommandStopped,
    exit_reason,
    global_options,
    in_terminal,
    one_line,
    print_answer,
    print_json,
    print_json_bytes,
    print_notice,
    print_rows,
    print_stored_bytes,
    print_text,
    short_time,
    with_count,
)
from capsule_cli.shared.programs import paged, run_command_for
from capsule_cli.shared.stores import open_conversation, open_core_store, open_version

if TYPE_CHECKING:
    from capsule.engines.changes import Change
    from capsule.format.documents.head import Head
    from capsule.format.text.transcript import Transcript
    from capsule.format.tree.tree import Tree
    from capsule.store.store import CoreStore


# -- show ------------------------------------------------------------------------------------------


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
        follow_conversation(id, 10 if last is None else last)
    elif for_model:
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


# -- summarize -------------------------------------------------------------------------------------

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
    import subprocess
    import tempfile

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


# -- watch -----------------------------------------------------------------------------------------


def watch(
    ids: list[str] | None = argument(
        "ID",
        "Watch only these conversations. Without any: all of them.",
        autocompletion=complete_id,
    ),
    after: str | None = option(
        "--after CURSOR",
        "Begin with the changes after this cursor, from a change or from --print-cursor.",
    ),
    print_cursor: bool = flag("--print-cursor", "Print the current cursor and exit."),
    exec_: str | None = option(
        "--exec CMD",
        "Run this in a shell for each change, one after the other. The command finds the change "
        "as JSON in "
        "CAPSULE_CHANGE and on its standard input, and CAPSULE_ID, CAPSULE_KIND and CAPSULE_STORE.",
    ),
    events: bool = flag(
        "--events", "Print the events after the cursor, then the cursor to continue from, and end."
    ),
    kinds: str = option(
        "--kinds LIST",
        "With --events: print only these, with commas between: messages, channels, groups, "
        "directs, conversations",
        "",
    ),
    follow: bool = flag("--follow -f", "With --events: continue with new events until Ctrl-C."),
) -> None:
    """Report the changes of all programs as they happen, a line each, until Ctrl-C (exit code 130)
    or SIGTERM (143).

    A line has the time, the kind, the conversation and the details; with --json it is a JSON
    object. Kinds: created, appended, edited, head, locked, unlocked, deleted, restored, damaged,
    repaired.

    With --events and --as it reports only conversations that the agent may read. With --json a line
    is a JSON object with `kind`, `id`, `topics`, `cursor` and more; the last line has only the
    cursor. With -f each event has its own.
    """
    refuse_if(
        print_cursor and (after or exec_ or events),
        "it prints a cursor and ends; give it alone",
        "--print-cursor",
    )
    refuse_if(
        events and (ids or exec_),
        "events are of the whole store: give neither ids nor --exec",
        "--events",
    )
    refuse_if(
        (kinds or follow) and not events,
        "--kinds and --follow are for --events; watch always continues",
    )
    if events:
        _print_events(after, kinds, follow=follow)
        return
    end_at_once()
    with open_core_store() as store:
        if print_cursor:
            cursor = store.changes().cursor
            print_answer({"cursor": cursor}, cursor, line=True)
            return
        watched_ids = [store.resolve(id) for id in ids] if ids else None
        for change in endless_changes(store, after, watched_ids):
            _print_change(change, change.as_json())
            if exec_ is not None:
                _run_for_change(store, change, exec_)


def _run_for_change(store: CoreStore, change: Change, command: str) -> None:
    """Run the command of `--exec` for a change."""
    variables = {
        "CAPSULE_ID": change.id,
        "CAPSULE_KIND": change.kind,
        "CAPSULE_STORE": store.root,
    }
    # In place of the long lists, if the JSON is too long for a variable.
    empty_lists: dict[str, Any] = {"messages": [], "removed": []}
    run_command_for(change.as_json(), command, "CAPSULE_CHANGE", short=empty_lists, **variables)


def _print_events(after: str | None, topic_names: str, *, follow: bool) -> None:
    """Print the events after a cursor, and the cursor after them. With `follow`, go on for ever.

    Args:
        after: The cursor. None: now.
        topic_names: The topics of the events to print, with commas between them. Empty: all.
        follow: Whether to wait for new events.
    """
    from capsule.watch.events import check_topics, event_json, topics_of

    topics = check_topics(filter(None, topic_names.split(",")))
    if follow:
        end_at_once()
    with open_core_store() as store:
        batch = store.changes(after)
        while batch.changes or follow:
            for change in batch.changes:
                if topics.intersection(topics_of(change)):
                    _print_change(change, event_json(change))
            if follow:
                batch = store.wait_for_changes(batch.cursor)
            else:
                batch = store.changes(batch.cursor)
        print_answer({"cursor": batch.cursor}, batch.cursor, line=True)


def endless_changes(store: CoreStore, after: str | None, ids: list[str] | None) -> Iterator[Change]:
    """Yield the changes after a cursor as they happen.

    Args:
        store: The store.
        after: The cursor. None: from now on.
        ids: The conversations to watch. None: all.
    """
    cursor = after
    while True:
        batch = store.wait_for_changes(cursor, ids=ids)
        yield from batch.changes
        cursor = batch.cursor


def _print_change(change: Change, value: dict[str, Any]) -> None:
    """Print a change in a line. `value` is the line with --json."""
    if global_options.json:
        print_json(value, line=True)
    elif in_terminal():
        time = short_time(change.at, "seconds")
        text = f"{time}  {change.kind:<8}  {change.id}  {_details(change)}"
        print_text(one_line(text.rstrip()))
    else:
        print_rows([(change.at, change.kind, change.id, _details(change))])


def _details(change: Change) -> str:
    """Return the details of a change in words."""
    from capsule.rules.locking import describe

    details = []
    if change.kind in ("created", "appended", "restored"):
        # `count` is the number in the whole conversation. A new one without ids has only that.
        details.append(with_count(len(change.messages) or change.count, "message"))
    elif change.kind == "edited":
        if change.messages:
            details.append(f"{with_count(len(change.messages), 'message')} changed")
        if change.removed:
            details.append(f"{with_count(len(change.removed), 'message')} taken out")
    elif change.kind == "head":
        details.append(", ".join(change.fields))
    elif change.lock is not None:
        preposition = "by" if change.kind == "locked" else "was"
        details.append(f"{preposition} {describe(change.lock)}")
    elif change.damaged:
        details.append(change.damaged)
    if change.source == "outside" and change.kind not in ("damaged", "deleted"):
        details.append("by hand")
    return ", ".join(details)


def follow_conversation(id: str, last: int) -> None:
    """Print the last messages of a conversation, and then its changes until it is deleted.

    Args:
        id: The conversation, as the user named it.
        last: The number of messages to begin with.
    """
    end_at_once()
    with open_conversation(id) as (store, conversation_id):
        # The cursor is taken first, so that no message is missed. A message that is written in the
        # meantime is mostly among the last messages. Then `_follow` does not print it again.
        cursor = store.changes().cursor
        printer = _MessagePrinter()
        first, entries = store.tail_entries(conversation_id, last)
        for position, entry in enumerate(entries, first):
            printer.print("message", position, entry)
        _follow(store, conversation_id, cursor, printer)


def _follow(store: CoreStore, id: str, after: str, printer: _MessagePrinter) -> None:
    """Print the changes of a conversation after a cursor, until it is deleted.

    Messages that can't be read now, because the file is damaged, are printed after a later change.
    """
    # The messages to print: the kind of change by id. A message that was not printed yet remains
    # "appended" when it is edited.
    pending: dict[str, str] = {}
    for change in endless_changes(store, after, [id]):
        if change.kind == "deleted":
            _print_note(id, "deleted", "was deleted")
            return
        if change.kind == "damaged":
            text = f"can't be read until it is repaired:\n{change.damaged}"
            _print_note(id, "damaged", text, damaged=change.damaged)
        elif change.kind == "repaired":
            _print_note(id, "repaired", "is repaired")
        if change.removed:
            count = with_count(len(change.removed), "message")
            _print_note(id, "removed", f"has lost {count}", ids=list(change.removed))
        if change.kind == "edited":
            pending = dict.fromkeys(change.messages, "edited") | pending
        else:
            new_ids = [message for message in change.messages if message not in printer.ids]
            pending |= dict.fromkeys(new_ids, "appended")
        try:
            for position, entry in _entries(store, id, pending):
                printer.print(pending[str(entry.get("id"))], position, entry)
            pending.clear()
        except (InvalidDocument, NotFound, Refused, StorageFailed):
            pass  # They remain pending until the next change.


def _entries(store: CoreStore, id: str, ids: Collection[str]) -> list[tuple[int, dict[str, Any]]]:
    """Return the existing messages of these ids, with their positions.

    Cost: reads the file from the first of them to the end, or all of it if one does not exist.
    """
    limit = len(ids) + 16
    while ids:
        first, entries = store.tail_entries(id, limit)
        matches = [
            (position, entry)
            for position, entry in enumerate(entries, first)
            if str(entry.get("id")) in ids
        ]
        if first == 0 or len(matches) >= len(ids):
            return matches
        limit *= 8
    return []


class _MessagePrinter:
    """Prints messages with an empty line between two.

    Attributes:
        ids: The ids of the messages that were printed.
    """

    def __init__(self) -> None:
        self.ids: set[str] = set()

    def print(self, kind: str, position: int, entry: dict[str, Any]) -> None:
        """Print a message. `kind` is message, appended or edited."""
        from capsule_cli.commands.drawing import draw_message

        if global_options.json:
            print_json({"kind": kind, "at": position, "message": entry}, line=True)
        else:
            default = {"editedAt": True} if kind == "edited" else {}
            separator = "\n" if self.ids else ""
            print_text(separator + draw_message(position, default | entry))
        self.ids.add(str(entry.get("id")))


def _print_note(id: str, kind: str, text: str, **fields: Any) -> None:
    """Print a change that has no message. `text` is for a person, `fields` are for --json."""
    if global_options.json:
        print_json({"kind": kind, **fields}, line=True)
    else:
        print_notice(f"conversation {id} {text}")
