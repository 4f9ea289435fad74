"""`show`: a conversation for a person, or for a program.

What must stay true: `--last` asks the store for the end alone, and `--around` for the rest only when it must; a text
that stands in a file can't command the terminal it is shown in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from capsule_cli.opening import store_of
from capsule_cli.options import Id, asked, usage
from capsule_cli.output import (
    console,
    in_terminal,
    one_line,
    out,
    out_bytes,
    out_json_bytes,
    shown,
)

if TYPE_CHECKING:
    from rich.console import Console

    from capsule import Store
    from capsule.head import Head

commands = typer.Typer()

#: Place in the history, and the message with the names of the file.
Placed = tuple[int, Mapping[str, Any]]

#: How many messages stand about the one that is wanted, and among how many of the last it is looked for.
CONTEXT, TAIL = 3, 256

COLOURS = {"user": "bold cyan", "assistant": "bold green", "system": "bold yellow", "tool": "bold magenta"}


@commands.command("show")
def show(
    ctx: typer.Context,
    id: Id,
    last: Annotated[
        int | None, typer.Option("--last", "-n", min=1, metavar="N", help="Its last messages only.")
    ] = None,
    around: Annotated[
        str | None,
        typer.Option("--around", metavar="MESSAGE", help="This message and those about it: its id, @N or @last."),
    ] = None,
    context: Annotated[
        int, typer.Option("--context", "-C", min=0, metavar="N", help="With --around: so many before and behind.")
    ] = CONTEXT,
    raw: Annotated[bool, typer.Option("--raw", help="The file's bytes, as they are.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="As a Markdown document.")] = False,
) -> None:
    """Show a conversation. With --json: the capsule, or with --last or --around a list of messages."""
    as_json = asked(ctx).json
    if raw + markdown + as_json > 1 or (raw and last is not None):
        raise usage("--raw, --markdown and --json exclude each other, and --raw takes no --last")
    if around is not None and (raw or last is not None):
        raise usage("--around excludes --last and --raw")
    with store_of(ctx) as store:
        id = store.resolve(id)
        if around is not None:
            messages = about(store, id, around, context)
            if as_json:
                out_json_bytes(encoded([message for _, message in messages]))
            else:
                render(store.head(id), messages, markdown=markdown)
        elif raw:
            out_bytes(store.read(id))
        elif as_json and last is None:
            from capsule.format.codec import encode

            out_json_bytes(encode(store.document(id)))
        elif as_json:
            out_json_bytes(encoded([message for _, message in tail(store, id, last or 1)]))
        else:
            messages = tail(store, id, last) if last else whole(store, id)
            render(store.head(id), messages, markdown=markdown)


def tail(store: Store, id: str, n: int) -> list[Placed]:
    """The last `n` messages."""
    first, messages = store.tail_entries(id, n)
    return list(enumerate(messages, first))


def about(store: Store, id: str, wanted: str, context: int) -> list[Placed]:
    """The message that is wanted, and so many before and behind it."""
    from capsule.choosing import find_message

    # Mostly it is one of the last; a beginning of an id may be that of another one anywhere.
    first, messages = store.tail_entries(id, TAIL)
    count = first + len(messages)
    place = next((first + i for i, message in enumerate(messages) if message.get("id") == wanted), -1)
    if wanted == "@last" or (wanted.startswith("@") and wanted[1:].isdecimal() and int(wanted[1:]) < count):
        place = count - 1 if wanted == "@last" else int(wanted[1:])
    if first and max(0, place - context) < first:
        first, messages = 0, store.document(id)["history"]
    if place < 0:
        place = find_message(messages, wanted, id)
    begin = max(0, place - context)
    return list(enumerate(messages[begin - first : place + context + 1 - first], begin))


def encoded(messages: list[Mapping[str, Any]]) -> bytes:
    """A JSON array of messages, in the layout of the store's files and with their very digits."""
    from capsule.format.codec import encode_entry

    if not messages:
        return b"[]\n"
    block = b",\n".join(map(encode_entry, messages)).replace(b"\n  ", b"\n").removeprefix(b"  ")
    return b"[\n" + block + b"\n]\n"


