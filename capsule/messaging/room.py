"""What this room adds."""

from __future__ import annotations

from capsule.rooms import Room

_TALK = "Talk to each other"

ROOM = Room(
    "messaging",
    kinds=("agents", "projects"),
    objects={
        "agents": "capsule.messaging.people.agents:Agents",
        "projects": "capsule.messaging.people.projects:Projects",
        "groups": "capsule.messaging.conversations:Groups",
        "channels": "capsule.messaging.channels:Channels",
        "messages": "capsule.messaging.mail.delivery:Messages",
        "notes": "capsule.messaging.notes:Notes",
        "configuration": "capsule.messaging.configuration.configuration:Configuration",
    },
    package="capsule_cli.commands.messaging",
    commands={
        "messages": "send, inbox, listen, history, message status, message edit, message react",
        "agents": "agent list, agent register, agent show, agent set, agent status, agent forget, "
        "agent discover, "
        "agent allow, agent block, agent unblock, agent requests",
        "wake": "agent wake install, agent wake uninstall, agent wake test",
        "hook": "agent wake hook",
        "notifications": "agent notify on, agent notify off, agent notify status, agent notify "
        "clean",
        "channels": "channel list, channel new, channel show, channel set, channel join, channel "
        "leave, "
        "channel invite, channel remove, channel mute, channel unmute, channel members, channel "
        "topics",
        "groups": "group list, group new, group set, group add, group leave",
        "notes": "note list, note write, note search, note share, note unshare",
        "mentions": "mention list, mention done, mention reopen",
        "projects": "project list, project show, project link, project unlink",
        "config": "config plan, config apply, config history, config rollback",
    },
    groups={
        "agent": "Register people and programs that write to each other, and see who is there.",
        "agent wake": "Wake an agent that is idle when a message comes for it.",
        "agent notify": """Write into CLAUDE.md and AGENTS.md of a project how much mail waits for an agent.

        The block stands there while the agent is away; in AGENTS.md only if that exists. It has numbers and names, and
        never the text of a message. It goes when everything is read. The setting notifications.files names other files.
        """,
        "channel": "Make channels, join and leave them: conversations that agents find by a name.",
        "group": "Make groups of agents. Only its participants read a group and write to it.",
        "note": "Write notes that only the agent reads, and choose who else may read them.",
        "mention": "List the messages that mention the agent, and note which of them are done.",
        "message": "See what became of a message, change its text, or react to it.",
        "project": "See the projects of the agents, and choose which of them see each other.",
        "config": "Apply what files declare: capsule.toml, and the .claude/agents/*.md of "
        "projects and of your home.",
    },
    help=(
        (_TALK, 10, "send, inbox, listen, history", "Send messages, and read or await your own."),
        (_TALK, 20, "agent, project", "Register agents, and see who is there."),
        (_TALK, 30, "channel, group", "Make channels and groups, join and leave them."),
        (_TALK, 40, "mention, message, note", "See what others ask of you, and keep notes."),
        ("Look after the store", 15, "config", "Apply what files say of channels and agents."),
    ),
    guard="capsule.messaging.people.directory:Directory",
    complete_agent="capsule_cli.commands.messaging.completion:complete_agent",
    tools={"messaging all": "capsule.messaging.tools.added:MESSAGING"},
    resources="capsule.messaging.tools.agents:register",
)
