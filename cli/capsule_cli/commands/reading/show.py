"""`show`: a conversation for a person, or for a program.

What must stay true: a text that stands in a file can't command the terminal it is shown in.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from capsule.format.text.shown import call_of, one_line, shown
from capsule.timestamps import known
from capsule_cli.shared import output
from capsule_cli.shared.asked import asked
from capsule_cli.shared.opening import version
from capsule_cli.shared.options import At, Budget, Id, flag, option, refuse
from capsule_cli.shared.output import in_terminal, out, out_bytes, out_json_bytes, short_time, styled
from capsule_cli.shared.pager import paged

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.tree.tree import Tree
    from capsule.store.store import CoreStore


#: Place in the history, and the message with the names of the file.
Placed = tuple[int, dict[str, Any]]

#: The colours of ANSI: cyan, green, yellow, magenta.
_COLOURS = {"user": (36,), "assistant": (32,), "system": (33,), "tool": (35,)}

Form = Literal["plain", "markdown", "rendered"]


def show(
    id: Id,
    last: int | None = option("--last -n N", "Print only the last N messages.", min=1),
    around: str | None = option("--around MESSAGE", "Print this message and those around it: its id, @N or @last."),
    span: int = option("--span -C N", "With --around: print N messages on either side.", 3, min=0),
    raw: bool = flag("--raw", "Print the file's bytes as they are."),
    markdown: bool = flag("--markdown", "Print a Markdown document."),
    rendered: bool = flag("--rendered", "Draw the Markdown of the messages; HTML stays text."),
    all_: bool = flag("--all", "Print every branch, in the order of the file."),
    follow: bool = flag("--follow -f", "Go on with what is appended or edited, until the conversation is deleted."),
    for_model: bool = flag("--for-model", "Print plain text for a model: the newest messages, as --budget allows."),
    budget: Budget = None,
    context: bool = flag("--context", "With --for-model: print the project's context first, in a quarter of --budget."),
    at: At = None,
) -> None:
    """Print the active branch of a conversation. 2/3 beside a message: it is the second of three alternatives.

    With --json it prints the capsule, for a summary with the state of its source ("source"). With --last or --around it
    prints a list of messages.

    With --follow it begins with the last 10 messages, or as many as --last says. With --json each line is then an
    object, which has `kind`, and most have `at` (the place in the history) and `message`. The kinds: message (at the
    beginning), appended, edited, removed (`ids`), damaged (`damaged`), repaired, deleted.

    With --for-model a line that begins with === is a heading. Such a line in a message gets a > in front.
    """
    some = last is not None or around is not None
    text = (raw, markdown, rendered, for_model)
    refuse(
        sum(text) + asked.json > 1 + for_model or (raw and some),
        "give one of --raw, --markdown, --rendered, --for-model and --json; --raw excludes --last and --around",
    )
    refuse(
        all_ + raw + (last is not None) + (around is not None) > 1,
        "--all, --raw, --last and --around exclude each other",
    )
    refuse(follow and (any(text) or all_ or around or at), "it goes with --last and --json alone", "--follow")
    refuse((budget is not None or context) and not for_model, "--budget and --context are for --for-model")
    if follow:
        from capsule_cli.commands.reading.watch import follow as follows

        follows(id, 10 if last is None else last)
        return
    if for_model:
        from capsule_cli.commands.reading.summaries import print_transcript

        refuse(some or all_, "it prints as many messages as --budget allows", "--for-model")
        print_transcript(id, at, budget, context=context)
        return
    with version(id, at, tell=not (raw or asked.json)) as (store, id), paged():
        if raw:
            out_bytes(store.read(id))
        elif asked.json and not some:
            from capsule.format.json.codec import encode
            from capsule_cli.commands.reading.summaries import with_standing

            out_json_bytes(encode(with_standing(store, id) if at is None else store.document(id)))
        else:
            messages, tree = _chosen(store, id, last, around, span, all_=all_)
            if asked.json:
                out_json_bytes(encoded([message for _, message in messages]))
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


def render(head: Head, messages: list[Placed], tree: Tree | None, *, form: Form, all_: bool = False) -> None:
    """Write a conversation, message by message, so that a reader who leaves ends the work."""
    from capsule_cli.shared.trees import marks_of

    branches = 1 if all_ or tree is None else sum(at not in tree.children for at in range(len(tree)))
    title, about = one_line(head.title), _about(head, branches)
    if form == "markdown":
        out(f"# {title}\n\n*{about}*")
    else:
        out(f"{styled(title, 1)}\n{styled(about, 2)}")
    draw = {"plain": drawn, "markdown": _as_markdown, "rendered": _rendered}[form]
    marks = marks_of(tree, answers=all_) if tree is not None and tree.forks else {}
    for at, message in messages:
        out("\n" + draw(at, message, marks.get(at, "")))


def drawn(at: int, message: Mapping[str, Any], mark: str = "") -> str:
    """One message as text, with its mark: what stands in the file, for a person folded to the terminal's width."""
    content = _content(message)
    if in_terminal():
        content = _folded(content, max(output.width() - 2, 16))
    return f"{_heading(at, message, mark)}\n{content}".rstrip()


