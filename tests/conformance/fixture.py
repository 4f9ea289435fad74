"""The server that the conformance suite requires, on our server class. The suite sets the names and
texts of tools.

What must stay true: everything below the tools is the product: `CapsuleServer`, its handlers, and
its HTTP. Nothing here bypasses them, since the suite must test the product.

    python -m tests.conformance.fixture DIRECTORY

serves on a free port of 127.0.0.1, prints its address, and leaves a token in DIRECTORY/token.
"""

from __future__ import annotations

import base64
import functools
import json
import re
import struct
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import anyio
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.prompts.base import UserMessage
from mcp_types import (
    AudioContent,
    Completion,
    CompletionArgument,
    CompletionContext,
    EmbeddedResource,
    ImageContent,
    ModelHint,
    ModelPreferences,
    PromptReference,
    ResourceTemplateReference,
    SamplingMessage,
    TextContent,
    TextResourceContents,
)
from pydantic import BaseModel, Field

import capsule
from capsule.mcp_server import resources, sdk
from capsule.mcp_server.access import Tokens
from capsule.mcp_server.server import CapsuleServer
from capsule.mcp_server.stores import ClientStores, HttpClientStores
from capsule.mcp_server.transport import http, process
from capsule.public import Store
from tests.conformance import questions


def _red_pixel() -> bytes:
    """The smallest PNG: one red pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0\xff\0\0"))
        + chunk(b"IEND", b"")
    )


def _silence() -> bytes:
    """A WAV of two samples."""
    form = struct.pack("<HHIIHH", 1, 1, 8000, 16000, 2, 16)
    body = (
        b"WAVE"
        b"fmt " + struct.pack("<I", len(form)) + form + b"data" + struct.pack("<I", 4) + bytes(4)
    )
    return b"RIFF" + struct.pack("<I", len(body)) + body


PIXEL = _red_pixel()
IMAGE = ImageContent(type="image", data=base64.b64encode(PIXEL).decode(), mime_type="image/png")
AUDIO = AudioContent(
    type="audio", data=base64.b64encode(_silence()).decode(), mime_type="audio/wav"
)


def _text(text: str) -> TextContent:
    return TextContent(type="text", text=text)


def _embedded(uri: str, text: str, mime_type: str = "text/plain") -> EmbeddedResource:
    return EmbeddedResource(
        type="resource", resource=TextResourceContents(uri=uri, text=text, mime_type=mime_type)
    )


def _returning(content: list[Any]) -> Callable[[], list[Any]]:
    return lambda: content


def add_content(server: CapsuleServer) -> None:
    """Add tools that return each kind of content, and one that fails."""

    embedded = _embedded("test://embedded-resource", "This is an embedded resource content.")
    mixed = json.dumps({"test": "data", "value": 123})
    resource = _embedded("test://mixed-content-resource", mixed, "application/json")
    contents: dict[str, list[Any]] = {
        "test_simple_text": [_text("This is a simple text response for testing.")],
        "test_image_content": [IMAGE],
        "test_audio_content": [AUDIO],
        "test_embedded_resource": [embedded],
        "test_multiple_content_types": [_text("Multiple content types test:"), IMAGE, resource],
    }
    for name, content in contents.items():
        server.add_tool(
            _returning(content), name, description="Returns content.", structured_output=False
        )

    @server.tool()
    def test_error_handling() -> str:
        """Fails."""
        raise ToolError("This tool intentionally returns an error for testing")

    @server.tool()
    def json_schema_2020_12_tool() -> str:
        """Has arguments described with keywords of JSON Schema 2020-12."""
        return "ok"

    # The SDK derives a schema from a signature, and has no public way to give one.
    described = sdk.tool_of(server, "json_schema_2020_12_tool")
    assert described is not None
    described.parameters = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    }

    @server.tool()
    def test_x_mcp_header(
        region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})] = "none",
    ) -> str:
        """Has an argument that a client repeats in a header."""
        return region


def add_asking(server: CapsuleServer) -> None:
    """Add tools that send messages or questions to the client while they run."""

    @server.tool()
    async def test_tool_with_logging(ctx: Context) -> str:
        """Sends three log messages to the client."""
        for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
            await ctx.info(line)
            await anyio.sleep(0.05)
        return "logged"

    @server.tool()
    async def test_tool_with_progress(ctx: Context) -> str:
        """Reports its progress three times."""
        for done in (0, 50, 100):
            await ctx.report_progress(done, 100, f"{done} of 100")
            await anyio.sleep(0.05)
        return "done"

    @server.tool()
    async def test_sampling(prompt: str, ctx: Context) -> str:
        """Asks the client's model."""
        answer = await ctx.session.create_message(
            messages=[SamplingMessage(role="user", content=_text(prompt))],
            max_tokens=100,
            model_preferences=ModelPreferences(hints=[ModelHint(name="any")]),
            related_request_id=ctx.request_id,
        )
        return f"LLM response: {answer.content.text if isinstance(answer.content, TextContent) else answer.content}"

    async def asked(ctx: Context, message: str, form: type[BaseModel]) -> str:
        answer = await ctx.elicit(message, form)
        content = answer.data.model_dump_json() if answer.action == "accept" else "{}"
        return f"User response: action={answer.action}, content={content}"

    @server.tool()
    async def test_elicitation(message: str, ctx: Context) -> str:
        """Asks the client's user."""
        return await asked(ctx, message, questions.Person)

    @server.tool()
    async def test_elicitation_sep1034_defaults(ctx: Context) -> str:
        """Asks with a default for each kind of field."""
        return await asked(ctx, "Is this right?", questions.Defaults)

    @server.tool()
    async def test_elicitation_sep1330_enums(ctx: Context) -> str:
        """Asks with each kind of choice."""
        return await asked(ctx, "Which ones?", questions.Choices)


