"""What the shell offers for channels and projects."""

from __future__ import annotations

from capsule_cli.completion import completing

complete_channel = completing(
    lambda store: store.channels.list(),
    lambda listed: (f"{listed.channel.name}@{listed.channel.scope}", listed.description),
)
complete_project = completing(lambda store: store.projects.list(), lambda project: (project.id, project.path or ""))
