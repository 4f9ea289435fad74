"""The links that help after an error, with the texts of the page."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from capsule.errors import Action, Remedy

#: The text of the link, and its address, in which `{}` is the subject of the remedy. If the address
#: is empty, the text is shown without a link.
REMEDIES: Final[dict[Action, tuple[str, str]]] = {
    "list": ("All conversations", "/"),
    "show": ("Read the conversation again", "/c/{}"),
    "messages": ("Read the conversation", "/c/{}"),
    "new": ("Make a conversation", "/new"),
    "init": ("A store is made on the command line: capsule init", ""),
    "move": ("An agent is moved on the command line: capsule agent set", ""),
    "unlock": ("Wait, or release the lock: see Manage in the conversation", "/c/{}"),
    "edit": ("Read the conversation, and change the message in a branch of its own", "/c/{}"),
    "trash": ("See the trash", "/repairs"),
    "webhook": ("A webhook is made on the command line: capsule worker webhook", ""),
    "copy": ("A store is copied into files on the command line: capsule copy", ""),
    "update": ("This Capsule has to be updated", ""),
    "migrate": ("A store is migrated on the command line: capsule store migrate", ""),
    "repair": ("See what can be repaired", "/repairs"),
    "conflicts": ("See the conflicts", "/repairs"),
    "log": ("Read the conversation", "/c/{}"),
    "set up git": ("Git is set up on the command line: capsule git setup", ""),
    "join histories": (
        "Two stores are joined on the command line: capsule git sync --allow-unrelated-histories",
        "",
    ),
}


def link(remedy: Remedy) -> tuple[str, str]:
    """Return the text of the link for a remedy, and its address."""
    text, address = REMEDIES[remedy.action]
    return text, address.format(quote(remedy.on, safe="@"))
