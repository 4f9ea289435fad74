"""`worker run`: answers for an agent, by a command. `running` does it; what must stay true is said
there.
"""

from __future__ import annotations

import sys
from typing import Any

from capsule_cli.commands.sessions import running as process
from capsule_cli.shared.asked import asked
from capsule_cli.shared.options import argument, option, seconds


def run(
    command: list[str] = argument("COMMAND", "After --: the command and its arguments.", []),
    agent: str = option("--agent AGENT", "Answer for this agent; it is set up if need be.", ...),
    session: str | None = option(
        "--session ID", "Serve this session only. Else: all those of the agent, in turn."
    ),
    idle: str | None = option(
        "--idle DURATION", "End after this time without work. With --session: 10m, else never."
    ),
    for_: str | None = option("--for DURATION", "Stop the command after this time. Else: 30m."),
) -> None:
    """Answer the messages of an agent by a command, until SIGTERM comes.

    The command reads the messages from stdin, and what it prints is the answer; if it prints
    nothing, there is none. Exit code 0: it is done. 65, 126 or 127: it failed for good. Any other:
    it is tried again, up to five times, ever later. Without COMMAND, it is the one that `capsule
    worker set` has set up.

    The environment has CAPSULE_STORE, CAPSULE_AGENT, CAPSULE_SESSION and CAPSULE_MESSAGE, so
    `capsule mcp serve --tools session` gives the command tools. To go on with a conversation of its
    own, the command writes its id to the file $CAPSULE_CONTINUATION_FILE, and finds it the next
    time in CAPSULE_CONTINUATION; a blank one is forgotten.

    The command, and what it started, ends with the worker, even if that is killed.
    """
    options: dict[str, Any] = {
        "store": asked.store,
        "agent": agent,
        "session": session,
        "command": command,
    }
    if idle is for_ is None and not (asked.json or asked.as_ or asked.instance or asked.no_pager):
        sys.exit(process.main(options))  # As a host starts it: an error is a line of its log.
    idle_s = None if idle is None else seconds(idle, "--idle")
    process.run(**options, idle_s=idle_s, limit_s=None if for_ is None else seconds(for_, "--for"))
