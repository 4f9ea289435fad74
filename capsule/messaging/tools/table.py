"""Which tools there are."""

from __future__ import annotations

from capsule.mcp_server.tools.registry import ADDS, READS, SETS, Tools
from capsule.messaging.tools import agents, channels, messages

TOOLS: Tools = (
    (messages.send_message, ADDS),
    (messages.listen, SETS),
    (messages.inbox, READS),
    (messages.read_messages, READS),
    (messages.mentions, SETS),
    (agents.list_agents, READS),
    (agents.manage_permissions, SETS),
    (agents.set_status, SETS),
    (channels.manage_channel, ADDS),
    (channels.manage_group, ADDS),
    (channels.notes, ADDS),
)
