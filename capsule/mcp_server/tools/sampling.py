"""A summary written by the client's own model, where the client still offers that (sampling, up to
2025-11-25).

What must stay true: a model is only asked for a summary that the call itself does not bring; what
is stored goes to it as data, fenced as in every answer; and the summary is one of what the model
was given to read, not of what came later.
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

#: Of the transcript that the model gets, and of what it may write, in tokens.
_READ, _WRITTEN = 50_000, 4_000


class SummaryText(BaseModel):
    """The text of a summary, and how far its source went when the client's model read it."""

    text: str
    mark: Mark | None = None


async def summary_text(ctx: Context, content: str, summaryOf: str) -> SummaryText:
    """The summary to store: the one that was given, else one that the client's model writes."""
    capabilities = ctx.client_capabilities
    is_offered = (
        capabilities is not None
        and capabilities.sampling is not None
        and ctx.session.can_send_request
    )
    if content or not summaryOf or not is_offered:
        return SummaryText(text=content)
    mark, asked = await anyio.to_thread.run_sync(_prompt, ctx, summaryOf)
    request = CreateMessageRequest(
        params=CreateMessageRequestParams(
            messages=[SamplingMessage(role="user", content=TextContent(text=asked))],
            max_tokens=_WRITTEN,
        )
    )
    related = ServerMessageMetadata(related_request_id=ctx.request_id)
    got = await ctx.session.send_request(request, CreateMessageResult, metadata=related)
    if not isinstance(got.content, TextContent) or not got.content.text.strip():
        raise ExplainedError(
            "Nothing was made: the client's model wrote no summary. Give one as content."
        )
    return SummaryText(text=got.content.text, mark=mark)


def read_up_to(store: CoreStore, summary_of: str) -> tuple[str, str | None]:
    """The conversation in `ID` or `ID:MESSAGE`, and the last message that was read for its summary;
    None: its end.
    """
    conversation, _, message = summary_of.partition(":")
    return store.resolve(conversation), message or None


def _prompt(ctx: Context, conversation: str) -> tuple[Mark, str]:
    from capsule.format.text.tokens import estimate
    from capsule.format.text.transcript import transcript

    store = store_of(ctx)
    document = store.document(read_up_to(store, conversation)[0])
    text = visible(transcript(document, estimate, budget=_READ).text)
    fence = TextFence([text])
    return Mark.of(document), (
        f"Sum up the conversation {quoted(document['title'])}: what it is about, what was "
        "decided, what is open. "
        "Answer with the summary alone.\n\n"
        + fence.enclose([(f"transcript of {word(document['id'])}", text)])
    )
