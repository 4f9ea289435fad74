"""The documents of agents and of projects: `agents/{id}.json`, `projects/{id}.json`.

What must stay true: the id of neither holds an underscore, so that `direct_{a}_{b}` names two
agents and `channel_{project}_{name}` one channel of one project, and both are so short that this is
an id; a project's is made of its folder, and none is `global`, which stands for no project; only
the `id` is required, as people write such files too; unknown fields are kept. What cursors say and
links let see is for `capsule.messaging` to know. Pure; no pydantic.
"""

from __future__ import annotations

import re
from typing import Any

from capsule.errors import InvalidInput
from capsule.ids import folder_ids

Document = dict[str, Any]

AGENT_ID = "[a-z0-9]([a-z0-9-]*[a-z0-9])?"
#: Characters. `direct_{a}_{b}` has at most 128, as every id.
MAX_AGENT_ID = 60
_AGENT = re.compile(AGENT_ID)

#: Where agents and channels are that belong to no project.
GLOBAL = "global"
PROJECT_ID = "[a-z0-9]+(-[a-z0-9]+)*-[0-9a-f]{6}"
#: Characters. `channel_{project}_{name}` has at most 128, as every id.
MAX_PROJECT_ID = 36
_PROJECT = re.compile(PROJECT_ID)


def is_agent_id(text: str) -> bool:
    """Whether `text` may be the id of an agent."""
    return len(text) <= MAX_AGENT_ID and _AGENT.fullmatch(text) is not None


def check_agent_id(text: str) -> str:
    """`text`, if it may be the id of an agent. Raises InvalidInput."""
    if not is_agent_id(text):
        letters = f"small letters, digits and - between them, at most {MAX_AGENT_ID}"
        raise InvalidInput(f"{text[:60]!r} is not an agent id: {letters}")
    return text


def project_of(document: Document) -> str:
    """The project of an agent: its id, or `global`. One that names none has that of its folder."""
    path = document.get("projectPath")
    return document.get("project") or (project_id(path) if path else GLOBAL)


def is_project_id(text: str) -> bool:
    """Whether `text` may be the id of a project."""
    return len(text) <= MAX_PROJECT_ID and _PROJECT.fullmatch(text) is not None


def check_project_id(text: str) -> str:
    """`text`, if it may be the id of a project. Raises InvalidInput."""
    if not is_project_id(text):
        letters = "small letters, digits and - between them, at the end - and 6 hexadecimal digits"
        raise InvalidInput(
            f"{text[:60]!r} is not a project id: {letters}, at most {MAX_PROJECT_ID}"
        )
    return text


def project_id(path: str) -> str:
    """The id of the project in a folder: the same on each machine that has it there."""
    return folder_ids(path, MAX_PROJECT_ID, "project")[1]


def direct_id(a: str, b: str) -> str:
    """The id of the direct of two agents. No agent's id has a `_`, so that no other pair has the
    same.
    """
    return f"direct_{'_'.join(sorted((a, b)))}"
