"""Write Markdown for people and pull requests, and read it back.

Before each message is a comment with the fields that a heading can't have, as JSON. The text of the
message is the text of the file up to the next comment, and may be edited there. A comment `shown`
ends it: the text after that is for people only. A line of a message that looks like such a comment
is escaped with a backslash. A damaged comment is reported, and its message is lost.

Invariant: a file that was not written plain is read back exactly. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

import orjson

from capsule.timestamps import blank_if_unknown
from capsule.transfer.drafts.conversion import active_path
from capsule.transfer.interface import Draft, Fields, Format, Source, read_text, reporting_damage
from capsule.transfer.records.mapping import text_of, without

_MARK = "<!-- capsule:"
#: A comment of ours: its kind, and its JSON.
_COMMENT = r"(?m)^<!-- capsule:(head|message|shown)(?: (.*))? -->$"
#: The beginning of a line that looks like a comment, with the backslashes that escape it.
_COMMENT_LIKE = r"(?m)^<!-- (\\*)capsule:"
_ESCAPED = r"(?m)^<!-- \\(\\*)capsule:"


def _comment(kind: str, value: Fields) -> str:
    # Two hyphens end a comment. They are in texts only, where JSON can spell them.
    text = orjson.dumps(value).decode().replace("--", "-\\u002d")
    return f"{_MARK}{kind} {text} -->"


def _heading(entry: Fields, *, is_aside: bool) -> str:
    """Return the heading of a message. `is_aside`: it is not in the active branch."""
    speaker = str(entry.get("from") or entry["role"].capitalize())
    time = blank_if_unknown(entry.get("timestamp"))[:16].replace("T", " ")
    parts = [_line(part) for part in (speaker, entry.get("model"), time) if part]
    heading = "## " + " · ".join(parts)
    return f"{heading} (another branch)" if is_aside else heading


def _line(text: Any) -> str:
    """Return a value as a text on one line."""
    return " ".join(text_of(text).split())


def _fenced(text: str) -> str:
    """Return a text as a block of code that it can't end."""
    ticks = max((len(run) for run in re.findall("`{3,}", text)), default=2) + 1
    return f"{'`' * ticks}\n{text}\n{'`' * ticks}"


def _parts_for_people(entry: Fields) -> list[str]:
    """Return the reasoning, the calls and the attachments of a message, for people."""
    parts = []
    if entry.get("reasoning"):
        parts.append(_details("Reasoning", _fenced(entry["reasoning"])))
    for call in entry.get("toolCalls") or ():
        arguments = orjson.dumps(call.get("arguments"), option=orjson.OPT_INDENT_2).decode()
        name = _line(call.get("name")).replace("`", "'")
        parts.append(_details("Tool call", f"`{name}`\n\n{_fenced(arguments)}"))
    for attachment in entry.get("attachments") or ():
        name = _line(attachment.get("name") or "attachment")
        name = re.sub(r"([\\\[\]`<>])", r"\\\1", name)
        path = attachment.get("path")
        is_plain_path = isinstance(path, str) and re.fullmatch(r"[\w./-]+", path)
        parts.append(f"[{name}]({path})" if is_plain_path else name)
    return [_escaped(part) for part in parts]


def _details(summary: str, body: str) -> str:
    return f"<details><summary>{summary}</summary>\n\n{body}\n\n</details>"


def _escaped(text: str) -> str:
    """Return a text without a line that a reader takes for a comment of ours."""
    return re.sub(_COMMENT_LIKE, r"<!-- \1\\capsule:", text)


def _write(draft: Draft, *, is_plain: bool = False) -> bytes:
    """Return a draft as Markdown, without the comments if `is_plain`."""
    active_entries = {id(entry) for entry in active_path(draft.head, draft.history)}
    pieces = [_comment("head", draft.head), f"# {_line(draft.head.get('title') or 'Untitled')}"]
    for entry in draft.history:
        pieces += [
            _comment("message", without(entry, "content")),
            _heading(entry, is_aside=id(entry) not in active_entries),
            _escaped(entry["content"]),
        ]
        parts = _parts_for_people(entry)
        if parts:
            pieces += [f"{_MARK}shown -->", *parts]
    if is_plain:
        # A text that begins so is escaped.
        pieces = [piece for piece in pieces if not piece.startswith(_MARK)]
    return ("\n\n".join(pieces) + "\n").encode()


def _read(source: Source) -> Iterator[Draft]:
    text = read_text(source)
    comments = list(re.finditer(_COMMENT, text))
    draft: Draft | None = None
    offset = 0
    line = 1
    for position, comment in enumerate(comments):
        line += text.count("\n", offset, comment.start())
        offset = comment.start()
        kind = comment[1]
        next_comment = comments[position + 1] if position + 1 < len(comments) else None
        end = next_comment.start() if next_comment else len(text)
        is_last = next_comment is None or next_comment[1] == "head"
        if kind == "shown":
            continue
        with reporting_damage(source.tell, "a comment of Capsule", line):
            fields = orjson.loads(comment[2] or "")
            if kind == "head":
                if draft is not None:
                    yield draft
                draft = Draft(dict(fields), [], line, is_own=True)
            elif draft is None:
                source.tell("a message before the head of its conversation", line)
            else:
                content = _content(text[comment.end() : end], is_last=is_last)
                draft.history.append({**fields, "content": content})
    if draft is not None:
        yield draft


def _content(text: str, *, is_last: bool) -> str:
    """Return the content of a message from the text between two comments.

    Before the content is a heading, with empty lines around it. After it is an empty line, or the
    end of the file or conversation (`is_last`).
    """
    _, _, rest = text.removeprefix("\n\n").partition("\n")
    content = rest.removeprefix("\n").removesuffix("\n" if is_last else "\n\n")
    return re.sub(_ESCAPED, r"<!-- \1capsule:", content)


def _recognizes(source: Source) -> bool:
    return source.head.lstrip(b"\xef\xbb\xbf").startswith(f"{_MARK}head ".encode())


FORMATS = [
    Format(
        "markdown",
        "Markdown",
        recognizes=_recognizes,
        read=_read,
        write=_write,
        extension=".md",
        joined="lines",
        plain=partial(_write, is_plain=True),
        is_for_people=True,
    )
]
