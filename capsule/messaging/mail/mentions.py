"""Mentions in the text of a message: `@name`, `@name@project` and `@all`, and which agents they
concern.

What must stay true: what stands in code, in an address or in a URL is no mention; a message that an
agent was mentioned in says so by the agent's id, for whoever bears the name later. Whose a name is,
and who is a member, is not known here. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from capsule.rules.policy import Profile

#: All members of the conversation.
EVERYBODY = "@all"
#: The kinds of mentions. The first needs no word; the others follow the name, as in `@anna
#: --review`.
KINDS = ("mention", "review", "action", "fyi")
#: Nobody is mentioned behind so many characters, and no more than so many names.
_MOST, _MOST_NAMES = 20_000, 50
_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*+://\S*|www\.\S*")
_NAME = r"\w++(?:[.-]\w++)*+"
_MENTION = re.compile(
    rf"(?<![\w@/.+-])@({_NAME}(?:@{_NAME})?+)(?![@/])(?:\s+--(review|action|fyi)\b)?"
)


def mentioned(text: str) -> dict[str, str]:
    """The names that a text mentions, each with its kind, in their order.

    Args:
        text: The text, as Markdown.

    Cost: none without an `@`; else some tens of microseconds, and once 60 milliseconds to load a
    parser.
    """
    kinds: dict[str, str] = {}
    if "@" not in text:
        return kinds
    from markdown_it import MarkdownIt

    for block in MarkdownIt("commonmark").parse(text[:_MOST]):
        for piece in block.children or ():
            if piece.type == "text":
                for name, kind in _MENTION.findall(_URL.sub(" ", piece.content)):
                    kinds[name] = kind or kinds.get(name, KINDS[0])
    return dict(islice(kinds.items(), _MOST_NAMES))


class Interest(NamedTuple):
    """What an agent wants to hear of in a conversation.

    Attributes:
        only_mentions: Whether nothing but mentions counts as unread, and wakes the agent.
        wakes: Whether anything wakes the agent.
        blocked: The agents of which it hears nothing: their messages count and wake nowhere.
    """

    only_mentions: bool = False
    wakes: bool = True
    blocked: tuple[str, ...] = ()

    @classmethod
    def of(cls, reading: Mapping[str, Any] | None, profile: Profile) -> Interest:
        """The interest of an agent, given the item of `reading` in its document; None: there is
        none.
        """
        muted, notify = (reading or {}).get("muted") is True, (reading or {}).get("notify")
        blocked = (id for id, entry in profile.entries.items() if entry == "block")
        return cls(muted or notify == "mentions", notify != "none", tuple(blocked))

    def kind(self, entry: Mapping[str, Any], agent: str) -> str:
        """The kind of the mention of an agent in a message; empty: the message doesn't
        mention it.
        """
        about = entry.get("mentions")
        valid, kinds = (
            (about.get("valid"), about.get("kinds")) if isinstance(about, dict) else (None, None)
        )
        there = valid if isinstance(valid, list) else ()
        name = agent if agent in there else EVERYBODY
        if name not in there or entry.get("from") in self.blocked:
            return ""
        kind = kinds.get(name) if isinstance(kinds, dict) else None
        return kind if kind in KINDS else KINDS[0]

    def counts(self, entry: Mapping[str, Any], agent: str) -> bool:
        """Whether a message of another agent counts as unread."""
        if entry.get("from") in self.blocked:
            return False
        return not self.only_mentions or bool(self.kind(entry, agent))
