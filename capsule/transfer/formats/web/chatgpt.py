"""Read and write the export of ChatGPT: `conversations.json`, alone or in parts, in a zip or not.

A conversation is a tree of nodes in `mapping`. A node without a message is a joint: it only
connects others. Joints are kept in the source of the head, and so are `children` whose order the
parents don't give. Files of the export become the data of attachments.

A node that is no object and a message that can't be read are reported. A content of an unknown
type is shown as JSON. Pure.
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
from capsule.transfer.records.mapping import (
    Column,
    Fields,
    Pair,
    is_on,
    is_string,
    json_of,
    moment,
    object_of,
    objects_of,
    pair_of,
    seconds,
    text_of,
    without,
)

#: The id of the joint that newer exports begin with. It is written if there is no other one.
_ROOT = "client-created-root"
_NODE_FIELDS = {"id", "message", "parent", "children"}
_ROLES = frozenset({"user", "assistant", "system", "tool"})
#: The field with the text of a content without `parts`, by its type. Otherwise it is `text`.
_TEXT_FIELDS = {"tether_browsing_display": "result", "reasoning_recap": "content"}
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
#: The id of a file at the beginning of its name, and in its pointer.
_FILE_ID = r"file[-_][A-Za-z0-9]+"
_POINTER = r"(?:file-service|sediment)://([^?#]+)"


def _read(node: Fields) -> Fields:
    """Return the message of a node."""
    message = node["message"]
    author = message.get("author") or {}
    metadata = message.get("metadata") or {}
    role = author.get("role")
    fields: Fields = {"id": node["id"], "role": role if role in _ROLES else "assistant"}
    fields |= _read_content(_content_of(message), message.get("recipient"))
    if "parent" in node:
        fields["parent"] = node["parent"]
    time = moment(message.get("create_time"))
    if time:
        fields["timestamp"] = time
    if isinstance(metadata.get("model_slug"), str):
        fields["model"] = metadata["model_slug"]
    if metadata.get("is_visually_hidden_from_conversation") is True:
        fields["metadata"] = fields.get("metadata", {}) | {"hidden": True}
    listed_files = [
        _ATTACHED.read(file)
        for file in metadata.get("attachments") or ()
        if is_string(file.get("id"))
    ]
    if listed_files:
        fields["attachments"] = _merge_attachments(listed_files, fields.get("attachments", []))
    return fields


def _merge_attachments(listed: list[Fields], pointed: list[Fields]) -> list[Fields]:
    """Return the files that a message lists, then the other ones that its content points to.

    A listed file gets the first pointer with its id. `listed` is changed.
    """
    pointed_by_id = {}
    for attachment in pointed:
        match = re.match(_POINTER, attachment["pointer"])
        if match:
            pointed_by_id[match[1]] = attachment
    for file in listed:
        same_file = pointed_by_id.pop(file.get("reference"), None)
        if same_file:
            file["pointer"] = same_file["pointer"]
    pointers = {file["pointer"] for file in listed if "pointer" in file}
    others = [attachment for attachment in pointed if attachment["pointer"] not in pointers]
    return [*listed, *others]


def _read_content(content: Fields, recipient: Any) -> Fields:
    """Return the fields for a content. Code for another recipient than `all` is a tool call."""
    kind = content.get("content_type")
    if kind == "thoughts":
        thoughts = [text_of(item.get("content")) for item in objects_of(content.get("thoughts"))]
        return {"content": "", "reasoning": "\n\n".join(thoughts)}
    if kind == "code" and recipient not in (None, "all"):
        call = {"name": recipient, "arguments": json_of(content.get("text"))}
        return {"content": "", "toolCalls": [call]}
    data_texts = [f"```json\n{text_of(part)}\n```" for part in _unknown_parts(content)]
    if isinstance(content.get("parts"), list):
        return _read_parts(content["parts"], data_texts)
    text = content.get(_text_field(kind))
    if not isinstance(text, str):
        other_texts = [
            value for value in content.values() if isinstance(value, str) and value != kind
        ]
        text = "\n\n".join(data_texts or other_texts)
    fields: Fields = {"content": text}
    if isinstance(kind, str) and kind != "text":
        fields["metadata"] = {"contentType": kind}
    return fields


def _read_parts(parts: list[Any], data_texts: list[str]) -> Fields:
    """Return the fields for the parts of a content: texts, data that is not understood, files."""
    texts = [part for part in parts if isinstance(part, str)]
    objects = objects_of(parts)
    texts += [text_of(part.get("text")) for part in objects if "text" in part]
    attachments = [
        {"name": pointer.rpartition("/")[2], "type": "image", "pointer": pointer}
        for part in objects
        for pointer in _pointers(part)
    ]
    fields: Fields = {"content": "\n\n".join(texts + data_texts)}
    if attachments:
        fields["attachments"] = attachments
    return fields


def _text_field(kind: Any) -> str:
    return _TEXT_FIELDS.get(str(kind), "text")


def _content_of(message: Fields) -> Fields:
    """Return the content of a message as an object."""
    content = message.get("content") or {}
    if isinstance(content, dict):
        return content
    return {"parts": content if isinstance(content, list) else [content]}


def _pointers(part: Any) -> list[str]:
    """Return the pointers to files in a part and in the objects in it, as a recording has them."""
    if not isinstance(part, dict):
        return []
    pointers = [part["asset_pointer"]] if isinstance(part.get("asset_pointer"), str) else []
    for inner in part.values():
        pointers += _pointers(inner)
    return pointers


def _unknown_parts(content: Fields) -> list[Any]:
    """Return the parts of a content that are not understood, or the content itself."""
    kind = content.get("content_type")
    parts = content.get("parts")
    if isinstance(parts, list):
        return [part for part in parts if part and not _is_known_part(part)]
    has_text = kind == "thoughts" or isinstance(content.get(_text_field(kind)), str)
    has_texts_only = all(isinstance(value, str) or not value for value in content.values())
    return [] if has_text or has_texts_only else [content]


def _is_known_part(part: Any) -> bool:
    if isinstance(part, str):
        return True
    return isinstance(part, dict) and ("text" in part or bool(_pointers(part)))


def _write(fields: Fields) -> Fields:
    """Return the node for a message."""
    metadata: Fields = {}
    if fields.get("metadata", {}).get("hidden"):
        metadata["is_visually_hidden_from_conversation"] = True
    if "model" in fields:
        metadata["model_slug"] = fields["model"]
    attachments = fields.get("attachments", ())
    listed_files = [_ATTACHED.write(file) for file in attachments if "reference" in file]
    if listed_files:
        metadata["attachments"] = listed_files
    content = _write_content(fields)
    recipient = "all"
    calls = fields.get("toolCalls")
    if calls and not fields["content"]:
        recipient = text_of(calls[0].get("name"))
        arguments = text_of(calls[0].get("arguments"))
        content = {"content_type": "code", "language": "unknown", "text": arguments}
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
        "metadata": metadata,
    }
    node = {"id": fields["id"], "message": message}
    if "parent" in fields:
        node["parent"] = fields["parent"]
    return node


def _write_content(fields: Fields) -> Fields:
    kind = fields.get("metadata", {}).get("contentType")
    text = fields["content"]
    images = [
        {"content_type": "image_asset_pointer", "asset_pointer": file["pointer"]}
        for file in fields.get("attachments", ())
        if "pointer" in file
    ]
    if images:
        return {"content_type": "multimodal_text", "parts": [*images, text] if text else images}
    if kind is not None:
        return {"content_type": kind, _text_field(kind): text}
    if "reasoning" in fields and not text:
        thought = {"summary": "", "content": fields["reasoning"]}
        return {"content_type": "thoughts", "thoughts": [thought]}
    return {"content_type": "text", "parts": [text]}


_MESSAGE = Pair(_read, _write)


def _children(nodes: dict[str, Fields]) -> dict[str, list[str]]:
    """Return the children of each node by its id, in the order of the nodes."""
    children: dict[str, list[str]] = {id: [] for id in nodes}
    for id, node in nodes.items():
        parent = node.get("parent")
        if isinstance(parent, str) and parent in children:
            children[parent].append(id)
    return children


def _listed_children(node: Fields) -> list[str]:
    """Return the children that a node lists itself."""
    children = node.get("children")
    return list(filter(is_string, children)) if isinstance(children, list) else []


def _lacks_time(message: Fields, entry: Fields) -> bool:
    """Return whether a visible message of a person or a model has no time, or a time is wrong."""
    if "timestamp" in entry:
        return False
    if message.get("create_time") is not None:
        return True
    is_visible = bool(entry["content"]) and not entry.get("metadata", {}).get("hidden")
    return is_visible and entry["role"] in ("user", "assistant")


def _draft(record: Fields, line: int, source: Source) -> Draft:
    mapping: dict[str, Fields] = {}
    for id, node in record["mapping"].items():
        if isinstance(node, dict):
            mapping[id] = node if isinstance(node.get("id"), str) else {**node, "id": id}
        else:
            source.tell(f"node {id!r:.60} of the mapping is not an object", line)
    joints = _joints(mapping)
    for id, joint in joints.items():
        if not joint.keys() <= _NODE_FIELDS:
            source.tell(f"node {id!r:.60} of the mapping has something other than a message", line)
    children = _children(mapping)
    default_root = {
        "id": _ROOT,
        "message": None,
        "parent": None,
        "children": children.get(_ROOT, []),
    }
    if joints.get(_ROOT) == default_root:
        del joints[_ROOT]
    head_record = without(record, "mapping")
    if joints:
        head_record["mapping"] = joints
    draft = Draft.of_head(_HEAD, head_record, line)
    for id, node in mapping.items():
        entry: Fields = {"id": id, "parent": node.get("parent")}
        if node.get("message"):
            repeats_parents = node.get("children") == children[id]
            plain_node = without(node, "children") if repeats_parents else node
            with reporting_damage(source.tell, f"message {id!r:.60}", line):
                entry = _MESSAGE.to_capsule(plain_node)
                _report_missing(node["message"], entry, id, line, source)
        draft.history.append(entry)
    return draft


def _joints(mapping: dict[str, Fields]) -> dict[str, Fields]:
    """Return the nodes without a message, each with its `children`."""
    joints = {}
    for id, node in mapping.items():
        if not node.get("message"):
            joints[id] = without(node, "children") | {"children": node.get("children")}
    return joints


def _report_missing(message: Fields, entry: Fields, id: str, line: int, source: Source) -> None:
    """Report that a message has no time, or a content that is not understood."""
    if _lacks_time(message, entry):
        source.tell(f"message {id!r:.60} has no time", line)
    if "```json" in entry["content"] and _unknown_parts(_content_of(message)):
        source.tell(f"content of message {id!r:.60} is not understood, and is shown as data", line)


def _read_file_of(source: Source) -> Iterator[Draft]:
    _report_missing_parts(source)
    files: dict[str, Source] | None = None
    for draft in read_items(source, _draft):
        for entry in draft.history:
            for attachment in entry.get("attachments", ()):
                if files is None:
                    files = _files(source)
                pointer = re.match(_POINTER, str(attachment.get("pointer")))
                file_id = attachment.get("reference") or (pointer[1] if pointer else "")
                if file_id in files:
                    attachment["data"] = files[file_id]
        yield draft


def _files(source: Source) -> dict[str, Source]:
    """Return the files of the export by the ids in their names.

    Folders are searched only if another file shows that this is the folder of an export.
    """
    export_files = ("user.json", "chat.html", "export_manifest.json")
    is_export = any(any(True for _ in source.near(name)) for name in export_files)
    patterns = ("file*", "*/file*", "*/*/file*") if is_export else ("file*",)
    files = {}
    for pattern in patterns:
        for file in source.near(pattern):
            match = re.match(_FILE_ID, file.name.rpartition("/")[2])
            if match:
                files[match[0]] = file
    return files


def _report_missing_parts(source: Source) -> None:
    """Report the parts that the manifest of an export lists and that are missing.

    Only the first part that is found reports them.
    """
    name_here = source.name.rpartition("/")[2]
    for manifest in source.near("export_manifest.json"):
        text = read_bytes(manifest).decode("utf-8", "replace")
        listed_names = list(filter(is_string, object_of(text).get("files") or ()))
        existing_names = [name for name in listed_names if list(source.near(name))]
        if next(iter(existing_names), "") != name_here:
            continue
        for name in listed_names:
            if name not in existing_names:
                manifest.tell(f"{name} is listed but missing")


def _write_draft(draft: Draft) -> bytes:
    record = draft.head_record(_HEAD)
    nodes = [
        _MESSAGE.to_record(entry, is_edited=entry.get("id") in draft.edited)
        for entry in draft.history
    ]
    default_joints = {_ROOT: {"id": _ROOT, "message": None, "parent": None}}
    joints = record.pop("mapping", None) or default_joints
    mapping = {**joints, **{node["id"]: node for node in nodes}}
    root_id = next((id for id, joint in joints.items() if joint.get("parent") is None), None)
    for node in nodes:
        if node.get("parent") is None:
            node["parent"] = root_id
    for id, joint in joints.items():
        for child in _listed_children(joint):
            if child in mapping and child != id:
                mapping[child]["parent"] = id
    for id, children in _children(mapping).items():
        mapping[id].setdefault("children", children)
        if id in joints:
            listed = _listed_children(joints[id])
            mapping[id]["children"] = [*dict.fromkeys([*listed, *children])]
    return orjson.dumps(record | {"mapping": mapping})


def _is_part(source: Source) -> bool:
    """Return whether a file names the owner of an export, or is its manifest."""
    for record in first_records(source)[:1]:
        return "chatgpt_plus_user" in record or "conversations-000.json" in record.get("files", ())
    return False


def _is_conversation(record: Fields) -> bool:
    return isinstance(record.get("mapping"), dict)


FORMATS = [
    Format(
        "chatgpt",
        "ChatGPT export",
        recognizes=recognizes_record(_is_conversation),
        read=_read_file_of,
        write=_write_draft,
        joined="array",
        is_part=_is_part,
        is_portable=False,
    )
]
