"""Check and make the ids of agents, projects and direct conversations.

The documents of agents and projects are `agents/{id}.json` and `projects/{id}.json`.

What must stay true: no id of an agent or project has an underscore. So `direct_{a}_{b}` names two
agents, and `channel_{project}_{name}` one channel of one project. Both ids are short enough for
that. The id of a project is made of its folder, and none is `global`, which means no project. A
document needs only its `id`, as people write such files too, and unknown fields are kept. Cursors
and links are read by `capsule.messaging`. Pure; no pydantic.
"""

from __future__ import annotations

import re
from typing import Any

from capsule.errors import InvalidInput
from capsule.ids import folder_ids

Document = dict[str, Any]

AGENT_ID = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
#: The most characters: `direct_{a}_{b}` has at most 128, as every id.
MAX_AGENT_ID = 60
_AGENT = re.compile(AGENT_ID)

#: The scope of agents and channels that belong to no project.
GLOBAL = "global"
PROJECT_ID = "[a-z0-9]+(-[a-z0-9]+)*-[0-9a-f]{6}"
#: The most characters: `channel_{project}_{name}` has at most 128, as every id.
MAX_PROJECT_ID = 36
_PROJECT = re.compile(PROJECT_ID)


def is_agent_id(text: str) -> bool:
    """Return whether `text` may be the id of an agent."""
    return len(text) <= MAX_AGENT_ID and _AGENT.fullmatch(text) is not None


def check_agent_id(text: str) -> str:
    """Return `text` if it may be the id of an agent. Raises InvalidInput."""
    if not is_agent_id(text):
        letters = f"small letters, digits and - between them, at most {MAX_AGENT_ID}"
        raise InvalidInput(f"{text[:60]!r} is not an agent id: {letters}")
    return text


def project_of(document: Document) -> str:
    """Return the id of an agent's project, or `global`. By default that of its folder."""
    path = document.get("projectPath")
    return document.get("project") or (project_id(path) if path else GLOBAL)


def is_project_id(text: str) -> bool:
    """Return whether `text` may be the id of a project."""
    return len(text) <= MAX_PROJECT_ID and _PROJECT.fullmatch(text) is not None


def check_project_id(text: str) -> str:
    """Return `text` if it may be the id of a project. Raises InvalidInput."""
    if not is_project_id(text):
        letters = "small letters, digits and - between them, at the end - and 6 hexadecimal digits"
        raise InvalidInput(
            f"{text[:60]!r} is not a project id: {letters}, at most {MAX_PROJECT_ID}"
        )
    return text


def project_id(path: str) -> str:
    """Return the id of the project in a folder, the same on each machine that has this path."""
    return folder_ids(path, MAX_PROJECT_ID, "project")[1]


def direct_id(a: str, b: str) -> str:
    """Return the id of the direct conversation of two agents. No other pair has the same."""
    return f"direct_{'_'.join(sorted((a, b)))}"
