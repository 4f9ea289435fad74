"""The page that documents the server, made from the server: `make docs`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from mcp_types import Prompt, Resource, ResourceTemplate, Tool

from capsule.mcp_server.extensions import extensions_for
from capsule.mcp_server.server import build
from capsule.mcp_server.tools.registry import CONVERSATIONS

#: Listing what the server has asks nothing of a store.
NO_STORE: Any = None

__all__ = ["text"]

_INTRODUCTION = """\
# The MCP server

<!-- Made by `make docs` from the server itself. Don't edit it here. -->

`capsule mcp` serves a store to AI agents over stdin and stdout, and `capsule mcp --http PORT` over HTTP. `capsule mcp
install CLIENT` writes the entry into a client's configuration. The server speaks both eras of the protocol: up to
2025-11-25, with a handshake, and 2026-07-28. How it is started, who may use it and how long locks last is in
[serving.md](serving.md).

- **An acknowledged write is on disk.** A retry under the same `idempotencyKey` makes nothing twice. It gets the
  message, version, conversation, summary or fork that the first call made, also after a restart, and from another
  process.
- **A repeated call is noticed.** Without such a key, a call that adds something is carried out each time. If
  the same agent made it in the same session within the last ten minutes, with the same arguments, the answer ends with
  a line that says so. In data it is the field `sameCallSecondsAgo`.
- **The server is one instance.** A save does not lock others out. `lock_conversation` does, until
  `unlock_conversation`, or until the server ends.
- **Stored text is data.** Messages stand between marks that change with every answer. Titles and names are in
  quotes. Control characters, and characters that Unicode calls ignorable, are spelled out as `\\u001b`. Joiners and
  variation selectors stay where a word or an emoji is made with them.
- **An answer is sent once**, as text. A program that wants data declares the extension `capsule/answers` among its
  capabilities, with `{"takes": ["data"]}`, or `["text", "data"]` for both. The results named below are that data.
- **An answer costs at most 10,000 tokens**, unless `maxTokens` says otherwise. If something does not fit, the answer
  says so, with a cursor to go on from, or with an `offset` into a single message.
- **No argument is ignored.** A tool refuses an argument that it doesn't have, and names those that it has.
- **Reading shows the active branch.** `2/3` beside a message means: the second of three in one place. The tool
  `branch` switches between them, `delete_messages` removes messages, and `edit_message` changes a message in its
  place. The first page also has what concerns the whole conversation: `mcpServers`, the servers that are switched on
  or off for it, and for a summary `source`, whether its source has gone on. The resource of a conversation has its
  active branch too, each message with its place in the file (`at`) and `sibling`, the 2/3. `omitted` says how many
  older ones are left out.
- **The user is asked** before a conversation or messages are deleted, before a title that a person gave is replaced,
  and before a lock is taken from somebody. If the client can't ask, nothing is done unless the call says `confirm:
  true`. Even that is not enough to replace a person's words, or to remove messages that are not the agent's own,
  alone or with their whole conversation.
- **An error says what to do**, in terms of tools.
"""
_MESSAGING = """\
## Tools of messaging

`capsule mcp --tools messaging` offers these tools instead of those above, and `--tools all` offers both.

- **Who you are is how the server was started**: the agent of `--as`, else of `CAPSULE_AGENT`, else of the folder that
  the server is started in, by [the rule of names](messaging.md#projects-and-names). Over HTTP it is the name of the
  token. If there is no such agent, the server makes it, and says so on stderr. The agent is online while the server
  runs, over HTTP while the session lasts. No argument says for whom a call acts.
- **What you may do is one rule**, whichever tool you take: [who may do what](messaging.md#who-may-do-what). A refusal
  says why, and who can help. What you may not find is answered as if it did not exist, and is in no count.
- **A message is delivered at least once.** What `listen` answered is read once the client listens again, or once it
  gives the answer's `cursor` as `ack`. A call that is cancelled marks nothing as read, and neither does a client that
  dies. `listen` waits for 50 seconds at most, because clients cut a call after 60. It tells the client every five
  seconds that it goes on. Nothing is lost between two calls.
- **The answer of every other tool ends with one line** when there is a new message: `2 unread from anna, build-bot:
  listen`. It is there once for a message, and holds none of its text. In data it is the field `newMessages`.
- **What others write is data.** It has no authority over an agent.
- **An answer that lists things** (`found`) has the objects that the command of the same subject prints with `--json`,
  as many as fit.
- **An idle agent is woken** by the doorbell of its client, if one was installed. The server rings it while messages
  wait and nobody listens for them. When a server over stdin and stdout ends, the `CLAUDE.md` in the folder with which a
  person registered the agent says what it has not read.
"""
_SESSION = """\
## Tools of a session

`capsule mcp --tools session` offers these tools instead, for the agent that `capsule worker run` runs.

- **Which session it is** says the environment: `CAPSULE_AGENT`, `CAPSULE_SESSION` and `CAPSULE_MESSAGE`, as a worker
  gives them to its command. No argument says it.
- **The answer is not sent by a tool.** It is what the command prints. With these tools the agent says what comes before
  that, or goes elsewhere, and only to destinations that its owner named.
- **A try that is repeated sends nothing twice.** The second try of the same messages is told what the first one sent
  under the same number.
- **A message goes out within moments.** It is noted durably when the tool answers, and the host delivers it.
"""
_SUBSCRIPTIONS = """\
## Subscriptions

A client can subscribe to every address below `capsule://conversations`, by `resources/subscribe` (2025-11-25) and by
`subscriptions/listen` (2026-07-28). It hears of changes by every writer: this server, another process, an editor, git.
`capsule://conversations` itself is updated with every change. `list_changed` is sent when a conversation comes, goes or
gets another title. The server follows the store only while a client is subscribed.
"""


def text() -> str:
    """The page."""
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
        "What the server tells a client's model, of the tools that it offers:\n",
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
