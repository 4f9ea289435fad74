"""The kinds of documents that an agent has anything to do with.

What must stay true: a kind that is not listed does not exist for an agent, whatever asks; what the tools of a session
give an agent of its files, they give themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from capsule.engines.interface import CONVERSATIONS
from capsule.errors import Refused

if TYPE_CHECKING:
    from capsule.engines.interface import Engine

KINDS = frozenset({CONVERSATIONS, "agents", "projects", "homes", "doorbells", "overrides", "applied"})
#: What an engine is asked about a kind of documents.
ASKED = frozenset(
    {"transaction", "create", "edit", "delete", "exists", "version", "versions", "ids", "read", "document"}
)
T = TypeVar("T")


class OfKinds:
    """An engine that has documents of these kinds only. See `Engine`."""

    def __init__(self, agent: str, engine: Engine) -> None:
        self._agent = agent
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        asked = getattr(self._engine, name)
        return partial(self._of_a_kind, asked) if name in ASKED else asked

    def _of_a_kind(self, asked: Callable[..., T], kind: str, *args: Any) -> T:
        if kind not in KINDS:
            raise Refused(f"agent {self._agent} does not reach {kind}, only a person", path="")
        return asked(kind, *args)
