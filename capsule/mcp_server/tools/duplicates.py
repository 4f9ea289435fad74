"""Calls that were made before: the same tool with the same inputs, by one agent in one session, within ten minutes.

What must stay true: a call is recognised, never held back, because what looks the same may be meant; and calls of two
agents, of two sessions or of two projects (an agent's id belongs to one) are never taken for one. This knows no tool.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import sha256
from typing import Any

import orjson

#: How long a call is known, in seconds; and how many calls are.
_KNOWN_S, _MOST = 600.0, 10_000


class Calls:
    """The calls of the last ten minutes that were carried out. Not thread-safe."""

    def __init__(self) -> None:
        #: When each was made last, the oldest first, by the monotonic clock.
        self._made: dict[tuple[str | None, str, bytes], float] = {}

    def repeated(self, agent: str | None, session: str, tool: str, inputs: Mapping[str, Any]) -> float | None:
        """Note a call that was carried out.

        Args:
            agent: Who made it; None: the store's owner.
            session: The session that it belongs to.
            tool: The name of the tool.
            inputs: Its arguments, as JSON.

        Returns:
            The seconds since the same call was carried out before; None: it was not, or more than ten minutes ago.
        """
        inside = sha256(orjson.dumps([tool, inputs], option=orjson.OPT_SORT_KEYS)).digest()
        now = time.monotonic()
        before = self._made.pop((agent, session, inside), None)
        self._made[agent, session, inside] = now
        if len(self._made) > _MOST:
            del self._made[next(iter(self._made))]
        return now - before if before is not None and now - before <= _KNOWN_S else None
