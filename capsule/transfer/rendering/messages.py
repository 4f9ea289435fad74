"""Prepare messages for the templates that draw them, and draw them as HTML.

A window is a list of messages that are shown together. A result is drawn inside its call, and a
reaction below its message, if they are in the same window. Reasoning, results and hidden texts are
collapsed sections. A tool call has a line that summarizes it, and its arguments as code and diffs.
The names of tools and arguments are those of the programs whose sessions are imported. Other
arguments are drawn as JSON.

Invariants: nothing of a message is lost, and each keeps an anchor of its own, also inside another
one. Every argument of a call is part of its description, whatever tool it calls. The style of a name
depends on the name alone, and differs in shape as well as in colour. Pure.
"""

from __future__ import annotations

import re
import shlex
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple, TypeGuard

import orjson
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from capsule.format.text.escaping import call_of, one_line, truncated
from capsule.timestamps import blank_if_unknown, canonical
from capsule.transfer.records.mapping import data_url, json_of, object_of, objects_of, without
from capsule.transfer.rendering.texts import TextRenderer, difference, language_of, valid

# -- Tool calls ------------------------------------------------------------------------------------

_PATHS = (
    "file_path",
    "filePath",
    "path",
    "target_file",
    "absolute_path",
    "notebook_path",
    "filename",
)
_COMMANDS = ("command", "cmd", "script")
_OLD_TEXTS = ("old_string", "oldString", "old_str")
_NEW_TEXTS = ("new_string", "newString", "new_str", "insert_text")
_CONTENTS = ("content", "contents", "file_text", "new_source")
_PATCHES = ("patch", "diff", "patchText", "input")
#: The arguments that summarize a call, the best first.
_SUBJECTS = (
    "pattern",
    "query",
    "queries",
    "url",
    "description",
    "prompt",
    "task",
    "skill",
    "title",
    "name",
    "q",
)
#: The values of `command` of an editor of files.
_EDITOR_COMMANDS = ("view", "create", "str_replace", "insert", "undo_edit", "delete", "rename")
_PATCHED_FILE = re.compile(
    r"^(?:\*\*\* (?:Update|Add|Delete) File: |\+\+\+ (?:b/)?)(.*)", re.MULTILINE
)


def as_text(value: Any, *, option: int | None = orjson.OPT_INDENT_2) -> str:
    """Return a value as a text for a reader: a text unchanged, an empty one for None, or JSON."""
    if isinstance(value, str):
        return value
    try:
        return "" if value is None else orjson.dumps(value, option=option).decode()
    except TypeError:  # Nested too deep, or with text that is no Unicode.
        try:
            return repr(value)
        except RecursionError:
            return "(nested too deep to be shown)"


def line(value: Any, max_chars: int = 160) -> str:
    """Return the first line of a value that is not empty, cut to `max_chars` characters."""
    text = as_text(value, option=None)[: 25 * max_chars]
    return truncated(one_line(valid(text).strip().partition("\n")[0]), max_chars)


def counted(text: str, noun: str = "line") -> str:
    """Return the number of lines, or of words, of a text, in words."""
    number = len(text.split()) if noun == "word" else len(text.splitlines())
    return f"{number:,} {noun}{'s' * (number != 1)}"


def describe_call(call: Mapping[str, Any]) -> tuple[str, list[tuple[str, str]]]:
    """Return a line about a call, and its arguments as texts, each with its language.

    The language is also `diff`, or empty if it is not known.
    """
    name, raw_arguments = call_of(call)
    title = line(name, 80) or "Tool"
    arguments = json_of(raw_arguments)
    if isinstance(arguments, dict):
        description = _describe_known_tool(title, arguments)
        others = as_text(without(arguments, *description.drawn_arguments) or None)
        parts = [(description.text, description.language), (others, "json")]
        return description.summary, [part for part in parts if part[0]]
    if _is_patch(arguments):
        return title + _patch_summary(arguments), [(arguments, "diff")]
    return _titled(title, arguments), [(as_text(arguments), "")] if arguments else []


class _CallDescription(NamedTuple):
    """The description of a call.

    Attributes:
        summary: A line.
        text: A text that shows some arguments. Empty: none.
        language: The language of the text.
        drawn_arguments: The names of the arguments that the summary and the text show whole.
    """

    summary: str
    text: str = ""
    language: str = ""
    drawn_arguments: tuple[str, ...] = ()


