"""What an agent did, in a message of Open WebUI: the marked parts of a text, and the items of an
`output`. Pure.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from html import escape, unescape
from typing import Any

from capsule.transfer.interface import Fields
from capsule.transfer.records.coercion import json_of, text_of
from capsule.transfer.records.turns import Pieces, merged, pieces_of, rounds

_DETAILS = (
    r'(?s)<details type="(?P<type>reasoning|tool_calls|code_interpreter)"(?P<attributes>[^<>]*)>'
    r"(?:\s*<summary>[^<]*</summary>)?(?P<body>.*?)(?:</details>|\Z)|\A\s*<think>(?P<think>.*?)(?:</think>|\Z)"
)
_ATTRIBUTE = r'\b(id|name|arguments|result|output)="([^"]*)"'
_CODE = r"(?s)\s*```\w*\n(.*?)(?:\n?```\s*)?\Z"
#: What follows a part if the next message of the agent has no text.
_END = "</details>\n\n\n"
#: The items of an output that say something to us.
ITEMS = ("reasoning", "message", "function_call", "function_call_output")


def pieces(text: str) -> Pieces:
    """A text in pieces; empty: it has no marks."""
    return pieces_of(
        text, ((match.start(), match.end(), _spans(match)) for match in re.finditer(_DETAILS, text))
    )


def _spans(match: re.Match[str]) -> list[tuple[str, int, int]]:
    """What is between the marks of a part: the kind, where it begins and where it ends."""
    kind = match["type"]
    begin, text = (
        (match.start("think"), match["think"])
        if kind is None
        else (match.start("body"), match["body"])
    )
    body = (begin + len(text) - len(text.lstrip()), begin + len(text.rstrip()))
    if kind is None or kind == "reasoning":
        return [(kind or "think", min(body), max(body))]
    at = match.start("attributes")
    spans = [
        (pair[1], at + pair.start(2), at + pair.end(2))
        for pair in re.finditer(_ATTRIBUTE, match["attributes"])
    ]
    if kind == "code_interpreter" and (code := re.match(_CODE, text)):
        spans.append(("code", begin + code.start(1), begin + code.end(1)))
    return spans


def _quoted(text: str) -> str:
    return "\n".join(f"> {line}" for line in text.split("\n"))


def shown(pieces: Pieces) -> Iterator[tuple[str, Any]]:
    """What a text with marks says, step by step."""
    call: dict[str, str] = {}
    for piece in pieces:
        ((kind, text),) = piece.items()
        if kind == "reasoning":
            yield kind, re.sub("^> ?", "", unescape(text), flags=re.MULTILINE)
        elif kind == "think":
            yield "reasoning", text
        elif kind == "text":
            yield kind, text
        elif kind != "mark":
            call[kind] = text if kind == "code" else unescape(text)
        elif call and ("</details>" in text or piece is pieces[-1]):
            made = {
                "name": call.get("name", ""),
                "arguments": json_of(json_of(call.get("arguments", "{}"))),
            }
            if "code" in call or not call.keys() & {"name", "arguments"}:
                made = {"name": "code_interpreter", "arguments": {"code": call.get("code", "")}}
            yield "call", ({"id": call["id"]} if call.get("id") else {}) | made
            if {"result", "output"} & call.keys():
                said = call["output"] if "output" in call else text_of(json_of(call["result"]))
                yield (
                    "result",
                    {"content": said} | ({"toolCallId": call["id"]} if call.get("id") else {}),
                )
            call = {}
        if kind == "mark" and _END in text:
            yield "end", None


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def show(entries: list[Fields], form: str) -> Pieces:
    """The messages as a text with marks."""
    made: Pieces = []
    for place, (entry, results) in enumerate(rounds(entries)):
        if place and not entry["content"] and "reasoning" not in entry:
            made[-1] = {"mark": made[-1]["mark"].replace("</details>\n", _END)}
        if isinstance(text := entry.get("reasoning"), str):
            marks = (
                '<details type="reasoning" done="true">\n<summary>Thought</summary>\n',
                "\n</details>\n",
            )
            piece = {"reasoning": _quoted(text) if form == "quote" else escape(_quoted(text))}
            if form == "think":
                marks, piece = ("<think>", "</think>\n"), {"think": text}
            made += [{"mark": marks[0]}, piece, {"mark": marks[1]}]
        if entry["content"]:
            made.append({"text": entry["content"]})
        for nth, call in enumerate(entry.get("toolCalls", ())):
            made += [{"mark": "\n"}] if made and "text" in made[-1] else []
            made += _show_call(call, [result["content"] for result in results[nth : nth + 1]])
    return merged(made)


def _show_call(call: Fields, result: list[str]) -> Pieces:
    start, arguments = '<details type="{}" done="true"', call.get("arguments", {})
    if (
        call.get("name") == "code_interpreter"
        and isinstance(arguments, dict)
        and arguments.keys() == {"code"}
    ):
        made: Pieces = [{"mark": start.format("code_interpreter")}]
        made += (
            [{"mark": ' id="'}, {"id": escape(text_of(call["id"]))}, {"mark": '"'}]
            if "id" in call
            else []
        )
        for text in result:
            made += [{"mark": ' output="'}, {"output": escape(text)}, {"mark": '"'}]
        made += [
            {"mark": ">\n<summary>Analyzed</summary>\n```python\n"},
            {"code": text_of(arguments["code"])},
        ]
        return [*made, {"mark": "\n```\n</details>\n"}]
    text = arguments if isinstance(arguments, str) else _json(arguments)
    made = [{"mark": start.format("tool_calls") + ' id="'}, {"id": escape(text_of(call.get("id")))}]
    made += [{"mark": '" name="'}, {"name": escape(text_of(call.get("name")))}]
    made += [{"mark": '" arguments="'}, {"arguments": escape(json.dumps(text))}]
    for text in result:
        made += [{"mark": '" result="'}, {"result": escape(_json(text))}]
    return [*made, {"mark": '">\n<summary>Tool Executed</summary>\n</details>\n'}]


def done(items: list[Fields]) -> Iterator[tuple[str, Any]]:
    """What the items of an output say, step by step."""
    for item in items:
        kind, id = (
            item.get("type"),
            {"id": item["call_id"]} if isinstance(item.get("call_id"), str) else {},
        )
        if kind == "function_call":
            yield (
                "call",
                id
                | {"name": text_of(item.get("name")), "arguments": json_of(item.get("arguments"))},
            )
        elif kind == "function_call_output":
            yield (
                "result",
                {"content": text_in(item.get("output"))} | ({"toolCallId": id["id"]} if id else {}),
            )
        else:
            text = text_in(item.get("content") or item.get("summary"))
            yield ("reasoning" if kind == "reasoning" else "text"), text


def text_in(parts: Any) -> str:
    """The text of a content: itself, or its parts."""
    if not isinstance(parts, list):
        return text_of(parts)
    return "\n\n".join(
        text_of(part.get("text") if isinstance(part, dict) else part) for part in parts
    )


def do(entries: list[Fields]) -> list[Fields]:
    """The messages as the items of an output."""
    items: list[Fields] = []
    for entry in entries:
        said = [{"type": "output_text", "text": entry["content"]}]
        if entry["role"] == "tool":
            id = {"call_id": entry["toolCallId"]} if "toolCallId" in entry else {}
            output = [{"type": "input_text", "text": entry["content"]}]
            items.append({"type": "function_call_output", **id, "output": output})
            continue
        if "reasoning" in entry:
            items.append(
                {
                    "type": "reasoning",
                    "content": [{"type": "output_text", "text": entry["reasoning"]}],
                }
            )
        if entry["content"] or not ("reasoning" in entry or "toolCalls" in entry):
            items.append({"type": "message", "role": "assistant", "content": said})
        for call in entry.get("toolCalls", ()):
            arguments = call.get("arguments")
            text = arguments if isinstance(arguments, str) else _json(arguments)
            id = {"call_id": call["id"]} if "id" in call else {}
            items.append(
                {"type": "function_call", **id, "name": call.get("name"), "arguments": text}
            )
    return items


def plain(entries: list[Fields]) -> str:
    """What the messages say, without reasoning, calls and results."""
    return "\n\n".join(
        entry["content"] for entry in entries if entry["role"] != "tool" and entry["content"]
    )
