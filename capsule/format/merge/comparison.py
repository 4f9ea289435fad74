"""What changed between two versions of a conversation: as data, and in words.

What must stay true: a lock, `updatedAt` and what the next write fills in (ids, times, the version)
are no changes; messages are compared by id, wherever they stand; and every other difference is
named. Pure.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress, pairwise
from typing import Any

from capsule.format import migrations
from capsule.format.documents.members import members_in
from capsule.format.merge.annotations import without_parent
from capsule.format.merge.three_way import flat_head, sorted_bytes
from capsule.format.text.escaping import truncated
from capsule.format.tree.tree import Tree

Document = Mapping[str, Any]
Message = Mapping[str, Any]

#: Fields whose changes do not count.
_UNCOUNTED = frozenset({"updatedAt", "metadata.lock", "history"})
#: Fields that change along with one that has words: who gave the title and when, and the active
#: branch.
_WORDLESS = frozenset(
    {"metadata.titleSetBy", "metadata.titleSetAt", "metadata.currentNode", "metadata.currentWanted"}
)
_QUOTED = 60
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
    """What changed between two versions.

    Attributes:
        created: Whether the conversation was not there before.
        deleted: Whether it is gone.
        added: Messages that came, in the order of the history; of a created one all.
        edited: Messages that changed, as they were and as they are, in the order of the history as
            it is.
        removed: Messages that went, in the order of the history as it was; of a deleted one all.
        moved: Messages that answer another one than before, though nothing else of them changed,
            and that one is there.
        reordered: Whether messages that stayed stand in another order.
        switched: Whether another branch is the active one, and not just longer.
        fields: The head's fields that changed; of a created or deleted conversation none.
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
        """What changed, in a few words each: `2 messages added`, `renamed to 'X'`; empty when
        nothing did.

        What stands in the conversation is quoted as Python quotes texts, so that nothing in it
        commands a terminal.
        """
        if self.deleted:
            return ["deleted"]
        if self.created:
            return [f"created with {_count(len(self.added))}" if self.added else "created"]
        parts = {name: getattr(self, name) for name in ("added", "edited", "removed")}
        parts["moved to another branch"] = self.moved
        words = [f"{_count(len(messages))} {verb}" for verb, messages in parts.items() if messages]
        words += ["messages put in another order"] * self.reordered + [
            "switched to another branch"
        ] * self.switched
        for field in self.fields:
            words += _words_of(field)
        if self.fields and not words:
            words.append(
                ", ".join(_plain(field.name.removeprefix("metadata.")) for field in self.fields)
                + " changed"
            )
        return words

    def as_json(self, *, messages: bool = False) -> dict[str, Any]:
        """What `--json` prints: what is empty is left out.

        Args:
            messages: Whether messages are given whole, the edited ones as they were and as they
                are; else their ids.
        """
        result: dict[str, Any] = {name: True for name in _FLAGS if getattr(self, name)}
        for name in ("added", "removed", "moved"):
            if part := getattr(self, name):
                result[name] = [message if messages else message["id"] for message in part]
        if self.edited:
            result["edited"] = [
                {"before": before, "after": after} if messages else after["id"]
                for before, after in self.edited
            ]
        if self.fields:
            result["fields"] = {
                field.name: {"before": field.before, "after": field.after} for field in self.fields
            }
        return result


def compare(before: Document | None, after: Document | None) -> Comparison:
    """What changed from one version of a conversation, as `codec.decode` gives it, to the next;
    None: it is not there.

    Raises InvalidDocument if one is of a newer major version. Cost: a few microseconds a message.
    """
    if before is None:
        return (
            Comparison()
            if after is None
            else Comparison(created=True, added=tuple(_current(after)["history"]))
        )
    if after is None:
        return Comparison(deleted=True, removed=tuple(_current(before)["history"]))
    old, new = _current(before), _current(after)
    # By places, as an id may stand twice: the second use of one is another message.
    pairs = _paired(before, after, old["history"], new["history"])
    became = dict(pairs)
    stays = {*became.values()}
    trees = Tree(old["history"]), Tree(new["history"])
    versions = [(old["history"][was], new["history"][now]) for was, now in pairs]
    edited = [sorted_bytes(_alone(was)) != sorted_bytes(_alone(now)) for was, now in versions]
    return Comparison(
        added=tuple(message for place, message in enumerate(new["history"]) if place not in stays),
        edited=tuple(compress(versions, edited)),
        removed=tuple(
            message for place, message in enumerate(old["history"]) if place not in became
        ),
        moved=tuple(
            new["history"][now]
            for (was, now), is_edited in zip(pairs, edited, strict=True)
            if not is_edited
            and "parent" in new["history"][now]
            and _is_moved(trees, was, now, became)
        ),
        reordered=any(first > second for (first, _), (second, _) in pairwise(pairs)),
        switched=_is_switched(trees, old, new, became),
        fields=tuple(_fields(old, new)),
    )


def _current(document: Document) -> dict[str, Any]:
    return migrations.upgrade(dict(document))[0]


def _alone(message: Message) -> dict[str, Any]:
    """A message without its id and its parent: a file may leave the parent out."""
    return {name: value for name, value in without_parent(message).items() if name != "id"}


