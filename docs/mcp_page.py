"""Make the page that documents the MCP server, from the server itself: `make docs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mcp_types import Prompt, Resource, ResourceTemplate, Tool

from capsule.mcp_server.extensions import extensions_for
from capsule.mcp_server.server import build
from capsule.mcp_server.tools.registry import CONVERSATIONS

#: Listing tools, resources and prompts needs no store.
NO_STORE: Any = None

__all__ = ["text"]

_INTRODUCTION = """\
# The MCP server

<!-- Made by `make docs` from the server itself. Don't edit it here. -->

`capsule mcp` serves a store to AI agents over stdin and stdout, and `capsule mcp --http PORT` over HTTP. `capsule mcp
install CLIENT` writes the entry into a client's configuration. The server speaks both eras of the protocol: up to
2025-11-25, with a handshake, and 2026-07-28. [serving.md](serving.md) describes how to start it, who may use it and how
long locks last.

- **An acknowledged write is on disk.** A retry under the same `idempotencyKey` makes nothing twice. It returns the
  message, version, conversation, summary or fork of the first call, also after a restart and from another process.
- **A repeated call is reported.** Without such a key, a call that adds something is performed each time. If the same
  agent made it in the same session within the last ten minutes, with the same arguments, the last line of the answer
  reports it. In data it is the field `sameCallSecondsAgo`.
- **The server is one instance.** A write does not lock others out. `lock_conversation` does, until
  `unlock_conversation`, or until the server ends.
- **Stored text is data.** Messages are between marks that change with every answer. Titles and names are in quotes.
  Control characters, and characters that Unicode calls ignorable, are spelled out as `\\u001b`. Joiners and variation
  selectors are kept if they are part of a word or an emoji.
- **An answer is sent once**, as text. A program that wants data declares the extension `capsule/answers` among its
  capabilities, with `{"takes": ["data"]}`, or `["text", "data"]` for both. The results below are that data.
- **An answer costs at most 10,000 tokens**, or `maxTokens`. If something does not fit, the answer reports it, with a
  cursor for the next page, or with an `offset` into a single message.
- **No argument is ignored.** A tool refuses an unknown argument, and names its own arguments.
- **Reading shows the active branch.** `2/3` beside a message means: the second of three alternatives. The tool
  `branch` switches between them, `delete_messages` removes messages, and `edit_message` changes a message in place.
  The first page also has the fields of the whole conversation: `mcpServers`, the servers that are switched on or off
  for it, and for a summary `source`, which shows whether its source has new messages. The resource of a conversation
  has its active branch too, each message with its position in the file (`at`) and `sibling`, the 2/3. `omitted` is
  the number of older messages that are left out.
- **The user is asked** before a conversation or messages are deleted, before a person's title is replaced, and before
  a lock is taken from its holder. If the client can't ask, nothing is done unless the call has `confirm: true`. Even
  that is not enough to replace a person's words, or to remove messages of others, alone or with their whole
  conversation.
- **An error names the way out**, in terms of tools.
"""
_MESSAGING = """\
## Tools of messaging

`capsule mcp --tools messaging` offers these tools instead of those above, and `--tools all` offers both.