def whole(store: Store, id: str) -> list[Placed]:
    """All messages."""
    return list(enumerate(store.document(id)["history"]))


def render(head: Head, messages: list[Placed], *, markdown: bool) -> None:
    """A conversation as text: drawn in a terminal, plain elsewhere, or as Markdown."""
    if markdown:
        out("\n\n".join(as_markdown(head, messages)))
    elif in_terminal():
        draw(head, messages)
    else:
        out("\n\n".join(as_plain(head, messages)))


def as_plain(head: Head, messages: Iterable[Placed]) -> Iterator[str]:
    """The parts of a plain text; an empty line stands between them."""
    yield f"{one_line(head.title)}\n{_about(head)}"
    for at, message in messages:
        yield plain_message(at, message)


def plain_message(at: int, message: Mapping[str, Any]) -> str:
    """One message as plain text."""
    return f"{_speaker(message)}  {_when(message)}  @{at}\n{_content(message)}".rstrip()


def as_markdown(head: Head, messages: Iterable[Placed]) -> Iterator[str]:
    """The parts of a Markdown document; an empty line stands between them."""
    yield f"# {one_line(head.title)}"
    yield f"*{_about(head)}*"
    for _, message in messages:
        yield f"## {_speaker(message)}, {_when(message)}"
        yield _content(message)


def draw(head: Head, messages: Iterable[Placed]) -> None:
    """A conversation in the terminal: roles in colours, contents as Markdown."""
    from rich.text import Text

    screen = console()
    screen.print(Text(one_line(head.title), style="bold"))
    screen.print(Text(_about(head), style="dim"))
    for at, message in messages:
        draw_message(screen, at, message)


def draw_message(screen: Console, at: int, message: Mapping[str, Any]) -> None:
    """One message in the terminal."""
    from rich.markdown import Markdown
    from rich.padding import Padding
    from rich.text import Text

    line = Text(_speaker(message), style=COLOURS.get(str(message.get("role")), "bold"))
    line.append(f"  {_when(message)}  @{at}", style="dim not bold")
    screen.print()
    screen.print(line)
    screen.print(Padding(Markdown(_content(message), hyperlinks=False), (0, 0, 0, 2)))


def _about(head: Head) -> str:
    facts = [head.id, f"{head.type}, {head.mode}", *(f"#{tag}" for tag in head.tags)]
    facts += [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    if head.lock:
        facts.append(f"locked by {head.lock.get('name') or head.lock.get('user') or head.lock.get('instanceId')}")
    facts.append(f"changed {_short(head.updated_at)}")
    return one_line(" · ".join(facts))


def _speaker(message: Mapping[str, Any]) -> str:
    role, agent = str(message.get("role")), message.get("from")
    return one_line(f"{role} ({agent})" if agent else role)


def _when(message: Mapping[str, Any]) -> str:
    when = _short(str(message.get("timestamp") or "no time"))
    return f"{when}, edited" if message.get("editedAt") else when


def _short(time: str) -> str:
    """A time to the second; in another form than the store writes, as it stands."""
    return one_line(f"{time[:10]} {time[11:19]}Z" if len(time) == 24 and time[10] == "T" else time)


def _content(message: Mapping[str, Any]) -> str:
    content = shown(str(message.get("content") or ""))
    calls = message.get("toolCalls")
    names = [_call_name(call) for call in calls] if isinstance(calls, list) else []
    return "\n\n".join(part for part in (content, *(f"[calls {name}]" for name in names)) if part)


def _call_name(call: Any) -> str:
    """The name of a called tool, in the two forms that are common."""
    inner = call.get("function") if isinstance(call, dict) else None
    name = (inner if isinstance(inner, dict) else call if isinstance(call, dict) else {}).get("name")
    return one_line(str(name or "a tool"))
