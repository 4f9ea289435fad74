"""Draw a conversation and its messages as text, for `show` and the commands that print new messages.

What must stay true: stored text cannot control the terminal that shows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from capsule.format.text.escaping import call_of, escape_controls, one_line
from capsule.timestamps import blank_if_unknown
from capsule_cli.shared import output
from capsule_cli.shared.output import in_terminal, print_text, short_time, styled

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.tree.tree import Tree

#: Place in the history, and the message with the names of the file.
Placed = tuple[int, dict[str, Any]]

#: The colours of ANSI: cyan, green, yellow, magenta.
_COLOURS = {"user": (36,), "assistant": (32,), "system": (33,), "tool": (35,)}

Form = Literal["plain", "markdown", "rendered"]


def render(
    head: Head, messages: list[Placed], tree: Tree | None, *, form: Form, all_: bool = False
) -> None:
    """Write a conversation, message by message, so that a reader who leaves ends the work."""
    from capsule_cli.shared.trees import marks_of

    branches = (
        1 if all_ or tree is None else sum(at not in tree.children for at in range(len(tree)))
    )
    title, about = one_line(head.title), _about(head, branches)
    if form == "markdown":
        print_text(f"# {title}\n\n*{about}*")
    else:
        print_text(f"{styled(title, 1)}\n{styled(about, 2)}")
    draw = {"plain": drawn, "markdown": _as_markdown, "rendered": _rendered}[form]
    marks = marks_of(tree, answers=all_) if tree is not None and tree.forks else {}
    for at, message in messages:
        print_text("\n" + draw(at, message, marks.get(at, "")))


def drawn(at: int, message: Mapping[str, Any], mark: str = "") -> str:
    """One message as text, with its mark: what stands in the file, for a person folded to the
    terminal's width.
    """
    content = _content(message)
    if in_terminal():
        content = _folded(content, max(output.width() - 2, 16))
    return f"{_heading(at, message, mark)}\n{content}".rstrip()


def _folded(text: str, room: int) -> str:
    """Set in by two columns, and folded to `room`; nothing but white space at a fold is
    left out.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        if len(line) <= room // 2 and "\t" not in line:
            lines.append(line)  # However wide its characters are.
        else:
            from rich.text import Text

            lines += [
                part.plain.rstrip()
                for part in Text(line).wrap(output.console(), room, overflow="fold")
            ]
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _rendered(at: int, message: Mapping[str, Any], mark: str) -> str:
    """One message with its Markdown drawn; HTML and what stands between angle brackets is text."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown
    from rich.padding import Padding

    content = Markdown("", hyperlinks=False)
    # Parsed here, as rich's own parser takes HTML for HTML, which it leaves out.
    parser = (
        MarkdownIt("commonmark", {"html": False})
        .enable(["strikethrough", "table"])
        .disable("autolink")
    )
    content.parsed = parser.parse(_content(message))
    screen = output.console()
    with screen.capture() as captured:
        screen.print(Padding(content, (0, 0, 0, 2)))
    return f"{_heading(at, message, mark)}\n{captured.get()}".rstrip()


def _heading(at: int, message: Mapping[str, Any], mark: str) -> str:
    speaker = styled(_speaker(message), 1, *_COLOURS.get(str(message.get("role")), ()))
    return f"{speaker}{styled(f'  {_when(message)}  @{at}', 2)}" + (
        styled(f"  {mark}", 1) if mark else ""
    )


def _as_markdown(at: int, message: Mapping[str, Any], mark: str) -> str:
    return (
        f"## {_speaker(message)}, {_when(message)}"
        + (f", {mark}" if mark else "")
        + f"\n\n{_content(message)}"
    )


def _about(head: Head, branches: int) -> str:
    facts = [head.id, f"{head.type}, {head.mode}", *(f"#{tag}" for tag in head.tags)]
    facts += [name for name, on in (("pinned", head.pinned), ("archived", head.archived)) if on]
    if head.lock:
        facts.append(
            "locked by "
            f"{head.lock.get('name') or head.lock.get('user') or head.lock.get('instanceId')}"
        )
    facts.append(f"changed {_time(head.updated_at)}")
    if branches > 1:
        facts.append(f"one of {branches} branches, all with --all or branch list")
    return one_line(" · ".join(facts))


def _speaker(message: Mapping[str, Any]) -> str:
    role, agent, about = str(message.get("role")), message.get("from"), message.get("metadata")
    hidden = ", hidden" if isinstance(about, Mapping) and about.get("hidden") is True else ""
    return one_line(f"{role} ({agent})" if agent else role) + hidden


def _when(message: Mapping[str, Any]) -> str:
    when = _time(blank_if_unknown(message.get("timestamp")) or "no time")
    if not message.get("editedAt"):
        return when
    by = message.get("editedBy")
    return f"{when}, edited by {one_line(str(by))}" if by else f"{when}, edited"


def _time(time: str) -> str:
    """A time to the second; a time that the store did not write stays as it is."""
    if in_terminal():
        return one_line(short_time(time, "seconds"))
    return one_line(f"{time[:10]} {time[11:19]}Z" if len(time) == 24 and time[10] == "T" else time)


def _content(message: Mapping[str, Any]) -> str:
    content, calls = escape_controls(str(message.get("content") or "")), message.get("toolCalls")
    if not calls:
        return content
    parts = [content]
    for call in calls if isinstance(calls, list) else ():
        name = call_of(call)[0] if isinstance(call, dict) else None
        parts.append(f"[calls {one_line(str(name or 'a tool'))}]")
    return "\n\n".join(filter(None, parts))
