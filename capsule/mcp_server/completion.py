"""Completing ids, titles, tags and kinds while a person types.

What must stay true: at most 100 values, as the protocol has it; conversations come as a list has them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import anyio.to_thread
from mcp_types import Completion, CompletionArgument, PromptReference, ResourceTemplateReference

from capsule.fence import visible
from capsule.format import schema
from capsule.store.pages import Filter

if TYPE_CHECKING:
    from capsule.format.documents.head import Head
    from capsule.public import Store

_MOST = 100
_SINCE = ("24h", "1h", "3d", "7d", "30d")


async def completed(
    store: Store,
    ref: PromptReference | ResourceTemplateReference,
    argument: CompletionArgument,
    choices: Mapping[str, Sequence[str]],
) -> Completion:
    """The values that what was typed may become; none for an argument that nothing is known of."""
    found = await anyio.to_thread.run_sync(_values, store, choices, argument.name, argument.value)
    if found is None:
        return Completion(values=[])
    return Completion(values=found[:_MOST], total=len(found), has_more=len(found) > _MOST)


def _values(store: Store, choices: Mapping[str, Sequence[str]], name: str, typed: str) -> list[str] | None:
    if name == "kind":
        return [kind for kind in schema.kinds() if kind.startswith(typed)]
    if name in choices:
        return [value for value in choices[name] if value.startswith(typed)]
    if name == "since":
        return [span for span in _SINCE if span.startswith(typed)]
    if name == "message":
        return ["@last"] if "@last".startswith(typed) else []
    if name not in ("id", "conversation", "title", "tag"):
        return None
    heads = [head for head in store.list(Filter(archived=None)).heads if not head.damaged]
    wanted = typed.casefold()
    if name == "tag":
        return _offered((tag for head in heads for tag in head.tags), wanted)
    if name == "id":
        return [head.id for head in heads if head.id.startswith(typed) or (typed and _has(head.title, wanted))]
    if name == "title":
        return _offered((head.title for head in heads), wanted)
    return _named(heads, typed, wanted)


def _offered(texts: Iterable[str], wanted: str) -> list[str]:
    """Those that have what was typed, each once, but none in which something hides."""
    return [text for text in dict.fromkeys(texts) if text and _has(text, wanted) and text == visible(text)]


def _named(heads: list[Head], typed: str, wanted: str) -> list[str]:
    """What names a conversation to a prompt: its title where no other has it, else its id."""
    often: dict[str, int] = {}
    for head in heads:
        often[head.title] = often.get(head.title, 0) + 1
    return [
        head.title if head.title and often[head.title] == 1 and head.title == visible(head.title) else head.id
        for head in heads
        if _has(head.title, wanted) or head.id.startswith(typed)
    ]


def _has(text: str, wanted: str) -> bool:
    return wanted in text.casefold()
