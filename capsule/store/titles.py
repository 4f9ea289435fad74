"""Titles that are suggested: by a model, or by rule.

What must stay true: a title that a person gave is never replaced by a suggestion that they didn't agree to, however
the two come together; and what they agreed to replace is what they were shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capsule.format.text.titles import check_title, title_by_rule
from capsule.store.attributes import Updating, entitle

if TYPE_CHECKING:
    from capsule.format.head import Head


class _NamedByAPerson(Exception):
    """The title stays; it never leaves this module."""


class Naming(Updating):
    """What an open store does with suggested titles. A base of `Store`, which knows how to write."""

    def title_by_rule(self, id: str) -> str:
        """Make the title that the first user message with a word in it gives; else an empty text.

        Raises and costs as `load`.

        Args:
            id: The conversation.
        """
        return title_by_rule(self.document(id)["history"])

    def suggest_title(self, id: str, title: str, *, instead_of: str = "") -> Head | None:
        """Give a conversation a title, unless a person named it.

        Args:
            id: The conversation.
            title: The title.
            instead_of: The title that a person gave and agreed to replace. It is replaced if it is still that one.

        Returns:
            The head. None: a person gave another title, and nothing was changed.

        Raises and costs as `rename`.
        """
        title = check_title(title)

        def change(head: dict[str, Any]) -> None:
            metadata, standing = head["metadata"], head["title"]
            if standing and metadata.get("titleSetBy") != "auto":
                if standing != instead_of:
                    raise _NamedByAPerson
                entitle(head, title, "user")
            else:
                entitle(head, title, "auto")

        try:
            return self._change_head(id, change)
        except _NamedByAPerson:
            return None
