"""Messages as they are shown: who says what, what it calls, what came back, and what others
answered with a sign.

What must stay true: nothing of a message is lost, and each keeps an anchor of its own, also where
it stands inside another one: a result under its call, a reaction under what it is about. What a
name looks like is made of the name alone, and differs in shape as well as in colour. Pure.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from capsule.timestamps import blank_if_unknown, canonical
from capsule.transfer.records.coercion import data_url, object_of, objects_of
from capsule.transfer.rendering.calls import as_text, counted, describe_call, line
from capsule.transfer.rendering.texts import TextRenderer

Entry = Mapping[str, Any]
#: Where the templates are, and the styles of what they draw.
TEMPLATES, STYLES = (
    Path(__file__).parent / "templates",
    Path(__file__).parent / "static" / "messages.css",
)
ENVIRONMENT = Environment(
    loader=FileSystemLoader(TEMPLATES),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
#: The images that are shown; an SVG could hold a script.
IMAGES = ("image/png", "image/jpeg", "image/gif", "image/webp")
#: What a program writes to give its output colours.
_COLOUR = re.compile("\x1b\\[[0-9;]*m")
HUES, SHAPES = 12, 8
_MOST_ABOVE = 64


def anchor_of(entry: Entry) -> str:
    """The anchor of a message: `m-` and its id, or `h-` and a digest of an id that could be no part
    of an address.
    """
    id = as_text(entry.get("id"))
    if re.fullmatch(r"[A-Za-z0-9._-]{1,100}", id):
        return f"m-{id}"
    return "h-" + sha256(id.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True, kw_only=True)
class RenderOptions:
    """How messages are drawn.

    Attributes:
        file_url: The address of a stored attachment by its SHA-256; None: it is only named.
        message_url: The address of a message that another one is a reply to, by its id; empty: it
            is left out.
        nav: What stands at the end of the line above a message.
        attributes: Further attributes of a message's element.
        find: Words that are searched; what is folded and has one of them is open.
        talk: Whether only prompts and answers are drawn, without reasoning, calls and results.
        lines: How many lines of code get colours.
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
    """What is folded: a line that says what it is, and its parts."""

    summary: str
    parts: list[Markup]
    is_open: bool
    results: list[RenderedMessage] = field(default_factory=list)


class RenderedAttachment(NamedTuple):
    """An attachment: an image, a link or a file to load, and the text that it holds."""

    name: str
    kind: str
    url: str
    fold: CollapsedSection | None


