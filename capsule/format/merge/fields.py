"""Merging two heads field by field, and finding what a person has to settle.

What must stay true: the result does not depend on the order of the sides; where both changed a
field and the format has no rule, `metadata.conflicts` holds every value; and where a rule compares
times, the time is written to the result, so that the next merge compares with it and not with the
time of this merge. No clock, no chance. Pure.

[joined: fields] Merging two versions of a document without a history, field by field: of an agent, of a project.

What must stay true: of two read cursors that both moved the further one stands, whole; where both
changed who may write to an agent, find it or see a project, what grants less stands; the result
does not depend on the order of the sides; and unknown fields survive. Pure.
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
    Clash,
    Rule,
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
_TITLE = ("title", "titleSetBy", "titleSetAt")


@dataclass(slots=True)
class HeadMerge:
    """Three versions of a head, and what merging them finds.

    Attributes:
        base: The common ancestor's capsule; an empty one when there is none.
        ours: One side's.
        theirs: The other's.
        conflicts: What both changed differently and a person has to settle.
        notes: What was decided besides, in words.
    """

    base: Document
    ours: Document
    theirs: Document
    conflicts: ConflictRecorder = field(default_factory=lambda: ConflictRecorder())
    notes: list[str] = field(default_factory=list)

    def merged(self) -> dict[str, Any]:
        """The head of both: everything but `history`; `currentNode` is not looked at, and not
        there.
        """
        rules: dict[str, Rule] = {
            "version": lambda _, mine, yours: max(
                (mine, yours), key=lambda side: (parse_version(side) or (0, 0), side)
            ),
            "createdAt": lambda _, mine, yours: min(mine, yours),
            "updatedAt": lambda _, mine, yours: max(mine, yours),
            "metadata": self._metadata,
            "context": self._context,
        }
        head = by_rules(
            self.base,
            self.ours,
            self.theirs,
            rules | _left_out("title", "history"),
            self.conflicts,
            "",
        )
        title = self._title()
        was, mine, yours = (
            side.get("metadata", {}).get("conflicts")
            for side in (self.base, self.ours, self.theirs)
        )
        recorded = merge_conflicts(
            was, mine, yours, self.conflicts, (title["title"], title.get("titleSetAt"))
        )
        head["title"] = title.pop("title")
        head["metadata"] = {
            **head["metadata"],
            **title,
            **({"conflicts": recorded} if recorded else {}),
        }
        return head

    def _metadata(self, base: Any, ours: Any, theirs: Any) -> dict[str, Any]:
        rules = _left_out(*_TITLE[1:], "currentNode", "currentWanted", "conflicts") | {
            "tags": merge_set,
            "participants": _members,
            "summaryOf": by_rank(_lateness),  # What it says is of one moment, so it is taken whole.
            "mcpServers": self._servers,
        }
        return by_rules(base, ours, theirs, rules, self.conflicts, "metadata", ("metadata",))

    def _servers(self, base: Any, ours: Any, theirs: Any) -> Any:
        where = ("metadata", "mcpServers")
        if any(isinstance(side, list) for side in (base, ours, theirs)) and not same(ours, theirs):
            base, ours, theirs = (
                overrides_in(side) if side is not ABSENT else side for side in (base, ours, theirs)
            )
        if isinstance(ours, dict) or isinstance(theirs, dict):
            # No override at all is as good as an empty list of them.
            ours, theirs = (side if isinstance(side, dict) else {} for side in (ours, theirs))
        return merge_value(base, ours, theirs, self.conflicts, where) or ABSENT

    # -- The title ---------------------------------------------------------------------------------

    def _title(self) -> dict[str, Any]:
        """`title`, `titleSetBy` and `titleSetAt`: a person's before a rule's, then the later."""
        base, ours, theirs = (_title_of(side) for side in (self.base, self.ours, self.theirs))
        if same(ours, theirs):
            return ours
        mine, yours = _dated(ours, base, self.ours), _dated(theirs, base, self.theirs)
        if same(theirs, base):
            return mine
        if same(ours, base):
            return yours
        winner, loser = sorted((mine, yours), key=_title_rank, reverse=True)
        if winner["title"] == loser["title"]:
            return {
                **winner,
                "titleSetAt": max(mine.get("titleSetAt") or "", yours.get("titleSetAt") or ""),
            }
        if _person(winner) and _person(loser):
            values = ((side["title"], side.get("titleSetAt") or None) for side in (mine, yours))
            self.conflicts.append(Conflict.of(("title",), values, winner["title"]))
        return winner

    # -- The context -------------------------------------------------------------------------------

    def _context(self, base: Any, ours: Any, theirs: Any) -> Any:
        """The context that was changed; of two the newer capture, with the digest of the other."""
        if same(ours, theirs):
            return ours
        was = _captured(base)
        mine, yours = _capture(ours, was, self.ours), _capture(theirs, was, self.theirs)
        if same(theirs, base):
            return mine
        if same(ours, base):
            return yours
        winner, loser = sorted(
            (mine, yours),
            key=lambda side: (_captured(side) or "", encode_value(side)),
            reverse=True,
        )
        former = [
            digest for side in (mine, yours) for digest in side["metadata"].get("otherHashes") or ()
        ]
        others = {*former, _hash_of(loser)} - {_hash_of(winner), ""}
        about = {name: value for name, value in winner["metadata"].items() if name != "otherHashes"}
        if _hash_of(loser) not in ("", _hash_of(winner)):
            self.notes.append("the context was captured again on both sides; the newer one is kept")
        return {**winner, "metadata": about | ({"otherHashes": sorted(others)} if others else {})}


class ConflictRecorder(list[Conflict]):
    """The conflicts of a merge: both sides changed a field, and no rule says which stands."""

    def __call__(self, where: tuple[str, ...], ours: Any, theirs: Any) -> Any:
        """Record one. Until a person decides, the value does; of two accesses of a channel it is
        the closer one.
        """
        kept = max(ours, theirs, key=lambda value: (_closeness(where, value), encode_value(value)))
        self.append(Conflict.of(where, ((ours, None), (theirs, None)), kept))
        return kept


def by_rules(
    base: Any,
    ours: Any,
    theirs: Any,
    rules: Mapping[str, Rule],
    clash: Clash,
    part: str,
    where: tuple[str, ...] = (),
) -> dict[str, Any]:
    """One part of the format out of three: each field by its rule, or key by key."""

    def each(name: str, was: Any, mine: Any, yours: Any) -> Any:
        rule = rules.get(name)
        return (
            rule(was, mine, yours) if rule else merge_value(was, mine, yours, clash, (*where, name))
        )

    return merge_object(base, ours, theirs, each, frozenset(field_names(part)))


def _left_out(*fields: str) -> dict[str, Rule]:
    return dict.fromkeys(fields, lambda *_: ABSENT)


def _closeness(where: tuple[str, ...], value: Any) -> int:
    """How strict an access of a channel is; 0 for any other field."""
    if where != ("metadata", "channel", "access"):
        return 0
    return ACCESSES.index(value) if value in ACCESSES else len(ACCESSES)


def _title_of(document: Document) -> dict[str, Any]:
    about = document.get("metadata", {})
    title = {"title": document["title"]} if "title" in document else {}
    return title | {name: about[name] for name in _TITLE[1:] if name in about}


def _dated(title: dict[str, Any], base: Mapping[str, Any], document: Document) -> dict[str, Any]:
    """A title with the time it was set; one that was changed without that is as old as
    its version.
    """
    if title["title"] == base.get("title") and title.get("titleSetBy") == base.get("titleSetBy"):
        return title
    stamp = title.get("titleSetAt")
    is_stale = stamp is None or ("title" in base and stamp == base.get("titleSetAt"))
    return {**title, "titleSetAt": (not is_stale and sortable(str(stamp))) or document["updatedAt"]}


def _person(title: Mapping[str, Any]) -> bool:
    """Whether a person gave it; where nobody says who did, it is taken for a person's."""
    return bool(title["title"]) and title.get("titleSetBy") != "auto"


