"""Claude Code: a `Stop` hook in the background that ends with exit code 2 when mail comes.

Contract, https://code.claude.com/docs/en/hooks, "Command hook fields": a hook with `asyncRewake` "runs in the
background and wakes Claude on exit code 2"; its stderr "is shown to Claude as a system reminder". `timeout` is in
seconds. Every end of a turn starts one more process, so one waits for each session, and the others end at once. It is
not put on `SessionStart`, where such a hook delays the start (anthropics/claude-code#89960). `claude -p` does not end
before it either (2.1.197), so there it must not wait.

What must stay true: the hook's process watches the store and rings by itself (`waiting`); nobody else rings it.
"""

from __future__ import annotations

from capsule.messaging.doorbells.interface import Target

#: Seconds that the hook waits at most: eight hours.
WAITS_S = 28_800
#: Its events, and what an entry in its settings says besides the command.
EVENTS = {
    "SessionStart": {"timeout": 10},
    "UserPromptSubmit": {"timeout": 10},
    "Stop": {"asyncRewake": True, "timeout": WAITS_S},
    "SessionEnd": {"timeout": 10},
}


class Claude:
    """See the module."""

    name = "claude-code"
    watches = True

    def ring(self, target: Target, text: str) -> bool:
        """True: the hook that waits rings by itself."""
        return True


DOORBELL = Claude()
