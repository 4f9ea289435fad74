"""The commands that a session may not run: what they leave behind acts outside the session, as the
person.

What must stay true: this is the one list, and every way to run a command asks it. All other
commands are left to the rule of the store, which knows where the session may write
(`capsule.rules.policy`). Pure.
"""

from __future__ import annotations

from capsule.errors import Refused

#: The refused commands, by what they would register or change.
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
    "who answers where": ("worker allow", "worker forbid", "worker unwire", "worker wire"),
    "a server or who may use it": (
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
    "what agents and projects are to others": (
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
#: By each refused command, what it would register or change.
REFUSED = {command: what for what, commands in _REFUSED.items() for command in commands}


def ensure_permitted(command: str, session: str | None) -> None:
    """Raise Refused if a command is not for sessions, and one runs it.

    Args:
        command: All words of the command, without its arguments.
        session: The session that runs it; None: a person does.
    """
    what = REFUSED.get(command)
    if session is None or what is None:
        return
    reason = (
        f"`capsule {command}` is not for a session: it registers or changes {what}; a person "
        "may run it"
    )
    raise Refused(reason, path="")
