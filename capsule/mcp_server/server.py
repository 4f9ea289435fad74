"""The server: one `MCPServer` of the SDK, with everything that a store offers registered on it.

`build` makes it. The tools, resources and prompts of the core and the rooms are registered before
the first request that needs them, so that the handshake is fast. Middleware lists only permitted
tools. `call_tool`, `read_resource` and `get_prompt` turn errors of the store into texts.

What must stay true:
- A name is registered once (the SDK ignores the second silently). An error of the store reaches the
  client as text. Nothing here depends on a transport.
- Calls that wait for one conversation, which another process may hold for seconds, use few of the
  threads. So they delay neither calls on other conversations nor calls that read, which run in
  threads of their own.
- A repeated call is recognised but never held back, because it may be intended. Calls of two agents,
  of two sessions or of two projects (an agent's id belongs to one) are never taken for the same.
"""

from __future__ import annotations

import functools
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import anyio
import anyio.to_thread
import orjson
from mcp.server.lowlevel.helper_types import ReadResourceContents
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ResourceError, ResourceNotFoundError, ToolError
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CallToolResult,
    CompleteRequestParams,
    CompleteResult,
    GetPromptResult,
    InputRequiredResult,
    ListResourcesResult,
    PaginatedRequestParams,
    Resource,
    TextContent,
    ToolAnnotations,
)

from capsule import rooms
from capsule.errors import CapsuleError, InvalidInput, NotFound
from capsule.mcp_server import errors, sdk
from capsule.mcp_server.access import Toolset, required_scope
from capsule.mcp_server.extensions import ServerExtension, extensions_for
from capsule.mcp_server.notifications import ClientLogHandler, Subscriptions, VisibilityBus
from capsule.mcp_server.stores import access_of, store_of
from capsule.mcp_server.tools.answers import format_for_client
from capsule.untrusted_text import visible

if TYPE_CHECKING:
    from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
    from mcp.server.mcpserver.tools import Tool

    from capsule.mcp_server.stores import ClientStores
    from capsule.store.store import CoreStore


# -- Limits of calls -------------------------------------------------------------------------------

#: Threads for calls that write, in all and for one conversation.
_THREADS = 64
_THREADS_PER_CONVERSATION = 4
#: The seconds after which a call is forgotten, and the most calls that are remembered.
_MEMORY_S, _MAX_CALLS = 600.0, 10_000


class WriteLimiter:
    """The limits for calls that write, on one server."""

    def __init__(self) -> None:
        self._threads = anyio.CapacityLimiter(_THREADS)
        self._limiters: WeakValueDictionary[str, anyio.CapacityLimiter] = WeakValueDictionary()

    def limited(self, call: Callable[..., Any]) -> Callable[..., Awaitable[Any]]:
        """Return `call` as a coroutine that runs it in a thread within the limits. The call names
        its conversation, if any, as `id` or `conversation`.
        """

        @functools.wraps(call)
        async def run(**arguments: Any) -> Any:
            id = str(arguments.get("id") or arguments.get("conversation") or "")
            limiter = self._limiters.get(id)
            if limiter is None:
                limiter = self._limiters[id] = anyio.CapacityLimiter(
                    _THREADS_PER_CONVERSATION if id else _THREADS
                )
            async with limiter:
                return await anyio.to_thread.run_sync(
                    functools.partial(call, **arguments), limiter=self._threads
                )

        return run


class RecentCalls:
    """The calls of the last ten minutes that succeeded. Not thread-safe."""

    def __init__(self) -> None:
        #: The time of each call by the monotonic clock, in seconds, the oldest first.
        self._call_times: dict[tuple[str | None, str, bytes], float] = {}

    def seconds_since_same_call(
        self, agent: str | None, session: str, tool: str, inputs: Mapping[str, Any]
    ) -> float | None:
        """Remember a call that succeeded.

        Args:
            agent: The agent that made it. None: the owner of the store.
            session: The session that it belongs to.
            tool: The name of the tool.
            inputs: Its arguments as JSON.

        Returns:
            The seconds since the same call succeeded before. None: it did not within ten minutes.
        """
        digest = sha256(orjson.dumps([tool, inputs], option=orjson.OPT_SORT_KEYS)).digest()
        now = time.monotonic()
        last_call_s = self._call_times.pop((agent, session, digest), None)
        self._call_times[agent, session, digest] = now
        if len(self._call_times) > _MAX_CALLS:
            del self._call_times[next(iter(self._call_times))]
        if last_call_s is None or now - last_call_s > _MEMORY_S:
            return None
        return now - last_call_s


# -- The server ------------------------------------------------------------------------------------