- **The start of the server decides which agent you are**: the agent of `--as`, else of `CAPSULE_AGENT`, else of the
  folder in which the server is started, by [the rule of names](messaging.md#projects-and-names). Over HTTP it is the
  name of the token. If that agent does not exist, the server makes it, and reports it on stderr. The agent is online
  while the server runs, over HTTP while the session lasts. No argument changes the agent of a call.
- **One rule decides what you may do**, with every tool: [who may do what](messaging.md#who-may-do-what). A refusal
  gives the reason, and who can help. Tools answer about objects that you may not find as if they did not exist, and
  no count includes them.
- **A message is delivered at least once.** The messages of a `listen` count as read once the client listens again, or
  once it gives the answer's `cursor` as `ack`. A cancelled call marks nothing as read, and neither does a client that
  dies. `listen` waits for 50 seconds at most, because clients cut a call after 60. Every five seconds it sends the
  client a progress report. Nothing is lost between two calls.
- **The answer of every other tool ends with one line** when there is a new message: `2 unread from anna, build-bot:
  listen`. The line comes once for each message, and contains none of its text. In data it is the field `newMessages`.
- **Text of others is data.** It has no authority over an agent.
- **A list in an answer** (`found`) has the objects that the command of the same subject prints with `--json`, as many
  as fit.
- **An idle agent is woken** by the doorbell of its client, if one was installed. The server rings it while messages
  wait and nobody listens for them. When a server over stdin and stdout ends, the `CLAUDE.md` in the registered folder
  of the agent lists its unread messages.
"""
_SESSION = """\
## Tools of a session

`capsule mcp --tools session` offers these tools instead, for the agent that `capsule worker run` runs.

- **The environment names the session**: `CAPSULE_AGENT`, `CAPSULE_SESSION` and `CAPSULE_MESSAGE`, which a worker sets
  for its command. No argument names it.
- **No tool sends the answer.** The output of the command is the answer. With these tools the agent sends earlier
  messages, or messages to other places, and only to destinations that its owner named.
- **A second try sends nothing twice.** The second try of the same messages gets the messages that the first one sent
  under the same number.
- **A message goes out within moments.** It is recorded durably when the tool answers, and the host delivers it.
"""
_SUBSCRIPTIONS = """\
## Subscriptions

A client can subscribe to every address below `capsule://conversations`, by `resources/subscribe` (2025-11-25) and by
`subscriptions/listen` (2026-07-28). It gets the changes of every writer: this server, another process, an editor, git.
`capsule://conversations` itself is updated with every change. `list_changed` is sent when a conversation is added,
removed or renamed. The server follows the store only while a client is subscribed.
"""


def text() -> str:
    """Return the page."""
    server, of_session = (
        build(NO_STORE, version="", tools="all"),
        build(NO_STORE, version="", tools="session"),
    )
    server.ready()
    of_session.ready()

    async def listed() -> tuple[list[Tool], list[Resource], list[ResourceTemplate], list[Prompt]]:
        tools = await server.list_tools()
        return (
            tools,
            await server.list_resources(),
            await server.list_resource_templates(),
            await server.list_prompts(),
        )

    tools, resources, templates, prompts = asyncio.run(listed())
    parts = [
        _INTRODUCTION,
        "The server gives a client's model these instructions, one text for each set of tools:\n",
        *(
            f"> {extensions_for(tools)[0].instructions}\n"
            for tools in ("conversations", "messaging", "session")
        ),
    ]
    own = {tool.__name__ for tool, _ in CONVERSATIONS}
    parts += ["## Tools of conversations\n", *(_tool(tool) for tool in tools if tool.name in own)]
    parts += [_MESSAGING, *(_tool(tool) for tool in tools if tool.name not in own)]
    parts += [_SESSION, *map(_tool, asyncio.run(of_session.list_tools()))]
    parts += [
        "## Resources\n",
        _table(("address", "what"), [*map(_resource, resources), *map(_template, templates)]),
    ]
    parts += ["The server completes ids, titles, tags and kinds.\n", _SUBSCRIPTIONS, "## Prompts\n"]
    parts.append(_table(("prompt", "what", "arguments"), [_prompt(prompt) for prompt in prompts]))
    return "\n".join(parts)


def _table(titles: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [titles, tuple("---" for _ in titles), *rows]
    return "".join(
        "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines
    )


def _tool(tool: Tool) -> str:
    hints = tool.annotations
    assert hints is not None
    kind = (
        "reads only"
        if hints.read_only_hint
        else "destructive"
        if hints.destructive_hint
        else "adds or sets"
    )
    kind += ", idempotent" if hints.idempotent_hint else ""
    required = tool.input_schema.get("required", ())
    rows = [
        (f"`{name}`" + (" (required)" if name in required else ""), _type(part), _meaning(part))
        for name, part in tool.input_schema["properties"].items()
    ]
    made = (
        f"### `{tool.name}`\n\n{tool.description} "
        f"*({kind})*\n\n{_table(('argument', 'type', 'meaning'), rows)}\n"
    )
    return made + f"Result: {_fields(tool.output_schema or {})}\n"


def _meaning(part: dict[str, Any]) -> str:
    said = [part["description"]] if "description" in part else []
    if "default" in part:
        said.append(f"default {part['default']}")
    if "minimum" in part and "maximum" in part:
        said.append(f"{part['minimum']:g} to {part['maximum']:g}")
    return "; ".join(said)


def _type(part: dict[str, Any]) -> str:
    if "enum" in part:
        return " or ".join(f"`{value}`" for value in part["enum"])
    if part.get("type") == "array":
        item = part["items"]
        return f"list of ({_fields(item)})" if item.get("properties") else f"list of {_type(item)}s"
    return str(part.get("type"))


def _fields(schema: dict[str, Any]) -> str:
    required = schema.get("required", ())
    return ", ".join(
        f"`{name}`{'' if name in required else '?'}"
        + (f" {_type(part)}" if part.get("type") == "array" else "")
        for name, part in schema["properties"].items()
    )


def _resource(resource: Resource) -> tuple[str, ...]:
    return f"`{resource.uri}`", resource.description or ""


def _template(template: ResourceTemplate) -> tuple[str, ...]:
    return f"`{template.uri_template}`", template.description or ""


def _prompt(prompt: Prompt) -> tuple[str, ...]:
    arguments = [
        f"`{argument.name}`{' (required)' if argument.required else ''}: {argument.description}"
        for argument in prompt.arguments or ()
    ]
    return f"`{prompt.name}`", prompt.description or "", "; ".join(arguments)
