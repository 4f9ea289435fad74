"""Titles that are suggested: by a model, or by rule.

What must stay true: a title that a person gave is never replaced by a suggestion that they didn't agree to, however
the two come together; and what they agreed to replace is what they were shown.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capsule.format.titles import check_title, title_from
from capsule.reading import Reading

if TYPE_CHECKING:
    from capsule.head import Head

__all__ = ["Naming"]


class _NamedByAPerson(Exception):
    """The title stays; it never leaves this module."""


class Naming(Reading, ABC):
    """What an open store does with suggested titles. A base of `Store`, which knows how to change a head."""

    @abstractmethod
    def _change_head(self, id: str, change: Callable[[dict[str, Any]], None]) -> Head:
        """Change the head of a conversation, under its mutex and admitted."""

    def title_by_rule(self, id: str) -> str:
        """The title that the first user message gives; empty when there is none. Raises and costs as `load`."""
        history = self.document(id)["history"]
        return next((title_from(entry["content"]) for entry in history if entry["role"] == "user"), "")

    def suggest_title(self, id: str, title: str, *, instead_of: str = "") -> Head | None:
        """Give a conversation a title, unless a person named it.

        Args:
            id: The conversation.
            title: The title.
            instead_of: The title that a person gave and agreed to have replaced; it is, while it is still that one.

        Returns:
            The head; None when a person named the conversation otherwise, and nothing was changed.

        Raises and costs as `rename`.
        """
        title = check_title(title)

        def change(head: dict[str, Any]) -> None:
            metadata, standing = head["metadata"], head["title"]
            if standing and metadata.get("titleSetBy") != "auto":
                if standing != instead_of:
                    raise _NamedByAPerson
                metadata["titleSetBy"] = "user"
            else:
                metadata["titleSetBy"] = "auto"
            head["title"] = title

        try:
            return self._change_head(id, change)
        except _NamedByAPerson:
            return None
