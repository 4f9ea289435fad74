"""Read the fields of channels: conversations with a name, which belong to one project or to all.

What must stay true: the id of a channel's conversation is made of its scope and its name, so a name
is used once in a scope, also when clones are merged. An id *apart* has a random part instead of the
name, in two cases. Nobody must guess the id of a private channel. And if the usual id is in use by
a channel that the maker of the new one may not know of, a refusal would reveal that channel.
Invalid values grant nothing. Pure; no pydantic.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from capsule.errors import InvalidInput
from capsule.format.documents.agents import AGENT_ID, GLOBAL
from capsule.format.fields import ACCESSES, TYPES, field_names

#: The most characters of a name.
MAX_CHANNEL_NAME = 80
#: The types of conversations that are no channels; None: chat.
_OTHER_TYPES = (None, *(type for type in TYPES if type != "channel"))
#: As of an agent's id. It has no `_`, which separates the parts of a conversation's id.
_NAME = re.compile(AGENT_ID)
#: The names of the fields of `metadata.channel`. `Channel` has its fields in the same order.
_KEYS = field_names("metadata.channel")


class Channel(NamedTuple):
    """What makes a conversation a channel: `metadata.channel`.

    Attributes:
        name: Its name.
        scope: `global`, or the id of the project whose agents find it.
        access: The agents that may join: all in its scope (`open`), those that were invited
            (`members`), or none by itself (`private`: the owner of the notes, or of the store, adds
            them).
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
        if self.owner:
            return notes_id(self.owner)
        return channel_id(self.scope, self.name)

    @property
    def is_global_default(self) -> bool:
        """Whether every agent joins it when it is registered."""
        return self.is_default and self.scope == GLOBAL

    def id_apart(self, random: str) -> str:
        """Return an id with a random part instead of the name.

        It is the id of a private channel, which nobody must guess, and of a channel whose usual id
        is in use by one that its maker may not know of.
        """
        return f"{channel_id(self.scope, '')}_{random}"

    def is_apart(self, id: str) -> bool:
        """Return whether `id_apart` returned this id."""
        return not self.owner and id.startswith(self.id_apart(""))

    def as_json(self) -> dict[str, Any]:
        """Return the channel as the format writes it."""
        return dict(zip(_KEYS, self, strict=True)) | {
            "defaultTopic": self.default_topic or None,
            "owner": self.owner or None,
        }


def channel_in(metadata: Mapping[str, Any]) -> Channel | None:
    """Return the channel in the metadata of a conversation. None: it is no channel.

    An invalid access counts as private, and an invalid scope as one in which no agent is. An
    unknown type counts as `channel`: a typing error must not open a channel to everybody.
    """
    fields = metadata.get("channel")
    if fields is None or metadata.get("type") in _OTHER_TYPES:
        return None
    if not isinstance(fields, dict):
        fields = {}
    texts = {name: value for name, value in fields.items() if isinstance(value, str)}
    access = texts.get("access")
    return Channel(
        name=texts.get("name", ""),
        scope=texts.get("scope", ""),
        access=access if access in ACCESSES else "private",
        is_default=fields.get("isDefault") is True,
        topic_required=fields.get("topicRequired") is True,
        default_topic=texts.get("defaultTopic", ""),
        owner=texts.get("owner", ""),
    )


def channel_id(scope: str, name: str) -> str:
    """Return the id of the conversation of a channel."""
    return f"channel_{scope}_{name}"


def notes_id(agent: str) -> str:
    """Return the id of the conversation of an agent's notes."""
    return f"notes_{agent}"


def check_channel_name(text: str) -> str:
    """Return `text` if it may be the name of a channel. Raises InvalidInput."""
    if len(text) > MAX_CHANNEL_NAME or not _NAME.fullmatch(text):
        letters = f"small letters, digits and - between them, at most {MAX_CHANNEL_NAME}"
        raise InvalidInput(f"{text[:90]!r} is not a name of a channel: {letters}")
    return text