def _title_rank(title: Mapping[str, Any]) -> tuple[bool, bool, str, bytes]:
    return _person(title), bool(title["title"]), title.get("titleSetAt") or "", encode_value(title)


def _members(base: Any, ours: Any, theirs: Any) -> Any:
    """Those of both, field by field; where both changed one, `merge_rank` decides, and an object is
    before a text.
    """

    def first(where: tuple[str, ...], mine: Any, yours: Any) -> Any:
        name = where[-1] if where else ""
        return max(
            mine,
            yours,
            key=lambda side: (isinstance(side, dict), merge_rank(name, side), encode_value(side)),
        )

    return merge_set(base, ours, theirs, id_of, first)


def _lateness(summary: Any) -> str:
    return (summary.get("updatedAt") or "") if isinstance(summary, dict) else ""


def _captured(context: Any) -> str | None:
    about = context.get("metadata") if isinstance(context, dict) else None
    return about.get("capturedAt") if isinstance(about, dict) else None


def _capture(context: Any, was: str | None, document: Document) -> Any:
    """A context with the time of its capture; one that was changed without that is as old as its
    version.
    """
    if not isinstance(context, dict):
        return context
    stamp = _captured(context)
    stamp = (stamp != was and sortable(stamp or "")) or document["updatedAt"]
    return {**context, "metadata": {**context.get("metadata", {}), "capturedAt": stamp}}


