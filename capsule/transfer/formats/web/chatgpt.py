"""The export of ChatGPT: `conversations.json`, alone or in parts, in a zip or not.

A conversation is a tree of nodes in `mapping`; a node without a message only holds others together.
Such nodes are kept beside the head, and `children` only where they say more than the parents. Files
of the export are attachments. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import orjson

from capsule.transfer.interface import (
    Draft,
    Format,
    Source,
    first_records,
    read_bytes,
    read_items,
    recognizes_record,
    reporting_damage,
)
from capsule.transfer.records.coercion import (
    is_string,
    json_of,
    moment,
    object_of,
    objects_of,
    seconds,
    text_of,
)
from capsule.transfer.records.round_trip import Column, Fields, Pair, is_on, pair_of

#: The node that newer exports begin with, and that is written where there is none.
_ROOT = "client-created-root"
_OF_A_NODE = {"id", "message", "parent", "children"}
_ROLES = frozenset({"user", "assistant", "system", "tool"})
#: Where the text of a content stands that is not in `parts`.
_TEXTS = {"tether_browsing_display": "result", "reasoning_recap": "content"}
_HEAD = pair_of(
    Column("title", "title", default=None),
    Column("create_time", "createdAt", moment, seconds, default=None),
    Column("update_time", "updatedAt", moment, seconds, default=None),
    Column("current_node", "metadata.currentNode", default=None),
    Column("is_archived", "metadata.archived", is_on, default=False),
    Column("is_starred", "metadata.pinned", is_on),
    Column("conversation_id", "id"),
    Column("id", "id"),
)
_ATTACHED = pair_of(Column("name", "name"), Column("mime_type", "type"), Column("id", "reference"))
_FILE = r"file[-_][A-Za-z0-9]+"
_ID = r"(?:file-service|sediment)://([^?#]+)"


def _read(node: Fields) -> Fields:
    message = node["message"]
    author, about = message.get("author") or {}, message.get("metadata") or {}
    role = author.get("role")
    fields: Fields = {"id": node["id"], "role": role if role in _ROLES else "assistant"}
    fields |= _read_content(_content_of(message), message.get("recipient"))
    if "parent" in node:
        fields["parent"] = node["parent"]
    if time := moment(message.get("create_time")):
        fields["timestamp"] = time
    if isinstance(about.get("model_slug"), str):
        fields["model"] = about["model_slug"]
    if about.get("is_visually_hidden_from_conversation") is True:
        fields["metadata"] = fields.get("metadata", {}) | {"hidden": True}
    if listed := [
        _ATTACHED.read(file) for file in about.get("attachments") or () if is_string(file.get("id"))
    ]:
        seen = {
            match[1]: file
            for file in fields.get("attachments", ())
            if (match := re.match(_ID, file["pointer"]))
        }
        for file in listed:
            if shown := seen.pop(file.get("reference"), None):
                file["pointer"] = shown["pointer"]
        pointed = {file["pointer"] for file in listed if "pointer" in file}
        others = (file for file in fields.get("attachments", ()) if file["pointer"] not in pointed)
        fields["attachments"] = [*listed, *others]
    return fields


def _read_content(content: Fields, recipient: Any) -> Fields:
    kind, parts = content.get("content_type"), content.get("parts")
    if kind == "thoughts":
        thoughts = "\n\n".join(
            text_of(thought.get("content")) for thought in objects_of(content.get("thoughts"))
        )
        return {"content": "", "reasoning": thoughts}
    if kind == "code" and recipient not in (None, "all"):
        return {
            "content": "",
            "toolCalls": [{"name": recipient, "arguments": json_of(content.get("text"))}],
        }
    data = [f"```json\n{text_of(part)}\n```" for part in _odd(content)]
    if isinstance(parts, list):
        texts, others = [part for part in parts if isinstance(part, str)], objects_of(parts)
        texts += [text_of(part.get("text")) for part in others if "text" in part]
        pointers = (pointer for part in others for pointer in _pointers(part))
        files = [
            {"name": pointer.rpartition("/")[2], "type": "image", "pointer": pointer}
            for pointer in pointers
        ]
        return {"content": "\n\n".join(texts + data)} | ({"attachments": files} if files else {})
    text = content.get(_TEXTS.get(str(kind), "text"))
    if not isinstance(text, str):
        text = "\n\n".join(
            data or [part for part in content.values() if isinstance(part, str) and part != kind]
        )
    return {"content": text} | (
        {"metadata": {"contentType": kind}} if isinstance(kind, str) and kind != "text" else {}
    )


def _content_of(message: Fields) -> Fields:
    content = message.get("content") or {}
    return (
        content
        if isinstance(content, dict)
        else {"parts": content if isinstance(content, list) else [content]}
    )


def _pointers(part: Any) -> list[str]:
    """The files of a part: its own, and those of the objects in it, as a recording has them."""
    if not isinstance(part, dict):
        return []
    own = [part["asset_pointer"]] if isinstance(part.get("asset_pointer"), str) else []
    return own + [pointer for inner in part.values() for pointer in _pointers(inner)]


def _odd(content: Fields) -> list[Any]:
    """The parts of a content that are not understood, and shown as data."""
    kind, parts = content.get("content_type"), content.get("parts")
    if isinstance(parts, list):
        unknown = [part for part in parts if part and not isinstance(part, str)]
        return [
            part
            for part in unknown
            if not (isinstance(part, dict) and ("text" in part or _pointers(part)))
        ]
    is_string = kind == "thoughts" or isinstance(content.get(_TEXTS.get(str(kind), "text")), str)
    return (
        []
        if is_string or all(isinstance(value, str) or not value for value in content.values())
        else [content]
    )


def _write(fields: Fields) -> Fields:
    metadata, files = fields.get("metadata", {}), fields.get("attachments", ())
    about: Fields = {}
    if metadata.get("hidden"):
        about["is_visually_hidden_from_conversation"] = True
    if "model" in fields:
        about["model_slug"] = fields["model"]
    if listed := [_ATTACHED.write(file) for file in files if "reference" in file]:
        about["attachments"] = listed
    content, recipient = _write_content(fields), "all"
    calls = fields.get("toolCalls")
    if calls and not fields["content"]:
        recipient = text_of(calls[0].get("name"))
        content = {
            "content_type": "code",
            "language": "unknown",
            "text": text_of(calls[0].get("arguments")),
        }
    message = {
        "id": fields["id"],
        "author": {"role": fields["role"], "name": None, "metadata": {}},
        "create_time": seconds(fields.get("timestamp")),
        "update_time": None,
        "content": content,
        "status": "finished_successfully",
        "end_turn": None,
        "weight": 1.0,
        "recipient": recipient,
        "metadata": about,
    }
    return {"id": fields["id"], "message": message} | (
        {"parent": fields["parent"]} if "parent" in fields else {}
    )


def _write_content(fields: Fields) -> Fields:
    kind, text = fields.get("metadata", {}).get("contentType"), fields["content"]
    pointers = [file["pointer"] for file in fields.get("attachments", ()) if "pointer" in file]
    if pointers:
        images = [
            {"content_type": "image_asset_pointer", "asset_pointer": pointer}
            for pointer in pointers
        ]
        return {"content_type": "multimodal_text", "parts": [*images, text] if text else images}
    if kind is not None:
        return {"content_type": kind, _TEXTS.get(str(kind), "text"): text}
    if "reasoning" in fields and not text:
        return {
            "content_type": "thoughts",
            "thoughts": [{"summary": "", "content": fields["reasoning"]}],
        }
    return {"content_type": "text", "parts": [text]}


_MESSAGE = Pair(_read, _write)


def _children(nodes: dict[str, Fields]) -> dict[str, list[str]]:
    """The children of each node, in the order of the nodes, as their parents tell."""
    children: dict[str, list[str]] = {id: [] for id in nodes}
    for id, node in nodes.items():
        if isinstance(parent := node.get("parent"), str) and parent in children:
            children[parent].append(id)
    return children


def _told_children(node: Fields) -> list[str]:
    return (
        list(filter(is_string, children))
        if isinstance(children := node.get("children"), list)
        else []
    )


def _lacks_time(message: Fields, entry: Fields) -> bool:
    """Whether a message of a person or a model lacks its time, or any message has a wrong one."""
    if "timestamp" in entry:
        return False
    is_shown = entry["content"] and not entry.get("metadata", {}).get("hidden")
    return (
        bool(is_shown and entry["role"] in ("user", "assistant"))
        or message.get("create_time") is not None
    )


def _draft(record: Fields, line: int, source: Source) -> Draft:
    mapping: dict[str, Fields] = {}
    for id, node in record["mapping"].items():
        if isinstance(node, dict):
            mapping[id] = node if isinstance(node.get("id"), str) else {**node, "id": id}
        else:
            source.tell(f"node {id!r:.60} of the mapping is no object", line)
    children, nodes = _children(mapping), {}
    for id, node in mapping.items():
        is_told = node.get("children") == children[id]
        nodes[id] = {
            name: value for name, value in node.items() if name != "children" or not is_told
        }
    joints = {
        id: node | {"children": mapping[id].get("children")}
        for id, node in nodes.items()
        if not node.get("message")
    }
    for id, node in joints.items():
        if not node.keys() <= _OF_A_NODE:
            source.tell(f"node {id!r:.60} of the mapping has no message, but something else", line)
    if joints.get(_ROOT) == {
        "id": _ROOT,
        "message": None,
        "parent": None,
        "children": children.get(_ROOT, []),
    }:
        del joints[_ROOT]
    about = {name: value for name, value in record.items() if name != "mapping"}
    draft = Draft.of_head(_HEAD, about | ({"mapping": joints} if joints else {}), line)
    for id, node in nodes.items():
        entry: Fields = {"id": id, "parent": node.get("parent")}
        if node.get("message"):
            with reporting_damage(source.tell, f"message {id!r:.60}", line):
                entry = _MESSAGE.to_capsule(node)
                if _lacks_time(node["message"], entry):
                    source.tell(f"message {id!r:.60} has no time", line)
                if "```json" in entry["content"] and _odd(_content_of(node["message"])):
                    source.tell(
                        f"content of message {id!r:.60} is not understood, and is shown as data",
                        line,
                    )
        draft.history.append(entry)
    return draft


def _read_file_of(source: Source) -> Iterator[Draft]:
    _tell_missing(source)
    files: dict[str, Source] | None = None
    for draft in read_items(source, _draft):
        for attached in [
            attachment for entry in draft.history for attachment in entry.get("attachments", ())
        ]:
            if files is None:
                files = _files(source)
            pointer = re.match(_ID, str(attached.get("pointer")))
            if file := files.get(attached.get("reference") or (pointer[1] if pointer else "")):
                attached["data"] = file
        yield draft


def _files(source: Source) -> dict[str, Source]:
    """The files of the export by the ids in their names; in its folders only beside what every
    export has.
    """
    is_export = any(
        True
        for name in ("user.json", "chat.html", "export_manifest.json")
        for _ in source.near(name)
    )
    patterns = ("file*", "*/file*", "*/*/file*") if is_export else ("file*",)
    near = [file for pattern in patterns for file in source.near(pattern)]
    return {
        match[0]: file for file in near if (match := re.match(_FILE, file.name.rpartition("/")[2]))
    }


def _tell_missing(source: Source) -> None:
    """Report the parts of an export that its manifest lists and that are not there, with the first
    that is.
    """
    for manifest in source.near("export_manifest.json"):
        listed = list(
            filter(
                is_string,
                object_of(read_bytes(manifest).decode("utf-8", "replace")).get("files") or (),
            )
        )
        there = {name: bool(list(source.near(name))) for name in listed}
        if next((name for name in listed if there[name]), "") == source.name.rpartition("/")[2]:
            for name in listed:
                if not there[name]:
                    manifest.tell(f"{name} is listed and missing")


def _write_draft(draft: Draft) -> bytes:
    record = draft.head_record(_HEAD)
    nodes = [
        _MESSAGE.to_record(entry, is_edited=entry.get("id") in draft.edited)
        for entry in draft.history
    ]
    joints = record.pop("mapping", None) or {_ROOT: {"id": _ROOT, "message": None, "parent": None}}
    mapping = {**joints, **{node["id"]: node for node in nodes}}
    root = next((id for id, node in joints.items() if node.get("parent") is None), None)
    for node in nodes:
        if node.get("parent") is None:
            node["parent"] = root
    for id, node in joints.items():
        for child in _told_children(node):
            if child in mapping and child != id:
                mapping[child]["parent"] = id
    for id, children in _children(mapping).items():
        mapping[id].setdefault("children", children)
        if id in joints:
            mapping[id]["children"] = [*dict.fromkeys([*_told_children(joints[id]), *children])]
    return orjson.dumps(record | {"mapping": mapping})


def _is_part(source: Source) -> bool:
    """Whether a file is the manifest of an export, or names its owner."""
    whole = first_records(source)[:1]
    return any(
        "chatgpt_plus_user" in record or "conversations-000.json" in record.get("files", ())
        for record in whole
    )


_BOTH = (_read_file_of, _write_draft)
_recognizes = recognizes_record(lambda record: isinstance(record.get("mapping"), dict))
FORMATS = [
    Format(
        "chatgpt",
        "ChatGPT export",
        _recognizes,
        *_BOTH,
        joined="array",
        is_part=_is_part,
        is_portable=False,
    )
]
