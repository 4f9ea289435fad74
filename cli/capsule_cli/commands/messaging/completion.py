"""What the shell offers for channels and projects."""

from __future__ import annotations

from capsule_cli.completion import of_store


def complete_channel(incomplete: str) -> list[tuple[str, str]]:
    """The names of the channels that begin with `incomplete`, with what they are for."""
    found = of_store(lambda store: store.channels.list())
    names = ((f"{each.channel.name}@{each.channel.scope}", each.description) for each in found)
    return [one for one in names if one[0].startswith(incomplete)]


def complete_project(incomplete: str) -> list[tuple[str, str]]:
    """The ids of the projects that begin with `incomplete`, with their folders."""
    projects = of_store(lambda store: list(store.projects.list()))
    return [(one.id, one.path or "") for one in projects if one.id.startswith(incomplete)]
