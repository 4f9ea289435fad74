"""Merge documents field by field: the heads of capsules, and documents without a history.

Each field has a rule, or is merged key by key. Where both sides changed a field and no rule decides,
`ConflictRecorder` keeps both values for a person. `HeadMerge` merges everything of a capsule but its
messages. `merge_fields` merges the documents of agents and projects.

What must stay true: the result does not depend on the order of the sides, and unknown fields
survive. Where a rule compares times, the result has the time that won, so the next merge does not
compare with the time of this merge. If both sides moved a read cursor, the further one wins as a
whole. If both changed who may write to an agent, find it, or see a project, the stricter value wins.
No clock, no chance. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any

from capsule.format.documents.members import id_of, merge_rank
from capsule.format.documents.servers import overrides_in
from capsule.format.fields import ACCESSES, DISCOVERABLE, DM_POLICIES, field_names
from capsule.format.merge.annotations import Conflict, MergeResult, merge_conflicts
from capsule.format.merge.three_way import (
    ABSENT,
    ConflictHandler,
    MergeRule,
    by_rank,
    encode_value,
    merge_object,
    merge_set,
    merge_value,
    same,
    take_greater,
    three_way,
)
from capsule.format.migrations import parse_version
from capsule.format.validation import DocumentKind
from capsule.timestamps import sortable

Document = Mapping[str, Any]
PlainDocument = dict[str, Any]
_TITLE_FIELDS = ("titleSetBy", "titleSetAt")


def by_rules(
    base: Any,
    ours: Any,
    theirs: Any,
    rules: Mapping[str, MergeRule],
    handle_conflict: ConflictHandler,
    part: str,
    json_path: tuple[str, ...] = (),
) -> dict[str, Any]:
    """Return one part of a document from three: each field by its rule, or key by key.

    Args:
        base, ours, theirs: The part in each version.
        rules: The rules by the names of fields.
        handle_conflict: Decides where both sides changed a field without a rule.
        part: The name of the part in `capsule.format.fields`.
        json_path: The path of the part, for `handle_conflict`.
    """

    def merge_field(name: str, base_value: Any, our_value: Any, their_value: Any) -> Any:
        rule = rules.get(name)
        if rule is not None:
            return rule(base_value, our_value, their_value)
        path = (*json_path, name)
        return merge_value(base_value, our_value, their_value, handle_conflict, path)

    return merge_object(base, ours, theirs, merge_field, frozenset(field_names(part)))


class ConflictRecorder(list[Conflict]):
    """A list of the conflicts of a merge, and the `ConflictHandler` that adds them."""

    def __call__(self, json_path: tuple[str, ...], ours: Any, theirs: Any) -> Any:
        """Record a conflict. Return the value that the field has until a person decides.

        That is the stricter access of a channel. Of any other field it is the greater JSON.
        """
        value = max(
            ours, theirs, key=lambda side: (_access_rank(json_path, side), encode_value(side))
        )
        self.append(Conflict.from_values(json_path, ((ours, None), (theirs, None)), value))
        return value


def _access_rank(json_path: tuple[str, ...], value: Any) -> int:
    """Return how strict an access of a channel is. 0 for any other field."""
    if json_path != ("metadata", "channel", "access"):
        return 0
    return ACCESSES.index(value) if value in ACCESSES else len(ACCESSES)


def _omit(*names: str) -> dict[str, MergeRule]:
    """Return rules that leave these fields out of the result."""
    return dict.fromkeys(names, lambda *_: ABSENT)


# --- The heads of capsules ---


@dataclass(slots=True)
class HeadMerge:
    """The merge of three versions of a head.

    Attributes:
        base: The common ancestor's capsule; empty if there is none.
        ours, theirs: The capsules of the sides.
        conflicts: The fields that both sides changed differently, for a person to settle.
        notes: Other decisions, in words.
    """

    base: Document
    ours: Document
    theirs: Document
    conflicts: ConflictRecorder = field(default_factory=lambda: ConflictRecorder())
    notes: list[str] = field(default_factory=list)

    def merge(self) -> dict[str, Any]:
        """Return the merged capsule without `history` and `currentNode`."""
        rules: dict[str, MergeRule] = {
            "version": lambda _, ours, theirs: max(ours, theirs, key=_version_rank),
            "createdAt": lambda _, ours, theirs: min(ours, theirs),
            "updatedAt": lambda _, ours, theirs: max(ours, theirs),
            "metadata": self._merge_metadata,
            "context": self._merge_context,
        }
        rules |= _omit("title", "history")
        head = by_rules(self.base, self.ours, self.theirs, rules, self.conflicts, "")
        title = self._merge_title()
        recorded = merge_conflicts(
            self.base.get("metadata", {}).get("conflicts"),
            self.ours.get("metadata", {}).get("conflicts"),
            self.theirs.get("metadata", {}).get("conflicts"),
            added=self.conflicts,
            title_and_time=(title["title"], title.get("titleSetAt")),
        )
        head["title"] = title.pop("title")
        head["metadata"] = {**head["metadata"], **title}
        if recorded:
            head["metadata"]["conflicts"] = recorded
        return head

    def _merge_metadata(self, base: Any, ours: Any, theirs: Any) -> dict[str, Any]:
        rules = _omit(*_TITLE_FIELDS, "currentNode", "currentWanted", "conflicts") | {
            "tags": merge_set,
            "participants": _merge_members,
            "summaryOf": by_rank(_summary_time),  # As a whole: its fields are of one moment.
            "mcpServers": self._merge_servers,
        }
        return by_rules(base, ours, theirs, rules, self.conflicts, "metadata", ("metadata",))

    def _merge_servers(self, base: Any, ours: Any, theirs: Any) -> Any:
        """Merge the overrides by server. A list of names counts as servers that are on."""
        versions = [base, ours, theirs]
        if any(isinstance(version, list) for version in versions) and not same(ours, theirs):
            for index, version in enumerate(versions):
                if version is not ABSENT:
                    versions[index] = overrides_in(version)
        if isinstance(versions[1], dict) or isinstance(versions[2], dict):
            # A side without overrides is like one with none of them.
            for index in (1, 2):
                if not isinstance(versions[index], dict):
                    versions[index] = {}
        json_path = ("metadata", "mcpServers")
        merged = merge_value(versions[0], versions[1], versions[2], self.conflicts, json_path)
        return merged or ABSENT

    def _merge_title(self) -> dict[str, Any]:
        """Return `title`, `titleSetBy` and `titleSetAt`.

        A person's title wins over an automatic one, then the later one. Two different titles of
        persons are a conflict.
        """
        base = _title_of(self.base)
        ours = _title_of(self.ours)
        theirs = _title_of(self.theirs)
        if same(ours, theirs):
            return ours
        our_title = _with_title_time(ours, base, self.ours)
        their_title = _with_title_time(theirs, base, self.theirs)
        if same(theirs, base):
            return our_title
        if same(ours, base):
            return their_title
        winner, loser = sorted((our_title, their_title), key=_title_rank, reverse=True)
        if winner["title"] == loser["title"]:
            our_time = our_title.get("titleSetAt") or ""
            their_time = their_title.get("titleSetAt") or ""
            return {**winner, "titleSetAt": max(our_time, their_time)}
        if _is_by_person(winner) and _is_by_person(loser):
            candidates = [
                (side["title"], side.get("titleSetAt") or None) for side in (our_title, their_title)
            ]
            self.conflicts.append(Conflict.from_values(("title",), candidates, winner["title"]))
        return winner

    def _merge_context(self, base: Any, ours: Any, theirs: Any) -> Any:
        """Return the context that was changed; of two the newer capture.

        It names the digests of the captures that it replaced.
        """
        if same(ours, theirs):
            return ours
        base_time = _capture_time(base)
        our_context = _with_capture_time(ours, base_time, self.ours)
        their_context = _with_capture_time(theirs, base_time, self.theirs)
        if same(theirs, base):
            return our_context
        if same(ours, base):
            return their_context
        contexts = (our_context, their_context)
        winner, loser = sorted(contexts, key=_capture_rank, reverse=True)
        other_hashes = {_hash_of(loser)}
        for context in contexts:
            other_hashes.update(context["metadata"].get("otherHashes") or ())
        other_hashes -= {_hash_of(winner), ""}
        metadata = dict(winner["metadata"])
        metadata.pop("otherHashes", None)
        if other_hashes:
            metadata["otherHashes"] = sorted(other_hashes)
        if _hash_of(loser) not in ("", _hash_of(winner)):
            self.notes.append("the context was captured again on both sides; the newer one is kept")
        return {**winner, "metadata": metadata}


def _version_rank(version: Any) -> tuple[tuple[int, int], Any]:
    return parse_version(version) or (0, 0), version


def _title_of(document: Document) -> dict[str, Any]:
    title = {}
    if "title" in document:
        title["title"] = document["title"]
    metadata = document.get("metadata", {})
    for name in _TITLE_FIELDS:
        if name in metadata:
            title[name] = metadata[name]
    return title


def _with_title_time(
    title: dict[str, Any], base: Mapping[str, Any], document: Document
) -> dict[str, Any]:
    """Return a changed title with its time. If that was not changed too, its document's counts."""
    is_same_title = title["title"] == base.get("title")
    if is_same_title and title.get("titleSetBy") == base.get("titleSetBy"):
        return title
    time = title.get("titleSetAt")
    is_stale = time is None or ("title" in base and time == base.get("titleSetAt"))
    title_time = "" if is_stale else sortable(str(time))
    return {**title, "titleSetAt": title_time or document["updatedAt"]}


