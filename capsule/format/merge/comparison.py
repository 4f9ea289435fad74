"""Compare two versions of a conversation: the differences as data, and in words.

`compare` matches the messages of both versions (`_match_messages`), then collects which were added,
removed, edited and moved, and which fields of the head changed. Messages are named by their indexes
in the history, because an id may occur twice.

What must stay true: a lock, `updatedAt` and the values that the next write fills in (ids, times, the
version) are no differences. Messages are compared by id, wherever they are. Every other difference
is named. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from capsule.format import migrations
from capsule.format.documents.members import members_in
from capsule.format.merge.annotations import without_parent
from capsule.format.merge.three_way import flat_head, sorted_bytes
from capsule.format.text.escaping import truncated
from capsule.format.tree.tree import Tree

Document = Mapping[str, Any]
Message = Mapping[str, Any]

#: Fields whose changes are no differences.
_IGNORED_FIELDS = frozenset({"updatedAt", "metadata.lock", "history"})
#: Fields without a phrase: they change along with another one that has a phrase.
_FIELDS_WITHOUT_PHRASE = frozenset(
    {"metadata.titleSetBy", "metadata.titleSetAt", "metadata.currentNode", "metadata.currentWanted"}
)
#: A longer text is truncated to so many characters.
_MAX_QUOTED = 60
_FLAGS = ("created", "deleted", "reordered", "switched")


@dataclass(frozen=True, slots=True)
class FieldChange:
    """One field of the head that differs.

    Attributes:
        name: `title`, `metadata.tags`, `context`.
        before: What it held; None also when it was not there. Of a context its metadata, without
            the list of files.
        after: What it holds.
    """

    name: str
    before: Any
    after: Any


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between two versions of a conversation.

    Attributes:
        created: Whether the first version does not exist.
        deleted: Whether the second version does not exist.
        added: New messages, in the new order. Of a created conversation all.
        edited: Messages of which the content changed, in both versions, in the new order.
        removed: Removed messages, in the old order. Of a deleted conversation all.
        moved: Messages of which only the parent changed. An edited message is never listed here,
            and a message is none of these if its old parent was removed.
        reordered: Whether messages of both versions changed their order.
        switched: Whether another branch is active, and the old one is not just longer.
        fields: The fields of the head that changed. Of a created or deleted conversation none.
    """

    created: bool = False
    deleted: bool = False
    added: tuple[Mapping[str, Any], ...] = ()
    edited: tuple[tuple[Mapping[str, Any], Mapping[str, Any]], ...] = ()
    removed: tuple[Mapping[str, Any], ...] = ()
    moved: tuple[Mapping[str, Any], ...] = ()
    reordered: bool = False
    switched: bool = False
    fields: tuple[FieldChange, ...] = ()

    def __bool__(self) -> bool:
        """Whether anything changed."""
        return self != Comparison()

    def words(self) -> list[str]:
        """Return the differences in a few words each: `2 messages added`, `renamed to 'X'`.

        Texts of the conversation are quoted as Python quotes texts, so none of them commands a
        terminal.
        """
        if self.deleted:
            return ["deleted"]
        if self.created:
            if not self.added:
                return ["created"]
            return [f"created with {_count(len(self.added))}"]
        phrases = []
        for name in ("added", "edited", "removed"):
            messages = getattr(self, name)
            if messages:
                phrases.append(f"{_count(len(messages))} {name}")
        if self.moved:
            phrases.append(f"{_count(len(self.moved))} moved to another branch")
        if self.reordered:
            phrases.append("messages put in another order")
        if self.switched:
            phrases.append("switched to another branch")
        for field in self.fields:
            phrases += _phrases_of(field)
        if self.fields and not phrases:
            names = [_plain(field.name.removeprefix("metadata.")) for field in self.fields]
            phrases.append(", ".join(names) + " changed")
        return phrases

    def as_json(self, *, messages: bool = False) -> dict[str, Any]:
        """Return what `--json` prints. Empty fields are omitted.

        Args:
            messages: Whether messages are given whole, the edited ones in both versions. Otherwise
                their ids are.
        """
        result: dict[str, Any] = {name: True for name in _FLAGS if getattr(self, name)}
        for name in ("added", "removed", "moved"):
            entries = getattr(self, name)
            if entries:
                result[name] = [entry if messages else entry["id"] for entry in entries]
        if self.edited and messages:
            result["edited"] = [{"before": before, "after": after} for before, after in self.edited]
        elif self.edited:
            result["edited"] = [after["id"] for _, after in self.edited]
        if self.fields:
            result["fields"] = {
                field.name: {"before": field.before, "after": field.after} for field in self.fields
            }
        return result


