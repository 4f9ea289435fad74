"""Convert a draft to a capsule (`document_of`), and a capsule to a draft (`draft_of`).

`metadata.imported` stores the provenance of a conversation and of each message: `format` and `id`
at the source, and `digest`, the digest of the content as it was imported. A message with another
digest was changed here.

The messages of a draft are a tree of ids and parents as the source has them. `parents_first` puts
parents before children. It reports an unknown parent, a circle and a repeated id, and reads around
them, so that no message is lost. The same messages are always put in the same order.

Invariants: imported content is data. It becomes a chat in which no agent takes part or speaks,
unless the import is trusted. Ids are made from the ids of the source alone (message ids also from
that of their conversation), so every store makes the same ones. For trusted capsules
`document_of(draft_of(x)) == x`, apart from `version`. What can't be accepted is reported and left
out. Pure: the clock comes as an argument.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.documents import creation
from capsule.format.documents.head import folder_of
from capsule.format.documents.message import check_message
from capsule.format.fields import MODES, TYPES, field_names
from capsule.format.json import codec
from capsule.format.json.canonical import in_order
from capsule.format.text.titles import automatic_title, check_title, title_from
from capsule.format.tree.tree import Tree
from capsule.ids import imported_conversation_id, imported_message_id
from capsule.timestamps import is_canonical
from capsule.transfer.drafts import digests
from capsule.transfer.drafts.digests import IMPORTED, OF_METADATA, RELATED, SOURCE, provenance_of
from capsule.transfer.drafts.trust import as_plain_chat, keeps_id
from capsule.transfer.interface import Draft, Fields, Source
from capsule.transfer.reading.json_stream import MAX_VALUE_BYTES
from capsule.transfer.records.coercion import moment, object_of, with_nonempty, without
from capsule.transfer.records.round_trip import CAPSULE_KEY

#: The parent of a root.
_ROOT = ""


def active_path(head: Fields, history: list[Fields]) -> list[Fields]:
    """The messages of the active branch, from its root, of a draft that is written."""
    return [
        history[place] for place in Tree(history).path(head.get("metadata", {}).get("currentNode"))
    ]


def parents_first(history: list[Fields], tell: Callable[[str, str], None]) -> list[Fields]:
    """The messages with an `id` and a `parent` each, parents before children; else in the order of
    the source.

    A message without an id gets its place, after `#`. A parent of None is a root.

    `tell` takes what is odd, and the id of the message.
    """
    if (quick := _in_order(history)) is not None:
        return quick
    parents: dict[str, str] = {}
    entries: dict[str, Fields] = {}
    last = _ROOT
    for place, entry in enumerate(history):
        id = str(entry["id"]) if entry.get("id") is not None else f"#{place}"
        if id in entries:
            if entries[id] == entry:
                continue
            tell(f"two messages have the id {id[:80]}", id)
            id = f"{id}#{place}"
        parent = entry.get("parent", last)
        parents[id] = _ROOT if parent is None else str(parent)
        entries[id], last = entry, id
    before = _ROOT
    for id, entry in entries.items():
        if parents[id] not in parents and parents[id] != _ROOT:
            if "role" in entry:
                tell(f"message {id[:80]} answers a message that is missing", id)
            parents[id] = before
        before = id
    result: dict[str, Fields] = {}
    for id in entries:
        chain = dict[str, None]()
        above = id
        while above != _ROOT and above not in result and above not in chain:
            chain[above] = None
            above = parents[above]
        if above in chain:
            tell(f"messages answer each other in a circle, at {above[:80]}", above)
            parents[next(reversed(chain))] = _ROOT
        for member in reversed(chain):
            if "role" in entries[member]:
                result[member] = entries[member] | {
                    "id": member,
                    "parent": _nearest(parents[member], parents, result),
                }
    return list(result.values())


def _in_order(history: list[Fields]) -> list[Fields] | None:
    """Order messages whose parents all come before them, as most do; None: some do not."""
    result: list[Fields] = []
    #: By each id, the message that is there of it: itself, or the nearest above it.
    nearest: dict[str | None, str | None] = {None: None}
    last: str | None = None
    for entry in history:
        id, parent = entry.get("id"), entry.get("parent", last)
        if (
            type(id) is not str
            or id in nearest
            or not isinstance(parent, str | None)
            or parent not in nearest
        ):
            return None
        last, nearest[id] = id, id if "role" in entry else nearest[parent]
        if "role" in entry:
            result.append({**entry, "parent": nearest[parent]})
    return result


def _nearest(above: str, parents: dict[str, str], messages: dict[str, Fields]) -> str | None:
    """The nearest message from `above` upwards; None: there is none."""
    while above != _ROOT and above not in messages:
        above = parents[above]
    return above or None


Document = dict[str, Any]
#: Takes what is odd, and the id at the source of the message that it is about.
ReportProblem = Callable[[str, str], None]
#: Stores the bytes of an attachment; its SHA-256 in hexadecimal, and its size.
StoreAttachment = Callable[[bytes | Source], tuple[str, int]]
#: The bytes of a stored attachment; None: it is not there.
LoadAttachment = Callable[[str], bytes | None]
#: The references of a message to others.
_LINKS = ("replyTo", "thread")


class EmptyDraft(InvalidInput):
    """A draft without messages and without a title."""


def source_id(draft: Draft) -> str:
    """The id of a draft in its source; of one without, the digest of what was said."""
    if draft.id:
        return draft.id
    said = [
        [entry.get(name) for name in ("role", "content", "toolCalls")] for entry in draft.history
    ]
    return "sha256:" + sha256(orjson.dumps(said, default=repr)).hexdigest()


def document_of(
    draft: Draft,
    format: str,
    stamp: str,
    tell: ReportProblem,
    keep: StoreAttachment,
    suffix: str = "",
    most: int = MAX_VALUE_BYTES,
    *,
    is_trusted: bool = False,
) -> Document:
    """The capsule that a draft becomes.

    Args:
        format: The name of its format.
        stamp: The time now, for what has no time.
        tell: Takes what is odd or left out, and the id of the message.
        keep: Stores attachments.
        suffix: Tells it from others of the same id: those that have no id and say the same, and
            copies.
        most: The largest message that is accepted, in bytes.
        is_trusted: Whether it may be a conversation of agents, and its messages from agents.

    Raises:
        Empty: It says nothing.
        InvalidInput: It has what JSON can't hold.
    """
    is_own = keeps_id(draft, is_trusted=is_trusted) and not suffix
    format = CAPSULE_KEY if draft.is_own else format
    if not is_trusted:
        draft = as_plain_chat(draft, is_chat=is_own)
    id = draft.id if is_own else imported_conversation_id(format, source_id(draft) + suffix)
    entries = parents_first(
        [_accepted_message(entry, tell, keep, most, is_own=is_own) for entry in draft.history], tell
    )
    if not entries and not (is_own or draft.head.get("title")):
        raise EmptyDraft("it has no messages")
    ids = {}
    for entry in entries:
        given = entry["id"]
        is_id_here = given in draft.local_ids or (is_own and given[0] != "#")
        ids[given] = given if is_id_here else imported_message_id(id, given)
    history: list[Fields] = []
    before: str | None = None
    for entry in entries:
        given, parent = entry.pop("id"), entry.pop("parent")
        entry["id"] = ids[given]
        if parent is not None and ids[parent] != before:
            entry["parent"] = ids[parent]
        elif parent is None and before is not None:
            entry["parent"] = None
        for name in _LINKS:
            if name in entry:
                entry[name] = ids.get(entry[name], entry[name])
        history.append(entry)
        before = entry["id"]
    return _with_head(draft, format, stamp, id, ids, history, is_own=is_own)


def _accepted_message(
    entry: Fields, tell: ReportProblem, keep: StoreAttachment, most: int, *, is_own: bool
) -> Fields:
    """A message that can be accepted, with what is remembered of its source; of another one its id
    and its parent.
    """
    said = dict(entry)
    links: Fields = {name: said.pop(name) for name in ("id", "parent") if name in entry}
    if "role" not in entry:
        return links
    id = str(entry.get("id"))
    for name in ("timestamp", "editedAt"):
        if (given := said.get(name)) is not None and not (
            type(given) is str and is_canonical(given)
        ):
            said[name] = moment(given)
            if said[name] is None:
                tell(f"a {name} that is not a time is left out", id)
    try:
        if "attachments" in said:
            said["attachments"] = [
                _store_attachment(attached, keep, lambda reason: tell(reason, id))
                for attached in said["attachments"]
            ]
        checked = check_message(said)
        if len(checked["content"]) > most // 4 and len(codec.encode_entry(checked)) > 0.9 * most:
            raise InvalidInput(f"it is larger than {most:,} bytes")
        about = {"id": str(entry["id"])} if entry.get("id") is not None else {}
        about["digest"] = digests.digest_of_message(checked)
    except (InvalidInput, TypeError) as error:
        metadata = said.get("metadata")
        if isinstance(metadata, dict) and SOURCE in metadata:
            tell(f"the other fields of a message are left out: {error}"[:300], id)
            return _accepted_message(
                entry | {"metadata": without(metadata, SOURCE)}, tell, keep, most, is_own=is_own
            )
        tell(f"a message can't be accepted: {error}"[:300], id)
        return links
    if is_own:
        return _with_source_back(checked) | links
    checked["metadata"] = _with_imported(checked.get("metadata", {}), about)
    checked.update(links)
    return checked


def _with_imported(metadata: Fields, about: Fields) -> Fields:
    """Metadata with what is remembered of a source; what the source had besides comes
    last, always.
    """
    made = metadata | {IMPORTED: about}
    if SOURCE in made:
        made[SOURCE] = made.pop(SOURCE)
    return made


def _store_attachment(
    attached: Fields, keep: StoreAttachment, tell: Callable[[str], None]
) -> Fields:
    if "data" not in attached:
        return attached
    said = without(attached, "data")
    try:
        digest, size = keep(attached["data"])
    except InvalidInput as error:
        tell(f"an attachment is left out: {error.message}")
        return said
    return said | {"sha256": digest, "size": size, "path": f"attachments/{digest}"}


def _with_head(
    draft: Draft,
    format: str,
    stamp: str,
    id: str,
    ids: dict[str, str],
    history: list[Fields],
    *,
    is_own: bool,
) -> Document:
    head, metadata = draft.head, dict(draft.metadata)
    times = [entry["timestamp"] for entry in history if entry.get("timestamp")]
    created = moment(head.get("createdAt")) or min(times, default=stamp)
    updated = max(moment(head.get("updatedAt")) or max(times, default=created), created)
    title = _title(draft, history) or f"{format} {created[:10]}"
    # As the store reads a message without a time; but without the clock, for all stores do the
    # same.
    if not is_own:
        last = created if times or moment(head.get("createdAt")) else timestamps.UNKNOWN
        for entry in history:
            last = entry["timestamp"] = entry.get("timestamp") or last
    current = metadata.pop("currentNode", None)
    current = ids.get(str(current)) if current is not None else None
    if history and current == history[-1]["id"]:
        current = None
    related: dict[str, str] = {}
    if not is_own:
        metadata = {name: value for name, value in metadata.items() if name in OF_METADATA}
        related = {name: metadata[name] for name in RELATED if isinstance(metadata.get(name), str)}
        metadata |= {
            name: other if draft.is_own else imported_conversation_id(format, other)
            for name, other in related.items()
        }
    else:
        metadata = _with_source_back({"metadata": metadata}).get("metadata", {})
    mode, kind, tags = (
        metadata.pop("mode", "api"),
        metadata.pop("type", "chat"),
        metadata.pop("tags", []),
    )
    document = creation.new_capsule(
        id,
        title,
        created,
        mode if mode in MODES else "api",
        kind if kind in TYPES else "chat",
        list(dict.fromkeys(tag for tag in tags if isinstance(tag, str) and tag)),
        metadata.pop("titleSetBy", "auto"),
        None,
        history,
        context=_context(head.get("context")),
        is_summary=metadata.pop("isSummary", False) is True,
        source_conversation_id=metadata.pop("sourceConversationId", None),
        metadata=metadata | {"lock": None, "currentNode": current},
    )
    document["updatedAt"] = updated
    if is_own:
        if "titleSetBy" not in draft.metadata:
            del document["metadata"]["titleSetBy"]  # Absent says more than `auto`.
        if isinstance(head.get("title"), str):
            document["title"] = head["title"]
        return in_order(
            document | {name: value for name, value in head.items() if name not in field_names("")}
        )
    try:
        said = digests.digests_of_head(document)
    except TypeError as error:
        raise InvalidInput(f"it has a value that JSON cannot represent: {error}") from None
    about: Fields = {"format": format, "id": source_id(draft), "digest": said}
    if related:
        about["related"] = related
    if time := moment(head.get("updatedAt")):
        about["updatedAt"] = time
    about["given"] = [name for name in ("title", "createdAt", "updatedAt") if head.get(name)]
    document["metadata"] = _with_imported(document["metadata"], about)
    return document


def _title(draft: Draft, history: list[Fields]) -> str:
    """Return the title of the source, or one made from the messages that people see. Empty: there
    are no words.
    """
    given = str(draft.head.get("title") or "")
    if made := title_from(given):
        try:
            return check_title(given)
        except InvalidInput:
            return made
    seen = [entry for entry in history if entry.get("metadata", {}).get("hidden") is not True]
    if made := automatic_title(seen):
        return made
    return next((made for entry in seen if (made := title_from(entry["content"]))), "")


def _context(given: Any) -> Fields | None:
    if not isinstance(given, dict) or not isinstance(given.get("fullContext"), str):
        return None
    empty = creation.empty_context()
    about = object_of(given.get("metadata"))
    return {**empty, **given, "metadata": {**empty["metadata"], **about}}


def _with_source_back(fields: Fields) -> Fields:
    """The fields as they were before `_with_source_aside`."""
    metadata, about = fields.get("metadata", {}), provenance_of(fields)
    if SOURCE not in about:
        return fields
    left = without(about, SOURCE)
    kept = {
        name: left if name == IMPORTED else value
        for name, value in metadata.items()
        if name != IMPORTED or left
    }
    return fields | {"metadata": {**kept, SOURCE: about[SOURCE]}}


def _with_source_aside(fields: Fields) -> Fields:
    """The fields for another format, with what the source had besides put aside: it belongs to the
    source's format.
    """
    metadata = fields.get("metadata", {})
    if SOURCE not in metadata:
        return fields
    aside = {IMPORTED: {**provenance_of(fields), SOURCE: metadata[SOURCE]}}
    return fields | {"metadata": without(metadata, SOURCE) | aside}


def draft_of(document: Document, format: str, load: LoadAttachment | None = None) -> Draft:
    """The draft of a capsule, as a format writes it: under the ids of its source, if that was of
    the same format.

    Args:
        format: The name of the format that is written.
        load: Gives the bytes of attachments, which then have `data`; None: they stay as they are.
    """
    history, tree = document["history"], Tree(document["history"])
    # A copy of a capsule is a capsule by now, with an id of its own.
    about = (
        about if (about := provenance_of(document)).get("format") == format != CAPSULE_KEY else {}
    )
    edited = {entry["id"] for entry in history if digests.is_edited(entry)}
    is_own = not about or (str(about.get("id")).startswith("sha256:") and bool(edited))
    current = document["metadata"].get("currentNode")
    if current is None and history:
        current = history[-1]["id"]
    metadata = digests.without_defaults(document["metadata"], creation.new_metadata()) | {
        "currentNode": current
    }
    head = without(document, "history", "metadata", "version")
    if head.get("context") == creation.empty_context():
        del head["context"]
    if is_own:
        head["metadata"] = _with_source_aside({"metadata": metadata})["metadata"]
        origins: dict[str, str | None] = {entry["id"]: entry["id"] for entry in history}
    else:
        head["metadata"] = without(metadata, IMPORTED, "titleSetBy")
        for name, other in object_of(about.get("related")).items():
            if metadata.get(name) == imported_conversation_id(format, other):
                head["metadata"][name] = other
        head["id"] = about.get("id")
        if str(head["id"]).startswith("sha256:"):
            del head["id"]
        for name in {"title", "createdAt", "updatedAt"} - {*about.get("given", ())}:
            if name != "title" or metadata.get("titleSetBy") == "auto":
                del head[name]
        origins = {entry["id"]: _origin(entry) for entry in history}
    if not history or origins[history[-1]["id"]] is None:
        head["metadata"].pop("currentNode")
    elif current in origins:
        head["metadata"]["currentNode"] = origins[current]
    if not head["metadata"]:
        del head["metadata"]
    entries = []
    for place, entry in enumerate(history):
        above = tree.parents[place]
        link = {} if origins[entry["id"]] is None else {"id": origins[entry["id"]]}
        if link or above != place - 1:
            link["parent"] = None if above < 0 else origins[history[above]["id"]] or f"#{above}"
        said = without(entry, "id", "parent")
        said = _with_source_aside(said) if is_own else _without_imported(said)
        if load is not None and "attachments" in said:
            said["attachments"] = [
                _load_attachment(attached, load) for attached in said["attachments"]
            ]
        entries.append(said | link)
    return Draft(
        head,
        entries,
        is_own=is_own,
        edited=frozenset(
            id for id, origin in origins.items() if id in edited for id in (origin or id,)
        ),
        is_edited=not is_own and about.get("digest") != digests.digests_of_head(document),
        folder=folder_of(document),
        source_digests={
            place: str(provenance_of(entry).get("digest")) for place, entry in enumerate(history)
        },
        source_head_digests=object_of(about.get("digest")),
        local_ids=frozenset(entry["id"] for entry in history if is_own or not provenance_of(entry)),
    )


def _origin(entry: Fields) -> str | None:
    """The id of a message in its source; that of a message from here is its own, and one may have
    had none.
    """
    about = provenance_of(entry)
    return about.get("id") if about else entry["id"]


def _without_imported(fields: Fields) -> Fields:
    if digests.is_undated(fields, provenance_of(fields)):
        fields = without(fields, "timestamp")
    return with_nonempty(
        without(fields, "metadata"), metadata=without(fields.get("metadata", {}), IMPORTED)
    )


def _load_attachment(attached: Fields, load: LoadAttachment) -> Fields:
    data = load(attached["sha256"]) if isinstance(attached.get("sha256"), str) else None
    if data is None:
        return attached
    return without(attached, "sha256", "size", "path") | {"data": data}