def _is_by_person(title: Mapping[str, Any]) -> bool:
    """Return whether a person gave the title. One of unknown origin counts as a person's."""
    return bool(title["title"]) and title.get("titleSetBy") != "auto"


def _title_rank(title: Mapping[str, Any]) -> tuple[bool, bool, str, bytes]:
    time = title.get("titleSetAt") or ""
    return _is_by_person(title), bool(title["title"]), time, encode_value(title)


def _merge_members(base: Any, ours: Any, theirs: Any) -> Any:
    """Return the members of both sides, merged field by field.

    If both sides changed a field, `merge_rank` decides. An object wins over a text.
    """

    def take_by_rank(json_path: tuple[str, ...], our_value: Any, their_value: Any) -> Any:
        name = json_path[-1] if json_path else ""

        def rank(value: Any) -> tuple[bool, tuple[int, str], bytes]:
            return isinstance(value, dict), merge_rank(name, value), encode_value(value)

        return max(our_value, their_value, key=rank)

    return merge_set(base, ours, theirs, id_of, take_by_rank)


def _summary_time(summary: Any) -> str:
    if not isinstance(summary, dict):
        return ""
    return summary.get("updatedAt") or ""


def _capture_time(context: Any) -> str | None:
    if not isinstance(context, dict) or not isinstance(context.get("metadata"), dict):
        return None
    time: str | None = context["metadata"].get("capturedAt")
    return time


