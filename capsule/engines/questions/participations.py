"""Make the participation of an agent from a row of the index."""

from __future__ import annotations

import orjson

from capsule.engines.questions.heads import HEAD_FIELDS
from capsule.engines.read_marks import Participation
from capsule.format.documents.channels import Channel
from capsule.format.documents.members import members_in

#: The digest of all ids up to a message (column `front`), as text.
IDS_DIGEST = "sha256:%014x"


def participation_of(
    id: str,
    encoded_head: str,
    title: str,
    entries: int,
    archived: int,
    updated_at: str,
    tag: str,
    version: str | None,
    ids_digest: int | None,
) -> Participation:
    """Return the participation in the conversation of a row.

    `encoded_head` is the column `head`, and `ids_digest` the column `front` of its last message.
    """
    head = dict(zip(HEAD_FIELDS, orjson.loads(encoded_head), strict=True))
    return Participation(
        id=id,
        type=head["type"],
        title=title,
        entries=entries,
        archived=bool(archived),
        updated_at=updated_at,
        participants=members_in(head["participants"]),
        history=head["history"],
        channel=Channel(**head["channel"]) if head["channel"] else None,
        created_by=head["created_by"],
        ids_digest="" if ids_digest is None else IDS_DIGEST % ids_digest,
        tag=tag,
        version=version or "",
    )