def _folded(text: str, room: int) -> str:
    """Set in by two columns, and folded to `room`; nothing but white space at a fold is left out."""
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= room // 2 and "\t" not in line:
            lines.append(line)  # However wide its characters are.
        else:
            from rich.text import Text

            lines += [part.plain.rstrip() for part in Text(line).wrap(output.console(), room, overflow="fold")]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _rendered(at: int, message: Mapping[str, Any], mark: str) -> str:
    """One message with its Markdown drawn; HTML and what stands between angle brackets is text."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown
    from rich.padding import Padding

    content = Markdown("", hyperlinks=False)
    # Parsed here, as rich's own parser takes HTML for HTML, which it leaves out.
    parser = MarkdownIt("commonmark", {"html": False}).enable(["strikethrough", "table"]).disable("autolink")
    content.parsed = parser.parse(_content(message))
    screen = output.console()
    with screen.capture() as captured:
        screen.print(Padding(content, (0, 0, 0, 2)))
    return f"{_heading(at, message, mark)}\n{captured.get()}".rstrip()


def _heading(at: int, message: Mapping[str, Any], mark: str) -> str:
    speaker = styled(_speaker(message), 1, *_COLOURS.get(str(message.get("role")), ()))
    return f"{speaker}{styled(f'  {_when(message)}  @{at}', 2)}" + (styled(f"  {mark}", 1) if mark else "")


def _as_markdown(at: int, message: Mapping[str, Any], mark: str) -> str:
    return f"## {_speaker(message)}, {_when(message)}" + (f", {mark}" if mark else "") + f"\n\n{_content(message)}"


def _about(head: Head, branches: int) -> str:
    facts = [head.id, f"{head.type}, {head.mode}", *(f"#{tag}" for tag in head.tags)]
    facts += [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    if head.lock:
        facts.append(f"locked by {head.lock.get('name') or head.lock.get('user') or head.lock.get('instanceId')}")
    facts.append(f"changed {_time(head.updated_at)}")
    if branches > 1:
        facts.append(f"one of {branches} branches, all with --all or branch list")
    return one_line(" · ".join(facts))


def _speaker(message: Mapping[str, Any]) -> str:
    role, agent, about = str(message.get("role")), message.get("from"), message.get("metadata")
    hidden = ", hidden" if isinstance(about, Mapping) and about.get("hidden") is True else ""
    return one_line(f"{role} ({agent})" if agent else role) + hidden


def _when(message: Mapping[str, Any]) -> str:
    when = _time(known(message.get("timestamp")) or "no time")
    return f"{when}, edited" if message.get("editedAt") else when


def _time(time: str) -> str:
    """A time to the second; a time that the store did not write stays as it is."""
    if in_terminal():
        return one_line(short_time(time, "seconds"))
    return one_line(f"{time[:10]} {time[11:19]}Z" if len(time) == 24 and time[10] == "T" else time)


def _content(message: Mapping[str, Any]) -> str:
    content, calls = shown(str(message.get("content") or "")), message.get("toolCalls")
    if not calls:
        return content
    parts = [content]
    for call in calls if isinstance(calls, list) else ():
        name = call_of(call)[0] if isinstance(call, dict) else None
        parts.append(f"[calls {one_line(str(name or 'a tool'))}]")
    return "\n\n".join(filter(None, parts))
