"""Project context: the files of a project, attached to a conversation.

from capsule.context.capture import capture
from capsule.context.files import Selection

store.context.set(id, capture("path/to/project", Selection()))
"""
