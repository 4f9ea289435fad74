"""Plan how Capsule's hooks are added to the settings of a client, or removed.

Nothing is written here. A `SettingsChange` has the old and the new text of the file.

What must stay true: the promises of `capsule.mcp_server.clients.settings` about files hold here too.
Capsule's hooks are those whose command runs `WORDS`. A change touches no other hook, and removing
the hooks leaves nothing of Capsule's behind.
"""

from __future__ import annotations

import copy
import json
import re
import shlex
from collections.abc import Sequence
from typing import Any

from capsule.errors import InvalidDocument, Problem
from capsule.mcp_server.clients.settings import (
    MachinePaths,
    McpProgram,
    SettingsChange,
    SettingsFile,
    SettingsScope,
    ensure_literal,
    read_settings,
)
from capsule.messaging.doorbells import HOOK_EVENTS

#: The words after the program's own in the command of each of Capsule's hooks.
WORDS = ("agent", "wake", "hook")
_OWN_COMMAND = re.compile(" agent wake hook ")

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
    scope: SettingsScope,
    places: MachinePaths,
    program: Sequence[str],
    options: Sequence[str],
) -> SettingsChange:
    """Plan the change that adds Capsule's hooks to the settings of a client.

    Args:
        client: The client.
        scope: Whether its settings for the user or for a project are changed.
        places: The folders of this machine.
        program: The words that start `capsule`.
        options: More options of each hook's command, such as the store.

    Raises:
        InvalidInput: The client would read a word as something else.
        InvalidDocument: The file does not parse. The message has the line and the column.
    """
    ensure_literal((*program, *options))
    new_hooks = {}
    for event, fields in HOOK_EVENTS[client.name].items():
        command = shlex.join([*program, *WORDS, client.name, event, *options])
        new_hooks[event] = [{"type": "command", "command": command, **fields}]
    file = read_settings(client, client.files(scope, places)[0])
    hooks, own_hooks = _separate_hooks(file)
    if own_hooks == new_hooks:
        return SettingsChange(client, scope, file.path)
    groups = {event: [{"hooks": handlers}] for event, handlers in new_hooks.items()}
    for event, group in groups.items():
        hooks[event] = hooks.get(event, []) + group
    paste = json.dumps({"hooks": groups}, indent=2)
    return _settings_change(file, scope, hooks, paste)


def uninstall(client: McpProgram, scope: SettingsScope, places: MachinePaths) -> SettingsChange:
    """Plan the change that removes Capsule's hooks from the settings of a client.

    Raises InvalidDocument, as `install` does.
    """
    file = read_settings(client, client.files(scope, places)[0])
    hooks, own_hooks = _separate_hooks(file)
    if not own_hooks:
        return SettingsChange(client, scope, file.path)
    paste = f"remove the hooks that run: {shlex.join(WORDS)}"
    return _settings_change(file, scope, hooks, paste)


def _separate_hooks(file: SettingsFile) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """Return the settings of hooks without Capsule's, and Capsule's own by event.

    Raises InvalidDocument if an event that Capsule uses has no list of groups.
    """
    other_hooks: dict[str, Any] = {}
    own_hooks: dict[str, list[Any]] = {}
    for event, groups in file.value.get("hooks", {}).items():
        if _is_list_of_groups(groups):
            other_groups, own_handlers = _separate_groups(groups)
            if own_handlers:
                own_hooks[event] = own_handlers
            if other_groups or not own_handlers:
                other_hooks[event] = other_groups
        elif event in HOOK_EVENTS[file.client.name]:
            reason = "is not a list of groups of hooks; correct it first"
            raise InvalidDocument.of([Problem(file.path, 0, 0, f"/hooks/{event}", reason)])
        else:
            other_hooks[event] = groups
    return other_hooks, own_hooks


def _is_list_of_groups(value: Any) -> bool:
    return isinstance(value, list) and all(
        isinstance(group, dict) and isinstance(group.get("hooks"), list) for group in value
    )


def _separate_groups(groups: list[dict[str, Any]]) -> tuple[list[Any], list[Any]]:
    """Return the groups without Capsule's handlers, and these. A group with no other handler is
    left out.
    """
    other_groups = []
    own_handlers = []
    for group in groups:
        own = [handler for handler in group["hooks"] if _is_own(handler)]
        others = [handler for handler in group["hooks"] if not _is_own(handler)]
        own_handlers += own
        if others or not own:
            other_groups.append({**group, "hooks": others})
    return other_groups, own_handlers


def _is_own(handler: Any) -> bool:
    """Return whether a handler is one of Capsule's."""
    command = handler.get("command") if isinstance(handler, dict) else None
    return isinstance(command, str) and _OWN_COMMAND.search(command) is not None


def _settings_change(
    file: SettingsFile, scope: SettingsScope, hooks: dict[str, Any], paste: str
) -> SettingsChange:
    """Return the change that sets the hooks in a file. If it can't be made without losing comments,
    it has only the text to paste.
    """
    settings = copy.deepcopy(file.value)
    settings["hooks"] = hooks
    if not hooks:
        del settings["hooks"]
    new_text = file.text_with(settings)
    if new_text is None:
        return SettingsChange(file.client, scope, file.path, paste=paste)
    return SettingsChange(file.client, scope, file.path, before=file.text, after=new_text)
