"""The channels: conversations with a name, which belong to a project or to all.

What must stay true: the id of a channel's conversation says its scope and its name, so that a name
is taken once in a scope, also when clones are merged; that of a private channel, which must not be
guessed, says its scope alone; and what can't be understood grants nothing. Pure; no pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from capsule.errors import InvalidInput
from capsule.format.documents.agents import AGENT_ID, GLOBAL
from capsule.format.fields import ACCESSES, TYPES, field_names

#: Characters.
MAX_CHANNEL_NAME = 80
#: The types of conversations that are no channels; None: chat.
_OTHERS = (None, *(type for type in TYPES if type != "channel"))
_NAME = re.compile(AGENT_ID)
#: The fields of `metadata.channel` in the order of `Channel`.
_KEYS = field_names("metadata.channel")


class Channel(NamedTuple):
    """What makes a conversation a channel: `metadata.channel`.

    Attributes:
        name: Its name.
        scope: `global`, or the id of the project whose agents find it.
        access: Who may join: `open`: anybody; `members`: those who are invited; `private`: nobody.
        is_default: Whether the agents of its scope join it when they are registered.
        topic_required: Whether a message needs a topic there.
        default_topic: The topic of a message that names none; empty: there is none.
        owner: The agent whose notes it holds; empty: it holds no notes.
    """

    name: str
    scope: str = GLOBAL
    access: str = "open"
    is_default: bool = False
    topic_required: bool = False
    default_topic: str = ""
    owner: str = ""

    @property
    def id(self) -> str:
        """The id of its conversation, unless it has one that `is_apart`."""
        return notes_id(self.owner) if self.owner else channel_id(self.scope, self.name)

    @property
    def is_global_default(self) -> bool:
        """Whether every agent is put into it when it is registered."""
        return self.is_default and self.scope == GLOBAL

    def id_apart(self, random: str) -> str:
        """An id for it that no name gives."""
        return f"{channel_id(self.scope, '')}_{random}"

    def is_apart(self, id: str) -> bool:
        """Whether `id_apart` gave this id."""
        return not self.owner and id.startswith(self.id_apart(""))

    def as_json(self) -> dict[str, Any]:
        """The channel as the format writes it."""
        return dict(zip(_KEYS, self, strict=True)) | {
            "defaultTopic": self.default_topic or None,
            "owner": self.owner or None,
        }


def channel_in(metadata: Mapping[str, Any]) -> Channel | None:
    """The channel in the metadata of a conversation; None if it is none.

    An access that can't be understood counts as private, and a scope as that of no project. A type
    that is unknown is taken for `channel`: a slip in an editor must not open one.
    """
    about = metadata.get("channel")
    if about is None or metadata.get("type") in _OTHERS:
        return None
    about = about if isinstance(about, dict) else {}
    text = {key: value for key, value in about.items() if isinstance(value, str)}
    return Channel(
        text.get("name", ""),
        text.get("scope", ""),
        text["access"] if text.get("access") in ACCESSES else "private",
        about.get("isDefault") is True,
        about.get("topicRequired") is True,
        text.get("defaultTopic", ""),
        text.get("owner", ""),
    )


def channel_id(scope: str, name: str) -> str:
    """The id of the conversation of the channel with this name in this scope."""
    return f"channel_{scope}_{name}"


def notes_id(agent: str) -> str:
    """The id of the conversation of an agent's notes."""
    return f"notes_{agent}"


def check_channel_name(text: str) -> str:
    """`text`, if it may be the name of a channel. Raises InvalidInput."""
    if len(text) > MAX_CHANNEL_NAME or not _NAME.fullmatch(text):
        letters = f"small letters, digits and - between them, at most {MAX_CHANNEL_NAME}"
        raise InvalidInput(f"{text[:90]!r} is not a name of a channel: {letters}")
    return text