def _capture_rank(context: Any) -> tuple[str, bytes]:
    return _capture_time(context) or "", encode_value(context)


def _with_capture_time(context: Any, base_time: str | None, document: Document) -> Any:
    """Return a context with its time. If that was not changed, its document's `updatedAt` counts."""
    if not isinstance(context, dict):
        return context
    time = _capture_time(context)
    new_time = "" if time == base_time else sortable(time or "")
    metadata = {**context.get("metadata", {}), "capturedAt": new_time or document["updatedAt"]}
    return {**context, "metadata": metadata}


def _hash_of(context: Any) -> str:
    """Return the digest that a context has, or would have. Empty for one without a text."""
    stated = context["metadata"].get("contextHash")
    if stated:
        return str(stated)
    text = context.get("fullContext", "")
    if not text:
        return ""
    return f"sha256:{sha256(text.encode()).hexdigest()}"


# --- Documents without a history ---


def merge_fields(
    kind: DocumentKind, base: PlainDocument | None, ours: PlainDocument, theirs: PlainDocument
) -> MergeResult:
    """Merge two versions of a document without a history.

    `base` is the common ancestor, or None.
    """
    base_fields = kind.ordered(base or {})
    our_fields = kind.ordered(ours)
    their_fields = kind.ordered(theirs)
    conflicts = ConflictRecorder()

    def merge_both_changed() -> PlainDocument:
        merged = by_rules(base_fields, our_fields, their_fields, _RULES, conflicts, kind.part)
        return kind.ordered(merged)

    document = three_way(base_fields, our_fields, their_fields, merge_both_changed)
    return MergeResult(document, tuple(sorted(conflicts, key=lambda conflict: conflict.field)))


