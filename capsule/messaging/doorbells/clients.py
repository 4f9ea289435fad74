"""The doorbells that come with Capsule: how each kind of program is told that mail waits, and what
its hooks are.

What must stay true: what a client does is taken from its documentation, named here, and was tried
where docs/waking.md says so. Nothing is loaded before it is used: a hook loads this module, and is
in a hurry.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from capsule.messaging.doorbells import programs
from capsule.messaging.doorbells.interface import Target

#: Seconds that Claude Code's hook waits at most: eight hours.
WAITS_S = 28_800
#: The clients with hooks: their events, and what an entry in their settings says besides the
#: command.
#:
#: Claude Code, https://code.claude.com/docs/en/hooks, "Command hook fields": a hook with
#: `asyncRewake` "runs in the background and wakes Claude on exit code 2"; its stderr "is shown to
#: Claude as a system reminder". `timeout` is in seconds. Every end of a turn starts one more
#: process, so one waits for each session, and the others end at once. It is not put on
#: `SessionStart`, where such a hook delays the start (anthropics/claude-code#89960). `claude -p`
#: does not end before it either (2.1.197), so there it must not wait.
#:
#: Codex, https://developers.openai.com/codex/hooks: the same names, and seconds.
#:
#: Gemini CLI, https://geminicli.com/docs/hooks/reference: "Silence is Mandatory", nothing but JSON
#: on standard output; `additionalContext` of `SessionStart` is "injected as the first turn in
#: history", and that of `BeforeAgent` is "appended to the prompt for this turn only". `timeout` is
#: in milliseconds. Nothing wakes it.
EVENTS: Mapping[str, Mapping[str, Mapping[str, Any]]] = {
    "claude-code": {
        "SessionStart": {"timeout": 10},
        "UserPromptSubmit": {"timeout": 10},
        "Stop": {"asyncRewake": True, "timeout": WAITS_S},
        "SessionEnd": {"timeout": 10},
    },
    "codex": {
        "SessionStart": {"timeout": 10},
        "UserPromptSubmit": {"timeout": 10},
        "SessionEnd": {"timeout": 3},
    },
    "gemini": {"SessionStart": {"timeout": 10_000}, "BeforeAgent": {"timeout": 10_000}},
}


@dataclass(slots=True)
class Client:
    """A doorbell of Capsule's own; see `Doorbell`."""

    name: str
    how: Callable[[Mapping[str, str], str], bool]
    watches: bool = False

    def ring(self, target: Target, text: str) -> bool:
        """See `Doorbell.ring`."""
        return self.how(target.address, text)


def _codex(address: Mapping[str, str], text: str) -> bool:
    """Queue the text for the thread `session`; `home` and `program`, where they are not the usual
    ones.

    `codex queue --help`, since 0.149: "Queue a message for an existing session". Exit code 0 means
    that the message is stored, not that a turn has begun: a thread that no running Codex has open
    gets it when it is opened (openai/codex#44491). The thread's id is the `session_id` that Codex
    gives its `SessionStart` hook.
    """
    home = address.get("home")
    words = ["env", f"CODEX_HOME={home}"] if home else []
    words += [address.get("program") or "codex", "queue"]
    return programs.run([*words, "--thread", address["session"], "--message", text])


def _opencode(address: Mapping[str, str], text: str) -> bool:
    """Give the session the text as a prompt; `url`, the session's:
    `http://127.0.0.1:4096/session/ses_1f3c`.

    https://opencode.ai/docs/server: `POST /session/{id}/prompt_async`, "Send a message asynchronously (no wait)", with
    the body of `/session/{id}/message`, answered with 204. Its server answers what it does not know
    with 200 and a page.
    """
    url = address["url"].rstrip("/")
    return programs.post(f"{url}/prompt_async", {"parts": [{"type": "text", "text": text}]}) == 204


#: Claude Code's hook watches the store and rings by itself, by ending (`hooks`). `command` is words
#: as a shell quotes them, which no shell reads, and gets the text on its standard input. `webhook`
#: sends `{"text": ...}` to `url`, which is what Slack, Mattermost and others take.
CLIENTS: Mapping[str, Client] = {
    client.name: client
    for client in (
        Client("claude-code", lambda address, text: True, watches=True),
        Client("codex", _codex),
        Client("opencode", _opencode),
        Client(
            "command", lambda address, text: programs.run(shlex.split(address["command"]), text)
        ),
        Client(
            "webhook", lambda address, text: programs.post(address["url"], {"text": text}) < 300
        ),
    )
}
