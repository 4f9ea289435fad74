"""The questions of the conformance fixture to a client: forms for both eras, and tools of 2026 that
return questions.

A 2026 server keeps no call open while a person thinks: it returns "input required", and the client
calls again with the answers and the state of that result. The product does this through `Resolve`;
the tools of the suite do it by hand.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.prompts.base import Prompt, UserMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CreateMessageRequest,
    CreateMessageRequestParams,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    SamplingMessage,
    TextContent,
)
from pydantic import BaseModel, Field

if TYPE_CHECKING:
    from capsule.mcp_server.server import CapsuleServer


class Person(BaseModel):
    username: str = Field(description="User's response")
    email: str = Field(description="User's email address")


class Defaults(BaseModel):
    name: str = "John Doe"
    age: int = 30
    score: float = 95.5
    status: Literal["active", "inactive", "pending"] = "active"
    verified: bool = True


def _titled(*names: str) -> list[Any]:
    return [{"const": name, "title": name.title()} for name in names]


class Choices(BaseModel):
    untitledSingle: Literal["option1", "option2", "option3"]
    titledSingle: str = Field(json_schema_extra={"oneOf": _titled("value1", "value2", "value3")})
    legacyEnum: str = Field(
        json_schema_extra={
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        }
    )
    untitledMulti: list[Literal["option1", "option2", "option3"]]
    titledMulti: list[str] = Field(
        json_schema_extra={"items": {"anyOf": _titled("value1", "value2", "value3")}}
    )


def _form(message: str, field: str, kind: str = "string") -> ElicitRequest:
    schema = {"type": "object", "properties": {field: {"type": kind}}, "required": [field]}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def _sample(prompt: str) -> CreateMessageRequest:
    message = SamplingMessage(role="user", content=TextContent(type="text", text=prompt))
    return CreateMessageRequest(
        params=CreateMessageRequestParams(messages=[message], max_tokens=100)
    )


def _ask(state: Any = None, **requests: InputRequest) -> InputRequiredResult:
    return InputRequiredResult(
        input_requests=requests, request_state=None if state is None else json.dumps(state)
    )


def _answer(ctx: Context, key: str) -> Any:
    """The client's answer to the question of that key; None when there is none yet."""
    return (ctx.input_responses or {}).get(key)


def _filled(ctx: Context, key: str, field: str) -> Any:
    """The value of a field in the answered form of that key; None when the person left it empty."""
    answer = _answer(ctx, key)
    return (answer.content or {}).get(field) if isinstance(answer, ElicitResult) else None


def add(server: CapsuleServer) -> None:
    """Register the suite's tools and prompt of the 2026 era."""
    _add_single(server)
    _add_stateful(server)
    _add_capable(server)

    @server.prompt()
    async def test_input_required_result_prompt(
        ctx: Context,
    ) -> list[UserMessage] | InputRequiredResult:
        """A prompt that asks first."""
        if (context := _filled(ctx, "user_context", "context")) is None:
            return _ask(user_context=_form("In what context?", "context"))
        return [UserMessage(f"Mind this: {context}")]


def _add_single(server: CapsuleServer) -> None:
    @server.tool()
    async def test_input_required_result_elicitation(ctx: Context) -> str | InputRequiredResult:
        """Asks a person for a name."""
        if (name := _filled(ctx, "user_name", "name")) is None:
            return _ask(user_name=_form("What is your name?", "name"))
        return f"Hello, {name}!"

    @server.tool()
    async def test_input_required_result_sampling(ctx: Context) -> str | InputRequiredResult:
        """Asks the client's model."""
        if (answer := _answer(ctx, "capital_question")) is None:
            return _ask(capital_question=_sample("What is the capital of France?"))
        return f"The model said: {getattr(answer, 'content', '')}"

    @server.tool()
    async def test_input_required_result_list_roots(ctx: Context) -> str | InputRequiredResult:
        """Asks for the client's roots."""
        if (answer := _answer(ctx, "client_roots")) is None:
            return _ask(client_roots=ListRootsRequest())
        return f"{len(getattr(answer, 'roots', []))} roots"

    @server.tool()
    async def test_input_required_result_multiple_inputs(ctx: Context) -> str | InputRequiredResult:
        """Asks for three things at once."""
        if all(_answer(ctx, key) is not None for key in ("user_name", "greeting", "client_roots")):
            return "all three are here"
        return _ask(
            "three questions",
            user_name=_form("What is your name?", "name"),
            greeting=_sample("Greet somebody"),
            client_roots=ListRootsRequest(),
        )


