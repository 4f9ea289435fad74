"""The completions of agents, channels and projects."""

from __future__ import annotations

from capsule_cli.completion import completion_of
from capsule_cli.public import open_named_agent_store

complete_agent = completion_of(
    open_named_agent_store,
    lambda store: store.agents.list(),
    lambda agent: (agent.id, agent.status_message or agent.project_path or ""),
)
complete_channel = completion_of(
    open_named_agent_store,
    lambda store: store.channels.list(),
    lambda listed: (f"{listed.channel.name}@{listed.channel.scope}", listed.description),
)
complete_project = completion_of(
    open_named_agent_store,
    lambda store: store.projects.list(),
    lambda project: (project.id, project.path or ""),
)
