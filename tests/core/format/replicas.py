"""Conversations that are worked on in several clones at once, for the tests of merging: what people
and stores do to one, as operations that hypothesis draws."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from capsule.format import migrations
from capsule.format.documents.creation import new_capsule
from capsule.format.documents.members import id_of, with_joined, with_left
from capsule.format.merge.clean_form import clean_document
from capsule.format.tree.branches import current_after_removal, mark_edited, remove_messages
from capsule.format.tree.tree import Tree
from capsule.timestamps import from_ms

START_MS = 1_767_225_600_000
Document = dict[str, Any]
#: What is done, a number that says to what, how many seconds pass before (they may be negative), a
#: word.
Operation = tuple[str, int, int, str]

#: What a store does to messages, and to heads; what only a hand does.
MESSAGES = ("append", "append", "append", "branch", "regenerate", "edit", "delete", "prune")
HEADS: tuple[str, ...] = (
    "tag",
    "untag",
    "join",
    "invite",
    "leave",
    "rename",
    "name",
    "switch",
    "pin",
    "describe",
    "server",
    "capture",
)
HEADS += ("clear", "extra")
BY_HAND = ("type in", "move", "rename by hand", "dangle", "empty field", "point nowhere")


def operations(*kinds: str, most: int = 6, back: bool = True) -> st.SearchStrategy[list[Operation]]:
    """Lists of operations of these kinds."""
    seconds = st.sampled_from((0, 1, 1, 2, 30, -7) if back else (0, 1, 1, 2, 30))
    words = st.sampled_from(("x", "y", "zoë", "long " * 9))
    one = st.tuples(st.sampled_from(kinds), st.integers(0, 40), seconds, words)
    return st.lists(one, max_size=most)


def begun(type: str, count: int, *, old: bool = False) -> Document:
    """A conversation with messages; an old one is of version 2.0, without ids."""
    messages = [
        {"role": ("user", "assistant")[at % 2], "content": f"message {at}", "timestamp": _time(at)}
        | ({} if old else {"id": f"m{at:02}"})
        for at in range(count)
    ]
    document = new_capsule("c", "Title", _time(0), type=type, tags=["a", "b"], messages=messages)
    document["updatedAt"] = _time(count)
    if old:
        document["version"] = "2.0"
        document["metadata"] = {
            name: document["metadata"][name] for name in ("mode", "tags", "isSummary", "lock")
        }
    return document


def worked_on(
    document: Document, done: Sequence[Operation], who: str, clock: int = 100
) -> Document:
    """The conversation after these operations in the clone of `who`.

    Args:
        document: Stays as it is.
        done: The operations, in order.
        who: Names the clone; messages get their ids from it.
        clock: Seconds after the start at which the first begins.
    """
    document = copy.deepcopy(document)
    for number, (kind, at, seconds, word) in enumerate(done):
        clock += seconds
        if kind not in BY_HAND:
            document = migrations.upgrade(document)[0]
        _change_messages(kind, document, at, _time(clock), word, f"{who}{clock:04}{number}")
        _change_head(kind, document, at, _time(clock), word)
        document["updatedAt"] = max(document["updatedAt"], _time(clock))
    return document


def clean(document: Document) -> Document:
    return clean_document(document)


def _time(seconds: int) -> str:
    return from_ms(START_MS + 1000 * seconds)


def _message(id: str, stamp: str, word: str, **more: Any) -> Document:
    return {"role": "user", "content": f"{word} {id}", "timestamp": stamp, "id": id} | more


def _change_messages(
    kind: str, document: Document, at: int, stamp: str, word: str, id: str
) -> None:
    history, about = document["history"], document["metadata"]
    tree, place = Tree(history), at % (len(history) or 1)
    if not history and kind not in ("append", "branch", "regenerate", "type in"):
        return
    match kind:
        case "append":
            leaf = tree.active_leaf(about.get("currentNode"))
            more = {"parent": tree.ids[leaf]} if 0 <= leaf != len(history) - 1 else {}
            history.append(_message(id, stamp, word, **more))
        case "branch":
            history.append(
                _message(id, stamp, word, **({"parent": history[place]["id"]} if history else {}))
            )
        case "regenerate":
            parent = tree.parents[place] if history else -1
            history.append(
                _message(id, stamp, word, parent=history[parent]["id"] if parent >= 0 else None)
            )
            about["currentNode"] = id
        case "edit":
            by = "anna" if id.startswith("a") else None
            history[place] = mark_edited(
                history[place] | {"content": f"edited {word} {id}"}, stamp, by
            )
        case "delete" | "prune":
            gone = {place} if kind == "delete" else {place, *tree.descendants_at(place)}
            after = remove_messages(history, tree, gone)
            current = current_after_removal(
                tree, about.pop("currentNode", None), gone, place, after
            )
            about |= {} if current is None else {"currentNode": current}
            document["history"] = after
        case "switch":
            about["currentNode"] = tree.ids[tree.leaf_at(place)]
        case "type in":
            typed = {"role": "user", "content": f"typed {word} {id}"}
            history.insert(at % (len(history) + 1), typed)
        case "move":
            history.insert((at * 7) % len(history), history.pop(place))
        case "dangle":
            history[place]["parent"] = f"m{at:02}"


def _change_head(kind: str, document: Document, at: int, stamp: str, word: str) -> None:
    about = document["metadata"]
    match kind:
        case "tag":
            tags = about.setdefault("tags", [])
            tags += [tag for tag in (word,) if tag not in tags]
        case "untag":
            tags = about.get("tags", [])
            about["tags"] = [
                tag for place, tag in enumerate(tags) if place != at % (len(tags) or 1)
            ]
        case "join":
            about["participants"] = with_joined(
                about.get("participants"), [f"agent{at % 5}", f"agent{at % 3}"], stamp
            )
        case "invite":
            there = about.get("participants") or []
            about["participants"] = [
                *there,
                *({f"agent{at % 5}"} - {id_of(item) for item in there}),
            ]
        case "leave":
            about["participants"] = with_left(about.get("participants"), [f"agent{at % 5}"], stamp)
        case "rename":
            document["title"] = f"{word} {at}"
            about |= {"titleSetBy": "user", "titleSetAt": stamp}
        case "name" if about.get("titleSetBy") == "auto":
            document["title"] = f"by rule {at}"
        case "pin":
            about["pinned"] = at % 2 == 0
        case "describe":
            about["description"] = f"{word} {at}"
        case "server":
            about["mcpServers"] = {
                **(about.get("mcpServers") or {}),
                f"server{at % 3}": {"enabled": at % 2 == 0},
            }
        case "capture":
            told = {
                "projectPath": "/p",
                "filesIncluded": 1,
                "estimatedTokens": at,
                "contextHash": f"sha256:{at}{word}",
            }
            told |= {"capturedAt": stamp} if at % 3 else {}
            document["context"] = {"fullContext": f"{word} {at}", "metadata": told}
        case "clear":
            document["context"] = new_capsule("c", "", stamp)["context"]
        case "extra":
            document[f"x{at % 3}"] = {f"k{at % 4}": at, "deep": {word: [at, None, True]}}
            about[f"my{at % 2}"] = at
        case "rename by hand":
            document["title"] = f"by hand {word} {at}"
        case "empty field":
            for name in ("description", "pinned", "mcpServers", "participants")[at % 4 :]:
                about.pop(name, None)
        case "point nowhere":
            about["currentNode"] = f"m{at:02}"