def _add_stateful(server: CapsuleServer) -> None:
    @server.tool()
    async def test_input_required_result_request_state(ctx: Context) -> str | InputRequiredResult:
        """Gives the client a state to return."""
        if ctx.request_state == json.dumps("mine") and _filled(ctx, "confirm", "ok") is not None:
            return "state-ok"
        return _ask("mine", confirm=_form("Sure?", "ok", "boolean"))

    @server.tool()
    async def test_input_required_result_tampered_state(ctx: Context) -> str | InputRequiredResult:
        """Gives the client a state that the suite changes: the SDK refuses it before the second
        call.
        """
        if ctx.request_state is None:
            return _ask("whole", confirm=_form("Sure?", "ok", "boolean"))
        return f"state-ok: {ctx.request_state}"

    @server.tool()
    async def test_input_required_result_multi_round(ctx: Context) -> str | InputRequiredResult:
        """Asks twice, and remembers the first answer in the state."""
        state = json.loads(ctx.request_state) if ctx.request_state else {}
        color = _filled(ctx, "step2", "color")
        if "name" in state and color is not None:
            return f"{state['name']} likes {color}"
        if state and (name := _filled(ctx, "step1", "name")) is not None:
            return _ask({"name": name}, step2=_form("Step 2: what color do you like?", "color"))
        return _ask({"asked": "name"}, step1=_form("Step 1: what is your name?", "name"))


def _add_capable(server: CapsuleServer) -> None:
    @server.tool()
    async def test_input_required_result_capabilities(ctx: Context) -> InputRequiredResult:
        """Asks only the questions that the client declared it can answer."""
        can = ctx.client_capabilities
        requests: dict[str, InputRequest] = {}
        if can is not None and can.sampling is not None:
            requests["sample"] = _sample("Say hello")
        if can is not None and can.elicitation is not None:
            requests["ask"] = _form("What is your name?", "name")
        return _ask("asked", **requests)

    @server.tool()
    async def test_missing_capability(ctx: Context) -> str:
        """Needs a client that can sample."""
        if (can := ctx.client_capabilities) is None or can.sampling is None:
            needed: dict[str, Any] = {"requiredCapabilities": {"sampling": {}}}
            raise MCPError(
                MISSING_REQUIRED_CLIENT_CAPABILITY,
                "this tool needs a client that can sample",
                needed,
            )
        return "it can"

    @server.tool()
    async def test_streaming_elicitation(ctx: Context) -> str | InputRequiredResult:
        """Reports its progress, and asks a person in its result, never in a separate request."""
        await ctx.report_progress(1, 2)
        if (name := _filled(ctx, "user_name", "name")) is None:
            return _ask(user_name=_form("What is your name?", "name"))
        return f"Hello, {name}!"

    @server.tool()
    async def test_logging_tool(ctx: Context) -> str:
        """Sends a log message, which a 2026 client gets only if it asked for the log."""
        await ctx.info("said to the log")
        return "logged"

    @server.tool()
    async def test_trigger_tool_change(ctx: Context) -> str:
        """Changes the list of tools, and notifies the client."""
        server.add_tool(lambda: "new", name="test_new_tool")
        server.remove_tool("test_new_tool")
        await ctx.notify_tools_changed()
        return "the tools changed"

    @server.tool()
    async def test_trigger_prompt_change(ctx: Context) -> str:
        """Changes the list of prompts, and notifies the client."""
        server.add_prompt(Prompt.from_function(lambda: "new", name="test_new_prompt"))
        server.remove_prompt("test_new_prompt")
        await ctx.notify_prompts_changed()
        return "the prompts changed"
