"""Conversations under git: how they diff, merge, travel, and what they were.

What must stay true: the `git` program does the versioning, and this package only tells it what a conversation is.
"""
