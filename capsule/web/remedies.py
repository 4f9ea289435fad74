"""What helps after an error, in words of the page: where its link leads. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote

from capsule.errors import Action, Remedy

#: The words of the link, and its address, `{}` being what it is about; without an address the words
#: stand alone.
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
    """The words of the link of a remedy, and its address."""
    words, address = REMEDIES[remedy.action]
    return words, address.format(quote(remedy.on, safe="@"))