def add_resources(server: CapsuleServer) -> None:
    """Add two static resources, one for subscriptions, and a template."""

    @server.resource("test://static-text", mime_type="text/plain")
    def static_text() -> str:
        """Text."""
        return "This is the content of the static text resource."

    @server.resource("test://static-binary", mime_type="image/png")
    def static_binary() -> bytes:
        """An image."""
        return PIXEL

    @server.resource("test://watched-resource", mime_type="text/plain")
    def watched_resource() -> str:
        """The resource for subscriptions."""
        return "Watched resource content"

    @server.resource("test://template/{id}/data", mime_type="application/json")
    def template_data(id: str) -> str:
        """The resource of the template for an id."""
        return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def add_prompts(server: CapsuleServer) -> None:
    """Add prompts of text and other content, and the completion of their arguments."""

    @server.completion()
    async def complete(
        ref: PromptReference | ResourceTemplateReference,
        argument: CompletionArgument,
        context: CompletionContext | None,
    ) -> Completion:
        values = [value for value in ("paris", "park", "party") if value.startswith(argument.value)]
        return Completion(values=values, total=len(values), has_more=False)

    @server.prompt()
    def test_simple_prompt() -> str:
        """No arguments."""
        return "This is a simple prompt for testing."

    @server.prompt()
    def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
        """Two arguments."""
        return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"

    @server.prompt()
    def test_prompt_with_embedded_resource(resourceUri: str) -> list[UserMessage]:
        """Embeds a resource."""
        return [
            UserMessage(_embedded(resourceUri, "Embedded resource content for testing.")),
            UserMessage("Please process the embedded resource above."),
        ]

    @server.prompt()
    def test_prompt_with_image() -> list[UserMessage]:
        """Shows an image."""
        return [UserMessage(IMAGE), UserMessage("Please analyze the image above.")]


def build(stores: ClientStores, tokens: Tokens) -> CapsuleServer:
    """Our server class, with the tools and resources of the suite in place of the product's."""
    resources.RESOURCE_ADDRESS = re.compile("test://.*")
    server = CapsuleServer(
        stores,
        version=capsule.__version__,
        name="capsule-conformance",
        **http.token_options(tokens),
    )
    for add in (add_content, add_asking, add_resources, add_prompts, questions.add):
        add(server)
    return server


def main() -> None:
    """Serve it as the product is served, and print its address."""
    place = Path(sys.argv[1])
    store = place / "store"
    Store.init(store)
    stores = HttpClientStores(str(store))
    listener = process.listen("127.0.0.1", 0)
    tokens = Tokens(place / "config", str(store))
    (place / "token").write_text(tokens.add("suite", scope="admin"))
    ready = functools.partial(print, listener.url + http.PATH, flush=True)
    http.serve(build(stores, tokens), stores, listener, tokens=tokens, ready=ready)


if __name__ == "__main__":
    main()
