"""Project context: what a conversation is told of the files it is about.

from capsule.context.capture import capture
from capsule.context.files import Selection

store.context.set(id, capture("path/to/project", Selection()))
"""