@dataclass(slots=True)
class RenderedMessage:
    """A message as the template draws it.

    Attributes:
        hue: The number of its writer's colour, from 0; `shape` that of the shape.
        time: ISO 8601; empty: it is not known.
        facts: What else is said of it, such as its model and topic, each with what kind of fact it
            is.
        reply: The address of the message that it is a reply to.
        content: Its text; `fold` instead, of what a program wrote into the conversation.
        reactions: The messages that are signs about it.
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
    """The numbers of the colour and of the shape of a name."""
    digest = sha256(name.encode("utf-8", "surrogatepass")).digest()
    return digest[0] % HUES, digest[1] % SHAPES


def is_talk(entry: Entry) -> bool:
    """Whether a message is a prompt or an answer, with text for a person."""
    is_spoken = entry.get("role") in ("user", "assistant") and not entry.get("toolCallId")
    return is_spoken and bool(as_text(entry.get("content")).strip()) and not _is_hidden(entry)


def pairs(entries: Sequence[Entry]) -> dict[int, tuple[int, int]]:
    """The results that answer a call of the same window: by the place of each, that of the call's
    message, and which.

    A result belongs to the last call before it that has its id and no result yet, on the way up
    from it.
    """
    found: dict[int, tuple[int, int]] = {}
    places: dict[str, int] = {}
    above, open_calls = list[int](), list[dict[str, list[int]]]()
    for place, entry in enumerate(entries):
        parent = entry.get("parent", "")
        above.append(place - 1 if parent == "" else places.get(as_text(parent), -1))
        places[as_text(entry.get("id"))] = place
        open_calls.append({})
        for nth, call in enumerate(objects_of(entry.get("toolCalls"))):
            open_calls[place].setdefault(as_text(call.get("id")), []).append(nth)
        id, at, steps = entry.get("toolCallId"), place, 0
        while (
            entry.get("role") == "tool"
            and isinstance(id, str)
            and (at := above[at]) >= 0
            and steps < _MOST_ABOVE
        ):
            if waiting := open_calls[at].get(id):
                found[place] = at, waiting.pop()
                break
            steps += 1
    return found


class _WindowRenderer:
    """The messages of one window."""

    def __init__(self, drawing: RenderOptions) -> None:
        self._drawing, self._texts = drawing, TextRenderer(drawing.lines)
        self._words = [_folded(word) for word in drawing.find if word.strip()]

    def shown(self, entries: Sequence[Entry]) -> list[RenderedMessage]:
        if self._drawing.talk:
            entries = [
                {**entry, "toolCalls": None, "reasoning": None}
                for entry in entries
                if is_talk(entry)
            ]
        made = [self._message(entry) for entry in entries]
        small = [not (message.calls or message.reasoning) for message in made]
        inside = {place: call for place, call in pairs(entries).items() if small[place]}
        for place, (above, nth) in inside.items():
            fold, result = made[above].calls[nth], made[place]
            fold.results.append(result)
            if result.fold is not None:
                fold.summary += f" · {result.fold.summary.removeprefix('Result: ')}"
            fold.is_open |= any(
                part.is_open
                for part in [result.fold, *(file.fold for file in result.attachments)]
                if part
            )
        places = {as_text(entry.get("id")): place for place, entry in enumerate(entries)}
        for place, entry in enumerate(entries):
            above = places.get(as_text(entry.get("replyTo")), place)
            is_sign = entry.get("intent") == "reaction" and not (
                made[place].fold or made[place].attachments
            )
            if is_sign and small[place] and above < place and above not in inside:
                made[above].reactions.append(made[place])
                inside[place] = above, 0
        return [message for place, message in enumerate(made) if place not in inside]

    def _message(self, entry: Entry) -> RenderedMessage:
        drawing, role = self._drawing, line(entry.get("role"), 20)
        sender, model = line(entry.get("from"), 100), line(entry.get("model"), 100)
        content, about = as_text(entry.get("content")), object_of(entry.get("metadata"))
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
            reply=drawing.message_url(reply) if isinstance(reply, str) else "",
            nav=drawing.nav(entry),
            attributes=drawing.attributes(entry),
        )
        if role == "tool":
            output = _COLOUR.sub("", content)
            failed = "error, " if about.get("isError") is True else ""
            message.fold = self._fold(
                f"Result: {failed}{counted(output)}", [self._texts.code(output)], output
            )
        elif _is_hidden(entry):
            message.fold = self._fold(
                f"Hidden, {counted(content, 'word')}", [self._texts.markdown(content)], content
            )
        else:
            message.content = self._texts.markdown(content)
        if reasoning := as_text(entry.get("reasoning")):
            parts = [self._texts.markdown(reasoning)]
            message.reasoning = self._fold(
                f"Reasoning, {counted(reasoning, 'word')}", parts, reasoning
            )
        for call in objects_of(entry.get("toolCalls")):
            said, texts = describe_call(call)
            parts = [self._texts.code(text, language) for text, language in texts]
            message.calls.append(self._fold(said, parts, said, *(text for text, _ in texts)))
        message.attachments = [
            self._attached(attached) for attached in objects_of(entry.get("attachments"))
        ]
        return message

    def _fold(self, summary: str, parts: list[Markup], *texts: str) -> CollapsedSection:
        searched = _folded("\n".join(texts)) if self._words else ""
        return CollapsedSection(summary, parts, any(word in searched for word in self._words))

    def _attached(self, attached: Entry) -> RenderedAttachment:
        named = next(
            (attached[key] for key in ("name", "path", "filename") if attached.get(key)), ""
        )
        name = line(named) or "attachment"
        type, data, digest, text = (attached.get(key) for key in ("type", "data", "sha256", "text"))
        fold = None
        if isinstance(text, str):
            fold = self._fold(f"{name}, {counted(text)}", [self._texts.code(text)], name, text)
        kind, url = "image" if type in IMAGES else "file", ""
        if isinstance(data, bytes):
            url = data_url(type, data) if kind == "image" else ""
        elif (
            isinstance(digest, str)
            and re.fullmatch("[0-9a-f]{64}", digest)
            and self._drawing.file_url
        ):
            url = self._drawing.file_url(digest)
        elif re.match("(?i)https?://", elsewhere := as_text(attached.get("url"))):
            kind, url = "link", elsewhere
        return RenderedAttachment(name, kind, url, fold)


def _facts(entry: Entry) -> Iterable[tuple[str, str]]:
    for name in ("model", "topic", "intent", "priority"):
        if said := line(entry.get(name), 80):
            yield name, said
    mentions = entry.get("mentions")
    named = mentions if isinstance(mentions, dict) else {"valid": mentions}
    for id in (
        id for key in ("valid", "unknown") if isinstance(ids := named.get(key), list) for id in ids
    ):
        kind = line(object_of(named.get("kinds")).get(as_text(id)), 20)
        yield "mention", f"@{line(id, 80).removeprefix('@')}" + (f" ({kind})" if kind else "")
    if isinstance(sure := entry.get("confidence"), int | float):
        yield "confidence", f"{sure:.0%} sure"
    if time := _time(entry.get("editedAt")):
        yield "edited", time
        if by := line(entry.get("editedBy"), 80):
            yield "editor", by


def _is_hidden(entry: Entry) -> bool:
    return object_of(entry.get("metadata")).get("hidden") is True


def _time(time: Any) -> str:
    try:
        return (
            canonical(blank_if_unknown(time))
            if isinstance(time, str) and blank_if_unknown(time)
            else ""
        )
    except ValueError:
        return ""


def _folded(text: str) -> str:
    """A text as searches compare it: without accents, and in small letters."""
    if not text.isascii():
        text = "".join(
            sign for sign in unicodedata.normalize("NFKD", text) if not unicodedata.combining(sign)
        )
    return text.casefold()


def messages(
    entries: Sequence[Entry], drawing: RenderOptions | None = None
) -> list[RenderedMessage]:
    """The messages of a window, as they follow each other, with results under their calls.

    Args:
        entries: The messages of the file, parents before children.
        drawing: How they are drawn.

    Cost: about 3 microseconds a character of Markdown, and 160 a line of code that gets colours;
    what was drawn lately is remembered.
    """
    return _WindowRenderer(drawing or RenderOptions()).shown(entries)


def render(entries: Sequence[Entry], drawing: RenderOptions | None = None) -> list[Markup]:
    """The messages of a window as HTML, one after the other. As `messages`."""
    draw = ENVIRONMENT.get_template("message.html").module.message  # type: ignore[attr-defined]
    return [draw(message) for message in messages(entries, drawing)]
