"""What the options of every command ask for: they are the same wherever they stand, and one process
runs one command.

What must stay true: nothing of an earlier command is left when another one begins in the same
process.
"""

from __future__ import annotations


class GlobalOptions:
    """The options of every command.

    Attributes:
        json: Whether to print JSON.
        no_pager: Whether a person wants long output all at once.
        store: The store's directory; None: to be discovered.
        meant_store: The store in the words, before they are parsed: which commands there are may
            depend on it.
        instance: The name of the instance, when one was given as an option.
        as_: The agent to act for, when one was given as an option.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Begin another command."""
        self.json = False
        self.no_pager = False
        self.store: str | None = None
        self.meant_store: str | None = None
        self.instance: str | None = None
        self.as_: str | None = None


global_options = GlobalOptions()
