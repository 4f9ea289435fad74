"""The committed version that two versions of a conversation began from.

What must stay true: a version counts as the ancestor of another one only where that one shows it;
else there is none, and a merge without one keeps more than it must, which is the better mistake.

Where a file synchronizer made two versions of one file, no commit says what they began from. A
committed version counts as the ancestor of both when each of them shows that its writer had read
it: it holds the version's last message, its `updatedAt` is not earlier, and of each message that
both have it has the same words, or a later edit; and no message that it lacks came into the
committed version after that last message, by a merge for example. A version whose writer had not
read the commit fails at one of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from capsule.errors import CapsuleError
from capsule.format.json import codec
from capsule.format.merge.clean_form import clean
from capsule.git.history.timeline import versions_of
from capsule.git.objects import Blobs
from capsule.git.repository import Repository
from capsule.store.reading import KIND

#: So many committed versions are looked at, from the latest on.
_MOST = 50
Document = Mapping[str, Any]


def ancestor(repository: Repository, id: str, ours: bytes, theirs: bytes) -> bytes | None:
    """The version that two versions of a conversation began from, in the clean form; None: no
    commit shows it.
    """
    sides = [codec.decode(data, f"{id}.json") for data in (ours, theirs)]
    versions = list(_versions(repository, id))
    for at, (data, version) in enumerate(versions):
        older = [_ids(document) for _, document in versions[at + 1 :]]
        if all(_has_read(side, version, older) for side in sides):
            return data
    return None


def _versions(repository: Repository, id: str) -> Iterator[tuple[bytes, Document]]:
    """The committed versions that can be read, in the clean form, the latest first."""
    with Blobs(repository.git) as blobs:
        for name in versions_of(repository, id, _MOST):
            try:
                data = clean(blobs.read(name) or b"", f"{id}.json", KIND)
                yield data, codec.decode(data, f"{id}.json")
            except CapsuleError:
                continue


def _ids(document: Document) -> set[str]:
    return {message["id"] for message in document["history"]}


def _has_read(side: Document, version: Document, older: list[set[str]]) -> bool:
    """Whether the version `side` shows that it was made from `version`; `older` has the messages of
    earlier ones.
    """
    if side["updatedAt"] < version["updatedAt"] or not version["history"]:
        return False
    messages = {message["id"]: message for message in side["history"]}
    last = version["history"][-1]["id"]
    if last not in messages:
        return False
    missing = _ids(version) - messages.keys()
    if any(last in had and missing - had for had in older):
        # It may have been made from that older one, and never have had what came in between.
        return False
    return all(
        mine == message or str(mine.get("editedAt") or "") > str(message.get("editedAt") or "")
        for message in version["history"]
        if (mine := messages.get(message["id"])) is not None
    )