def _hash_of(context: Any) -> str:
    """The digest that a context has, or would have; empty for one without a text."""
    text = context.get("fullContext", "")
    stated = context["metadata"].get("contextHash")
    return stated or (f"sha256:{sha256(text.encode()).hexdigest()}" if text else "")


PlainDocument = dict[str, Any]


def merge_fields(
    kind: DocumentKind, base: PlainDocument | None, ours: PlainDocument, theirs: PlainDocument
) -> MergeResult:
    """Merge two versions of a document. `base` is the version that both began from; None: there is
    none.
    """
    base, ours, theirs = (kind.ordered(side) for side in (base or {}, ours, theirs))
    clashes = ConflictRecorder()
    document = three_way(
        base,
        ours,
        theirs,
        lambda: kind.ordered(by_rules(base, ours, theirs, _RULES, clashes, kind.part)),
    )
    return MergeResult(document, tuple(sorted(clashes, key=lambda conflict: conflict.field)))


def _entries(rule: Rule) -> Rule:
    """The rule for an object of entries; what a side has not, it took away."""

    def both(base: Any, ours: Any, theirs: Any) -> Any:
        mine, yours = ({} if side is ABSENT else side for side in (ours, theirs))
        return three_way(
            base,
            ours,
            theirs,
            lambda: merge_object(base, mine, yours, lambda _, *entry: rule(*entry)),
        )

    return both


def _time(text: Any) -> str:
    return sortable(text) if isinstance(text, str) else ""


def _strictness(words: tuple[str, ...]) -> Callable[[Any], int]:
    """How strict a policy is. An absent one counts as the first of these, and an unknown one as
    stricter than all.
    """
    return lambda value: (
        0 if value is ABSENT else words.index(value) if value in words else len(words)
    )


def _distance(cursor: Any) -> tuple[int, str]:
    """How far a cursor is: its place, then its message, as ids sort by time. A removed cursor is
    before all others.
    """
    fields = cursor if isinstance(cursor, dict) else {}
    place, message = fields.get("at"), fields.get("message")
    return place if type(place) is int else -1, message if isinstance(message, str) else ""


def _caution(entry: Any) -> int:
    """How strict an entry about another agent is: a block, then a removed entry,
    then an allowance.
    """
    return 1 if entry is ABSENT else 0 if entry.get("permission") == "allow" else 2


def _narrowness(link: Any) -> int:
    """How little a link shows; an ended link shows least."""
    return (
        3
        if link is ABSENT
        else 2
        if link.get("enabled") is False
        else int(link.get("direction") != "both")
    )


_greater = _entries(lambda base, ours, theirs: merge_value(base, ours, theirs, take_greater))
#: Which value stands where both sides changed a field, or an entry of one.
_RULES: dict[str, Rule] = {
    "createdAt": by_rank(lambda text: [-ord(letter) for letter in _time(text)]),
    "updatedAt": by_rank(_time),
    "lastSeen": by_rank(_time),
    "lastActive": by_rank(_time),
    "version": by_rank(lambda text: parse_version(text) or (0, 0)),
    "dmPolicy": by_rank(_strictness(DM_POLICIES)),
    "discoverable": by_rank(_strictness(DISCOVERABLE)),
    "cursors": _entries(by_rank(_distance)),
    "dm": _entries(by_rank(_caution)),
    "links": _entries(by_rank(_narrowness)),
    # The fields of both; where both changed one, the later time and the greater text.
    **dict.fromkeys(("requests", "reading", "concerns"), _greater),
}
