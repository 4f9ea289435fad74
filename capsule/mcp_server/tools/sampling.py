"""Let the client's own model write a summary, if the client offers that (sampling, until the
protocol of 2025-11-25).

What must stay true: the model is asked only for a summary that the call does not bring. The
conversation is given to it fenced, as data. The summary records the last message that the model
read, not a later one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel

from capsule.mcp_server.errors import ExplainedError
from capsule.mcp_server.stores import store_of
from capsule.store.objects.summaries import Mark
from capsule.untrusted_text import TextFence, quoted, visible, word

if TYPE_CHECKING:
    from capsule.store.store import CoreStore

#: The most tokens of the transcript for the model, and of the model's text.
_MAX_TRANSCRIPT_TOKENS = 50_000
_MAX_SUMMARY_TOKENS = 4_000


class SummaryText(BaseModel):
    """The text of a summary, and the last message that the client's model read."""

    text: str
    mark: Mark | None = None


async def summary_text(ctx: Context, content: str, summaryOf: str) -> SummaryText:
    """Return the summary to store: the given one, else one by the client's model."""
    capabilities = ctx.client_capabilities
    is_offered = (
        capabilities is not None
        and capabilities.sampling is not None
        and ctx.session.can_send_request
    )
    if content or not summaryOf or not is_offered:
        return SummaryText(text=content)
    mark, prompt = await anyio.to_thread.run_sync(_prompt, ctx, summaryOf)
    request = CreateMessageRequest(
        params=CreateMessageRequestParams(
            messages=[SamplingMessage(role="user", content=TextContent(text=prompt))],
            max_tokens=_MAX_SUMMARY_TOKENS,
        )
    )
    metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
    completion = await ctx.session.send_request(request, CreateMessageResult, metadata=metadata)
    if not isinstance(completion.content, TextContent) or not completion.content.text.strip():
        raise ExplainedError(
            "Nothing was made: the client's model wrote no summary. Give one as content."
        )
    return SummaryText(text=completion.content.text, mark=mark)


def read_up_to(store: CoreStore, summary_of: str) -> tuple[str, str | None]:
    """Parse `ID` or `ID:MESSAGE`. Return the conversation's id, and the last message that was read
    for the summary. None: the end.
    """
    conversation, _, message = summary_of.partition(":")
    return store.resolve(conversation), message or None


def _prompt(ctx: Context, conversation: str) -> tuple[Mark, str]:
    """Return the mark of the conversation's end, and the prompt for the model."""
    from capsule.format.text.tokens import estimate
    from capsule.format.text.transcript import transcript

    store = store_of(ctx)
    document = store.document(read_up_to(store, conversation)[0])
    text = visible(transcript(document, estimate, budget=_MAX_TRANSCRIPT_TOKENS).text)
    fence = TextFence([text])
    return Mark.of(document), (
        f"Sum up the conversation {quoted(document['title'])}: what it is about, what was "
        "decided, what is open. "
        "Answer with the summary alone.\n\n"
        + fence.enclose([(f"transcript of {word(document['id'])}", text)])
    )
