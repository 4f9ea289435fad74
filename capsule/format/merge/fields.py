"""Merging two versions of a document without a history, field by field: of an agent, of a project.

What must stay true: of two read cursors that both moved the further one stands, whole; where both
changed who may write to an agent, find it or see a project, what grants less stands; the result
does not depend on the order of the sides; and unknown fields survive. Pure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capsule.format.fields import DISCOVERABLE, DM_POLICIES
from capsule.format.kinds import DocumentKind
from capsule.format.merge.head import ConflictRecorder, by_rules
from capsule.format.merge.notes import MergeResult
from capsule.format.merge.values import ABSENT, Rule, changed, first, greater, merged, merged_object
from capsule.format.migrations import parse_version
from capsule.timestamps import sortable

Document = dict[str, Any]


def merge_fields(
    kind: DocumentKind, base: Document | None, ours: Document, theirs: Document
) -> MergeResult:
    """Merge two versions of a document. `base` is the version that both began from; None: there is
    none.
    """
    base, ours, theirs = (kind.ordered(side) for side in (base or {}, ours, theirs))
    clashes = ConflictRecorder()
    document = changed(
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
        return changed(
            base,
            ours,
            theirs,
            lambda: merged_object(base, mine, yours, lambda _, *entry: rule(*entry)),
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


_greater = _entries(lambda base, ours, theirs: merged(base, ours, theirs, greater))
#: Which value stands where both sides changed a field, or an entry of one.
_RULES: dict[str, Rule] = {
    "createdAt": first(lambda text: [-ord(letter) for letter in _time(text)]),
    "updatedAt": first(_time),
    "lastSeen": first(_time),
    "lastActive": first(_time),
    "version": first(lambda text: parse_version(text) or (0, 0)),
    "dmPolicy": first(_strictness(DM_POLICIES)),
    "discoverable": first(_strictness(DISCOVERABLE)),
    "cursors": _entries(first(_distance)),
    "dm": _entries(first(_caution)),
    "links": _entries(first(_narrowness)),
    # The fields of both; where both changed one, the later time and the greater text.
    **dict.fromkeys(("requests", "reading", "concerns"), _greater),
}