def _describe_known_tool(name: str, arguments: dict[str, Any]) -> _CallDescription:
    """Describe a call by the first of these: a patch, edits, a command, a file, a subject."""
    patch_key = next((key for key in _PATCHES if _is_patch(arguments.get(key))), "")
    command_key = patch_key or _first(arguments, _COMMANDS)
    command = _command(arguments.get(command_key))
    if _is_patch(command):
        return _CallDescription(name + _patch_summary(command), command, "diff", (command_key,))
    path_key = _first(arguments, _PATHS)
    path = line(arguments.get(path_key))
    drawn_path = (path_key,) if path == arguments.get(path_key) else ()
    edits, edit_keys = _edits(arguments)
    if edits:
        diff = "\n".join(difference(old, new) for old, new in edits)
        summary = f"{name} {path}{_line_counts(diff)}"
        return _CallDescription(summary, diff, "diff", (*drawn_path, *edit_keys))
    if command_key and not (path and command in _EDITOR_COMMANDS):
        summary = f"{name}: {line(command)}"
        return _CallDescription(summary, as_text(command), "bash", (command_key,))
    content_key = _first(arguments, _CONTENTS) if path else ""
    if content_key:
        text = as_text(arguments[content_key])
        summary = f"{name} {path} ({counted(text)})"
        return _CallDescription(summary, text, language_of(path), (*drawn_path, content_key))
    subject_key = command_key or _first(arguments, _SUBJECTS)
    if subject_key:
        summary = _titled(name, arguments[subject_key])
        return _CallDescription(f"{summary} in {path}" if path else summary)
    if path:
        return _CallDescription(f"{name} {path}", drawn_arguments=drawn_path)
    return _CallDescription(_titled(name, arguments))


def _command(value: Any) -> Any:
    """Return a command as one text: of a list of words, the script of a shell, or a patch."""
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        return value
    if len(value) == 3 and value[0].endswith("sh") and value[1] in ("-c", "-lc"):
        return value[2]
    return value[-1] if _is_patch(value[-1]) else shlex.join(value)


