"""In which form a client gets an answer: as text, as data, or as both; and what a text costs the
model that reads it.

A host shows its model the text of an answer, or its structured content, and nothing in the protocol
says which. Every host shows the text of an answer that has nothing else. What must stay true: an
answer is sent once, as text, unless the client says that it takes data; it says so by the extension
`capsule/answers`, among its capabilities, with the settings {"takes": ["data"]} or {"takes":
["text", "data"]}. A tool knows nothing of this, apart from what it may cost. The estimate of a cost
is that of `capsule.format.text.tokens`, and two fifths more, to be on the safe side: answers hold
ids, which cost more than what people write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.format.text.tokens import estimate

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp_types import ClientCapabilities

EXTENSION = "capsule/answers"


def forms_of(capabilities: ClientCapabilities | None) -> frozenset[str]:
    """The forms that a client with these capabilities takes; one at least."""
    declared = (
        {}
        if capabilities is None
        else {**(capabilities.experimental or {}), **(capabilities.extensions or {})}
    )
    takes = declared.get(EXTENSION, {}).get("takes")
    forms = frozenset(
        form for form in ("text", "data") if isinstance(takes, list) and form in takes
    )
    return forms or frozenset({"text"})


async def in_its_form(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """A middleware of the SDK's: what a tool answered, and what the list says of tools, in the
    client's form.
    """
    result = await call_next(ctx)
    if ctx.method not in ("tools/call", "tools/list") or not isinstance(result, dict):
        return result
    forms = forms_of(ctx.session.client_capabilities)
    if "data" not in forms:
        # Clients insist on structured content where a schema of it is published.
        tools = [_without(tool, "outputSchema") for tool in _list(result, "tools")]
        return {**_without(result, "structuredContent"), **({"tools": tools} if tools else {})}
    if "text" not in forms and "structuredContent" in result:
        short = [
            {**block, "text": str(block.get("text", "")).split("\n", 1)[0]}
            for block in _list(result, "content")
        ]
        return {**result, "content": short}
    return result


def _without(value: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: part for key, part in value.items() if key != name}


def _list(result: dict[str, Any], key: str) -> list[dict[str, Any]]:
    return list(result.get(key) or ())


def tokens(text: str) -> int:
    """About how many tokens `text` costs; rather too many than too few."""
    return (7 * estimate(text.encode("utf-8", "surrogatepass")) + 4) // 5


def within(text: str, budget: int) -> int:
    """How many characters of the beginning of `text` cost at most `budget` tokens."""
    low, high = 0, min(len(text), budget * 6)
    while low < high:
        middle = (low + high + 1) // 2
        if tokens(text[:middle]) <= budget:
            low = middle
        else:
            high = middle - 1
    return low
