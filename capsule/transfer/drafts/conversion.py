"""Convert a draft to a capsule (`document_of`), and a capsule to a draft (`draft_of`).

`metadata.imported` stores the provenance: of a conversation `format`, `id` and `digest`, and of each
message `id` and `digest`. The id is that of the source, and the digest that of the content as it was
imported. A message with another digest was changed here.

`metadata.source` has fields of the source that Capsule does not know. In a draft of a capsule with
the ids of this store it is moved aside, into the provenance, and a draft that keeps its id gets it
back.

The messages of a draft are a tree of ids and parents as the source has them. `parents_first` puts
parents before children. It reports an unknown parent, a circle and a repeated id, and reads around
them, so that no message is lost. The same messages are always put in the same order.

What must stay true:
- Imported content is data. Unless a person trusts the import, it becomes no conversation in which
  agents take part, and no message from an agent or to one. Fields that are removed for that are kept
  in `metadata.source`.
- Ids are made from the ids of the source alone (message ids also from that of their conversation), so
  every store makes the same ones.
- For trusted capsules `document_of(draft_of(x)) == x`, apart from `version`. What can't be accepted
  is reported and left out.
- Nothing here reads the clock or a file: the time, and the functions that store and load attachments,
  are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import orjson

from capsule import timestamps
from capsule.errors import InvalidInput
from capsule.format.documents import creation
from capsule.format.documents.agents import is_agent_id
from capsule.format.documents.head import folder_of
from capsule.format.documents.members import members_in
from capsule.format.documents.message import check_message
from capsule.format.fields import MODES, TYPES, field_names
from capsule.format.json import codec
from capsule.format.json.canonical import in_order
from capsule.format.text.titles import automatic_title, check_title, title_from
from capsule.format.tree.tree import Tree
from capsule.ids import imported_conversation_id, imported_message_id, is_id
from capsule.rules.policy import RESERVED_ID_PREFIX
from capsule.timestamps import is_canonical
from capsule.transfer.drafts import digests
from capsule.transfer.drafts.digests import (
    IMPORTED,
    OF_METADATA,
    RELATED,
    SOURCE,
    digest_of_message,
    provenance_of,
)
from capsule.transfer.interface import Draft, Fields, Source
from capsule.transfer.reading.json_stream import MAX_VALUE_BYTES
from capsule.transfer.records.mapping import (
    CAPSULE_KEY,
    moment,
    object_of,
    with_nonempty,
    with_source,
    without,
)

# -- Trust -----------------------------------------------------------------------------------------


def keeps_id(draft: Draft, *, is_trusted: bool) -> bool:
    """Return whether a draft keeps its id: a chat of Capsule, or any trusted capsule."""
    if not draft.is_own or not is_id(draft.id):
        return False
    is_chat = draft.metadata.get("type") in (None, "chat")
    return is_trusted or (is_chat and not RESERVED_ID_PREFIX.match(draft.id))


def as_plain_chat(draft: Draft, *, is_chat: bool) -> Draft:
    """Return a draft that is no conversation of agents.

    Args:
        draft: The draft.
        is_chat: Whether it is a chat already. Then only its links to conversations of agents are
            changed. Otherwise its participants become names, and its other unknown metadata is
            moved to `metadata.source`.
    """
    metadata = dict(draft.metadata)
    if draft.is_own:
        for name in RELATED:
            related_id = str(metadata.get(name))
            if RESERVED_ID_PREFIX.match(related_id):
                metadata[name] = imported_conversation_id(CAPSULE_KEY, related_id)
    if is_chat:
        return replace(draft, head={**draft.head, "metadata": metadata})
    plain_metadata = {
        name: value
        for name, value in metadata.items()
        if name in ("currentNode", *OF_METADATA) and name != "type"
    }
    head: Fields = {**draft.head, "metadata": plain_metadata}
    if draft.is_own:
        removed = without(metadata, *plain_metadata, IMPORTED, "lock", "titleSetBy")
        if "participants" in removed:
            removed["participants"] = [member.id for member in members_in(removed["participants"])]
        head = with_source(head, {**_source_of(plain_metadata), **removed})
    history = [_without_agents(entry) for entry in draft.history]
    return replace(draft, head=head, history=history)


def _source_of(metadata: Fields) -> Fields:
    source = metadata.get(SOURCE)
    return source if isinstance(source, dict) else {}


def _without_agents(entry: Fields) -> Fields:
    """Return a message without mentions, and not from an agent."""
    if "mentions" not in entry and "from" not in entry:
        return entry
    plain_entry = without(entry, "mentions")
    sender = str(entry.get("from", ""))
    if is_agent_id(sender):
        plain_entry["from"] = sender_outside(sender)
    return plain_entry


def sender_outside(agent: str) -> str:
    """Return the sender for an imported message that names an agent. No agent has such an id."""
    return f"{agent}.imported"


def with_imported_senders(
    incoming: Mapping[str, Any], present: Mapping[str, Any] | None, agents: Container[str]
) -> dict[str, Any]:
    """Return an imported conversation in which no new message is from an agent of this store.

    Args:
        incoming: The conversation as its source has it.
        present: The conversation as this store has it. None: it is new.
        agents: The ids of the agents of this store.
    """
    present_digests: dict[str, str] = {}
    if present:
        for entry in present["history"]:
            present_digests[entry["id"]] = digest_of_message(entry)
    history = []
    for entry in incoming["history"]:
        if present_digests.get(entry["id"]) == digest_of_message(entry):
            history.append(entry)
            continue
        new_senders = {
            name: sender_outside(entry[name])
            for name in ("from", "editedBy")
            if entry.get(name) in agents
        }
        history.append({**entry, **new_senders})
    return {**incoming, "history": history}


# -- Conversion ------------------------------------------------------------------------------------

Document = dict[str, Any]
#: Gets a problem, and the id of its message at the source.
ReportProblem = Callable[[str, str], None]
#: Stores the bytes of an attachment. Returns its SHA-256 in hexadecimal, and its size.
StoreAttachment = Callable[[bytes | Source], tuple[str, int]]
#: Returns the bytes of an attachment by its SHA-256. None: it is not stored.
LoadAttachment = Callable[[str], bytes | None]
#: The beginning of an id that is the digest of the messages, since the source has none.
_DIGEST_PREFIX = "sha256:"
#: The fields of a message that name other messages.
_LINKS = ("replyTo", "thread")


class EmptyDraft(InvalidInput):
    """A draft without messages and without a title."""


def active_path(head: Fields, history: list[Fields]) -> list[Fields]:
    """Return the messages of the active branch of a draft, from its root."""
    current = head.get("metadata", {}).get("currentNode")
    return [history[position] for position in Tree(history).path(current)]


def parents_first(
    history: list[Fields], report_problem: Callable[[str, str], None]
) -> list[Fields]:
    """Return the messages with an `id` and a `parent` each, parents before children.

    Otherwise they are in the order of the source. A message without an id gets its position, after
    `#`. The parent of a root is None. An entry without a role is left out, and its children answer
    its parent.

    `report_problem` gets a problem and the id of its message.
    """
    ordered = _already_in_order(history)
    if ordered is not None:
        return ordered
    entries, parents = _unique_entries(history, report_problem)
    _replace_unknown_parents(entries, parents, report_problem)
    result: dict[str, Fields] = {}
    for id in entries:
        #: The entry and its ancestors that are not in the result yet, as an ordered set.
        chain: dict[str, None] = {}
        ancestor: str | None = id
        while ancestor is not None and ancestor not in result and ancestor not in chain:
            chain[ancestor] = None
            ancestor = parents[ancestor]
        if ancestor is not None and ancestor in chain:
            report_problem(f"messages answer each other in a circle, at {ancestor[:80]}", ancestor)
            # The last one closed the circle. It becomes a root.
            parents[next(reversed(chain))] = None
        for member in reversed(chain):
            if "role" in entries[member]:
                parent = _nearest(parents[member], parents, result)
                result[member] = entries[member] | {"id": member, "parent": parent}
    return list(result.values())


def _unique_entries(
    history: list[Fields], report_problem: Callable[[str, str], None]
) -> tuple[dict[str, Fields], dict[str, str | None]]:
    """Return the entries and their parents, by ids that are all different. The parent of a root is
    None.

    An equal entry with the same id is left out. Another one gets a new id and is reported.
    """
    entries: dict[str, Fields] = {}
    parents: dict[str, str | None] = {}
    previous_id: str | None = None
    for position, entry in enumerate(history):
        id = str(entry["id"]) if entry.get("id") is not None else f"#{position}"
        if id in entries:
            if entries[id] == entry:
                continue
            report_problem(f"two messages have the id {id[:80]}", id)
            id = f"{id}#{position}"
        parent = entry.get("parent", previous_id)
        parents[id] = None if parent is None else str(parent)
        entries[id] = entry
        previous_id = id
    return entries, parents


def _replace_unknown_parents(
    entries: dict[str, Fields],
    parents: dict[str, str | None],
    report_problem: Callable[[str, str], None],
) -> None:
    """Let an entry whose parent is missing answer the entry before it. An empty parent that no
    entry has as its id is none: its entry is a root.
    """
    previous_id: str | None = None
    for id, entry in entries.items():
        parent = parents[id]
        if parent == "" and parent not in parents:
            parents[id] = None
        elif parent is not None and parent not in parents:
            if "role" in entry:
                report_problem(f"message {id[:80]} answers a message that is missing", id)
            parents[id] = previous_id
        previous_id = id


def _already_in_order(history: list[Fields]) -> list[Fields] | None:
    """Return the messages if no entry has to be moved, renamed or reported. Otherwise None.

    This is the usual case: all ids differ, and each parent comes before its children.
    """
    result: list[Fields] = []
    #: For each id, the id of its message. Of an entry without a role, that of its parent.
    message_ids: dict[str | None, str | None] = {None: None}
    previous_id: str | None = None
    for entry in history:
        id = entry.get("id")
        parent = entry.get("parent", previous_id)
        if type(id) is not str or id in message_ids:
            return None
        if not isinstance(parent, str | None) or parent not in message_ids:
            return None
        previous_id = id
        if "role" in entry:
            message_ids[id] = id
            result.append({**entry, "parent": message_ids[parent]})
        else:
            message_ids[id] = message_ids[parent]
    return result


def _nearest(
    id: str | None, parents: dict[str, str | None], messages: dict[str, Fields]
) -> str | None:
    """Return the id of the nearest message among an entry and its ancestors. None: no message."""
    ancestor = id
    while ancestor is not None and ancestor not in messages:
        ancestor = parents[ancestor]
    return ancestor


def source_id(draft: Draft) -> str:
    """Return the id of a draft in its source. Without one, it is the digest of the messages."""
    if draft.id:
        return draft.id
    content = [
        [entry.get(name) for name in ("role", "content", "toolCalls")] for entry in draft.history
    ]
    return _DIGEST_PREFIX + sha256(orjson.dumps(content, default=repr)).hexdigest()


def document_of(
    draft: Draft,
    format: str,
    stamp: str,
    report_problem: ReportProblem,
    store_attachment: StoreAttachment,
    suffix: str = "",
    max_bytes: int = MAX_VALUE_BYTES,
    *,
    is_trusted: bool = False,
) -> Document:
    """Return the capsule for a draft.

    Args:
        draft: The draft.
        format: The name of its format.
        stamp: The time now, for a conversation without a time.
        report_problem: Gets each problem, and the id of its message.
        store_attachment: Stores an attachment.
        suffix: A suffix to its id. It makes copies different, and drafts without an id that have
            the same messages.
        max_bytes: The largest message that is accepted, in bytes.
        is_trusted: Whether it may be a conversation of agents, and its messages from agents.

    Raises:
        EmptyDraft: It has no messages and no title.
        InvalidInput: It has a value that JSON can't represent.
    """
    is_own = keeps_id(draft, is_trusted=is_trusted) and not suffix
    source_format = CAPSULE_KEY if draft.is_own else format
    if not is_trusted:
        draft = as_plain_chat(draft, is_chat=is_own)
    if is_own:
        id = draft.id
    else:
        id = imported_conversation_id(source_format, source_id(draft) + suffix)
    accepted = [
        _accepted_message(entry, report_problem, store_attachment, max_bytes, is_own=is_own)
        for entry in draft.history
    ]
    entries = parents_first(accepted, report_problem)
    if not entries and not (is_own or draft.head.get("title")):
        raise EmptyDraft("it has no messages")
    new_ids: dict[str, str] = {}
    for entry in entries:
        id_at_source = entry["id"]
        # An id that begins with `#` is a position, and not of the source.
        if id_at_source in draft.local_ids or (is_own and not id_at_source.startswith("#")):
            new_ids[id_at_source] = id_at_source
        else:
            new_ids[id_at_source] = imported_message_id(id, id_at_source)
    history = _with_new_ids(entries, new_ids)
    return _with_head(draft, source_format, stamp, id, new_ids, history, is_own=is_own)


def _with_new_ids(entries: list[Fields], new_ids: dict[str, str]) -> list[Fields]:
    """Return messages with their new ids. A parent is left out if it is the message before."""
    history: list[Fields] = []
    previous_id: str | None = None
    for entry in entries:
        id = new_ids[entry.pop("id")]
        parent = entry.pop("parent")
        entry["id"] = id
        if parent is not None and new_ids[parent] != previous_id:
            entry["parent"] = new_ids[parent]
        elif parent is None and previous_id is not None:
            entry["parent"] = None
        for name in _LINKS:
            if name in entry:
                entry[name] = new_ids.get(entry[name], entry[name])
        history.append(entry)
        previous_id = id
    return history


def _accepted_message(
    entry: Fields,
    report_problem: ReportProblem,
    store_attachment: StoreAttachment,
    max_bytes: int,
    *,
    is_own: bool,
) -> Fields:
    """Return a message with its provenance, if it can be accepted. Otherwise its id and parent.

    If only the rest of its record can't be accepted, the message is accepted without it. For the
    arguments see `document_of`. With `is_own`, the message keeps its provenance, if it has one.
    """
    fields = dict(entry)
    links: Fields = {name: fields.pop(name) for name in ("id", "parent") if name in entry}
    if "role" not in entry:
        return links
    id = str(entry.get("id"))
    _convert_times(fields, lambda reason: report_problem(reason, id))
    try:
        if "attachments" in fields:
            fields["attachments"] = [
                _store_attachment(
                    attachment, store_attachment, lambda reason: report_problem(reason, id)
                )
                for attachment in fields["attachments"]
            ]
        message = check_message(fields)
        _check_size(message, max_bytes)
        digest = digests.digest_of_message(message)
    except (InvalidInput, TypeError) as error:
        metadata = fields.get("metadata")
        if isinstance(metadata, dict) and SOURCE in metadata:
            report_problem(f"the other fields of a message are left out: {error}"[:300], id)
            without_rest = entry | {"metadata": without(metadata, SOURCE)}
            return _accepted_message(
                without_rest, report_problem, store_attachment, max_bytes, is_own=is_own
            )
        report_problem(f"a message can't be accepted: {error}"[:300], id)
        return links
    if is_own:
        return _with_source_back(message) | links
    provenance: Fields = {}
    if entry.get("id") is not None:
        provenance["id"] = id
    provenance["digest"] = digest
    message["metadata"] = _with_provenance(message.get("metadata", {}), provenance)
    message.update(links)
    return message


def _convert_times(fields: Fields, report_problem: Callable[[str], None]) -> None:
    """Give the times of a message the format of capsules. An invalid time becomes None."""
    for name in ("timestamp", "editedAt"):
        time = fields.get(name)
        if time is None or (type(time) is str and is_canonical(time)):
            continue
        fields[name] = moment(time)
        if fields[name] is None:
            report_problem(f"a {name} that is not a time is left out")


def _check_size(message: Fields, max_bytes: int) -> None:
    """Raise InvalidInput if a message is too large.

    A message with a short text is not encoded for this. Its provenance is added afterwards.
    """
    is_long = len(message["content"]) > max_bytes // 4
    if is_long and len(codec.encode_entry(message)) > 0.9 * max_bytes:
        raise InvalidInput(f"it is larger than {max_bytes:,} bytes")


def _with_provenance(metadata: Fields, provenance: Fields) -> Fields:
    """Return metadata with the provenance, and with the rest of the source at its end."""
    result = metadata | {IMPORTED: provenance}
    if SOURCE in result:
        result[SOURCE] = result.pop(SOURCE)
    return result


def _store_attachment(
    attachment: Fields, store: StoreAttachment, report_problem: Callable[[str], None]
) -> Fields:
    """Return an attachment with the reference to its stored data in place of the data."""
    if "data" not in attachment:
        return attachment
    fields = without(attachment, "data")
    try:
        digest, size = store(attachment["data"])
    except InvalidInput as error:
        report_problem(f"an attachment is left out: {error.message}")
        return fields
    return fields | {"sha256": digest, "size": size, "path": f"attachments/{digest}"}


def _with_head(
    draft: Draft,
    format: str,
    stamp: str,
    id: str,
    new_ids: dict[str, str],
    history: list[Fields],
    *,
    is_own: bool,
) -> Document:
    """Return the capsule for the head of a draft and its converted messages.

    `new_ids` has the ids of the messages by those of the source. With `is_own`, the capsule keeps
    its id. For other arguments see `document_of`.
    """
    head = draft.head
    times = [entry["timestamp"] for entry in history if entry.get("timestamp")]
    source_created = moment(head.get("createdAt"))
    created = source_created or min(times, default=stamp)
    updated = max(moment(head.get("updatedAt")) or max(times, default=created), created)
    metadata = dict(draft.metadata)
    current = _current_id(metadata.pop("currentNode", None), new_ids, history)
    # The ids of other conversations at the source.
    related: dict[str, str] = {}
    if is_own:
        metadata = _with_source_back({"metadata": metadata}).get("metadata", {})
    else:
        has_time = bool(times) or source_created is not None
        _fill_times(history, created if has_time else timestamps.UNKNOWN)
        metadata = {name: value for name, value in metadata.items() if name in OF_METADATA}
        related = _related_ids(metadata)
        if not draft.is_own:
            # The ids that these conversations get when they are imported.
            for name, related_id in related.items():
                metadata[name] = imported_conversation_id(format, related_id)
    title = _title(draft, history) or f"{format} {created[:10]}"
    document = _new_document(id, title, created, metadata, current, head, history)
    document["updatedAt"] = updated
    if is_own:
        return _with_own_fields(document, draft)
    document["metadata"] = _with_provenance(
        document["metadata"], _head_provenance(draft, format, document, related)
    )
    return document


def _related_ids(metadata: Fields) -> dict[str, str]:
    """Return the ids of other conversations that the metadata of a draft names, by its fields."""
    return {name: metadata[name] for name in RELATED if isinstance(metadata.get(name), str)}


def _fill_times(history: list[Fields], first_time: str) -> None:
    """Give each message without a time the time of the message before it, or `first_time`.

    The store reads a message without a time in this way too. Here the clock has no part in it, so
    that all stores make the same capsule.
    """
    last_time = first_time
    for entry in history:
        last_time = entry.get("timestamp") or last_time
        entry["timestamp"] = last_time


def _current_id(current: Any, new_ids: dict[str, str], history: list[Fields]) -> str | None:
    """Return the id for `currentNode` of a capsule. None: it is the last message, or not known.

    `current` is the id of the current message in the source.
    """
    if current is None:
        return None
    id = new_ids.get(str(current))
    if history and id == history[-1]["id"]:
        return None  # The last message is the current one by default.
    return id


def _new_document(
    id: str,
    title: str,
    created: str,
    metadata: Fields,
    current: str | None,
    head: Fields,
    history: list[Fields],
) -> Document:
    """Return a new capsule with these fields. `metadata` is emptied of those with an argument."""
    mode = metadata.pop("mode", "api")
    kind = metadata.pop("type", "chat")
    tags = metadata.pop("tags", [])
    return creation.new_capsule(
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


def _with_own_fields(document: Document, draft: Draft) -> Document:
    """Return the capsule of a draft that keeps its id, with its title and its unknown fields."""
    head = draft.head
    if "titleSetBy" not in draft.metadata:
        del document["metadata"]["titleSetBy"]  # A missing field is not the same as `auto`.
    if isinstance(head.get("title"), str):
        document["title"] = head["title"]
    known_fields = field_names("")
    unknown = {name: value for name, value in head.items() if name not in known_fields}
    return in_order(document | unknown)


def _head_provenance(
    draft: Draft, format: str, document: Document, related: dict[str, str]
) -> Fields:
    """Return the provenance of a conversation. `related` are the ids at the source that it names.

    Raises InvalidInput: it has a value that JSON can't represent.
    """
    try:
        field_digests = digests.digests_of_head(document)
    except TypeError as error:
        raise InvalidInput(f"it has a value that JSON cannot represent: {error}") from None
    provenance: Fields = {"format": format, "id": source_id(draft), "digest": field_digests}
    if related:
        provenance["related"] = related
    time = moment(draft.head.get("updatedAt"))
    if time:
        provenance["updatedAt"] = time
    # What the source has itself. Only this is written back there.
    provenance["given"] = [
        name for name in ("title", "createdAt", "updatedAt") if draft.head.get(name)
    ]
    return provenance


def _title(draft: Draft, history: list[Fields]) -> str:
    """Return the title of the source, or one made from the visible messages. Empty: no words."""
    source_title = str(draft.head.get("title") or "")
    shortened = title_from(source_title)
    if shortened:
        try:
            return check_title(source_title)
        except InvalidInput:
            return shortened
    visible = [entry for entry in history if entry.get("metadata", {}).get("hidden") is not True]
    titles = map(title_from, (entry["content"] for entry in visible))
    return automatic_title(visible) or next(filter(None, titles), "")


def _context(context: Any) -> Fields | None:
    """Return a context with all fields that it has here. None: it has no text."""
    if not isinstance(context, dict) or not isinstance(context.get("fullContext"), str):
        return None
    empty = creation.empty_context()
    metadata = {**empty["metadata"], **object_of(context.get("metadata"))}
    return {**empty, **context, "metadata": metadata}


def _with_source_back(fields: Fields) -> Fields:
    """Undo `_with_source_aside`: return the fields with `metadata.source` in its place."""
    provenance = provenance_of(fields)
    if SOURCE not in provenance:
        return fields
    rest = without(provenance, SOURCE)
    metadata = {}
    for name, value in fields.get("metadata", {}).items():
        if name != IMPORTED:
            metadata[name] = value
        elif rest:
            metadata[name] = rest
    metadata[SOURCE] = provenance[SOURCE]
    return fields | {"metadata": metadata}


def _with_source_aside(fields: Fields) -> Fields:
    """Return the fields for another format, with `metadata.source` moved into the provenance.

    `metadata.source` has fields of the format that the conversation came from. Another format must
    not write them as its own.
    """
    metadata = fields.get("metadata", {})
    if SOURCE not in metadata:
        return fields
    provenance = {**provenance_of(fields), SOURCE: metadata[SOURCE]}
    return fields | {"metadata": without(metadata, SOURCE) | {IMPORTED: provenance}}


def draft_of(document: Document, format: str, load: LoadAttachment | None = None) -> Draft:
    """Return the draft of a capsule for the writer of a format.

    If the capsule was imported from this format, the draft has the ids of its source.

    Args:
        document: The capsule.
        format: The name of the format that is written.
        load: Returns the bytes of an attachment, which then has `data`. None: attachments stay
            references.
    """
    history = document["history"]
    provenance = _provenance_in(document, format)
    edited_ids = {entry["id"] for entry in history if digests.is_edited(entry)}
    has_digest_as_id = str(provenance.get("id")).startswith(_DIGEST_PREFIX)
    # A source without ids is recognized by its texts. If they were changed here, it is not found.
    is_own = not provenance or (has_digest_as_id and bool(edited_ids))
    origins: dict[str, str | None]
    if is_own:
        origins = {entry["id"]: entry["id"] for entry in history}
        head = _own_head(document)
    else:
        origins = {entry["id"]: _origin(entry) for entry in history}
        head = _source_head(document, format, provenance)
    _set_current_origin(head, history, origins)
    edited_origins = set()
    for id in edited_ids:
        origin = origins[id]
        edited_origins.add(id if origin is None else origin)
    return Draft(
        head,
        _draft_history(history, origins, load, is_own=is_own),
        is_own=is_own,
        edited=frozenset(edited_ids | edited_origins),
        is_edited=not is_own and provenance.get("digest") != digests.digests_of_head(document),
        folder=folder_of(document),
        source_digests={
            position: str(provenance_of(entry).get("digest"))
            for position, entry in enumerate(history)
        },
        source_head_digests=object_of(provenance.get("digest")),
        local_ids=frozenset(entry["id"] for entry in history if is_own or not provenance_of(entry)),
    )


def _provenance_in(document: Document, format: str) -> Fields:
    """Return the provenance of a capsule that was imported from this format. Otherwise empty.

    A copy of a capsule counts as a capsule of this store, with an id of its own.
    """
    provenance = provenance_of(document)
    if format == CAPSULE_KEY or provenance.get("format") != format:
        return {}
    return provenance


def _set_current_origin(
    head: Fields, history: list[Fields], origins: Mapping[str, str | None]
) -> None:
    """Give `currentNode` in the head of a draft the id of the source, and remove empty metadata.

    Without messages, or if the last one has no id in the source, the head gets no `currentNode`.
    """
    metadata = head["metadata"]
    current = metadata["currentNode"]
    if not history or origins[history[-1]["id"]] is None:
        del metadata["currentNode"]
    elif current in origins:
        metadata["currentNode"] = origins[current]
    if not metadata:
        del head["metadata"]


def _plain_head(document: Document) -> Fields:
    """Return the head of a capsule without default values, and with the current message."""
    head = without(document, "history", "metadata", "version")
    if head.get("context") == creation.empty_context():
        del head["context"]
    current = document["metadata"].get("currentNode")
    if current is None and document["history"]:
        current = document["history"][-1]["id"]
    metadata = digests.without_defaults(document["metadata"], creation.new_metadata())
    head["metadata"] = metadata | {"currentNode": current}
    return head


def _own_head(document: Document) -> Fields:
    """Return the head of a draft with the ids of this store."""
    head = _plain_head(document)
    head["metadata"] = dict(_with_source_aside(head)["metadata"])
    return head


def _source_head(document: Document, format: str, provenance: Fields) -> Fields:
    """Return the head of a draft with the ids of its source, and only fields that the source has."""
    head = _plain_head(document)
    metadata = head["metadata"]
    head["metadata"] = without(metadata, IMPORTED, "titleSetBy")
    for name, related_id in object_of(provenance.get("related")).items():
        if metadata.get(name) == imported_conversation_id(format, related_id):
            head["metadata"][name] = related_id
    head["id"] = provenance.get("id")
    if str(head["id"]).startswith(_DIGEST_PREFIX):
        del head["id"]
    # A title that a person gave here is no guess of the import, so it is written.
    for name in {"title", "createdAt", "updatedAt"} - {*provenance.get("given", ())}:
        if name != "title" or metadata.get("titleSetBy") == "auto":
            del head[name]
    return head


def _draft_history(
    history: list[Fields],
    origins: Mapping[str, str | None],
    load: LoadAttachment | None,
    *,
    is_own: bool,
) -> list[Fields]:
    """Return the messages of a draft.

    A message without an id at the source has a parent only if it does not answer the message
    before it.

    Args:
        history: The messages of the capsule.
        origins: For each id of the capsule, the id of the message in the draft. None: it has none.
        load: As `draft_of` takes it.
        is_own: Whether the draft has the ids of this store.
    """
    parents = Tree(history).parents
    entries = []
    for position, entry in enumerate(history):
        parent_position = parents[position]
        origin = origins[entry["id"]]
        links: Fields = {} if origin is None else {"id": origin}
        if links or parent_position != position - 1:
            links["parent"] = None
            if parent_position >= 0:
                parent_origin = origins[history[parent_position]["id"]]
                if parent_origin is None:
                    parent_origin = f"#{parent_position}"
                links["parent"] = parent_origin
        fields = without(entry, "id", "parent")
        fields = _with_source_aside(fields) if is_own else _without_provenance(fields)
        if load is not None and "attachments" in fields:
            fields["attachments"] = [
                _load_attachment(attachment, load) for attachment in fields["attachments"]
            ]
        entries.append(fields | links)
    return entries


def _origin(entry: Fields) -> str | None:
    """Return the id of a message in its source. None: it has none there.

    A message that was written here has its own id.
    """
    provenance = provenance_of(entry)
    return provenance.get("id") if provenance else entry["id"]


def _without_provenance(fields: Fields) -> Fields:
    """Return a message without its provenance, and without a time that its source does not have."""
    if digests.is_undated(fields, provenance_of(fields)):
        fields = without(fields, "timestamp")
    metadata = without(fields.get("metadata", {}), IMPORTED)
    return with_nonempty(without(fields, "metadata"), metadata=metadata)


def _load_attachment(attachment: Fields, load: LoadAttachment) -> Fields:
    """Return an attachment with its data. If the data is missing, the reference stays."""
    digest = attachment.get("sha256")
    data = load(digest) if isinstance(digest, str) else None
    if data is None:
        return attachment
    return without(attachment, "sha256", "size", "path") | {"data": data}