def _entries(rule: MergeRule) -> MergeRule:
    """Return the rule that merges an object of entries by `rule`, entry by entry."""

    def merge_entry(_: str, base_entry: Any, our_entry: Any, their_entry: Any) -> Any:
        return rule(base_entry, our_entry, their_entry)

    def merge_entries(base: Any, ours: Any, theirs: Any) -> Any:
        our_entries = {} if ours is ABSENT else ours
        their_entries = {} if theirs is ABSENT else theirs
        return three_way(
            base,
            ours,
            theirs,
            lambda: merge_object(base, our_entries, their_entries, merge_entry),
        )

    return merge_entries


def _time_rank(text: Any) -> str:
    return sortable(text) if isinstance(text, str) else ""


def _earliness(text: Any) -> list[int]:
    return [-ord(letter) for letter in _time_rank(text)]


def _strictness(values: tuple[str, ...]) -> Callable[[Any], int]:
    """Return the rank of a policy. An absent one counts as the first, an unknown as the strictest."""

    def rank(value: Any) -> int:
        if value is ABSENT:
            return 0
        return values.index(value) if value in values else len(values)

    return rank


def _cursor_rank(cursor: Any) -> tuple[int, str]:
    """Return how far a read cursor is: its index, then its message. A removed one is least."""
    fields = cursor if isinstance(cursor, dict) else {}
    index = fields.get("at")
    message = fields.get("message")
    return (
        index if type(index) is int else -1,
        message if isinstance(message, str) else "",
    )


def _permission_rank(entry: Any) -> int:
    """Return how strict an entry about another agent is: a block, a removed entry, an allowance."""
    if entry is ABSENT:
        return 1
    return 0 if entry.get("permission") == "allow" else 2


def _link_rank(link: Any) -> int:
    """Return how little a link shows. A removed link shows least."""
    if link is ABSENT:
        return 3
    if link.get("enabled") is False:
        return 2
    return int(link.get("direction") != "both")


_greater_entries = _entries(
    lambda base, ours, theirs: merge_value(base, ours, theirs, take_greater)
)
#: The rules of documents without a history, for fields that both sides changed.
_RULES: dict[str, MergeRule] = {
    "createdAt": by_rank(_earliness),
    "updatedAt": by_rank(_time_rank),
    "lastSeen": by_rank(_time_rank),
    "lastActive": by_rank(_time_rank),
    "version": by_rank(lambda text: parse_version(text) or (0, 0)),
    "dmPolicy": by_rank(_strictness(DM_POLICIES)),
    "discoverable": by_rank(_strictness(DISCOVERABLE)),
    "cursors": _entries(by_rank(_cursor_rank)),
    "dm": _entries(by_rank(_permission_rank)),
    "links": _entries(by_rank(_link_rank)),
    # Of an entry that both changed, the value whose JSON is greater: the later time.
    **dict.fromkeys(("requests", "reading", "concerns"), _greater_entries),
}
