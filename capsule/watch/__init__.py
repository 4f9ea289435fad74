"""Waiting for changes: the thread that waits for them, streams of changes, and their authors."""