def _first(arguments: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first of these names with a text or list that is not empty. Empty: none."""
    for name in names:
        if isinstance(arguments.get(name), str | list) and arguments[name]:
            return name
    return ""


def _titled(name: str, subject: Any) -> str:
    subject_line = line(subject) if subject else ""
    return f"{name}: {subject_line}" if subject_line else name


def _edits(arguments: Mapping[str, Any]) -> tuple[list[tuple[str, str]], tuple[str, ...]]:
    """Return the old and the new text of each edit of a call.

    Also returns the names of the arguments that are nothing but these texts.
    """
    edits = arguments.get("edits", [arguments])
    if not isinstance(edits, list) or not all(isinstance(edit, dict) for edit in edits):
        return [], ()
    texts = []
    names: tuple[str, str] = ("", "")
    has_texts_only = True
    for edit in reversed(edits):
        old_name = _first(edit, _OLD_TEXTS)
        new_name = next((name for name in _NEW_TEXTS if isinstance(edit.get(name), str)), "")
        if not new_name:
            return [], ()
        names = (old_name, new_name)
        texts.append((as_text(edit.get(old_name)), edit[new_name]))
        has_texts_only = has_texts_only and edit.keys() <= {*names}
    texts.reverse()
    if "edits" not in arguments:
        return texts, names
    return texts, ("edits",) if has_texts_only else ()


def _is_patch(text: Any) -> TypeGuard[str]:
    if not isinstance(text, str):
        return False
    return "*** Begin Patch" in text[:2000] or text.startswith(("diff --git ", "--- ", "@@ "))


def _patch_summary(text: str) -> str:
    """Return which files a patch changes, and how many lines, after a space."""
    files = list(dict.fromkeys(_PATCHED_FILE.findall(text)))
    summary = f" {line(files[0])}" if files else ""
    if len(files) > 1:
        summary += f" and {len(files) - 1} more"
    return summary + _line_counts(text)


def _line_counts(diff: str) -> str:
    """Return how many lines a diff adds and removes, after a space."""
    headers = ("+++ ", "--- ") if diff.startswith(("diff --git ", "--- ")) else ()
    signs = [row[0] for row in diff.split("\n") if row[:1] in ("+", "-") and row[:4] not in headers]
    return f" (+{signs.count('+')} −{signs.count('-')})"


# -- Messages --------------------------------------------------------------------------------------

Entry = Mapping[str, Any]
TEMPLATES = Path(__file__).parent / "templates"
STYLES = Path(__file__).parent / "static" / "messages.css"
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
#: The images that are shown. An SVG could have a script.
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: The codes with which a program colours its output.
_COLOUR_CODE = re.compile("\x1b\\[[0-9;]*m")
#: The numbers of colours and of shapes of names.
HUES = 12
SHAPES = 8
#: The ancestors among which the call of a result is searched.
_MAX_ANCESTORS = 64
#: The facts of a message with a field of their own.
_FACT_FIELDS = ("model", "topic", "intent", "priority")


def anchor_of(entry: Entry) -> str:
    """Return the anchor of a message: `m-` and its id, or `h-` and a digest of it.

    The digest stands for an id that can't be part of an address.
    """
    id = as_text(entry.get("id"))
    if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", id):
        return f"m-{id}"
    return "h-" + sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """Options for drawing messages.

    Attributes:
        file_url: Returns the address of a stored attachment by its SHA-256. None: only its name is
            drawn.
        message_url: Returns the address of a message by its id, for replies to it. Empty: the reply
            has no link.
        nav: Returns the end of the line above a message.
        attributes: Returns further attributes of a message's element.
        find: Words that are searched. A section with one of them is open.
        talk: Whether only prompts and answers are drawn, without reasoning, calls and results.
        lines: The number of lines of code that get colours.
    """

    file_url: Callable[[str], str] | None = None
    message_url: Callable[[str], str] = lambda id: "#" + anchor_of({"id": id})
    nav: Callable[[Entry], str | Markup] = lambda entry: ""
    attributes: Callable[[Entry], Mapping[str, str]] = lambda entry: {}
    find: Iterable[str] = ()
    talk: bool = False
    lines: int = 5_000


@dataclass(slots=True)
class CollapsedSection:
    """A section that is closed at first: a line that summarizes it, and its parts."""

    summary: str
    parts: list[Markup]
    is_open: bool
    results: list[RenderedMessage] = field(default_factory=list)


class RenderedAttachment(NamedTuple):
    """An attachment: an image, a link or a file, and a section with its text if it has one."""

    name: str
    kind: str
    url: str
    fold: CollapsedSection | None


@dataclass(slots=True)
class RenderedMessage:
    """A message in the form that the template draws.

    Attributes:
        hue: The number of the colour of its writer, from 0.
        shape: The number of the shape of its writer, from 0.
        time: ISO 8601. Empty: it is not known.
        facts: Other facts, such as model and topic, each after its kind.
        reply: The address of the message that it is a reply to.
        content: Its text.
        fold: In place of the text, a section with a result or a hidden text.
        reactions: The messages that are reactions to it.
    """

    anchor: str
    role: str
    who: str
    hue: int
    shape: int
    time: str
    facts: list[tuple[str, str]]
    reply: str
    nav: str | Markup
    attributes: Mapping[str, str]
    content: Markup | str = ""
    fold: CollapsedSection | None = None
    reasoning: CollapsedSection | None = None
    calls: list[CollapsedSection] = field(default_factory=list)
    attachments: list[RenderedAttachment] = field(default_factory=list)
    reactions: list[RenderedMessage] = field(default_factory=list)


def name_style(name: str) -> tuple[int, int]:
    """Return the numbers of the colour and of the shape of a name."""
    digest = sha256(name.encode("utf-8", "surrogatepass")).digest()
    return digest[0] % HUES, digest[1] % SHAPES


def is_talk(entry: Entry) -> bool:
    """Return whether a message is a prompt or an answer, with text for a person."""
    is_spoken = entry.get("role") in ("user", "assistant") and not entry.get("toolCallId")
    return is_spoken and bool(as_text(entry.get("content")).strip()) and not _is_hidden(entry)


def pairs(entries: Sequence[Entry]) -> dict[int, tuple[int, int]]:
    """Return for each result the call in the same window that it answers.

    Keys are the positions of the results. Values are the position of the call's message, and the
    number of the call in it. A result belongs to the nearest call among its ancestors that has its
    id and no result yet.
    """
    found_calls: dict[int, tuple[int, int]] = {}
    positions: dict[str, int] = {}
    parents: list[int] = []
    open_calls: list[dict[str, list[int]]] = []
    for position, entry in enumerate(entries):
        parent = entry.get("parent", "")
        parents.append(position - 1 if parent == "" else positions.get(as_text(parent), -1))
        positions[as_text(entry.get("id"))] = position
        open_calls.append({})
        for number, call in enumerate(objects_of(entry.get("toolCalls"))):
            open_calls[position].setdefault(as_text(call.get("id")), []).append(number)
        call_id = entry.get("toolCallId")
        if entry.get("role") != "tool" or not isinstance(call_id, str):
            continue
        ancestor = parents[position]
        for _ in range(_MAX_ANCESTORS):
            if ancestor < 0:
                break
            numbers = open_calls[ancestor].get(call_id)
            if numbers:
                found_calls[position] = (ancestor, numbers.pop())
                break
            ancestor = parents[ancestor]
    return found_calls


class _WindowRenderer:
    """Renders the messages of one window."""

    def __init__(self, options: RenderOptions) -> None:
        self._options = options
        self._texts = TextRenderer(options.lines)
        self._words = [_without_case(word) for word in options.find if word.strip()]

    def render(self, entries: Sequence[Entry]) -> list[RenderedMessage]:
        """Return the messages that are not inside another one."""
        if self._options.talk:
            entries = [
                {**entry, "toolCalls": None, "reasoning": None}
                for entry in entries
                if is_talk(entry)
            ]
        messages = [self._message(entry) for entry in entries]
        inner_positions = self._move_results(entries, messages)
        inner_positions |= self._move_reactions(entries, messages, inner_positions)
        return [
            message for position, message in enumerate(messages) if position not in inner_positions
        ]

    @staticmethod
    def _move_results(entries: Sequence[Entry], messages: list[RenderedMessage]) -> set[int]:
        """Add the results to their calls. Return the positions of these results."""
        moved = set()
        for position, (call_position, number) in pairs(entries).items():
            result = messages[position]
            if not _is_simple(result):
                continue
            section = messages[call_position].calls[number]
            section.results.append(result)
            if result.fold is not None:
                section.summary += f" · {result.fold.summary.removeprefix('Result: ')}"
            inner_sections = [result.fold, *(file.fold for file in result.attachments)]
            if any(inner.is_open for inner in inner_sections if inner):
                section.is_open = True
            moved.add(position)
        return moved

    @staticmethod
    def _move_reactions(
        entries: Sequence[Entry], messages: list[RenderedMessage], inner_positions: set[int]
    ) -> set[int]:
        """Add reactions to their messages. Return the positions of these reactions.

        A reaction stays outside if its message is inside another one, or is itself such a reaction.
        """
        positions = {as_text(entry.get("id")): position for position, entry in enumerate(entries)}
        moved: set[int] = set()
        for position, entry in enumerate(entries):
            message = messages[position]
            target = positions.get(as_text(entry.get("replyTo")), position)
            is_plain = _is_simple(message) and not (message.fold or message.attachments)
            is_reaction = entry.get("intent") == "reaction" and is_plain
            if is_reaction and target < position and target not in inner_positions | moved:
                messages[target].reactions.append(message)
                moved.add(position)
        return moved

    def _message(self, entry: Entry) -> RenderedMessage:
        options = self._options
        role = line(entry.get("role"), 20)
        sender = line(entry.get("from"), 100)
        model = line(entry.get("model"), 100)
        hue, shape = name_style(sender or model or role)
        reply = entry.get("replyTo")
        message = RenderedMessage(
            anchor=anchor_of(entry),
            role=role,
            who=sender or role.capitalize(),
            hue=hue,
            shape=shape,
            time=_time(entry.get("timestamp")),
            facts=list(_facts(entry)),
            reply=options.message_url(reply) if isinstance(reply, str) else "",
            nav=options.nav(entry),
            attributes=options.attributes(entry),
        )
        self._draw_content(message, entry, role)
        reasoning = as_text(entry.get("reasoning"))
        if reasoning:
            summary = f"Reasoning, {counted(reasoning, 'word')}"
            message.reasoning = self._section(summary, [self._texts.markdown(reasoning)], reasoning)
        for call in objects_of(entry.get("toolCalls")):
            summary, texts = describe_call(call)
            parts = [self._texts.code(text, language) for text, language in texts]
            searched_texts = [text for text, _ in texts]
            message.calls.append(self._section(summary, parts, summary, *searched_texts))
        message.attachments = [
            self._attachment(attachment) for attachment in objects_of(entry.get("attachments"))
        ]
        return message

    def _draw_content(self, message: RenderedMessage, entry: Entry, role: str) -> None:
        """Draw the text of a message. A result and a hidden text become a section."""
        content = as_text(entry.get("content"))
        if role == "tool":
            output = _COLOUR_CODE.sub("", content)
            is_error = object_of(entry.get("metadata")).get("isError") is True
            summary = f"Result: {'error, ' if is_error else ''}{counted(output)}"
            message.fold = self._section(summary, [self._texts.code(output)], output)
        elif _is_hidden(entry):
            summary = f"Hidden, {counted(content, 'word')}"
            message.fold = self._section(summary, [self._texts.markdown(content)], content)
        else:
            message.content = self._texts.markdown(content)

    def _section(self, summary: str, parts: list[Markup], *searched_texts: str) -> CollapsedSection:
        """Return a section, which is open if a searched word is in one of the texts."""
        searched = _without_case("\n".join(searched_texts)) if self._words else ""
        is_open = any(word in searched for word in self._words)
        return CollapsedSection(summary, parts, is_open)

    def _attachment(self, attachment: Entry) -> RenderedAttachment:
        names = (attachment.get(key) for key in ("name", "path", "filename"))
        name = line(next(filter(None, names), "")) or "attachment"
        text = attachment.get("text")
        section = None
        if isinstance(text, str):
            summary = f"{name}, {counted(text)}"
            section = self._section(summary, [self._texts.code(text)], name, text)
        kind, url = self._kind_and_url(attachment)
        return RenderedAttachment(name, kind, url, section)

    def _kind_and_url(self, attachment: Entry) -> tuple[str, str]:
        """Return the kind of an attachment (image, file or link), and its address if it has one."""
        type = attachment.get("type")
        data = attachment.get("data")
        digest = attachment.get("sha256")
        kind = "image" if type in IMAGES else "file"
        if isinstance(data, bytes):
            return kind, data_url(type, data) if kind == "image" else ""
        is_stored = isinstance(digest, str) and re.fullmatch("[0-9a-f]{64}", digest)
        if is_stored and self._options.file_url:
            return kind, self._options.file_url(str(digest))
        url = as_text(attachment.get("url"))
        if re.match("(?i)https?://", url):
            return "link", url
        return kind, ""


def _is_simple(message: RenderedMessage) -> bool:
    """Return whether a message has no calls and no reasoning, so that it fits into another one."""
    return not (message.calls or message.reasoning)


def _facts(entry: Entry) -> Iterable[tuple[str, str]]:
    """Return the other facts of a message, each after its kind."""
    for name in _FACT_FIELDS:
        value = line(entry.get(name), 80)
        if value:
            yield name, value
    yield from _mentions(entry.get("mentions"))
    confidence = entry.get("confidence")
    if isinstance(confidence, int | float):
        yield "confidence", f"{confidence:.0%} sure"
    time = _time(entry.get("editedAt"))
    if time:
        yield "edited", time
        editor = line(entry.get("editedBy"), 80)
        if editor:
            yield "editor", editor


def _mentions(mentions: Any) -> Iterable[tuple[str, str]]:
    """Return the mentions of a message, which is a list of ids, or an object with lists."""
    lists = mentions if isinstance(mentions, dict) else {"valid": mentions}
    kinds = object_of(lists.get("kinds"))
    for key in ("valid", "unknown"):
        ids = lists.get(key)
        for id in ids if isinstance(ids, list) else ():
            mention = f"@{line(id, 80).removeprefix('@')}"
            kind = line(kinds.get(as_text(id)), 20)
            yield "mention", f"{mention} ({kind})" if kind else mention


def _is_hidden(entry: Entry) -> bool:
    return object_of(entry.get("metadata")).get("hidden") is True


def _time(time: Any) -> str:
    """Return a time in the format of capsules. Empty: it is no time, or not known."""
    known_time = blank_if_unknown(time) if isinstance(time, str) else ""
    if not known_time:
        return ""
    try:
        return canonical(known_time)
    except ValueError:
        return ""


def _without_case(text: str) -> str:
    """Return a text as searches compare it: without accents, and in small letters."""
    if not text.isascii():
        characters = unicodedata.normalize("NFKD", text)
        text = "".join(sign for sign in characters if not unicodedata.combining(sign))
    return text.casefold()


def messages(
    entries: Sequence[Entry], options: RenderOptions | None = None
) -> list[RenderedMessage]:
    """Return the messages of a window in their order, with results inside their calls.

    Args:
        entries: The messages of the file, parents before children.
        options: Options for drawing. None: the defaults.

    Cost: about 3 microseconds for a character of Markdown, and 160 for a line of code that gets
        colours. The last texts are cached.
    """
    return _WindowRenderer(options or RenderOptions()).render(entries)


def render(entries: Sequence[Entry], options: RenderOptions | None = None) -> list[Markup]:
    """Return the messages of a window as HTML, one after the other. For arguments see `messages`."""
    draw = ENVIRONMENT.get_template("message.html").module.message  # type: ignore[attr-defined]
    return [draw(message) for message in messages(entries, options)]
