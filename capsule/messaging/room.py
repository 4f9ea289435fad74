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
        "messages": "send inbox listen history message",
        "mentions": "mentions",
        "notes": "notes",
        "agents": "agents",
        "projects": "projects",
        "groups": "group",
        "channels": "channels members topics join leave invite mute",
        "config": "config",
        "notifications": "notifications",
    },
    groups={
        "agents": {
            "agents": "list register show set status forget discover policy allow block unblock requests",
            "wake": "wake",
        },
        "agents wake": {"wake": "install uninstall test", "hook": "hook"},
        "channels": {"channels": "new list show update archive remove-member"},
        "config": {"config": "plan apply history rollback"},
        "group": {"groups": "new add leave rename list"},
        "message": {"messages": "status"},
        "mentions": {"mentions": "list done"},
        "notes": {"notes": "write search list allow end"},
        "notifications": {"notifications": "on off status clean"},
        "projects": {"projects": "list show link unlink"},
    },
    help=(
        (_TALK, 10, "send, inbox, listen, history", "Send messages, and read or await your own."),
        (_TALK, 20, "mentions, message, notes", "See what others ask of you, and keep notes."),
        (_TALK, 30, "agents, projects, group", "See who is there, and meet in groups."),
        (_TALK, 40, "channels, members, topics", "Make channels, and see what is in them."),
        (_TALK, 50, "join, leave, invite, mute", "Come into channels, and let others in."),
        (_TALK, 70, "notifications", "Say in CLAUDE.md what waits for an agent."),
        ("Look after the store", 15, "config", "Apply what files say of channels and agents."),
    ),
    guard="capsule.messaging.people.directory:Directory",
    complete_agent="capsule_cli.commands.messaging.completion:complete_agent",
    tools={"messaging all": "capsule.messaging.tools.added:MESSAGING"},
    resources="capsule.messaging.tools.agents:register",
)
