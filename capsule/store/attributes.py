"""What stands in the head of a conversation, changed: its title, its tags, what it is marked as.

What must stay true: a change of the head is one write, admitted as every other is, and no message is parsed for it;
what isn't asked to change stays as it is. What a title or a tag may be is `capsule.format.text.titles`' to say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from capsule.errors import InvalidInput
from capsule.format.merge.conflicts import settled
from capsule.format.servers import switched
from capsule.format.text.titles import check_tags, check_title
from capsule.store.change import Changing

if TYPE_CHECKING:
    from capsule.format.head import Head


class Updating(Changing):
    """What an open store does with the heads of conversations. A base of `Store`."""

    def _change_head(self, id: str, change: Callable[[dict[str, Any]], None]) -> Head:
        """Change the head of a conversation, under its mutex and admitted."""

        return self._head_of(id, self._change(id, lambda conversation: conversation.change_head(change)))

    def update(self, id: str, **changes: Any) -> Head:
        """Change several fields of a head in one write; raises and costs as `rename`.

        Args:
            id: The conversation.
            changes: `title` (`by`: as `rename`; `instead_of`: refused when somebody gave another title), `tags` (all of
                them), `tagged` and `untagged` (some of them), `pinned`, `archived`, `mcp_servers` (as `set_mcp_servers`
                takes them); what is None or left out stays as it is.
        """
        return self._change_head(id, _head_change(**changes))

    def rename(self, id: str, title: str, *, by: str = "user") -> Head:
        """Give a conversation a title. Raises as `append`. Cost: copying the file.

        Args:
            id: The conversation.
            title: The title.
            by: `user`, or `auto` for a title made by rule, which a later rule may change.
        """
        return self.update(id, title=title, by=by)

    def tag(self, id: str, *tags: str) -> Head:
        """Add tags. A tag that is there already stays as it is. Raises and costs as `rename`.

        Args:
            id: The conversation.
            tags: The tags.
        """
        return self.update(id, tagged=tags)

    def untag(self, id: str, *tags: str) -> Head:
        """Remove tags. A tag that is not there is skipped. Raises and costs as `rename`.

        Args:
            id: The conversation.
            tags: The tags.
        """
        return self.update(id, untagged=tags)

    def pin(self, id: str, on: bool = True) -> Head:
        """Pin a conversation to the top of the list, or unpin it. Raises and costs as `rename`.

        Args:
            id: The conversation.
            on: False unpins it.
        """
        return self.update(id, pinned=on)

    def archive(self, id: str, on: bool = True) -> Head:
        """Archive a conversation, or bring it back into the list. Raises and costs as `rename`.

        Args:
            id: The conversation.
            on: False brings it back.
        """
        return self.update(id, archived=on)


def entitle(head: dict[str, Any], title: str, by: str) -> None:
    """Set the title in a head that has its new `updatedAt`; a person's has its time, and settles what was open.

    Args:
        head: The head, changed in place.
        title: The title, checked.
        by: `user` or `auto`.
    """
    metadata = head["metadata"]
    head["title"] = title
    metadata["titleSetBy"] = by
    metadata.pop("titleSetAt", None)
    if by == "user":
        metadata["titleSetAt"] = head["updatedAt"]
        settled(metadata, "title")


def _flag(metadata: dict[str, Any], name: str, on: bool) -> None:
    """Set an optional flag; one that is off is left out, unless it is there already."""
    if on or name in metadata:
        metadata[name] = on


def _head_change(
    *,
    title: str | None = None,
    by: str = "user",
    instead_of: str | None = None,
    tags: Iterable[str] | None = None,
    tagged: Iterable[str] = (),
    untagged: Iterable[str] = (),
    pinned: bool | None = None,
    archived: bool | None = None,
    mcp_servers: Mapping[str, bool | None] | None = None,
) -> Callable[[dict[str, Any]], None]:
    """What makes these changes to a head; what is None stays as it is.

    Raises:
        InvalidInput: One can't be accepted, or there is none.
    """
    metadata: dict[str, Any] = {}
    if title is not None:
        title = check_title(title)
    if tags is not None:
        metadata["tags"] = check_tags(tags)
    added, removed = check_tags(tagged), frozenset(untagged)
    switched({}, mcp_servers or {})  # Checked before a file is asked for.
    flags = {name: on for name, on in (("pinned", pinned), ("archived", archived)) if on is not None}
    if title is None and not (metadata or added or removed or flags or mcp_servers):
        raise InvalidInput("nothing to change was given: a title, tags, pinned, archived or mcpServers")

    def change(head: dict[str, Any]) -> None:
        if title is not None:
            named = head["title"] and head["metadata"].get("titleSetBy") != "auto"
            if instead_of is not None and named and head["title"] not in (instead_of, title):
                raise InvalidInput(
                    f"nothing was changed: the title is {head['title']!r} by now, which somebody gave it meanwhile"
                )
            was_open = by == "user" and settled(head["metadata"], "title")
            if was_open or (head["title"], head["metadata"].get("titleSetBy")) != (title, by):
                entitle(head, title, by)
        head["metadata"].update(metadata)
        there = head["metadata"].get("tags") or []
        if added or removed & set(there):
            kept = [tag for tag in there if tag not in removed]
            head["metadata"]["tags"] = [*kept, *(tag for tag in added if tag not in kept)]
        if mcp_servers:
            overrides = switched(head["metadata"].get("mcpServers"), mcp_servers)
            head["metadata"]["mcpServers"] = overrides
            if not overrides:
                del head["metadata"]["mcpServers"]
        for name, on in flags.items():
            _flag(head["metadata"], name, on)

    return change
