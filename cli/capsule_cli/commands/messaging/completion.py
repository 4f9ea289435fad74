"""What the shell offers for agents, channels and projects."""

from __future__ import annotations

from capsule_cli.completion import completing
from capsule_cli.public import named

complete_agent = completing(
    named,
    lambda store: store.agents.list(),
    lambda agent: (agent.id, agent.status_message or agent.project_path or ""),
)
complete_channel = completing(
    named,
    lambda store: store.channels.list(),
    lambda listed: (f"{listed.channel.name}@{listed.channel.scope}", listed.description),
)
complete_project = completing(
    named, lambda store: store.projects.list(), lambda project: (project.id, project.path or "")
)
