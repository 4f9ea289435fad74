"""Codex: `codex queue --thread UUID --message TEXT`, since 0.149.

Contract, `codex queue --help`: "Queue a message for an existing session". Exit code 0 means that the message is stored,
not that a turn has begun: a thread that no running Codex has open gets it when it is opened (openai/codex#44491). The
thread's id is the `session_id` that Codex gives its `SessionStart` hook (https://developers.openai.com/codex/hooks).
"""

from __future__ import annotations

from capsule.messaging.doorbells import programs
from capsule.messaging.doorbells.interface import Target

#: Its events, and what an entry in its settings says besides the command.
EVENTS = {"SessionStart": {"timeout": 10}, "UserPromptSubmit": {"timeout": 10}, "SessionEnd": {"timeout": 3}}


class Codex:
    """See the module. The address: `session`, and where they are not the usual ones, `home` and `program`."""

    name = "codex"
    watches = False

    def ring(self, target: Target, text: str) -> bool:
        """Queue the text for the thread."""
        home = target.address.get("home")
        words = ["env", f"CODEX_HOME={home}"] if home else []
        words += [target.address.get("program") or "codex", "queue"]
        return programs.run([*words, "--thread", target.address["session"], "--message", text])


DOORBELL = Codex()