def compare(before: Document | None, after: Document | None) -> Comparison:
    """Return the differences between two versions of a conversation, as `codec.decode` returns them.

    None: there is no such version. Raises InvalidDocument if one is of a newer major version. Cost:
    a few microseconds a message.
    """
    if before is None:
        if after is None:
            return Comparison()
        return Comparison(created=True, added=tuple(_upgrade(after)["history"]))
    if after is None:
        return Comparison(deleted=True, removed=tuple(_upgrade(before)["history"]))
    old = _upgrade(before)
    new = _upgrade(after)
    matches = _match_messages(before, after, old["history"], new["history"])
    new_index_of = dict(matches)
    trees = Tree(old["history"]), Tree(new["history"])
    edited = []
    moved = []
    for old_index, new_index in matches:
        old_entry = old["history"][old_index]
        new_entry = new["history"][new_index]
        if sorted_bytes(_content(old_entry)) != sorted_bytes(_content(new_entry)):
            edited.append((old_entry, new_entry))
        elif "parent" in new_entry and _is_moved(trees, old_index, new_index, new_index_of):
            moved.append(new_entry)
    kept_indexes = {*new_index_of.values()}
    added = [entry for index, entry in enumerate(new["history"]) if index not in kept_indexes]
    removed = [entry for index, entry in enumerate(old["history"]) if index not in new_index_of]
    return Comparison(
        added=tuple(added),
        edited=tuple(edited),
        removed=tuple(removed),
        moved=tuple(moved),
        reordered=any(first > second for (first, _), (second, _) in pairwise(matches)),
        switched=_is_switched(trees, old, new, new_index_of),
        fields=tuple(_changed_fields(old, new)),
    )


def _upgrade(document: Document) -> dict[str, Any]:
    return migrations.upgrade(dict(document))[0]


def _content(message: Message) -> dict[str, Any]:
    """Return a message without what a file may omit: its id, its parent and a note about that."""
    content = without_parent(message)
    content.pop("id", None)
    return content


#: What identifies a message. The first key counts always. The others count only for a message
#: that a person typed without an id.
_MATCH_KEYS: tuple[Callable[[Message], Any], ...] = (
    lambda message: message["id"],
    lambda message: (message["role"], message["content"]),
    lambda message: (message["role"], message["timestamp"]),
)


def _match_messages(
    before: Document, after: Document, old: Sequence[Message], new: Sequence[Message]
) -> list[tuple[int, int]]:
    """Return the indexes of each message in the old and the new history, in the order of `new`.

    The next write gives a message without an id one that is made of its place and its words. If
    place or words changed before that write, the id is another one. Then the same words, or else
    the same time, identify the message.

    Args:
        before, after: The versions as they were stored.
        old, new: Their histories after the upgrade, in which each message has an id.
    """
    had_no_id_before = [not message.get("id") for message in before["history"]]
    had_no_id_after = [not message.get("id") for message in after["history"]]
    old_index_of: dict[int, int] = {}
    matched_old: set[int] = set()
    for number, key in enumerate(_MATCH_KEYS):
        candidates: dict[Any, deque[int]] = {}
        for old_index, message in enumerate(old):
            if old_index not in matched_old:
                candidates.setdefault(key(message), deque()).append(old_index)
        if not candidates:
            break
        for new_index, message in enumerate(new):
            if new_index in old_index_of:
                continue
            waiting = candidates.get(key(message))
            if not waiting:
                continue
            if number == 0 or had_no_id_before[waiting[0]] or had_no_id_after[new_index]:
                old_index_of[new_index] = waiting.popleft()
                matched_old.add(old_index_of[new_index])
    return [(old_index, new_index) for new_index, old_index in sorted(old_index_of.items())]


def _is_moved(
    trees: tuple[Tree, Tree], old_index: int, new_index: int, new_index_of: Mapping[int, int]
) -> bool:
    """Return whether a message got another parent. It does not count if the old one was removed."""
    old_tree, new_tree = trees
    old_parent = old_tree.parents[old_index]
    expected = new_index_of.get(old_parent) if old_parent >= 0 else -1
    return expected is not None and expected != new_tree.parents[new_index]


def _is_switched(
    trees: tuple[Tree, Tree], old: Document, new: Document, new_index_of: Mapping[int, int]
) -> bool:
    """Return whether the old end of the active branch still exists, but is not on the new one."""
    old_tree, new_tree = trees
    old_leaf = old_tree.active_leaf(old["metadata"].get("currentNode"))
    leaf = new_index_of.get(old_leaf)
    return leaf is not None and leaf not in new_tree.path(new["metadata"].get("currentNode"))


