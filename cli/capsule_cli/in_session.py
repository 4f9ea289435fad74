"""The commands that a session may not run, because their effects last longer than the session.

What must stay true: this is the only list, and both ways to run a command check it
(`ensure_permitted`). For all other commands the policy of the store decides where the session may
write (`capsule.rules.policy`). Pure.
"""

from __future__ import annotations

from capsule.errors import Refused

#: The refused commands by the thing that they would register or change.
_REFUSED = {
    "a program or an address that messages start": (
        "agent wake install",
        "agent wake test",
        "agent wake uninstall",
        "worker host",
        "worker run",
        "worker set",
        "worker webhook",
    ),
    "which agent answers where": ("worker allow", "worker forbid", "worker unwire", "worker wire"),
    "a server or its clients": (
        "mcp install",
        "mcp servers remove",
        "mcp servers set",
        "mcp servers toggle",
        "mcp tokens add",
        "mcp tokens list",
        "mcp tokens revoke",
        "mcp uninstall",
        "web",
    ),
    "a hook or a filter of git": (
        "git commit",
        "git resolve",
        "git restore",
        "git setup",
        "git sync",
        "git teardown",
    ),
    "a store or its settings": (
        "config apply",
        "config rollback",
        "copy",
        "import",
        "init",
        "store settings",
        "trash purge",
    ),
    "the visibility of agents and projects": (
        "agent allow",
        "agent block",
        "agent forget",
        "agent notify clean",
        "agent notify off",
        "agent notify on",
        "agent register",
        "agent set",
        "agent status",
        "agent unblock",
        "project link",
        "project unlink",
    ),
}
#: For each refused command the thing that it would register or change.
REFUSED = {command: thing for thing, commands in _REFUSED.items() for command in commands}


def ensure_permitted(command: str, session: str | None) -> None:
    """Raise Refused if a session runs a command that is not for sessions.

    Args:
        command: All words of the command, without its arguments.
        session: The session that runs it. None: a person runs it.
    """
    thing = REFUSED.get(command)
    if session is None or thing is None:
        return
    reason = (
        f"`capsule {command}` is not for a session: it registers or changes {thing}; a person "
        "may run it"
    )
    raise Refused(reason, path="")