def _paired(
    before: Document, after: Document, old: Sequence[Message], new: Sequence[Message]
) -> list[tuple[int, int]]:
    """Which message became which, by places, in the order of `new`.

    The next write gives a message without an id one that is made of its place and its words. If one
    of the two changed before that write, the other one still identifies the message.
    """
    typed = [[not message.get("id") for message in side["history"]] for side in (before, after)]
    pairs: dict[int, int] = {}
    paired: set[int] = set()
    for key in _KEYS:
        waiting: dict[Any, deque[int]] = {}
        for place, message in enumerate(old):
            if place not in paired:
                waiting.setdefault(key(message), deque()).append(place)
        if not waiting:
            break
        for place, message in enumerate(new):
            there = waiting.get(key(message)) if place not in pairs else None
            if there and (key is _KEYS[0] or typed[0][there[0]] or typed[1][place]):
                pairs[place] = there.popleft()
                paired.add(pairs[place])
    return sorted(((was, now) for now, was in pairs.items()), key=lambda pair: pair[1])


#: What identifies a message: its id; for one that a person typed, also its words, then its time.
_KEYS: tuple[Callable[[Message], Any], ...] = (
    lambda message: message["id"],
    lambda message: (message["role"], message["content"]),
    lambda message: (message["role"], message["timestamp"]),
)


def _is_moved(trees: tuple[Tree, Tree], was: int, now: int, became: Mapping[int, int]) -> bool:
    """Whether the parent of a message changed by intent: one that was removed does not count."""
    parent = trees[0].parents[was]
    above = became.get(parent) if parent >= 0 else -1
    return above not in (None, trees[1].parents[now])


def _is_switched(
    trees: tuple[Tree, Tree], old: Document, new: Document, became: Mapping[int, int]
) -> bool:
    """Whether the end of the branch that was active lies on another branch than the one that is."""
    leaf = became.get(trees[0].active_leaf(old["metadata"].get("currentNode")))
    return leaf is not None and leaf not in trees[1].path(new["metadata"].get("currentNode"))


def _fields(old: Document, new: Document) -> Iterator[FieldChange]:
    flats = flat_head(old), flat_head(new)
    for name in {**flats[0], **flats[1]}:
        before, after = flats[0].get(name), flats[1].get(name)
        if name in _UNCOUNTED or sorted_bytes(before) == sorted_bytes(after):
            continue
        if name == "context":
            before, after = _of_context(before), _of_context(after)
        yield FieldChange(name, before, after)


def _of_context(context: Any) -> Any:
    """What of a context is shown: its text may be megabytes, and its files thousands."""
    about = (context or {}).get("metadata")
    return (
        {name: value for name, value in about.items() if name != "files"}
        if isinstance(about, dict)
        else None
    )


def _count(number: int) -> str:
    return "a message" if number == 1 else f"{number} messages"


def _words_of(field: FieldChange) -> Iterator[str]:
    """A changed field in words."""
    name, before, after = field.name.removeprefix("metadata."), field.before, field.after
    if name == "title":
        yield f"renamed to {_quoted(after)}"
    elif field.name in _WORDLESS:
        return
    elif name == "tags":
        yield from _came_and_went(field, "tagged {}", "untagged {}")
    elif name == "participants":
        ids = [
            [member.id for member in members_in(side) if member.is_in] for side in (before, after)
        ]
        is_same, there = ids[0] == ids[1], FieldChange(field.name, *ids)
        yield from (
            ["participants changed"] if is_same else _came_and_went(there, "{} joined", "{} left")
        )
    elif name == "history":
        yield (
            "participants read "
            f"{'everything' if after == 'all' else 'what is said after they join'}"
        )
    elif name in _SWITCHES:
        if bool(before) != bool(after):
            yield _SWITCHES[name][0 if after else 1]
    elif name in _CHANGED:
        yield f"{_CHANGED[name]} changed"
    elif name == "conflicts":
        many = len(after) if isinstance(after, list) else 0
        yield (
            f"{many} conflict{'' if many == 1 else 's'} to resolve" if many else "conflicts settled"
        )
    elif name in ("type", "mode"):
        yield f"{name} changed to {_plain(after)}"
    else:
        yield (
            f"{_plain(name)} "
            f"{'set' if before is None else 'removed' if after is None else 'changed'}"
        )


_CHANGED = {"context": "project context", "mcpServers": "MCP servers"}
_SWITCHES = {
    "archived": ("archived", "taken from the archive"),
    "pinned": ("pinned", "unpinned"),
    "isSummary": ("made a summary", "no summary any more"),
}


def _came_and_went(field: FieldChange, came: str, went: str) -> Iterator[str]:
    before, after = (
        value if isinstance(value, list) else [] for value in (field.before, field.after)
    )
    names = {
        came: [name for name in after if name not in before],
        went: [name for name in before if name not in after],
    }
    yield from (
        words.format(", ".join(map(_plain, changed))) for words, changed in names.items() if changed
    )
    if not any(names.values()):
        yield f"{field.name.removeprefix('metadata.')} put in another order"


def _plain(text: Any) -> str:
    """A word that needs no quotes; any other one in quotes."""
    text = text if isinstance(text, str) else str(text)
    return (
        text
        if text and text.isprintable() and len(text) <= _QUOTED and "," not in text
        else _quoted(text)
    )


def _quoted(text: Any) -> str:
    return repr(truncated(str(text), _QUOTED))
