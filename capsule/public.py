"""The `Store` that users of the library open: the core's, and a typed line for each object of a
room. A room is a part of the program that can be left out (`capsule.rooms`). Using an object of a
room that is not installed raises Refused.

What must stay true: nothing below imports this module, not even for types, so that the core works
without a room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from capsule.store.store import CoreStore, room_attribute

if TYPE_CHECKING:
    from capsule.messaging.agents import Agents
    from capsule.messaging.channels import Channels, Groups
    from capsule.messaging.configuration import Configuration
    from capsule.messaging.messages import Messages
    from capsule.messaging.notes import Notes
    from capsule.messaging.projects import Projects
    from capsule.sessions.sessions import Sessions
    from capsule.transfer.exporting import Export
    from capsule.transfer.importing import Import


class Store(CoreStore):
    """An open store: one instance, which several threads may use.

    Open one with `Store.open`. A `chat` is exclusive: a save locks it for this instance until
    `locks.release`, the end of `with store.locks.take(id)`, or `close`; conversations of other
    types have many writers.

    Attributes:
        root: The store's directory.
        settings: The settings in its `capsule.toml`.
        agent: The agent that it acts for; None: the store's owner.
        locks: Locks on conversations.
        branches: The branches of conversations.
        forks: Conversations that were split off from others.
        summaries: Conversations that sum up others.
        edits: Changes of messages and files that exist.
        titles: Suggested titles.
        context: Project contexts.
        servers: MCP servers that are switched on or off.
        trash: Deleted conversations and messages.
        versions: Earlier versions.
        conflicts: Fields that a merge left for a person to decide.
        incoming: Versions from other clones.
        agents: The agents that exchange messages.
        projects: The folders that agents work in, and which of them see which.
        groups: Conversations of several agents.
        channels: Conversations that agents find by a name.
        messages: Messages between agents.
        notes: What an agent writes for itself.
        configuration: What files declare of channels, agents and links.
        sessions: Workers that messages wake; for the owner only.
        import_: Conversations of other programs, brought in.
        export: Conversations in the formats of other programs.
    """

    agents: Agents = room_attribute("messaging")
    projects: Projects = room_attribute("messaging")
    groups: Groups = room_attribute("messaging")
    channels: Channels = room_attribute("messaging")
    messages: Messages = room_attribute("messaging")
    notes: Notes = room_attribute("messaging")
    configuration: Configuration = room_attribute("messaging")
    sessions: Sessions = room_attribute("sessions")
    import_: Import = room_attribute("transfer")
    export: Export = room_attribute("transfer")
