"""The document of an agent: `agents/{id}.json`.

What must stay true: an agent's id holds no underscore, so that `direct_{a}_{b}` names two agents and no others, and is
so short that this is an id; only the `id` is required, as people write such a file too; unknown fields are kept. What
the cursors say is for `capsule.messaging` to know. Pure; no pydantic.
"""

from __future__ import annotations

import re
from typing import Any

from capsule.errors import InvalidInput
from capsule.format.new import CURRENT
from capsule.format.projects import GLOBAL, project_id

Document = dict[str, Any]

AGENT_ID = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
#: Characters. `direct_{a}_{b}` has at most 128, as every id.
MAX_AGENT_ID = 60
_ID = re.compile(AGENT_ID)


def is_agent_id(text: str) -> bool:
    """Whether `text` may be the id of an agent."""
    return len(text) <= MAX_AGENT_ID and _ID.fullmatch(text) is not None


def check_agent_id(text: str) -> str:
    """`text`, if it may be the id of an agent.

    Raises:
        InvalidInput: It may not.
    """
    if not is_agent_id(text):
        raise InvalidInput(
            f"{text[:60]!r} is no agent id: small letters, digits and - between them, at most {MAX_AGENT_ID}"
        )
    return text


def new_agent(id: str, stamp: str, *, name: str | None = None, project_path: str | None = None) -> Document:
    """The document of a new agent, in canonical order.

    Args:
        id: Its id.
        stamp: When it is made, as the format writes times.
        name: What people call it; None: as its id.
        project_path: The folder that it works in, if it works in one.
    """
    return {
        "id": id,
        "name": id if name is None else name,
        "version": CURRENT,
        "createdAt": stamp,
        "updatedAt": stamp,
        "projectPath": project_path,
        "lastSeen": stamp,
        "statusMessage": None,
        "notifications": True,
        "cursors": {},
    }


def project_of(document: Document) -> str:
    """The project of an agent: its id, or `global`. One that names none has that of its folder."""
    path = document.get("projectPath")
    return document.get("project") or (project_id(path) if path else GLOBAL)