def _changed_fields(old: Document, new: Document) -> Iterator[FieldChange]:
    """Yield the fields of the head that differ."""
    old_head = flat_head(old)
    new_head = flat_head(new)
    for name in {**old_head, **new_head}:
        before = old_head.get(name)
        after = new_head.get(name)
        if name in _IGNORED_FIELDS or sorted_bytes(before) == sorted_bytes(after):
            continue
        if name == "context":
            yield FieldChange(name, _context_summary(before), _context_summary(after))
        else:
            yield FieldChange(name, before, after)


def _context_summary(context: Any) -> Any:
    """Return the metadata of a context without its files. Its text may be megabytes."""
    metadata = (context or {}).get("metadata")
    if not isinstance(metadata, dict):
        return None
    return {name: value for name, value in metadata.items() if name != "files"}


# --- Differences in words ---


def _count(number: int) -> str:
    return "a message" if number == 1 else f"{number} messages"


def _phrases_of(field: FieldChange) -> list[str]:
    """Return a changed field in words."""
    if field.name in _FIELDS_WITHOUT_PHRASE:
        return []
    name = field.name.removeprefix("metadata.")
    if name in _PHRASES:
        return _PHRASES[name](field)
    if field.before is None:
        return [f"{_plain(name)} set"]
    if field.after is None:
        return [f"{_plain(name)} removed"]
    return [f"{_plain(name)} changed"]


def _title_phrases(field: FieldChange) -> list[str]:
    return [f"renamed to {_quoted(field.after)}"]


def _tag_phrases(field: FieldChange) -> list[str]:
    return _list_phrases("tags", field.before, field.after, "tagged {}", "untagged {}")


def _participant_phrases(field: FieldChange) -> list[str]:
    ids_before = [member.id for member in members_in(field.before) if member.is_in]
    ids_after = [member.id for member in members_in(field.after) if member.is_in]
    if ids_before == ids_after:
        return ["participants changed"]
    return _list_phrases("participants", ids_before, ids_after, "{} joined", "{} left")


def _history_phrases(field: FieldChange) -> list[str]:
    readable = "everything" if field.after == "all" else "what is said after they join"
    return [f"participants read {readable}"]


def _conflict_phrases(field: FieldChange) -> list[str]:
    count = len(field.after) if isinstance(field.after, list) else 0
    if not count:
        return ["conflicts settled"]
    return [f"{count} conflict{'' if count == 1 else 's'} to resolve"]


def _value_phrases(field: FieldChange) -> list[str]:
    return [f"{field.name.removeprefix('metadata.')} changed to {_plain(field.after)}"]


def _switch_phrases(on: str, off: str) -> Callable[[FieldChange], list[str]]:
    """Return the function for a field that is true or false."""

    def phrases(field: FieldChange) -> list[str]:
        if bool(field.before) == bool(field.after):
            return []
        return [on if field.after else off]

    return phrases


#: The functions that put a changed field into words.
_PHRASES: dict[str, Callable[[FieldChange], list[str]]] = {
    "title": _title_phrases,
    "tags": _tag_phrases,
    "participants": _participant_phrases,
    "history": _history_phrases,
    "archived": _switch_phrases("archived", "taken from the archive"),
    "pinned": _switch_phrases("pinned", "unpinned"),
    "isSummary": _switch_phrases("made a summary", "no summary any more"),
    "context": lambda _: ["project context changed"],
    "mcpServers": lambda _: ["MCP servers changed"],
    "conflicts": _conflict_phrases,
    "type": _value_phrases,
    "mode": _value_phrases,
}


def _list_phrases(
    name: str, before: Any, after: Any, added_phrase: str, removed_phrase: str
) -> list[str]:
    """Return the added and removed items of a list in words."""
    items_before = before if isinstance(before, list) else []
    items_after = after if isinstance(after, list) else []
    added = [item for item in items_after if item not in items_before]
    removed = [item for item in items_before if item not in items_after]
    phrases = []
    if added:
        phrases.append(added_phrase.format(", ".join(map(_plain, added))))
    if removed:
        phrases.append(removed_phrase.format(", ".join(map(_plain, removed))))
    return phrases or [f"{name} put in another order"]


def _plain(value: Any) -> str:
    """Return a word that needs no quotes without them, and any other text in quotes."""
    text = value if isinstance(value, str) else str(value)
    if not text or not text.isprintable() or len(text) > _MAX_QUOTED or "," in text:
        return _quoted(text)
    return text


def _quoted(text: Any) -> str:
    return repr(truncated(str(text), _MAX_QUOTED))
