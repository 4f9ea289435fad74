"""Put Capsule's hooks into the settings of a client, or take them out.

What must stay true: the promises of `capsule.mcp_server.clients.settings` about files hold here too.
Capsule's hooks are those whose command runs `WORDS`. A change touches no other hook, and removing
leaves nothing of Capsule's behind.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from capsule.errors import InvalidDocument, Problem
from capsule.mcp_server.clients.programs import MachinePaths, McpProgram, Scope
from capsule.mcp_server.clients.settings import (
    SettingsChange,
    SettingsFile,
    ensure_literal,
    read_settings,
)
from capsule.messaging.doorbells import HOOK_EVENTS

#: The words behind the program's own in the command of every hook of ours.
WORDS = ("agent", "wake", "hook")
_OURS = re.compile(" agent wake hook ")

#: The programs with hooks. A project's hooks name a path of this machine, so they go where nobody
#: commits them if such a file exists.
HOOKED: tuple[McpProgram, ...] = (
    # https://code.claude.com/docs/en/hooks, "Hook locations"
    McpProgram(
        name="claude-code",
        title="Claude Code",
        user=("CLAUDE_CONFIG_DIR/settings.json|HOME/.claude/settings.json",),
        project=("PROJECT/.claude/settings.local.json",),
        servers=("hooks",),
        then="a new session of Claude Code has them",
    ),
    # https://developers.openai.com/codex/hooks, "Where Codex looks for hooks"
    McpProgram(
        name="codex",
        title="Codex",
        user=("CODEX_HOME/hooks.json|HOME/.codex/hooks.json",),
        project=("PROJECT/.codex/hooks.json",),
        servers=("hooks",),
        then="a new session of Codex runs them once you have trusted them there, with: /hooks",
    ),
    # https://geminicli.com/docs/hooks, "Configuration"
    McpProgram(
        name="gemini",
        title="Gemini CLI",
        user=("GEMINI_CLI_HOME/.gemini/settings.json|HOME/.gemini/settings.json",),
        project=("PROJECT/.gemini/settings.json",),
        servers=("hooks",),
        then="a new session of Gemini CLI has them",
    ),
)


def install(
    client: McpProgram,
    scope: Scope,
    places: MachinePaths,
    program: Sequence[str],
    options: Sequence[str],
) -> SettingsChange:
    """Work out how a program comes to have our hooks.

    Args:
        program: The words that start `capsule`.
        options: What every hook's command has besides, like the store.

    Raises:
        InvalidInput: The program would read a word as something else.
        InvalidDocument: The file can't be read as what it should be; the message has line and
            column.
    """
    ensure_literal((*program, *options))
    ours = {}
    for event, fields in HOOK_EVENTS[client.name].items():
        command = shlex.join([*program, *WORDS, client.name, event, *options])
        ours[event] = [{"type": "command", "command": command, **fields}]
    file = read_settings(client, client.files(scope, places)[0])
    others, present = _separate_hooks(file)
    if present == ours:
        return SettingsChange(client, scope, file.path)
    for event, handlers in ours.items():
        others[event] = [*others.get(event, []), {"hooks": handlers}]
    paste = json.dumps(
        {"hooks": {event: [{"hooks": handlers}] for event, handlers in ours.items()}}, indent=2
    )
    return _plan(file, scope, others, paste)


def uninstall(client: McpProgram, scope: Scope, places: MachinePaths) -> SettingsChange:
    """Work out how a program comes to forget our hooks. Raises InvalidDocument,
    as `install` does.
    """
    file = read_settings(client, client.files(scope, places)[0])
    others, present = _separate_hooks(file)
    if not present:
        return SettingsChange(client, scope, file.path)
    return _plan(file, scope, others, f"remove the hooks that run: {shlex.join(WORDS)}")


def _separate_hooks(file: SettingsFile) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The hooks of others as they stand, and ours by event."""
    others: dict[str, Any] = {}
    ours: dict[str, list[Any]] = {}
    for event, groups in file.value.get("hooks", {}).items():
        is_groups = isinstance(groups, list) and all(
            isinstance(group, dict) and isinstance(group.get("hooks"), list) for group in groups
        )
        if not is_groups:
            if event in HOOK_EVENTS[file.client.name]:
                reason = "is not a list of groups of hooks; correct it first"
                raise InvalidDocument.of([Problem(file.path, 0, 0, f"/hooks/{event}", reason)])
            others[event] = groups
            continue
        mine = [handler for group in groups for handler in group["hooks"] if _is_ours(handler)]
        kept = [
            {**group, "hooks": [it for it in group["hooks"] if not _is_ours(it)]}
            for group in groups
        ]
        kept = [
            new for new, group in zip(kept, groups, strict=True) if new["hooks"] or new == group
        ]
        if mine:
            ours[event] = mine
        if kept or not mine:
            others[event] = kept
    return others, ours


def _is_ours(handler: Any) -> bool:
    command = handler.get("command") if isinstance(handler, dict) else None
    return isinstance(command, str) and _OURS.search(command) is not None


def _plan(file: SettingsFile, scope: Scope, hooks: dict[str, Any], paste: str) -> SettingsChange:
    wanted = copy.deepcopy(file.value) | {"hooks": hooks}
    if not hooks:
        del wanted["hooks"]
    after = file.text_with(wanted)
    if after is None:
        return SettingsChange(file.client, scope, file.path, paste=paste)
    return SettingsChange(file.client, scope, file.path, before=file.text, after=after)
