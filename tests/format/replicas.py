"""Conversations that are worked on in several clones at once, for the tests of merging: what people and stores do to
one, as operations that hypothesis draws."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from capsule.format import migrations
from capsule.format.merge.clean_form import cleaned
from capsule.format.new import new_capsule
from capsule.format.tree.pruning import kept_current, without
from capsule.format.tree.tree import Tree
from capsule.timestamps import from_ms

START_MS = 1_767_225_600_000
Document = dict[str, Any]
#: What is done, a number that says to what, how many seconds pass before (they may be negative), a word.
Operation = tuple[str, int, int, str]

#: What a store does to messages, and to heads; what only a hand does.
MESSAGES = ("append", "append", "append", "branch", "regenerate", "edit", "delete", "prune")
HEADS = ("tag", "untag", "join", "rename", "name", "switch", "pin", "describe", "server", "capture", "clear", "extra")
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
        document["metadata"] = {name: document["metadata"][name] for name in ("mode", "tags", "isSummary", "lock")}
    return document


def worked_on(document: Document, done: Sequence[Operation], who: str, clock: int = 100) -> Document:
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
            document = migrations.current(document)[0]
        _DO[kind](document, at, _time(clock), word, f"{who}{clock:04}{number}")
        document["updatedAt"] = max(document["updatedAt"], _time(clock))
    return document


def clean(document: Document) -> Document:
    return cleaned(document)


def _time(seconds: int) -> str:
    return from_ms(START_MS + 1000 * seconds)


def _message(id: str, stamp: str, word: str, **more: Any) -> Document:
    return {"role": "user", "content": f"{word} {id}", "timestamp": stamp, "id": id} | more


def _append(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    history, tree = document["history"], Tree(document["history"])
    leaf = tree.active_leaf(document["metadata"].get("currentNode"))
    more = {"parent": tree.ids[leaf]} if 0 <= leaf != len(history) - 1 else {}
    history.append(_message(id, stamp, word, **more))


def _branch(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    history = document["history"]
    more = {"parent": history[at % len(history)]["id"]} if history else {}
    history.append(_message(id, stamp, word, **more))


def _regenerate(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    history = document["history"]
    parent = Tree(history).parents[at % len(history)] if history else -1
    history.append(_message(id, stamp, word, parent=history[parent]["id"] if parent >= 0 else None))
    document["metadata"]["currentNode"] = id


def _edit(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    if document["history"]:
        document["history"][at % len(document["history"])] |= {"content": f"edited {word} {id}", "editedAt": stamp}


def _without(document: Document, place: int, *, children: bool) -> None:
    history, tree = document["history"], Tree(document["history"])
    gone = {place} if children else {place, *tree.descendants_at(place)}
    after = without(history, tree, gone)
    current = kept_current(tree, document["metadata"].get("currentNode"), gone, place, after)
    document["history"] = after
    document["metadata"].pop("currentNode", None)
    if current is not None:
        document["metadata"]["currentNode"] = current


def _delete(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    if document["history"]:
        _without(document, at % len(document["history"]), children=True)


def _prune(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    if document["history"]:
        _without(document, at % len(document["history"]), children=False)


def _switch(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    if document["history"]:
        tree = Tree(document["history"])
        document["metadata"]["currentNode"] = tree.ids[tree.leaf_at(at % len(tree))]


def _tag(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    tags = document["metadata"].setdefault("tags", [])
    tags += [tag for tag in (word,) if tag not in tags]


def _untag(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    tags = document["metadata"].get("tags", [])
    document["metadata"]["tags"] = [tag for place, tag in enumerate(tags) if place != at % (len(tags) or 1)]


def _join(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    there = document["metadata"].get("participants") or []
    document["metadata"]["participants"] = [*there, *({f"agent{at % 5}"} - set(there))]


def _rename(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["title"] = f"{word} {at}"
    document["metadata"] |= {"titleSetBy": "user", "titleSetAt": stamp}


def _name(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    if document["metadata"].get("titleSetBy") == "auto":
        document["title"] = f"by rule {at}"


def _pin(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["metadata"]["pinned"] = at % 2 == 0


def _describe(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["metadata"]["description"] = f"{word} {at}"


def _server(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    servers = {**(document["metadata"].get("mcpServers") or {})}
    servers[f"server{at % 3}"] = {"enabled": at % 2 == 0}
    document["metadata"]["mcpServers"] = servers


def _capture(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    about = {"projectPath": "/p", "filesIncluded": 1, "estimatedTokens": at, "contextHash": f"sha256:{at}{word}"}
    document["context"] = {"fullContext": f"{word} {at}", "metadata": about | ({"capturedAt": stamp} if at % 3 else {})}


def _clear(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["context"] = new_capsule("c", "", stamp)["context"]


def _extra(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document[f"x{at % 3}"] = {f"k{at % 4}": at, "deep": {word: [at, None, True]}}
    document["metadata"][f"my{at % 2}"] = at


def _type_in(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["history"].insert(at % (len(document["history"]) + 1), {"role": "user", "content": f"typed {word} {id}"})


def _move(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    history = document["history"]
    if history:
        history.insert((at * 7) % len(history), history.pop(at % len(history)))


def _rename_by_hand(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["title"] = f"by hand {word} {at}"


def _dangle(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    if document["history"]:
        document["history"][at % len(document["history"])]["parent"] = f"m{at:02}"


def _empty_field(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    for name in ("description", "pinned", "mcpServers", "participants")[at % 4 :]:
        document["metadata"].pop(name, None)


def _point_nowhere(document: Document, at: int, stamp: str, word: str, id: str) -> None:
    document["metadata"]["currentNode"] = f"m{at:02}"


_DO = {
    "append": _append, "branch": _branch, "regenerate": _regenerate, "edit": _edit, "delete": _delete, "prune": _prune,
    "tag": _tag, "untag": _untag, "join": _join, "rename": _rename, "name": _name, "switch": _switch, "pin": _pin,
    "describe": _describe, "server": _server, "capture": _capture, "clear": _clear, "extra": _extra,
    "type in": _type_in, "move": _move, "rename by hand": _rename_by_hand, "dangle": _dangle,
    "empty field": _empty_field, "point nowhere": _point_nowhere,
}  # fmt: skip
