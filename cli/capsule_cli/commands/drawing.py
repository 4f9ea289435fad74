"""Draw conversations, messages and branches as text.

A message has a heading with its speaker, time and position, and a content that is drawn as plain
text, as a Markdown document or as rendered Markdown. In the tree of branches a message with one
answer continues the line of its branch, and several answers are indented branches of their own.
Messages are named by their position in the file, as in `Tree`.

What must stay true: stored text cannot control the terminal that shows it. A line of a tree fits a
terminal, however deep the branches are, and no recursion limits the depth. Messages that answer
each other in a circle are drawn too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from capsule.format.text.escaping import call_of, escape_controls, one_line
from capsule.timestamps import blank_if_unknown
from capsule_cli.shared import output
from capsule_cli.shared.output import in_terminal, print_text, short_time, styled

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.format.tree.tree import Tree

#: Most characters before a message. A longer prefix is shortened from the left.
_MAX_PREFIX = 45

Entry = Mapping[str, Any]


def marks_of(tree: Tree, *, answers: bool = False) -> dict[int, str]:
    """Return the marks of messages by position: `2/3` for the second of three alternatives.

    Args:
        tree: The tree of the conversation.
        answers: Whether to mark also messages that do not answer the message before them.
    """
    marks = {position: f"{number}/{count}" for position, (number, count) in tree.forks.items()}
    if answers:
        for position, parent in enumerate(tree.parents):
            if parent == position - 1:
                continue
            answered = f"answers @{parent}" if parent >= 0 else "answers none"
            fork = marks.get(position)
            marks[position] = answered if fork is None else f"{fork}, {answered}"
    return marks


def as_lines(history: Sequence[Entry], tree: Tree, current: str | None) -> Iterator[str]:
    """Yield the tree as a line for each message, with a star at the messages of the active branch.

    Args:
        history: The messages.
        tree: Their tree.
        current: The id of the last message of the active branch.
    """
    active = set(tree.path(current))
    seen_positions = set[int]()
    roots = tree.children.get(-1, [])
    first_prefixes = ("", "") if len(roots) < 2 else ("+- ", "|  ")
    # Messages in a circle are below no root, so each message is tried as a root.
    for root in [*roots, *range(len(tree))]:
        if root in seen_positions:
            continue
        # Each item has a position, the prefix of its line, and the prefix of the lines below it.
        stack = [(root, *first_prefixes)]
        while stack:
            position, prefix, prefix_below = stack.pop()
            if position in seen_positions:
                continue
            seen_positions.add(position)
            star = "*" if position in active else " "
            yield _line(history[position], position, tree, prefix, star)
            children = tree.children.get(position, [])
            if len(children) == 1:
                stack.append((children[0], prefix_below, prefix_below))
                continue
            for child in reversed(children):
                rail = "|  " if child != children[-1] else "   "
                child_prefix = _shortened(prefix_below + "+- ")
                stack.append((child, child_prefix, _shortened(prefix_below + rail)))


def _shortened(prefix: str) -> str:
    """Return a prefix that is at most `_MAX_PREFIX` long if `prefix` was so before its last part."""
    if len(prefix) <= _MAX_PREFIX:
        return prefix
    removed = 6 if prefix.startswith("...") else 3
    return "..." + prefix[removed:]


def _line(message: Entry, position: int, tree: Tree, prefix: str, star: str) -> str:
    from capsule.format.text.titles import title_from

    fork = tree.forks.get(position)
    mark = f" {fork[0]}/{fork[1]}" if fork else ""
    text = one_line(title_from(str(message.get("content") or "")))
    return f"{star} {prefix}@{position} {one_line(str(message.get('role')))}{mark}: {text}".rstrip()


def as_objects(tree: Tree, history: Sequence[Entry], current: str | None) -> list[dict[str, Any]]:
    """Return the tree for a program: one object for each message, in the order of the file."""
    active = set(tree.path(current))
    objects = []
    for position, parent in enumerate(tree.parents):
        number, count = tree.forks.get(position, (1, 1))
        objects.append(
            {
                "id": tree.ids[position],
                "at": position,
                "role": history[position].get("role"),
                "parent": tree.ids[parent] if parent >= 0 else None,
                "number": number,
                "count": count,
                "active": position in active,
                "leaf": position not in tree.children,
            }
        )
    return objects


#: The position in the history, and the message with the names of the file.
MessageAt = tuple[int, dict[str, Any]]

#: The colours of ANSI: cyan, green, yellow, magenta.
_COLOURS = {"user": (36,), "assistant": (32,), "system": (33,), "tool": (35,)}

Form = Literal["plain", "markdown", "rendered"]


def render(
    head: Head, messages: list[MessageAt], tree: Tree | None, *, form: Form, all_: bool = False
) -> None:
    """Print a conversation, one message after the other. If the reader leaves, no more is drawn.

    Args:
        head: The head of the conversation.
        messages: The messages to print, with their positions.
        tree: The tree of the conversation. None: it has one branch.
        form: The form of the text.
        all_: Whether the messages are those of all branches.
    """

    branch_count = 1
    if tree is not None and not all_:
        branch_count = sum(position not in tree.children for position in range(len(tree)))
    title = one_line(head.title)
    facts = _facts(head, branch_count)
    if form == "markdown":
        print_text(f"# {title}\n\n*{facts}*")
    else:
        print_text(f"{styled(title, 1)}\n{styled(facts, 2)}")
    draw = {"plain": draw_message, "markdown": _as_markdown, "rendered": _rendered}[form]
    marks = marks_of(tree, answers=all_) if tree is not None and tree.forks else {}
    for position, message in messages:
        print_text("\n" + draw(position, message, marks.get(position, "")))


def draw_message(position: int, message: Mapping[str, Any], mark: str = "") -> str:
    """Return one message as plain text. For a person it is folded to the width of the terminal.

    Args:
        position: The position in the history.
        message: The message, with the names of the file.
        mark: A text for the heading, such as `2/3` for an alternative.
    """
    content = _content(message)
    if in_terminal():
        content = _folded(content, max(output.width() - 2, 16))
    return f"{_heading(position, message, mark)}\n{content}".rstrip()


def _folded(text: str, width: int) -> str:
    """Return a text that is indented by two columns and folded to a width. Only white space at a
    fold is left out.
    """
    lines: list[str] = []
    for line in text.split("\n"):
        # A character is at most two columns wide.
        if len(line) <= width // 2 and "\t" not in line:
            lines.append(line)
            continue
        from rich.text import Text

        for part in Text(line).wrap(output.console(), width, overflow="fold"):
            lines.append(part.plain.rstrip())
    return "\n".join(f"  {line}".rstrip() for line in lines)


def _rendered(position: int, message: Mapping[str, Any], mark: str) -> str:
    """Return one message with rendered Markdown. HTML and text in angle brackets stay text."""
    from markdown_it import MarkdownIt
    from rich.markdown import Markdown
    from rich.padding import Padding

    content = Markdown("", hyperlinks=False)
    # rich's own parser would leave out everything that looks like HTML.
    parser = (
        MarkdownIt("commonmark", {"html": False})
        .enable(["strikethrough", "table"])
        .disable("autolink")
    )
    content.parsed = parser.parse(_content(message))
    screen = output.console()
    with screen.capture() as captured:
        screen.print(Padding(content, (0, 0, 0, 2)))
    return f"{_heading(position, message, mark)}\n{captured.get()}".rstrip()


def _heading(position: int, message: Mapping[str, Any], mark: str) -> str:
    speaker = styled(_speaker(message), 1, *_COLOURS.get(str(message.get("role")), ()))
    heading = f"{speaker}{styled(f'  {_time_and_editor(message)}  @{position}', 2)}"
    if mark:
        heading += styled(f"  {mark}", 1)
    return heading


def _as_markdown(position: int, message: Mapping[str, Any], mark: str) -> str:
    heading = f"## {_speaker(message)}, {_time_and_editor(message)}"
    if mark:
        heading += f", {mark}"
    return f"{heading}\n\n{_content(message)}"


def _facts(head: Head, branch_count: int) -> str:
    """Return the line below the title: id, type, tags, flags, lock, time and branches."""
    facts = [head.id, f"{head.type}, {head.mode}", *(f"#{tag}" for tag in head.tags)]
    if head.pinned:
        facts.append("pinned")
    if head.archived:
        facts.append("archived")
    if head.lock:
        holder = head.lock.get("name") or head.lock.get("user") or head.lock.get("instanceId")
        facts.append(f"locked by {holder}")
    facts.append(f"changed {_time(head.updated_at)}")
    if branch_count > 1:
        facts.append(f"one of {branch_count} branches, all with --all or branch list")
    return one_line(" · ".join(facts))


def _speaker(message: Mapping[str, Any]) -> str:
    """Return the role of a message, and the agent that wrote it."""
    role = str(message.get("role"))
    agent = message.get("from")
    speaker = one_line(f"{role} ({agent})" if agent else role)
    metadata = message.get("metadata")
    if isinstance(metadata, Mapping) and metadata.get("hidden") is True:
        speaker += ", hidden"
    return speaker


def _time_and_editor(message: Mapping[str, Any]) -> str:
    time = _time(blank_if_unknown(message.get("timestamp")) or "no time")
    if not message.get("editedAt"):
        return time
    editor = message.get("editedBy")
    return f"{time}, edited by {one_line(str(editor))}" if editor else f"{time}, edited"


def _time(time: str) -> str:
    """Return a time to the second. A time that the store did not write is unchanged."""
    if in_terminal():
        return one_line(short_time(time, "seconds"))
    if len(time) == 24 and time[10] == "T":
        return one_line(f"{time[:10]} {time[11:19]}Z")
    return one_line(time)


def _content(message: Mapping[str, Any]) -> str:
    """Return the text of a message, with a line for each tool call."""
    content = escape_controls(str(message.get("content") or ""))
    calls = message.get("toolCalls")
    if not calls:
        return content
    parts = [content]
    for call in calls if isinstance(calls, list) else ():
        name = call_of(call)[0] if isinstance(call, dict) else None
        parts.append(f"[calls {one_line(str(name or 'a tool'))}]")
    return "\n\n".join(filter(None, parts))
