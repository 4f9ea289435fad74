"""Attach the files of a project to a conversation as its project context.

from capsule.context.capture import capture
from capsule.context.files import FileSelection

store.context.set(id, capture("path/to/project", FileSelection()))
"""
