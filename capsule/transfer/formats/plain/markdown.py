"""Markdown for people and pull requests, which is read back exactly if it was not written plain.

Before each message stands a comment with what a heading can't say; the text of the message is the
text of the file up to the next comment, and may be edited there. A line of a message that looks
like such a comment is escaped. Pure.
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
from capsule.transfer.records.coercion import text_of

_MARK = "<!-- capsule:"
#: A comment of ours: what it begins, and its JSON.
_COMMENT = r"(?m)^<!-- capsule:(head|message|shown)(?: (.*))? -->$"
#: The beginning of a line that looks like one, with the backslashes that escape it.
_LIKE = r"(?m)^<!-- (\\*)capsule:"
_ESCAPED = r"(?m)^<!-- \\(\\*)capsule:"


def _comment(kind: str, value: Fields) -> str:
    # Two hyphens end a comment. They stand in texts only, where JSON can spell them.
    text = orjson.dumps(value).decode().replace("--", "-\\u002d")
    return f"{_MARK}{kind} {text} -->"


def _heading(entry: Fields, is_aside: bool) -> str:
    who = str(entry.get("from") or entry["role"].capitalize())
    parts = [
        who,
        entry.get("model"),
        blank_if_unknown(entry.get("timestamp"))[:16].replace("T", " "),
    ]
    return (
        "## "
        + " · ".join(_line(part) for part in parts if part)
        + (" (another branch)" if is_aside else "")
    )


def _line(text: Any) -> str:
    return " ".join(text_of(text).split())


def _fenced(text: str) -> str:
    """A text as a block of code that it can't end."""
    ticks = max((len(run) for run in re.findall("`{3,}", text)), default=2) + 1
    return f"{'`' * ticks}\n{text}\n{'`' * ticks}"


def _shown(entry: Fields) -> list[str]:
    """What people see of a message besides its text: thoughts, calls, attachments."""
    parts = []
    if entry.get("reasoning"):
        parts.append(
            f"<details><summary>Reasoning</summary>\n\n{_fenced(entry['reasoning'])}\n\n</details>"
        )
    for call in entry.get("toolCalls") or ():
        arguments = orjson.dumps(call.get("arguments"), option=orjson.OPT_INDENT_2).decode()
        name = _line(call.get("name")).replace("`", "'")
        parts.append(
            "<details><summary>Tool "
            f"call</summary>\n\n`{name}`\n\n{_fenced(arguments)}\n\n</details>"
        )
    for attached in entry.get("attachments") or ():
        name = re.sub(r"([\\\[\]`<>])", r"\\\1", _line(attached.get("name") or "attachment"))
        path = attached.get("path")
        parts.append(
            f"[{name}]({path})"
            if isinstance(path, str) and re.fullmatch(r"[\w./-]+", path)
            else name
        )
    return [re.sub(_LIKE, r"<!-- \1\\capsule:", part) for part in parts]


def _write(draft: Draft, *, is_plain: bool = False) -> bytes:
    line = {id(entry) for entry in active_path(draft.head, draft.history)}
    pieces = [_comment("head", draft.head), f"# {_line(draft.head.get('title') or 'Untitled')}"]
    for entry in draft.history:
        about = {name: value for name, value in entry.items() if name != "content"}
        content = re.sub(_LIKE, r"<!-- \1\\capsule:", entry["content"])
        pieces += [_comment("message", about), _heading(entry, id(entry) not in line), content]
        if shown := _shown(entry):
            pieces += [f"{_MARK}shown -->", *shown]
    pieces = [
        piece for piece in pieces if not (is_plain and piece.startswith(_MARK))
    ]  # What is said is escaped.
    return ("\n\n".join(pieces) + "\n").encode()


def _read(source: Source) -> Iterator[Draft]:
    text = read_text(source)
    comments = list(re.finditer(_COMMENT, text))
    draft: Draft | None = None
    at, line = 0, 1
    for nth, comment in enumerate(comments):
        line += text.count("\n", at, comment.start())
        at = comment.start()
        kind, after = comment[1], comments[nth + 1] if nth + 1 < len(comments) else None
        end = after.start() if after else len(text)
        is_last = after is None or after[1] == "head"
        if kind == "shown":
            continue
        with reporting_damage(source.tell, "a comment of Capsule", line):
            about = orjson.loads(comment[2] or "")
            if kind == "head":
                if draft is not None:
                    yield draft
                draft = Draft(dict(about), [], line, is_own=True)
            elif draft is None:
                source.tell("a message before the head of its conversation", line)
            else:
                draft.history.append(
                    {**about, "content": _content(text[comment.end() : end], is_last=is_last)}
                )
    if draft is not None:
        yield draft


def _content(text: str, *, is_last: bool) -> str:
    """The content in what stands between two comments: behind a heading, with an empty line around
    it, or its end.
    """
    _, _, rest = text.removeprefix("\n\n").partition("\n")
    content = rest.removeprefix("\n").removesuffix("\n" if is_last else "\n\n")
    return re.sub(_ESCAPED, r"<!-- \1capsule:", content)


def _recognizes(source: Source) -> bool:
    return source.head.lstrip(b"\xef\xbb\xbf").startswith(f"{_MARK}head ".encode())


_PLAIN = partial(_write, is_plain=True)
FORMATS = [
    Format(
        "markdown",
        "Markdown",
        _recognizes,
        _read,
        _write,
        ".md",
        "lines",
        plain=_PLAIN,
        is_for_people=True,
    )
]
