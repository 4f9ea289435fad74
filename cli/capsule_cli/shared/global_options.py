"""The values of the options of every command, for all modules of one process.

What must stay true: nothing of one command is left when another one begins in the same process.
"""

from __future__ import annotations


class GlobalOptions:
    """The values of the options of every command.

    Attributes:
        json: Whether to print JSON.
        no_pager: Whether to print long output without a pager.
        store: The address of the store. None: the store is discovered.
        meant_store: The store in the unparsed words. It is read before parsing, because the store
            decides which commands there are.
        instance: The name of the instance, if an option gives it.
        as_: The agent to act for, if an option gives it.
    """

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """Reset all options for another command."""
        self.json = False
        self.no_pager = False
        self.store: str | None = None
        self.meant_store: str | None = None
        self.instance: str | None = None
        self.as_: str | None = None


global_options = GlobalOptions()