class CapsuleServer(MCPServer[Any]):
    """The server, which is empty until `build` has set its attributes.

    Args:
        stores: The stores of the clients.
        name: The name of the server.
        register: Registers the tools, resources and prompts, before the first request that needs
            them. None: they are registered already.
        options: Options of the SDK's server.

    Attributes:
        list_store_resources: Returns a page of a store's resources after a cursor, and the next
            cursor.
    """

    def __init__(
        self,
        stores: ClientStores,
        *,
        name: str = "capsule",
        register: Callable[[CapsuleServer], None] | None = None,
        **options: Any,
    ) -> None:
        self.stores = stores
        #: What the core and the rooms add to the server.
        self.extensions: Sequence[ServerExtension] = ()
        #: The values of arguments of resources and prompts, by name.
        self.choices: dict[str, Sequence[str]] = {}
        self.list_store_resources: Callable[
            [CoreStore, str | None], tuple[list[Resource], str | None]
        ] = lambda *_: ([], None)
        self._write_limiter, self._recent_calls, self._register = (
            WriteLimiter(),
            RecentCalls(),
            register,
        )
        bus = VisibilityBus()
        super().__init__(name, subscriptions=bus, **{"log_level": "WARNING", **options})
        self.middleware.extend((format_for_client, self._filter_listed_tools))
        lowlevel_server = sdk.server_of(self)
        lowlevel_server.get_tool_input_schema = self._input_schema
        lowlevel_server.add_request_handler(
            "resources/list", PaginatedRequestParams, self._list_resources
        )
        self.subscriptions = Subscriptions(bus, stores)
        self.subscriptions.serve(lowlevel_server)
        ClientLogHandler().serve(lowlevel_server)

    # -- Registering -------------------------------------------------------------------------------

    def ready(self) -> None:
        """Register everything that the server offers, if that was not done yet."""
        if self._register is not None:
            register, self._register = self._register, None
            register(self)

    def add_tool(
        self, fn: Callable[..., Any], name: str | None = None, *args: Any, **options: Any
    ) -> None:
        """Register a tool. Raises ValueError: there is one of that name."""
        name = name or fn.__name__
        if sdk.tool_of(self, name) is not None:
            raise ValueError(f"two tools are called {name}")
        super().add_tool(fn, name, *args, **options)

    def add_lean_tool(self, fn: Callable[..., Any], annotations: ToolAnnotations) -> None:
        """Register a tool with schemas that contain only what a model needs."""
        from capsule.mcp_server.tools.registry import lean

        in_loop = annotations.read_only_hint or inspect.iscoroutinefunction(fn)
        self.add_tool(fn if in_loop else self._write_limiter.limited(fn), annotations=annotations)
        tool = sdk.tool_of(self, fn.__name__)
        assert tool is not None
        tool.description = " ".join(tool.description.split())
        tool.parameters = {**lean(tool.parameters), "additionalProperties": False}
        tool.fn_metadata.output_schema = lean(tool.fn_metadata.output_schema)

    def close_client_store(self, store: CoreStore) -> None:
        """Close the store of a client that has disconnected."""
        for extension in self.extensions:
            if extension.on_close is not None:
                extension.on_close(store)
        store.close()

    def background_tasks(self) -> Iterator[Callable[[], Coroutine[Any, Any, None]]]:
        """Yield the tasks to run while the server serves."""
        for extension in self.extensions:
            if extension.background_task is not None:
                yield partial(extension.background_task, self.stores)

    # -- Answering ---------------------------------------------------------------------------------

    def _input_schema(self, name: str) -> dict[str, Any] | None:
        self.ready()
        tool = sdk.tool_of(self, name)
        return None if tool is None else tool.parameters

    async def _filter_listed_tools(
        self, ctx: ServerRequestContext[Any, Any], call_next: CallNext
    ) -> HandlerResult:
        """Middleware: register what the store offers before the first request for it, and list only
        the tools that the client may call.
        """
        if ctx.method.partition("/")[0] in ("tools", "resources", "prompts"):
            self.ready()
        result = await call_next(ctx)
        if ctx.method == "tools/list" and isinstance(result, dict):
            access = self.stores.access(ctx)
            tools = [(tool, sdk.tool_of(self, tool["name"])) for tool in result["tools"]]
            result["tools"] = [
                listed for listed, tool in tools if tool and access.includes(required_scope(tool))
            ]
        return result

    def _checked_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None
    ) -> Tool:
        """Return the tool of a call. Raises MCPError: there is none. ToolError: the call is not
        permitted, or has unknown arguments.
        """
        tool = sdk.tool_of(self, name)
        if tool is None:
            raise MCPError(INVALID_PARAMS, f"Unknown tool: {visible(name[:80])}")
        scope = required_scope(tool, arguments)
        if context is not None and not access_of(context).includes(scope):
            raise ToolError(
                f"{name} was not called: this needs the scope {scope!r}, and you have "
                f"{access_of(context).scope!r}. Tell the user."
            )
        if tool.parameters.get("additionalProperties") is False:
            errors.ensure_known_arguments(name, arguments, tool.parameters["properties"])
        return tool

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Call a tool. An error of the store becomes a `ToolError` with the way out."""
        tool = self._checked_tool(name, arguments, context)
        try:
            result = await super().call_tool(name, arguments, context)
            if context is not None and isinstance(result, CallToolResult):
                with suppress(
                    CapsuleError
                ):  # A server that stops has no store any more, and remembers no call.
                    self._mark_repeated_call(tool, arguments, store_of(context), result)
            return result
        except MCPError as error:
            if error.error.code == MISSING_REQUIRED_CLIENT_CAPABILITY:
                raise  # The client can't be asked. Any other error is its answer to a question.
            raise errors.client_refusal(error) from error
        except ToolError as error:
            raise errors.tool_error(name, error, arguments) from error.__cause__

    def _mark_repeated_call(
        self, tool: Tool, arguments: dict[str, Any], store: CoreStore, result: CallToolResult
    ) -> None:
        """Add to the result that the same call was made before, unless repeating it changes
        nothing.
        """
        hints = tool.annotations or ToolAnnotations()
        if (
            required_scope(tool, arguments) == "read"
            or hints.idempotent_hint
            or arguments.get("idempotencyKey")
        ):
            return
        age_s = self._recent_calls.seconds_since_same_call(
            store.agent, store.instance_id, tool.name, arguments
        )
        if age_s is not None and isinstance(result.content[-1], TextContent):
            result.content[
                -1
            ].text += f"\nYou made the same call {age_s:.0f} s ago. Both were performed."
            result.structured_content = {
                **(result.structured_content or {}),
                "sameCallSecondsAgo": round(age_s),
            }

    async def read_resource(
        self, uri: Any, context: Context[Any, Any] | None = None
    ) -> Iterable[ReadResourceContents] | InputRequiredResult:
        """Read a resource. An error of the store becomes a `ResourceError` with a text."""
        try:
            return await super().read_resource(uri, context)
        except ResourceError as error:
            cause = error.__cause__
            if not isinstance(cause, CapsuleError):
                raise
            kind = (
                ResourceNotFoundError
                if isinstance(cause, NotFound | InvalidInput)
                else ResourceError
            )
            raise kind(errors.explained(cause)) from cause

    async def _list_resources(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListResourcesResult:
        cursor = params.cursor if params else None
        try:
            page, subscriptions = await anyio.to_thread.run_sync(
                self.list_store_resources, self.stores.store_for(ctx), cursor
            )
        except InvalidInput as error:
            raise MCPError(INVALID_PARAMS, visible(error.message)) from error
        fixed = [] if cursor else await self.list_resources()
        return ListResourcesResult(resources=[*fixed, *page], next_cursor=subscriptions)

    async def get_prompt(
        self,
        name: str,
        arguments: dict[str, Any] | None = None,
        context: Context[Any, Any] | None = None,
    ) -> GetPromptResult | InputRequiredResult:
        """Make a prompt. An error of the store becomes an error of the protocol with a text."""
        try:
            return await super().get_prompt(name, arguments, context)
        except ValueError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, CapsuleError):
                cause = cause.__cause__
            if cause is None:
                # An unknown name, a missing argument: the SDK has no code for them, the protocol
                # has.
                raise MCPError(INVALID_PARAMS, str(error)) from error
            raise MCPError(INVALID_PARAMS, errors.explained(cause)) from cause


def build(
    stores: ClientStores,
    *,
    version: str,
    tools: Toolset = "conversations",
    room_names: Sequence[str] = (),
    **options: Any,
) -> CapsuleServer:
    """Build the server of these stores. A transport runs it; the caller closes the stores.

    Args:
        stores: The stores of the server.
        version: The version of Capsule, for clients.
        tools: The set of tools that the server offers.
        room_names: The rooms of other packages that the store uses.
        options: Options of the SDK's server, such as those of `http.token_options`.
    """
    extensions = extensions_for(tools, room_names)
    instructions = [extension.instructions for extension in extensions if extension.instructions]
    server = CapsuleServer(
        stores,
        version=version,
        instructions=" ".join(instructions),
        register=partial(_register, room_names),
        **options,
    )
    server.extensions = extensions
    for extension in extensions:
        if extension.middleware is not None:
            server.middleware.append(extension.middleware(stores))

    async def complete(
        ctx: ServerRequestContext[Any], params: CompleteRequestParams
    ) -> CompleteResult:
        from capsule.mcp_server.resources import completed

        server.ready()
        return CompleteResult(
            completion=await completed(stores.store_for(ctx), params.argument, server.choices)
        )

    sdk.server_of(server).add_request_handler(
        "completion/complete", CompleteRequestParams, complete
    )
    return server


def _register(room_names: Sequence[str], server: CapsuleServer) -> None:
    from capsule.mcp_server import resources

    for tool, hints in chain.from_iterable(extension.tools() for extension in server.extensions):
        server.add_lean_tool(tool, hints)
    resources.register_resources(server)
    server.list_store_resources = resources.resource_page
    for room in rooms.installed(room_names):
        room.register_resources(server)
    resources.register_prompts(server)
